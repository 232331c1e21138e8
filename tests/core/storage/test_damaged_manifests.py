"""Manifests with values that no run writes: the field, or the file, is not used, and the ranks' rows are read."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.core.storage.run_files import write_run
from tests.core.storage.test_damaged_files import commands, ended
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

ODD = [None, True, -1, 10**30, 1.5, "1", [[]], {"x": {"y": [1]}}]
READ = (
    "rank",
    "world_size",
    "run",
    "start_time",
    "first_step",
    "pp_stage",
    "groups",
    "config",
    "control",
    "changes",
    "cost_seconds",
    "findings",
    "faults",
    "resumed",
    "framework",
)
TEXTS = {
    "brackets without end": "[" * 200_000,
    "closed ones": "[" * 100_000 + "]" * 100_000,
    "braces": '{"a":' * 100_000,
    "deep, but JSON": json.dumps({"config": 0}).replace("0", "[" * 500 + "]" * 500),
    "a number of 100,000 digits": '{"rank": ' + "1" * 100_000 + "}",
    "numbers that JSON lacks": '{"world_size": Infinity, "first_step": NaN, "pp_stage": -Infinity}',
    "no text": "\0" * 100,
    "a mapping for each field": json.dumps({key: {"x": [1]} for key in READ}),
    **{f"{value!r} for each field": json.dumps(dict.fromkeys(READ, value)) for value in ODD},
}


def test_every_rank_is_read_whatever_its_manifest_says(tmp_path: Path) -> None:
    """Each rank has such a manifest: every command logs each one that it cannot use."""
    for rank, text in enumerate(TEXTS.values()):
        directory = write_run(tmp_path / "run", rank, [0])
        (directory / "manifest.json").write_text(text)
    for command, arguments in commands(tmp_path / "run", tmp_path / "run", tmp_path).items():
        result = ended(arguments)
        assert result.exit_code in (0, 1), (command, result.output)
    with closing(sqlite3.connect(tmp_path / "db" / "monitor_metrics.db")) as database:
        found = database.execute("SELECT rank, count(*) FROM actv_rows GROUP BY rank ORDER BY rank").fetchall()

    assert found == [(rank, 4) for rank in range(len(TEXTS))]
    logged = ended(["csv2tb", str(tmp_path / "run"), "-o", str(tmp_path / "again")]).output
    assert "nested more than 64 levels deep" in logged
    assert "not used" in logged
