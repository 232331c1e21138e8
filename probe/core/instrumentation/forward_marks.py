"""Marks of forwards: they show whether a number that is logged now belongs to the step in progress."""

from __future__ import annotations

import threading
from collections.abc import Callable

LEAST = 3
"""Operations in a graph from which on they are taken for a forward: a layer and its loss make as many, and a loss that
is averaged or multiplied after the update fewer."""


class ForwardMarks:
    """Marks of the forwards since the last step ended: by hooks in steps that have them, else by operations that have
    become part of a graph. Used on the training thread.

    Args:
        graph_size: see :meth:`probe.core.backend.protocols.Hooks.graph_size`.
    """

    def __init__(self, graph_size: Callable[[], int | None]) -> None:
        self._graph_size = graph_size
        self.step_ended(listening=False)

    def step_ended(self, listening: bool) -> None:
        """Begin the next step.

        Args:
            listening: whether :meth:`began` will be called at its forwards.
        """
        self._size, self._thread = self._graph_size(), threading.get_ident()
        self._begun, self._listening = False, listening

    def began(self) -> None:
        """Note a forward in training."""
        self._begun = True

    @property
    def begun(self) -> bool | None:
        """True if a forward in training has begun since the last step ended; None if nothing shows that."""
        if self._begun:
            return True
        size = self._graph_size() if self._thread == threading.get_ident() else None
        if size is None or self._size is None:
            return False if self._listening else None
        return size - self._size >= LEAST
