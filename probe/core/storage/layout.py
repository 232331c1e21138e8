"""Grammar of tables on disk: names of files, columns, cells, spans of ranks. Each is written and parsed here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import count, pairwise
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from probe.core.histogram import HISTOGRAM
from probe.core.moments import MOMENTS, OPS
from probe.core.naming import row_name
from probe.core.records import Array, Batch, Coverage, Key, Update
from probe.core.storage.manifest import MOST_RANKS

CSV, PARQUET = FORMATS = ("csv", "parquet")
"""The formats of tables, as their suffixes."""
_NAME = re.compile(rf"(.+)_(\d+)-(\d+)(?:_part_(\d+))?\.({'|'.join(FORMATS)})")


def _quoted(signal: str) -> str:
    """Return a signal as a part of a file's name; of a lone surrogate, which no encoding holds, the escape."""
    return quote(signal, safe="", errors="backslashreplace")


class TableName(NamedTuple):
    """The name of a file of one signal: ``actv_0-9.csv``, or ``actv_5-9_part_1.csv``."""

    signal: str
    first: int
    """The first step that may be in it."""
    last: int
    """The last step that may be in it."""
    part: int = 0
    """Number that distinguishes files of the same signal and steps; 0 for none."""
    format: str = CSV

    def __str__(self) -> str:
        part = f"_part_{self.part}" if self.part else ""
        # a signal may be called anything, a file may not
        return f"{_quoted(self.signal)}_{self.first}-{self.last}{part}.{self.format}"


EXAMPLE = str(TableName("actv", 0, 0))
"""A name that messages show."""


def table_name(text: str) -> TableName | None:
    """Parse the name of a file; None for a name that no table has."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    return TableName(unquote(match[1]), int(match[2]), int(match[3]), int(match[4] or 0), match[5])


def is_table_suffix(suffix: str) -> bool:
    """Return whether files with this suffix (``.csv``) are tables."""
    return suffix[1:] in FORMATS


STACKS = "stack_info.csv"
"""File of the stacks at which modules are called: a table of no signal."""
COSTS = "cost.jsonl"
"""File of the monitor's own cost and of updates, a line a step: not CSV, because readers of all CSV files expect rows
about tensors."""


def cost_line(step: int, seconds: Mapping[str, float], overhead: float, update: Update | None = None) -> str:
    """Return a line of that file: the cost of a step in seconds by part, the overhead of the run so far, and the
    step's update, if it is known."""
    parts = {f"{name}_seconds": float(f"{value:.6g}") for name, value in seconds.items()}
    cells: dict[str, object] = {STEP: step, **parts, "overhead": float(f"{overhead:.6g}")}
    if update is not None:
        cells_of_update = dict(zip(UPDATE_COLUMNS, update, strict=True))
        cells |= {
            name: cell for name, cell in cells_of_update.items() if not isinstance(cell, float) or math.isfinite(cell)
        }
    return json.dumps(cells) + "\n"


COST_COLUMNS = {
    "step": "BIGINT",
    **dict.fromkeys(("hooks_seconds", "drain_seconds", "device_seconds", "overhead"), "DOUBLE"),
}
"""Fields of such lines about the cost, with their SQL types."""
UPDATE_COLUMNS = {"outcome": "VARCHAR", "skips": "BIGINT", "begun": "BOOLEAN", "learning_rate": "DOUBLE"}
"""Their other fields: those of :class:`probe.core.records.Update`, in its order."""


def cost_step(line: str) -> int:
    """Return the step of such a line.

    Raises:
        ValueError: if the line has no step.
    """
    try:
        return int(json.loads(line)[STEP])
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected a line with a {STEP}, got {line[:40]!r}") from error


def names_of(signal: str) -> str:
    """Return the pattern, without a suffix, of the names of all files of a signal."""
    return f"{_quoted(signal)}_*"


def span_of(step: int, steps_per_file: int) -> tuple[int, int]:
    """Return the first and the last step of the file that ``step`` belongs in."""
    first = step // steps_per_file * steps_per_file
    return first, first + steps_per_file - 1


def file_of_step(signal: str, step: int, steps_per_file: int, kind: str) -> tuple[range, str]:
    """Return the steps of the file that ``step`` belongs in, and the file's name.

    Args:
        kind: the format.
    """
    first, last = span_of(step, steps_per_file)
    return range(first, last + 1), str(TableName(signal, first, last, 0, kind))


def candidates(signal: str, first: int, last: int, step: int, kind: str) -> Iterator[TableName]:
    """Yield names for rows from ``step`` on in the file of the steps from ``first`` to ``last``, the best first.

    If the first name is taken (by other columns, or by a file that is closed), the file begins its range at ``step``.

    Args:
        kind: the format.
    """
    yield TableName(signal, first, last, 0, kind)
    for part in count():
        yield TableName(signal, step, last, part, kind)


STAGE, NAME, STEP, MICRO_STEP, CALL = KEY = ("vpp_stage", "name", "step", "micro_step", "call")
"""Columns that distinguish rows."""
SHAPE, DTYPE, COVERAGE = FORM = ("shape", "dtype", "coverage")
"""Columns that describe a row's tensor."""
PP_STAGE, RANKS, COMPLETE = "pp_stage", "ranks", "complete"
"""Further columns of merged files: the pipeline stage, the ranks of the parts, and whether all parts were present."""
TEXT = (NAME, *FORM, HISTOGRAM, RANKS)
"""Columns that are not numbers."""
INTEGERS = {STAGE: "INTEGER", STEP: "UINTEGER", MICRO_STEP: "INTEGER", CALL: "INTEGER"}
"""Columns of whole numbers, with their SQL types."""
BOUNDS = {"INTEGER": (-(2**31), 2**31 - 1), "UINTEGER": (0, 2**32 - 1)}
"""The lowest and the highest number of these types."""
NEEDED = (STAGE, NAME, STEP)
"""Columns that every file has, in this order."""
TAKEN = frozenset({"", "rank", "directory", "filename", "rowid"})
"""Names that no column of a file may have: rows are read together with columns of these names."""
MOST_COLUMNS = 500
"""Columns of a file at most. DuckDB 2.0 ends the process where a query groups by some thousands."""


def ops_of(batch: Batch, ops: Sequence[str]) -> tuple[str, ...]:
    """Return the ``ops`` that can be derived from ``batch``, in their order, then the columns that its signal adds."""
    derived = [op for op in ops if op in OPS and OPS[op].moment in batch.columns]
    added = [name for name in batch.columns if name not in MOMENTS and name not in (HISTOGRAM, *derived)]
    return (*derived, *added)


def histograms_of(batch: Batch, ops: Container[str]) -> Array | None:
    """Return ``len(batch) x BINS`` counts; None unless ``ops`` or ``batch`` request them and ``batch`` has them."""
    return batch.columns.get(HISTOGRAM) if batch.distribution or HISTOGRAM in ops else None


def columns_of(batch: Batch, ops: Sequence[str], histograms: bool) -> tuple[str, ...]:
    """Return the columns of a file that holds ``batch``, without ``call``, which is the last one if there is any."""
    micro_step, coverage = (MICRO_STEP,) * batch.micro_stepped, (COVERAGE,) * bool(batch.coverage)
    return (*NEEDED, *micro_step, *ops, SHAPE, DTYPE, *coverage, *(HISTOGRAM,) * histograms)


def line_beginning(stage: str, name: str, step: str, micro_step: str = "") -> str:
    """Return the beginning of a line of CSV, for people who search for it.

    Args:
        micro_step: empty if the file has no such column.
    """
    return ",".join([stage, name, step, *[micro_step] * bool(micro_step), ""])


def cells_of(batch: Batch) -> dict[str, list[Any]]:
    """Return the cells of all columns but the step, the ops and the histogram: the same from step to step."""
    return {
        STAGE: [key.stage for key in batch.keys],
        NAME: [cell_name(key) for key in batch.keys],
        MICRO_STEP: [key.micro_step for key in batch.keys],
        CALL: [key.call for key in batch.keys],
        SHAPE: [shape_text(shape) for shape in batch.shapes],
        DTYPE: list(batch.dtypes),
        COVERAGE: [
            coverage_text(coverage, math.prod(shape)) if coverage else ""
            for coverage, shape in zip(batch.coverage or (None,) * len(batch), batch.shapes, strict=True)
        ],
    }


def is_number(column: str) -> bool:
    """Return whether a column holds a signal's numbers, as ops do."""
    return column not in KEY and column not in TEXT


def type_of(column: str) -> str:
    """Return the SQL type of a column."""
    return INTEGERS.get(column) or ("VARCHAR" if column in TEXT else "DOUBLE")


def whole(column: str, cell: str | int) -> int:
    """Return the whole number in a cell; it may be written as ``7.0``.

    Raises:
        ValueError: if the cell has none, or one that its column cannot hold.
    """
    number = _whole(cell) if isinstance(cell, str) else cell
    low, high = BOUNDS[INTEGERS[column]]
    if not low <= number <= high:
        raise ValueError(f"expected a {column} from {low} to {high}, got {cell}")
    return number


def _whole(cell: str) -> int:
    if not cell.isascii():
        raise ValueError(f"expected digits from 0 to 9, got {cell!r}")
    try:
        return int(cell)
    except ValueError:
        number = float(cell)
    if not number.is_integer():
        raise ValueError(f"expected a whole number, got {cell!r}")
    return int(number)


def decimal(cell: str) -> float:
    """Return the number in a cell; NaN for an empty one.

    Raises:
        ValueError: if the cell has none.
    """
    if not cell.isascii():  # Python knows the digits of all languages, DuckDB those from 0 to 9
        raise ValueError(f"expected digits from 0 to 9, got {cell!r}")
    return float(cell) if cell else math.nan


def csv_cell(text: str) -> str:
    """Return ``text`` as a cell of a CSV file, quoted only if necessary (RFC 4180)."""
    if any(special in text for special in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text


_PART = re.compile(r"(?:(.*)\.)?((?:input|output)(?:_\d+)?|pre|post)", re.DOTALL)
_WITH_PARTS = frozenset({"actv", "actv_grad", "other"})
"""Signals whose rows are about a part of the module or call that has the name."""


def cell_name(key: Key) -> str:
    """Return the cell ``name`` of a row: ``fc.input``, or ``fc.input.call1`` for a repetition. Readers of the existing
    tool know no column ``call`` and refuse a name that comes twice in a step."""
    return f"{row_name(key)}.call{key.call}" if key.call else row_name(key)


def key_of(signal: str, name: str, micro_step: int, call: int, stage: int) -> Key:
    """Parse the key of a row from its cells; ``name`` is as :func:`cell_name` writes it."""
    if call:
        name = name.removesuffix(f".call{call}")
    part = _PART.fullmatch(name) if signal in _WITH_PARTS else None
    if part is None:
        return Key(name, "", micro_step, call, stage)
    return Key(part[1] or "", part[2], micro_step, call, stage)


def shape_text(shape: Sequence[int]) -> str:
    """Return the cell ``shape``: ``[3, 2]``."""
    return str(list(shape))


def shape_of(text: str | None) -> tuple[int, ...]:
    """Parse the sizes in ``[3, 2]`` or ``(3, 2)``; those of a scalar if there is no text.

    Raises:
        ValueError: if ``text`` is neither.
    """
    return tuple(int(size) for size in (text or "").strip("[]()").split(",") if size.strip())


_AT, _TERM, _OVER = "at", "term", " over ranks "
_COVERAGE = re.compile(rf"(\d+) of \[(.*)\] ({_AT}|{_TERM}) (.*){_OVER}(.*)")


def coverage_text(coverage: Coverage, numel: int) -> str:
    """Return the cell ``coverage`` of a row about ``numel`` elements: ``1024 of [64, 32] at 0:1024 over ranks 0-1``."""
    where = _TERM if coverage.term else _AT
    return f"{numel} of {shape_text(coverage.shape)} {where} {coverage.part}{_OVER}{ranks_text(coverage.ranks)}"


def coverage_of(text: str | None) -> Coverage | None:
    """Parse the coverage that :func:`coverage_text` has written; None for a whole tensor.

    Raises:
        ValueError: if its shape or its ranks cannot be parsed.
    """
    match = _COVERAGE.fullmatch(text or "")
    if match is None:
        return None
    _, shape, kind, part, ranks = match.groups()
    return Coverage(shape_of(shape), part, ranks_of(ranks), kind == _TERM)


PART_SQL = f"coalesce(regexp_replace({COVERAGE}, '{_OVER}.*', ''), '')"
"""SQL of the part that a row is about, without the ranks that hold the other parts; empty for a whole tensor."""
SHARERS_SQL = f"regexp_replace({COVERAGE}, '.*{_OVER}', '')"
"""SQL of the ranks that hold the parts of a tensor, as text."""
HOLDS_NO_TERM_SQL = f"({COVERAGE} IS NULL OR {COVERAGE} NOT LIKE '% {_TERM} %')"
"""SQL condition: true if a row is about elements, not about the terms of a sum."""


def _joined(ranks: Sequence[int], by: str, comma: str) -> str:
    """Return the first and the last of two ranks or more at equal distances, with the distance; else all ranks."""
    distances = {after - before for before, after in pairwise(ranks)}
    if len(distances) != 1 or (distance := distances.pop()) < 1:
        return comma.join(map(str, ranks))
    return f"{ranks[0]}-{ranks[-1]}" + (f"{by}{distance}" if distance > 1 else "")


def _spread(first: str, last: str, stride: str, text: str) -> range:
    """Return the ranks from ``first`` to ``last`` at a distance of ``stride``; errors show ``text``."""
    if int(last) - int(first) > MOST_RANKS:
        raise ValueError(f"expected at most {MOST_RANKS} ranks, got {text}")
    return range(int(first), int(last) + 1, int(stride or 1))


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``0-3`` for 0, 1, 2, 3; ``0-6:2`` for 0, 2, 4, 6; else all ranks, ``0,1,5``."""
    return _joined(ranks, ":", ",")


def ranks_of(text: str) -> tuple[int, ...]:
    """Parse the ranks that :func:`ranks_text` has written.

    Raises:
        ValueError: if ``text`` is not such a text, or names more than ``MOST_RANKS``.
    """
    span = rank_span(text)
    return tuple(span if span is not None else (int(rank) for rank in text.split(",") if rank))


def rank_span(text: str) -> range | None:
    """Parse ranks at equal distances, such as ``0-3`` and ``0-6:2``; None for another text.

    Raises:
        ValueError: as :func:`ranks_of`.
    """
    span, _, stride = text.partition(":")
    first, dash, last = span.partition("-")
    return _spread(first, last, stride, text) if dash else None


_GROUP = re.compile(r"\.ranks(?:(\d+)-(\d+)(?:by(\d+))?|([\d+]+))\.")


def group_label(ranks: Sequence[int]) -> str:
    """Return a group of ranks for a name: ``ranks0-3``; ``ranks0-6by2`` at equal distances; else ``ranks0+3+4``."""
    return "ranks" + _joined(ranks, "by", "+")


def group_of(name: str) -> frozenset[int]:
    """Parse the ranks that :func:`group_label` has put into a row's name, ``all_reduce.ranks0-3.train.py[23].post``;
    empty if the name has no such part."""
    match = _GROUP.search(name)
    if match is None:
        return frozenset()
    first, last, stride, listed = match.groups()
    try:
        return frozenset(map(int, listed.split("+")) if listed else _spread(first, last, stride, name))
    except ValueError:  # a name that no collective has written
        return frozenset()


def call_site(name: str) -> tuple[str, str]:
    """Parse the operation and the line of code in the name of a collective's row,
    ``all_reduce.ranks0-3.train.py[23].post``; the line is empty if the name has no group."""
    match = _GROUP.search(name)
    if match is None:
        return name, ""
    place = _PART.fullmatch(name[match.end() :])
    return name[: match.start()], (place[1] or "") if place else name[match.end() :]
