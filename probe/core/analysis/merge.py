"""Whole tensors from the files of the ranks that hold their parts, as ``global_stats`` merges them in training."""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probe.core.analysis.diagnosis.evaluate import nothing_judged
from probe.core.errors import advice_of
from probe.core.histogram import HISTOGRAM, parsed, text_of
from probe.core.language import invalid, message
from probe.core.messages import plural
from probe.core.moments import COUNTS, OPS, derive, merge_columns, moments_of, numels
from probe.core.naming import FEATURES, RELATIVE_UPDATE, RUN
from probe.core.storage import sqlite_reader
from probe.core.storage.csv_reader import PlainRows
from probe.core.storage.directories import RankDirectory, last_run
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.files import replacing
from probe.core.storage.layout import (
    COMPLETE,
    CSV,
    DTYPE,
    FORM,
    FORMATS,
    INTEGERS,
    KEY,
    NAME,
    NEEDED,
    PP_STAGE,
    RANKS,
    SHAPE,
    STEP,
    TableName,
    coverage_of,
    is_number,
    ranks_text,
    shape_of,
    table_name,
)
from probe.core.storage.location import Place
from probe.core.storage.manifest import PIPELINE
from probe.core.storage.problems import Problems
from probe.core.storage.table_files import TableFile

OWN = ("actv", "actv_grad", "grad_unreduced", "mg_direction", "other", RELATIVE_UPDATE, *FEATURES)
"""Signals whose whole tensors differ between ranks: only rows about parts are merged."""
NECESSARY = (NAME, STEP, SHAPE, DTYPE)
"""Columns without which a file cannot be merged."""
LAST = (SHAPE, DTYPE, RANKS, COMPLETE)
"""Columns at the end of a merged file, before the histogram, if there is one."""


class RankRow(NamedTuple):
    """One row of one rank's file."""

    key: tuple[str, ...]
    """Cells of the columns in ``KEY``; empty for a column that the file lacks."""
    pp_stage: int
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    dtype: str
    part: str
    """Empty for a whole tensor."""
    ranks: str
    """The ranks that hold the parts; this rank alone for a whole tensor."""
    elements: int
    ops: Mapping[str, float]
    histogram: str | None = None
    """Its cell, if the file has one."""

    @property
    def place(self) -> tuple[object, ...]:
        """The tensor and step that it is about: a column that one format lacks has 0 in another."""
        return *(
            cell or "0" if column in INTEGERS else cell for column, cell in zip(KEY, self.key, strict=True)
        ), self.pp_stage


class Merged(NamedTuple):
    """One row about a whole tensor."""

    first: RankRow
    ranks: str
    complete: bool
    ops: Mapping[str, float]
    histogram: str | None = None


@dataclass
class Report:
    """The result of merging."""

    files: list[Path] = field(default_factory=list)
    rows: int = 0
    incomplete: int = 0
    """Rows of tensors that lack a part, or whose ranks hold terms of a sum."""
    differing: list[str] = field(default_factory=list)
    """Replicas whose numbers differ between ranks."""
    problems: list[str] = field(default_factory=list)
    """Lines, files and columns that could not be read."""
    notes: list[str] = field(default_factory=list)
    """Files that are no part of the run."""


def merge_directory(root: Place, out: Path, observe: Callable[[str], None] = lambda _: None) -> Report:
    """Merge the files and databases of all ranks under ``root`` into CSV files in ``out``.

    Args:
        observe: called with the signal and the last step of each file before it is merged.

    Raises:
        ValueError: if there is nothing to merge, or ``out`` is no folder that can be written to.
        ImportError: if DuckDB is missing, and not all rows are in CSV files.
    """
    report = Report()
    problems = Problems()
    run = last_run(root, problems)
    if run.directories[0].packed is not None:
        raise invalid(
            "{root}: expected the directory in which ranks have written; this is a packed run: give that "
            "from which it was packed",
            root=root,
        )
    if out.resolve() in (root.resolve(), *(directory.path.resolve() for directory in run.directories)):
        text = "{out}: expected another folder than those that are read; give a new one, or leave it out"
        raise invalid(text, out=out)
    with _opened(run.directories) as rows:
        if not rows.files:
            raise ValueError("\n".join([f"{root}: {nothing_judged(run)}", *rows.problems.lines()]))
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            text = "{out}: expected a folder that can be written to; {reason}"
            raise invalid(text, out=out, reason=advice_of(error)) from None
        for signal in sorted(rows.files.keys() - {RUN}):
            for piece in _pieces(rows.files[signal]):
                observe(f"{signal} up to step {piece.last}")
                of_directory = [row for n, file in piece.files for row in _read(rows, n, file, piece)]
                if merged := merge_rows(signal, of_directory, report):
                    report.files.append(out / str(TableName(signal, piece.first, piece.last)))
                    _write(report.files[-1], merged)
    notes = [problem for problem in rows.problems.kept if not problem.skipped]
    report.notes = [str(problem) for problem in notes]
    rows.problems.kept = [problem for problem in rows.problems.kept if problem.skipped]
    rows.problems.number -= len(notes)
    problems.extend(rows.problems)
    report.problems += problems.lines()
    return report


@contextmanager
def _opened(directories: Sequence[RankDirectory]) -> Iterator[PlainRows | Rows]:
    """Open the rows of all ranks: by DuckDB, unless all are in CSV files."""
    problems = Problems()
    if all(_is_plain(directory.path) for directory in directories):
        yield PlainRows(directories, problems)
        return
    with Rows(directories, problems) as rows:
        yield rows


def _is_plain(directory: Place) -> bool:
    """Return whether all files of a rank are in CSV."""
    names = [name for path in directory.iterdir() if (name := table_name(path.name))]
    return all(name.format == CSV for name in names) and not sqlite_reader.may_have_rows(directory)


class _Piece(NamedTuple):
    """Files of one signal that are merged together, and the steps that are."""

    files: list[tuple[int, TableFile]]
    """With the index of their directory."""
    begin: int | None
    """Step before which rows belong to an earlier piece; None for no bound."""
    end: int | None
    """Step from which on rows belong to a later piece; None for no bound."""

    @property
    def first(self) -> int:
        """First step that may be in it."""
        return max(min(file.first for _, file in self.files), self.begin or 0)

    @property
    def last(self) -> int:
        """Last step that may be in it."""
        last = max(file.last for _, file in self.files)
        return last if self.end is None else min(last, self.end - 1)


def _pieces(files: Sequence[tuple[int, TableFile]]) -> Iterator[_Piece]:
    """Yield the files of a signal in pieces of as few steps as files of one rank have: ranks may have divided their
    steps in another way, or hold them in another format."""
    ends = _ends(files)[:-1]
    pieces = [_Piece([], begin, end) for begin, end in pairwise([None, *(end + 1 for end in ends), None])]
    for n, file in files:
        for piece in pieces[bisect_left(ends, file.first) : bisect_left(ends, file.last) + 1]:
            piece.files.append((n, file))
    yield from (piece for piece in pieces if piece.files)


def _ends(files: Sequence[tuple[int, TableFile]]) -> list[int]:
    """Return the last steps of the pieces: those at which no file goes on. Copies of databases, which can be read in
    any pieces, count only if there are no others, and then those of one rank."""
    named = [file for _, file in files if file.format in FORMATS]
    lowest = min(n for n, _ in files)
    spans = sorted((file.first, file.last) for file in named or (file for n, file in files if n == lowest))
    ends: list[int] = []
    for first, last in spans:
        if ends and first <= ends[-1]:
            ends[-1] = max(ends[-1], last)
        else:
            ends.append(last)
    return ends


def merge_rows(signal: str, rows: Iterable[RankRow], report: Report) -> list[Merged]:
    """Return whole tensors, in the order of their first rows; of copies in several groups of ranks, the first. Copies
    that differ follow at the end."""
    groups: dict[tuple[object, ...], list[RankRow]] = {}
    for row in rows:
        if row.part or signal not in OWN:
            groups.setdefault((*row.place, row.ranks), []).append(row)
    parts = [list({row.part: row for row in group}.values()) for group in groups.values()]
    merged = _merge(parts)
    for op, number in _lost(parts, merged).items():
        tensors = plural(number, "tensor lacks", "tensors lack")
        report.problems.append(f"{signal}: {number} {tensors} {op}: not all ranks that hold parts have it")
    report.incomplete += sum(not whole.complete for whole in merged)
    if signal in OWN:
        report.rows += len(merged)
        return merged
    alike: dict[tuple[object, ...], Merged] = {}
    apart: list[Merged] = []
    for whole in merged:
        place = whole.first.place
        first_alike = alike.setdefault(place, whole)
        differs = first_alike.complete and whole.complete and not _equal(first_alike.ops, whole.ops)
        if differs:
            report.differing.append(
                f"{signal} {' '.join(whole.first.key)}: ranks {first_alike.ranks} and {whole.ranks}"
            )
            apart.append(whole)
        if (whole.complete, 0 if differs else len(whole.ops)) > (first_alike.complete, len(first_alike.ops)):
            alike[place] = whole
    report.rows += len(alike) + len(apart)
    return [*alike.values(), *apart]


def _equal(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Return whether numbers agree to the digits in a file, although parts may have been added up in another order."""
    pairs = ((one[op], other[op]) for op in one if op in other)
    return all(a == b or math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-12) or (a != a and b != b) for a, b in pairs)  # noqa: PLR0124


def _merge(groups: Sequence[list[RankRow]]) -> list[Merged]:
    """Merge each group, whose rows are about different elements, to one row, with the ops that all of them have."""
    alike: dict[tuple[tuple[str, ...], bool], list[int]] = {}
    for n, group in enumerate(groups):
        ops = tuple(op for op in group[0].ops if all(op in row.ops for row in group))
        alike.setdefault((ops, all(row.histogram is not None for row in group)), []).append(n)
    merged: dict[int, Merged] = {}
    for (ops, with_histograms), places in alike.items():
        merged |= zip(places, _merged([groups[n] for n in places], ops, with_histograms), strict=True)
    return [merged[n] for n in range(len(groups))]


def _merged(groups: Sequence[list[RankRow]], ops: Sequence[str], with_histograms: bool) -> list[Merged]:
    """Merge groups whose rows all have ``ops``."""
    rows = [row for group in groups for row in group]
    wholes = np.array([i for i, group in enumerate(groups) for _ in group])
    counts = np.array([row.elements for row in rows], dtype=np.float64)
    values = {op: np.array([row.ops[op] for row in rows]) for op in ops}
    moments = moments_of(values, counts)
    if with_histograms:
        moments[HISTOGRAM] = np.stack([parsed(row.histogram or "") for row in rows])
    columns = merge_columns(moments, counts, wholes, len(groups))
    shapes = [group[0].shape for group in groups]
    counted = np.bincount(wholes, counts, len(groups))
    terms = np.array([any(row.part.startswith("term") for row in group) for group in groups])
    complete = (counted == numels(shapes)) & ~terms
    derived = {op: derive(op, columns, shapes) for op in ops if OPS[op].moment in columns}
    return [
        Merged(
            group[0],
            group[0].ranks,
            bool(complete[i]),
            {op: float(derived[op][i]) for op in derived},
            text_of(columns[HISTOGRAM][i]) if with_histograms else None,
        )
        for i, group in enumerate(groups)
    ]


def _lost(groups: Iterable[Sequence[RankRow]], merged: Iterable[Merged]) -> dict[str, int]:
    """Return the number of tensors of which some parts have an op, and others lack it, by op."""
    lost: Counter[str] = Counter()
    for group, whole in zip(groups, merged, strict=True):
        lost.update({op for row in group for op in row.ops} - {*whole.ops})
    return lost


def _read(rows: PlainRows | Rows, n: int, file: TableFile, piece: _Piece) -> Iterator[RankRow]:
    """Yield the rows of a file that belong to a piece; those that cannot be read are recorded as problems and left
    out."""
    directory, path = rows.directories[n], rows.original(file)
    begin = piece.begin if file.first < (piece.begin or 0) else None
    end = piece.end if piece.end is not None and file.last >= piece.end else None
    ends = [bound - 1 for bound in (end, directory.until) if bound is not None]
    columns, read = rows.read([file], begin, min(ends, default=None))
    if missing := [column for column in NECESSARY if column not in columns]:
        trouble = message(
            "expected the columns {columns}; there is no {missing}: the file is left out",
            columns=", ".join(NECESSARY),
            missing=", ".join(missing),
        )
        rows.problems.add(path, trouble, 1)
        return
    ours = (*OPS, HISTOGRAM, "merged", *(column for column in columns if column.startswith("global_")))
    others = [column for column in columns if is_number(column) and column not in ours]
    if others and file.signal not in OWN:
        trouble = message("expected ops; {names} cannot be merged: left out", names=", ".join(map(repr, others)))
        rows.problems.add(path, trouble, 1)
    described = cache(partial(_described, directory.rank))
    at = {column: place for place, column in enumerate(columns)}
    ops = [column for column in columns if column in OPS and column != "id"]
    stage = _pp_stage(directory)
    for cells in read:
        key = tuple("" if column not in at else _text(cells[at[column]]) for column in KEY)
        form = tuple("" if column not in at else _text(cells[at[column]]) for column in FORM)
        values = {op: cells[at[op]] for op in ops if cells[at[op]] is not None}
        histogram = (cells[at[HISTOGRAM]] or None) if HISTOGRAM in at else None
        try:
            if not values and histogram is None:
                raise invalid("expected a number in one of the columns {columns}, got none", columns=", ".join(ops))
            shape, part, ranks, elements = described(*form)
        except ValueError as error:
            row = " ".join(key[: len(NEEDED)])
            rows.problems.add(path, message("{error}: rows such as {row} are left out", error=error, row=row))
            continue
        yield RankRow(key, stage, shape, form[1], part, ranks, elements, values, histogram)


def _text(cell: object) -> str:
    return "" if cell is None else str(cell)


def _described(rank: int, shape: str, _: str, coverage: str) -> tuple[tuple[int, ...], str, str, int]:
    """Return the shape of the whole tensor, the part that a row of ``rank`` is about, the ranks that hold the parts,
    and the number of elements.

    Raises:
        ValueError: if the cells cannot be parsed.
    """
    try:
        sizes = shape_of(shape)
    except ValueError:
        raise ValueError(f"expected sizes such as [3, 2] in column {SHAPE}, got {shape!r}") from None
    covered = coverage_of(coverage)
    if covered is None:
        return sizes, "", str(rank), math.prod(sizes)
    part = f"term {covered.part}" if covered.term else covered.part
    return covered.shape, part, ranks_text(covered.ranks), math.prod(sizes)


def _pp_stage(directory: RankDirectory) -> int:
    """Return the pipeline stage from the manifest, else from the rank's place in its pipeline."""
    pipeline = directory.manifest.groups.get(PIPELINE, ())
    return directory.manifest.pipeline_stage or (pipeline.index(directory.rank) if directory.rank in pipeline else 0)


def _write(path: Path, rows: Sequence[Merged]) -> None:
    used = [column for i, column in enumerate(KEY) if any(row.first.key[i] for row in rows)]
    stages = [PP_STAGE] if len({row.first.pp_stage for row in rows}) > 1 else []
    ops = list(dict.fromkeys(op for row in rows for op in row.ops))
    last = [*LAST, *([HISTOGRAM] if any(row.histogram is not None for row in rows) else [])]
    with replacing(path) as file:
        write = csv.writer(file, lineterminator="\n").writerow
        write([*used, *stages, *ops, *last])
        for row in rows:
            key = [row.first.place[KEY.index(column)] for column in used]
            numbers = [_number(op, row.ops[op]) if op in row.ops else "" for op in ops]
            stage = [row.first.pp_stage] if stages else []
            cells = [list(row.first.shape), row.first.dtype, row.ranks, int(row.complete), row.histogram]
            write([*key, *stage, *numbers, *cells[: len(last)]])


def _number(op: str, value: float) -> str:
    return f"{value:.0f}" if op in COUNTS else f"{value:.6g}"
