"""Results of benchmarks by commit and processor, and the comparison of the newest with earlier ones.

``history.jsonl`` has a line for each run of a benchmark. Of the runs of one measurement the median one is published; it
is compared. ``python benchmarks/_history.py`` needs no package and exits with 1 if a figure has become costlier.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOM = 0.05
"""Fraction by which a figure may become costlier."""
HISTORY = Path(__file__).with_name("history.jsonl")
Result = dict[str, Any]
"""Line of the history: see :func:`result`."""


class Figure(NamedTuple):
    """Cost, so that less is better, with the ends of its interval."""

    value: float
    low: float
    high: float


class Change(NamedTuple):
    """Figure of the newest result beside the cheapest earlier one."""

    benchmark: str
    name: str
    before: Figure
    now: Figure
    commit: str
    """Commit of the earlier figure."""

    @property
    def verdict(self) -> str:
        """Return ``COSTLIER``, ``cheaper`` or ``as before``."""
        if costlier(self.now, self.before):
            return "COSTLIER"
        return "cheaper" if costlier(self.before, self.now) else "as before"


def costlier(now: Figure, before: Figure) -> bool:
    """Return whether ``now`` exceeds ``before`` by more than the allowed fraction, and their intervals are apart."""
    return now.value - before.value > ROOM * abs(before.value) and now.low > before.high


def median_run(runs: Sequence[Mapping[str, Figure]]) -> int:
    """Return the index of the run whose figures, ranked among those of all runs, lie nearest to the middle; the
    earliest of equal ones."""
    distances = [0.0] * len(runs)
    for name in set(runs[0]).intersection(*runs[1:]):
        ranked = sorted(range(len(runs)), key=lambda number: runs[number][name].value)
        for rank, number in enumerate(ranked):
            distances[number] += abs(rank - (len(runs) - 1) / 2)
    return distances.index(min(distances))


def changes(history: Sequence[Result]) -> Iterator[Change]:
    """Yield each figure of the newest published result of every benchmark beside the cheapest one of another commit.

    Results are comparable if benchmark, arguments and processor are equal. Those of a busy machine do not count.
    """
    for newest, others in _comparable(history):
        for name, now in newest["figures"].items():
            if earlier := [each for each in others if name in each["figures"]]:
                cheapest = min(earlier, key=lambda each: each["figures"][name][0])
                before = Figure(*cheapest["figures"][name])
                yield Change(newest["benchmark"], name, before, Figure(*now), cheapest["commit"])


def _comparable(history: Sequence[Result]) -> Iterator[tuple[Result, list[Result]]]:
    """Yield the newest result of each kind with the earlier ones of other commits."""
    kinds: dict[tuple[str, str, str], list[Result]] = {}
    for each in history:
        if each["published"] and not each["busy"]:
            kinds.setdefault((each["benchmark"], each["arguments"], each["processor"]), []).append(each)
    for *earlier, newest in kinds.values():
        yield newest, [each for each in earlier if state(each) != state(newest)]


def state(each: Result) -> tuple[str, bool]:
    """Return the commit of a result, and whether files were changed since."""
    return each["commit"], each["changed"]


def read(path: Path = HISTORY) -> list[Result]:
    """Return all results, the earliest first; none if there is no file.

    Raises:
        ValueError: if a line is no result, with its number.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(dict(json.loads(line)))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: expected a JSON object, got {line[:60]!r}") from error
    return found


def append(results: Sequence[Result], path: Path = HISTORY) -> None:
    """Add results."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in results)


def commit(root: Path = HISTORY.parent.parent) -> tuple[str, bool]:
    """Return the commit of the measured code, and whether files were changed since; ``unknown`` without git."""
    watched = ["probe", "benchmarks", f":!benchmarks/{HISTORY.name}"]
    try:
        head = _git(root, "rev-parse", "HEAD").strip()
        return head, bool(_git(root, "status", "--porcelain", "--", *watched).strip())
    except (OSError, subprocess.CalledProcessError):
        return "unknown", True


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def processor() -> str:
    """Return the name of the processor and the number of cores that this process may use."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    name = found.group(1) if found else platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def comparison(found: Sequence[Change], of_processor: str) -> str:
    """Return a table of the changes in Markdown."""
    if not found:
        return f"Nothing to compare: {HISTORY.name} has no quiet results of two commits on {of_processor} (make bench)."
    lines = [
        f"| {each.benchmark}: {each.name} | {_text(each.before)} at {each.commit[:10]} | "
        f"{_text(each.now)} | {each.verdict} |"
        for each in found
    ]
    return "\n".join(["| figure | cheapest earlier | newest |  |", "| --- | ---: | ---: | ---: |", *lines])


def _text(figure: Figure) -> str:
    return f"{figure.value:.4g} ({figure.low:.4g} to {figure.high:.4g})"


def main() -> None:
    """Compare the newest results of this processor; exit with 1 if a figure has become costlier."""
    parser = argparse.ArgumentParser(description="Figures of the newest results beside the cheapest earlier ones.")
    parser.add_argument("--history", type=Path, default=HISTORY, help="file with the results")
    parser.add_argument("--processor", default=processor(), help="processor whose results are compared")
    args = parser.parse_args()
    found = list(changes([each for each in read(args.history) if each["processor"] == args.processor]))
    print(comparison(found, args.processor))
    sys.exit(any(each.verdict == "COSTLIER" for each in found))


if __name__ == "__main__":
    main()
