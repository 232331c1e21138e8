"""Lint of a configuration: valid keys that have no effect in this combination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from probe.core.config.alerts import unjudged
from probe.core.histogram import HISTOGRAM

ALWAYS_WRITTEN = ("shape", "dtype")
"""Ops that are written in any case."""


def in_vain(settings: Any) -> Iterator[str]:
    """One sentence each."""
    if settings.forward_only and settings.backward_only:
        yield "forward_only and backward_only are both true: no activation and no gradient of one is collected"
    if not set(settings.ops) - set(ALWAYS_WRITTEN):
        yield "ops names nothing to compute: norm is collected"
    if settings.cc_distribution.cc_log_only and not settings.cc_distribution.enable:
        yield "cc_distribution.cc_log_only has no effect without cc_distribution.enable"
    if settings.stack_info and "csv" not in settings.formats:
        yield "stack_info has no effect without the format csv"
    if HISTOGRAM in settings.ops and {"csv", "parquet", "tensorboard"}.isdisjoint(settings.formats):
        yield "the op histogram is written in the formats csv, parquet and tensorboard alone; quantiles are in all"
    named = settings.l2_targets.linear_hook is not None or any(map(bool, settings.l2_targets.model_dump().values()))
    if settings.recording_l2_features and not named:
        yield "recording_l2_features has no effect: l2_targets names no module"
    if named and not settings.recording_l2_features:
        yield "l2_targets has no effect without recording_l2_features"
    yield from unjudged(settings)


def without_effect(settings: Any) -> Iterator[str]:
    """One sentence for each key that has no effect as the others are, whatever the model and its optimizers."""
    if settings.print_struct:
        return  # nothing else is collected
    yield from _without_rules(settings)
    yield from _without_switch(settings)
    if settings.ndigits is not None and "csv" not in settings.formats:
        yield "ndigits has no effect without the format csv"
    if settings.step_count_per_record != 1 and {"csv", "parquet"}.isdisjoint(settings.formats):
        yield "step_count_per_record has no effect without the format csv or parquet"


def _without_rules(settings: Any) -> Iterator[str]:
    if settings.alert.rules:
        return
    if settings.history:
        yield "history writes nothing unless training ends by an exception: alert.rules is empty; name rules"
    if settings.on_anomaly is not None:
        yield "on_anomaly has no effect without rules that find something: alert.rules is empty; name rules"
    if settings.alert.dump:
        yield "alert.dump has no effect without rules that find something: alert.rules is empty; name rules"


def _without_switch(settings: Any) -> Iterator[str]:
    """Keys that refine what is not switched on."""
    arm = settings.on_anomaly.arm if settings.on_anomaly is not None else None
    if settings.monitor_mbs_grad and not (settings.wg_distribution or (arm and arm.wg_distribution)):
        yield "monitor_mbs_grad has no effect without wg_distribution"
    if not (settings.xy_distribution or (arm and arm.xy_distribution)):
        refined = [key for key in ("all_xy", "forward_only", "backward_only") if getattr(settings, key)]
        placed = next((name for name, target in settings.targets.items() if target.model_fields_set), None)
        if refined:
            yield f"{' and '.join(refined)} {'has' if len(refined) == 1 else 'have'} no effect without xy_distribution"
        if placed is not None:
            yield f"the element selectors in targets (as of {placed}) have no effect without xy_distribution"
    collectives = settings.cc_distribution
    for key in ("cc_codeline", "cc_pre_hook"):
        if getattr(collectives, key) and not collectives.enable:
            yield f"cc_distribution.{key} has no effect without cc_distribution.enable"
