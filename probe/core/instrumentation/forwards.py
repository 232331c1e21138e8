"""Forwards in progress: their state belongs to the call and its thread, and dies with both."""

from __future__ import annotations

from threading import get_ident
from typing import NamedTuple

from probe.core.backend.call_stack import callers, machinery


class _Place(NamedTuple):
    """Place of a call on the stack: the number of frames around it, and the identity of its own. A reference to the
    frame would keep its variables alive; without the number, another frame may have the identity."""

    depth: int
    frame: int


class _Call(NamedTuple):
    """One call of a module."""

    module: object
    micro_step: int
    states: dict[object, object]
    """State that each listener keeps until the call ends."""


class _Thread:
    """Stack of the calls of watched modules on one thread, the outermost first."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.place = _Place(0, 0)
        """Place of the outermost call."""

    def number(self, listener: object) -> int:
        """Return the number of calls of which ``listener`` keeps something."""
        return sum(listener in call.states for call in self.calls)

    def end(self, listener: object) -> object:
        """Return the state of the latest call, which ends; None if there is none. Calls inside it have ended, too."""
        calls = self.calls
        for number in range(len(calls) - 1, -1, -1):
            if listener in (states := calls[number].states):
                state = states.pop(listener)
                del calls[number + bool(states) :]
                return state
        return None

    def drop_interrupted(self, module: object, again: bool) -> None:
        """Drop all calls if the outermost has ended without a hook, by a KeyboardInterrupt, for example.

        Args:
            module: that begins another call, or the outermost call, of which another listener has seen the beginning.
            again: whether it is another call in any case.
        """
        places = _places(module)
        if again or self.calls[0].module is not module:
            places.pop()
        if self.place not in places:
            self.calls.clear()


class Forwards:
    """Stacks of the calls of watched modules that run now, by thread. Not a ``threading.local``: the garbage collector
    does not follow its contents, by which a model may refer to itself."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        """Only threads on which calls run."""

    def __len__(self) -> int:
        return sum(len(thread.calls) for thread in self._threads.values())

    @property
    def micro_step(self) -> int | None:
        """The micro step of the outermost call on this thread; None if none runs."""
        thread = self._threads.get(get_ident())
        return None if thread is None else thread.calls[0].micro_step

    def begin(self, listener: object, module: object, micro_step: int, state: object, whole: bool) -> None:
        """Keep ``state`` for ``listener`` until the call of ``module`` that has just begun ends.

        Args:
            whole: whether ``module`` is a whole model.
        """
        thread = self._threads.setdefault(get_ident(), _Thread())
        calls, again = thread.calls, thread.number(listener) > 0
        if calls and (whole or again):
            thread.drop_interrupted(module, again)
        if not calls:
            thread.place = _places(module)[-1]
        if not calls or calls[-1].module is not module or listener in calls[-1].states:
            calls.append(_Call(module, micro_step, {}))
        calls[-1].states[listener] = state

    def end(self, listener: object) -> object:
        """Return the state that ``listener`` keeps of its latest call on this thread, which ends; None if it has not
        seen the beginning."""
        if (thread := self._threads.get(get_ident())) is None:
            return None
        state = thread.end(listener)
        if not thread.calls:
            self.clear()
        return state

    def clear(self) -> None:
        """Drop all calls of this thread."""
        self._threads.pop(get_ident(), None)


def _places(module: object) -> list[_Place]:
    """Return the places of the frames around the call of ``module`` that begins, the outermost first, and of its own:
    frames nearer to the hook may end before the call does."""
    code, frames = machinery(module), [*callers()]
    of_call = next((number for number, frame in enumerate(frames) if frame.f_code is code), 0)
    return [_Place(depth, id(frame)) for depth, frame in enumerate(reversed(frames[of_call:]))]
