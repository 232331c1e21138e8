"""A plan: what is collected, of which modules and in which steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from probe.core.config.schema import Settings
from probe.core.instrumentation.schedule import Schedule
from probe.core.instrumentation.signals.sources import Source, chosen

Purpose = Literal["collect", "deeper", "structure", "count", "rest"]
"""Collect rows; collect more around a finding; write the structure of the model; count steps on a rank that takes no
part; do nothing until the configuration says otherwise."""
Origin = Literal["configuration", "program", "finding"]


@dataclass(frozen=True)
class Plan:
    """The value that decides what a session collects from a step boundary on.

    The budget of cost (``max_overhead``) acts inside a plan: the pace of its schedule changes the interval.
    """

    settings: Settings
    schedule: Schedule
    purpose: Purpose = "collect"
    origin: Origin = "configuration"
    takes_part: bool = True
    """Whether this rank is among ``module_ranks``."""
    suspects: tuple[str, ...] = ()
    """Names of modules inside which everything is collected (``deeper``)."""
    until: int | None = None
    """The step before which it ends: ``base`` holds again, or, without one, training is stopped."""
    base: Plan | None = None
    listens: bool = True
    """Whether it is about collectives, too."""
    restarts: bool = False
    """Whether the collectives of the step in progress are forgotten."""

    @property
    def writes(self) -> bool:
        """Whether it makes rows on this rank: the structure of a model is none."""
        return self.takes_part and self.purpose in ("collect", "deeper")

    @property
    def sources(self) -> list[Source]:
        """The sources to attach."""
        return chosen(self.settings) if self.takes_part and self.purpose not in ("count", "rest") else []
