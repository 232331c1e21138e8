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
        return np.fromiter(
            (
                gradient is not None and mark is not None and mark() is gradient
                for gradient, mark in zip(gradients, self._kept, strict=True)
            ),
            np.bool_,
            len(gradients),
        )

    def untouched(self, gradients: Sequence[Tensor | None]) -> Mask:
        """Return which gradients are the objects that were marked, and were not written since."""
        versions = self._loop.versions(gradients)
        return np.fromiter(
            (
                gradient is not None and mark is not None and mark() is gradient and old == new
                for gradient, mark, old, new in zip(gradients, self._kept, self._versions, versions, strict=True)
            ),
            np.bool_,
            len(gradients),
        )
