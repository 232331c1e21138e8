"""Sequences of judged updates: a small training of four modules, changed where a test says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from probe.core.checks import CHECKS, CheckFinding, JudgedUpdate
from probe.core.checks.update_facts import Gradients, UpdateFacts, Values

NAMES = tuple(f"{module}.{part}" for module in ("embed", "layers.0", "layers.1", "head") for part in ("weight", "bias"))
SIZES = (400, 20, 400, 20, 400, 20, 400, 20)

MARKS = {
    **dict.fromkeys(("there", "moved", "known", "looked", "trainable"), True),
    **dict.fromkeys(("again", "untouched", "written", "seen_write"), False),
}
USUAL = {
    "optimizer": 0,
    "outcome": "applied",
    "rates": (1e-3,),
    "backwards": 1,
    "training": True,
    "scaled": False,
    "reduced": None,
    "clip": 1.0,
    "strangers": (),
    "replaced": (),
    "ties": (),
    "uses": {},
    "loss_seen": True,
}
"""Fields of every update, unless a test has others."""


def mask(names: tuple[str, ...], chosen: Iterable[str] | bool) -> np.ndarray:
    """Return the parameters of these modules, or names; all or none for a truth value."""
    if isinstance(chosen, bool):
        return np.full(len(names), chosen)
    return np.array([any(name == one or name.startswith(f"{one}.") for one in chosen) for name in names])


class Training:
    """Healthy training, whose updates are made one after the other.

    Args:
        facts: what holds at each update, unless the update has something else.
    """

    def __init__(self, names: tuple[str, ...] = NAMES, seed: int = 0, first: int = 0, **facts: Any) -> None:
        self.names, self.step, self._facts = names, first, facts
        self._random = np.random.default_rng(seed)

    def update(self, **facts: Any) -> JudgedUpdate:
        """Make the next update.

        Args:
            facts: fields of :class:`UpdateFacts`; those of :data:`MARKS` by module or name; ``norms`` by name, or one
                for all, times ``factor``; ``readable``, whether they could be read.
        """
        facts, step = self._facts | facts, self.step
        self.step += 1
        names = facts.pop("names", self.names)
        marks = {name: mask(names, facts.pop(name, usual)) for name, usual in MARKS.items()}
        rows = self._rows(names, facts.pop("norms", {}), marks["there"], facts.pop("factor", 1.0))
        rows = rows if facts.pop("readable", True) else rows[:0]
        looked = np.flatnonzero(marks["looked"])
        shown = {name: marks[name][looked] for name in ("moved", "written", "seen_write", "known")}
        elements = facts.pop("elements", None)
        values = Values(looked, **shown, elements=None if elements is None else np.array(elements))
        gradients = Gradients(marks["there"], marks["again"] & marks["there"], marks["untouched"], None)
        noise = {"loss": 2.0 + 0.05 * self._random.standard_normal(), "state_steps": step}
        sizes = SIZES if names == NAMES else ()
        usual = {**USUAL, **noise, "sizes": sizes, "parameter_dtypes": ("torch.float32",) * len(names)}
        made = {"names": names, "gradients": gradients, "values": values, "trainable": marks["trainable"], "step": step}
        return JudgedUpdate(UpdateFacts(**{**usual, **made, **facts}), rows)

    def _rows(self, names: tuple[str, ...], norms: float | Mapping[str, float], there: np.ndarray, factor: float):  # type: ignore[no-untyped-def]
        column = 0.1 * np.exp(0.1 * self._random.standard_normal(len(names))) * factor
        chosen = norms.items() if isinstance(norms, Mapping) else [("", norms)]
        for place, norm in chosen:
            column[mask(names, [place]) if place else slice(None)] = norm
        column[~there] = np.nan
        return np.stack([column, column], axis=1)

    def updates(self, number: int, **facts: Any) -> Iterator[JudgedUpdate]:
        """Make the next updates, all alike."""
        return (self.update(**facts) for _ in range(number))


def findings(name: str, *updates: Iterable[JudgedUpdate]) -> list[CheckFinding]:
    """Return what a check finds in updates."""
    check = CHECKS[name]()
    return [finding for part in updates for update in part for finding in check.judge(update)]


def steps(name: str, *updates: Iterable[JudgedUpdate]) -> list[int]:
    """Return the steps at which a check finds more than notes in updates."""
    return [finding.step for finding in findings(name, *updates) if finding.grade != "note"]
