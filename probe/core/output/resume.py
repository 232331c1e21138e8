"""Resumed runs that continue in their old directory (``append_output``): each step exists once afterwards, and rules
remember the earlier steps."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate, chain
from pathlib import Path

from probe.core.faults import Faults
from probe.core.messages import plural
from probe.core.output.sinks.anomaly import take_out
from probe.core.records import Snapshot
from probe.core.rules import Rule
from probe.core.rules.skipped import is_evidence
from probe.core.storage import metrics_db
from probe.core.storage.anomaly_json import file_of
from probe.core.storage.batches import steps
from probe.core.storage.check_lines import CHECKS
from probe.core.storage.csv_reader import PlainRows
from probe.core.storage.csv_rows import rows
from probe.core.storage.directories import RankDirectory, find, runs
from probe.core.storage.event_file import is_event_file
from probe.core.storage.files import moved, replacing
from probe.core.storage.layout import COSTS, CSV, STEP, cost_step, table_name
from probe.core.storage.location import on_disk
from probe.core.storage.metrics_schema import SUFFIX
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import directories_of, superseded_name
from probe.core.storage.side_files import StepUpdates
from probe.core.storage.sql import literal, pattern_of

_log = logging.getLogger("probe")


def resume(root: Path, rank: int, stamps: tuple[str, ...], first: int) -> Resumed | None:
    """Return the latest directory of ``rank`` whose time lies between the two ``stamps``; None if there is none.

    Args:
        first: number of the first step that is done now, perhaps again.

    Raises:
        ValueError: if ``first`` is 0, the default, and the directory has steps.
    """
    if not stamps:
        return None
    try:
        directories = find(root, Problems(), stamps[0], stamps[1], pattern=directories_of(rank))
    except ValueError as error:
        _log.warning("append_output: rank %d begins a new directory: %s", rank, error)
        return None
    resumed = Resumed(directories[-1], first)
    if not first and resumed.written:
        raise ValueError(
            f"append_output: expected start_iteration, the number of the first step that is done now, in set_monitor: "
            f"{directories[-1].path} has the steps of an earlier run{_until(resumed.directory)}, and step 0 would be "
            "among them; without append_output the run begins a new directory"
        )
    _log.info("append_output: rank %d goes on in %s, at step %d", rank, directories[-1].path, first)
    return resumed


class Resumed:
    """The old directory; also the first sink, which puts aside the rows of steps that are done again.

    It does so before the first step is written: a run without a step changes nothing.
    """

    def __init__(self, before: RankDirectory, first: int) -> None:
        self.directory, self.first = on_disk(before.path), first
        self.before, self._done = before, False
        self._lock = threading.Lock()  # rows about tensors and numbers of the run are written on two threads
        self._aside = self.directory / superseded_name(time.time(), first)

    @property
    def written(self) -> bool:
        """True if the directory has steps."""
        files = [path for path, _ in self._files() if path.parent == self.directory]
        files += [path for path in self.directory.iterdir() if is_event_file(path.name)]
        return any(path.suffix != SUFFIX or metrics_db.has_row_tables(path) for path in files)

    def open(self) -> None:
        """Do nothing: rows are put aside before the first step is written."""

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def write(self, _: Snapshot) -> None:
        """Put aside, before the first step is written, all rows from that step on.

        Raises:
            Exception: the first failure; rows that could not be put aside stay.
        """
        with self._lock:
            if self._done:
                return
            self._done = True
            self._put_aside()

    def _put_aside(self) -> None:
        failures = []
        for path, put_aside in self._files():
            try:
                put_aside(path)
            except Exception as error:  # noqa: BLE001 - the other files are still to be corrected
                failures.append(error)
        if self._aside.exists():
            _log.warning("append_output: rows from step %d on, which is done again, are in %s", self.first, self._aside)
        if failures:
            raise failures[0]

    def _files(self) -> Iterator[tuple[Path, Callable[[Path], None]]]:
        rank = self.before.rank
        for path in sorted(self.directory.iterdir()):
            named = table_name(path.name)
            if named and named.last >= self.first:
                yield path, self._csv if named.format == CSV else self._parquet
            elif path.name in (COSTS, CHECKS):
                yield path, self._cost
            elif path.suffix == SUFFIX:
                yield path, partial(metrics_db.move_steps, rank=rank, first=self.first, aside=self._aside / path.name)
        yield file_of(self.directory.parent, rank), self._findings

    def _keep_copy(self, path: Path) -> None:
        self._aside.mkdir(exist_ok=True)
        shutil.copy2(path, self._aside / path.name)

    def _csv(self, path: Path) -> None:
        with path.open(newline="\n", encoding="utf-8", errors="surrogateescape") as file:
            table = rows(line for line in file if line.endswith("\n"))
            header = next(table, None)
            if header is None:  # the run was killed before its first row
                return
            column, width = header.cells.index(STEP), len(header.cells)  # ValueError: not one of our tables; keep it
            whole = (row for row in table if len(row.cells) == width and row.cells[column].isdecimal())
            before = (row for row in whole if int(row.cells[column]) < self.first)
            first_row = next(before, None)
            self._keep_copy(path)
            if first_row is None:
                path.unlink()
                return
            with replacing(path) as target:
                for row in chain([header, first_row], before):
                    target.writelines(row.lines)

    def _cost(self, path: Path) -> None:
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            lines = [line for line in file if line.endswith("\n")]
        earlier = [line for line in lines if cost_step(line) < self.first]
        if len(earlier) < len(lines):
            self._keep_copy(path)
            with replacing(path) as target:
                target.writelines(earlier)

    def _findings(self, path: Path) -> None:
        if findings := take_out(path, self.directory.name, self.first):
            self._aside.mkdir(exist_ok=True)
            with replacing(self._aside / path.name) as file:
                json.dump(findings, file, indent=1)

    def _parquet(self, path: Path) -> None:
        import duckdb

        self._keep_copy(path)
        rows = f"FROM read_parquet(?) WHERE {STEP} < ?"
        with closing(duckdb.connect(config={"threads": 1})) as connection:
            arguments = [pattern_of(path), self.first]
            (count,) = connection.execute(f"SELECT count(*) {rows}", arguments).fetchone() or (0,)
            if count:
                with moved(path) as hidden:
                    connection.execute(f"COPY (SELECT * {rows}) TO {literal(str(hidden))} (FORMAT parquet)", arguments)
            else:
                path.unlink()


def _until(directory: Path) -> str:
    """Return words about the last step of a run, for a message; nothing if ``COSTS`` does not have it."""
    try:
        *_, last = (directory / COSTS).read_text(encoding="utf-8").splitlines()
        return f", up to step {cost_step(last)}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


MOST_BYTES = 64 << 20
"""Largest total size of the earlier files that are read, the latest ones: it takes a few seconds before training."""


def remember(rules: Sequence[Rule], directory: Path, first: int, faults: Faults, continued: bool = False) -> int:
    """Let ``rules`` judge the rows of this rank of the steps before ``first``, and drop their findings.

    Read CSV files in the directories beside ``directory`` that it continues. Count rules that fail.

    Args:
        continued: whether ``directory`` itself is continued.

    Returns:
        The number of steps that were read.
    """
    if not rules or first <= 0:
        return 0
    problems = Problems()
    earlier = _earlier(directory, continued, problems)
    if not earlier:
        return 0
    rows, rank, read = PlainRows(earlier, problems), earlier[0].rank, 0
    updates = StepUpdates(rows, rank)
    for step in steps(rows, rank, _begin(rows), first - 1):
        read += 1
        judged = [batch for batch in updates.put_into(step).batches if is_evidence(batch)]
        for rule in rules:
            for batch in judged:
                try:
                    list(rule.judge(batch))
                except Exception as error:  # noqa: BLE001 - as while training
                    faults.note(f"rule {type(rule).__name__}", error)
    if read:
        _log.info("rules know %d %s before step %d, from %s", read, plural(read, "step"), first, earlier[-1].path)
    return read


def _earlier(directory: Path, continued: bool, problems: Problems) -> list[RankDirectory]:
    """Return the directories of this rank's run before ``directory``, in order of time."""
    rank_dir = find(directory, problems)[0]
    beside = find(directory.parent, problems, pattern=directories_of(rank_dir.rank))
    run = next(
        run for run in reversed(runs(beside)) if any(other_dir.path == directory for other_dir in run.directories)
    )
    rank = next(other_dir.rank for other_dir in run.directories if other_dir.path == directory)
    return [earlier for earlier in run.of(rank) if continued or earlier.path != directory]


def _begin(rows: PlainRows) -> int:
    """Return the first step of the latest files that are not larger than ``MOST_BYTES`` together."""
    files = sorted(
        (file for files_of_rank in rows.files.values() for _, file in files_of_rank), key=lambda file: -file.first
    )
    sizes = accumulate(file.path.stat().st_size for file in files)
    firsts = [file.first for file, size in zip(files, sizes, strict=True) if size <= MOST_BYTES]
    return min(firsts, default=files[0].first if files else 0)
