"""What modules of attention are called with, and what they and routers say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from probe.core.backend.protocols import Tensor
from probe.core.errors import Misfit

QUERY = ("query", "query_layer", "query_states", "q")
KEY = ("key", "key_layer", "key_states", "k")
VALUE = ("value", "value_layer", "value_states", "v")
MASK = ("attention_mask", "attn_mask", "atten_mask", "mask")
CAUSAL = ("is_causal", "causal")
MASK_TYPE = "attn_mask_type"
"""How Megatron says it: an enumeration whose causal members have that in their names."""
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "expert_num")
TOP_K = ("top_k", "topk", "num_experts_per_tok", "num_experts_chosen", "k")
"""What routers call the number of experts, and that of those which a token is sent to."""


class Given(NamedTuple):
    """The tensors of one call."""

    query: Tensor
    key: Tensor
    mask: Tensor | None


def of_call(args: Sequence[Any], kwargs: Mapping[str, Any], is_tensor: Callable[[object], bool]) -> Given:
    """By their names where they have any, else in the order query, key, value, mask.

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
        came = [type(value).__name__ for value in (*args, *kwargs.values())]
        raise Misfit(f"expected query and key first, or by keywords such as {QUERY[0]} and {KEY[0]}, got {came}")
    return Given(query, key, mask if is_tensor(mask) else None)


def causal(args: Sequence[Any], kwargs: Mapping[str, Any], member: Callable[[str], object]) -> bool | None:
    """Whether the call, or else the module, says that no query sees a later key; None if neither says anything."""
    for name in CAUSAL:
        if isinstance(kwargs.get(name), bool):
            return bool(kwargs[name])
    kinds = [kwargs.get(MASK_TYPE), *filter(_is_mask_type, args), member(MASK_TYPE)]
    said = next((str(getattr(kind, "name", kind)) for kind in kinds if kind is not None), None)
    if said is not None:
        return "causal" in said.lower()
    found = [value for name in CAUSAL if isinstance(value := member(name), bool)]
    return any(found) if found else None


def _is_mask_type(value: object) -> bool:
    """Whether a positional argument looks like an ``AttnMaskType``; other strings mean other things."""
    return "MaskType" in type(value).__name__ or (isinstance(value, str) and "causal" in value.lower())


def integer(names: Sequence[str], member: Callable[[str], object]) -> int | None:
    """The first of ``names`` that is a positive integer of the module, if any is."""
    found = (member(name) for name in names)
    return next((value for value in found if type(value) is int and value > 0), None)
