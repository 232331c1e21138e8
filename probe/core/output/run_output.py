"""The output of a run on one rank: its directory and manifest, rules and sinks, and the thread that serves them."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from probe.core.distributed.global_stats import GlobalStats
from probe.core.distributed.replicas import compared
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.instrumentation.context import Listeners, Run
from probe.core.instrumentation.plan import Plan
from probe.core.instrumentation.schedule import Pace
from probe.core.instrumentation.step_boundary import FinishedStep
from probe.core.output.folder import OutputFolder
from probe.core.output.metrics.hub import MetricsHub
from probe.core.output.pipeline import Judged, SnapshotListener, Writer
from probe.core.output.resume import remember
from probe.core.output.sinks import KEPT
from probe.core.records import Finding, Snapshot, TextFile
from probe.core.storage import run_directory
from probe.core.storage.files import replace_text
from probe.core.storage.manifest import identity
from probe.core.worker import EXIT_SECONDS, LAST_SECONDS, Worker

FLUSH_SECONDS = 30.0
"""Seconds that an ending run waits for its files."""
DELIVERY = "delivery"
"""Place under which failures of the thread that writes are counted."""
SAME = {"ops", "eps", "start_step", "step_interval", "collect_times"}
"""Configuration keys in which ranks must agree for an exchange."""
CLOSE_SECONDS = 300.0
"""Seconds that it waits for files that are being closed. That takes as long as the disk needs; only a signal handler
that has interrupted the holder of a lock waits in vain."""

_log = logging.getLogger("probe")


class _Last(NamedTuple):
    """The end of a run, as it is known when its files are to be closed."""

    faults: Faults
    step: int
    """The last step that has ended."""
    incident: bool
    """True if training ends by an exception."""


class Output:
    """The output of a run on one rank. It is opened at construction; if that fails, no file stays behind.

    Args:
        folder: the directory, made here if anything is written, and its manifest.
        first: number of the first step here.
        pace: changes the interval between sampled steps; None if it is fixed.
        follows: the configuration file that is followed during training, or None.
        judged: receives the findings of every sampled step from the first finding on, on the delivery thread.
        listeners: receive each step, beside the sinks.
        metrics: ways out for metrics of this rank.
    """

    def __init__(
        self,
        run: Run,
        folder: OutputFolder,
        first: int,
        pace: Pace | None,
        follows: Path | None,
        judged: Judged | None = None,
        listeners: Listeners[SnapshotListener] | None = None,
        metrics: MetricsHub | None = None,
    ) -> None:
        self._run, self._pace, self._metrics = run, pace, metrics
        self._folder, self._first, self._resumed = folder, first, folder.resumed
        writes, self._began = set(run.settings.formats) - {KEPT}, folder.path is None
        self.directory = folder.make() if writes else None
        """Directory of this run and rank; None if nothing is written."""
        run.write_to(self.directory)
        with ExitStack() as undo:
            undo.callback(self._remove)
            self._delivery = delivery(run.settings.queue_size, run.settings.when_queue_full, run.faults)
            undo.callback(self._delivery.close, LAST_SECONDS)
            self._writer = Writer(folder.rank, self._resumed, run.faults, self._delivery, judged, listeners)
            self._choose(run)
            self._remember()
            self._writer.open()
            undo.pop_all()
        self._cost = run.cost
        self._cost.beside = self._beside
        self._finishing = threading.RLock()
        """Held by the thread that closes the files; reentrant for a signal handler."""
        self._finished = False
        """True once the files are closed."""
        self._writer.begin_exchange(global_stats_of(run, folder.number))
        folder.begin(run, first, follows)
        self._write_manifest()

    # Plans.

    def follow(self, run: Run, plan: Plan) -> None:
        """Receive the steps of ``run``, which ``plan`` watches.

        Raises:
            Exception: if a rule or sink cannot be made; then nothing changes.
        """
        at = {"step": run.clock.step, "plan": plan.name}
        if plan.purpose in ("rest", "count"):
            self._note({**at, "collecting": False})
        elif plan.origin in ("finding", "sentinel"):
            self._note({**at, "collecting": True, "suspects": list(plan.suspects)})
        elif plan.purpose == "collect":
            self._change(run, plan.name)
            self._pace = plan.schedule.pace or self._pace

    def begin(self, plan: Plan) -> None:
        """Note that the output begins with ``plan``, while others are under way."""
        self._note({"step": self._run.clock.step, "plan": plan.name, "collecting": True})

    def _change(self, run: Run, plan: str) -> None:
        """Write the rows of ``run`` to the same directory. Keep rules and sinks whose configuration has not changed."""
        before, self._run = self._run, run
        try:
            if self.directory is None and set(run.settings.formats) - {KEPT}:
                self.directory = self._folder.make()
            run.write_to(self.directory)
            change = self._choose(run)
        except BaseException:
            self._run = before
            raise
        exchange = self._writer.exchange_thread(global_stats_of(run, self._folder.number))
        self._delivery.submit(partial(self._writer.change_exchange, exchange, change), must=True)
        self._folder.configured(run, plan)
        self._write_manifest()

    def _choose(self, run: Run) -> Callable[[], None]:
        context = self._folder.context(self.directory, run.settings, self._first, self._metrics)
        return self._writer.choose(run.settings, context)

    def succeed(self, run: Run) -> None:
        """Note that an optimizer has replaced another."""
        self._folder.succeeded(run)
        self._write_manifest()

    def _note(self, change: dict[str, object]) -> None:
        self._folder.note(change)
        self._write_manifest()

    # Steps.

    def submit(self, step: FinishedStep) -> None:
        """Hand ``step`` to the delivery thread."""
        self._delivery.submit(partial(self._deliver, step))

    def write(self, file: TextFile) -> None:
        """Hand ``file`` to the delivery thread, which writes it before the steps that are submitted later."""
        self._delivery.submit(partial(write_text, file, self._run.faults), must=True)

    def _deliver(self, step: FinishedStep) -> None:
        """Write ``step``, once all steps before it are written. Call on the delivery thread."""
        self._writer.deliver(self._snapshot(step))

    def _snapshot(self, step: FinishedStep) -> Snapshot:
        """Return the snapshot of ``step``; wait for the device."""
        spent, update = step.spent, step.update() if callable(step.update) else step.update
        batches = [replace(batch, update=update) for rows in step.pending for batch in rows.batches(step.number)]
        device = self._cost.add_device(spent) if self._run.framework.clock is not None else 0.0
        cost = {"hooks": spent.hooks, "drain": spent.drain} | ({"device": device} if device else {})
        return Snapshot(
            step.number,
            self._folder.rank,
            step.time,
            batches,
            step.ops,
            scalars={"probe/overhead": self._cost.part(self._beside())},
            cost=cost,
            outcome=step.outcome,
            update=update,
        )

    def flush(self, timeout: float) -> bool:
        """Wait until every submitted step is written; return False if that takes longer than ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        if not self._delivery.flush(timeout):
            return False
        while self._delivery.here and self._writer.pending:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    # State.

    @property
    def waits_for_ranks(self) -> bool:
        """True if a submitted step may still wait for other ranks."""
        return self._writer.exchanges and not self.flush(0.0)

    @property
    def delivers(self) -> bool:
        """True if the delivery thread is in this process: a forked child has none."""
        return self._delivery.here

    def _beside(self) -> float:
        """Return the seconds of processor time that the monitor has spent on other threads than training."""
        return self._delivery.seconds + self._writer.exchange_seconds

    @property
    def cost(self) -> dict[str, float]:
        """Seconds that the monitor has spent, the number of collected steps, and the overhead as a part of training
        time."""
        beside = self._beside()
        overhead = self._cost.part(beside)
        spent = {"delivery": beside, "steps": float(self._writer.steps), "overhead": overhead}
        return self._writer.cost | spent

    @property
    def findings(self) -> list[Finding]:
        """The first findings of the run, in the steps that the delivery thread has processed."""
        return list(self._writer.findings)

    def news(self) -> list[Finding]:
        """Return the findings since the last call."""
        return self._writer.news()

    # The end.

    def discard(self) -> None:
        """Close and remove the output of an attachment that has failed."""
        self._end_delivery(FLUSH_SECONDS)
        self._writer.close()
        self._remove()

    def close(self, incident: bool = False, seconds: float = FLUSH_SECONDS) -> None:
        """Write all pending steps, and the end of the manifest. The files are closed on the delivery thread, where
        nothing interrupts that; this waits for it. A call after an interrupted one waits again.

        Args:
            incident: whether training ends by an exception.
            seconds: time limit for the pending steps; those not written by then are counted as lost.
        """
        if not self._delivery.here or self._finished:
            return
        deadline, last = time.monotonic() + seconds, self._last(incident)
        self.flush(seconds)
        self._writer.wait_no_longer()
        remaining = max(LAST_SECONDS, deadline - time.monotonic())
        self._delivery.close(remaining, lambda: self._finish_here(last))
        self._wait_or_finish(last)

    def close_unattended(self) -> None:
        """Close on the delivery thread without waiting, and drop the run, which the program no longer references."""
        last = self._last(False)
        del self._run
        self._writer.wait_no_longer()
        self._delivery.end(lambda: self._finish_here(last), awaited=True)

    def _end_delivery(self, seconds: float) -> None:
        """Write all pending steps, with the numbers of other ranks if they arrive before the deadline."""
        deadline = time.monotonic() + seconds
        self.flush(seconds)
        self._writer.wait_no_longer()
        self._delivery.submit(self._writer.advance, must=True)
        self._delivery.close(max(LAST_SECONDS, deadline - time.monotonic()))
        self._writer.close_exchange(LAST_SECONDS)

    def _last(self, incident: bool) -> _Last:
        return _Last(self._run.faults, self._run.clock.step - 1, incident)

    def _finish_here(self, last: _Last) -> None:
        """Finish on the delivery thread, unless that is done."""
        self._writer.advance()
        self._finish_once(last)

    def _wait_or_finish(self, last: _Last) -> None:
        """Wait until the delivery thread has finished; finish here if it is stuck before that, or cannot run."""
        deadline = time.monotonic() + CLOSE_SECONDS
        while not (self._finished or self._finish_once(last)):
            if time.monotonic() > deadline:
                last.faults.note("end of the run", TimeoutError(f"files not closed within {CLOSE_SECONDS:g} seconds"))
                return
            time.sleep(0.001)  # no lock: this may run inside a signal handler

    def _finish_once(self, last: _Last) -> bool:
        """Finish, unless that is done or another thread is at it; return true if it is done."""
        if not self._finishing.acquire(blocking=False):
            return False
        try:
            if not self._finished:
                self._writer.close_exchange(LAST_SECONDS)
                self._finish(last)
                self._finished = True
        finally:
            self._finishing.release()
        return True

    def _finish(self, last: _Last) -> None:
        self._writer.close(last.incident)
        faults, more = last.faults.counts, dict[str, object]()
        if last.step >= self._first:
            more["last_step"] = last.step
        if self._pace is not None:
            more["pace"] = {"interval": self._pace.interval, "skipped": self._pace.skipped}
        if (unwritten := self._writer.unwritten) is not None:
            more["history"] = {"unwritten": unwritten}
        more |= {
            "end_time": run_directory.time_text(time.localtime()),
            "cost_seconds": self.cost,
            "findings": self._writer.finding_count,
        }
        self._write_manifest(more | {"faults": faults}, last.faults)
        if faults:
            _log.warning("failed in places, training was not affected: %s", faults)

    # The files.

    def _remember(self) -> None:
        """Let the rules judge the steps before the first one, so that they remember them."""
        if self.directory is None:
            return
        folder, faults = self._folder, self._run.faults
        try:
            if self._resumed is None:
                run_directory.write_manifest(self.directory, identity(folder.rank, folder.number, self._first))
            remember(self._writer.rules, self.directory, self._first, faults, continued=self._resumed is not None)
        except (OSError, ValueError) as error:
            faults.note("memory of rules", error)

    def _remove(self) -> None:
        if self.directory is not None and self._resumed is None and self._began:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _write_manifest(self, more: Mapping[str, object] | None = None, faults: Faults | None = None) -> None:
        if self.directory is not None:
            attempt(faults or self._run.faults, "manifest", self._folder.write, more or {})


def global_stats_of(run: Run, number: int) -> GlobalStats | None:
    """Return the exchange of numbers of whole tensors as ``run`` configures it; None if ranks exchange nothing.

    Args:
        number: number of the run, the same on all ranks.
    """
    settings, groups = run.settings, run.framework.groups
    if not settings.global_stats or groups.world_size() == 1:
        return None
    same = json.dumps(settings.model_dump(mode="json", include=SAME) | {"first": run.clock.step}, sort_keys=True)
    rules = {rule.rule_name for rule in settings.alert.rules}
    replicas, assumed = compared(rules, run.framework.parallel, run.replicas, groups.world_size())
    return GlobalStats(
        run.framework.parallel,
        f"run {number} from step {run.clock.step}",
        same,
        settings.statistics,
        settings.global_stats_seconds,
        run.faults,
        replicas,
        assumed,
    )


def delivery(size: int, when_full: str, faults: Faults) -> Worker:
    """Return the thread that writes, with a queue of ``size`` steps. Without a thread, training writes."""
    return Worker("probe-delivery", DELIVERY, faults, room=size, when_full=when_full, inline=True)


def write_text(file: TextFile, faults: Faults) -> None:
    """Write ``file`` atomically; count a failure under the file's ``where``."""
    try:
        if file.replaces or not file.path.is_file():
            replace_text(file.path, file.text)
    except Exception as error:  # noqa: BLE001 - training goes on after any error
        faults.note(file.where, error)


class StructureOutput:
    """Receiver of the one step of ``print_struct``, for which only a file is written.

    Training is stopped after that step, and its exit code depends on the file. So each call of :meth:`write` waits
    until the file is written, or for at most ``EXIT_SECONDS``.
    """

    waits_for_ranks = False

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def submit(self, step: FinishedStep) -> None:
        """Do nothing: the step has no rows."""

    def write(self, file: TextFile) -> None:
        """Write ``file`` on a separate thread and wait for it."""
        worker = delivery(1, "wait", self._faults)
        worker.submit(partial(write_text, file, self._faults))
        if not worker.flush(EXIT_SECONDS):
            self._faults.note(file.where, TimeoutError(f"not written within {EXIT_SECONDS:g} seconds"))
        worker.close(LAST_SECONDS)

    def succeed(self, run: Run) -> None:
        """Do nothing: no manifest names the optimizer."""
