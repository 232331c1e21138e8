"""Plans: signals, modules and steps to collect."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from probe.core.config.schema import Settings
from probe.core.instrumentation.schedule import Schedule
from probe.core.instrumentation.signals.sources import Source, chosen
from probe.core.storage.manifest import REST

Purpose = Literal["collect", "deeper", "structure", "count", "rest"]
"""Collect rows; collect more around a finding; write the structure of the model; count steps on a rank that takes no
part; do nothing until the configuration changes."""
Origin = Literal["configuration", "program", "finding", "sentinel"]


@dataclass(frozen=True)
class Plan:
    """The value that determines the signals, modules and steps that a session collects from a step boundary on.

    The budget of cost (``max_overhead``) acts inside a plan: the pace of its schedule changes the interval.
    """

    settings: Settings
    schedule: Schedule
    purpose: Purpose = "collect"
    origin: Origin = "configuration"
    takes_part: bool = True
    """True if this rank is among ``module_ranks``."""
    suspects: tuple[str, ...] = ()
    """Names of modules inside which everything is collected (``deeper``)."""
    until: int | None = None
    """The step before which the plan ends: ``base`` holds again or, without a base, training is stopped."""
    base: Plan | None = None
    listens: bool = True
    """True if collectives are recorded, too."""
    restarts: bool = False
    """True if the collectives of the step in progress are dropped."""

    @property
    def name(self) -> str:
        """Name that is the same on ranks that collect by the same configuration: ``rest``, or eight digits."""
        if self.purpose == "rest":
            return REST
        if self.origin == "sentinel" and self.base is not None:
            return self.base.name  # more of the same: each rank decides alone, around its own incidents
        settings = self.settings.model_dump(mode="json", exclude={"apply_at_step"})
        text = json.dumps([settings, self.suspects], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def writes(self) -> bool:
        """True if the plan makes rows on this rank; the structure of a model has none."""
        return self.takes_part and self.purpose in ("collect", "deeper")

    @property
    def sources(self) -> list[Source]:
        """The sources to attach."""
        return chosen(self.settings) if self.takes_part and self.purpose not in ("count", "rest") else []
