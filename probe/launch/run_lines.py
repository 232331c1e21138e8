"""Lines about what is watched without a line of code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe.core.monitor.trainer_mon import Monitor, watcher_of


def attached(
    monitor: Monitor, models: Mapping[str, Any], optimizers: Sequence[Any], begun: int, by: str, way: str = ""
) -> str:
    """Return the line that is written when a monitor attaches.

    Args:
        begun: number of the first step.
        by: source of that number.
        way: noun phrase for what has attached it; empty for `probe run` or `probe attach` alone.
    """
    classes = ", ".join(f"{name}: {type(model).__name__}".removeprefix(": ") for name, model in models.items())
    kinds = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
    parts = [f"watching {classes} with {kinds}"]
    if begun:
        parts.append(f"from step {begun} on, by {by}")
    if monitor.output_directory:
        parts.append(f"files in {monitor.output_directory}")
    parts += [f"attached by {way}"] if way else []
    return "; ".join(parts)


def check_attached(monitor: Monitor, models: Sequence[Any]) -> None:
    """Refuse to call models watched that are not: where the machine fails, ``set_monitor`` raises nothing.

    Raises:
        RuntimeError: with what has failed.
    """
    if watcher_of(models) is not monitor:
        raise RuntimeError(f"the machine failed while a monitor attached ({', '.join(monitor.faults)})")


def watched_by(monitor: Monitor) -> str:
    """Return the sentence about a model that is watched already."""
    where = f"; files in {monitor.output_directory}" if monitor.output_directory else ""
    kind = "a monitor of `probe run` or `probe attach`"
    if not monitor.automatic:
        kind = f"the program's own {monitor.way or 'monitor'}"
    return f"the model is watched already, by {kind}{where}"
