"""Which ranks compute on parts of the same tensors, told by their rows."""

from __future__ import annotations

from probe.core.storage.cells import coverage_of
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import TableFile

SIGNALS = ("grad_unreduced", "actv")
"""Signals whose rows are about parts where ranks share a computation. Where they only share storage (FSDP, ZeRO), each
has a gradient of its own of the whole."""


def sharers(rows: Rows) -> dict[int, tuple[int, ...]]:
    """The ranks with which each rank shares tensors while it computes; ranks that share none are left out."""
    found: dict[int, set[int]] = {}
    for signal in SIGNALS:
        for rank, file in _first_files(rows, signal).items():
            source = rows.source([file])
            if "coverage" not in (file.columns or rows.columns(source)):
                continue
            query = f"SELECT DISTINCT coverage FROM {source} WHERE coverage <> ''"  # noqa: S608 - our own words
            covers = (coverage_of(text) for (text,) in rows.connection.execute(query).fetchall())
            found.setdefault(rank, set()).update(rank for cover in covers if cover for rank in cover.ranks)
    return {rank: tuple(sorted(ranks)) for rank, ranks in found.items() if len(ranks) > 1}


def _first_files(rows: Rows, signal: str) -> dict[int, TableFile]:
    first: dict[int, TableFile] = {}
    for n, file in rows.files.get(signal, ()):
        first.setdefault(rows.directories[n].rank, file)
    return first
