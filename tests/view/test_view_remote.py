"""Runs in object storage on the page: as those of a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.object_storage import moto
from tests.required import require
from tests.view.view_data import SIGNAL, Numbers, WrittenRank, expected_cells, random_values
from tests.view.view_process import viewing

require("duckdb")
require("s3fs")


def test_a_run_in_a_bucket_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its picture, its curve and its row have the values, of one rank in text and of one in Parquet."""
    written, sinks = {}, ("csv", "parquet")
    for number in range(2):
        rank = WrittenRank(tmp_path / "run", number, sink=sinks[number])
        for step in range(25):
            rank.write(step, random_values(100 * number + step, 3))
        rank.end()
        written |= rank.written
    with moto(tmp_path / "moto") as storage:
        for name, value in storage.environment.items():
            monkeypatch.setenv(name, value)
        place = storage.put(tmp_path / "run", "view/run")
        _check(tmp_path, place, written)


def _check(tmp_path: Path, place: str, written: Numbers) -> None:
    with viewing(tmp_path / "server", place.removesuffix("/run")) as server:
        [run] = server.get("/api/runs")["runs"]
        assert (run["location"], run["ranks"], run["last_step"]) == (place, 2, 29)
        found = server.binary("/api/runs/0/heatmap", signal=SIGNAL, op="max")
        expected = expected_cells(written, ["a", "b", "c"], found.header["steps"])
        for name in expected._fields:
            np.testing.assert_array_equal(found.arrays[name], getattr(expected, name))
        curve = server.binary("/api/runs/0/curve", signal=SIGNAL, op="max", row="b", ranks="1")
        np.testing.assert_array_equal(curve.maximum[0], [written[1, "b", step] for step in range(25)])
        for rank, line, suffix in ((0, 13, "csv"), (1, None, "parquet")):
            row = server.get("/api/runs/0/row", signal=SIGNAL, row="c", rank=rank, step=3)
            assert (row["line"], row["file"].endswith(f"0-9.{suffix}")) == (line, True)
