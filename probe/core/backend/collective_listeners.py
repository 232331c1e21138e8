"""Listeners to the collectives of one framework."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from probe.core.backend.patch import Shared
from probe.core.backend.protocols import CollectiveListener, Tensor
from probe.core.door import compiling, count, passage

Calls = list[tuple[CollectiveListener, Any]]
"""Listeners to one call, each with the object by which it identifies the call."""


class Transfer(NamedTuple):
    """Call that listeners have received, with the tensors that it fills."""

    calls: Calls
    outputs: list[Tensor]
    timed: list[Any]
    """Listeners' calls whose completion the handle itself reports."""


class CollectiveListeners(Shared[CollectiveListener]):
    """Listeners that receive every call; none of their exceptions reaches training."""

    def wanted(self) -> bool:
        """Return whether any listener wants calls now."""
        try:
            for listener in self:
                if listener.listening:
                    return True
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            self.failed(error)
        return False

    def began(
        self, operation: str, ranks: Sequence[int], inputs: Sequence[Tensor], site: FrameType, again: bool = False
    ) -> Iterator[tuple[CollectiveListener, Any]]:
        """Call :meth:`CollectiveListener.began`; yield the listeners that want the end of the call, too."""
        for listener in self:
            if listener.listening and (call := listener.began(operation, ranks, inputs, site, again)) is not None:
                yield listener, call

    def attempt(self, function: Callable[[], None]) -> None:
        """Call ``function``; if it raises, count the failure with every listener."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Count a failure with every listener."""
        for listener in self:
            count(listener.faults, "collective", error)


def ended(calls: Calls, outputs: Sequence[Tensor]) -> None:
    """Call :meth:`CollectiveListener.ended` of each listener."""
    for listener, call in calls:
        listener.ended(call, outputs)


def abandoned(calls: Calls, outputs: int) -> None:
    """Call :meth:`CollectiveListener.abandoned` of each listener."""
    for listener, call in calls:
        listener.abandoned(call, outputs)


class Handles:
    """Handles that training may wait for, each with the transfers that are complete then; an entry is removed with its
    handle.

    Args:
        attempt: calls a function, none of whose exceptions reaches training.
    """

    def __init__(self, attempt: Callable[[Callable[[], None]], None]) -> None:
        self._attempt = attempt
        self._entries: dict[int, tuple[weakref.ref[Any], list[Transfer]]] = {}
        self.forget = self._entries.clear

    def expect(self, handle: Any, transfers: list[Transfer]) -> None:
        """Record that the transfers end when training has waited for ``handle``; without a handle, they have ended."""
        if handle is None:
            _all_ended(transfers)
            return
        identity = id(handle)

        def release(_: object) -> None:
            entry = self._entries.pop(identity, None)
            for transfer in entry[1] if entry is not None else ():
                abandoned(transfer.calls, len(transfer.outputs))

        self._entries[identity] = weakref.ref(handle, release), transfers

    def waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of a handle by which training waits, to replace ``original``."""

        @functools.wraps(original)
        @passage
        def wait(handle: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(handle, *args, **kwargs)
            if compiling():
                return result
            entry = self._entries.pop(id(handle), None)
            if entry is not None:
                self._attempt(lambda: _all_ended(entry[1]))
            return result

        return wait


def _all_ended(transfers: list[Transfer]) -> None:
    for transfer in transfers:
        ended(transfer.calls, transfer.outputs)
