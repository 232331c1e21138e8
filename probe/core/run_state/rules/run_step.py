"""Records between the numbers of the run and their rules, and the protocol of a rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from probe.core.fields import Section
from probe.core.records import Outcome, Severity


class RunStep(NamedTuple):
    """Numbers of the run at one step."""

    step: int
    time: float
    """Seconds since the epoch at its end."""
    seconds: float
    """Time since the end of the step before; NaN for the first one."""
    outcome: Outcome
    values: Mapping[str, float]
    """Numbers by name: those of ``monitor.log``, and ``step_seconds``, ``throughput``, ``phase/<name>``, ..."""


class RunFinding(NamedTuple):
    """Number of the run that a rule reports."""

    rule: str
    name: str
    """Name of the number."""
    step: int
    value: float
    expected: float
    """Value that the rule compared with; NaN if none."""
    message: str
    severity: Severity
    resolved: bool = False
    """True if the matter that was reported before has ended."""


class RunRule(Protocol):
    """Judge of the numbers of every step, which remembers earlier ones."""

    Args: ClassVar[type[Section]]
    """Model of its arguments in the configuration."""
    title: ClassVar[str]
    """Title of a finding in two or three words, such as ``Spike of the loss``."""
    why: ClassVar[str]
    """Harm of the fault: one sentence."""
    source: ClassVar[str]
    """Public report of the fault, or the description of the method, by link."""
    sees: ClassVar[str]
    """Numbers that it judges: one clause."""
    finds: ClassVar[str]
    """Clause about the rule, for the reference of the configuration."""
    by_default: ClassVar[bool]
    """True if it judges when a configuration names no rules."""

    def __init__(self, args: Any) -> None: ...

    def judge(self, step: RunStep) -> Iterable[RunFinding]:
        """Return the findings in ``step``. Called once a step, in their order, always from one thread."""

    def state_dict(self) -> dict[str, Any]:
        """Return the memory, of values that JSON can hold."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the memory; ignore one that cannot be read."""
