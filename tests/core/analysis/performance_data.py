"""Files of runs with numbers of their steps, in the documented format, for the tests of performance."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from probe.core.analysis.performance.analyse import Performance, analysed
from probe.core.storage.run_directory import write_manifest

HEADER = "vpp_stage,name,step,value,shape,dtype\n"
CALLS = "vpp_stage,name,step,norm,count,bytes,seconds,shape,dtype\n"
Numbers = Callable[[int], Mapping[str, float]]


def write_rank(
    root: Path,
    rank: int,
    steps: Iterable[int],
    numbers: Numbers,
    time: str = "Dec03_21-34-40",
    steps_per_file: int = 100,
    **manifest: Any,
) -> Path:
    """The directory of a rank with its numbers at each step."""
    directory = root / f"{time}-rank{rank}-0123abcd"
    directory.mkdir(parents=True)
    files: dict[int, list[str]] = {}
    for step in steps:
        lines = files.setdefault(step // steps_per_file * steps_per_file, [])
        lines += [f"0,{name},{step},{float(value)!r},[],float64\n" for name, value in numbers(step).items()]
    for first, lines in files.items():
        path = directory / f"run_{first}-{first + steps_per_file - 1}.csv"
        path.write_text(HEADER + "".join(lines), encoding="utf-8")
    if manifest:
        write_manifest(directory, {"rank": rank, "framework": "pytorch", "config": {}, **manifest})
    return directory


Call = tuple[int, str, float, float, float]
"""Step, name, count, bytes, seconds."""


def write_calls(directory: Path, calls: Iterable[Call]) -> None:
    """A file of collectives."""
    rows = (f"0,{name},{step},1.0,{count},{size},{seconds},[4],float32\n" for step, name, count, size, seconds in calls)
    (directory / "other_0-99999.csv").write_text(CALLS + "".join(rows), encoding="utf-8")


def write_costs(directory: Path, costs: Iterable[tuple[int, float, float]]) -> None:
    """A file of the monitor's own cost: step, seconds of hooks, overhead so far."""
    lines = [
        json.dumps(
            {"step": step, "hooks_seconds": hooks, "drain_seconds": 0.25, "device_seconds": 0.5, "overhead": overhead}
        )
        for step, hooks, overhead in costs
    ]
    (directory / "cost.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def of(root: Path, hours: float | None = None) -> Performance:
    """The performance of a run whose files are all in order."""
    found, problems = analysed(root, hours)
    assert problems.lines() == []
    return found
