"""Damaged and foreign Parquet files among those of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.storage.run_files import write_run
from tests.core.storage.test_damaged_files import commands, ended
from tests.required import require

pytestmark = pytest.mark.slow

duckdb = require("duckdb")

FOREIGN = {
    "other columns": "SELECT 1 AS a",
    "text for numbers": "SELECT 0 AS vpp_stage, 'w' AS name, 'x' AS step, 1.5::DOUBLE AS norm",
    "a structure": "SELECT 0 AS vpp_stage, 'w' AS name, 0 AS step, {'a': 1} AS norm",
    "thousands of columns": "SELECT 0 AS vpp_stage, 'w' AS name, 0 AS step, "
    + ", ".join(f"1.5::DOUBLE AS c{n}" for n in range(2000)),
}


def test_damaged_parquet_files_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    """Cut, with a bad page, and none of ours: each is left out by every command."""
    rank = write_run(tmp_path / "run", 0, range(4), sink="parquet", steps_per_file=4)
    write_run(tmp_path / "other", 0, range(4), sink="parquet", steps_per_file=4)
    data = (rank / "actv_0-3.parquet").read_bytes()
    (rank / "momentum_0-3.parquet").write_bytes(data[: len(data) // 2] + data[-8:])
    (rank / "variance_0-3.parquet").write_bytes(data[:4] + b"\xff" * 16 + data[20:])
    for number, query in enumerate(FOREIGN.values()):
        duckdb.sql(query).write_parquet(str(rank / f"foreign{number}_0-3.parquet"))
    names = ["momentum", "variance", *(f"foreign{number}" for number in range(len(FOREIGN)))]
    for command, arguments in commands(tmp_path / "run", tmp_path / "other", tmp_path).items():
        if command == "merge":  # reads CSV alone
            continue
        result = ended(arguments)
        assert result.exit_code == (0 if command == "status" else 1), (command, result.output)
        text = result.output.replace("\n", "")
        if command != "status":
            assert [name for name in names if f"{name}_0-3.parquet" not in text] == [], command
        if command == "csv2db":
            assert f"{4 * 6} rows of 2 files" in text


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5])
def test_zeros_in_a_parquet_file_end_no_command(tmp_path: Path, place: float) -> None:
    """A block that a disk has lost: the file is left out, or its numbers are read, which no checksum guards."""
    rank = write_run(tmp_path / "run", 0, range(4), sink="parquet", steps_per_file=4)
    path = rank / "actv_0-3.parquet"
    data = bytearray(path.read_bytes())
    begin = int(place * len(data))
    data[begin : begin + 64] = bytes(64)
    path.write_bytes(data)
    result = ended(["anomalies", str(tmp_path / "run")])
    assert result.exit_code in (0, 1)
    assert (result.exit_code == 1) == ("actv_0-3.parquet" in result.output.replace("\n", "") or "NaN" in result.output)
