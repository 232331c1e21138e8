"""What other trackers have stored, read without their code: databases of SQLite, and records of protocol buffers."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.core.trackers.wandb_file import fields, records

SWANLAB_HEADER = b":SWL"
START, SCALAR = 10, 13
"""Fields of a record of SwanLab."""
Values = dict[tuple[int, str], float]
"""Values by step and name."""


SwanlabRun = tuple[Values, dict[str, list[str]], str]
"""Values, texts by the ending of their files, and the project of a run."""


def of_swanlab(folder: Path) -> SwanlabRun:
    """The only run in ``folder``."""
    (path,) = folder.glob("swanlog/run-*/*.swanlab")
    return swanlab_run(path)


def swanlab_run(path: Path) -> SwanlabRun:
    """The run in a file."""
    values: Values = {}
    project = ""
    for record in records(path, SWANLAB_HEADER):
        for number, value in fields(record):
            if number == START:
                project = dict(fields(value))[1].decode()
            elif number == SCALAR:
                about = dict(fields(value))
                held = dict(fields(about[5])).get(1, bytes(8))
                key = about.get(2, 0), about[1].decode()
                assert key not in values
                values[key] = struct.unpack("<d", held)[0]
    texts: dict[str, list[str]] = {}
    for file in sorted(path.parent.glob("media/*/*")):
        texts.setdefault(file.suffix, []).append(file.read_text("utf-8"))
    return values, texts, project


def of_trackio(folder: Path, project: str) -> tuple[Values, dict[str, Any], list[tuple[str, str, str]]]:
    """Values, tables and texts by name, and alerts."""
    values: Values = {}
    others: dict[str, Any] = {}
    with closing(sqlite3.connect(folder / f"{project}.db")) as database:
        for step, held in database.execute("SELECT step, metrics FROM metrics ORDER BY id"):
            for name, value in json.loads(held).items():
                if isinstance(value, Mapping):
                    others[name] = value["_value"]
                else:
                    assert (step, name) not in values or name == "probe/step"
                    values[step, name] = float(value)
        alerts = database.execute("SELECT title, text, level FROM alerts").fetchall()
    return values, others, alerts


def of_mlflow(database: Path) -> tuple[list[tuple[int, str, float, int]], dict[str, str], list[tuple[str, str]]]:
    """Metrics as step, name, value and mark of NaN; tags; status of each run with the name of its experiment."""
    with closing(sqlite3.connect(database)) as connection:
        metrics = connection.execute("SELECT step, key, value, is_nan FROM metrics").fetchall()
        tags = dict(connection.execute("SELECT key, value FROM tags").fetchall())
        query = "SELECT runs.status, e.name FROM runs JOIN experiments e ON e.experiment_id = runs.experiment_id"
        runs = connection.execute(query).fetchall()
    return metrics, tags, runs


def mlflow_tag(database: Path, key: str) -> dict[str, str]:
    """A tag of each run, by the name of its experiment."""
    query = "SELECT e.name, t.value FROM tags t JOIN runs r ON r.run_uuid = t.run_uuid "
    query += "JOIN experiments e ON e.experiment_id = r.experiment_id WHERE t.key = ?"
    with closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute(query, [key]).fetchall())
