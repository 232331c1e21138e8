"""What happens to a step on the delivery thread: rules, then sinks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from probe.core.anomaly import find
from probe.core.faults import Faults
from probe.core.records import Finding, Snapshot
from probe.core.rules import Rule
from probe.core.sinks import Sink

FINDINGS_KEPT = 1000


class Writer:
    """Judges each snapshot and gives it to every sink; one that fails is counted and tried again next time."""

    def __init__(self, rules: Sequence[Rule], sinks: Sequence[Sink], faults: Faults) -> None:
        self._rules, self._sinks, self._faults = rules, sinks, faults
        self.findings: list[Finding] = []
        """The first findings of the run, in causal order within each step."""
        self.found = 0
        self.steps = 0
        self.cost: dict[str, float] = {}

    def open(self) -> None:
        for sink in self._sinks:
            sink.open()

    def write(self, snapshot: Snapshot) -> None:
        """Everything that is done with a step."""
        found = find(self._rules, snapshot.batches, lambda rule, e: self._faults.note(f"rule {type(rule).__name__}", e))
        snapshot = dataclasses.replace(snapshot, findings=tuple(found))
        self.findings.extend(found[: FINDINGS_KEPT - len(self.findings)])
        self.found += len(found)
        self.steps += 1
        for name, seconds in snapshot.cost.items():
            self.cost[name] = self.cost.get(name, 0.0) + seconds
        for sink in self._sinks:
            try:
                sink.write(snapshot)
            except Exception as error:  # noqa: BLE001 - one sink's failure is not the others'
                self._faults.note(f"sink {type(sink).__name__}", error)

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001
                self._faults.note(f"sink {type(sink).__name__}", error)
