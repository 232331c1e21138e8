"""Watch over the ranks of one node: whose budget is over, and which process is gone."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from probe.core.alerting.channels import AlertSender
from probe.core.faults import Faults
from probe.core.language import Message, joined, message
from probe.core.messages import in_number
from probe.core.records import Alert, Severity
from probe.core.run_state.budget import Budget, RankBudget
from probe.core.run_state.progress_file import RUNNING, SUFFIX, ProgressReader, ProgressRow
from probe.core.run_state.watcher_process import WatcherSettings
from probe.core.worker import Worker
from probe.services.watcher.episode import EpisodeFile, HangEpisode
from probe.services.watcher.processes import RankProcess
from probe.services.watcher.stacks import RankStacks, StackSubject, read_stacks
from probe.services.watcher.verdict import RankView, StandstillVerdict, judge, long_phase, stack_text

FILE_SECONDS = 5.0
"""Longest wait for files in the output directory, which may be the very disk that stands still."""
MOST_GAP = 4.0
"""Number of intervals after which the watcher was itself not running: that time counts for no rank."""
AFTERMATH_SECONDS = 120.0
"""Time after the loss of one rank in which the loss of others is its likely consequence."""

_log = logging.getLogger("probe.hang")


class WatchedRank:
    """Rank of this node: its file and its process."""

    def __init__(self, path: Path, budgets: Budget) -> None:
        self.reader = ProgressReader(path)
        self.header = self.reader.header
        self.process = RankProcess(self.header.pid, self.header.started)
        self.budget = RankBudget(self.reader, budgets)
        self.row: ProgressRow = self._row()
        self.over_since = 0.0
        """Time at which the budget was first seen to be over; 0 if it is not."""

    def _row(self) -> ProgressRow:
        row = self.reader.row()
        if row is None:
            raise ValueError(f"{self.reader.path}: no whole row")
        return row

    def read(self) -> None:
        self.row = self._row()

    @property
    def subject(self) -> StackSubject:
        return StackSubject(self.header, self.process, self.reader.path.with_suffix(".stacks"))

    def view(self, seconds: float, stacks: RankStacks) -> RankView:
        return RankView(self.header.rank, self.row.step, self.row.phase, seconds, self.process.state(), stacks)

    def forget(self) -> None:
        """Remove the files of a rank that is not watched any more."""
        for path in (self.reader.path, self.reader.path.with_suffix(".stacks")):
            with suppress(OSError):
                path.unlink()
        self.close()

    def close(self) -> None:
        self.reader.close()
        self.process.close()


class RunningClock:
    """Time for which the watcher itself was running, in nanoseconds of ``time.monotonic_ns``.

    A machine that is suspended stops that clock; a container or virtual machine that is frozen need not. Then nobody
    made progress and nobody is to blame: a gap between two looks that is much longer than their interval does not
    count. It is judged by time, not by the number of looks.
    """

    def __init__(self, interval: float, now: int) -> None:
        self._most = int(MOST_GAP * interval * 1e9)
        self._last = now
        self._gaps: list[tuple[int, int]] = []

    def look(self, now: int) -> None:
        if now - self._last > self._most:
            self._gaps.append((self._last, now))
        self._last = now

    def excused(self, since: int, now: int) -> int:
        """Return the time between ``since`` and ``now`` in which the watcher did not run."""
        return sum(max(0, min(end, now) - max(begin, since)) for begin, end in self._gaps)

    def restart(self, now: int) -> None:
        """Leave out time that the watcher spent on its own work."""
        self._last = now


class _Over(NamedTuple):
    rank: WatchedRank
    budget: float


class NodeWatcher:
    """Watcher of all ranks of ``folder`` until they have ended.

    Args:
        folder: folder of the ranks of this node.
        settings: configuration.
        alerts: queue of alerts.
        replaced: function that returns true once another watcher has taken this one's place.
    """

    def __init__(
        self,
        folder: Path,
        settings: WatcherSettings,
        alerts: AlertSender,
        replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        self.folder, self.settings, self.alerts = folder, settings, alerts
        self._replaced = replaced
        self.host = socket.gethostname()
        self._ranks: dict[str, WatchedRank] = {}
        self._clock = RunningClock(settings.poll_seconds, time.monotonic_ns())
        self._file = EpisodeFile(folder)
        self._hang: HangEpisode | None = self._file.active
        if self._file.alert is not None:
            alerts.send(self._file.alert._replace(repeated=True))
        self._excused_until = 0.0
        self._lost: tuple[int, float] | None = None
        self._ended_by_us: set[int] = set()
        self._alone_since = time.monotonic()

    def run(self) -> None:
        """Watch until no rank has been there for a while."""
        _log.info("the watch over %s begins", self.folder)
        self.look()
        while self._ranks or time.monotonic() - self._alone_since < self.settings.linger_seconds:
            self._wait()
            if self._replaced():
                _log.warning("%s was made anew: another watcher watches it", self.folder)
                return
            self.look()
        if self._hang:
            self._resolve(f"the ranks of {self.host} have ended")

    def _wait(self) -> None:
        """Wait for the next look, or for the end of a process, whose exit code may soon be fetched by its parent."""
        ends = select.poll()
        for rank in self._ranks.values():
            if rank.process.handle >= 0:
                ends.register(rank.process.handle, select.POLLIN)
        ends.poll(self.settings.poll_seconds * 1000)

    def look(self) -> None:
        """Look at every rank once."""
        now = time.monotonic_ns()
        self._clock.look(now)
        self._find()
        for name, rank in list(self._ranks.items()):
            rank.read()
            if not rank.process.alive():
                self._leave(name, rank)
        if self._ranks:
            self._alone_since = time.monotonic()
        running = [rank for rank in self._ranks.values() if rank.row.way == RUNNING]
        over = self._over(running, now)
        if self._hang:
            self._recover(self._hang, running, over)
        elif over and self._confirmed(over) and time.monotonic() >= self._excused_until:
            self._examine(running, over)

    def _find(self) -> None:
        """Notice new files, also one that replaces another of its name. Those that were removed are still open here:
        without the folder their ranks are watched on."""
        entries_by_name: dict[str, os.DirEntry[str]] = {}
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            entries_by_name = {
                entry.name: entry for entry in entries if entry.name.endswith(SUFFIX) and entry.name[0] != "."
            }
        for name, entry in entries_by_name.items():
            rank = self._ranks.get(name)
            if rank is None or rank.reader.inode != entry.inode():
                budget = Budget(self.settings.floor_seconds, self.settings.startup_seconds)
                if rank is not None:
                    rank.close()
                try:
                    self._ranks[name] = WatchedRank(Path(entry.path), budget)
                except FileNotFoundError:
                    continue
                except (OSError, ValueError) as error:
                    _log.warning("%s is not watched: %s", name, error)
                    with suppress(OSError):
                        os.unlink(entry.path)  # noqa: PTH108 - as the entry has it

    def _over(self, running: Sequence[WatchedRank], now: int) -> list[_Over]:
        """Return the ranks whose budget is over, without those that wait for another rank: one of the same step or an
        earlier one whose phase is a longer one (an evaluation, a checkpoint) and within its budget."""
        over, longer = [], []
        for rank in running:
            excused = self._clock.excused(rank.row.time, now)
            young = now - excused - rank.row.time < self.settings.floor_seconds * 1e9 and not rank.row.until
            if not young and rank.budget.left(rank.row, now - excused) < 0:
                rank.over_since = rank.over_since or now / 1e9
                seconds = rank.budget.budget.seconds(rank.row.phase, rank.budget.past(rank.row.phase))
                over.append(_Over(rank, seconds))
            else:
                rank.over_since = 0.0
                if rank.row.phase != "step" or rank.row.until:
                    longer.append(rank.row.step)
        return [overdue for overdue in over if not any(step <= overdue.rank.row.step for step in longer)]

    def _confirmed(self, over: Sequence[_Over]) -> bool:
        """Return true if a budget has been over for the time between two looks."""
        now = time.monotonic()
        return any(now - overdue.rank.over_since >= 0.9 * self.settings.poll_seconds for overdue in over)

    def _seconds(self, rank: WatchedRank) -> float:
        """Return the time since the last sign of progress of a rank."""
        now = time.monotonic_ns()
        return (now - rank.row.time - self._clock.excused(rank.row.time, now)) / 1e9

    def _examine(self, running: Sequence[WatchedRank], over: Sequence[_Over]) -> None:
        """Read the stacks of all ranks, and alert unless one has gone on or is in a phase that it does not mark."""
        stacks_of_ranks = read_stacks([rank.subject for rank in running])
        self._clock.restart(time.monotonic_ns())
        before = {rank: rank.row.time for rank in running}
        for rank in running:
            rank.read()
        over = [overdue for overdue in over if overdue.rank.row.time == before[overdue.rank]]
        if not over:
            return
        views = [rank.view(self._seconds(rank), stacks) for rank, stacks in zip(running, stacks_of_ranks, strict=True)]
        seconds = max(self._seconds(overdue.rank) for overdue in over)
        phases = sorted({phase for view in views if (phase := long_phase(view)) and view.phase == "step"})
        if phases and seconds < self.settings.startup_seconds:
            self._excused_until = time.monotonic() + min(overdue.budget for overdue in over)
            _log.info("no progress for %.0f s, as the stacks show %s", seconds, " and ".join(phases))
            return
        self._begin(running, over, views)

    def _begin(self, running: Sequence[WatchedRank], over: Sequence[_Over], views: Sequence[RankView]) -> None:
        verdict = judge(views)
        step = min(view.step for view in views)
        stuck = {overdue.rank.reader.path.name: overdue.rank.row.time for overdue in over}
        longest = max(over, key=lambda overdue: self._seconds(overdue.rank))
        for overdue in over:
            overdue.rank.budget.stand_still(overdue.rank.row.phase)
        self._hang = self._file.begin(step, longest.rank.row.phase, stuck)
        where = self._write(views, running, verdict)
        alert = self._alert(self._hang, views, verdict, longest, where)
        self._file.keep(alert)
        self.alerts.send(alert)
        if self.settings.on_hang == "end":
            self._end(running)

    def _alert(
        self, hang: HangEpisode, views: Sequence[RankView], verdict: StandstillVerdict, longest: _Over, where: Path
    ) -> Alert:
        seconds, row = self._seconds(longest.rank), longest.rank.row
        text = [
            verdict.line,
            message(
                "{seconds:.0f} s without progress in the phase {phase}; the budget was {budget:.0f} s.",
                seconds=seconds,
                phase=row.phase,
                budget=longest.budget,
            ),
            *map(_rank_text, views[:64]),
            message("Stacks of all ranks of {host}: {where}", host=self.host, where=where),
        ]
        if self.settings.on_hang == "end":
            text.append(message("The ranks of this node are ended, so that the launcher can start them again."))
        labels = self._labels(
            rank=",".join(map(str, verdict.culprits or (longest.rank.header.rank,))),
            step=str(row.step),
            phase=row.phase,
            seconds=f"{seconds:.0f}",
        )
        title = message("{job} stands still: {line}", job=self.settings.job, line=verdict.line)
        return self._made(hang.key, "hang", "critical", title, text, labels)._replace(lasting=True)

    def _labels(self, **labels: str) -> Mapping[str, str]:
        return {"job": self.settings.job, "host": self.host, **labels}

    def _made(
        self, key: str, kind: str, severity: Severity, title: str, text: Sequence[str], labels: Mapping[str, str]
    ) -> Alert:
        _log.error("%s", title)
        return Alert(key, kind, severity, title, joined("\n", text), labels, time.time())

    def _write(self, views: Sequence[RankView], running: Sequence[WatchedRank], verdict: StandstillVerdict) -> Path:
        """Write the stacks to the output directory or, if that does not answer, to the folder of this node."""
        name = time.strftime("%Y%m%d-%H%M%S")
        pids = {rank.header.rank: rank.header.pid for rank in running}
        texts = {f"rank{view.rank}.txt": stack_text(view, self.host, pids[view.rank]) for view in views}
        texts[f"node-{self.host}.txt"] = verdict.line + "\n"
        for above in (Path(self.settings.output), self.folder):
            folder = above / "hang" / name
            if within(FILE_SECONDS, lambda folder=folder: _write_all(folder, texts)):  # type: ignore[misc]
                return folder
        return self.folder

    def _recover(self, hang: HangEpisode, running: Sequence[WatchedRank], over: Sequence[_Over]) -> None:
        """End the episode when every rank that stood still has gone on, and none has begun to stand still."""
        ranks = {rank.reader.path.name: rank for rank in running}
        still = [name for name, time in hang.stuck.items() if name in ranks and ranks[name].row.time == time]
        for name, rank in ranks.items():
            if name in hang.stuck and name not in still:
                rank.budget.go_on(hang.phase, (rank.row.time - hang.stuck.pop(name)) / 1e9)
        if still or any(overdue.rank.reader.path.name not in hang.stuck for overdue in over):
            return
        if ranks:
            steps = ", ".join(sorted({str(rank.row.step) for rank in ranks.values()}))
            singular = "training goes on: {number} rank of {host} at step {steps}"
            plural = "training goes on: {number} ranks of {host} at step {steps}"
            self._resolve(in_number(len(ranks), singular, plural, host=self.host, steps=steps))
        else:
            self._resolve(message("the ranks of {host} have ended", host=self.host))

    def _resolve(self, text: str) -> None:
        if self._hang:
            _log.warning("the standstill has ended: %s", text)
            self.alerts.resolve(self._hang.key, text)
            self._hang = None
            self._file.end()

    def _leave(self, name: str, rank: WatchedRank) -> None:
        """Stop watching a rank whose process has ended, and alert if training had not."""
        rank.read()
        if rank.row.way == RUNNING and rank.header.pid not in self._ended_by_us:
            self._lose(rank, rank.process.death())
        del self._ranks[name]
        rank.forget()

    def _lose(self, rank: WatchedRank, cause: str) -> None:
        now, number = time.monotonic(), rank.header.rank
        ids = {"rank": number, "pid": rank.header.pid, "host": self.host}
        text = [
            message("rank {rank} (process {pid}) on {host}: {cause}", **ids, cause=cause),
            message("last finished step {step}, phase {phase}", step=rank.row.step, phase=rank.row.phase),
        ]
        severity: Severity = "critical"
        if self._lost and now - self._lost[1] < AFTERMATH_SECONDS:
            severity = "warning"
            earlier = "Rank {rank} was lost {seconds:.0f} s before, which may be the cause."
            text.append(message(earlier, rank=self._lost[0], seconds=now - self._lost[1]))
        else:
            self._lost = number, now
        labels = self._labels(rank=str(number), step=str(rank.row.step), phase=rank.row.phase, cause=cause)
        title = message("{job} lost rank {rank}: {cause}", job=self.settings.job, rank=number, cause=cause)
        self.alerts.send(self._made(f"gone rank={number} pid={rank.header.pid}", "gone", severity, title, text, labels))

    def _end(self, running: Sequence[WatchedRank]) -> None:
        """End the ranks of the node: SIGTERM, and SIGKILL to those that remain after the grace time."""
        self._ended_by_us |= {rank.header.pid for rank in running}
        for rank in running:
            rank.process.send(signal.SIGTERM)
        end = time.monotonic() + self.settings.grace_seconds
        while (survivors := [rank for rank in running if rank.process.alive()]) and time.monotonic() < end:
            time.sleep(min(0.1, self.settings.poll_seconds))
        for rank in survivors:
            rank.process.send(signal.SIGKILL)
        self._clock.restart(time.monotonic_ns())


def _rank_text(view: RankView) -> Message:
    facts = [view.state] if view.state else []
    facts += [] if view.stacks.source else [message("no stacks: {problem}", problem=view.stacks.problem)]
    since = "rank {rank}: {seconds:.0f} s since step {step}, phase {phase}"
    values = {"rank": view.rank, "seconds": view.seconds, "step": view.step, "phase": view.phase}
    return joined(", ", [message(since, **values), *facts])


def _write_all(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", errors="replace")


def within(seconds: float, act: Callable[[], None]) -> bool:
    """Call ``act`` on a thread of its own; return whether it came to its end within ``seconds``."""
    done: list[bool] = []

    def run() -> None:
        try:
            act()
        except OSError as error:
            _log.warning("stacks could not be written: %s", error)
        else:
            done.append(True)

    worker = Worker("probe-hang-files", "stacks", Faults("the watcher goes on"))
    worker.end(run)
    worker.join(seconds)
    return bool(done)
