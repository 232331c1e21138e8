"""The output of a run on one rank: its directory and manifest, rules and sinks, and the thread that serves them."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from probe.core.faults import Faults
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.overhead import Overhead
from probe.core.instrumentation.pace import Pace
from probe.core.instrumentation.plan import Plan
from probe.core.instrumentation.step_boundary import FinishedStep
from probe.core.output.delivery import Delivery
from probe.core.output.global_exchange import GlobalExchange
from probe.core.output.history_buffer import Past
from probe.core.output.manifest import Attached, ManifestWriter
from probe.core.output.pipeline import Writer
from probe.core.output.resume import remember, resume
from probe.core.output.sinks import KEPT
from probe.core.output.sinks.context import SinkContext
from probe.core.output.stages import Stages
from probe.core.output.text_files import write_text
from probe.core.records import Batch, Finding, Snapshot, TextFile
from probe.core.storage import run_directory
from probe.core.storage.manifest import identity

FLUSH_SECONDS = 30.0
"""How long an ending run waits for its files."""
LAST_SECONDS = 1.0
"""For what is still to be done after that, at least."""

_log = logging.getLogger("probe")


class Output:
    """Opens everything at once; nothing stays behind if that fails.

    Args:
        number: of the run, the same on all ranks.
        process_group: the pipeline-parallel group, for what findings say of their rank.
        first: number of the first step.
        pace: which changes the interval between sampled steps, if one does.
        follows: the configuration file that is followed while training runs, if one is.
    """

    def __init__(
        self, run: Run, number: int, process_group: Any, first: int, pace: Pace | None, follows: Path | None
    ) -> None:
        self._run, self._pace = run, pace
        rank, mates = run.framework.groups.rank(), run.framework.groups.ranks_of(process_group)
        self._root = run_directory.output_root(os.environ).absolute()  # training may change its directory
        writes = set(run.settings.formats) - {KEPT}
        self._resumed = resume(self._root, rank, run.settings.append_output, first) if writes else None
        old = self._resumed.directory if self._resumed else None
        self._attached = Attached(number, first, rank, tuple(mates), run_directory.time_text(time.localtime()))
        self._name = old.name if old else run_directory.directory_name(rank, time.time())
        self.directory = (old or run_directory.create(self._root, self._name)) if writes else None
        """This run's and rank's own; None where nothing is written."""
        run.write_to(self.directory)
        self._held_back: tuple[int, Past | None] = 0, None
        self._stages = Stages(rank, self._resumed)
        try:
            self._stages.choose(run.settings, self._context(run))
            self._remember()
            self._writer = Writer(self._stages.rules, self._stages.sinks, run.faults, self._past())
            self._writer.open()
        except BaseException:
            self._remove()
            raise
        self._overhead = Overhead(run.framework.clock)
        self._delivery = Delivery(run.settings.queue_size, run.settings.when_queue_full, run.faults)
        self._exchange = GlobalExchange(run, number, self._delivery)
        self._manifest = ManifestWriter(run, self._attached, follows, self._resumed)
        self._write_manifest()

    # Plans.

    def follow(self, run: Run, plan: Plan) -> None:
        """Takes the steps of ``run``, which is watched as ``plan`` says.

        Raises:
            Exception: if a rule or sink cannot be made; all go on as they are then.
        """
        step = run.clock.step
        if plan.purpose in ("rest", "count"):
            self._note({"step": step, "collecting": False})
        elif plan.origin == "finding":
            self._note({"step": step, "collecting": True, "suspects": list(plan.suspects)})
        elif plan.purpose == "collect":
            self._change(run)
            self._pace = plan.schedule.pace or self._pace

    def _change(self, run: Run) -> None:
        """The rows of ``run`` go to the same directory. Rules and sinks that are configured as they were go on as they
        are."""
        before, self._run = self._run, run
        try:
            if self.directory is None and set(run.settings.formats) - {KEPT}:
                self.directory = run_directory.create(self._root, self._name)
            run.write_to(self.directory)
            self._stages.choose(run.settings, self._context(run))
        except BaseException:
            self._run = before
            raise
        rules, sinks, past = self._stages.rules, self._stages.sinks, self._past()
        change = self._exchange.change(run, lambda: self._writer.change(rules, sinks, past))
        self._delivery.submit(change, must=True)
        self._manifest.configured(run)
        self._write_manifest()

    def succeed(self, run: Run) -> None:
        """Notes that an optimizer has taken the place of another."""
        self._manifest.succeeded(run)
        self._write_manifest()

    def _note(self, change: dict[str, object]) -> None:
        self._manifest.note(change)
        self._write_manifest()

    # Steps.

    def submit(self, step: FinishedStep) -> None:
        """Hands ``step`` to the delivery thread."""
        self._delivery.submit(lambda: self._take(self._snapshot(step)))

    def write(self, file: TextFile) -> None:
        """Hands ``file`` to the delivery thread; it is written before the steps that are submitted later."""
        self._delivery.wake(partial(write_text, file, self._run.faults))

    def _snapshot(self, step: FinishedStep) -> Snapshot:
        """Waits for the device; on the delivery thread."""
        batches, spent = step.batches(), step.spent
        device = self._overhead.on_device.add(spent)
        cost = {"hooks": spent.hooks, "drain": spent.drain} | ({"device": device} if device else {})
        return Snapshot(
            step.number,
            self._attached.rank,
            step.time,
            batches,
            step.ops,
            scalars={"probe/overhead": self.overhead},
            cost=cost,
            outcome=step.outcome,
        )

    def _take(self, snapshot: Snapshot) -> None:
        """Writes ``snapshot`` as soon as its turn has come; on the delivery thread."""

        def write(batches: list[Batch] | None) -> None:
            self._writer.write(snapshot if batches is None else replace(snapshot, batches=batches))

        self._exchange.write(snapshot.step, snapshot.batches, write)

    def flush(self, timeout: float) -> bool:
        """Waits until every step handed over so far is written; False if that took longer than ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        if not self._delivery.flush(timeout):
            return False
        while self._delivery.here and self._exchange.pending:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def timed(self, seconds: float, own: float) -> None:
        """Counts a step that took ``seconds``, of which ``own`` were the monitor's."""
        self._overhead.add(seconds, own)

    # Answers.

    @property
    def waits_for_ranks(self) -> bool:
        """Whether a step that was handed over may still wait for other ranks."""
        return self._exchange.active and not self.flush(0.0)

    @property
    def delivers(self) -> bool:
        """Whether the delivery thread is in this process: a forked child has none."""
        return self._delivery.here

    @property
    def beside(self) -> float:
        """Seconds of processor time that the monitor has taken beside training."""
        return self._delivery.seconds + self._exchange.seconds

    @property
    def on_device(self) -> float:
        """Seconds that a device has taken for the monitor."""
        return self._overhead.on_device.seconds

    @property
    def overhead(self) -> float:
        """The time that the monitor has taken so far, on the training thread, beside it and on the device, as a part of
        the time that training would have taken without; 0 before the first step has ended."""
        return self._overhead.part(self.beside)

    @property
    def cost(self) -> dict[str, float]:
        """Seconds that the monitor spent, the number of steps collected, and its overhead as a part of training's
        time."""
        spent = {"delivery": self.beside, "steps": float(self._writer.steps), "overhead": self.overhead}
        return self._writer.cost | spent

    @property
    def findings(self) -> list[Finding]:
        """The first findings of the run, as far as the delivery thread has come."""
        return list(self._writer.findings)

    def news(self) -> list[Finding]:
        """The findings since this was last called."""
        return self._writer.news()

    # The end.

    def discard(self) -> None:
        """Leaves nothing of an attachment that has failed."""
        self._end_delivery()
        self._writer.close()
        self._remove()

    def close(self, incident: bool = False) -> None:
        """Writes what is pending, and the end of the manifest.

        Args:
            incident: whether training ends by an exception.
        """
        if self._delivery.here:
            self._end_delivery()
            self._finish(self._run.faults, incident)

    def let_go(self) -> None:
        """Closes on the delivery thread, waiting for nothing: nobody knows of the run any more, which is forgotten."""
        faults = self._run.faults
        del self._run
        self._exchange.end()
        self._delivery.end_with(lambda: self._finish_here(faults))

    def _end_delivery(self) -> None:
        """Writes what is pending, with the numbers of other ranks if they come before the deadline."""
        deadline = time.monotonic() + FLUSH_SECONDS
        self.flush(FLUSH_SECONDS)
        self._exchange.end()
        self._delivery.wake(self._exchange.advance)
        self._delivery.close(max(LAST_SECONDS, deadline - time.monotonic()))
        self._exchange.close(LAST_SECONDS)

    def _finish_here(self, noted: Faults) -> None:
        """On the delivery thread."""
        self._exchange.advance()
        self._exchange.close()
        self._finish(noted)

    def _finish(self, noted: Faults, incident: bool = False) -> None:
        self._writer.close(incident)
        faults, more = noted.counts, dict[str, object]()
        if self._pace is not None:
            more["pace"] = {"interval": self._pace.interval, "skipped": self._pace.skipped}
        if (past := self._held_back[1]) is not None:
            more["history"] = {"unwritten": past.unwritten}
        more |= {
            "end_time": run_directory.time_text(time.localtime()),
            "cost_seconds": self.cost,
            "findings": self._writer.found,
        }
        self._write_manifest(more | {"faults": faults}, noted)
        if faults:
            _log.warning("failed in places, training was not affected: %s", faults)

    # The files.

    def _context(self, run: Run) -> SinkContext:
        settings, attached = run.settings, self._attached
        return SinkContext(
            directory=self.directory or self._root,
            root=self._root,
            rank=attached.rank,
            ndigits=settings.ndigits,
            steps_per_file=settings.step_count_per_record,
            pp_stage=attached.pp_stage,
            group_mates=attached.mates,
            dump=settings.alert.dump,
            run=self._name,
            start=attached.start,
            first_step=attached.first,
            resumed_at=self._resumed.first if self._resumed else None,
        )

    def _remember(self) -> None:
        """Makes the rules remember the steps before the first one."""
        if self.directory is None:
            return
        attached, faults = self._attached, self._run.faults
        try:
            if self._resumed is None:
                own = identity(attached.rank, attached.number, attached.first)
                run_directory.write_manifest(self.directory, own)
            remember(self._stages.rules, self.directory, attached.first, faults, own=self._resumed is not None)
        except (OSError, ValueError) as error:
            faults.note("memory of rules", error)

    def _past(self) -> Past | None:
        """The buffer of steps held back; the same as before if it is to hold as many."""
        steps = self._run.settings.history
        if steps != self._held_back[0]:
            self._held_back = steps, Past(steps) if steps else None
        return self._held_back[1]

    def _remove(self) -> None:
        if self.directory is not None and self._resumed is None:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _write_manifest(self, more: Mapping[str, object] | None = None, faults: Faults | None = None) -> None:
        if self.directory is None:
            return
        try:
            self._manifest.write(self.directory, more or {})
        except Exception as error:  # noqa: BLE001 - the run itself has not failed
            (faults or self._run.faults).note("manifest", error)
