"""Alert rules: one a file, chosen by name in the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any, Protocol

from probe.core.records import Batch, Finding
from probe.core.rules.about import About
from probe.core.rules.comm_nan import AnomalyCommNan
from probe.core.rules.dead import AnomalyDead
from probe.core.rules.entropy import AnomalyEntropy
from probe.core.rules.extreme import AnomalyExtreme
from probe.core.rules.frozen import AnomalyFrozen
from probe.core.rules.nan import AnomalyNan
from probe.core.rules.replica import AnomalyReplica
from probe.core.rules.router import AnomalyRouter
from probe.core.rules.spike import AnomalySpike
from probe.core.rules.threshold import AnomalyThreshold
from probe.core.rules.turbulence import AnomalyTurbulence
from probe.core.rules.vanish import AnomalyVanish

GROUP = "probe.rules"
"""Group of entry points in which other packages offer rules."""


class Rule(Protocol):
    """Judge of one signal's rows at one step, which may remember earlier ones, and sees no framework and no tensor."""

    def judge(self, batch: Batch) -> Iterable[Finding]:
        """Return the findings in ``batch``. Called once a batch, in the order of steps, always from one thread."""


Factory = Callable[[Any, int, Sequence[str]], Rule]
"""Function that makes a rule from its configured ``args``, the rank, and the configured ops.

``args`` is an object with the documented attributes; for a rule of another package, the mapping that was configured.
"""

RULES: dict[str, type[About]] = {
    "AnomalyTurbulence": AnomalyTurbulence,
    "AnomalyNan": AnomalyNan,
    "AnomalySpike": AnomalySpike,
    "AnomalyCommNan": AnomalyCommNan,
    "AnomalyVanish": AnomalyVanish,
    "AnomalyDead": AnomalyDead,
    "AnomalyFrozen": AnomalyFrozen,
    "AnomalyExtreme": AnomalyExtreme,
    "AnomalyEntropy": AnomalyEntropy,
    "AnomalyRouter": AnomalyRouter,
    "AnomalyReplica": AnomalyReplica,
    "AnomalyThreshold": AnomalyThreshold,
}
"""Built-in rules. To add one, write a file with its class and its arguments, and add a line here."""


def about(name: str) -> type[About]:
    """Return the statements of the rule called ``name``; the defaults for a rule of another package."""
    rule: object = RULES.get(name)
    return rule if isinstance(rule, type) and issubclass(rule, About) else About


def factory(name: str) -> Factory:
    """Return the factory of the rule called ``name``; other packages are searched only if it is not built in.

    Raises:
        ValueError: if there is no such rule.
    """
    if name in RULES:
        built_in: Factory = RULES[name]  # type: ignore[assignment]  # each class takes what a factory takes
        return built_in
    for entry_point in entry_points(group=GROUP, name=name):
        offered: Factory = entry_point.load()
        return offered
    offers = sorted({*RULES, *(entry_point.name for entry_point in entry_points(group=GROUP))})
    near = get_close_matches(name, offers, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"there is no rule {name!r}; there are {', '.join(offers)}{hint}")
