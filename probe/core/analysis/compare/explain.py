"""Result of a comparison as text, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from probe.core.analysis.compare.compare import Comparison
from probe.core.analysis.compare.first_difference import DifferingRow
from probe.core.analysis.compare.jumps import FORWARD, Jump
from probe.core.messages import plural, printable
from probe.core.naming import signal_of
from probe.core.storage.run_directory import plain

LISTED = 10
"""Most names in one run alone that are shown."""
SUDDEN = 10
"""Multiple of the largest difference of the steps before from which on a difference has not grown out of rounding."""


def verdict(found: Comparison) -> str:
    """One sentence or two: whether the runs are the same, and the first difference."""
    if found.beyond:
        first = f"First difference: {sentence(found.first[0])}. {_growth(found)}"
        jump = next((jump for jump in found.jumps[:1] if jump.step <= found.first[0].step), None)
        if jump is not None:
            return f"The runs part in {_module(jump)}: {jump_text(jump)}. Look there. {first}"
        return f"The runs differ. {first}"
    left_out = ", as far as they could be read" if found.skipped else ""
    if not found.rows:
        return "The runs have no row in common: their names differ. Give a file of names with --map."
    if not found.largest:
        what = f"all numbers of {found.rows} pairs of rows are equal, to the digits that were written{left_out}."
    else:
        largest = f"the largest relative difference is {found.largest:.2g}"
        what = f"{found.rows} pairs of rows are within {found.tolerance:g} of each other{left_out}; {largest}."
    if found.jumps:
        return f"The runs part in {_module(found.jumps[0])}: {jump_text(found.jumps[0])}. Look there; {what}"
    if found.one_sided and not found.common:
        return f"The runs differ: one has data that the other lacks (--common ignores these). {_capital(what)}"
    return (
        f"The runs are the same: {what}" if not found.largest else f"The runs agree within {found.tolerance:g}: {what}"
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


def about(found: Comparison) -> Iterator[str]:
    """Lines about the data that were compared, and those that only one run has."""
    ranks = ", ".join(str(a) if a == b else f"{a}:{b}" for a, b in found.ranks[:8]) + ", ..." * (len(found.ranks) > 8)
    dtype = f" ({found.dtype})" if found.dtype else ""
    of = plural(len(found.ranks), "rank")
    yield f"steps {found.steps[0]} to {found.steps[1]}, {of} {ranks}, relative tolerance {found.tolerance:g}{dtype}"
    renamed = found.renamed - found.by_framework
    if renamed:
        yield f"{renamed} {plural(renamed, 'name is', 'names are')} different in B"
    if found.by_framework:
        are = plural(found.by_framework, "parameter is", "parameters are")
        yield f"{found.by_framework} {are} named as in the other framework (gamma for weight, ...)"
    if found.precision:
        yield f"dtypes of most names differ, so that they are not compared: {', '.join(found.precision)}"
    for kind, only in (("signals", found.only_signals), ("ranks", found.only_ranks), ("steps", found.only_steps)):
        for run, there in zip("AB", only, strict=True):
            if there:
                yield f"{kind} in {run} alone: {_some(there)}"
    for run, names, rows in zip("AB", found.only_names, found.only_rows, strict=True):
        if names:
            yield f"{rows} row{'s' * (rows > 1)} in {run} alone: {_some(names)}"


def show(found: Comparison, page: Path | None) -> None:
    """Print all of it as text."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(printable(verdict(found)), markup=False, highlight=False, soft_wrap=True)
    if found.first:
        title = f"the first {len(found.first)} of {found.beyond} rows that differ (7.1: step 7, micro step 1)"
        ranks = ["rank"] if len(found.ranks) > 1 else []
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in (*ranks, *COLUMNS):
            texts = column in ("signal", "name", "number")
            table.add_column(column, overflow="fold", no_wrap=column != "name", justify="left" if texts else "right")
        for row in found.first:
            table.add_row(*([str(row.rank)] if ranks else []), *(escape(printable(cell)) for cell in place(row)))
        console.print(table)
    for line in (*about(found), *found.problems):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    if page:
        console.print(printable(f"page: {page}"), markup=False, highlight=False, soft_wrap=True)


def as_json(found: Comparison) -> str:
    """JSON of all of it; NaN and Inf are texts."""
    fields = {"verdict": verdict(found), "same": found.same, "agrees": found.agrees, **plain(found)}
    return json.dumps(fields, indent=1, allow_nan=False)


def _growth(found: Comparison) -> str:
    first = found.first[0].step
    if first == found.steps[0]:
        return "It is present from the first step that both have."
    before = f"In the steps before it nothing differed by more than {found.before:.2g}"
    if found.first[0].dtypes_differ or found.first[0].numbers[0].difference > SUDDEN * found.before:
        return f"{before}: it appears at once."
    return f"{before}: it may have grown out of rounding differences."


def _some(texts: Sequence[str]) -> str:
    rest = len(texts) - LISTED
    return ", ".join(texts[:LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
