"""Turns while nothing else runs: rounds during which other processes were busy are measured again; and whether a
machine is quiet enough to be measured on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

BUSY = 0.1
"""Most cores that other processes may use on average during a round that counts."""
ATTEMPTS = 3
"""Most rounds that are measured, as a multiple of those wanted."""
STOLEN = 0.05
"""Most cores that a hypervisor may withhold on average."""
SPREAD = 0.1
"""Largest distance between the quartiles of a plain step's time, as a fraction of its median."""
STAT = Path("/proc/stat")

Blocks = dict[str, Callable[[], float]]


class Rounds(NamedTuple):
    """Measured rounds."""

    seconds: list[list[float]]
    """Seconds of each contestant in each round."""
    disturbed: int
    """Number of these rounds that were disturbed nevertheless."""


def take_turns(blocks: Blocks, number: int) -> Rounds:
    """Measure ``number`` rounds of every block, each begun by another; keep the least disturbed ones."""
    names, measured = list(blocks), list[tuple[float, int, list[float]]]()
    while len(measured) < ATTEMPTS * number and sum(others < BUSY for others, *_ in measured) < number:
        turn = len(measured)
        first = turn % len(names)
        busy, began = busy_elsewhere(), time.perf_counter()
        seconds = {name: blocks[name]() for name in names[first:] + names[:first]}
        others = (busy_elsewhere() - busy) / (time.perf_counter() - began)
        measured.append((others, turn, [seconds[name] for name in names]))
    best = sorted(sorted(measured)[:number], key=lambda entry: entry[1])
    return Rounds([row for _, _, row in best], sum(others >= BUSY for others, *_ in best))


class Activity(NamedTuple):
    """Cores that were not at this process's disposal, on average over a time."""

    others: float
    """Used by other processes."""
    stolen: float
    """Withheld by a hypervisor."""


def activity_since(stat: Path = STAT) -> Callable[[], Activity]:
    """Begin to observe the machine; return a function for the activity until it is called."""
    busy, stolen, began = busy_elsewhere(stat), _used(stat)[1], time.perf_counter()

    def until_now() -> Activity:
        seconds = time.perf_counter() - began
        return Activity((busy_elsewhere(stat) - busy) / seconds, (_used(stat)[1] - stolen) / seconds)

    return until_now


def spread(seconds: Array) -> float:
    """Return the distance between the quartiles of ``seconds``, as a fraction of their median."""
    low, middle, high = np.percentile(seconds, [25, 50, 75])
    return float((high - low) / middle)


def disturbances(activity: Activity, spread: float = 0.0) -> list[str]:
    """Return the reasons why figures of this machine would not repeat; none if it is quiet."""
    found = []
    if activity.others > BUSY:
        found.append(f"other processes used {activity.others:.2f} cores (at most {BUSY:g})")
    if activity.stolen > STOLEN:
        found.append(f"the hypervisor withheld {activity.stolen:.2f} cores (at most {STOLEN:g})")
    if spread > SPREAD:
        found.append(f"the quartiles of the plain step lay {spread:.0%} apart (at most {SPREAD:.0%})")
    return found


def busy_elsewhere(stat: Path = STAT) -> float:
    """CPU seconds that others than this process and its ended children have used; only differences are meaningful. 0
    where Linux's /proc is missing."""
    used = _used(stat)[0]
    return used - sum(os.times()[:4]) if used else 0.0


def _used(stat: Path) -> tuple[float, float]:
    """CPU seconds that all processes have used and a hypervisor has withheld since the machine's start; 0 without
    Linux's /proc."""
    try:
        ticks = stat.read_text().split(maxsplit=9)
    except OSError:
        return 0.0, 0.0
    user, nice, system, _, _, interrupt, soft_interrupt, stolen = map(int, ticks[1:9])
    second = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + interrupt + soft_interrupt) / second, stolen / second
