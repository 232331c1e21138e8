"""Numbers of the run: logged by the program or known without; judged and written at every step, on their own thread.

Nothing here waits for the delivery of rows about tensors, and training waits for nothing here.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol

from probe.core.backend.protocols import FrameworkAdapter, Optimizer, Remove
from probe.core.config.schema import AlertSettings, Settings
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.instrumentation.step_boundary import StepBoundary
from probe.core.messages import writable
from probe.core.naming import (
    BATCH_SIZE,
    BATCH_TOKENS,
    LEARNING_RATE,
    LOSS_SCALE,
    MODEL_TFLOPS,
    OUTSIDE_SECONDS,
    PHASE,
    SKIPPED_UPDATE,
    STEP_SECONDS,
    THROUGHPUT,
    TOKENS_PER_SECOND,
)
from probe.core.output.sinks import shows_numbers
from probe.core.records import Outcome
from probe.core.run_state.judges import RunJudges
from probe.core.run_state.log_places import LogPlaces
from probe.core.run_state.numbers import LoggedNumbers, NumberLog
from probe.core.run_state.phases import PhaseMarks, Phases
from probe.core.run_state.rules import RunFinding, RunStep
from probe.core.run_state.rules.threshold import limits_of
from probe.core.run_state.writer import Files, RunWriter
from probe.core.worker import Worker

RATES = {THROUGHPUT: BATCH_SIZE, TOKENS_PER_SECOND: BATCH_TOKENS}
"""Numbers a second, by the number of which they are the rate."""
TERA = 1e12
MOST_WAITING = 10_000
"""Steps that may wait for the thread; later ones are dropped and counted."""
LOOK_SECONDS = 1.0
"""Time between two looks around."""
REST_STEPS = 4
"""Steps for which the thread rests after its work: short steps are processed several at a time, since the first of them
takes several times as long as the others."""
REST_SECONDS = 0.05
"""Longest rest in seconds."""

Listener = Callable[[RunStep], None]
_log = logging.getLogger("probe")
MISPLACED = "log: numbers of neither the step in progress nor the one before"
"""Kind of loss that is counted."""


class EndedStep(NamedTuple):
    """A step as the training thread hands it over."""

    step: int
    time: float
    """Seconds since the epoch at its end."""
    seconds: float
    """Time since the end of the step before; NaN for the first one."""
    outcome: Outcome
    logged: LoggedNumbers
    phases: Mapping[str, float]
    """Seconds by phase."""
    waited: float | None
    """Seconds within collectives; None if unknown."""
    read: frozenset[str]
    """Names of the numbers that were read from the optimizer as it updated."""
    late: LoggedNumbers
    """Numbers of the step before, logged after its end."""
    waits: bool
    """True if more numbers of this step may be logged after its end."""
    seen: tuple[Callable[[], Mapping[str, float]], ...] = ()
    """Functions that return numbers which the monitor itself has seen in the step, and may wait for a device."""
    measured: Mapping[str, float] = {}
    """The numbers that they have returned."""


class ProgressMarks(PhaseMarks, Protocol):
    """Marks of this rank's progress, which another process reads."""

    def step(self, step: int) -> None:
        """Note the end of ``step``."""

    def promise(self, seconds: float) -> None:
        """Note that the next progress may take ``seconds``."""

    def close(self) -> None:
        """Note that the run has ended as it should."""


class RunNumbers:
    """Numbers of one attached run on one rank, its phases and progress.

    Args:
        files: returns the context of sinks, whose directory exists, and sinks that are called before them; called once,
            on the thread; it returns None if the run is gone. None if nothing is written.
        marks: receives the progress; None if no process reads it.
        boundary: shows whether the step in progress has begun; None if nothing does.
    """

    def __init__(
        self,
        settings: Settings,
        framework: FrameworkAdapter,
        faults: Faults,
        files: Files | None,
        marks: ProgressMarks | None = None,
        boundary: StepBoundary | None = None,
    ) -> None:
        self._settings, self._framework, self._faults = settings.run, framework, faults
        self._marks, self._process = marks, os.getpid()
        self._log = NumberLog(framework.tensors, faults)
        self._places, self._boundary = LogPlaces(), boundary
        self._late = self._log.beside()
        """Numbers of the step that ended last."""
        self._has_late = True
        """True if there may be such numbers: in the first step, and from then on if there were any."""
        self._had_late = False
        """True once there were numbers of a step that had ended."""
        self._last: int | None = None
        """The step that ended last."""
        self._late_outcome: Outcome = "unknown"
        """Outcome with which late numbers of a step that has been processed are judged: its update counts once."""
        self._waiting: EndedStep | None = None
        """A step whose later numbers may still come, on the thread."""
        self._phases = Phases(marks)
        self._read: dict[str, object] = {}
        """Numbers that the optimizers have, of the step in progress."""
        self._seen: list[Callable[[], Mapping[str, float]]] = []
        self._ended_at = math.nan
        self._operations: float | None = settings.run.flops_per_step
        """Floating-point operations of a step."""
        self._judges = RunJudges(settings, faults)
        self._writer = RunWriter(settings, faults, files)
        self._worker: Worker | None = None
        self._closed = False
        self.listeners: list[Listener] = []
        """Functions that receive every step, on the thread."""
        self.looks: list[Callable[[], None]] = []
        """Functions that are called about once a second, on the thread."""
        is_written = settings.run.enable is not False and (
            shows_numbers(settings.formats) or bool(limits_of(settings.alert.rules))
        )
        if settings.run.enable or settings.sentinel.enable or marks is not None or is_written:
            self.begin()

    @property
    def active(self) -> bool:
        """True if numbers are recorded."""
        return self._worker is not None

    def begin(self, last: int | None = None) -> None:
        """Record numbers from now on, unless the configuration forbids it or the run has ended.

        Args:
            last: the step that ended last, if any has.
        """
        if (
            self._worker is None
            and not self._closed
            and (self._settings.enable is not False or self._marks is not None)
        ):
            self._last = last
            self._worker = Worker(
                "probe-run-state",
                "run state",
                self._faults,
                room=MOST_WAITING,
                inline=True,
                look=self._look,
                due=LOOK_SECONDS,
            )

    # Called by the program, on the training thread.

    def log(self, values: Mapping[str, object], step: int | None = None) -> None:
        """Record ``values`` for ``step``: the step in progress, or the one that ended last. Without it,
        :class:`LogPlaces` decides between these two for each value. Never wait for a device, and never raise."""
        self.begin()
        if self._worker is None or os.getpid() != self._process:
            return
        if step is None:
            self._put_by_place(values)
        elif self._last is None or step == self._last + 1:
            self._log.put(values)
        elif step == self._last:
            self._put_late(values)
        else:
            if MISPLACED not in self._faults.counts:
                text = (
                    "log: expected step=%d, in progress, or %d, the one before; got %.80r: not recorded; leave step out"
                )
                _log.warning(text, self._last + 1, self._last, step)
            self._faults.lost(MISPLACED, len(values))

    def _put_by_place(self, values: Mapping[str, object]) -> None:
        begun = self._step_begun()
        late = {name for name in values if self._places.is_late(name, begun, self._last is not None)}
        self._put_late({name: value for name, value in values.items() if name in late})
        self._log.put({name: value for name, value in values.items() if name not in late})

    def _step_begun(self) -> bool | None:
        try:
            return None if self._boundary is None else self._boundary.forward_begun
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            self._faults.note("log: beginning of the step", error)
            return None

    def _put_late(self, values: Mapping[str, object]) -> None:
        if values:
            self._has_late = self._had_late = True
            self._late.put(values)

    def limit(self, alert: AlertSettings) -> None:
        """Judge by the limits of ``alert`` from the step in progress on."""
        if self._worker is not None:
            self._worker.submit(partial(self._judges.limit, alert), must=True)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context whose time is recorded as the phase ``name``."""
        self.begin()
        return self._phases.phase(writable(name))

    @property
    def open_phases(self) -> list[str]:
        """Names of the phases in progress."""
        return self._phases.open

    def promise(self, seconds: float) -> None:
        """Note that the next progress may take ``seconds``."""
        if self._marks is not None:
            self._marks.promise(seconds)

    def listen(self, listener: Listener) -> Remove:
        """Call ``listener`` with every step, on the thread; return a function that ends this."""
        self.begin()
        self.listeners = [*self.listeners, listener]

        def remove() -> None:
            self.listeners = [present for present in self.listeners if present != listener]

        return remove

    def see(self, numbers: Callable[[], Mapping[str, float]]) -> None:
        """Record what ``numbers`` returns for the step in progress; it is called on the thread, in order."""
        self.begin()
        self._seen.append(numbers)

    # Called by the session, on the training thread.

    def updating(self, optimizer: Optimizer) -> None:
        """Read the learning rate and the loss scale with which ``optimizer``, the first of a step, will update."""
        if self._worker is None or self._read:
            return
        hooks = self._framework.hooks
        self._read = {LEARNING_RATE: hooks.learning_rate(optimizer), LOSS_SCALE: hooks.loss_scale()}
        self._log.suggest(self._read)

    def ended(self, step: int, outcome: Outcome, waited: float | None) -> None:
        """Hand the numbers of ``step``, which has ended, to the thread."""
        if self._marks is not None:
            self._marks.step(step)
        if self._worker is None:
            return
        now, read, self._read = time.perf_counter(), frozenset(self._read), {}
        seconds, self._ended_at = now - self._ended_at, now
        self._worker.rest = min(REST_SECONDS, REST_STEPS * seconds) if seconds > 0 else 0.0
        late, logged, phases = self._late.take(), self._log.take(), self._phases.take()
        self._last = step
        waits = self._has_late
        seen, self._seen = tuple(self._seen), []
        ended = EndedStep(step, time.time(), seconds, outcome, logged, phases, waited, read, late, waits, seen)
        self._worker.submit(partial(self._take, ended))
        self._has_late = self._had_late

    # On the thread.

    def _take(self, ended: EndedStep) -> None:
        """Process a step, after the one before has got its late numbers. What the monitor has seen is judged at
        once."""
        self._complete(ended.late, ended.step - 1)
        seen: dict[str, float] = {}
        for numbers in ended.seen:
            seen = {**(attempt(self._faults, "sentinel", numbers) or {}), **seen}
        ended = ended._replace(measured=seen)
        if ended.waits:
            self._waiting = ended
        else:
            self._process_step(ended, {})

    def _complete(self, late: LoggedNumbers, step: int) -> None:
        """Process the waiting step with its ``late`` numbers; if it did not wait, judge and write these alone."""
        waiting, self._waiting, values = self._waiting, None, late.values()
        if waiting is not None:
            self._process_step(waiting, values)
        elif values:
            alone = RunStep(step, time.time(), math.nan, self._late_outcome, values)
            self._judges.judge(alone)
            self._writer.write(alone)

    def _process_step(self, ended: EndedStep, late: Mapping[str, float]) -> None:
        """Complete the numbers of a step, then judge, pass on and write them."""
        logged = {**ended.measured, **ended.logged.values()}
        # after the update, a scheduler or a scaler may have changed what the optimizer was read to have
        rates = ended.read & logged.keys()
        values = {**logged, **{name: value for name, value in late.items() if name not in rates}}
        step = RunStep(ended.step, ended.time, ended.seconds, ended.outcome, self._derived(ended, values))
        self._late_outcome = "skipped" if ended.outcome == "skipped" else "unknown"
        self._judges.judge(step)
        for listener in self.listeners:
            attempt(self._faults, "listener of run steps", listener, step)
        self._writer.write(step)

    def _derived(self, ended: EndedStep, logged: Mapping[str, float]) -> dict[str, float]:
        """Return the logged numbers and those that follow from them and from time."""
        values = dict(logged)
        if ended.seconds > 0:
            values[STEP_SECONDS] = ended.seconds
            if ended.waited is not None:
                values[OUTSIDE_SECONDS] = max(0.0, ended.seconds - ended.waited)
            for name, of in RATES.items():
                if of in logged:
                    values.setdefault(name, logged[of] / ended.seconds)
            if self._operations is not None:
                values[MODEL_TFLOPS] = self._operations / ended.seconds / TERA
        if ended.outcome in ("applied", "skipped"):
            values[SKIPPED_UPDATE] = float(ended.outcome == "skipped")
        return values | {f"{PHASE}{name}_seconds": seconds for name, seconds in ended.phases.items()}

    def _look(self) -> float:
        for look in self.looks:
            attempt(self._faults, "look at the run", look)
        return LOOK_SECONDS

    # State and the end.

    def found(self, findings: Sequence[RunFinding]) -> None:
        """Pass on findings of another judge, on the thread."""
        self._judges.pass_on(findings)

    def on_findings(self, receive: Callable[[Sequence[RunFinding]], None]) -> None:
        """Call ``receive`` with the findings of every step that has any, on the thread."""
        self._judges.receivers.append(receive)

    def state_dict(self) -> dict[str, Any]:
        """Return the memory of the rules, of values that JSON can hold."""
        return self._judges.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> int:
        """Restore the memory of the rules; return the number of those that were restored."""
        return self._judges.load_state_dict(state)

    def flush(self, timeout: float) -> bool:
        """Wait until every finished step is written; return False if that takes longer than ``timeout`` seconds."""
        if self._worker is None:
            return True
        self._worker.submit(self._completion(), must=True)
        return self._worker.flush(timeout)

    def process(self, timeout: float) -> bool:
        """Wait until what the monitor has seen up to the step that ended last is judged; its later numbers may still
        come. Return False if that takes longer than ``timeout`` seconds."""
        return self._worker is None or self._worker.flush(timeout)

    def _completion(self) -> Callable[[], None]:
        """Return work for the thread that processes a waiting step."""
        return partial(self._complete, self._late.take(), -1 if self._last is None else self._last)

    def close_unattended(self) -> None:
        """End the thread after the finished steps without waiting for it."""
        worker, self._worker, self._closed = self._worker, None, True
        if worker is not None:
            worker.submit(self._completion(), must=True)
            worker.end(self._writer.close, awaited=True)

    def close(self, timeout: float, well: bool = True) -> None:
        """Write all finished steps and end the thread; steps not written within ``timeout`` seconds are counted.

        Args:
            well: whether training has ended as it should.
        """
        worker, self._closed = self._worker, True
        if self._marks is not None and well:
            self._marks.close()
        if worker is not None:
            worker.submit(self._completion(), must=True)
            worker.close(timeout, self._writer.close)
        self._worker = None  # only now: an interrupt of the wait leaves the end to a later call
