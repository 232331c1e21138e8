"""Looking deeper when it matters: more is collected around what a rule has found, on all ranks, for some steps.

Ranks agree as in :mod:`probe.core.control.config_follower`, by the number of a step: here in a
notice, as a file ``arming/{n}.json`` beside their directories. Who finds something first gives it, and nobody can give
it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from probe.core.config.schema import Settings
from probe.core.distributed.announcements import Notices
from probe.core.faults import Faults
from probe.core.instrumentation.selection import Selection
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
        self._notices, self._rank = notices, rank
        self._steps, self._cool_down, self._ahead, self._faults = steps, cool_down, ahead, faults
        self._order: Order | None = None
        self._quiet_until = 0

    def poll(self, step: int, findings: Sequence[Finding]) -> Order | None:
        """The order that takes effect with ``step``, which is about to begin. One whose steps are over is none.

        Args:
            findings: what has been found since this was last asked.
        """
        try:
            self._look()
            while self._order is not None and step >= self._order.step + self._steps:  # nothing was collected then
                self._rest_after(self._order)
                self._look()
            if self._order is None and findings and step >= self._quiet_until:
                self._notices.give(Order(step + self._ahead(step), suspects(findings), self._rank)._asdict())
                self._look()
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._faults.note("arming", error)
        order = self._order
        if order is None or step < order.step:
            return None
        if step > order.step:
            self._faults.note("arming", TimeoutError(f"seen at step {step}, too late for step {order.step}"))
        self._rest_after(order)
        return order

    def _rest_after(self, order: Order) -> None:
        self._order, self._quiet_until = None, order.step + self._steps + self._cool_down

    def _look(self) -> None:
        """Reads the next order, if somebody has given it."""
        if self._order is None and (told := self._notices.read()) is not None:
            self._order = Order(int(told["step"]), tuple(map(str, told["suspects"])), int(told["rank"]))


SIGNALS = ("xy_distribution", "wg_distribution", "param_distribution", "mv_distribution")


def deeper(settings: Settings) -> Settings:
    """``settings`` with what they collect besides when something was found."""
    assert settings.on_anomaly is not None
    arm = settings.on_anomaly.arm
    return settings.model_copy(update={name: True for name in SIGNALS if getattr(arm, name)})


def around(base: Selection, suspects: Sequence[str], settings: Settings) -> Selection:
    """What ``settings`` choose, and all that is inside the suspects."""
    return base.widened(
        suspects,
        parameters=settings.wg_distribution or settings.param_distribution or settings.mv_distribution,
        modules=settings.xy_distribution,
    )
