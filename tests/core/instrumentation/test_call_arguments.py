"""Arguments of calls of attention, and attributes of routers."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from probe.core.instrumentation.signals.features.attention import causal
from probe.core.instrumentation.signals.features.router import TOP_K, integer


class AttnMaskType(Enum):
    """As Megatron has it."""

    padding = 1
    causal = 2
    no_mask = 3


def said(*args: Any, members: dict[str, Any] | None = None, **kwargs: Any) -> bool | None:
    return causal(args, kwargs, (members or {}).get)


@pytest.mark.parametrize("name", ["is_causal", "causal"])
@pytest.mark.parametrize("value", [True, False])
def test_the_call_says_it_before_the_module(name: str, value: bool) -> None:
    """Either name counts; an attribute of the module counts if the call has no argument."""
    assert said(**{name: value}) is value
    assert said(members={name: value}) is value
    assert said(**{name: value}, members={name: not value}) is value


def test_types_of_masks() -> None:
    """An enumeration or a string, by name, in order or as an attribute."""
    assert said(attn_mask_type=AttnMaskType.causal) is True
    assert said(attn_mask_type="padding_causal") is True
    assert said(attn_mask_type=AttnMaskType.no_mask, members={"attn_mask_type": AttnMaskType.causal}) is False
    assert said(None, None, None, None, AttnMaskType.causal) is True
    assert said(None, "causal_bottom_right") is True
    assert said(members={"attn_mask_type": "causal"}) is True
    assert said(members={"attn_mask_type": AttnMaskType.padding}) is False


def test_other_strings_say_other_things() -> None:
    """The order of dimensions among the arguments does not hide the module's attribute."""
    assert said(None, None, None, None, "sbhd", members={"attn_mask_type": "causal"}) is True
    assert said(None, None, None, None, "sbhd") is None


def test_nobody_says_anything() -> None:
    """The result is None, which is not the same as false."""
    assert said(None, 3, is_causal=None, members={"causal": None}) is None


def test_flags_are_no_numbers_of_experts() -> None:
    """``topk=True`` is not one expert."""
    assert integer(TOP_K, {"top_k": True, "topk": 2}.get) == 2
    assert integer(TOP_K, {"top_k": True, "k": 0}.get) is None
