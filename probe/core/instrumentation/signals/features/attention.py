"""``attention_hook``: the entropy of attention.

Of the weights ``p = softmax(Q K^T / sqrt(d) + mask)`` of each query over the keys, ``entropy`` is ``-sum p log p`` in
nats and ``softmax_max`` the largest weight; both are means over the queries that may attend to some key. Zhai et al.,
Stabilizing Transformer Training by Preventing Attention Entropy Collapse (2023), use the first.

The weights are computed in blocks of queries, in float32 at least, so that memory grows with the number of keys, not
with the number of keys times the number of queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from probe.core.backend.protocols import Arrays, Block, Numbers, Tensor
from probe.core.faults import Misfit
from probe.core.naming import COLUMNS
from probe.core.records import Array

AXES = {"s,b,h,d": (1, 2, 0, 3), "b,s,h,d": (0, 2, 1, 3), "b,h,s,d": (0, 1, 2, 3)}
"""Positions of the batch, head, sequence and the dimension within a head, by order of dimensions."""
HIDING = -65504.0
"""The lowest number of float16: a mask that adds this or less hides a key."""

QUERY = ("query", "query_layer", "query_states", "q")
KEY = ("key", "key_layer", "key_states", "k")
VALUE = ("value", "value_layer", "value_states", "v")
MASK = ("attention_mask", "attn_mask", "atten_mask", "mask")
CAUSAL = ("is_causal", "causal")
MASK_TYPE = "attn_mask_type"
"""Megatron's name for the kind of mask: an enumeration whose causal members have "causal" in their names."""
HIDDEN = -1e30
"""Bound below which scores are hidden: by -inf, or by the lowest number of float32."""
LEAST = -1e4
"""The floor of scores below the largest: the logarithm of a weight of zero."""


class AttentionTensors(NamedTuple):
    """The tensors that one call of a module receives."""

    query: Tensor
    key: Tensor
    mask: Tensor | None


def of_call(args: Sequence[Any], kwargs: Mapping[str, Any], is_tensor: Callable[[object], bool]) -> AttentionTensors:
    """Return the tensors of a call: by their names if they have any, else in the order query, key, value, mask.

    Raises:
        Misfit: if there is no query or no key.
    """
    positional = list(args)

    def take(names: Sequence[str]) -> Any:
        for name in names:
            if name in kwargs:
                return kwargs[name]
        return positional.pop(0) if positional else None

    query, key, _, mask = (take(names) for names in (QUERY, KEY, VALUE, MASK))
    if not is_tensor(query) or not is_tensor(key):
        types = [type(value).__name__ for value in (*args, *kwargs.values())]
        raise Misfit(f"expected query and key first, or by keywords such as {QUERY[0]} and {KEY[0]}, got {types}")
    return AttentionTensors(query, key, mask if is_tensor(mask) else None)


def causal(args: Sequence[Any], kwargs: Mapping[str, Any], member: Callable[[str], object]) -> bool | None:
    """True if the call or, if it has no mark, the module is marked as causal, so that no query sees a later key; None
    if neither has such a mark."""
    for name in CAUSAL:
        if isinstance(kwargs.get(name), bool):
            return bool(kwargs[name])
    kinds = [kwargs.get(MASK_TYPE), *filter(_is_mask_type, args), member(MASK_TYPE)]
    mark = next((str(getattr(kind, "name", kind)) for kind in kinds if kind is not None), None)
    if mark is not None:
        return "causal" in mark.lower()
    values = [value for name in CAUSAL if isinstance(value := member(name), bool)]
    return any(values) if values else None


def _is_mask_type(value: object) -> bool:
    """True if a positional argument looks like an ``AttnMaskType``; other strings mean other things."""
    return "MaskType" in type(value).__name__ or (isinstance(value, str) and "causal" in value.lower())


class AttentionCall(NamedTuple):
    """The arrays of one call of attention, and the keys hidden from its queries."""

    query: Numbers
    key: Numbers
    mask: Numbers | None
    """Array added to the scores; if it has flags or integers, true where a key is hidden, unless ``attends``."""
    causal: bool
    """True if a query sees no later key; the last query sees the last key."""
    attends: bool = False
    """True if the flags of the mask are true where a key is not hidden."""


def begin(ops: Arrays, call: AttentionCall, order: str, everything: bool) -> Block:
    """Return three rows for each block: the sums of the entropy and of the largest weight over its queries, and their
    number.

    Args:
        order: of the dimensions of query and key.
        everything: whether all heads of all batches are read; else only the first of the first.

    Raises:
        Misfit: if query and key do not have dimensions in that order, or the mask does not fit them.
    """
    query, key, mask = _fitted(ops, call, order)
    shared = query.shape[1] // key.shape[1]
    sums: list[Numbers] = []
    for batch in range(query.shape[0] if everything else 1):
        for head in range(key.shape[1] if everything else 1):
            heads = slice(head * shared, (head + 1) * shared if everything else 1)
            own_mask = None if mask is None else mask[_at(mask, 0, batch), _at(mask, 1, heads)]
            part = call._replace(query=query[batch, heads], key=ops.wide(key[batch, head]), mask=own_mask)
            sums.append(_sums(ops, part))
    return ops.column(sums)


def finish(rows: Array) -> Mapping[str, float] | None:
    """Return the means; None if no query may attend to any key."""
    means = entropy_means(rows)
    return None if means is None else dict(zip(COLUMNS["attention_hook"], means, strict=True))


def _fitted(ops: Arrays, call: AttentionCall, order: str) -> tuple[Numbers, Numbers, Numbers | None]:
    """Return query, key and mask in the order batch, head, sequence, dimension within a head."""
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
    """Return the shape of a mask with all four dimensions.

    Raises:
        Misfit: if the mask does not fit the scores, or if its first dimension may be the batch as well as another one.
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


def _at(mask: Numbers, axis: int, index: Any) -> Any:
    """Return the index ``index`` along an axis, or that of the only element if the mask is the same for all."""
    if mask.shape[axis] > 1:
        return index
    return slice(None) if isinstance(index, slice) else 0


def _sums(ops: Arrays, call: AttentionCall) -> Numbers:
    """Return the sums over the heads that share a key. Shapes: query ``heads x queries x depth``, key ``keys x depth``,
    mask ``heads x queries x keys``."""
    heads, queries, _ = call.query.shape
    keys = call.key.shape[0]
    rows = max(1, ops.block(call.key) // (keys * heads))
    starts = range(0, queries, rows)
    sums = ops.zeros((len(starts), 3), call.key)  # separate scalars would lie between freed blocks, and keep them
    for block, first in enumerate(starts):
        last = min(first + rows, queries)
        seen = min(keys, last + keys - queries) if call.causal else keys
        if seen > 0:
            for place, total in enumerate(entropy_sums(ops, _scores(ops, call, first, last, seen))):
                sums[block, place] = total
    return sums


def _scores(ops: Arrays, call: AttentionCall, first: int, last: int, seen: int) -> Numbers:
    """Return the scores of some queries and the first ``seen`` keys, -inf where a key is hidden."""
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


def entropy_means(rows: Array) -> tuple[float, float] | None:
    """Return the means of the entropy and of the largest weight, from the sums of all blocks; None if all is hidden."""
    entropy, largest, number = (float(total) for total in rows.reshape(-1, 3).sum(0))
    return (entropy / number, largest / number) if number != 0 else None


def entropy_sums(ops: Arrays, scores: Numbers) -> list[Numbers]:
    """Return the sums of the entropy of a softmax in nats and of its largest weight, over the rows of ``scores`` that
    are not entirely hidden, and the number of these rows.

    ``H = log z - sum p t`` with ``t`` the scores less the largest, ``z = sum exp t`` and ``p = exp(t) / z``.
    """
    largest = ops.largest(scores)
    hidden = largest < HIDDEN
    scores = scores - ops.where(hidden, 0.0, largest)
    scores = ops.where(scores < LEAST, LEAST, scores)
    weights = ops.exp(scores)
    total = weights.sum(-1)
    hidden = hidden.reshape(total.shape)
    total = ops.where(hidden, 1.0, total)
    scores = scores * weights  # a new name would hold one block more
    entropy = ops.where(hidden, 0.0, ops.log(total) - scores.sum(-1) / total)
    most = ops.where(hidden, 0.0, 1 / total)
    number = ops.where(hidden, 0.0, most * 0 + 1)
    return [numbers.reshape(-1).sum(-1) for numbers in (entropy, most, number)]
