"""Hooks that are taken out between sampled steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from probe.core.faults import Faults
from probe.core.instrumentation.context import IDLE, Run


class Hook:
    """A hook that counts what is done with it, and may fail."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.done = fails, list[str]()

    def __call__(self) -> None:
        self.done.append("removed")

    def rest(self) -> None:
        self.done.append("out")
        if self.fails:
            raise RuntimeError("stuck")

    def wake(self) -> None:
        self.done.append("in")


def run_of(faults: Faults, compiled: str = "skip") -> Run:
    settings: Any = SimpleNamespace(compiled=compiled, statistics=())
    nothing: Any = SimpleNamespace(capturing=None)
    return Run(settings, nothing, [], [], nothing, nothing, faults, False)


def test_one_that_fails_is_counted_and_the_others_move() -> None:
    faults, (first, stuck, last) = Faults(), (Hook(), Hook(fails=True), Hook())
    run = run_of(faults)
    for hook in (first, stuck, last):
        run.keep(hook)
    run.rest()
    assert run.resting
    run.wake()
    assert not run.resting
    assert first.done == last.done == ["out", "in"]
    assert faults.counts == {f"{IDLE}: RuntimeError": 1}


def test_a_removed_hook_is_not_put_back() -> None:
    run, hook = run_of(Faults()), Hook()
    remove = run.keep(hook)
    run.rest()
    remove()
    remove()
    run.wake()
    assert hook.done == ["out", "removed", "removed"]


def test_hooks_stay_that_cannot_rest_or_must_not() -> None:
    removed = list[int]()

    def plain() -> None:
        removed.append(1)

    run, hook = run_of(Faults()), Hook()
    run.keep(plain)()
    recording = run_of(Faults(), "record")
    recording.keep(hook)
    for moved in (run, recording):
        moved.rest()
        moved.wake()
    assert (removed, hook.done) == ([1], [])
