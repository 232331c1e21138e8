"""Rows on their way from files and snapshots to a database: columns, names told once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class Target(NamedTuple):
    """What a row is about."""

    name: str
    """As the ``name`` column of the CSV files has it."""
    stage: int = 0
    micro_step: int = 0
    call: int = 0


class Form(NamedTuple):
    """What the tensor of a row is like; ``""`` for what is not known."""

    shape: str = ""
    dtype: str = ""
    coverage: str = ""


class Rows(NamedTuple):
    """Rows of one signal and rank, column by column; each column as long as ``steps``."""

    signal: str
    rank: int
    steps: Indices
    targets: Sequence[Target]
    target: Indices
    """Of each row its index in ``targets``."""
    forms: Sequence[Form]
    form: Indices
    """Of each row its index in ``forms``."""
    values: Mapping[str, npt.NDArray[np.float64]]
    """By op; a masked array where values are missing."""
    micro_stepped: bool = False
    """Whether the micro step tells rows apart here."""

    def taken(self, chosen: Any) -> Rows:
        """The rows that an index or a mask of NumPy's ``chosen`` takes."""
        return self._replace(
            steps=self.steps[chosen],
            target=self.target[chosen],
            form=self.form[chosen],
            values={op: column[chosen] for op, column in self.values.items()},
        )


def numbered(items: Iterable[Any]) -> tuple[list[Any], Indices]:
    """The distinct ``items`` in the order of their first appearance, and of each item its index among them."""
    places: dict[Any, int] = {}
    indices = [places.setdefault(item, len(places)) for item in items]
    return list(places), np.array(indices, dtype=np.int64)
