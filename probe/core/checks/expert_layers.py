"""Checks of mixtures of experts, whose layers have modules ``experts.0``, ``experts.1`` and so on beside a router."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import listing
from probe.core.checks.streak import Streak
from probe.core.checks.update_facts import Array, UpdateFacts
from probe.core.language import message

Positions = npt.NDArray[np.int64]
ROUTER = re.compile(r"(?:^|\.)(?:router|gate|gating)(?:\.[^.]+)?$")
EXPERT = re.compile(r"^(?:(.*)\.)?experts\.(\d+)\.")
FEWEST = 4
"""Experts of a layer that is judged: of fewer, one may have most by chance."""
FIRST, UPDATES = 10, 20
"""Updates that are left out, as routers begin unevenly, and updates in a row in which one expert has nearly all."""
COLLAPSED = 0.9
"""Part of the squares of all experts' gradients that one has then. Of equal shares of the tokens, it is one by their
number; with balanced routers of four experts its median in twenty updates was 0.30 to 0.67, without any balancing up to
0.80 where others still had tokens, and 0.97 to 1.00 where one expert had nine tenths of these."""
ROUNDING, EARLY = 1e-4, 10
"""Part of the experts' gradients below which that of a router is rounding, and the updates in which it must be: where
the weights of experts are a constant, it was 1e-7 of theirs, and 0.01 to 10 in all others."""


class ExpertLayer(NamedTuple):
    """Layer with a router: the positions of their parameters."""

    name: str
    routers: Positions
    experts: Sequence[Positions]


def expert_layers(names: Sequence[str]) -> list[ExpertLayer]:
    """Return the layers with experts, by the names of parameters."""
    experts: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for position, name in enumerate(names):
        if match := EXPERT.match(name):
            experts[match[1] or ""][match[2]].append(position)
    layers = []
    for prefix, of in experts.items():
        begin = f"{prefix}." if prefix else ""
        rest = ((n, name[len(begin) :]) for n, name in enumerate(names) if name.startswith(begin))
        routers = [n for n, end in rest if end.count(".") < 3 and "experts" not in end and ROUTER.search(end)]
        layers.append(
            ExpertLayer(
                prefix, np.array(routers, np.int64), [np.array(positions, np.int64) for positions in of.values()]
            )
        )
    return layers


class OfExperts(FactCheck):
    """Base of these checks."""

    lacks = NotApplicable("no layer with experts and a router")

    def __init__(self) -> None:
        super().__init__()
        self._names: tuple[str, ...] | None = None
        self._layers: list[ExpertLayer] = []
        self._updates = 0
        self._streaks: list[Streak] = []

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, norms = update.facts, update.norms
        if facts.names is not self._names and facts.names != self._names:
            self._names, self._layers, self._updates = facts.names, expert_layers(facts.names), 0
            self._streaks = [Streak(self.updates()) for _ in self._layers]
        if not self._layers or facts.outcome == "skipped" or norms is None or not update.finite:
            return
        self._updates += 1
        squares = np.nan_to_num(norms) ** 2
        for layer, streak in zip(self._layers, self._streaks, strict=True):
            yield from self.of_layer(facts, squares, layer, streak)

    def updates(self) -> int:
        """Return the number of updates in a row that are reported."""
        raise NotImplementedError

    def of_layer(
        self, facts: UpdateFacts, squares: Array, layer: ExpertLayer, streak: Streak
    ) -> Iterator[CheckFinding]:
        """Return the findings with a layer.

        Args:
            squares: square of the norm of each gradient, 0 where there is none.
        """
        raise NotImplementedError


class RouterUntrained(OfExperts):
    """Report a router that has no gradient, or rounding beside those of its experts, in all of the first ten updates:
    the weights of the experts do not depend on it, as where they are detached, or the only one is divided by itself."""

    name = "router-untrained"
    title = "Router learns nothing"
    why = "Tokens go to the same experts as at the beginning, and a balancing loss alone moves the router."
    source = "https://github.com/jingyaogong/minimind/issues/858"
    sees = "norms of the gradients of routers and experts at the first updates"
    remedy = "Weigh an expert by its probability among all, which must not be detached or divided by itself."

    def updates(self) -> int:
        """Return the number of updates in a row that are reported."""
        return EARLY

    def of_layer(
        self, facts: UpdateFacts, squares: Array, layer: ExpertLayer, streak: Streak
    ) -> Iterator[CheckFinding]:
        """Return the findings with a layer."""
        routers = layer.routers[facts.trainable[layer.routers]]
        if not len(routers) or self._updates > EARLY:
            return
        self.judged = True
        elements = np.asarray(facts.sizes or (1,) * len(facts.names), np.float64)
        means = [squares[expert].sum() / elements[expert].sum() for expert in layer.experts if squares[expert].any()]
        mean = squares[routers].sum() / elements[routers].sum()
        small = bool(means) and mean < ROUNDING**2 * float(np.median(means))
        if streak.completes(small, facts.step):
            where = tuple(facts.names[n] for n in routers)
            text = message(
                "{places} has no gradient, or rounding beside those of its experts, in the first {updates} updates",
                places=listing(where),
                updates=EARLY,
            )
            ratio = float(np.sqrt(mean / np.median(means)))
            yield self.finding(facts, streak.since, text, {"ratio": ratio, "updates": EARLY}, where)


class RouterCollapse(OfExperts):
    """Report a layer of four experts or more in which the same one has nine tenths of the squares of their gradients in
    twenty updates in a row, after the first ten: the router sends it nearly all tokens."""

    name = "router-collapse"
    title = "One expert has all"
    why = "The other experts learn nothing, and the model has the size of a small one."
    source = "https://github.com/pytorch/torchtitan/issues/1246"
    sees = "norms of the gradients of all experts at each update"
    remedy = "Look whether the balancing loss has a gradient and a weight, and whether it is that of all layers."

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, int] = {}
        """Expert with the largest gradient at the last update, by layer."""

    def updates(self) -> int:
        """Return the number of updates in a row that are reported."""
        return UPDATES

    def of_layer(
        self, facts: UpdateFacts, squares: Array, layer: ExpertLayer, streak: Streak
    ) -> Iterator[CheckFinding]:
        """Return the findings with a layer."""
        routers = layer.routers[facts.trainable[layer.routers]]
        trainable = all(facts.trainable[expert].any() for expert in layer.experts)
        if self._updates <= FIRST or len(layer.experts) < FEWEST or not len(routers) or not trainable:
            return
        self.judged = True
        sums = np.array([squares[expert].sum() for expert in layer.experts])
        top, total = int(sums.argmax()), float(sums.sum())
        if self._last.get(layer.name) != top:
            self._last[layer.name] = top
            streak.count = 0
        if streak.completes(total > 0 and sums[top] >= COLLAPSED * total, facts.step):
            text = message(
                "expert {number} of {place} has {share:.0f} % of the gradients of its {experts} experts, and at least "
                "{least:.0f} % in {updates} updates in a row: the router sends it nearly all tokens",
                number=top,
                place=layer.name,
                share=100 * sums[top] / total,
                experts=len(sums),
                least=100 * COLLAPSED,
                updates=UPDATES,
            )
            where = tuple(facts.names[n] for n in routers)
            yield self.finding(facts, streak.since, text, {"share": float(sums[top] / total), "expert": top}, where)
