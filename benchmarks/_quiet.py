"""Turns while nothing else runs: rounds during which other processes were busy are measured again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

BUSY = 0.1
"""Most cores that other processes may use on average during a round that counts."""
ATTEMPTS = 3
"""Most rounds that are measured, as a multiple of those wanted."""

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


def busy_elsewhere() -> float:
    """CPU seconds that others than this process and its ended children have used; only differences are meaningful. 0
    where Linux's /proc is missing."""
    try:
        ticks = Path("/proc/stat").read_text().split(maxsplit=8)
    except OSError:
        return 0.0
    user, nice, system, _, _, interrupt, soft_interrupt = map(int, ticks[1:8])
    total = (user + nice + system + interrupt + soft_interrupt) / os.sysconf("SC_CLK_TCK")
    return total - sum(os.times()[:4])
