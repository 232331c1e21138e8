"""Rules about numbers of the run: one a file, chosen by name in the configuration."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from probe.core.run_state.rules.nan import RunNan
from probe.core.run_state.rules.overflow import RunOverflow
from probe.core.run_state.rules.rate import RunRate
from probe.core.run_state.rules.run_step import RunFinding, RunRule, RunStep
from probe.core.run_state.rules.slow import RunSlow
from probe.core.run_state.rules.spike import RunSpike
from probe.core.run_state.rules.straggler import RunStraggler

__all__ = ["RUN_RULES", "RunFinding", "RunRule", "RunStep", "remember"]

RUN_RULES: dict[str, type[RunRule]] = {
    "RunNan": RunNan,
    "RunSpike": RunSpike,
    "RunSlow": RunSlow,
    "RunOverflow": RunOverflow,
    "RunStraggler": RunStraggler,
    "RunRate": RunRate,
}
"""Rules by their names in a configuration. To add one, write a file with its class, and add a line here."""


def remember(rules: Iterable[RunRule], steps: Iterable[RunStep]) -> None:
    """Show the steps of an earlier run to ``rules``, in their order, and drop the findings.

    Afterwards each rule is where the end of that run left it, as after ``load_state_dict``.
    """
    judges = list(rules)
    for step in steps:
        for rule in judges:
            deque(rule.judge(step), maxlen=0)
    for rule in judges:
        rule.load_state_dict(rule.state_dict())
