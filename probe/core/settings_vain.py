"""What a configuration asks for in vain: correct keys that have no effect as the others are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from probe.core.histogram import HISTOGRAM
from probe.core.settings_alerts import unjudged

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
