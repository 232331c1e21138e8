"""Layout of ``monitor_metrics.db``: the file, its tables and their names, and the statements that make them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from probe.core.storage.sql import literal, quoted

SUFFIX = ".db"
FILE_NAME = f"monitor_metrics{SUFFIX}"
RUN_FILE_NAME = f"run_numbers{SUFFIX}"
"""Database of the numbers of the run, which another thread writes."""
FILE_NAMES = (FILE_NAME, RUN_FILE_NAME)
SCHEMA = 1
"""Version of the layout; increased when a query written for the older one would be wrong."""

FIXED = ("rank", "step", "target_id", "form_id")
"""Columns of every table of rows, before those of the ops."""

MOST_VIEWED = 400
"""Tables in one view at most; the limit of SQLite is 500."""

TABLES = """
CREATE TABLE IF NOT EXISTS monitoring_targets (
    target_id INTEGER PRIMARY KEY, target_name TEXT NOT NULL, vpp_stage INTEGER NOT NULL,
    micro_step INTEGER NOT NULL DEFAULT 0, call INTEGER NOT NULL DEFAULT 0,
    UNIQUE (target_name, vpp_stage, micro_step, call));
CREATE TABLE IF NOT EXISTS monitoring_metrics (metric_id INTEGER PRIMARY KEY, metric_name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS metric_stats (
    metric_id INTEGER NOT NULL, stat_name TEXT NOT NULL, PRIMARY KEY (metric_id, stat_name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metric_targets (
    metric_id INTEGER NOT NULL, target_id INTEGER NOT NULL, position INTEGER NOT NULL, micro_stepped INTEGER NOT NULL,
    PRIMARY KEY (metric_id, target_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tensor_forms (
    form_id INTEGER PRIMARY KEY, shape TEXT NOT NULL, dtype TEXT NOT NULL, coverage TEXT NOT NULL,
    UNIQUE (shape, dtype, coverage));
CREATE TABLE IF NOT EXISTS global_stats (stat_name TEXT PRIMARY KEY, stat_value INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS imported_files (
    file TEXT PRIMARY KEY, metric_name TEXT NOT NULL, rank INTEGER NOT NULL, size INTEGER NOT NULL,
    modified_ns INTEGER NOT NULL, row_count INTEGER NOT NULL, bad_rows INTEGER NOT NULL);
"""


def table_name(metric_id: int, first: int, last: int) -> str:
    """Return the name of the table with a metric's rows from step ``first`` to step ``last``."""
    return f"metric_{metric_id}_step_{first}_{last}"


class RowTable(NamedTuple):
    """The parsed name of such a table."""

    metric_id: int
    first: int


def row_table(name: str) -> RowTable | None:
    """Parse the name of a table of rows; None for another table."""
    match = re.fullmatch(r"metric_(\d+)_step_(\d+)_\d+", name)
    return None if match is None else RowTable(int(match[1]), int(match[2]))


def row_tables(connection: sqlite3.Connection) -> list[str]:
    """Return the names of all tables of rows."""
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'")
    return [name for (name,) in names if row_table(name)]  # a virtual table is not one of ours


def index_name(table: str) -> str:
    """Return the name of the index of a table of rows."""
    return f"{table}_target"


def create_table(table: str, first: int, last: int, stats: Sequence[str]) -> str:
    """Return the statement that makes ``table`` if it is missing: clustered for "all layers at this step"."""
    columns = "".join(f", {quoted(stat)} REAL" for stat in stats)
    return (
        f"CREATE TABLE IF NOT EXISTS {table} (rank INTEGER NOT NULL, "
        f"step INTEGER NOT NULL CHECK (step BETWEEN {first} AND {last}), "
        f"target_id INTEGER NOT NULL, form_id INTEGER NOT NULL{columns}, "
        "PRIMARY KEY (step, rank, target_id)) WITHOUT ROWID"
    )


def create_index(table: str) -> str:
    """Return the statement that indexes ``table`` for "this layer over steps"."""
    return f"CREATE INDEX IF NOT EXISTS {index_name(table)} ON {table} (target_id, rank, step)"


def view_name(metric: str) -> str:
    """Return the name of the view of all rows of ``metric``, names included."""
    return f"{metric}_rows"


def row_query(metric: str, name: str, step: str) -> str:
    """Return a query for the rows of a tensor at a step; ``name`` and ``step`` may be placeholders."""
    return f"SELECT * FROM {quoted(view_name(metric))} WHERE target_name = {literal(name)} AND step = {step}"  # noqa: S608


def create_view(metric: str, tables: Sequence[tuple[str, Sequence[str]]], stats: Sequence[str]) -> str:
    """Return the statement that makes the view of ``metric``.

    Args:
        tables: each table of rows, with the stats that it has a column for.
        stats: the columns of the view.
    """
    columns = (
        "".join(f", {quoted(s) if s in columns_of_table else 'NULL'} AS {quoted(s)}" for s in stats)
        for _, columns_of_table in tables
    )
    parts = " UNION ALL ".join(
        f"SELECT rank, step, vpp_stage, target_name, micro_step{selected}, shape, dtype, coverage, target_id "  # noqa: S608
        f"FROM {table} JOIN monitoring_targets USING (target_id) JOIN tensor_forms USING (form_id)"
        for (table, _), selected in zip(tables, columns, strict=True)
    )
    return f"CREATE VIEW {quoted(view_name(metric))} AS {parts}"
