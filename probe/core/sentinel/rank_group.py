"""Ranks that are compared, and the arithmetic of their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from probe.core.sentinel.rank_lines import Array

Role = Literal["data", "tensor", "unknown"]


class RankGroup(NamedTuple):
    """Ranks that are compared."""

    role: Role
    """Ranks with the same parameters and other data, ranks with parts of parameters, or ranks of a launch of which
    nothing names groups."""
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    """Names of the parameters."""
    split: tuple[bool, ...] = ()
    """For each parameter whether each tensor-parallel rank has another part; empty if nothing marks it."""


def deviations(tables: Array) -> Array:
    """Return for each parameter how far norms and sums differ between ranks, as a part of the largest number; 0 where a
    number is missing or not finite: the loss and other ranks show that.

    Args:
        tables: ``ranks x parameters x 2``.
    """
    if (tables == tables[0]).all():
        return np.zeros(tables.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):
        spread = tables.max(axis=0) - tables.min(axis=0)
        largest = np.abs(tables).max(axis=(0, 2))
        parts = spread.max(axis=1) / np.where(largest > 0, largest, 1.0)
    return np.where(np.isfinite(parts), parts, 0.0)


def stacked(tables: Sequence[Array | None]) -> Array | None:
    """Return the tables of all ranks as one; None if a rank has none."""
    present = [table for table in tables if table is not None]
    return np.stack(present) if present and len(present) == len(tables) else None
