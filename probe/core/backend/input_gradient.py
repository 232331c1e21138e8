"""Gradient of one input, which reaches it along several edges of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probe.core.backend.protocols import Guard, Listen, Tensor


class EdgeSum:
    """Sum of the gradients along the edges, sent to the listeners when the last gradient has arrived.

    Args:
        edges: the number of gradients to expect.
        add: returns the sum of two gradients.
        at_end: calls a function when the running backward ends: no gradient arrives along an edge towards an output
            that the loss does not use.
    """

    def __init__(
        self,
        edges: int,
        listeners: Sequence[Listen],
        guard: Guard,
        *,
        add: Callable[[Tensor, Tensor], Tensor],
        at_end: Callable[[Callable[..., None]], None],
    ) -> None:
        self._edges, self._missing, self._listeners = edges, edges, listeners
        self._add, self._at_end, self._guard = add, at_end, guard
        self._sum: Tensor | None = None
        self._lost = False

    def add(self, gradient: Tensor | None) -> None:
        """Add the gradient along one edge; None if no gradient flows there."""
        if self._missing == self._edges > 1:
            self._at_end(self._guard(self._send))
        self._missing -= 1
        try:
            if gradient is not None and not self._lost:
                self._sum = gradient if self._sum is None else self._add(self._sum, gradient)
        except Exception:
            self._lost = True
            raise
        finally:
            if not self._missing:
                self._send()

    def _send(self) -> None:
        total, self._sum, self._missing = self._sum, None, self._edges
        lost, self._lost = self._lost, False
        if total is not None and not lost:
            for listen in self._listeners:
                listen(total)
