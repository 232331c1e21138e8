"""The rules and sinks that a configuration names, and the pipeline of a step on the delivery thread: rules, then
sinks."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from probe.core.config.schema import Settings
from probe.core.door import attempt, count, succeeds
from probe.core.faults import Faults
from probe.core.instrumentation.context import Listeners
from probe.core.output.history_buffer import HistoryBuffer
from probe.core.output.resume import Resumed
from probe.core.output.sinks import Sink, factory, written_beside
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Finding, Snapshot
from probe.core.rules import Rule
from probe.core.rules import factory as rule_factory
from probe.core.rules.evaluate import find, kind_and_grade

_log = logging.getLogger(__name__)

FINDINGS_KEPT = 1000
NEWS_KEPT = 100
REMOVED = "%s: the folder was removed while the run writes to it, with its steps: leave it until the run has ended"
SnapshotListener = Callable[[Snapshot], None]
"""Function that receives every step with its findings, on the delivery thread."""
Judged = Callable[[int, Sequence[Finding]], None]
"""Function that receives the number and the findings of every sampled step from the first finding on."""


class Writer:
    """The rules and sinks of a run; a rule or sink that fails is counted, and called again with the next snapshot.
    Those whose configuration has not changed are kept with their memory and their open files.

    Args:
        resumed: the directory of an earlier run that is continued: the first sink.
        judged: called with the findings of every step from the first finding on, before the step is written.
        listeners: receive every step, before it is written.
    """

    def __init__(
        self,
        rank: int,
        resumed: Resumed | None,
        faults: Faults,
        judged: Judged | None = None,
        listeners: Listeners[SnapshotListener] | None = None,
    ) -> None:
        self._rank, self._resumed, self._faults = rank, resumed, faults
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
        self.found = 0
        self.steps = 0
        self.cost: dict[str, float] = {}

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

    # Steps.

    def write(self, snapshot: Snapshot) -> None:
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
        self.found += len(findings)
        self.steps += 1
        for name, seconds in snapshot.cost.items():
            self.cost[name] = self.cost.get(name, 0.0) + seconds
        for listener in self._listeners.all if self._listeners is not None else ():
            attempt(self._faults, "snapshot listener", listener, snapshot)
        if self.found and self._judged is not None:  # after the account of the run, whose verdict alerts have
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
    return f"sink {type(sink).__name__}"
