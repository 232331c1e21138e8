"""Tensors inside what modules take and give."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from probe.core.backend.pytree import BEYOND, DEPTH, MOST, children, keys, kind, leaves, numbered


class Tensor:
    """Anything that is no container."""


A, B, C, D = Tensor(), Tensor(), Tensor(), Tensor()
Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Output:
    first: Any
    second: Any = None


@dataclass
class Named(OrderedDict):  # type: ignore[type-arg]
    """As model outputs of transformers are: a mapping that is also more."""

    x: Any = None
    y: Any = None

    def __post_init__(self) -> None:
        for name in ("x", "y"):
            self[name] = getattr(self, name)


@dataclass
class Slots:
    """Fields without a dict, of which one has not been set."""

    __slots__ = ("first", "second")
    first: Any
    second: Any


def slots() -> Slots:
    value = object.__new__(Slots)
    value.first = A
    return value


class Watchful:
    """Something whose every method raises."""

    def _raise(self, *_: Any) -> Any:
        raise AssertionError("the user's code was called")

    __iter__ = __len__ = __getitem__ = values = items = keys = __contains__ = __bool__ = __getattr__ = _raise


class LazyDict(Watchful, dict):  # type: ignore[type-arg]
    pass


class LazyList(Watchful, list):  # type: ignore[type-arg]
    pass


class LazyMapping(Watchful, UserDict):  # type: ignore[type-arg]
    def __init__(self) -> None:
        pass


class WatchfulPair(Watchful, namedtuple("Two", ["left", "right"])):
    __slots__ = ()


@dataclass
class WatchfulOutput(Watchful):
    first: Any


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
        (OrderedDict(x=A, y=B), [A, B]),
        (deque([A, B]), [A, B]),
        (slots(), [A, None]),
        (WatchfulPair(A, B), [A, B]),
        (WatchfulOutput(A), [A]),
        ((Output(A, {"k": [B]}), C), [A, B, C]),
        ((), []),
        ("text", ["text"]),
        (Output, [Output]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_everything_in_order(value: Any, expected: list[Any]) -> None:
    """Containers of every kind are looked into; what is no tensor keeps its place."""
    assert [id(leaf) for leaf in leaves(value)] == [id(leaf) for leaf in expected]


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


@pytest.mark.parametrize("value", [LazyDict(x=A), LazyList([A]), LazyMapping()], ids=lambda value: type(value).__name__)
def test_containers_of_the_users_own_are_left_alone(value: Any) -> None:
    """Nothing of such a container is called; its class is named, and what lies beside it is found."""
    left: list[str] = []
    found = [*leaves((A, value, B), left.append)]
    assert [id(leaf) for leaf in found] == [id(A), id(value), id(B)]
    assert left == [f"{__name__}.{type(value).__name__}"]
    assert (kind(value), keys(value), len(children(value))) == ("tensor", [], 1)


@pytest.mark.parametrize("made", [lambda n: [A, *range(n)], lambda n: (A, *range(n)), lambda n: [[] for _ in range(n)]])
def test_long_containers_are_searched_to_a_bound(made: Callable[[int], Any]) -> None:
    """Of a hundred thousand elements some thousands are looked at, whatever they are; that is reported."""
    form = made(10**5)
    asked: list[Any] = []
    left: list[str] = []

    def is_tensor(value: Any) -> bool:
        asked.append(value)
        return isinstance(value, Tensor)

    parts = numbered(leaves(form, left.append), is_tensor, "output")
    assert parts == ([("output_0", A)] if form[0] is A else [])
    assert len(asked) <= MOST
    assert left == [BEYOND]
    assert children(form) is form


def test_keys_of_the_users_own_are_named_by_their_class() -> None:
    """A key is turned into text only if that runs no code of the user's."""

    class Key:
        def __repr__(self) -> str:
            raise AssertionError("the user's code was called")

    assert keys({"a": 1, 2: 3, None: 4, Key(): 5}) == ["a", "2", "None", "Key"]
