"""The rules about the run that a configuration names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from probe.core.config.schema import AlertSettings, Settings
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.rules.threshold import ThresholdArgs
from probe.core.run_state.rules import RUN_RULES, RunFinding, RunRule, RunStep
from probe.core.run_state.rules.threshold import NAME, RunThreshold, limits_of


def rule_makers(settings: Settings) -> list[Callable[[], RunRule]]:
    """Return makers of the rules about numbers of the run: of those in ``run.rules``, and of limits in
    ``alert.rules``."""
    makers: list[Callable[[], RunRule]] = [partial(RUN_RULES[rule.rule_name], rule.args) for rule in settings.run.rules]
    return makers + [partial(RunThreshold, args) for args in limits_of(settings.alert.rules)]


class RunJudges:
    """The rules of a run; one that fails is counted, and called again with the next step."""

    def __init__(self, settings: Settings, faults: Faults) -> None:
        self._faults = faults
        self._chosen: list[tuple[str, RunRule]] = [
            (rule.rule_name, RUN_RULES[rule.rule_name](rule.args)) for rule in settings.run.rules
        ]
        self._limits: dict[ThresholdArgs, RunThreshold] = {}
        self.limit(settings.alert)
        self.receivers: list[Callable[[Sequence[RunFinding]], None]] = []
        """Functions that receive the findings of each step that has any."""

    def limit(self, alert: AlertSettings) -> None:
        """Judge by the limits of ``alert`` from now on."""
        self._limits = {args: self._limits.get(args) or RunThreshold(args) for args in limits_of(alert.rules)}

    @property
    def _rules(self) -> list[tuple[str, RunRule]]:
        return [*self._chosen, *((NAME, rule) for rule in self._limits.values())]

    def judge(self, step: RunStep) -> list[RunFinding]:
        """Return the findings in ``step``, after all receivers have got them."""
        findings: list[RunFinding] = []
        for name, rule in self._rules:
            try:
                findings.extend(rule.judge(step))
            except Exception as error:  # noqa: BLE001 - the other rules judge all the same
                self._faults.note(f"rule {name}", error)
        self.pass_on(findings)
        return findings

    def pass_on(self, findings: Sequence[RunFinding]) -> None:
        """Pass findings to every receiver."""
        for receive in self.receivers if findings else ():
            attempt(self._faults, "findings of the run", receive, findings)

    def state_dict(self) -> dict[str, Any]:
        """Return the memory of each rule, by its name and place."""
        return {f"{place}:{name}": rule.state_dict() for place, (name, rule) in enumerate(self._rules)}

    def load_state_dict(self, state: Mapping[str, Any]) -> int:
        """Restore the memory of the rules that ``state`` has, and return their number; ignore the rest."""
        restored = 0
        for place, (name, rule) in enumerate(self._rules):
            memory = state.get(f"{place}:{name}") if isinstance(state, Mapping) else None
            if isinstance(memory, Mapping):
                rule.load_state_dict(memory)
                restored += 1
        return restored
