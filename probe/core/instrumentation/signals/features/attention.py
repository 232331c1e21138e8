"""``attention_hook``: how spread out attention is.

Of the weights ``p = softmax(Q K^T / sqrt(d) + mask)`` of each query over the keys, ``entropy`` is ``-sum p log p`` in
nats and ``softmax_max`` the largest weight; both are means over the queries that may attend to something. Zhai et al.,
Stabilizing Transformer Training by Preventing Attention Entropy Collapse (2023), watch the first.

The weights are computed in blocks of queries, in float32 at least, so that memory grows with the number of keys and not
with its product with that of queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from probe.core.backend.protocols import Arrays, Block, Numbers
from probe.core.errors import Misfit
from probe.core.instrumentation.signals.features import softmax_entropy
from probe.core.records import Array

COLUMNS = ("entropy", "softmax_max")
AXES = {"s,b,h,d": (1, 2, 0, 3), "b,s,h,d": (0, 2, 1, 3), "b,h,s,d": (0, 1, 2, 3)}
"""Of each order of dimensions, where in it the batch, head, sequence and the dimension within a head stand."""
HIDING = -65504.0
"""The lowest number of float16: a mask that adds this or less hides."""


class AttentionCall(NamedTuple):
    """What one call of attention is given."""

    query: Numbers
    key: Numbers
    mask: Numbers | None
    """Added to the scores; or, of flags and integers, true where a key is hidden, unless ``attends``."""
    causal: bool
    """Whether a query sees no later key; the last query sees the last key."""
    attends: bool = False
    """Whether flags of the mask are true where a key is not hidden."""


def begin(ops: Arrays, call: AttentionCall, order: str, everything: bool) -> Block:
    """Three rows for each block: the sums of the entropy and of the largest weight over its queries, and their number.

    Args:
        order: of the dimensions of query and key.
        everything: whether all heads of all batches are taken; else the first of the first.

    Raises:
        Misfit: if these are no query and key in that order, or the mask is none for them.
    """
    query, key, mask = _fitted(ops, call, order)
    shared = query.shape[1] // key.shape[1]
    found: list[Numbers] = []
    for batch in range(query.shape[0] if everything else 1):
        for head in range(key.shape[1] if everything else 1):
            heads = slice(head * shared, (head + 1) * shared if everything else 1)
            own = None if mask is None else mask[_at(mask, 0, batch), _at(mask, 1, heads)]
            part = call._replace(query=query[batch, heads], key=ops.wide(key[batch, head]), mask=own)
            found.append(_sums(ops, part))
    return ops.column(found)


def finish(rows: Array) -> Mapping[str, float] | None:
    """The means; None where no query may attend to anything."""
    found = softmax_entropy.means(rows)
    return None if found is None else dict(zip(COLUMNS, found, strict=True))


def _fitted(ops: Arrays, call: AttentionCall, order: str) -> tuple[Numbers, Numbers, Numbers | None]:
    """Query, key and mask by batch, head, sequence and the dimension within a head."""
    shapes = tuple(call.query.shape), tuple(call.key.shape)
    if any(len(shape) != len(AXES[order]) or 0 in shape for shape in shapes):
        raise Misfit(f"expected query and key of {len(AXES[order])} dimensions ({order}), got {shapes[0]}, {shapes[1]}")
    query, key = (ops.ordered(x, AXES[order]) for x in (call.query, call.key))
    batches, heads, length, depth = query.shape
    if (key.shape[0], key.shape[3]) != (batches, depth) or heads % key.shape[1]:
        raise Misfit(f"expected query and key whose dimensions ({order}) agree, got {shapes[0]}, {shapes[1]}")
    if not (ops.is_floating(query) and ops.is_floating(key)):
        raise Misfit(f"expected query and key of floating numbers, got {call.query.dtype} and {call.key.dtype}")
    if call.mask is None:
        return query, key, None
    shape = _of_mask(tuple(call.mask.shape), (batches, heads, length, key.shape[2]))
    return query, key, call.mask.reshape(shape)


def _of_mask(shape: tuple[int, ...], scores: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a mask with all four dimensions.

    Raises:
        Misfit: if it is no mask for the scores, or if its first dimension may be the batch as well as another one.
    """
    full = (1,) * (len(scores) - len(shape)) + shape
    if len(full) != len(scores) or any(has not in (1, of) for has, of in zip(full, scores, strict=True)):
        raise Misfit(f"expected a mask for scores of shape {scores}, got one of shape {shape}")
    if 1 < len(shape) < len(scores) and shape[0] == scores[0] > 1:
        raise Misfit(
            f"expected a mask of four dimensions, since one of shape {shape} may begin with the {scores[0]} samples as"
            f" well as with as many {'queries' if len(shape) == 2 else 'heads'}"
        )
    return full


def _at(mask: Numbers, axis: int, wanted: Any) -> Any:
    """``wanted`` along an axis, or all there is where the mask is the same for all."""
    if mask.shape[axis] > 1:
        return wanted
    return slice(None) if isinstance(wanted, slice) else 0


def _sums(ops: Arrays, call: AttentionCall) -> Numbers:
    """Of the heads that share a key: ``heads x queries x depth``, ``keys x depth``, ``heads x queries x keys``."""
    heads, queries, _ = call.query.shape
    keys = call.key.shape[0]
    rows = max(1, ops.block(call.key) // (keys * heads))
    starts = range(0, queries, rows)
    found = ops.zeros((len(starts), 3), call.key)  # scalars that stay would lie between freed blocks, and keep them
    for block, first in enumerate(starts):
        last = min(first + rows, queries)
        seen = min(keys, last + keys - queries) if call.causal else keys
        if seen > 0:
            for place, total in enumerate(softmax_entropy.sums(ops, _scores(ops, call, first, last, seen))):
                found[block, place] = total
    return found


def _scores(ops: Arrays, call: AttentionCall, first: int, last: int, seen: int) -> Numbers:
    """Of some queries and the first keys, -inf where a key is hidden."""
    query = ops.wide(call.query[:, first:last])
    scores = (query / math.sqrt(query.shape[2])) @ ops.turned(call.key[:seen])
    if (mask := call.mask) is not None:
        mask = mask[:, _at(mask, 1, slice(first, last)), _at(mask, 2, slice(0, seen))]
        if ops.is_floating(mask):
            scores = scores + ops.where(mask <= HIDING, -math.inf, ops.wide(mask))
        else:
            scores = ops.where((mask == 0) if call.attends else (mask != 0), -math.inf, scores)
    if call.causal:
        latest = ops.positions(last, scores)[first:] + (call.key.shape[0] - call.query.shape[1])
        scores = ops.where(ops.positions(seen, scores)[None] > latest[:, None], -math.inf, scores)
    return scores
