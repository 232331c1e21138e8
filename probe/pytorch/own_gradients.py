"""Own gradients of this process: sums of the gradients that backwards bring to some parameters, before anything adds
them up or reduces them over ranks.

The hooks lie on the nodes of the graph that add to ``grad``, in front of those of ``DistributedDataParallel``. They
neither keep a gradient nor touch ``grad``, which may be a part of a bucket; and a compiler, which looks at parameters,
does not see them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import get_gradient_edge

from probe.core.door import FaultCounter, Hook
from probe.pytorch import tensors
from probe.pytorch.dtensor import PLAIN
from probe.pytorch.host_moments import Array

_level = getattr(torch._C._functorch, "maybe_current_level", lambda: None)
_WHOLE = torch.float32, torch.float64
"""Dtypes in which sums do not overflow."""


class GradientSums:
    """Sums of the gradients of ``parameters`` since the last :meth:`take`.

    Args:
        blind: returns true while a device only records its work.
    """

    def __init__(self, parameters: Sequence[Any], blind: Callable[[], bool], faults: FaultCounter) -> None:
        self._blind = blind
        self._sums: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Sum of squares and sum of each parameter, by its position."""
        self._nodes: list[Any] = []
        """Nodes of the graph, which exist only as long as something holds them."""
        self._handles: list[Any] = []
        with torch._C.DisableTorchFunction():
            for position, parameter in enumerate(parameters):
                if type(parameter) in PLAIN and parameter.requires_grad and parameter.is_leaf:
                    self._place(position, parameter, faults)

    def _place(self, position: int, parameter: Any, faults: FaultCounter) -> None:
        node = get_gradient_edge(parameter).node

        def arrived(gradients: Sequence[torch.Tensor | None]) -> None:
            self._add(position, gradients[0])

        self._nodes.append(node)
        self._handles.append(node.register_prehook(Hook(faults, "own gradients", arrived)))

    def _add(self, position: int, gradient: torch.Tensor | None) -> None:
        if type(gradient) is not torch.Tensor or gradient.layout is not torch.strided or _level() is not None:
            return
        if self._blind():
            return
        numbers = gradient.detach().reshape(-1)
        numbers = numbers if numbers.dtype in _WHOLE else numbers.float()
        squares, total = numbers.dot(numbers), numbers.sum()
        sums = self._sums.get(position)
        self._sums[position] = (squares, total) if sums is None else (sums[0] + squares, sums[1] + total)

    def take(self) -> tuple[list[int], Callable[[], Array]]:
        """Return the positions of the parameters with new gradients, and a function that waits for the norm and the sum
        of each; begin anew."""
        sums, self._sums = self._sums, {}
        if all(squares.device.type == "cpu" for squares, _ in sums.values()):
            numbers = np.array([(squares.item(), total.item()) for squares, total in sums.values()]).reshape(-1, 2)
            wait = lambda: numbers  # noqa: E731
        else:
            wait = tensors.to_host([torch.stack(pair).to(torch.float64)[None] for pair in sums.values()])

        def read() -> Array:
            rows = wait()
            return np.column_stack((np.sqrt(rows[:, 0]), rows[:, 1]))

        return [*sums], read

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()
