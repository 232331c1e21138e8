"""Looking deeper when it matters: more is collected around what a rule has found, on all ranks, for some steps.

Ranks agree as in :mod:`probe.core.control.config_follower`, by the number of a step: here in a
notice, as a file ``arming/{n}.json`` beside their directories. Who finds something first gives it, and nobody can give
it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from probe.core.config.schema import Settings
from probe.core.control.agreement import ScheduledChange
from probe.core.distributed.announcements import Notices
from probe.core.faults import Faults
from probe.core.instrumentation.selection import PLACES, Lead, Selection, Watched, inside, names_of, no_lead
from probe.core.records import Finding
from probe.core.rules.causal_order import causal_order
from probe.core.rules.evaluate import module_of

MOST = 8
"""Findings of a step whose modules are suspects: the first in causal order."""
SUSPECTS = "suspects"

_BLOCK = re.compile(r"(.*\.\d+|\d+)(?:\..*)?", re.DOTALL)


class Order(NamedTuple):
    """What was written by who found something first."""

    step: int
    """From which more is collected."""
    suspects: tuple[str, ...]
    """Names of modules: what is inside them is looked at."""
    rank: int


def suspects(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The blocks that the first of ``findings`` are about: ``layers.1`` for what was found in ``layers.1.mlp.fc``; a
    module outside all blocks itself; the empty name is the whole model."""
    first = sorted(findings, key=causal_order)[:MOST]
    return tuple(dict.fromkeys(_block(module_of(finding)) for finding in first))


def _block(module: str) -> str:
    found = _BLOCK.fullmatch(module)
    return found[1] if found else module


class Deeper(Selection):
    """What ``base`` chooses, and all that is inside the suspects.

    Args:
        parameters: whether ``base`` chooses among parameters; else those inside the suspects alone are watched.
        modules: the same of modules.
    """

    def __init__(self, base: Selection, suspects: Sequence[str], parameters: bool, modules: bool) -> None:
        self._base, self._suspects, self._parameters, self._modules = base, tuple(suspects), parameters, modules

    def watches(self, parameter: Watched) -> bool:
        return self._suspect(parameter) or (self._parameters and self._base.watches(parameter))

    def places(self, module: Watched) -> dict[str, Any]:
        known = self._base.places(module) if self._modules else {}
        return dict.fromkeys(PLACES) | known if self._suspect(module) else known

    def check(self, names: Iterable[str], lead: Lead = no_lead) -> list[str]:
        return self._base.check(names, lead)

    def _suspect(self, watched: Watched) -> bool:
        names = names_of(watched.full)
        return any(inside(name, suspect) for suspect in self._suspects for name in names)


class Arming:
    """Decides on one rank when to look deeper; asked once a step.

    Args:
        notices: what all ranks see.
        rank: this one.
        steps: for which more is collected.
        cool_down: steps after that in which nothing new is ordered.
        ahead: in how many steps every rank will have seen what is written at a step.
    """

    def __init__(
        self, notices: Notices, rank: int, steps: int, cool_down: int, ahead: Callable[[int], int], faults: Faults
    ) -> None:
        self._rank, self._steps, self._cool_down, self._ahead = rank, steps, cool_down, ahead
        self._orders = ScheduledChange("arming", notices, _order, faults)
        self._quiet_until = 0

    def poll(self, step: int, findings: Sequence[Finding]) -> Order | None:
        """The order that takes effect with ``step``, which is about to begin. One whose steps are over is none.

        Args:
            findings: what has been found since this was last asked.
        """
        orders = self._orders
        with orders.counted():
            while (at := orders.next_step()) is not None and step >= at + self._steps:
                self._rest_after(orders.drop())  # nothing was collected then
            if at is None and findings and step >= self._quiet_until:
                orders.announce(step + self._ahead(step), suspects=suspects(findings), rank=self._rank)
        if (order := orders.poll(step)) is not None:
            self._rest_after(order)
        return order

    def _rest_after(self, order: Order) -> None:
        self._quiet_until = order.step + self._steps + self._cool_down


def _order(notice: Mapping[str, Any]) -> Order:
    return Order(int(notice["step"]), tuple(map(str, notice["suspects"])), int(notice["rank"]))


SIGNALS = ("xy_distribution", "wg_distribution", "param_distribution", "mv_distribution")


def deeper(settings: Settings) -> Settings:
    """``settings`` with what they collect besides when something was found."""
    assert settings.on_anomaly is not None
    arm = settings.on_anomaly.arm
    return settings.model_copy(update={name: True for name in SIGNALS if getattr(arm, name)})


def around(base: Selection, suspects: Sequence[str], settings: Settings) -> Deeper:
    """What ``settings`` choose, and all that is inside the suspects."""
    return Deeper(
        base,
        suspects,
        parameters=settings.wg_distribution or settings.param_distribution or settings.mv_distribution,
        modules=settings.xy_distribution,
    )
