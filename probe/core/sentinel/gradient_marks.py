"""Marks of the gradients that an update has applied: they show what later updates apply again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from probe.core.backend.protocols import Tensor, TrainingLoop
from probe.core.checks.update_facts import Mask


class GradientMarks:
    """Gradient objects that parameters held when they were marked, with the versions that writes change. Nothing is
    kept alive."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._kept: list[Callable[[], Any] | None] = []
        self._versions: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self._kept)

    def mark(self, gradients: Sequence[Tensor | None]) -> None:
        """Mark the gradients as they are now."""
        reference = self._loop.reference
        self._kept = [None if gradient is None else reference(gradient) for gradient in gradients]
        self._versions = self._loop.versions(gradients)

    def same(self, gradients: Sequence[Tensor | None]) -> Mask:
        """Return which gradients are the objects that were marked; False where there is none."""
        return np.array(self._same(gradients), np.bool_)

    def untouched(self, gradients: Sequence[Tensor | None]) -> Mask:
        """Return which gradients are the objects that were marked, and were not written since."""
        same = self._same(gradients)
        if True not in same:
            return np.zeros(len(same), np.bool_)
        pairs = zip(same, self._versions, self._loop.versions(gradients), strict=True)
        return np.array([is_same and old == new for is_same, old, new in pairs], np.bool_)

    def _same(self, gradients: Sequence[Tensor | None]) -> list[bool]:
        pairs = zip(gradients, self._kept, strict=True)
        return [gradient is not None and mark is not None and mark() is gradient for gradient, mark in pairs]
