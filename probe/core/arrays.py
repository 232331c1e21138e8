"""What core asks of a framework to compute with tensors: the third part of :mod:`probe.core.framework`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from probe.core.framework import Block, Module, Tensor

Numbers = Any
"""An array of a framework's own, on its own device, that nothing differentiates: has ``+ - * / @``, comparisons, slices
to read and write, ``.shape``, ``.reshape`` and ``.sum(axis)``."""


class Arrays(Protocol):
    """What core asks for to compute with tensors: a few operations, none of which waits for a device."""

    def block(self, numbers: Numbers) -> int:
        """How many elements of an intermediate result are worth computing at once where ``numbers`` are."""

    def quiet(self) -> AbstractContextManager[object]:
        """Inside, nothing is recorded for gradients, nothing is cast, and no one sees what is computed."""

    def member(self, module: Module, name: str) -> object:
        """What ``module`` calls ``name``; None if it has no such thing."""

    def numbers(self, tensor: Tensor) -> Numbers:
        """The elements that this process holds, as they are stored."""

    def wide(self, numbers: Numbers) -> Numbers:
        """As float64 if they are that, else as float32."""

    def on_host(self, numbers: Numbers) -> bool:
        """Whether a number can be read without waiting."""

    def is_floating(self, numbers: Numbers) -> bool:
        """Whether the elements are floating numbers: no flags, integers or complex ones."""

    def like(self, array: npt.NDArray[np.float64], numbers: Numbers) -> Numbers:
        """``array`` where ``numbers`` are, of their dtype."""

    def zeros(self, shape: tuple[int, ...], numbers: Numbers) -> Numbers:
        """Zeros where ``numbers`` are, of their dtype."""

    def positions(self, count: int, numbers: Numbers) -> Numbers:
        """0, 1, ..., ``count - 1`` where ``numbers`` are."""

    def turned(self, numbers: Numbers) -> Numbers:
        """With the last two dimensions swapped."""

    def ordered(self, numbers: Numbers, axes: tuple[int, ...]) -> Numbers:
        """With the dimensions in this order."""

    def largest(self, numbers: Numbers) -> Numbers:
        """Of the last dimension, which stays with length 1; NaN where one is NaN."""

    def magnitude(self, numbers: Numbers) -> Numbers:
        """Without sign."""

    def exp(self, numbers: Numbers) -> Numbers:
        """Of each element."""

    def log(self, numbers: Numbers) -> Numbers:
        """Of each element, the natural one."""

    def root(self, numbers: Numbers) -> Numbers:
        """Of each element, the square one."""

    def where(self, condition: Numbers, value: float, other: Numbers) -> Numbers:
        """``value`` where ``condition`` is true, else the element of ``other``."""

    def counts(self, numbers: Numbers, largest: int, above: float) -> Numbers:
        """In how many rows of a matrix each column is among those of the ``largest`` greatest elements, if greater than
        ``above``."""

    def column(self, scalars: Sequence[Numbers]) -> Block:
        """One number a row, of scalars and vectors, in float64: what :meth:`Tensors.to_host` takes."""
