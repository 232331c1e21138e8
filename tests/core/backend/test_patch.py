"""Changes of a framework that several listeners share."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from probe.core.backend.patch import Shared, Undo
from probe.core.door import replace


class Framework:
    """Offers no hook."""

    def step(self) -> str:
        return "stepped"

    def wait(self) -> str:
        return "waited"


class Listener:
    """Any object."""


@pytest.fixture
def shared() -> Shared[str]:
    """Prefixes the results of both methods with the listeners."""
    return changing(Framework)


def changing(kind: type[Framework], weak: bool = False) -> Shared[str]:
    def install() -> Iterator[Undo]:
        for name in ("step", "wait"):
            original = getattr(kind, name)
            yield replace(kind, name, lambda self, call=original: " ".join([*map(str, shared), call(self)]))

    shared: Shared[str] = Shared(install, weak)
    return shared


def test_the_change_stays_while_anybody_listens(shared: Shared[str]) -> None:
    """The first listener makes it, the last one takes it back; in between they are called in the order they came."""
    before = dict(vars(Framework))
    first, second = shared.listen("first"), shared.listen("second")
    assert (Framework().step(), len(shared)) == ("first second stepped", 2)
    first()
    assert Framework().wait() == "second waited"
    second()
    assert dict(vars(Framework)) == before
    third = shared.listen("third")
    assert Framework().step() == "third stepped"
    third()
    assert dict(vars(Framework)) == before


def test_a_listener_is_removed_once(shared: Shared[str]) -> None:
    """Removing again removes nobody else, even if the same object listens twice."""
    first, second = shared.listen("same"), shared.listen("same")
    first()
    first()
    assert Framework().step() == "same stepped"
    second()
    assert Framework().step() == "stepped"


def test_a_later_change_of_somebody_elses_stays(shared: Shared[str]) -> None:
    """An attribute that other code has replaced since is left alone."""
    remove = shared.listen("ours")
    restore = replace(Framework, "step", lambda _: "theirs")
    remove()
    assert (Framework().step(), Framework().wait()) == ("theirs", "waited")
    restore()


def test_a_failed_installation_leaves_nothing_behind() -> None:
    """What was changed before the exception is taken back, nobody listens, and the next listener tries again."""
    fails = [True, False]
    before = dict(vars(Framework))

    def install() -> Iterator[Undo]:
        yield replace(Framework, "step", lambda _: "changed")
        if fails.pop(0):
            raise RuntimeError("no second method")

    shared: Shared[str] = Shared(install)
    with pytest.raises(RuntimeError, match="no second method"):
        shared.listen("first")
    assert (dict(vars(Framework)), len(shared)) == (before, 0)
    remove = shared.listen("second")
    assert Framework().step() == "changed"
    remove()
    assert dict(vars(Framework)) == before


def test_what_cannot_be_taken_back_now_is_tried_again() -> None:
    """A refused undo waits for the next change of listeners, or until it is asked for."""
    possible, undone, installed = False, 0, 0

    def undo() -> bool:
        nonlocal undone
        undone += possible
        return possible

    def install() -> Iterator[Undo]:
        nonlocal installed
        installed += 1
        yield undo

    shared: Shared[str] = Shared(install)
    shared.listen("first")()
    shared.listen("second")()
    assert (installed, undone) == (1, 0)
    possible = True
    shared.settle()
    shared.settle()
    assert (installed, undone) == (1, 1)


def test_an_installation_that_was_impossible_is_tried_for_the_next_listener() -> None:
    """Until a change has been made, every listener is an occasion."""
    chances: list[list[Undo]] = [[], [lambda: chances.append([])]]
    shared: Shared[str] = Shared(lambda: chances.pop(0))
    removes = [shared.listen(name) for name in ("first", "second", "third")]
    assert chances == []
    for remove in removes:
        remove()
    assert chances == [[]]


def test_a_weak_listener_goes_with_its_removal() -> None:
    """Nothing of ours keeps it alive, and the change that nobody wants any more gives way to the next one."""
    shared: Shared[Listener] = Shared(lambda: [lambda: undone.append(True)], weak=True)
    undone: list[bool] = []
    remove = shared.listen(Listener())
    gc.collect()
    assert len(list(shared)) == 1
    del remove
    gc.collect()
    assert (list(shared), undone) == ([], [])
    shared.listen(Listener())()
    assert undone == [True, True]


def test_listeners_may_come_and_go_while_others_are_called(shared: Shared[str]) -> None:
    """Those that were there when a call began are called."""
    removes = [shared.listen(name) for name in ("first", "second")]
    seen = []
    for listener in shared:
        seen.append(listener)
        removes.append(shared.listen("third"))
        removes[1]()
    assert (seen, list(shared)) == (["first", "second"], ["first", "third", "third"])
    for remove in removes:
        remove()


def test_threads_share_one_change() -> None:
    """However they interleave, the change is made and taken back by turns, and in the end it is gone."""
    turns: list[int] = []

    def install() -> Iterator[Undo]:
        turns.append(1)
        yield lambda: turns.append(-1)

    shared: Shared[int] = Shared(install)
    together = threading.Barrier(4)

    def listen() -> None:
        together.wait()
        for number in range(500):
            shared.listen(number)()

    threads = [threading.Thread(target=listen) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turns == [1, -1] * (len(turns) // 2)
    assert len(shared) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_stop_listening() -> None:
    """Even if another thread was making a change at the fork: the child has its listeners and waits for no thread."""
    changing, forked = threading.Event(), threading.Event()

    def install() -> Iterator[Undo]:
        changing.set()
        forked.wait()
        yield lambda: None

    listened: Shared[str] = Shared(lambda: [lambda: None])
    remove = listened.listen("parent's")
    thread = threading.Thread(target=lambda: Shared[str](install).listen("another's"))
    thread.start()
    changing.wait()
    if (child := os.fork()) == 0:
        remove()
        os._exit(len(listened))
    forked.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert len(listened) == 1
