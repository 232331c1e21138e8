"""Schedules of learning rates: their steps between updates, and where they end."""

from __future__ import annotations

import re
import sys
import weakref
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from itertools import pairwise
from types import FrameType, SimpleNamespace
from typing import Any

from torch.optim import lr_scheduler

from probe.core.backend.live_objects import instances
from probe.core.prechecks.schedules import ahead
from probe.core.prechecks.trial import ScheduleFacts
from probe.launch.made_objects import note_made

ENDS: Mapping[str, str] = {
    "CosineAnnealingLR": "T_max",
    "OneCycleLR": "total_steps",
    "LinearLR": "total_iters",
    "PolynomialLR": "total_iters",
}
"""Attributes that hold the last step of a schedule, by class."""
NUMBER = re.compile(r"(^|_)(n?steps?|iters?|iterations?|updates?)(_|$)", re.IGNORECASE)
OTHER = re.compile(r"log|save|eval|warm|interval|every|acc|print|check|valid|decay|start|first", re.IGNORECASE)
"""Names of numbers of steps, and of those that are no whole training."""
FEWEST = 10
"""Steps of a training at least."""


class ScheduleWatch:
    """Schedules that were made, and their steps at each update."""

    def __init__(self) -> None:
        self._schedules: list[tuple[weakref.ref[Any], list[int], list[float]]] = []

    def begin(self) -> None:
        """Note schedules from now on."""
        note_made(lr_scheduler.LRScheduler, self._made)

    def _made(self, schedule: Any) -> None:
        self._schedules.append((weakref.ref(schedule), [], []))

    def updating(self, optimizer: Any) -> None:
        """Take the steps that the schedules of an optimizer have made before its update."""
        for reference, steps, rates in self._schedules:
            schedule = reference()
            if schedule is not None and _is_of(schedule, optimizer):
                steps.append(int(schedule.last_epoch))
                rates.append(float(optimizer.param_groups[0]["lr"]))

    def rows(self, backwards: int, world: int, frame: FrameType | None) -> list[ScheduleFacts]:
        """Return the facts of all schedules.

        Args:
            backwards: those of an update, the least number.
            frame: the innermost frame of the program, whose numbers of steps are compared with the ends of schedules.
        """
        planned = dict(_numbers(frame))
        rows = []
        for reference, steps, rates in self._schedules:
            schedule = reference()
            if schedule is None or not steps:
                continue
            advances = tuple(after - before for before, after in pairwise(steps))
            times = min(advances, default=0)
            horizon, name = _end(schedule, planned, times)
            by_processes = world > 1 and times == world and _is_prepared(schedule)
            kind = type(schedule).__name__
            rows.append(ScheduleFacts(kind, advances, backwards, horizon, name, by_processes, tuple(rates)))
        return rows


def overrun(schedule: Any, times: int, frame: FrameType) -> str:
    """Return a sentence on a schedule that advances ``times`` steps in each update, if it ends at a number of steps
    that the program has; empty if it does not."""
    horizon, name = _end(schedule, dict(_numbers(frame)), times)
    return ahead(type(schedule).__name__, times, horizon, name) if name else ""


def _is_of(schedule: Any, optimizer: Any) -> bool:
    stepped = getattr(schedule, "optimizer", None)
    return stepped is optimizer or getattr(stepped, "optimizer", None) is optimizer


def _is_prepared(schedule: Any) -> bool:
    """Return whether accelerate steps a schedule once for each process."""
    module = sys.modules.get("accelerate.scheduler")
    if module is None:
        return False
    return any(holder.scheduler is schedule for holder in instances(module.AcceleratedScheduler))


def _end(schedule: Any, planned: Mapping[str, int], times: int) -> tuple[int, str]:
    """Return the step at which a schedule ends, and the name of the number of the program that is the same; 0 and an
    empty text for what is not known. A program that also has the number of updates until then has made it for these."""
    horizon = int(getattr(schedule, ENDS.get(type(schedule).__name__, ""), 0) or 0)
    functions = getattr(schedule, "lr_lambdas", [])
    name = ""
    for name_of_number, number in planned.items():
        is_end = number == horizon if horizon else bool(functions) and _ends_at(functions[0], number)
        if is_end and times > 1 and number // times not in planned.values():
            horizon, name = number, name_of_number
            break
    return horizon, name


def _ends_at(function: Any, end: int) -> bool:
    """Return whether a schedule falls to its least rate at a step, and not before it."""
    steps = [end // 2, int(0.75 * end), int(0.9 * end), int(0.98 * end)]
    values, last = [float(function(step)) for step in steps], float(function(end))
    after = [float(function(end + more)) for more in (1, max(1, end // 4))]
    falls = all(one > other for one, other in zip(values, [*values[1:], last], strict=True))
    return falls and min(after) >= last - 1e-9


def _numbers(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    """Yield the numbers of steps that the frames of a program hold in variables or settings, by name."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in ("torch", "probe", "accelerate"):
            for place in (frame.f_locals, frame.f_globals):
                yield from _in(place, "")
                for name, value in [*place.items()]:
                    if isinstance(value, Namespace | SimpleNamespace | dict) or is_dataclass(value) or _is_named(value):
                        yield from _in(_fields(value), f"{name}.")
        frame = frame.f_back


def _is_named(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_asdict")


def _fields(value: Any) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    return value._asdict() if _is_named(value) else getattr(value, "__dict__", {})


def _in(place: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, int]]:
    for name, value in [*place.items()]:
        is_number = type(value) is int and value >= FEWEST and isinstance(name, str)
        if is_number and NUMBER.search(name) and not OTHER.search(name):
            yield f"{prefix}{name}", value
