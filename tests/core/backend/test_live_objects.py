"""Objects of a kind, while other threads fill tuples."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from probe.core.backend.live_objects import instances


class Base:
    pass


class Slotted(Base):
    __slots__ = ("value",)


class Posing:
    """An object that says that it is of another class, by code that must not run."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise AssertionError("code of the program ran")


def references(to: Any, during: Callable[[], Any]) -> set[int]:
    """Return the numbers of references to ``to`` at every point at which another thread could run."""
    seen = set[int]()

    def trace(frame: FrameType, *_: Any) -> Any:
        frame.f_trace_opcodes = True
        seen.add(sys.getrefcount(to))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        during()
    finally:
        sys.settrace(before)
    return seen


def test_instances_are_those_of_the_kind_and_of_classes_derived_from_it() -> None:
    kept = [Base(), Slotted(), Posing(), Base]
    assert {id(thing) for thing in instances(Base)} == {id(thing) for thing in kept[:2]}
    assert len(instances(Slotted, Posing)) == 2
    assert instances(type("Unused", (), {})) == []


def test_nothing_else_is_held_where_another_thread_could_run() -> None:
    """A tuple that another thread is filling is like this list: the collector knows it, and it is of no kind asked
    for."""
    other: list[int] = [1]
    kept = Base()
    assert len(references(other, lambda: instances(Base))) == 1
    assert len(references(other, lambda: [thing for thing in gc.get_objects() if type(thing) is Base])) > 1
    assert isinstance(kept, Base)
