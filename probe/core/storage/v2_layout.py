"""Files in the layout of msprobe's Monitor V2: ``rank_0/weight_grad_step0-9.csv``, several signals in one.

Readers get a translation of such a folder, which is made at the first use and lives as long as the process.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from probe.core.language import invalid, message
from probe.core.naming import row_name
from probe.core.records import Key
from probe.core.storage.csv_rows import rows
from probe.core.storage.files import opened, permit
from probe.core.storage.layout import MICRO_STEP, NEEDED, STEP, TableName, csv_cell, decimal, whole
from probe.core.storage.location import Place, contents
from probe.core.storage.manifest import FILE
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import parsed_name, write_manifest

SIGNALS = {
    ("module", "forward"): "actv",
    ("module", "backward"): "actv_grad",
    ("weight_grad", "unreduced"): "grad_unreduced",
    ("weight_grad", "reduced"): "grad_reduced",
    ("param", "param_origin"): "param_origin",
    ("param", "param_updated"): "param_updated",
    ("cc", "comm"): "other",
}
"""Signals by section and scope; the scopes of ``optimizer`` are names of signals themselves."""
SECTIONS = {signal: pair for pair, signal in SIGNALS.items()}
OPTIMIZER, MODULE_NAME, SCOPE = "optimizer", "module_name", "scope"
STAGE = NEEDED[0]
_FILE = re.compile(r"(module|weight_grad|optimizer|param|cc)_step(\d+)-(\d+)\.csv")
_RANK = re.compile(r"rank_(\d{1,6})")
_PART = re.compile(r"(.*)\.(grad_)?(input|output)\.(\d+)", re.DOTALL)


def file_name(section: str, first: int, last: int) -> str:
    """Return the name of the file of a section and a range of steps."""
    return f"{section}_step{first}-{last}.csv"


def folder_name(rank: int) -> str:
    """Return the name of the folder of a rank."""
    return f"rank_{rank}"


def section_of(signal: str) -> tuple[str, str]:
    """Return the section and the scope of a signal; of one without a place, ``optimizer`` and its name."""
    return SECTIONS.get(signal, (OPTIMIZER, signal))


def module_name(signal: str, key: Key) -> str:
    """Return the cell ``module_name`` of a row."""
    section, scope = section_of(signal)
    if section == OPTIMIZER:
        return f"{row_name(key)}.{scope}"
    if section != "module":
        return row_name(key)
    part, _, index = key.part.partition("_")
    return f"{key.name}.{'grad_' if signal == 'actv_grad' else ''}{part}.{index or 0}"


class _Row(NamedTuple):
    """A row of a file, by the columns here."""

    signal: str
    stage: int
    name: str
    """Name as it is there, without the stage."""
    step: int
    micro_step: int | None
    values: tuple[str, ...]
    """Cells of the ops."""


def translated(root: Place, problems: Problems) -> Place:
    """Return a folder with the rows of ``root`` in the layout here if that has folders of Monitor V2, or is one, and
    nothing else of a run; else ``root`` itself. Rows that cannot be read are recorded in ``problems``."""
    if not isinstance(root, Path):
        return root
    named = _rank_folders(root)
    if not named:
        return root
    state = tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns) for path, _ in named for f in sorted(path.iterdir()))
    translation = _translation(root, tuple(sorted((rank, path) for path, rank in named)), state)
    problems.extend(translation.problems)
    return translation.folder


def is_written_by_v2(root: Place) -> bool:
    """Return whether a folder has folders of Monitor V2, or is one, and nothing else of a run.

    Raises:
        OSError: if it cannot be listed.
    """
    return isinstance(root, Path) and bool(_rank_folders(root))


def _rank_folders(root: Path) -> list[tuple[Path, int]]:
    """Return the folders of Monitor V2, each with its rank."""
    folders = {int(number[1]): path for path in _candidates(root) if (number := _RANK.fullmatch(path.name))}
    return [(path, rank) for rank, path in folders.items() if any(_FILE.fullmatch(f.name) for f in path.iterdir())]


def _candidates(root: Path) -> Iterable[Path]:
    if _RANK.fullmatch(root.name):
        return [root]
    inside = [path for path in contents(root) if path.is_dir()]
    is_run = any(parsed_name(path.name) or (path / FILE).is_file() for path in inside)
    return [] if is_run else [path for path in inside if isinstance(path, Path)]


class _Translation(NamedTuple):
    folder: Path
    problems: Problems
    alive: TemporaryDirectory[str]
    """Removes the folder when the process ends."""


@lru_cache(maxsize=8)
def _translation(root: Path, ranks: tuple[tuple[int, Path], ...], state: object) -> _Translation:  # noqa: ARG001
    """Translate the folders of all ranks; ``state`` changes with any file in them."""
    alive, problems = TemporaryDirectory(prefix="probe-", ignore_cleanup_errors=True), Problems()
    folder = Path(alive.name) / (root.resolve().name or "root")
    permit(Path(alive.name))
    for rank, path in ranks:
        (made := folder / path.name).mkdir(parents=True)
        firsts = [_translate(file, made, problems) for file in sorted(path.iterdir()) if _FILE.fullmatch(file.name)]
        steps = [step for step in firsts if step is not None]
        fields = {"rank": rank, "world_size": max(number for number, _ in ranks) + 1, "run": 0}
        write_manifest(made, {**fields, "first_step": min(steps, default=0)})
    return _Translation(folder, problems, alive)


def _translate(file: Path, target: Path, problems: Problems) -> int | None:
    """Write the signals of a file to files of their own; return its first step."""
    named = _FILE.fullmatch(file.name)
    assert named is not None
    section, first, last = named[1], int(named[2]), int(named[3])
    by_signal: dict[str, list[_Row]] = {}
    try:
        ops, rows = _read(file, section, problems)
    except (OSError, ValueError) as error:
        problems.add(file, message("{error}: left out", error=error))
        return None
    for row in rows:
        by_signal.setdefault(row.signal, []).append(row)
    for signal, of_signal in by_signal.items():
        path = target / str(TableName(signal, first, last))
        path.write_text("".join(_lines(signal, ops, of_signal)), "utf-8")
    return min((row.step for row in rows), default=None)


def _read(file: Path, section: str, problems: Problems) -> tuple[list[str], list[_Row]]:
    """Return the ops and the rows of a file.

    Raises:
        ValueError: if its header is none of Monitor V2.
    """
    with opened(file) as source:
        text = source.read().decode("utf-8", "backslashreplace")
    header, *others = rows(text.splitlines(keepends=True) or ["\n"])
    columns = header.cells
    if missing := [name for name in (STAGE, STEP, MODULE_NAME, SCOPE) if name not in columns]:
        raise invalid("expected a header with {names}", names=", ".join(missing))
    ops = [name for name in columns if name not in (STAGE, STEP, MODULE_NAME, SCOPE, MICRO_STEP)]
    parsed = []
    for row in others:
        if not row.cells and not row.wrong:
            continue
        try:
            parsed.append(_row(section, ops, dict(zip(columns, row.cells, strict=True))))
        except ValueError as error:
            problems.add(file, message("{error}: this line is left out", error=row.wrong or error), row.line)
    return ops, parsed


def _row(section: str, ops: Sequence[str], cells: Mapping[str, str]) -> _Row:
    scope, micro = cells[SCOPE], cells.get(MICRO_STEP)
    if (section, scope) not in SIGNALS and section != OPTIMIZER:
        raise invalid("expected a {section} with a known scope, got {scope!r}", section=section, scope=scope)
    stage, colon, name = cells[MODULE_NAME].partition(":")
    stage, name = (stage, name) if colon and stage.isdigit() else (cells[STAGE] or "0", cells[MODULE_NAME])
    return _Row(
        SIGNALS.get((section, scope), scope),
        max(0, whole(STAGE, stage)),
        name,
        whole(STEP, cells[STEP]),
        whole(MICRO_STEP, micro) if micro else None,
        tuple(_checked(cells[op]) for op in ops),
    )


def _checked(cell: str) -> str:
    """Return a cell of an op.

    Raises:
        ValueError: if it is neither empty nor a number.
    """
    decimal(cell)
    return cell


def _lines(signal: str, ops: Sequence[str], rows: Sequence[_Row]) -> Iterator[str]:
    """Yield the header and the rows of a signal. Rows that come again in a step are those of the next micro step."""
    times = Counter[tuple[int, int, str]]()
    numbered = []
    for row in rows:
        numbered.append(times[(row.step, row.stage, row.name)])
        times[(row.step, row.stage, row.name)] += 1
    micro_stepped = signal in ("actv", "actv_grad") or any(numbered)
    yield ",".join([*NEEDED, *[MICRO_STEP] * micro_stepped, *ops]) + "\n"
    several = _several(rows) if section_of(signal)[0] == "module" else frozenset()
    for row, number in zip(rows, numbered, strict=True):
        name = csv_cell(_name(signal, row.name, several))
        yield ",".join([str(row.stage), name, str(row.step), *[str(number)] * micro_stepped, *row.values]) + "\n"


def _several(rows: Iterable[_Row]) -> frozenset[str]:
    """Return the places of modules that have more than one tensor."""
    parts = (_PART.fullmatch(row.name) for row in rows)
    return frozenset(f"{part[1]}.{part[3]}" for part in parts if part is not None and part[4] != "0")


def _name(signal: str, name: str, several: frozenset[str]) -> str:
    """Return the cell ``name`` of a row."""
    section, scope = section_of(signal)
    if section == OPTIMIZER:
        return name.removesuffix(f".{scope}").removeprefix(f"{scope}.")
    part = _PART.fullmatch(name) if section == "module" else None
    if part is None:
        return name
    place = f"{part[1]}.{part[3]}"
    return f"{place}_{part[4]}" if place in several else place
