"""Panel of the checks: each optimizer has one of each kind. A check that fails does not stop the others, and none
repeats its findings for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from probe.core.checks import CHECKS
from probe.core.checks.check import Check, CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import LoopCheck
from probe.core.checks.loss_form import LossForm
from probe.core.checks.loss_leap import LossLeap
from probe.core.checks.loss_not_finite import LossNotFinite
from probe.core.checks.loss_unbounded import LossUnbounded
from probe.core.checks.nothing_moves import NothingMoves
from probe.core.checks.nothing_to_apply import NothingToApply
from probe.core.checks.parameter_stuck import ParameterStuck
from probe.core.checks.stale_gradient import StaleGradient
from probe.core.checks.update_without_backward import UpdateWithoutBackward
from probe.core.door import FaultCounter, attempt
from probe.core.language import joined, message

OF_LOSSES = frozenset({LossNotFinite.name, LossLeap.name, LossUnbounded.name})
"""Checks that judge losses alone."""
OF_OBJECTS = frozenset(
    {
        NothingToApply.name,
        NothingMoves.name,
        ParameterStuck.name,
        StaleGradient.name,
        UpdateWithoutBackward.name,
    }
)
"""Checks that judge what became of gradients and parameters that the program has."""
OF_GRAPHS = frozenset(name for name, check in CHECKS.items() if issubclass(check, LossForm))
"""Checks that judge graphs of losses, which are seen now and then."""
COMPILED = "updates are compiled, and no hook runs in them"
ELSEWHERE = "an engine keeps gradients and what it updates elsewhere"
MOST_NAMED = 3
"""Checks that are named after one reason."""
MOST_REPEATS = 3
"""Findings of one check about the same places of one optimizer."""
MOST = 20
"""Findings of one check."""


class CheckPanel:
    """Judge of all updates of a run, by all checks.

    Args:
        faults: counter of checks that fail.
        checks: classes of the checks by name.
    """

    def __init__(self, faults: FaultCounter, checks: Mapping[str, type[Check]] = CHECKS) -> None:
        self._faults, self._classes = faults, checks
        self._places = {name: f"check {name}" for name in checks}
        """Places under which failures are counted."""
        self._checks: dict[int, dict[str, Check]] = {}
        self._graphs: dict[int, object] = {}
        """Graph of a loss that was judged last, by optimizer."""
        self._failed: set[str] = set()
        self._reporters: dict[tuple[str, tuple[str, ...]], int] = {}
        """Optimizer with which a check has first reported places: others report the same again."""
        self._repeats: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._numbers: Counter[str] = Counter()
        self._broken: set[str] = set()
        """Names of the checks that have found something graver than a note."""
        self._compiled = False
        """True if an update was compiled."""
        self._elsewhere = False
        """True if an engine kept the gradients of an update."""
        self.omitted = 0
        """Findings that were left out because the same was reported before."""

    def judge(self, update: JudgedUpdate) -> list[CheckFinding]:
        """Return the findings with this update, in the order of the checks. Never raises."""
        number = update.facts.optimizer
        if number not in self._checks:
            attempt(self._faults, "checks", self._add, number)
        if len(self._checks) > 1:
            update = JudgedUpdate(update.facts._replace(alone=False), update.gradients)
        findings: list[CheckFinding] = []
        fresh = update.facts.loss_graph is not self._graphs.get(number)
        self._graphs[number] = update.facts.loss_graph
        self._compiled |= not update.facts.seen
        self._elsewhere |= not update.facts.shown
        for name, check in self._checks.get(number, {}).items():
            if (name in OF_GRAPHS and not fresh) or (not update.facts.seen and name not in OF_LOSSES):
                continue
            if not update.facts.shown and name in OF_OBJECTS:
                continue
            rows = attempt(self._faults, self._places[name], _judged, check, update)
            if rows is None:
                self._failed.add(name)
            elif rows:
                findings += [finding for finding in rows if self._is_new(finding, number)]
        return findings

    def ended(self, operations: int) -> list[CheckFinding]:
        """Return the findings at the end of the run, see :meth:`probe.core.checks.loop_check.LoopCheck.ended`."""
        findings: list[CheckFinding] = []
        for name, check in ((name, check) for checks in self._checks.values() for name, check in checks.items()):
            if isinstance(check, LoopCheck):
                rows = attempt(self._faults, self._places[name], lambda check=check: [*check.ended(operations)])
                findings += rows or ()
        return findings

    def _add(self, optimizer: int) -> None:
        """Make the checks of an optimizer; other threads see all of them or none."""
        checks: dict[str, Check] = {}
        for name, check in self._classes.items():
            made = attempt(self._faults, self._places[name], check)
            if made is None:
                self._failed.add(name)
            else:
                checks[name] = made
        self._checks = {**self._checks, optimizer: checks}

    def _is_new(self, finding: CheckFinding, optimizer: int) -> bool:
        """Count a finding; return whether it is to be reported."""
        if finding.grade != "note":
            self._broken.add(finding.check)
        key = finding.check, finding.where
        reporter = self._reporters.setdefault(key, optimizer)
        self._repeats[key] += 1
        self._numbers[finding.check] += 1
        new = reporter == optimizer and self._repeats[key] <= MOST_REPEATS and self._numbers[finding.check] <= MOST
        self.omitted += not new
        return new

    def preflight(self) -> str:
        """Return one line about all checks: how many hold, and what was not looked at, with the reasons."""
        holding, absent, unseen = 0, 0, dict[str, list[str]]()
        for name in self._classes:
            reason = self._missing(name)
            if reason is None:
                holding += name not in self._broken
            elif isinstance(reason, NotApplicable):
                absent += 1
            else:
                unseen.setdefault(reason, []).append(name)
        parts = [message("{number} hold", number=holding)]
        if self._broken:
            names = ", ".join(name for name in self._classes if name in self._broken)
            parts.append(message("{number} broken ({names})", number=len(self._broken), names=names))
        parts += [message("{number} not applicable", number=absent)] if absent else []
        if unseen:
            reasons = [joined(": ", [message(reason), _some(names)]) for reason, names in unseen.items()]
            number = sum(map(len, unseen.values()))
            parts.append(
                message("{number} could not be seen ({reasons})", number=number, reasons=joined("; ", reasons))
            )
        return message("preflight: {parts}", parts=joined(", ", parts))

    def _missing(self, name: str) -> str | None:
        """Return why a check says nothing, of the optimizer of which least was seen; None if it has judged all."""
        if name in self._broken:
            return None
        if name in self._failed:
            return "it failed, see monitor.faults"
        if not self._checks:
            return "no update so far"
        reasons = [check.missing() for checks in self._checks.values() if (check := checks.get(name)) is not None]
        unseen = [reason for reason in reasons if reason is not None and not isinstance(reason, NotApplicable)]
        if self._compiled and name not in OF_LOSSES and None not in reasons:
            return COMPILED
        if unseen:
            first = ELSEWHERE if self._elsewhere and name in OF_OBJECTS else unseen[0]
            return first + (f" (of {len(unseen)} of {len(reasons)} optimizers)" if len(unseen) < len(reasons) else "")
        return None if None in reasons else reasons[0]


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:MOST_NAMED], *(["..."] if len(names) > MOST_NAMED else [])])


def _judged(check: Check, update: JudgedUpdate) -> list[CheckFinding]:
    return list(check.judge(update))
