"""Steps for the tests of rules about numbers of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from probe.core.naming import STEP_SECONDS
from probe.core.run_state.rules import RUN_RULES, RunFinding, RunRule, RunStep


def rule_of(name: str, **args: object) -> RunRule:
    """A rule with these arguments, the others as they are by default."""
    rule = RUN_RULES[name]
    return rule(rule.Args(**args))


def steps_of(
    first: int = 0, outcomes: Mapping[int, str] | None = None, **columns: Iterable[float]
) -> Iterator[RunStep]:
    """Steps of these numbers; of 0.5 s each, without step_seconds. None stands for no number."""
    for n, row in enumerate(zip(*columns.values(), strict=True)):
        values = {name.replace("__", "/"): value for name, value in zip(columns, row, strict=True) if value is not None}
        seconds = values.get(STEP_SECONDS, 0.5)
        step = first + n
        yield RunStep(step, 1.7e9 + step, seconds, (outcomes or {}).get(step, "applied"), values)


def found(rule: RunRule, steps: Iterable[RunStep]) -> list[RunFinding]:
    """All findings."""
    return [finding for step in steps for finding in rule.judge(step)]


def places(findings: Iterable[RunFinding]) -> list[tuple[str, int, bool]]:
    """Name, step and whether it is an end, of each finding."""
    return [(finding.name, finding.step, finding.resolved) for finding in findings]


def noise(count: int, seed: int = 0, size: float = 1.0) -> np.ndarray:
    """Normal noise."""
    return size * np.random.default_rng(seed).normal(size=count)
