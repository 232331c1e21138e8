"""The rules and sinks that a configuration names, and the pipeline of a step on the delivery thread: rules, then
sinks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from probe.core.config.schema import Settings
from probe.core.door import attempt, count, succeeds
from probe.core.faults import Faults
from probe.core.instrumentation.context import Listeners
from probe.core.output.history_buffer import Past
from probe.core.output.resume import Resumed
from probe.core.output.sinks import Sink, factory, written_beside
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Finding, Snapshot
from probe.core.rules import Rule
from probe.core.rules import factory as rule_factory
from probe.core.rules.evaluate import find

FINDINGS_KEPT = 1000
NEWS_KEPT = 100
SnapshotListener = Callable[[Snapshot], None]
"""Function that receives every step with its findings, on the delivery thread."""
Judged = Callable[[int, Sequence[Finding]], None]
"""Function that receives the number and the findings of every sampled step from the first finding on."""


class Writer:
    """The rules and sinks of a run; a rule or sink that fails is counted, and called again with the next snapshot.

    Args:
        judged: called with the findings of every step from the first finding on, before the step is written.
        listeners: receive every step, before it is written.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        sinks: Sequence[Sink],
        faults: Faults,
        past: Past | None = None,
        judged: Judged | None = None,
        listeners: Listeners[SnapshotListener] | None = None,
    ) -> None:
        self._rules, self._sinks, self._faults, self._judged = rules, sinks, faults, judged
        self._listeners = listeners
        self.past = past
        """The buffer of steps without findings; None if every step is written."""
        self.findings: list[Finding] = []
        """The first findings of the run, in causal order within each step."""
        self._news: deque[Finding] = deque(maxlen=NEWS_KEPT)
        self.found = 0
        self.steps = 0
        self.cost: dict[str, float] = {}

    def open(self) -> None:
        for sink in self._sinks:
            sink.open()

    def change(self, rules: Sequence[Rule], sinks: Sequence[Sink], past: Past | None = None) -> None:
        """Use other rules and sinks from now on. Those used before keep their memory and stay open."""
        if self.past is not None and past is not self.past:
            self.past.forget()
            if past is not None:
                past.unwritten += self.past.unwritten
        self.past = past
        kept = {id(sink) for sink in sinks}
        before, self._sinks = self._sinks, [sink for sink in self._sinks if id(sink) in kept]
        for sink in before:
            if id(sink) not in kept:
                self._close(sink)
        for sink in sinks:
            if sink not in self._sinks and succeeds(self._faults, _place(sink), sink.open):
                self._sinks = [*self._sinks, sink]
        self._rules = rules

    def write(self, snapshot: Snapshot) -> None:
        """Judge ``snapshot``, and write it or hold it back."""
        found: list[Finding] = []
        if self._rules:
            found = find(
                self._rules, snapshot.batches, lambda rule, e: self._faults.note(f"rule {type(rule).__name__}", e)
            )
            snapshot = replace(snapshot, findings=tuple(found))
        self.findings.extend(found[: FINDINGS_KEPT - len(self.findings)])
        self._news.extend(found[:NEWS_KEPT])
        self.found += len(found)
        self.steps += 1
        if self.found and self._judged is not None:
            attempt(self._faults, "alerts", self._judged, snapshot.step, found)
        for name, seconds in snapshot.cost.items():
            self.cost[name] = self.cost.get(name, 0.0) + seconds
        for listener in self._listeners.all if self._listeners is not None else ():
            attempt(self._faults, "snapshot listener", listener, snapshot)
        for due in (snapshot,) if self.past is None else self.past.admit(snapshot):
            self._put(due)

    def _failed(self, rule: Rule, error: Exception) -> None:
        self._faults.note(f"rule {type(rule).__name__}", error)

    def news(self) -> list[Finding]:
        """Return the latest findings since the last call. Callable on any thread."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def _put(self, snapshot: Snapshot) -> None:
        for sink in self._sinks:
            try:
                sink.write(snapshot)
            except Exception as error:  # noqa: BLE001 - the other sinks still write
                count(self._faults, _place(sink), error)

    def close(self, incident: bool = False) -> None:
        """Close every sink; if training ends by an ``incident``, first write the steps held back."""
        if self.past is not None:
            for due in self.past.release() if incident else ():
                self._put(due)
            self.past.forget()
        while self._sinks:  # one whose end is interrupted stays
            self._close(self._sinks[0])
            self._sinks = self._sinks[1:]

    def _close(self, sink: Sink) -> None:
        try:
            attempt(self._faults, _place(sink), sink.close)
        except BaseException as error:
            if threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C, or the exit of a signal handler; on another thread it is the sink's own
            self._faults.note(_place(sink), error)


def _place(sink: Sink) -> str:
    """Return the place under which failures of ``sink`` are counted."""
    return f"sink {type(sink).__name__}"


class Stages:
    """Rules and sinks of a run; those whose configuration has not changed are kept.

    Args:
        resumed: the directory of an earlier run that is continued: the first sink.
    """

    def __init__(self, rank: int, resumed: Resumed | None) -> None:
        self._rank, self._resumed = rank, resumed
        self._rules: list[tuple[object, Rule]] = []
        """Rules with the values from which they were made."""
        self._sinks: list[tuple[object, Sink]] = []
        self._made: set[str] = set()
        """Names of all sinks made so far."""

    @property
    def rules(self) -> list[Rule]:
        """The rules of the latest configuration."""
        return [rule for _, rule in self._rules]

    @property
    def sinks(self) -> list[Sink]:
        """The sinks of the latest configuration."""
        return [sink for _, sink in self._sinks]

    def choose(self, settings: Settings, context: SinkContext) -> None:
        """Make the rules and sinks of ``settings`` that do not exist yet.

        Raises:
            Exception: if one cannot be made; then nothing changes.
        """
        rules: list[tuple[object, Rule]] = []
        known = list(self._rules)
        for rule in settings.alert.judging:
            made_of = rule, settings.statistics
            kept = next((pair for pair in known if pair[0] == made_of), None)
            if kept is not None:
                known.remove(kept)  # two equal rules are kept as two
            rules.append(kept or (made_of, rule_factory(rule.rule_name)(rule.args, self._rank, settings.statistics)))
        sinks: list[tuple[object, Sink]] = [(None, self._resumed)] if self._resumed else []
        for name in (*settings.formats, *written_beside(settings.formats)):
            make = factory(name)
            if make is not None:
                known_sink = next((one for of, one in self._sinks if of == (name, context)), None)
                # only the first sink with a name resumes an earlier run
                own = replace(context, resumed_at=None) if name in self._made else context
                sinks.append(((name, context), known_sink or make(own)))
        self._rules, self._sinks = rules, sinks
        self._made.update(settings.formats)
