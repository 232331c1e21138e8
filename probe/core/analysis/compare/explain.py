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
from probe.core.language import Message, capitalized, in_language, joined, message, translated
from probe.core.messages import in_number, plural, printable
from probe.core.naming import signal_of
from probe.core.storage.layout import MICRO_STEP
from probe.core.storage.run_directory import plain

LISTED = 10
"""Most names in one run alone that are shown."""
SUDDEN = 10
"""Multiple of the largest difference of the steps before from which on a difference has not grown out of rounding."""


def verdict(comparison: Comparison) -> Message:
    """One sentence or two: whether the runs are the same, and the first difference."""
    if comparison.beyond:
        row = comparison.first[0]
        first = [message("First difference: {sentence}.", sentence=sentence(row)), _growth(comparison)]
        jump = next((jump for jump in comparison.jumps[:1] if jump.step <= row.step), None)
        differ = [message("The runs differ.")] if jump is None else [_parts(jump), message("Look there.")]
        return joined(" ", [*differ, *first])
    if not comparison.rows:
        return message("The runs have no row in common: their names differ. Give a file of names with --map.")
    extent = _extent(comparison)
    if comparison.jumps:
        return joined(" ", [_parts(comparison.jumps[0]), message("Look there; {extent}", extent=extent)])
    if comparison.one_sided and not comparison.common:
        differ = [message("The runs differ: one has data that the other lacks (--common ignores these).")]
        return joined(" ", [*differ, capitalized(extent)])
    if not comparison.largest:
        return message("The runs are the same: {extent}", extent=extent)
    return message("The runs agree within {tolerance:g}: {extent}", tolerance=comparison.tolerance, extent=extent)


def _extent(comparison: Comparison) -> Message:
    """Sentence on the pairs of rows that were compared, all of which are within the tolerance."""
    rows, left_out = comparison.rows, message(", as far as they could be read" if comparison.skipped else "")
    if not comparison.largest:
        equal = "all numbers of {rows} pairs of rows are equal, to the digits that were written{left_out}."
        return message(equal, rows=rows, left_out=left_out)
    return message(
        "{rows} pairs of rows are within {tolerance:g} of each other{left_out}; "
        "the largest relative difference is {largest:.2g}.",
        rows=rows,
        tolerance=comparison.tolerance,
        left_out=left_out,
        largest=comparison.largest,
    )


def _parts(jump: Jump) -> Message:
    parted = "The runs part in module {module}: {jump}." if jump.module else "The runs part in the root module: {jump}."
    return message(parted, module=jump.module, jump=jump_text(jump))


def jump_text(jump: Jump) -> Message:
    """Text of what goes into a module and what comes out, without its name."""
    forward = jump.signal == FORWARD
    goes = message("what goes into it" if forward else "what goes into its backward")
    comes = message("its output" if forward else "the gradient of its input")
    agrees = message(
        "agrees to {before:.1g}" if jump.before else "is equal to the digits that were written", before=jump.before
    )
    return message(
        "{goes} {agrees}, {comes} differs by {after:.2g} (step {step}, micro step {micro_step}, rank {rank})",
        goes=goes,
        agrees=agrees,
        comes=comes,
        after=jump.after,
        step=jump.step,
        micro_step=jump.micro_step,
        rank=jump.rank,
    )


def sentence(row: DifferingRow) -> Message:
    """Text of the place of a row and of the number that differs most."""
    at = "step {step}, micro step {micro_step}, rank {rank}" if row.micro_stepped else "step {step}, rank {rank}"
    name = message("{name}" if row.name_b == row.name else "{name} ({name_b} in B)", name=row.name, name_b=row.name_b)
    return message(
        "{place}: {signal} {name} ({meaning}): {what}",
        place=message(at, step=row.step, micro_step=row.micro_step, rank=row.rank),
        signal=row.signal,
        name=name,
        meaning=message(signal_of(row.signal).meaning),
        what=what(row),
    )


def what(row: DifferingRow) -> Message:
    """Text of the number that differs most."""
    if row.shapes_differ:
        return message("shape {a} against {b}", a=row.shape, b=row.shape_b)
    if row.dtypes_differ:
        return message("dtype {a} against {b}", a=row.dtype, b=row.dtype_b)
    number = row.numbers[0]
    texts = {"op": number.op, "a": _text(number.a), "b": _text(number.b)}
    return message("{op} {a} against {b}, relative difference {difference:.2g}", difference=number.difference, **texts)


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


def about(comparison: Comparison) -> Iterator[Message]:
    """Lines about the data that were compared, and those that only one run has."""
    ranks = ", ".join(str(a) if a == b else f"{a}:{b}" for a, b in comparison.ranks[:8])
    ranks += ", ..." * (len(comparison.ranks) > 8)
    first, last = comparison.steps
    values = {"first": first, "last": last, "ranks": ranks, "tolerance": comparison.tolerance}
    yield message(
        plural(
            len(comparison.ranks),
            "steps {first} to {last}, rank {ranks}, relative tolerance {tolerance:g}{dtype}",
            "steps {first} to {last}, ranks {ranks}, relative tolerance {tolerance:g}{dtype}",
        ),
        dtype=f" ({comparison.dtype})" if comparison.dtype else "",
        **values,
    )
    if comparison.paced:
        yield message("max_overhead chose the recorded steps: those of one run alone are left out")
    if renamed := comparison.renamed - comparison.by_framework:
        yield in_number(renamed, "{number} name is different in B", "{number} names are different in B")
    if comparison.by_framework:
        yield in_number(
            comparison.by_framework,
            "{number} parameter is named as in the other framework (gamma for weight, ...)",
            "{number} parameters are named as in the other framework (gamma for weight, ...)",
        )
    if comparison.precision:
        unlike = ", ".join(comparison.precision)
        yield message("dtypes of most names differ, so that they are not compared: {names}", names=unlike)
    for template, only in (
        (message("signals in {run} alone: {some}"), comparison.only_signals),
        (message("ranks in {run} alone: {some}"), comparison.only_ranks),
        (message("steps in {run} alone: {some}"), comparison.only_steps),
    ):
        for run, only_here in zip("AB", only, strict=True):
            if only_here:
                yield message(template, run=run, some=_some(only_here))
    for run, names, rows in zip("AB", comparison.only_names, comparison.only_rows, strict=True):
        if names:
            alone = plural(rows, "{rows} row in {run} alone: {some}", "{rows} rows in {run} alone: {some}")
            yield message(alone, rows=rows, run=run, some=_some(names))


def show(comparison: Comparison, page: Path | None) -> None:
    """Print all of it as text, in the language of the command line."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()

    def line(text: str) -> None:
        console.print(printable(translated(text)), markup=False, highlight=False, soft_wrap=True)

    line(verdict(comparison))
    if comparison.first:
        title = message(
            "the first {shown} of {beyond} rows that differ (7.1: step 7, micro step 1)",
            shown=len(comparison.first),
            beyond=comparison.beyond,
        )
        ranks = ["rank"] if len(comparison.ranks) > 1 else []
        table = Table(title=translated(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in (*ranks, *COLUMNS):
            texts = column in ("signal", "name", "number")
            heading = translated(message(column))
            table.add_column(heading, overflow="fold", no_wrap=column != "name", justify="left" if texts else "right")
        for row in comparison.first:
            table.add_row(*([str(row.rank)] if ranks else []), *(escape(printable(cell)) for cell in place(row)))
        console.print(table)
    for text in (*about(comparison), *comparison.problems):
        line(text)
    if page:
        line(message("page: {path}", path=page))


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Export a comparison whole; NaN and Inf are texts."""
    fields = plain(comparison)
    return {"verdict": verdict(comparison), "same": comparison.same, "agrees": comparison.agrees, **fields}


def _growth(comparison: Comparison) -> Message:
    row = comparison.first[0]
    if row.step == comparison.steps[0]:
        return message("It is present from the first step that both have.")
    at_once = "In the steps before it nothing differed by more than {before:.2g}: it appears at once."
    grown = (
        "In the steps before it nothing differed by more than {before:.2g}: "
        "it may have grown out of rounding differences."
    )
    is_sudden = row.dtypes_differ or row.numbers[0].difference > SUDDEN * comparison.before
    return message(at_once if is_sudden else grown, before=comparison.before)


def _some(texts: Sequence[str]) -> Message:
    rest = len(texts) - LISTED
    names = ", ".join(texts[:LISTED])
    return message("{names} and {rest} more", names=names, rest=rest) if rest > 0 else joined("", [names])


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
