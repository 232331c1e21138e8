"""What a run writes: its directory and manifest, the rules and sinks, and the thread that serves them."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from probe.core.control.status import followed
from probe.core.distributed.global_stats import GlobalStats
from probe.core.distributed.replicas import compared
from probe.core.distributed.whole_tensors import Line, Wholes
from probe.core.faults import Faults
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.overhead import OnDevice, Spent
from probe.core.instrumentation.pace import Pace
from probe.core.instrumentation.step_boundary import FinishedStep
from probe.core.output.delivery import Delivery
from probe.core.output.history_buffer import Past
from probe.core.output.manifest import described, pipeline_stage
from probe.core.output.pipeline import Writer
from probe.core.output.resume import remember, resume
from probe.core.output.sinks import KEPT, Sink, written_beside
from probe.core.output.sinks import factory as sink_factory
from probe.core.output.sinks.context import SinkContext
from probe.core.output.text_files import write_text
from probe.core.records import Batch, Snapshot, TextFile
from probe.core.rules import Rule, factory
from probe.core.storage import run_directory

FLUSH_SECONDS = 30.0
"""How long an ending run waits for its files."""
LAST_SECONDS = 1.0
"""For what is still to be done after that, at least."""
MOST_CHANGES = 100
"""Changes of the configuration that the manifest lists, the latest ones."""

_log = logging.getLogger("probe")


class Output:
    """Opens everything at once; nothing stays behind if that fails.

    Args:
        number: of the run, the same on all ranks.
        process_group: the pipeline-parallel group, for what findings say of their rank.
        first: number of the first step.
        follows: the configuration file that is followed while training runs, if one is.
    """

    def __init__(self, run: Run, number: int, process_group: Any, first: int, follows: Path | None) -> None:
        self._run, self._rank = run, run.framework.groups.rank()
        self._number, self._first = number, first
        self._mates = run.framework.groups.ranks_of(process_group)
        self._rules: list[tuple[object, Rule]] = []
        """Each with what it was made of."""
        self._sinks: list[tuple[object, Sink]] = []
        self._made: set[str] = set()
        """Names of the sinks that there have been."""
        self._noted = 0
        self._seconds = self._own = 0.0
        self._on_device = OnDevice(run.framework.clock)
        self.pace: Pace | None = None
        self._held_back: tuple[int, Past | None] = 0, None
        self._control: dict[str, object] = {} if follows is None else followed(follows, first)
        root = run_directory.output_root(os.environ).absolute()  # training may change its directory
        writes = set(run.settings.formats) - {KEPT}
        self._resumed = resume(root, self._rank, run.settings.append_output, first) if writes else None
        old = self._resumed.directory if self._resumed else None
        self._start = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        self._name = old.name if old else run_directory.directory_name(self._rank, time.time())
        self.directory = (old or run_directory.create(root, self._name)) if writes else None
        """This run's and rank's own; None where nothing is written."""
        self._changes = self._resumed.changes if self._resumed else []
        run.write_to(self.directory)
        try:
            self._root = root
            self._choose()
            self._remember()
            self.writer = Writer(self._judges, self._writers, run.faults, self._past())
            self.writer.open()
        except BaseException:
            self._remove()
            raise
        self._line, self._exchanged = Line(run.faults), 0.0
        self.delivery = Delivery(run.settings.queue_size, run.settings.when_queue_full, run.faults)
        self._wholes = self._new_wholes(run)
        self._manifest = self._describe()
        self._write_manifest()

    def change(self, run: Run) -> None:
        """What ``run`` collects goes to the same directory from its first step on. Rules and sinks that are configured
        as they were go on as they are.

        Raises:
            Exception: if one cannot be made; all go on as they are then.
        """
        if run is self._run:
            return
        before, self._run = self._run, run
        try:
            if self.directory is None and set(run.settings.formats) - {KEPT}:
                self.directory = run_directory.create(self._root, self._name)
            run.write_to(self.directory)
            self._choose()
        except BaseException:
            self._run = before
            raise
        past = self._past()
        judges, writers, wholes = self._judges, self._writers, self._new_wholes(run)

        def act() -> None:
            before, self._wholes = self._wholes, wholes
            self._line.add(None, lambda _: self._go_on(before, judges, writers, past))

        self.delivery.submit(act, must=True)
        self._note_change(run)

    def _go_on(self, before: Wholes | None, judges: list[Rule], writers: list[Sink], past: Past | None) -> None:
        """With other rules and sinks, once all that was collected under the configuration before is written."""
        if before is not None:
            before.close()
        self.writer.change(judges, writers, past)

    def rest(self, step: int) -> None:
        """Nothing is collected from ``step`` on."""
        self._note({"step": step, "collecting": False})

    def deepen(self, run: Run, names: Sequence[str]) -> None:
        """More is collected, of the modules of these names; or no more, if there are none."""
        self._note({"step": run.clock.step, "collecting": True, "suspects": list(names)})

    def succeed(self, run: Run) -> None:
        """An optimizer has taken the place of another."""
        about = described(run, self._number, self._first, self._mates)
        self._manifest |= {name: about[name] for name in ("optimizer", "optimizer_state_names")}
        self._note({"step": run.clock.step, "collecting": True, "optimizer": about["optimizer"]})

    def _note_change(self, run: Run) -> None:
        """In the manifest: the configuration as it is now, and which keys changed at which step."""
        before, now = self._manifest["config"], run.settings.model_dump(mode="json")
        assert isinstance(before, dict)
        changed = {key: value for key, value in now.items() if before.get(key) != value}
        self._manifest |= {**self._describe(), "start_time": self._manifest["start_time"]}
        self._note({"step": run.clock.step, "collecting": True, "changed": changed})

    def _note(self, change: dict[str, object]) -> None:
        self._changes = [*self._changes[-MOST_CHANGES:], change]
        if self._control:
            self._noted += 1
            self._control |= {"step": change["step"], "collecting": change["collecting"], "changes": self._noted}
            self._manifest["control"] = self._control
        self._manifest["changes"] = self._changes
        self._write_manifest()

    def _choose(self) -> None:
        """The configured rules and sinks; those made of the same as before are the same."""
        settings = self._run.settings
        rules: list[tuple[object, Rule]] = []
        known = list(self._rules)
        for rule in settings.alert.rules:
            made_of = rule, settings.statistics
            kept = next((pair for pair in known if pair[0] == made_of), None)
            if kept is not None:
                known.remove(kept)  # two that are alike are two
            rules.append(kept or (made_of, factory(rule.rule_name)(rule.args, self._rank, settings.statistics)))
        context = self._context()
        sinks: list[tuple[object, Sink]] = [(None, self._resumed)] if self._resumed else []
        for name in (*settings.formats, *written_beside(settings.formats)):
            make = sink_factory(name)
            if make is not None:
                known_sink = next((one for of, one in self._sinks if of == (name, context)), None)
                sinks.append(((name, context), known_sink or make(self._context_of_new(name, context))))
        self._rules, self._sinks = rules, sinks
        self._made.update(settings.formats)

    def _context_of_new(self, name: str, context: SinkContext) -> SinkContext:
        """Steps of an earlier run are done again for the first sink of this name only."""
        return replace(context, resumed_at=None) if name in self._made else context

    @property
    def _judges(self) -> list[Rule]:
        return [rule for _, rule in self._rules]

    @property
    def _writers(self) -> list[Sink]:
        return [sink for _, sink in self._sinks]

    def _context(self) -> SinkContext:
        settings = self._run.settings
        return SinkContext(
            directory=self.directory or self._root,
            root=self._root,
            rank=self._rank,
            ndigits=settings.ndigits,
            steps_per_file=settings.step_count_per_record,
            pp_stage=pipeline_stage(self._rank, self._mates),
            group_mates=tuple(self._mates),
            dump=settings.alert.dump,
            run=self._name,
            start=self._start,
            first_step=self._first,
            resumed_at=self._resumed.first if self._resumed else None,
        )

    def _remember(self) -> None:
        if self.directory is None:
            return
        try:
            if self._resumed is None:
                own = {"rank": self._rank, "run": self._number, "first_step": self._first}
                run_directory.write_manifest(self.directory, own)
            remember(self._judges, self.directory, self._first, self._run.faults, own=self._resumed is not None)
        except (OSError, ValueError) as error:
            self._run.faults.note("memory of rules", error)

    def _new_wholes(self, run: Run) -> Wholes | None:
        stats = self._global_stats(run)
        if stats is None:
            return None
        return Wholes(stats, lambda: self.delivery.wake(self._line.advance), self._exchange_took, run.faults)

    def _exchange_took(self, seconds: float) -> None:
        self._exchanged += seconds

    def _global_stats(self, run: Run) -> GlobalStats | None:
        settings, groups = run.settings, run.framework.groups
        if not settings.global_stats or groups.world_size() == 1:
            return None
        same = {"ops", "eps", "start_step", "step_interval", "collect_times"}
        said = json.dumps(settings.model_dump(mode="json", include=same) | {"first": run.clock.step}, sort_keys=True)
        return GlobalStats(
            run.framework.parallel,
            f"run {self._number} from step {run.clock.step}",
            said,
            settings.statistics,
            settings.global_stats_seconds,
            run.faults,
            compared(
                {rule.rule_name for rule in settings.alert.rules},
                run.framework.parallel,
                run.replicas,
                groups.world_size(),
            ),
        )

    def submit(self, step: FinishedStep) -> None:
        """Hands ``step`` to the delivery thread."""
        self.delivery.submit(lambda: self._take(self._snapshot(step)))

    def write(self, file: TextFile) -> None:
        """Hands ``file`` to the delivery thread; it is written before the steps that are submitted later."""
        self.delivery.wake(partial(write_text, file, self._run.faults))

    def _snapshot(self, step: FinishedStep) -> Snapshot:
        """On the delivery thread: waits for the device."""
        batches, spent = step.batches(), step.spent
        cost = {"hooks": spent.hooks, "drain": spent.drain} | self._measured(spent)
        return Snapshot(
            step.number,
            self._rank,
            step.time,
            batches,
            step.ops,
            scalars={"probe/overhead": self.overhead},
            cost=cost,
            outcome=step.outcome,
        )

    def _take(self, snapshot: Snapshot) -> None:
        """Writes ``snapshot`` with what is known of whole tensors, as soon as that is known; on the delivery thread."""
        offer = None if self._wholes is None else self._wholes.offer(snapshot.step, snapshot.batches)

        def write(batches: list[Batch]) -> None:
            self.writer.write(snapshot if offer is None else replace(snapshot, batches=batches))

        self._line.add(offer, write)

    @property
    def waits_for_ranks(self) -> bool:
        """Whether a step that was handed over may still wait for other ranks."""
        return self._wholes is not None and not self.flush(0.0)

    def flush(self, timeout: float) -> bool:
        """Waits until every step handed over so far is written; False if that took longer than ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        if not self.delivery.flush(timeout):
            return False
        while self.delivery.here and self._line:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def timed(self, seconds: float, own: float) -> None:
        """A step took ``seconds``, of which ``own`` were the monitor's."""
        self._seconds += seconds
        self._own += own

    @property
    def overhead(self) -> float:
        """What the monitor has taken so far, on the training thread, beside it and on the device, as a part of the
        time that training would have taken without; 0 before the first step has ended."""
        plain = self._seconds - self._own
        return (self._own + self.beside + self._on_device.seconds) / plain if plain > 0 else 0.0

    @property
    def delivers(self) -> bool:
        """Whether the delivery thread is in this process: a forked child has none."""
        return self.delivery.here

    @property
    def beside(self) -> float:
        """Seconds of processor time that the monitor has taken beside training."""
        return self.delivery.seconds + self._exchanged

    @property
    def on_device(self) -> float:
        """Seconds that a device has taken for the monitor."""
        return self._on_device.seconds

    def _measured(self, spent: Spent) -> dict[str, float]:
        """What a step has cost on the device, if there is one; on the delivery thread."""
        seconds = self._on_device.add(spent)
        return {"device": seconds} if seconds else {}

    @property
    def cost(self) -> dict[str, float]:
        """Seconds that probe itself spent, the steps collected, and its overhead as a part of training's time."""
        spent = {"delivery": self.beside, "steps": float(self.writer.steps), "overhead": self.overhead}
        return self.writer.cost | spent

    def discard(self) -> None:
        """Leaves nothing of an attachment that has failed."""
        self._end_delivery()
        self.writer.close()
        self._remove()

    def _end_delivery(self) -> None:
        """Writes what is pending, with what other ranks know of it if they come before the deadline."""
        deadline = time.monotonic() + FLUSH_SECONDS
        self.flush(FLUSH_SECONDS)
        self._line.end()
        self.delivery.wake(self._line.advance)
        self.delivery.close(max(LAST_SECONDS, deadline - time.monotonic()))
        if self._wholes is not None:
            self._wholes.close(LAST_SECONDS)

    def _past(self) -> Past | None:
        """What holds steps back; the same as before if it is to hold as many."""
        steps = self._run.settings.history
        if steps != self._held_back[0]:
            self._held_back = steps, Past(steps) if steps else None
        return self._held_back[1]

    def close(self, incident: bool = False) -> None:
        """Writes what is pending and what is known only now.

        Args:
            incident: whether training ends by an exception.
        """
        if not self.delivery.here:
            return
        self._end_delivery()
        self._finish(self._run.faults, incident)

    def let_go(self) -> None:
        """Closes on the delivery thread, waiting for nothing: nobody knows of the run any more, which is forgotten."""
        faults = self._run.faults
        del self._run
        self._line.end()
        self.delivery.end_with(lambda: self._finish_here(faults))

    def _finish_here(self, noted: Faults) -> None:
        """On the delivery thread."""
        self._line.advance()
        if self._wholes is not None:
            self._wholes.close()
        self._finish(noted)

    def _finish(self, noted: Faults, incident: bool = False) -> None:
        self.writer.close(incident)
        faults = noted.counts
        if self.pace is not None:
            self._manifest["pace"] = {"interval": self.pace.interval, "skipped": self.pace.skipped}
        if (past := self._held_back[1]) is not None:
            self._manifest["history"] = {"unwritten": past.unwritten}
        ended = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        more = {"end_time": ended, "cost_seconds": self.cost, "findings": self.writer.found, "faults": faults}
        self._write_manifest(more, noted)
        if faults:
            _log.warning("failed in places, training was not affected: %s", faults)

    def _remove(self) -> None:
        if self.directory is not None and self._resumed is None:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _describe(self) -> dict[str, object]:
        return {
            **described(self._run, self._number, self._first, self._mates),
            "start_time": self._start,
            **({"control": self._control} if self._control else {}),
            **(self._resumed.described if self._resumed else {}),
        }

    def _write_manifest(self, more: Mapping[str, object] | None = None, faults: Faults | None = None) -> None:
        if self.directory is None:
            return
        try:
            run_directory.write_manifest(self.directory, self._manifest | dict(more or {}))
        except Exception as error:  # noqa: BLE001 - the run itself has not failed
            (faults or self._run.faults).note("manifest", error)
