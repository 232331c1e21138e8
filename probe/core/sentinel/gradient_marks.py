"""Marks of the gradients that an update has applied: they show what later updates apply again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probe.core.backend.protocols import Tensor, TrainingLoop

References = Sequence[Callable[[], object] | None]


class GradientMarks:
    """Gradient objects that parameters held when they were marked, with the versions that writes change. Nothing is
    kept alive."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._references: References = ()
        self._versions: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self._references)

    @property
    def alive(self) -> bool:
        """True if any of the gradients still exists."""
        for reference in self._references:  # noqa: SIM110 - in each step; a generator takes longer
            if reference is not None and reference() is not None:
                return True
        return False

    def mark(self, gradients: Sequence[Tensor | None], references: References | None = None) -> None:
        """Mark the gradients as they are now.

        Args:
            references: functions to these gradients, if there are some.
        """
        self._references = self.references(gradients) if references is None else references
        self._versions = self._loop.versions(gradients)

    def references(self, gradients: Sequence[Tensor | None]) -> References:
        """Return a function to each gradient; None where there is none."""
        reference = self._loop.reference
        return [None if gradient is None else reference(gradient) for gradient in gradients]

    def same(self, gradients: Sequence[Tensor | None]) -> list[bool]:
        """Return which gradients are the objects that were marked; False where there is none."""
        pairs = zip(gradients, self._references, strict=True)
        return [gradient is not None and mark is not None and mark() is gradient for gradient, mark in pairs]

    def untouched(self, gradients: Sequence[Tensor | None]) -> list[bool]:
        """Return which gradients are the objects that were marked, and were not written since."""
        same = self.same(gradients)
        if True not in same:
            return same
        pairs = zip(same, self._versions, self._loop.versions(gradients), strict=True)
        return [is_same and old == new for is_same, old, new in pairs]
