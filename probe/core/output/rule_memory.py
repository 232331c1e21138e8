"""What rules knew before a run was resumed, from what it has written."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from probe.core.faults import Faults
from probe.core.messages import plural
from probe.core.rules import Rule
from probe.core.storage.batches import steps
from probe.core.storage.csv_reader import PlainRows
from probe.core.storage.directories import RankDirectory, find, runs
from probe.core.storage.problems import Problems

MOST_BYTES = 64 << 20
"""Of earlier files that are read at most, the latest ones: a few seconds before training begins."""

_log = logging.getLogger("probe")


def remember(rules: Sequence[Rule], directory: Path, first: int, faults: Faults, own: bool = False) -> int:
    """Lets ``rules`` judge what this rank has written of the steps before ``first``; what they find is thrown away.

    Reads CSV files, in the directories beside ``directory`` that it continues. A rule that fails is counted.

    Args:
        own: whether ``directory`` itself is one that is continued.

    Returns:
        The number of steps that were read.
    """
    if not rules or first <= 0:
        return 0
    problems = Problems()
    earlier = _earlier(directory, own, problems)
    rows = PlainRows(earlier, problems)
    begin = _begin(rows)
    read = 0
    for step in steps(rows, earlier[0].rank, begin, first - 1) if earlier else ():
        read += 1
        for rule in rules:
            for batch in step.batches:
                try:
                    list(rule.judge(batch))
                except Exception as error:  # noqa: BLE001 - as while training
                    faults.note(f"rule {type(rule).__name__}", error)
    if read:
        _log.info("rules know %d %s before step %d, from %s", read, plural(read, "step"), first, earlier[-1].path)
    return read


def _earlier(directory: Path, continued: bool, problems: Problems) -> list[RankDirectory]:
    """The directories of this rank's run before ``directory``, in order of time."""
    own = find(directory, problems)[0]
    beside = find(directory.parent, problems, pattern=f"*-rank{own.rank}-*")
    run = next(run for run in reversed(runs(beside)) if any(each.path == directory for each in run.directories))
    return [earlier for earlier in run.of(own.rank) if continued or earlier.path != directory]


def _begin(rows: PlainRows) -> int:
    """The first step to read: those of the latest files that are not too large together."""
    files = sorted((file for own in rows.files.values() for _, file in own), key=lambda file: -file.first)
    sizes = accumulate(file.path.stat().st_size for file in files)
    taken = [file.first for file, size in zip(files, sizes, strict=True) if size <= MOST_BYTES]
    return min(taken, default=files[0].first if files else 0)
