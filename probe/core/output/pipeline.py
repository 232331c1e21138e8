"""The rules and sinks that a configuration names, and the pipeline of a step on the delivery thread: its turn, rules,
then sinks."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from probe.core.config.schema import Settings
from probe.core.distributed.global_stats import GlobalStats
from probe.core.distributed.whole_tensors import ExchangedStep, ExchangeThread
from probe.core.door import attempt, count, succeeds
from probe.core.faults import SINK, Faults
from probe.core.instrumentation.context import Listeners
from probe.core.output.history_buffer import HistoryBuffer
from probe.core.output.resume import Resumed
from probe.core.output.sinks import Sink, factory, written_beside
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Batch, Finding, Snapshot
from probe.core.rules import Rule
from probe.core.rules import factory as rule_factory
from probe.core.rules.evaluate import find, kind_and_grade
from probe.core.worker import Worker

_log = logging.getLogger(__name__)

FINDINGS_KEPT = 1000
NEWS_KEPT = 100
WAITING = 32
"""Most steps that wait for other ranks, unwritten."""
LATE = "global statistics: steps written before all ranks had come"
REMOVED = "%s: the folder was removed while the run writes to it, with its steps: leave it until the run has ended"
SnapshotListener = Callable[[Snapshot], None]
"""Function that receives every step with its findings, on the delivery thread."""
Judged = Callable[[int, Sequence[Finding]], None]
"""Function that receives the number and the findings of every sampled step from the first finding on."""


class Writer:
    """The rules and sinks of a run; a rule or sink that fails is counted, and called again with the next snapshot.
    Those whose configuration has not changed are kept with their memory and their open files.

    Steps are written in order, on the delivery thread. While ranks exchange numbers of whole tensors (``global_stats``)
    each waits for its own. If another rank is late, a bounded number of steps wait; the oldest is then written without
    the numbers of whole tensors.

    Args:
        delivery: the thread that writes.
        resumed: the directory of an earlier run that is continued: the first sink.
        judged: called with the findings of every step from the first finding on, before the step is written.
        listeners: receive every step, before it is written.
    """

    def __init__(
        self,
        rank: int,
        resumed: Resumed | None,
        faults: Faults,
        delivery: Worker,
        judged: Judged | None = None,
        listeners: Listeners[SnapshotListener] | None = None,
    ) -> None:
        self._rank, self._resumed, self._faults, self._delivery = rank, resumed, faults, delivery
        self._judged, self._listeners = judged, listeners
        self._chosen_rules: list[tuple[object, Rule]] = []
        """Rules of the latest configuration, with the values from which they were made."""
        self._chosen_sinks: list[tuple[object, Sink]] = []
        self._chosen_history: tuple[int, HistoryBuffer | None] = 0, None
        self._folder: Path | None = None
        """The run's directory; None if no row is written."""
        self._is_there = False
        """True if the directory was there at the latest write: a program may remove it."""
        self._made: set[str] = set()
        """Names of all sinks made so far."""
        self._rules: Sequence[Rule] = ()
        self._sinks: Sequence[Sink] = ()
        self._history: HistoryBuffer | None = None
        """The buffer of steps without findings; None if every step is written."""
        self.findings: list[Finding] = []
        """The first findings of the run, in causal order within each step."""
        self._news: deque[Finding] = deque(maxlen=NEWS_KEPT)
        self.finding_count = 0
        """Number of findings."""
        self.steps = 0
        """Number of steps that were judged."""
        self.cost: dict[str, float] = {}
        """Seconds of all steps by kind of cost."""
        self._exchange: ExchangeThread | None = None
        self.exchange_seconds = 0.0
        """Processor time of the exchange between ranks."""
        self._turns: deque[tuple[ExchangedStep | None, Callable[[Sequence[Batch]], None]]] = deque()
        """Actions whose turn has not come: the step that each waits for, and the function to call with its batches."""
        self._unexchanged = 0
        """Number of actions that wait for a step of the exchange."""
        self._waits_no_longer = False
        """True once the run ends: no step waits for other ranks."""

    # Configurations.

    @property
    def rules(self) -> list[Rule]:
        """The rules of the latest configuration."""
        return [rule for _, rule in self._chosen_rules]

    @property
    def unwritten(self) -> int | None:
        """Number of steps dropped because there was no finding near them; None if every step is written."""
        _, history = self._chosen_history
        return None if history is None else history.unwritten

    def choose(self, settings: Settings, context: SinkContext) -> Callable[[], None]:
        """Make the rules and sinks of ``settings`` that do not exist yet. Return a function that puts them in the place
        of the present ones; call it on the delivery thread.

        Raises:
            Exception: if one cannot be made; then nothing changes.
        """
        rules, sinks = self._rules_of(settings), self._sinks_of(settings, context)
        self._chosen_rules, self._chosen_sinks = rules, sinks
        self._made.update(settings.formats)
        self._folder = context.directory if sinks else None
        if settings.history != self._chosen_history[0]:
            self._chosen_history = settings.history, HistoryBuffer(settings.history) if settings.history else None
        _, history = self._chosen_history

        def change() -> None:
            self._keep_history(history)
            self._change_sinks([sink for _, sink in sinks])
            self._rules = [rule for _, rule in rules]

        return change

    def open(self) -> None:
        """Begin with the rules and sinks that were chosen.

        Raises:
            Exception: if a sink cannot be opened.
        """
        self._rules, self._history = self.rules, self._chosen_history[1]
        self._sinks = [sink for _, sink in self._chosen_sinks]
        for sink in self._sinks:
            sink.open()

    def _rules_of(self, settings: Settings) -> list[tuple[object, Rule]]:
        rules: list[tuple[object, Rule]] = []
        present = list(self._chosen_rules)
        for rule in settings.alert.judging:
            made_of = rule, settings.statistics
            pair = next((pair for pair in present if pair[0] == made_of), None)
            if pair is not None:
                present.remove(pair)  # two equal rules are kept as two
            rules.append(pair or (made_of, rule_factory(rule.rule_name)(rule.args, self._rank, settings.statistics)))
        return rules

    def _sinks_of(self, settings: Settings, context: SinkContext) -> list[tuple[object, Sink]]:
        sinks: list[tuple[object, Sink]] = [(None, self._resumed)] if self._resumed else []
        for name in (*settings.formats, *written_beside(settings.formats)):
            make = factory(name)
            if make is not None:
                present = next((sink for of, sink in self._chosen_sinks if of == (name, context)), None)
                # only the first sink with a name resumes an earlier run
                its_context = replace(context, resumed_at=None) if name in self._made else context
                sinks.append(((name, context), present or make(its_context)))
        return sinks

    def _keep_history(self, history: HistoryBuffer | None) -> None:
        if self._history is not None and history is not self._history:
            self._history.forget()
            if history is not None:
                history.unwritten += self._history.unwritten
        self._history = history

    def _change_sinks(self, sinks: Sequence[Sink]) -> None:
        present = {id(sink) for sink in sinks}
        before, self._sinks = self._sinks, [sink for sink in self._sinks if id(sink) in present]
        for sink in before:
            if id(sink) not in present:
                self._close(sink)
        for sink in sinks:
            if sink not in self._sinks and succeeds(self._faults, _where(sink), sink.open):
                self._sinks = [*self._sinks, sink]

    # Turns.

    @property
    def exchanges(self) -> bool:
        """True if ranks exchange numbers; on any thread."""
        return self._exchange is not None

    @property
    def pending(self) -> bool:
        """True if a delivered step is not written yet; on any thread."""
        return bool(self._turns)

    def begin_exchange(self, stats: GlobalStats | None) -> None:
        """Exchange numbers of ``stats`` from now on; None if ranks exchange none. Until then steps are written at
        once."""
        self._exchange = self.exchange_thread(stats)

    def exchange_thread(self, stats: GlobalStats | None) -> ExchangeThread | None:
        """Return a thread that exchanges, and has the delivery thread write what is ready."""
        return None if stats is None else ExchangeThread(stats, self._wake, self._spend, self._faults)

    def _wake(self) -> None:
        self._delivery.submit(self.advance, must=True)

    def _spend(self, seconds: float) -> None:
        self.exchange_seconds += seconds

    def change_exchange(self, exchange: ExchangeThread | None, then: Callable[[], None]) -> None:
        """Exchange numbers by ``exchange`` from now on, and call ``then`` once all steps before are written."""
        before, self._exchange = self._exchange, exchange

        def finish(_: Sequence[Batch]) -> None:
            if before is not None:
                before.close()
            then()

        self._add(None, finish)

    def deliver(self, snapshot: Snapshot) -> None:
        """Write ``snapshot`` when all steps before it are written, with the batches that all ranks know if they
        exchange numbers."""
        if self._exchange is not None:
            step = self._exchange.add(snapshot.step, snapshot.batches)
            self._add(step, lambda batches: self._write(replace(snapshot, batches=batches)))
        elif self._turns:
            self._add(None, lambda _: self._write(snapshot))
        else:
            self._write(snapshot)

    def _add(self, step: ExchangedStep | None, act: Callable[[Sequence[Batch]], None]) -> None:
        """Add an action at the end, and do what is ready."""
        self._turns.append((step, act))
        self._unexchanged += step is not None
        self.advance()

    def advance(self) -> None:
        """Do what is ready, in order."""
        while self._turns:
            step, act = self._turns[0]
            may_wait = self._unexchanged <= WAITING and not self._waits_no_longer
            if step is not None and step.result is None and may_wait:
                return
            try:  # later actions have their turn whatever is raised
                attempt(self._faults, "delivery", act, self._batches(step))
            finally:
                self._unexchanged -= step is not None
                self._turns.popleft()

    def _batches(self, step: ExchangedStep | None) -> Sequence[Batch]:
        if step is None:
            return []
        if step.result is not None:
            return step.result
        self._faults.lost(LATE, 1)
        return step.without()

    def wait_no_longer(self) -> None:
        """Stop waiting for other ranks; on any thread."""
        self._waits_no_longer = True

    def close_exchange(self, timeout: float = 0.0) -> None:
        """End the exchange's thread, and wait for it at most ``timeout`` seconds; on any thread."""
        if self._exchange is not None:
            self._exchange.close(timeout)

    # Steps.

    def _write(self, snapshot: Snapshot) -> None:
        """Judge ``snapshot``, and write it or hold it back."""
        findings: list[Finding] = []
        if self._rules:
            findings = find(
                self._rules, snapshot.batches, lambda rule, e: self._faults.note(f"rule {type(rule).__name__}", e)
            )
            if snapshot.outcome == "partial":  # its gradients may lack a backward, and so have another size
                findings = [finding for finding in findings if kind_and_grade(finding)[1] == "critical"]
            snapshot = replace(snapshot, findings=tuple(findings))
        self.findings.extend(findings[: FINDINGS_KEPT - len(self.findings)])
        self._news.extend(findings[:NEWS_KEPT])
        self.finding_count += len(findings)
        self.steps += 1
        for name, seconds in snapshot.cost.items():
            self.cost[name] = self.cost.get(name, 0.0) + seconds
        for listener in self._listeners.all if self._listeners is not None else ():
            attempt(self._faults, "snapshot listener", listener, snapshot)
        if self.finding_count and self._judged is not None:  # after the account of the run, whose verdict alerts have
            attempt(self._faults, "alerts", self._judged, snapshot.step, findings)
        for due in (snapshot,) if self._history is None else self._history.admit(snapshot):
            self._put(due)

    def news(self) -> list[Finding]:
        """Return the latest findings since the last call. Callable on any thread."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def _put(self, snapshot: Snapshot) -> None:
        was_there, self._is_there = self._is_there, self._folder is not None and self._folder.is_dir()
        if was_there and not self._is_there:
            _log.warning(REMOVED, self._folder)
        for sink in self._sinks:
            try:
                sink.write(snapshot)
            except Exception as error:  # noqa: BLE001 - the other sinks still write
                count(self._faults, _where(sink), error)

    def close(self, incident: bool = False) -> None:
        """Close every sink; if training ends by an ``incident``, first write the steps held back."""
        if self._history is not None:
            for due in self._history.release() if incident else ():
                self._put(due)
            self._history.forget()
        while self._sinks:  # one whose end is interrupted stays
            self._close(self._sinks[0])
            self._sinks = self._sinks[1:]

    def _close(self, sink: Sink) -> None:
        try:
            attempt(self._faults, _where(sink), sink.close)
        except BaseException as error:
            if threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C, or the exit of a signal handler; on another thread it is the sink's own
            self._faults.note(_where(sink), error)


def _where(sink: Sink) -> str:
    """Return the place under which failures of ``sink`` are counted."""
    return f"{SINK}{type(sink).__name__}"
