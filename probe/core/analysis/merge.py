"""Whole tensors from the files of the ranks that hold their parts, as ``global_stats`` merges them in training."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probe.core.histogram import HISTOGRAM, parsed, text_of
from probe.core.moments import COUNTS, OPS, derive, merge_columns, moments_of, numels
from probe.core.naming import FEATURES
from probe.core.storage.csv_reader import read_all
from probe.core.storage.directories import RankDirectory, last_run
from probe.core.storage.files import replacing
from probe.core.storage.layout import (
    COMPLETE,
    CSV,
    DTYPE,
    FORM,
    KEY,
    NAME,
    NEEDED,
    PP_STAGE,
    RANKS,
    SHAPE,
    STEP,
    TableName,
    coverage_of,
    ranks_text,
    shape_of,
)
from probe.core.storage.location import Place
from probe.core.storage.manifest import PIPELINE
from probe.core.storage.problems import Problems
from probe.core.storage.table_files import TableFile, tables

OWN = ("actv", "actv_grad", "grad_unreduced", "mg_direction", "other", *FEATURES)
"""Signals whose whole tensors differ between ranks: only rows about parts are merged."""
NECESSARY = (NAME, STEP, SHAPE, DTYPE)
"""Columns without which a file cannot be merged."""
LAST = (SHAPE, DTYPE, RANKS, COMPLETE)
"""Columns at the end of a merged file, before the histogram, if there is one."""


class MergedRow(NamedTuple):
    """One row of one rank's file."""

    key: tuple[str, ...]
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


class Merged(NamedTuple):
    """One row about a whole tensor."""

    first: MergedRow
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
    """Lines and files that could not be read."""


def merge_directory(root: Place, out: Path, observe: Callable[[str], None] = lambda _: None) -> Report:
    """Merge the files of all ranks under ``root`` into files of the same layout in ``out``.

    Args:
        observe: called with the signal and the last step of each file before it is merged.

    Raises:
        ValueError: if there is nothing to merge, or ``out`` is no folder that can be written to.
    """
    report = Report()
    problems = Problems()
    run = last_run(root, problems)
    if run.directories[0].packed is not None:
        raise ValueError(f"{root}: expected the directory in which ranks have written; this is a packed run")
    found: dict[tuple[str, int], list[tuple[TableFile, RankDirectory]]] = {}
    for directory in run.directories:
        looked = Problems()
        for file in tables(directory.path, looked):
            if file.format == CSV:
                found.setdefault((file.signal, file.last), []).append((file, directory))
        for problem in looked.kept:
            if problem.skipped:  # a file of another name is no part of the run
                problems.add(problem.path, problem.what, problem.line)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out}: expected a folder that can be written to; {error}") from None
    for (signal, last), files in sorted(found.items()):
        observe(f"{signal} up to step {last}")
        rows = [row for file, directory in files for row in _read(file, directory, problems)]
        if merged := merge_rows(signal, rows, report):
            report.files.append(out / str(TableName(signal, min(file.first for file, _ in files), last)))
            _write(report.files[-1], merged)
    report.problems += problems.lines()
    return report


def merge_rows(signal: str, rows: Iterable[MergedRow], report: Report) -> list[Merged]:
    """Return whole tensors, in the order of their first rows; of copies in several groups of ranks, the first. Copies
    that differ follow at the end."""
    groups: dict[tuple[object, ...], list[MergedRow]] = {}
    for row in rows:
        if row.part or signal not in OWN:
            groups.setdefault((row.key, row.pp_stage, row.ranks), []).append(row)
    merged = _merge([list({row.part: row for row in group}.values()) for group in groups.values()])
    report.incomplete += sum(not whole.complete for whole in merged)
    if signal in OWN:
        report.rows += len(merged)
        return merged
    alike: dict[tuple[object, ...], Merged] = {}
    apart: list[Merged] = []
    for whole in merged:
        kept = alike.setdefault((whole.first.key, whole.first.pp_stage), whole)
        if kept.complete and whole.complete and not _equal(kept.ops, whole.ops):
            report.differing.append(f"{signal} {' '.join(whole.first.key)}: ranks {kept.ranks} and {whole.ranks}")
            apart.append(whole)
        if whole.complete and not kept.complete:
            alike[whole.first.key, whole.first.pp_stage] = whole
    report.rows += len(alike) + len(apart)
    return [*alike.values(), *apart]


def _equal(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Return whether numbers agree to the digits in a file, although parts may have been added up in another order."""
    pairs = ((one[op], other[op]) for op in one)
    return all(a == b or math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-12) or (a != a and b != b) for a, b in pairs)  # noqa: PLR0124


def _merge(groups: Sequence[list[MergedRow]]) -> list[Merged]:
    """Merge each group, whose rows are about different elements, to one row."""
    if not groups:
        return []
    rows = [row for group in groups for row in group]
    ops = [op for op in rows[0].ops if all(op in row.ops for row in rows)]
    wholes = np.array([i for i, group in enumerate(groups) for _ in group])
    counts = np.array([row.elements for row in rows], dtype=np.float64)
    values = {op: np.array([row.ops[op] for row in rows]) for op in ops}
    moments = moments_of(values, counts)
    with_histograms = all(row.histogram is not None for row in rows)
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


def _read(file: TableFile, directory: RankDirectory, problems: Problems) -> Iterator[MergedRow]:
    """Yield the rows of a file; rows that cannot be read are recorded in ``problems`` and left out."""
    if missing := [column for column in NECESSARY if column not in file.columns]:
        what = f"expected the columns {', '.join(NECESSARY)}; there is no {', '.join(missing)}"
        problems.add(file.path, f"{what}: the file is left out", 1)
        return
    described = cache(partial(_described, directory.rank))
    stage, ops = _pp_stage(directory), [column for column in file.columns if column in OPS and column != "id"]
    for found in read_all(file, problems):
        columns = [found.about.get(column) or [""] * found.number for column in KEY]
        forms = zip(*(found.about.get(column) or [""] * found.number for column in FORM), strict=True)
        values = zip(*(found.values[op].tolist() for op in ops), strict=True) if ops else repeat(())
        histograms = found.about.get(HISTOGRAM) or repeat(None)
        for key, form, numbers, histogram in zip(zip(*columns, strict=True), forms, values, histograms, strict=False):
            if directory.until is not None and key[KEY.index(STEP)] >= directory.until:
                continue
            try:
                if None in numbers:
                    raise ValueError(f"expected a number in column {ops[numbers.index(None)]}, got ''")
                shape, part, ranks, elements = described(*form)
            except ValueError as error:
                where = " ".join(map(str, key[: len(NEEDED)]))
                problems.add(file.path, f"{error}: rows such as {where} are left out")
                continue
            texts = tuple(map(str, key))
            row = dict(zip(ops, numbers, strict=True))
            yield MergedRow(texts, stage, shape, form[1], part, ranks, elements, row, histogram)


def _described(rank: int, shape: str, _: str, coverage: str) -> tuple[tuple[int, ...], str, str, int]:
    """Return the shape of the whole tensor, the part that a row of ``rank`` is about, the ranks that hold the parts,
    and the number of elements.

    Raises:
        ValueError: if the cells cannot be parsed.
    """
    try:
        own = shape_of(shape)
    except ValueError:
        raise ValueError(f"expected sizes such as [3, 2] in column {SHAPE}, got {shape!r}") from None
    covered = coverage_of(coverage)
    if covered is None:
        return own, "", str(rank), math.prod(own)
    part = f"term {covered.part}" if covered.term else covered.part
    return covered.shape, part, ranks_text(covered.ranks), math.prod(own)


def _pp_stage(directory: RankDirectory) -> int:
    """Return the pipeline stage from the manifest, else from the rank's place in its pipeline."""
    pipeline = directory.manifest.groups.get(PIPELINE, ())
    return directory.manifest.pipeline_stage or (pipeline.index(directory.rank) if directory.rank in pipeline else 0)


def _write(path: Path, rows: Sequence[Merged]) -> None:
    used = [column for i, column in enumerate(KEY) if any(row.first.key[i] for row in rows)]
    stages = [PP_STAGE] if len({row.first.pp_stage for row in rows}) > 1 else []
    ops, last = list(rows[0].ops), [*LAST, *([HISTOGRAM] if rows[0].histogram is not None else [])]
    with replacing(path) as file:
        write = csv.writer(file, lineterminator="\n").writerow
        write([*used, *stages, *ops, *last])
        for row in rows:
            key = [row.first.key[KEY.index(column)] for column in used]
            numbers = [f"{row.ops[op]:.0f}" if op in COUNTS else f"{row.ops[op]:.6g}" for op in ops]
            stage = [row.first.pp_stage] if stages else []
            about = [list(row.first.shape), row.first.dtype, row.ranks, int(row.complete), row.histogram]
            write([*key, *stage, *numbers, *about[: len(last)]])
