"""Single numbers of an update that only a device knows: clips' norms, and the count of an optimizer's steps."""

from __future__ import annotations

from collections.abc import Callable

from probe.core.backend.protocols import Block, Tensor, Tensors
from probe.core.checks.update_facts import Array

Factor = float | Callable[[], float]
"""Factor by which a clip multiplies gradients, or a function that waits for it."""
COLUMNS = ("sum", "sumsq")
"""Moments of each number, the same as of the gradients: one copy brings both to the host."""


class DeviceNumbers:
    """Numbers of one update, which are read in their places on the device and copied to the host together."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self.blocks: list[Block] = []
        """A block of one row for each number."""
        self._wait: Callable[[], Array] | None = None

    def add(self, tensor: Tensor) -> Callable[[], float]:
        """Read the number that ``tensor`` has now; return a function that waits for it."""
        place = len(self.blocks)
        self.blocks.append(self._tensors.moments([tensor], COLUMNS, 0.0, None))
        return lambda: float(self._rows()[place, 0])

    def factor(self, total: Tensor, factor_of: Callable[[float], float]) -> Callable[[], float]:
        """Read a total norm; return a function that waits for the factor that belongs to it."""
        wait = self.add(total)
        return lambda: factor_of(wait())

    def arrive(self, wait: Callable[[], Array]) -> None:
        """Have the numbers come with others: ``wait`` waits for the rows of :attr:`blocks`."""
        self._wait = wait

    def send(self) -> None:
        """Copy the numbers to the host, unless they come with others."""
        if self.blocks and self._wait is None:
            self._wait = self._tensors.to_host(self.blocks)

    def _rows(self) -> Array:
        assert self._wait is not None, "sent with the update"
        return self._wait()


def value_of(factor: Factor) -> float:
    """Return a factor; wait for it if only a device knows it."""
    return factor() if callable(factor) else factor
