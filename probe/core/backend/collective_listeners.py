"""Listeners to the collectives of one framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from probe.core.backend.patch import Shared
from probe.core.backend.protocols import CollectiveListener, Tensor

Calls = list[tuple[CollectiveListener, Any]]
"""Listeners to one call, each with the object by which it identifies the call."""


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

    def guarded(self, function: Callable[[], None]) -> None:
        """Call ``function``; if it raises, count the failure with every listener."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Count a failure with every listener."""
        for listener in self:
            listener.failed("collective", error)


def ended(calls: Calls, outputs: Sequence[Tensor]) -> None:
    """Call :meth:`CollectiveListener.ended` of each listener."""
    for listener, call in calls:
        listener.ended(call, outputs)


def abandoned(calls: Calls, outputs: int) -> None:
    """Call :meth:`CollectiveListener.abandoned` of each listener."""
    for listener, call in calls:
        listener.abandoned(call, outputs)
