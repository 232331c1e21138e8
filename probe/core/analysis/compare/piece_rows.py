"""Rows of a piece in both runs, side by side in one database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.core.analysis.compare.compared_piece import OpenPiece
from probe.core.analysis.compare.pairing import RowPairing
from probe.core.naming import STATE_PHASE, signal_of
from probe.core.storage.batches import steps
from probe.core.storage.duckdb_reader import Rows, fill
from probe.core.storage.layout import CALL, MICRO_STEP, NAME, STEP, cell_name
from probe.core.storage.sql import literal, quoted
from probe.core.storage.table_files import size_and_time

WINDOW = 1 << 25
"""Size in bytes of the files of one signal of one run that are read at a time."""


class PieceRows:
    """Rows of an open piece, with the tables ``ranks``, ``names``, ``noise`` and ``steps`` of a pairing for queries."""

    def __init__(self, opened: OpenPiece, pairing: RowPairing) -> None:
        self.pairing, self.connection, self.a, self.b = pairing, opened.connection, opened.a, opened.b
        first, last = opened.piece.steps or (pairing.steps[0], pairing.steps[-1])
        steps = [step for step in pairing.steps if first <= step <= last]
        self.span = (steps[0], steps[-1]) if steps else None
        """First and last step that are compared; None if there is none."""
        fill(self.connection, "ranks", {"a": "INTEGER", "b": "INTEGER"}, opened.piece.pairs)
        fill(self.connection, "noise", {"name": "VARCHAR"}, ((name,) for name in pairing.noise))
        fill(self.connection, "names", {"a": "VARCHAR", "b": "VARCHAR"}, pairing.names.items())
        fill(self.connection, "steps", {"step": "BIGINT"}, ((step,) for step in steps))
        fill(self.connection, "left_out", {"signal": "VARCHAR", "step": "BIGINT"}, pairing.left_out)

    def windows(self, signal: str) -> Iterator[tuple[int, int]]:
        """Ranges of A's steps, first and last, that are compared one at a time."""
        if self.span is None:
            return
        (begin, last), total = self.span, 0
        for first, size in sorted((file.first, size_and_time(file)[0]) for _, file in self.a.blocks.get(signal, ())):
            if total >= WINDOW and begin < first <= last:
                yield begin, first - 1
                begin, total = first, 0
            total += size
        yield begin, last

    def selected(self, signal: str, first: int, last: int) -> tuple[str, str]:
        """Queries for the rows of A and B of a signal in a range of A's steps; keys are A's, except ``name``, B's.

        Those of A have ``rms`` too, the root mean square of the elements, and ``noise``: true if the gradient of the
        parameter is nothing but rounding.
        """
        pairing, offset = self.pairing, self.pairing.step_offset
        ops = pairing.ops[signal]
        idle = _idle(ops) if signal_of(signal).phase == STATE_PHASE else "false"
        fixed = f"shape, dtype, elements(shape) AS elements, {idle} AS idle"
        condition = f"WHERE t.step NOT IN (SELECT step FROM left_out WHERE signal = {literal(signal)})"  # noqa: S608
        noise = "f.name IN (SELECT name FROM noise)" if is_about_parameters(signal) else "false"
        a = (
            "SELECT r.a AS rank, vpp_stage AS stage, coalesce(n.b, f.name, '') AS name, f.name AS own, f.step, "  # noqa: S608
            f"micro_step, call, {fixed}, norm / sqrt(greatest(elements(shape), 1)) AS rms, {noise} AS noise"
            f"{_listed(ops)} "
            f"FROM {_read(self.a, signal, first, last, ops)} AS f "
            "JOIN ranks AS r ON r.a = f.rank LEFT JOIN names AS n ON n.a = f.name JOIN steps AS t ON t.step = f.step "
            f"{condition}"
        )
        of_b = _read(self.b, pairing.signals[signal], first + offset, last + offset, ops)
        b = (
            "SELECT r.a AS rank, vpp_stage AS stage, coalesce(f.name, '') AS name, f.name AS own, t.step, "  # noqa: S608
            f"micro_step, call, {fixed}{_listed(ops)} FROM {of_b} AS f "
            f"JOIN ranks AS r ON r.b = f.rank JOIN steps AS t ON t.step = f.step - {offset} {condition}"
        )
        return a, b


def is_about_parameters(signal: str) -> bool:
    """Return whether rows of a signal have the names of parameters: also those of optimizer state."""
    return signal.startswith(("grad_", "param_")) or signal_of(signal).phase == STATE_PHASE


def positions(rows: Rows, signal: str, step: int, rank: int) -> dict[tuple[int, str, int, int], int]:
    """Return the positions of a rank's rows in the step's order of execution, by stage, name, micro step and call."""
    batches = [batch for step_read in steps(rows, rank, step, step, [signal]) for batch in step_read.batches]
    keys = [key for batch in batches for key in batch.keys]
    return {(k.stage, cell_name(k), k.micro_step, k.call): n for n, k in enumerate(keys)}


def _listed(ops: Sequence[str]) -> str:
    return "".join(f", {quoted(op)}::DOUBLE AS {quoted(op)}" for op in ops)  # Parquet files may have whole numbers


def _read(rows: Rows, signal: str, first: int, last: int, ops: Sequence[str]) -> str:
    """SQL for rows of a signal with ``norm`` and ``ops``, NULL where the files of the piece lack them."""
    all_ops = dict.fromkeys(("norm", *ops))
    if signal not in rows.files:
        texts = f"NULL::VARCHAR AS {NAME}, NULL::VARCHAR AS shape, NULL::VARCHAR AS dtype"
        numbers = ", ".join(f"NULL::DOUBLE AS {quoted(op)}" for op in all_ops)
        keys = f"0 AS rank, 0 AS vpp_stage, 0::BIGINT AS {STEP}, 0 AS {MICRO_STEP}, 0 AS {CALL}"
        return f"(SELECT {keys}, {texts}, {numbers} LIMIT 0)"
    absent = [op for op in all_ops if op not in rows.numbers(signal)]
    more = "".join(f", NULL::DOUBLE AS {quoted(op)}" for op in absent)
    return f"(SELECT *{more} FROM {rows.between(signal, first, last)})"  # noqa: S608 - no word is a user's


def _idle(ops: Sequence[str]) -> str:
    """Condition for rows of zeros alone, such as optimizer state before the first update, which not every tool
    writes."""
    if "norm" in ops:
        return "coalesce(norm = 0, false)"
    if "min" in ops and "max" in ops:
        return 'coalesce("min" = 0 AND "max" = 0, false)'
    return "false"
