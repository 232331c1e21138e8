"""``moe_router_weight_hook`` and ``moe_router_logit_hook``: similarity and load of the experts of a mixture.

``router_weight_similarity`` is the mean cosine between the router's weights for two different experts, over all pairs.
``per_token_expert_entropy`` is the entropy of the softmax of a token's logits, in nats, as the mean over tokens.

The load of an expert is the number of tokens that have it among their k largest logits. ``load_max`` is the largest
load divided by the mean load, and ``load_cv`` the standard deviation of loads divided by the mean, the coefficient of
variation whose square Shazeer et al., Outrageously Large Neural Networks (2017), use as a loss. If all experts have the
same load, these are 1 and 0. ``load_min`` is the smallest load divided by the mean, 0 if an expert has no token, and
``load_share`` the part of all tokens that the busiest expert has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from probe.core.backend.protocols import Arrays, Block, Numbers
from probe.core.instrumentation.signals.features.attention import HIDDEN, entropy_means, entropy_sums
from probe.core.naming import COLUMNS
from probe.core.records import Array

EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "expert_num")
TOP_K = ("top_k", "topk", "num_experts_per_tok", "num_experts_chosen", "k")
"""Attributes of routers for the number of experts, and for the number of experts of a token."""
ENTROPY, *LOADS = COLUMNS["moe_router_logit_hook"]
"""Columns of the entropy, and of the load of the experts."""


def integer(names: Sequence[str], member: Callable[[str], object]) -> int | None:
    """Return the first member of the module among ``names`` that is a positive integer, or None."""
    values = (member(name) for name in names)
    return next((value for value in values if type(value) is int and value > 0), None)


def similarity(ops: Arrays, weight: Numbers) -> Block:
    """Return two rows for a weight with a row for each expert: the squared length of the sum of all rows, each divided
    by its own length, and the number of rows that are not zero."""
    weight = ops.wide(weight)
    largest = ops.largest(ops.magnitude(weight))
    weight = weight / ops.where(largest == 0, 1.0, largest)
    length = ops.root((weight * weight).sum(-1))
    nothing = length == 0
    units = weight / ops.where(nothing, 1.0, length).reshape(largest.shape)
    total = units.sum(0)
    return ops.column([(total * total).sum(-1), ops.where(nothing, 0.0, length * 0 + 1).sum(-1)])


def finish_similarity(rows: Array, experts: int) -> Mapping[str, float]:
    """Return the mean over pairs. An expert with zero weight has similarity 0; for a single expert, return NaN."""
    pairs = experts * (experts - 1)
    return {"router_weight_similarity": float(rows[0] - rows[1]) / pairs if pairs else math.nan}


def begin(ops: Arrays, logits: Numbers, top_k: int | None) -> Block:
    """Return the load of each expert, if ``top_k`` is known; then the sums of
    :func:`entropy_sums`, block by block of tokens.

    Args:
        logits: tokens x experts. Logits masked by -inf are never chosen.
    """
    logits = ops.wide(logits)
    tokens, experts = logits.shape
    rows = max(1, ops.block(logits) // experts)
    sums = [total for first in range(0, tokens, rows) for total in entropy_sums(ops, logits[first : first + rows])]
    load = [] if top_k is None else [ops.counts(logits, min(top_k, experts), HIDDEN)]
    return ops.column([*load, *sums])


def finish(rows: Array, experts: int) -> Mapping[str, float] | None:
    """Return the columns, made from the rows of :func:`begin` with the load of so many experts; those of the load are
    NaN if it is not known. Return None if no expert can receive any token."""
    load, sums = rows[:experts], rows[experts:]
    spreading = entropy_means(sums)
    if spreading is None:
        return None
    tokens = float(sums.reshape(-1, 3)[:, 2].sum())
    return {ENTROPY: spreading[0]} | _loads(load, tokens)


def _loads(load: Array, tokens: float) -> dict[str, float]:
    """Return the columns of the load of the experts, NaN where it is not known."""
    mean = float(load.mean()) if len(load) else 0.0
    if mean <= 0:
        return dict.fromkeys(LOADS, math.nan)
    most, least = float(load.max()), float(load.min())
    return dict(zip(LOADS, (most / mean, float(load.std()) / mean, least / mean, most / tokens), strict=True))
