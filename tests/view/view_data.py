"""Runs for the tests of the page, written by the sinks of training, and their cells by NumPy alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.analysis.pictures.cells import RANKS, CellArrays
from probe.core.naming import RUN
from probe.core.output.sinks import SINKS
from probe.core.records import Key
from probe.core.storage.run_directory import write_manifest
from tests.core.output.sink_data import batch, context, snapshot

SIGNAL = "grad_reduced"
VALUE = "value"
"""Column of the numbers of the run."""
START = "2026-12-03T21:34:40+0800"
Numbers = dict[tuple[int, str, int], float]
"""Values by rank, row and step."""


class WrittenRank:
    """A rank that writes one signal, step by step, with the value of ``max`` of each row.

    Args:
        rows: names of the rows.
        sink: writer.
        time: time in the directory's name.
    """

    def __init__(
        self,
        root: Path,
        rank: int,
        rows: Iterable[str] = ("a", "b", "c"),
        *,
        sink: str = "csv",
        time: str = "Dec03_21-34-40",
        first: int = 0,
        stage: int = 0,
        world: int = 2,
        steps_per_file: int = 10,
    ) -> None:
        self.rank, self.rows, self.written = rank, tuple(rows), {}
        self.directory = root / f"{time}-rank{rank}-{rank:08x}"
        self.written: Numbers
        made = context(root, directory=self.directory, rank=rank, steps_per_file=steps_per_file)
        self._sink = SINKS[sink](made)
        self._sink.open()
        self._about: dict[str, Any] = {
            "rank": rank,
            "world_size": world,
            "first_step": first,
            "pp_stage": stage,
            "start_time": START,
        }
        write_manifest(self.directory, self._about)

    def write(self, step: int, values: Iterable[float], numbers: Mapping[str, float] = {}) -> None:
        """Write one step.

        Args:
            numbers: numbers of the run.
        """
        high = list(values)
        low = [0.0] * len(high)
        keys = tuple(map(Key, self.rows))
        shapes = ((3, 2),) * len(keys)
        own = batch(SIGNAL, step, {"min": low, "max": high}, keys=keys, shapes=shapes, dtypes=("f",) * len(keys))
        of_run = batch(RUN, step, {VALUE: list(numbers.values())}, keys=tuple(map(Key, numbers))) if numbers else None
        self._sink.write(snapshot(step, *[each for each in (own, of_run) if each is not None]))
        self.written |= {(self.rank, row, step): value for row, value in zip(self.rows, high, strict=True)}

    def end(self, findings: int = 0) -> None:
        """End the run of this rank."""
        self._sink.close()
        write_manifest(self.directory, {**self._about, "end_time": START, "findings": findings})

    def kill(self) -> None:
        """Leave the files as a killed process does."""
        self._sink.close()


def random_values(seed: int, number: int) -> list[float]:
    """Numbers of many magnitudes, some of them NaN, infinite or equal, as files hold them: of six digits."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(number) * 10.0 ** random.integers(-20, 20, number)
    kind = random.integers(0, 20, number)
    for chosen, value in ((0, np.nan), (1, np.inf), (2, -np.inf), (3, 0.0), (4, 1.5), (5, 1.5)):
        values[kind == chosen] = value
    return [float(f"{value:.6g}") for value in values]


class ExpectedCells(NamedTuple):
    """Cells of rows x columns."""

    minimum: npt.NDArray[np.float64]
    maximum: npt.NDArray[np.float64]
    nan: npt.NDArray[np.int64]
    inf: npt.NDArray[np.int64]
    least: npt.NDArray[np.float64]
    rank: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]


def expected_cells(written: Numbers, lines: list[Any], steps: list[Any], by_rank: bool = False) -> ExpectedCells:
    """The cells of ``written``, one value after the other.

    Args:
        lines: rows; ranks if ``by_rank``.
        steps: first and last step of each column.
    """
    shape = len(lines), len(steps)
    cells = ExpectedCells(*(np.full(shape, fill) for fill in (np.nan, np.nan, 0, 0, np.nan, -1, 0)))
    for line, name in enumerate(lines):
        for column, (first, last) in enumerate(steps):
            own = [
                (step, rank, value)
                for (rank, row, step), value in sorted(written.items())
                if (rank if by_rank else row) == name and first <= step <= last
            ]
            good = [value for *_, value in own if not np.isnan(value)]
            cells.nan[line, column], cells.inf[line, column] = len(own) - len(good), sum(map(np.isinf, good))
            if good:
                cells.minimum[line, column], cells.maximum[line, column] = min(good), max(good)
            cells.least[line, column] = min((abs(value) for value in good if not np.isinf(value)), default=np.nan)
            if own:
                shown = max(
                    own, key=lambda one: (np.inf if np.isnan(one[2]) else min(abs(one[2]), 1e300), -one[0], -one[1])
                )
                cells.step[line, column], cells.rank[line, column] = shown[:2]
    return cells


def _severity(number: tuple[int, int, float]) -> tuple[bool, float, int, int]:
    """The larger one is shown of two numbers, each with its step and rank: NaN, then by magnitude, then the first."""
    step, rank, value = number
    return bool(np.isnan(value)), 0.0 if np.isnan(value) else abs(value), -step, -rank


def arrays_of(cells: CellArrays) -> dict[str, Any]:
    """Arrays of cells, with rank and step of the number that each shows."""
    places = RANKS.of(cells)
    return {**cells, "step": places.step, "rank": np.where(cells["count"] == 0, -1, places.directory)}


def assert_cells(found: Mapping[str, Any], expected: ExpectedCells) -> None:
    """Every array is as expected, to the last bit."""
    for name in ExpectedCells._fields:
        np.testing.assert_array_equal(found[name], getattr(expected, name), err_msg=name)
