"""Result of a comparison as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from probe.core.analysis.compare.compare import Comparison
from probe.core.analysis.compare.explain import COLUMNS, about, place, verdict
from probe.core.analysis.report.page import PageSection
from probe.core.analysis.report.page import page as framed
from probe.core.naming import signal_of

SMALLEST = -8
"""Smallest power of ten that is drawn."""
INFINITE = 2
"""Power of ten that stands for an infinite difference; larger differences are drawn the same."""


def page(found: Comparison) -> str:
    """Text of an HTML file that needs no network.

    Raises:
        ImportError: if plotly is missing.
    """
    title = f"{Path(found.a).name} and {Path(found.b).name}"
    script = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
    subtitle = f"A: {found.a}; B: {found.b}"
    return framed(title, list(_sections(found)), subtitle=subtitle, plotly=True, data=_data(found), scripts=[script])


def _sections(found: Comparison) -> Iterator[PageSection]:
    kind = "good" if found.agrees and not found.skipped else "bad"
    lines = "".join(f"<p>{escape(line)}</p>" for line in about(found))
    yield PageSection("verdict", "Verdict", f'<div class="card {kind}"><p>{escape(verdict(found))}</p></div>{lines}')
    if found.first:
        rows = [(str(row.rank), *place(row)) for row in found.first]
        what = f"<p>The first {len(rows)} of {found.beyond}, in causal order. Step 7.1 is step 7, micro step 1.</p>"
        yield PageSection("rows", "Rows that differ", what + _table(("rank", *COLUMNS), rows))
    if found.jumps:
        parted = [
            (str(j.rank), f"{j.step}.{j.micro_step}", j.signal, j.module, f"{j.before:.2g}", f"{j.after:.2g}")
            for j in found.jumps
        ]
        columns = ("rank", "step", "signal", "module", "goes in", "comes out")
        what = "<p>The largest relative differences of what goes into a module and of what comes out of it.</p>"
        yield PageSection("modules", "Modules in which the runs part", what + _table(columns, parted))
    counts = [
        (signal, signal_of(signal).meaning, str(rows), str(beyond), f"{largest:.2g}")
        for signal, rows, beyond, largest in found.counts
    ]
    yield PageSection(
        "signals", "Signals", _table(("signal", "meaning", "rows", "differ", "largest difference"), counts)
    )
    yield PageSection("growth", "Differences over steps", '<div id="growth-plot" class="plot"></div>')
    shown = found.first[0].signal if found.first else ""
    options = "".join(
        f"<option{' selected' * (layers.signal == shown)}>{escape(layers.signal)}</option>" for layers in found.layers
    )
    chooser = f'<div class="controls"><label>signal <select id="layers-signal">{options}</select></label></div>'
    what = "<p>The largest relative difference of each name in each range of steps, in the order of execution.</p>"
    yield PageSection("layers", "Differences by layer", f'{what}{chooser}<div id="layers-plot" class="plot"></div>')
    if found.problems:
        listed = "".join(f"<li>{escape(problem)}</li>" for problem in found.problems)
        yield PageSection("problems", "Data that could not be read", f"<ul>{listed}</ul>")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    numbers = {"rank", "step", "A", "B", "relative", "rows", "differ", "largest difference", "goes in", "comes out"}
    kinds = [' class="number"' if column in numbers else "" for column in columns]
    head = "".join(f"<th{kind}>{escape(column)}</th>" for kind, column in zip(kinds, columns, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _data(found: Comparison) -> dict[str, object]:
    growth = [
        {"signal": each.signal, "steps": each.steps, "powers": [_power(value) for value in each.differences],
         "texts": [f"{value:.2g}" for value in each.differences]}
        for each in found.growth
    ]  # fmt: skip
    layers = {
        each.signal: {
            "names": each.names,
            "steps": each.steps,
            "powers": [[_power(value) for value in row] for row in each.differences],
        }
        for each in found.layers
    }
    return {"growth": growth, "layers": layers, "tolerance": _power(found.tolerance), "ends": [SMALLEST, INFINITE]}


def _power(value: float | None) -> float | None:
    """Logarithm to base 10, between :data:`SMALLEST` and :data:`INFINITE`; None for None."""
    if value is None:
        return None
    power = math.log10(value) if 0 < value < math.inf else SMALLEST if value <= 0 else INFINITE
    return round(min(max(power, SMALLEST), INFINITE), 3)
