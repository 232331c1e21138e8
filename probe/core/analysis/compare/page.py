"""Result of a comparison for the page, and as one HTML file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from probe.core.analysis.compare.compare import Comparison
from probe.core.analysis.compare.explain import COLUMNS, about, place, sentence, verdict
from probe.core.analysis.compare.first_difference import DifferingRow
from probe.core.analysis.pictures.static_page import static_page
from probe.core.language import in_language, message
from probe.core.naming import signal_of
from probe.core.storage.layout import MICRO_STEP
from probe.core.storage.run_directory import plain


def page(comparison: Comparison) -> str:
    """Text of an HTML file that needs no network."""
    names = [Path(side).name for side in (comparison.a, comparison.b)]
    runs = {
        f"/api/runs/{n}": {"number": n, "name": names[n], "location": side, "signals": [], "numbers": []}
        for n, side in enumerate((comparison.a, comparison.b))
    }
    command = f"probe view {shlex.quote(comparison.a)} {shlex.quote(comparison.b)}"
    answers = {"/api/compare?run=0&against=1": {"state": "done", **answer(comparison)}, "/api/command": command, **runs}
    return static_page(f"{names[0]} ↔ {names[1]} – probe", answers)


def answer(comparison: Comparison) -> dict[str, Any]:
    """Comparison as the page asks for it, its sentences in Chinese under ``zh``; NaN and Inf are texts."""
    differences = [_difference(row) for row in comparison.first]
    fields: dict[str, Any] = plain(
        {
            "same": comparison.same,
            "agrees": comparison.agrees and not comparison.skipped,
            "first_difference": differences[0] if differences else None,
            "differences": differences,
            "beyond": comparison.beyond,
            "rows": [(row.rank, *place(row)) for row in comparison.first],
            "jumps": [
                (j.rank, f"{j.step}.{j.micro_step}", j.signal, j.module, f"{j.before:.2g}", f"{j.after:.2g}")
                for j in comparison.jumps
            ],
            "growth": comparison.growth,
            "layers": comparison.layers,
            "tolerance": comparison.tolerance,
            **_texts(comparison, "en"),
            "zh": _texts(comparison, "zh_CN"),
            "problems": comparison.problems,
        }
    )
    return fields


def _texts(comparison: Comparison, language: str) -> dict[str, Any]:
    def text(template: str) -> str:
        return in_language(message(template), language)

    return {
        "verdict": in_language(verdict(comparison), language),
        "about": [in_language(line, language) for line in about(comparison)],
        "columns": [text(column) for column in ("rank", *COLUMNS)],
        "counts": [
            (signal, text(signal_of(signal).meaning), rows, beyond, f"{largest:.2g}")
            for signal, rows, beyond, largest in comparison.counts
        ],
    }


def _difference(row: DifferingRow) -> dict[str, object]:
    number = row.numbers[0] if row.numbers else None
    return {
        "sentence": sentence(row),
        "signal": row.signal,
        "row": row.name,
        "row_b": row.name_b,
        "stage": row.stage,
        "op": number.op if number else "",
        "rank": row.rank,
        "step": row.step,
        MICRO_STEP: row.micro_step if row.micro_stepped else None,
        "left": number.a if number else None,
        "right": number.b if number else None,
        "relative": number.difference if number else None,
    }
