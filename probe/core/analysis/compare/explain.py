"""Result of a comparison as text, as a table and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from probe.core.analysis.compare.compare import Comparison
from probe.core.analysis.compare.first_difference import DifferingRow
from probe.core.analysis.compare.jumps import FORWARD, Jump
from probe.core.analysis.pictures.static_page import static_page
from probe.core.messages import plural, printable
from probe.core.naming import signal_of
from probe.core.storage.layout import MICRO_STEP
from probe.core.storage.run_directory import plain

LISTED = 10
"""Most names in one run alone that are shown."""
SUDDEN = 10
"""Multiple of the largest difference of the steps before from which on a difference has not grown out of rounding."""


def verdict(comparison: Comparison) -> str:
    """One sentence or two: whether the runs are the same, and the first difference."""
    if comparison.beyond:
        first = f"First difference: {sentence(comparison.first[0])}. {_growth(comparison)}"
        jump = next((jump for jump in comparison.jumps[:1] if jump.step <= comparison.first[0].step), None)
        if jump is not None:
            return f"The runs part in {_module(jump)}: {jump_text(jump)}. Look there. {first}"
        return f"The runs differ. {first}"
    left_out = ", as far as they could be read" if comparison.skipped else ""
    if not comparison.rows:
        return "The runs have no row in common: their names differ. Give a file of names with --map."
    if not comparison.largest:
        extent = f"all numbers of {comparison.rows} pairs of rows are equal, to the digits that were written{left_out}."
    else:
        largest = f"the largest relative difference is {comparison.largest:.2g}"
        extent = (
            f"{comparison.rows} pairs of rows are within {comparison.tolerance:g} of each other{left_out}; {largest}."
        )
    if comparison.jumps:
        return (
            f"The runs part in {_module(comparison.jumps[0])}: {jump_text(comparison.jumps[0])}. Look there; {extent}"
        )
    if comparison.one_sided and not comparison.common:
        return f"The runs differ: one has data that the other lacks (--common ignores these). {_capital(extent)}"
    return (
        f"The runs are the same: {extent}"
        if not comparison.largest
        else f"The runs agree within {comparison.tolerance:g}: {extent}"
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _module(jump: Jump) -> str:
    return f"module {jump.module}" if jump.module else "the root module"


def jump_text(jump: Jump) -> str:
    """Text of what goes into a module and what comes out, without its name."""
    goes, comes = (
        ("what goes into it", "its output")
        if jump.signal == FORWARD
        else ("what goes into its backward", "the gradient of its input")
    )
    where = f"step {jump.step}, micro step {jump.micro_step}, rank {jump.rank}"
    agrees = f"agrees to {jump.before:.1g}" if jump.before else "is equal to the digits that were written"
    return f"{goes} {agrees}, {comes} differs by {jump.after:.2g} ({where})"


def sentence(row: DifferingRow) -> str:
    """Text of the place of a row and of the number that differs most."""
    micro = f", micro step {row.micro_step}" if row.micro_stepped else ""
    name = row.name + (f" ({row.name_b} in B)" if row.name_b != row.name else "")
    return (
        f"step {row.step}{micro}, rank {row.rank}: {row.signal} {name} ({signal_of(row.signal).meaning}): {what(row)}"
    )


def what(row: DifferingRow) -> str:
    """Text of the number that differs most."""
    if row.shapes_differ:
        return f"shape {row.shape} against {row.shape_b}"
    if row.dtypes_differ:
        return f"dtype {row.dtype} against {row.dtype_b}"
    number = row.numbers[0]
    return f"{number.op} {_text(number.a)} against {_text(number.b)}, relative difference {number.difference:.2g}"


COLUMNS = ("step", "signal", "name", "number", "A", "B", "relative")
"""Columns of a table of rows."""


def place(row: DifferingRow) -> tuple[str, ...]:
    """Cells of a row in a table: see :data:`COLUMNS`."""
    step = f"{row.step}.{row.micro_step}" if row.micro_stepped else str(row.step)
    name = row.name + (f" = {row.name_b}" if row.name_b != row.name else "")
    if row.shapes_differ:
        return step, row.signal, name, "shape", row.shape, row.shape_b, ""
    if row.dtypes_differ:
        return step, row.signal, name, "dtype", row.dtype, row.dtype_b, ""
    number = row.numbers[0]
    return step, row.signal, name, number.op, _text(number.a), _text(number.b), f"{number.difference:.2g}"


def about(comparison: Comparison) -> Iterator[str]:
    """Lines about the data that were compared, and those that only one run has."""
    ranks = ", ".join(str(a) if a == b else f"{a}:{b}" for a, b in comparison.ranks[:8]) + ", ..." * (
        len(comparison.ranks) > 8
    )
    dtype = f" ({comparison.dtype})" if comparison.dtype else ""
    of = plural(len(comparison.ranks), "rank")
    first, last = comparison.steps
    yield f"steps {first} to {last}, {of} {ranks}, relative tolerance {comparison.tolerance:g}{dtype}"
    renamed = comparison.renamed - comparison.by_framework
    if renamed:
        yield f"{renamed} {plural(renamed, 'name is', 'names are')} different in B"
    if comparison.by_framework:
        are = plural(comparison.by_framework, "parameter is", "parameters are")
        yield f"{comparison.by_framework} {are} named as in the other framework (gamma for weight, ...)"
    if comparison.precision:
        yield f"dtypes of most names differ, so that they are not compared: {', '.join(comparison.precision)}"
    for kind, only in (
        ("signals", comparison.only_signals),
        ("ranks", comparison.only_ranks),
        ("steps", comparison.only_steps),
    ):
        for run, only_here in zip("AB", only, strict=True):
            if only_here:
                yield f"{kind} in {run} alone: {_some(only_here)}"
    for run, names, rows in zip("AB", comparison.only_names, comparison.only_rows, strict=True):
        if names:
            yield f"{rows} row{'s' * (rows > 1)} in {run} alone: {_some(names)}"


def show(comparison: Comparison, page: Path | None) -> None:
    """Print all of it as text."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(printable(verdict(comparison)), markup=False, highlight=False, soft_wrap=True)
    if comparison.first:
        title = f"the first {len(comparison.first)} of {comparison.beyond} rows that differ (7.1: step 7, micro step 1)"
        ranks = ["rank"] if len(comparison.ranks) > 1 else []
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in (*ranks, *COLUMNS):
            texts = column in ("signal", "name", "number")
            table.add_column(column, overflow="fold", no_wrap=column != "name", justify="left" if texts else "right")
        for row in comparison.first:
            table.add_row(*([str(row.rank)] if ranks else []), *(escape(printable(cell)) for cell in place(row)))
        console.print(table)
    for line in (*about(comparison), *comparison.problems):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    if page:
        console.print(printable(f"page: {page}"), markup=False, highlight=False, soft_wrap=True)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Export a comparison whole; NaN and Inf are texts."""
    fields = plain(comparison)
    return {"verdict": verdict(comparison), "same": comparison.same, "agrees": comparison.agrees, **fields}


def _growth(comparison: Comparison) -> str:
    first = comparison.first[0].step
    if first == comparison.steps[0]:
        return "It is present from the first step that both have."
    before = f"In the steps before it nothing differed by more than {comparison.before:.2g}"
    if comparison.first[0].dtypes_differ or comparison.first[0].numbers[0].difference > SUDDEN * comparison.before:
        return f"{before}: it appears at once."
    return f"{before}: it may have grown out of rounding differences."


def _some(texts: Sequence[str]) -> str:
    rest = len(texts) - LISTED
    return ", ".join(texts[:LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


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
    """Comparison as the page asks for it; NaN and Inf are texts."""
    differences = [_difference(row) for row in comparison.first]
    fields: dict[str, Any] = plain(
        {
            "same": comparison.same,
            "agrees": comparison.agrees and not comparison.skipped,
            "first_difference": differences[0] if differences else None,
            "differences": differences,
            "beyond": comparison.beyond,
            "columns": ("rank", *COLUMNS),
            "rows": [(row.rank, *place(row)) for row in comparison.first],
            "jumps": [
                (j.rank, f"{j.step}.{j.micro_step}", j.signal, j.module, f"{j.before:.2g}", f"{j.after:.2g}")
                for j in comparison.jumps
            ],
            "counts": [
                (signal, signal_of(signal).meaning, rows, beyond, f"{largest:.2g}")
                for signal, rows, beyond, largest in comparison.counts
            ],
            "growth": comparison.growth,
            "layers": comparison.layers,
            "tolerance": comparison.tolerance,
            "verdict": verdict(comparison),
            "about": list(about(comparison)),
            "problems": comparison.problems,
        }
    )
    return fields


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
