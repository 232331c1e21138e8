"""Forwards in progress: their state belongs to the call and its thread, and dies with both."""

from __future__ import annotations

import sys
import threading
from typing import Generic, NamedTuple, TypeVar

State = TypeVar("State")


class _Call(NamedTuple):
    """One call of a module."""

    module: object
    caller: int
    """Identity of the frame that runs the call: with a reference, it would live on."""
    micro_step: int
    states: dict[object, object]
    """What each listener keeps until the call ends."""


class Forwards(threading.local):
    """Calls of watched modules that run on this thread, the outermost first."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    @property
    def micro_step(self) -> int | None:
        """The micro step of the outermost call; None if none runs."""
        return self._calls[0].micro_step if self._calls else None

    def number(self, listener: object) -> int:
        """Return the number of calls of which ``listener`` keeps something."""
        return sum(listener in call.states for call in self._calls)

    def begin(self, listener: object, module: object, micro_step: int, state: object) -> None:
        """Keep ``state`` for ``listener`` until the call of ``module`` that has just begun ends."""
        if self.number(listener):
            self._drop_interrupted()
        calls = self._calls
        if not calls or calls[-1].module is not module or listener in calls[-1].states:
            calls.append(_Call(module, id(_caller()), micro_step, {}))
        calls[-1].states[listener] = state

    def end(self, listener: object) -> object:
        """Return the state of the latest call, which ends; None if there is none. Calls inside it have ended, too."""
        calls = self._calls
        for place in range(len(calls) - 1, -1, -1):
            if listener in (states := calls[place].states):
                state = states.pop(listener)
                del calls[place + bool(states) :]
                return state
        return None

    def clear(self) -> None:
        """Drop all calls."""
        self._calls.clear()

    def _drop_interrupted(self) -> None:
        """Drop calls that have ended without a hook, by a KeyboardInterrupt, for example."""
        running, frame = set[int](), sys._getframe(1)
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back  # type: ignore[assignment]
        self._calls[:] = [call for call in self._calls if call.caller in running]


def _caller() -> object:
    """Return the frame that runs a call: the nearest one outside of this package calls hooks, and may end before it."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith("probe.") and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_back


class OpenCalls(Generic[State]):
    """Calls of one module that run on this thread, each with the state that one listener keeps of it.

    Args:
        module: whatever identifies the module.
    """

    def __init__(self, forwards: Forwards, module: object) -> None:
        self._forwards, self._module = forwards, module

    def __len__(self) -> int:
        return self._forwards.number(self)

    def begin(self, micro_step: int, state: State) -> None:
        """Keep ``state`` of the call that has just begun."""
        self._forwards.begin(self, self._module, micro_step, state)

    def end(self) -> State | None:
        """Return the state of the call that ends; None if its beginning was not seen."""
        return self._forwards.end(self)  # type: ignore[return-value]
