"""Tensors inside what modules take and give."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from probe.core.backend.pytree import DEPTH, children, kind, leaves, numbered


class Tensor:
    """Anything that is no container."""


A, B, C, D = Tensor(), Tensor(), Tensor(), Tensor()
Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Output:
    first: Any
    second: Any = None


class Named(OrderedDict):  # type: ignore[type-arg]
    """As model outputs of transformers are: a mapping that is also more."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (A, [A]),
        (None, [None]),
        ((A, B), [A, B]),
        ([A, None, 3], [A, None, 3]),
        ({"x": A, "y": [B, (C,)]}, [A, B, C]),
        (Pair(A, B), [A, B]),
        (Output(A), [A, None]),
        (Named(x=A, y=(B, C)), [A, B, C]),
        ((Output(A, {"k": [B]}), C), [A, B, C]),
        ((), []),
        ("text", ["text"]),
        (Output, [Output]),
    ],
)
def test_everything_in_order(value: Any, expected: list[Any]) -> None:
    """Containers of every kind are looked into; what is no tensor keeps its place."""
    assert list(leaves(value)) == expected


def test_nesting_without_end_is_not_followed() -> None:
    """Lists that hold each other end at the depth that is looked into."""
    endless: list[Any] = [A]
    endless.append([B, endless])
    assert sum(leaf in (A, B) for leaf in leaves(endless)) == DEPTH


def test_kinds_and_elements() -> None:
    """Selectors know tuples, lists, dicts (dataclasses among them) and tensors."""
    values = {"tuple": (A, B), "list": [A, B], "dict": {"x": A, "y": B}, "tensor": A}
    assert {name: kind(value) for name, value in values.items()} == {name: name for name in values}
    assert kind(Pair(A, B)) == "tuple"
    assert kind(Output(A)) == kind(Named(x=A)) == "dict"
    assert children(Output(A, B)) == children(Pair(A, B)) == [A, B]
    assert children(A) == [A]


def test_parts_are_numbered_unless_alone() -> None:
    """One value is ``input``; of several the tensors are numbered by their place."""
    is_tensor = lambda value: isinstance(value, Tensor)  # noqa: E731
    assert numbered([A], is_tensor, "input") == [("input", A)]
    assert numbered([A, B], is_tensor, "input") == [("input_0", A), ("input_1", B)]
    assert numbered([None, A, 3, B], is_tensor, "output") == [("output_1", A), ("output_3", B)]
    assert numbered([None], is_tensor, "output") == numbered([], is_tensor, "output") == []
