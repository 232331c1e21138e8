"""Deeper collection around a finding, on all ranks, for some steps.

Ranks agree on a step number, as in :mod:`probe.core.control.config_follower`, here by an announcement: a file
``arming/{n}.json`` beside their directories. The rank with the first finding writes it; no other rank can overwrite it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from probe.core.config.schema import Settings
from probe.core.control.agreement import ScheduledChange
from probe.core.distributed.announcements import Notices
from probe.core.faults import Faults
from probe.core.instrumentation.selection import Selection
from probe.core.records import Finding
from probe.core.rules.causal_order import causal_order
from probe.core.rules.evaluate import module_of

MOST = 8
"""Number of findings of a step whose modules are suspects: the first in causal order."""
SUSPECTS = "suspects"

_BLOCK = re.compile(r"(.*\.\d+|\d+)(?:\..*)?", re.DOTALL)


class Order(NamedTuple):
    """The announcement of the rank with the first finding."""

    step: int
    """Step from which on more is collected."""
    suspects: tuple[str, ...]
    """Names of modules: everything inside them is collected."""
    rank: int


def suspects(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the blocks of the first of ``findings``: ``layers.1`` for a finding in ``layers.1.mlp.fc``; for a module
    outside all blocks, the module itself; the empty name is the whole model."""
    first = sorted(findings, key=causal_order)[:MOST]
    return tuple(dict.fromkeys(_block(module_of(finding)) for finding in first))


def _block(module: str) -> str:
    match = _BLOCK.fullmatch(module)
    return match[1] if match else module


class Arming:
    """Trigger of deeper collection on one rank; polled once a step.

    Args:
        notices: the announcements, which all ranks see.
        rank: this rank.
        steps: number of steps in which more is collected.
        cool_down: number of steps after that without a new order.
        lead_steps: returns the number of steps after which every rank has read what is announced now.
    """

    def __init__(
        self, notices: Notices, rank: int, steps: int, cool_down: int, lead_steps: Callable[[], int], faults: Faults
    ) -> None:
        self._rank, self._steps, self._cool_down, self._lead_steps = rank, steps, cool_down, lead_steps
        self._orders = ScheduledChange("arming", notices, _order, faults)
        self._quiet_until = 0

    def poll(self, step: int, findings: Sequence[Finding]) -> Order | None:
        """Return the order that takes effect with ``step``, which is about to begin. Drop orders whose steps are over.

        Args:
            findings: findings since the last call.
        """
        orders = self._orders
        with orders.counted():
            while (at := orders.next_step()) is not None and step >= at + self._steps:
                self._rest_after(orders.drop())  # its steps have passed without deeper collection
            if at is None and findings and step >= self._quiet_until:
                orders.announce(step + self._lead_steps(), suspects=suspects(findings), rank=self._rank)
        if (order := orders.poll(step)) is not None:
            self._rest_after(order)
        return order

    def _rest_after(self, order: Order) -> None:
        self._quiet_until = order.step + self._steps + self._cool_down


def _order(notice: Mapping[str, Any]) -> Order:
    return Order(int(notice["step"]), tuple(map(str, notice["suspects"])), int(notice["rank"]))


SIGNALS = ("xy_distribution", "wg_distribution", "param_distribution", "mv_distribution")


def deeper(settings: Settings) -> Settings:
    """Return ``settings`` with the signals that ``on_anomaly`` adds."""
    assert settings.on_anomaly is not None
    arm = settings.on_anomaly.arm
    return settings.model_copy(update={name: True for name in SIGNALS if getattr(arm, name)})


def whole(settings: Settings) -> Settings:
    """Return ``settings`` with all signals that show where a number comes from, and those that ``on_anomaly`` adds."""
    added = settings if settings.on_anomaly is None else deeper(settings)
    return added.model_copy(update=dict.fromkeys(SIGNALS[:3], True))


def around(base: Selection, suspects: Sequence[str], settings: Settings) -> Selection:
    """Return ``base``, the selection of ``settings``, extended by everything inside the suspects."""
    return base.widened(
        suspects,
        parameters=settings.wg_distribution or settings.param_distribution or settings.mv_distribution,
        modules=settings.xy_distribution,
    )
