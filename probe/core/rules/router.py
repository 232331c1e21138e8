"""Rule about routers of mixtures of experts that have collapsed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import Field as Argument

from probe.core.fields import Integer, Number, Section
from probe.core.moments import numels
from probe.core.records import Batch, Finding
from probe.core.rules.about import About
from probe.core.rules.history import Field, History, Indices
from probe.core.rules.reporter import Reporter

Mask = npt.NDArray[np.bool_]

COLUMNS = ("load_max", "load_cv", "load_min", "load_share")
UNEVEN = 0.8
"""Part of the largest possible deviation of the loads, which that of a router for one expert a token exceeds wherever
one expert has nine tokens of ten: of several experts a token has, one may be the same for all."""
ENOUGH = 16.0
"""Tokens of an expert, in the mean, below which one may have none by chance."""


class RouterArgs(Section):
    """Routers that have collapsed. Needs l2_targets.moe_router_logit_hook."""

    load: Number = Argument(0.9, gt=0, lt=1)
    """Load of the busiest expert, as a share of the largest one possible, above which a router has collapsed."""
    steps: Integer = Argument(20, ge=1, le=10_000)
    """Number of samples in a row in which it must be so, or an expert must be without a token."""
    warm_up: Integer = Argument(10, ge=0, le=10_000)
    """Number of first samples of a router that are left out: one that has just been initialised is often uneven."""


class AnomalyRouter(About):
    """Report a router whose busiest expert has more than ``args.load`` of the largest load possible, all tokens, in
    ``args.steps`` samples in a row; and one of which some expert is without any token in as many. Once each, until it
    has recovered.

    Where a token has several experts, the loads must also be about as uneven as they can be: one expert that all tokens
    share is no collapse. An expert without a token counts where the mean of all is 16 tokens or more. The first
    ``args.warm_up`` samples are left out. A router that favours an expert trains it more, so that it is favoured still
    more (Shazeer et al., "Outrageously Large Neural Networks", https://arxiv.org/abs/1701.06538).

    The load is that of the recorded logits: leave the rule out where a bias that balances the experts is added later.
    """

    Args = RouterArgs
    title = "Collapsed router"
    why = "The experts without tokens are no longer trained, and the one with all of them holds up the others."
    source = "https://arxiv.org/abs/1701.06538"
    sees = "load of the experts of each router that l2_targets.moe_router_logit_hook names"
    kind = "router"
    finds = "finds routers that send nearly all tokens to one expert, or none to another"
    needs = (
        (
            lambda s: s.recording_l2_features and bool(s.l2_targets.moe_router_logit_hook),
            "l2_targets.moe_router_logit_hook",
        ),
    )
    by_default = True

    def __init__(self, args: RouterArgs, rank: int, ops: Sequence[str]) -> None:  # noqa: ARG002
        self._args = args
        fields = {"seen": Field(0, np.int64), "busy": Field(0, np.int64), "idle": Field(0, np.int64)}
        self.history = History(["load_max"], fields)
        self._reporter = Reporter("AnomalyRouter", rank, "limit")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        if batch.signal != "moe_router_logit_hook" or not {*COLUMNS} <= {*batch.columns}:
            return
        rows = self.history.rows(batch)
        at = np.flatnonzero((rows >= 0) & np.isfinite(batch.columns["load_max"]))
        slots = rows[at]
        most, deviation, least, share = (batch.columns[name][at] for name in COLUMNS)
        shapes = [batch.shapes[row] for row in at.tolist()]
        largest = most / share
        """Load of an expert to which all tokens go: experts / k."""
        uneven = deviation > UNEVEN * np.sqrt(np.maximum(largest - 1, 0))
        tokens = numels(shapes) / np.array([max(shape[-1], 1) for shape in shapes] or [1])[: len(shapes)]
        seen = self.history.of("seen")
        judged = seen[slots] >= self._args.warm_up
        seen[slots] += 1
        busy = self._lasting("busy", slots, judged & (share > self._args.load) & (largest > 1) & uneven)
        idle = self._lasting("idle", slots, judged & (least == 0) & (tokens >= ENOUGH * largest)) & ~busy
        yield from self._reporter.findings(batch, "load_max", at[busy], most[busy], self._args.load * largest[busy])
        yield from self._reporter.findings(batch, "load_min", at[idle], least[idle], np.full(int(idle.sum()), np.nan))

    def _lasting(self, name: str, slots: Indices, bad: Mask) -> Mask:
        """Count the bad samples in a row; return the mask of the rows that have just reached ``steps`` of them."""
        streak = self.history.of(name)
        streak[slots] = np.where(bad, streak[slots] + 1, 0)
        lasting: Mask = streak[slots] == self._args.steps
        return lasting
