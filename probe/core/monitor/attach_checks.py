"""Warnings at ``set_monitor`` about valid settings that have no effect in this run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from probe.core.config.lint import without_effect
from probe.core.config.load import dynamic
from probe.core.config.schema import Settings
from probe.core.instrumentation.signals.sources import chosen


def warnings_for(settings: Settings, ranks: int, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each setting without effect.

    Args:
        ranks: number of processes.
    """
    if not dynamic(environ) and not chosen(settings) and not settings.cc_distribution.enable:
        yield (
            "the configuration collects nothing: switch on wg_distribution, xy_distribution, param_distribution or "
            "mv_distribution; `probe config check FILE` says what a file collects"
        )
    if settings.module_ranks and min(settings.module_ranks) >= ranks:
        yield (
            f"module_ranks: nothing is collected: expected some of the ranks 0 to {ranks - 1}, "
            f"got {list(settings.module_ranks)}"
        )
    if settings.dynamic_on and not dynamic(environ):
        yield (
            "dynamic_on has no effect, monitoring begins at start_step: to switch it while training runs, set the "
            "environment variable DYNAMIC_MONITOR=True before training begins"
        )
    if not settings.collect_times and not dynamic(environ):
        yield "collect_times is 0: nothing is collected; leave it out to collect every step"
    yield from without_effect(settings)
