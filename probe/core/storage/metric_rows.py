"""Rows on their way from files and snapshots to a database: as columns, each name once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.storage.layout import STEP, whole

_NUMBERS = ("vpp_stage", "micro_step", "call")

Indices = npt.NDArray[np.int64]


class MetricTarget(NamedTuple):
    """The tensor that a row is about."""

    name: str
    """Cell of the ``name`` column of the CSV files."""
    stage: int = 0
    micro_step: int = 0
    call: int = 0


class TensorForm(NamedTuple):
    """Shape, dtype and coverage of a row's tensor; ``""`` if unknown."""

    shape: str = ""
    dtype: str = ""
    coverage: str = ""


class MetricRows(NamedTuple):
    """Rows of one signal and rank, column by column; each column as long as ``steps``."""

    signal: str
    rank: int
    steps: Indices
    targets: Sequence[MetricTarget]
    target: Indices
    """Index of each row in ``targets``."""
    forms: Sequence[TensorForm]
    form: Indices
    """Index of each row in ``forms``."""
    values: Mapping[str, npt.NDArray[np.float64]]
    """Values by op; a masked array if values are missing."""
    micro_stepped: bool = False
    """True if the signal has a row for each micro step."""

    def taken(self, selection: Any) -> MetricRows:
        """Return the rows that ``selection``, an index or a mask of NumPy's, selects."""
        return self._replace(
            steps=self.steps[selection],
            target=self.target[selection],
            form=self.form[selection],
            values={op: column[selection] for op, column in self.values.items()},
        )


def assembled(
    signal: str, rank: int, cells: Mapping[str, Sequence[Any]], values: Mapping[str, npt.NDArray[np.float64]]
) -> MetricRows:
    """Return the rows of the cells of a table.

    Args:
        cells: the columns that are not values.

    Raises:
        ValueError: if a whole number is outside of its column's range.
    """
    zeros, nothing = [0] * len(cells["step"]), [""] * len(cells["step"])
    keys = zip(cells["name"], cells["vpp_stage"], cells.get("micro_step", zeros), cells.get("call", zeros), strict=True)
    targets, target = numbered(keys)
    forms, form = numbered(zip(*(cells.get(column, nothing) for column in TensorForm._fields), strict=True))
    return MetricRows(
        signal=signal,
        rank=rank,
        steps=_steps(cells["step"]),
        targets=[MetricTarget(name or "", *map(whole, _NUMBERS, numbers)) for name, *numbers in targets],
        target=target,
        forms=[TensorForm(*(text or "" for text in texts)) for texts in forms],
        form=form,
        values=values,
        micro_stepped="micro_step" in cells,
    )


def _steps(cells: Sequence[Any]) -> Indices:
    whole(STEP, min(cells, default=0))
    whole(STEP, max(cells, default=0))
    return np.array(cells, dtype=np.int64)


def numbered(items: Iterable[Any]) -> tuple[list[Any], Indices]:
    """Return the distinct ``items`` in the order of their first appearance, and the index of each item among them."""
    places: dict[Any, int] = {}
    indices = [places.setdefault(item, len(places)) for item in items]
    return list(places), np.array(indices, dtype=np.int64)
