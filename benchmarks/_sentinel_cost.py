"""Cost of the sentinel, for the table of what watching costs a step."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _monitors import SENTINEL_AIMS, attach_probe, configuration, size_of, training_module
from _quiet import take_turns
from _report import Array, difference, interval, milliseconds, of_the_step, verdict

SETTLING, SHORT_BLOCK = 8, 50
"""First steps of a turn with the sentinel, in which it surveys the graph, and steps of a turn of short ones."""


def sentinel_case(
    args: argparse.Namespace, setting: str, scratch: Path, block: Callable[..., Callable[[], float]]
) -> dict[str, Any]:
    """Measure seconds a step without and with the sentinel, which is attached for its turns alone: it listens to every
    backward of the process. Of the tiny model it is the processor time of all threads.

    Args:
        block: returns a function that returns the seconds of a step of several.
    """
    plain, watched = (training_module(args.framework).Training(args.device, **size_of(setting)) for _ in range(2))
    if SENTINEL_AIMS[setting] < 1e-3:
        sys.modules["torch"].set_num_threads(1)
        args.block, clock = SHORT_BLOCK, time.process_time
    else:
        clock = time.perf_counter

    def turn(training: Any, config: dict[str, Any] | None) -> float:
        monitor = None if config is None else attach_probe(training, config, scratch / "probe")
        flush = None if monitor is None else monitor.flush
        for _ in range(SETTLING):
            training.step()
        seconds = block(training, args, flush, clock)()
        if monitor is not None:
            monitor.stop()
            if monitor.faults:
                raise RuntimeError(f"probe failed inside, so its cost means nothing: {monitor.faults}")
        return seconds

    config = configuration(setting)
    unwatched = take_turns({"plain": lambda: turn(plain, None), "probe": lambda: turn(watched, None)}, args.rounds)
    blocks = {"plain": lambda: turn(plain, None), "probe": lambda: turn(watched, config)}
    measured = take_turns(blocks, args.rounds)._asdict()
    return {"variants": ["plain", "probe"], "unwatched": unwatched.seconds, "record": 0.0, **measured}


def sentinel_aim(seconds: Array, aim: float) -> str:
    """Judge what the sentinel adds: by milliseconds if the aim is less than one, else as a part of the step."""
    if aim >= 1e-3:
        return f"<= {aim:.0%} of the step: {verdict_alone(seconds, aim)}"
    added, low, high = interval(lambda s: difference(s, 1), seconds)
    figures = f"{milliseconds(added)} ({milliseconds(low)} to {milliseconds(high)})"
    return f"<= {milliseconds(aim)}, all threads: {figures}, {verdict(aim, low, high)}"


def verdict_alone(seconds: Array, aim: float) -> str:
    """Judge whether probe adds at most the fraction ``aim`` of a plain step."""
    ratio, low, high = of_the_step(seconds)
    return f"{ratio:.1%} ({low:.1%} to {high:.1%}), {verdict(aim, low, high)}"
