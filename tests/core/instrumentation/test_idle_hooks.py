"""Hooks that are taken out between sampled steps."""

from __future__ import annotations

from probe.core.faults import Faults
from probe.core.instrumentation.idle_hooks import FAILED, IdleHooks


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


def test_one_that_fails_is_counted_and_the_others_move() -> None:
    faults, (first, stuck, last) = Faults(), (Hook(), Hook(fails=True), Hook())
    idle = IdleHooks(faults, True)
    for hook in (first, stuck, last):
        idle.keep(hook)
    idle.rest()
    assert idle.resting
    idle.wake()
    assert not idle.resting
    assert first.done == last.done == ["out", "in"]
    assert faults.counts == {f"{FAILED}: RuntimeError": 1}


def test_a_removed_hook_is_not_put_back() -> None:
    idle, hook = IdleHooks(Faults(), True), Hook()
    remove = idle.keep(hook)
    idle.rest()
    remove()
    remove()
    idle.wake()
    assert hook.done == ["out", "removed", "removed"]


def test_hooks_stay_that_cannot_rest_or_must_not() -> None:
    removed = list[int]()

    def plain() -> None:
        removed.append(1)

    idle, hook = IdleHooks(Faults(), True), Hook()
    idle.keep(plain)()
    other = IdleHooks(Faults(), False)
    other.keep(hook)
    for each in (idle, other):
        each.rest()
        each.wake()
    assert (removed, hook.done) == ([1], [])
