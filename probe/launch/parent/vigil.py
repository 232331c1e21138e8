"""Look of the parent at the board: the ranks, while the program runs, and the report at its end."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from probe.core.language import joined, message
from probe.core.messages import MARGIN, complain, has_blocks, terminal_width
from probe.core.sentinel.board import REASON, SUMMARIES, SUMMARY, Board

if TYPE_CHECKING:
    from probe.core.run_state.budget import OwnBudget
    from probe.core.run_state.progress_file import ProgressReader
    from probe.core.sentinel.node_comparison import NodeComparison
    from probe.core.sentinel.rank_lines import RankLine
    from probe.core.sentinel.watch_summary import WatchSummary
    from probe.core.verdict import JudgedFinding, Verdict
    from probe.core.verdict_picture import VerdictPicture

LINES, OF = "-*.lines", "-of"
"""Names of the files of lines, and what comes in them before the number of the ranks: NumPy is not imported here."""
COLOURS = {"info": 32, "warning": 31}
"""ANSI numbers of green and red, by the level of a report."""
NOTHING = message(
    "nothing was watched on this machine: no process of the program made an optimizer of torch or MindSpore; give the "
    "script that trains"
)
ENDED = message(
    "nothing was watched on this machine: the program ended with {status} before it made an optimizer of torch or "
    "MindSpore"
)
UNSTEPPED = message("no step was finished: the program ended with {status} before its first update")
MOST_RUNS = 5
"""Number of runs of a program that are reported one by one."""
SHOWN_RANKS = 8
"""Most ranks of which a line about a standstill gives the numbers."""
GAP = 10 * 10**9
"""Nanoseconds between two looks after which this process was stopped, and the program perhaps with it."""
PATIENCE_SECONDS = 2.0
"""Time for other ranks of the node to end, where each has been started by itself."""


class Vigil:
    """Look at the board of one node. No method raises: a failure is reported, with what was not looked at.

    Args:
        folder: the board.
        identity: identity of the program.
        ranks: processes that a launcher has started beside this one, which are waited for at the end.
    """

    def __init__(self, folder: Path, identity: str, ranks: int = 1) -> None:
        self._folder, self._identity, self._ranks = folder, identity, ranks
        self._comparison: NodeComparison | None = None
        self._failure = ""
        self._unread = 0
        self._files = ""
        """Folder of the first run's files; empty before it is known."""
        self._ready = False
        """True once the report is made."""
        self._budgets: dict[Path, tuple[ProgressReader, OwnBudget]] = {}
        """Progress of each rank, and what judges it."""
        self._looked = self._since = 0
        """Times of the last look, and before which no pause counts, in nanoseconds of the monotonic clock."""
        self._stands = False
        """True while a standstill goes on that was reported."""

    def look(self, last: bool = False) -> None:
        """Compare the ranks, with ``last`` also those that have just begun; else report those that stand still."""
        if self._failure:
            return
        try:
            if not last:
                self._look_at_progress()
            if self._comparison is None:
                names = [path.name for path in self._folder.glob(f"[!.]*{LINES}")]
                if len(names) < 2 and not any(map(_has_others, names)):
                    return
                from probe.core.sentinel.node_comparison import NodeComparison  # NumPy: only where there are ranks

                self._comparison = NodeComparison(self._folder, self._identity)
            self._comparison.look(last)
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the wait for the program
            self._failure = f"ranks were not compared: {type(error).__name__}: {error}"

    def _look_at_progress(self) -> None:
        """Write a line, once for each standstill, about the ranks that are least far."""
        from probe.core.run_state.progress_file import RUNNING

        now = time.monotonic_ns()
        if now - self._looked > GAP:
            self._budgets.clear()
            self._since = now if self._looked else 0
        self._looked = now
        still: dict[int, list[tuple[int, float, int]]] = {}
        for reader, budget in self._judged():
            row, seconds_left = budget.look(now)
            if seconds_left < 0 and row.way == RUNNING and Path(f"/proc/{reader.header.pid}").exists():
                rank = reader.header.rank, (now - row.time) / 1e9, reader.header.pid
                still.setdefault(row.step, []).append(rank)
        if still and not self._stands:
            step, ranks = min(still.items())
            numbers, seconds, pids = zip(*sorted(ranks)[:SHOWN_RANKS], strict=True)
            text = (
                "rank {ranks} has made no update since step {step}, for {seconds:.0f} s: it evaluates, saves or hangs; "
                '`py-spy dump --pid {pid}` shows which; with "run": {{"hang": {{"enable": true}}}} in a configuration '
                "the stacks of all are written"
            )
            names = ", ".join(map(str, numbers))
            complain(text, "info", ranks=names, step=step, seconds=max(seconds), pid=pids[0])
        self._stands = bool(still)

    def _judged(self) -> Iterable[tuple[ProgressReader, OwnBudget]]:
        """Return the progress of each rank that has begun, with its budget."""
        from probe.core.run_state.budget import Budget, OwnBudget
        from probe.core.run_state.progress_file import SUFFIX, ProgressReader

        for path in self._folder.glob(f"rank*{SUFFIX}"):
            summary = next(self._folder.glob(f"{SUMMARY}{path.stem.removeprefix('rank')}-*"), None)
            if path not in self._budgets and summary is not None:
                with suppress(OSError, ValueError):  # it may be in the making
                    arguments = json.loads(summary.read_text())["budget"]
                    if (reader := ProgressReader(path)).row() is not None:
                        budget = Budget(*arguments)
                        self._budgets[path] = reader, OwnBudget(reader, budget, self._since)  # type: ignore[arg-type] # a row
        return self._budgets.values()

    def report(self, status: int = 0, is_reporting: bool = True) -> None:
        """Write the closing lines to standard error; with ``is_reporting`` also if nothing was watched.

        Args:
            status: exit code of the program; negative: the number of the signal that ended it.
        """
        self.look(last=True)
        try:
            lines = self._lines(status, is_reporting)
            self._ready = True
            for text, level in lines:
                complain(text, level, COLOURS.get(level, 0))
        except Exception as error:  # noqa: BLE001 - the exit code is the program's
            complain(f"the report about the program failed: {type(error).__name__}: {error}", "warning")

    def late(self) -> None:
        """Write to standard error that the report takes too long, unless it is made."""
        if not self._ready:
            command = " ".join(["probe anomalies", *filter(None, [self._files and quote(self._files)])])
            complain("the report is not ready in time: `{command}` prints it", "warning", command=command)

    def _lines(self, status: int, is_reporting: bool) -> list[tuple[str, str]]:
        ending = message("exit code {status}", status=status) if status > 0 else signal.Signals(-status or 1).name
        if next(self._folder.glob(SUMMARIES), None) is None:
            text = message(ENDED.template, status=ending) if status else NOTHING
            return [(text, "info")] if is_reporting and not (self._folder / REASON).exists() else []
        lines: list[tuple[str, str]] = []
        summaries = self._summaries()
        watched = [summary for summary in summaries if summary.steps or summary.findings or not summary.ended]
        runs = [*_runs(watched).values()]
        if summaries and not runs and status:
            lines.append((message(UNSTEPPED.template, status=ending), "info"))
        reported = {ranks[0].launch for ranks in runs}
        for ranks in runs[:MOST_RUNS]:
            lines += self._of_run(ranks, ranks[0].launch in reported)
            reported.discard(ranks[0].launch)
        if len(runs) > MOST_RUNS:
            lines.append((f"{len(runs) - MOST_RUNS} more runs of this program were watched", "info"))
        if self._unread:
            unread = message("{number} processes left a report that cannot be read", number=self._unread)
            lines.append((unread, "warning"))
        return [*lines, *([(self._failure, "warning")] if self._failure else [])]

    def _of_run(self, ranks: list[WatchSummary], first: bool) -> list[tuple[str, str]]:
        from probe.core.sentinel.watch_summary import report_of

        launch = ranks[0].launch
        between: list[JudgedFinding] = []
        compared = ""
        if self._comparison is not None and first:
            between = [finding for of, finding in self._comparison.findings if of == launch]
            compared = self._comparison.compared(launch)
        report = report_of(ranks, between, compared)
        self._files = self._files or report.files
        room = max(0, terminal_width(sys.stderr) - MARGIN)
        text = joined("\n", report.lines(_picture(report.verdict, ranks), has_blocks(sys.stderr), room))
        return [(text, "warning" if report.verdict.kind or report.unknown else "info")]

    def _followed(self, summary: WatchSummary) -> WatchSummary:
        """Return the summary of a process that was killed as its lines continue it."""
        from probe.core.run_state.budget import Budget, stillness
        from probe.core.run_state.progress_file import SUFFIX, ProgressReader
        from probe.core.sentinel.rank_lines import LinesReader

        for path in self._folder.glob(f"rank{summary.rank}-{summary.pid}{LINES}"):
            with suppress(OSError, ValueError):
                for line in LinesReader(path).news():
                    summary = _latest(summary, line)
        with suppress(OSError, ValueError, TypeError):
            progress = ProgressReader(self._folder / f"rank{summary.rank}-{summary.pid}{SUFFIX}")
            still = stillness(progress.row(), progress, Budget(*summary.budget), time.monotonic_ns())
            summary = summary._replace(still=still)
        return summary

    def _summaries(self) -> list[WatchSummary]:
        """Return the summaries, once all ranks that were started beside this one have ended, or after a while."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            board = Board(self._folder)
            summaries, self._unread = board.summaries(), board.unread
            ended = sum(summary.ended for summary in summaries)
            if ended >= self._ranks or time.monotonic() > deadline or self._ranks == 1:
                return [summary if summary.ended else self._followed(summary) for summary in summaries]
            time.sleep(0.05)


def _picture(verdict: Verdict, ranks: Sequence[WatchSummary]) -> VerdictPicture | None:
    """Return the picture of a verdict from the files of the first rank that it names; None if there is none."""
    from probe.core.verdict_picture import picture_of

    of_rank = next((summary for summary in ranks if summary.rank in verdict.ranks), ranks[0])
    if not verdict.kind or not of_rank.directory:
        return None
    with suppress(OSError, ValueError):  # what cannot be read is reported by the command that the lines name
        return picture_of(Path(of_rank.directory), verdict)
    return None


def _has_others(name: str) -> bool:
    """Return whether the name of a file of lines says that there are other ranks, perhaps on other nodes."""
    number = name.rpartition(OF)[2].partition(".")[0]
    return number.isdigit() and int(number) > 1


def _latest(summary: WatchSummary, line: RankLine) -> WatchSummary:
    steps = max(summary.steps, line.step + 1 - (summary.step - summary.steps))
    loss = summary.loss
    if line.step > loss.last_step and not math.isnan(line.loss):
        loss = loss.at(line.step, line.loss)
    return summary._replace(step=max(summary.step, line.step + 1), steps=steps, loss=loss, preflight="")


def _runs(summaries: list[WatchSummary]) -> dict[tuple[str, int, int], list[WatchSummary]]:
    """Return the summaries by run. Processes without a launcher are runs of their own."""
    runs: dict[tuple[str, int, int], list[WatchSummary]] = {}
    for summary in summaries:
        runs.setdefault((summary.launch, summary.number, 0 if summary.launch else summary.pid), []).append(summary)
    return runs
