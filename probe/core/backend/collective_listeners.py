"""The listeners to collectives of one framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from probe.core.backend.patch import Shared
from probe.core.backend.protocols import CollectiveListener, Tensor

Calls = list[tuple[CollectiveListener, Any]]
"""The listeners to one call, each with the object by which it knows the call."""


class CollectiveListeners(Shared[CollectiveListener]):
    """Sends every call to the listeners; none of their exceptions reaches training."""

    def wanted(self) -> bool:
        """Whether any listener wants calls now."""
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
        """As :meth:`CollectiveListener.began`; yields the listeners that want the end of the call, too."""
        for listener in self:
            if listener.listening and (call := listener.began(operation, ranks, inputs, site, again)) is not None:
                yield listener, call

    def guarded(self, function: Callable[[], None]) -> None:
        """Calls ``function``; every listener counts its failure."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Counts a failure with every listener."""
        for listener in self:
            listener.failed("collective", error)


def ended(calls: Calls, outputs: Sequence[Tensor]) -> None:
    """As :meth:`CollectiveListener.ended`."""
    for listener, call in calls:
        listener.ended(call, outputs)


def abandoned(calls: Calls, outputs: int) -> None:
    """As :meth:`CollectiveListener.abandoned`."""
    for listener, call in calls:
        listener.abandoned(call, outputs)
