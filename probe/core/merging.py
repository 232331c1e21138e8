"""Whole tensors from the files of the ranks that shared them out: what ``global_stats`` collects while training."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probe.core.moments import COUNTS, OPS, derive, merge_columns, moments_of, numels
from probe.core.sinks.files import replacing

OWN = ("actv", "actv_grad", "grad_unreduced", "other")
"""Signals that are each rank's own affair: a row that covers all of a tensor says nothing of another rank's."""
KEY = ("vpp_stage", "name", "step", "micro_step", "call")
TOGETHER = 3600.0
"""Seconds within which the ranks of a run begin."""
LAST = ("shape", "dtype", "ranks", "complete")
"""Columns at the end of a merged file."""

_FILE = re.compile(r"(.+)_(\d+)-(\d+)(?:_part_\d+)?\.csv")
_COVERAGE = re.compile(r"(\d+) of \[(.*)\] (at|term) (.*) over ranks (.*)")


class Row(NamedTuple):
    """One row of one rank's file."""

    key: tuple[str, ...]
    pp_stage: int
    shape: tuple[int, ...]
    """Of the whole tensor."""
    dtype: str
    part: str
    """Empty for a whole tensor."""
    ranks: str
    """Who hold the parts; this rank alone for a whole tensor."""
    elements: int
    ops: Mapping[str, float]


class Merged(NamedTuple):
    """One row about a whole tensor."""

    first: Row
    ranks: str
    complete: bool
    ops: Mapping[str, float]


@dataclass
class Report:
    """What came of merging."""

    files: list[Path] = field(default_factory=list)
    rows: int = 0
    incomplete: int = 0
    """Rows of tensors of which a part is missing, or whose ranks hold terms of a sum."""
    differing: list[str] = field(default_factory=list)
    """Tensors that several ranks hold alike, but whose numbers differ."""
    problems: list[str] = field(default_factory=list)
    """Files that could not be read."""


def merge_directory(root: Path, out: Path, told: Callable[[str], None] = lambda _: None) -> Report:
    """Merges what all ranks have written under ``root`` into files of the same layout in ``out``.

    Args:
        told: gets the name of each file as it is begun.

    Raises:
        ValueError: if there is nothing to merge.
    """
    report = Report()
    runs = _latest(root, report)
    if not runs:
        raise ValueError(f"{root}: expected directories with a manifest.json, as a monitored run writes; found none")
    found: dict[tuple[str, int], list[tuple[Path, dict[str, Any]]]] = {}
    for directory, manifest in runs:
        for path in sorted(directory.glob("*.csv")):
            if name := _FILE.fullmatch(path.name):
                found.setdefault((name[1], int(name[3])), []).append((path, manifest))
    out.mkdir(parents=True, exist_ok=True)
    for (signal, last), files in sorted(found.items()):
        told(f"{signal} up to step {last}")
        rows = [row for path, manifest in files for row in _read(path, manifest, report)]
        if merged := merge_rows(signal, rows, report):
            first = min(int(_FILE.fullmatch(path.name)[2]) for path, _ in files)  # type: ignore[index]
            report.files.append(out / f"{signal}_{first}-{last}.csv")
            _write(report.files[-1], merged)
    return report


def _latest(root: Path, report: Report) -> list[tuple[Path, dict[str, Any]]]:
    """Every rank's directory of the run that began last, with its manifest; others are told of, and left out.

    The ranks of a run are attached by the same call, the n-th of each process, within an hour of each other.
    """
    runs: dict[tuple[int, int], list[tuple[float, Path, dict[str, Any]]]] = {}
    for path in sorted(root.glob("*/manifest.json")):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        text = manifest.get("start_time")
        began = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp() if text else 0.0
        runs.setdefault((int(manifest.get("run", 0)), int(manifest["rank"])), []).append((began, path.parent, manifest))
    last = {of: max(entries, key=lambda entry: entry[0]) for of, entries in runs.items()}
    newest = max((began for began, _, _ in last.values()), default=0.0)
    number = max((run for (run, _), (began, *_) in last.items() if newest - began < TOGETHER), default=0)
    kept = {path for (run, _), (began, path, _) in last.items() if run == number and newest - began < TOGETHER}
    for _, path, _ in (entry for entries in runs.values() for entry in entries):
        if path not in kept:
            report.problems.append(f"{path}: of another run, left out")
    return sorted((path, manifest) for (*_, path, manifest) in last.values() if path in kept)


def merge_rows(signal: str, rows: Iterable[Row], report: Report) -> list[Merged]:
    """Whole tensors, in the order of their first rows; of what several groups of ranks hold alike, the first. Those
    that differ stand behind them."""
    groups: dict[tuple[object, ...], list[Row]] = {}
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
    """To what is left of the numbers in a file, where parts were added up in another order."""
    pairs = ((one[op], other[op]) for op in one)
    return all(a == b or math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-12) or (a != a and b != b) for a, b in pairs)  # noqa: PLR0124


def _merge(groups: Sequence[list[Row]]) -> list[Merged]:
    """One row for each group, whose rows are about different elements."""
    if not groups:
        return []
    rows = [row for group in groups for row in group]
    ops = [op for op in rows[0].ops if all(op in row.ops for row in rows)]
    wholes = np.array([i for i, group in enumerate(groups) for _ in group])
    counts = np.array([row.elements for row in rows], dtype=np.float64)
    values = {op: np.array([row.ops[op] for row in rows]) for op in ops}
    columns = merge_columns(moments_of(values, counts), counts, wholes, len(groups))
    shapes = [group[0].shape for group in groups]
    heard = np.bincount(wholes, counts, len(groups))
    terms = np.array([any(row.part.startswith("term") for row in group) for group in groups])
    complete = (heard == numels(shapes)) & ~terms
    derived = {op: derive(op, columns, shapes) for op in ops if OPS[op].moment in columns}
    return [
        Merged(group[0], group[0].ranks, bool(complete[i]), {op: float(derived[op][i]) for op in derived})
        for i, group in enumerate(groups)
    ]


def _read(path: Path, manifest: Mapping[str, Any], report: Report) -> Iterator[Row]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file, strict=True):
                yield _row(line, manifest)
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        report.problems.append(f"{path}: {error}")


def _row(line: Mapping[str, str], manifest: Mapping[str, Any]) -> Row:
    rank = int(manifest["rank"])
    key = tuple(line.get(column) or "" for column in KEY)
    ops = {op: float(line[op]) for op in line if op in OPS and op != "id"}
    covered = _COVERAGE.fullmatch(line.get("coverage") or "")
    if covered is None:
        shape = _shape(line["shape"])
        return Row(key, _pp_stage(manifest), shape, line["dtype"], "", str(rank), math.prod(shape), ops)
    elements, shape_, kind, part, ranks = covered.groups()
    named = f"term {part}" if kind == "term" else part
    return Row(key, _pp_stage(manifest), _shape(shape_), line["dtype"], named, ranks, int(elements), ops)


def _pp_stage(manifest: Mapping[str, Any]) -> int:
    """The pipeline stage: as the monitor was told, else as Megatron knows it."""
    pipeline = (manifest.get("groups") or {}).get("pipeline_parallel") or []
    known = pipeline.index(manifest["rank"]) if manifest["rank"] in pipeline else 0
    return int(manifest.get("pp_stage", 0)) or known


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.strip("[]").split(",") if size.strip())


def _write(path: Path, rows: Sequence[Merged]) -> None:
    used = [column for i, column in enumerate(KEY) if any(row.first.key[i] for row in rows)]
    stages = ["pp_stage"] if len({row.first.pp_stage for row in rows}) > 1 else []
    ops = list(rows[0].ops)
    with replacing(path) as file:
        write = csv.writer(file, lineterminator="\n").writerow
        write([*used, *stages, *ops, *LAST])
        for row in rows:
            key = [row.first.key[KEY.index(column)] for column in used]
            numbers = [f"{row.ops[op]:.0f}" if op in COUNTS else f"{row.ops[op]:.6g}" for op in ops]
            stage = [row.first.pp_stage] if stages else []
            write([*key, *stage, *numbers, list(row.first.shape), row.first.dtype, row.ranks, int(row.complete)])
