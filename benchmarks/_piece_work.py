"""Functions of a piece, for the benchmark of engines: workers import them from here."""

from __future__ import annotations

from probe.core.analysis.diagnosis.evaluate import RankEvaluator, ops_of
from probe.core.analysis.pieces import Piece
from probe.core.config.schema import AlertSettings
from probe.core.storage.duckdb_reader import Rows


def nothing(piece: Piece) -> int:
    """Do nothing."""
    return len(piece.ranks)


def judge(rows: Rows, piece: Piece) -> int:
    """Judge all ranks by the default rules; return the number of rows."""
    ops = ops_of(rows)
    return sum(RankEvaluator(rows, rank, AlertSettings(), ops).run().rows for rank in piece.ranks)
