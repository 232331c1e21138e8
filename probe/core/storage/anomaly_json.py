"""``anomaly.json``: the fields of an entry, and the reader of the files of all ranks.

This is the only reader of these files. Their entries have typed fields. Older entries lack these: rule, op and numbers
are parsed from the message, and the run is unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.language import invalid, message
from probe.core.naming import SIGNALS, signal_of
from probe.core.records import Finding
from probe.core.storage.files import opened
from probe.core.storage.layout import cell_name
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import parsed_rank, rank_folder

FOLDER = "anomaly_detected"
FILE = "anomaly.json"
FORWARD = "input", "output"
BACKWARD = "input_grad", "output_grad", "acc_grad"
"""Tasks under the names that older files have."""
LARGEST = 256 << 20
"""Bytes of a file at most."""
LARGEST_NUMBER = 2**32 - 1
"""Limit of steps, ranks and the like, as in tables."""
SHOWN = 200
"""Characters of a wrong value that an error shows."""
TYPED: dict[str, tuple[type, ...]] = {
    "rule": (str,),
    "signal": (str,),
    "name": (str,),
    "op": (str,),
    "value": (int, float, str),
    "expected": (int, float, str),
    "micro_stepped": (bool,),
    "call": (int,),
    "run": (str,),
    "start": (str,),
    "first_step": (int,),
}
"""Fields after the documented ones, with their types in JSON; NaN and the infinities are texts."""


_TAG = re.compile(r"(\d+):(.*)/rank(\d+)/([^/]+)", re.DOTALL)
_MICRO = re.compile(r":\d+(\.call\d+)?$")
_MESSAGE = re.compile(
    r"Rule (\S+) reports anomaly signal in \('.*', '(\w+)'\) at step \d+"
    r"(?:, current value (\S+?))?(?:, [a-z ]+ (\S+?))?\.(?:\s.*)?",
    re.DOTALL,
)
_SIGNAL_OF_TASK = {signal.task: name for name, signal in SIGNALS.items()}


class Judgement(NamedTuple):
    """Rule, op and numbers of a finding; empty, and None, if the entry lacks them."""

    rule: str = ""
    op: str = ""
    value: float | None = None
    expected: float | None = None
    """None where nothing was compared, or the entry lacks it."""


@dataclass(frozen=True)
class Entry:
    """One dumped finding, with the fields that the file has."""

    rank: int
    step: int
    micro_step: int
    pp_stage: int
    vpp_stage: int
    call_id: int
    tag_name: str
    message: str
    group_mates: list[int] = field(default_factory=list)
    typed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of :data:`TYPED` that the entry has."""

    @property
    def task(self) -> str:
        """The signal as tags name it."""
        return self.tag_name.rpartition("/")[2]

    @property
    def signal(self) -> str:
        """The signal as names of files have it."""
        return str(self.typed.get("signal") or _SIGNAL_OF_TASK.get(self.task, self.task))

    @property
    def name(self) -> str:
        """The tensor: the tag without stage, rank and task, such as ``fc.weight`` or ``fc.input:0``."""
        match = _TAG.fullmatch(self.tag_name)
        return match[2] if match else self.tag_name

    @property
    def row(self) -> str:
        """The ``name`` in a CSV file."""
        if "name" in self.typed:
            return str(self.typed["name"])
        return _MICRO.sub(r"\1", self.name) if self.micro_stepped else self.name

    @property
    def micro_stepped(self) -> bool:
        """True if the row is of a micro step."""
        if "micro_stepped" in self.typed:
            return bool(self.typed["micro_stepped"])
        if self.task in (*FORWARD, *BACKWARD, "actv", "actv_grad"):
            return True
        return self.task == "pre_grad" and bool(_MICRO.search(self.name))

    @property
    def call(self) -> int:
        """Repetition within a micro step; 0 where the entry lacks it."""
        return int(self.typed.get("call", 0))

    @property
    def phase(self) -> int:
        """Phase of the signal, as :attr:`probe.core.naming.Signal.phase`; older names are known, too."""
        if self.task in FORWARD:
            return SIGNALS["actv"].phase
        return SIGNALS["actv_grad"].phase if self.task in BACKWARD else signal_of(self.signal).phase

    @property
    def judgement(self) -> Judgement:
        """Rule, op and numbers: the typed fields, else parsed from the message."""
        if "rule" in self.typed:
            op, value, expected = (self.typed.get(name) for name in ("op", "value", "expected"))
            return Judgement(self.typed["rule"], str(op or ""), _number(value), _number(expected))
        match = _MESSAGE.fullmatch(self.message)
        return Judgement(match[1], match[2], _number(match[3]), _number(match[4])) if match else Judgement()

    @property
    def run(self) -> str:
        """The directory of the rank in the run of the finding; empty in files of older versions."""
        return str(self.typed.get("run", ""))

    def fields(self) -> dict[str, Any]:
        """Return the object in the file: the documented fields, then the typed ones."""
        documented = asdict(self)
        del documented["typed"]
        return {**documented, **self.typed}


def read(root: Place, problems: Problems) -> Iterator[tuple[str, Entry]]:
    """Yield every entry of every rank with its key, one rank after the other.

    Args:
        root: ``anomaly_detected``, or the output directory that holds it.

    Raises:
        ValueError: if there is no such directory, or no file of a rank in it.
    """
    folders = rank_folders(root)
    if not folders:
        raise ValueError(
            f"{root}: expected {FOLDER}/{rank_folder(0)}/{FILE} or {rank_folder(0)}/{FILE}, as a run with "
            '"alert": {"dump": true} writes when it finds something; there is none'
        )
    for folder in folders:
        yield from _of_file(folder / FILE, problems)


def rank_folders(root: Place) -> list[Place]:
    """Return the folders of the ranks that have dumped findings, in the order of ranks.

    Raises:
        ValueError: if there is no such directory.
    """
    root = root.expanduser()
    if not root.is_dir():
        trouble = "this is a file" if root.exists() else "there is none of this name: give MONITOR_OUTPUT_DIR"
        raise ValueError(f"{root}: expected a directory; {trouble}")
    inside = root / FOLDER if (root / FOLDER).is_dir() else root
    folders = ((rank, path) for path in inside.iterdir() if (rank := parsed_rank(path.name)) is not None)
    return [path for _, path in sorted((p for p in folders if (p[1] / FILE).is_file()), key=lambda p: p[0])]


def file_of(root: Path, rank: int) -> Path:
    """Return the file of a rank in the output directory ``root``."""
    return root / FOLDER / rank_folder(rank) / FILE


def entry_key(tag_name: str, step: int, order: int, op: str) -> str:
    """Return the key of an entry, unless an earlier finding has it."""
    return f"{tag_name}_step_{step}_call_{order}_{op}"


def _of_file(path: Place, problems: Problems) -> Iterator[tuple[str, Entry]]:
    try:
        if path.stat().st_size > LARGEST:
            raise invalid("this is larger than {most} MiB", most=LARGEST >> 20)
        with opened(path) as file:
            text = file.read().decode("utf-8")
        if not text:
            problems.add(path, message("the file is empty: there is no finding in it"), skipped=False)
            return
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        problems.add(path, message("expected a JSON object; {error}: left out", error=error.msg), error.lineno)
        return
    except (OSError, ValueError, RecursionError) as error:
        problems.add(path, message("expected a JSON object; {error}: left out", error=error))
        return
    if not isinstance(entries, dict):
        problems.add(path, message("expected a JSON object; there is {type}: left out", type=type(entries).__name__))
        return
    for key, values in entries.items():
        try:
            yield key, entry_of(values)
        except ValueError as error:
            problems.add(path, message("entry {key}: {error}: left out", key=_shown(key), error=error))


def entry_of(values: object) -> Entry:
    """Parse an object of the file; unknown fields are ignored.

    Raises:
        ValueError: if it is not a valid entry.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"expected an object; there is {type(values).__name__}")
    numbers = {
        name: _whole(values, name) for name in ("rank", "step", "micro_step", "pp_stage", "vpp_stage", "call_id")
    }
    tag, message = values.get("tag_name"), values.get("message", "")
    if not isinstance(tag, str) or not isinstance(message, str):
        raise ValueError(f"expected tag_name and message as texts; got {_shown(tag)} and {_shown(message)}")
    mates = values.get("group_mates") or []
    if not isinstance(mates, list):
        raise ValueError(f"expected group_mates as a list of ranks; got {_shown(mates)}")
    return Entry(**numbers, tag_name=tag, message=message, group_mates=mates, typed=_typed(values))


def _typed(values: Mapping[str, object]) -> dict[str, Any]:
    typed = {name: values[name] for name in TYPED if values.get(name) is not None}
    for name, value in typed.items():
        if not isinstance(value, TYPED[name]) or isinstance(value, bool) is not (TYPED[name] == (bool,)):
            raise ValueError(
                f"expected {name} as {' or '.join(kind.__name__ for kind in TYPED[name])}; got {_shown(value)}"
            )
        if name in ("value", "expected") and _number(value) is None:
            raise ValueError(f"expected {name} as a number; got {_shown(value)}")
    return typed


def _whole(values: Mapping[str, object], name: str) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > LARGEST_NUMBER:
        raise ValueError(f"expected {name} as a whole number; got {_shown(value)}")
    return value


def _shown(value: object) -> str:
    """Return ``value`` as text, cut to :data:`SHOWN` characters."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _number(cell: Any) -> float | None:
    try:
        return None if cell is None else float(cell)
    except (ValueError, OverflowError):
        return None


def documented_fields(
    finding: Finding, tag_name: str, order: int, pp_stage: int, group_mates: Sequence[int]
) -> dict[str, object]:
    """Return the fields that entries of every version have.

    Args:
        order: the call id.
        pp_stage: pipeline stage of the rank.
        group_mates: ranks of its pipeline.
    """
    return {
        "rank": finding.rank,
        "step": finding.step,
        "micro_step": finding.key.micro_step,
        "pp_stage": pp_stage,
        "vpp_stage": finding.key.stage,
        "call_id": order,
        "tag_name": tag_name,
        "message": finding.message,
        "group_mates": list(group_mates),
    }


def value_fields(finding: Finding) -> dict[str, object]:
    """Return the first fields of :data:`TYPED`: the rule, the row, the op and its numbers."""
    return {
        "rule": finding.rule,
        "signal": finding.signal,
        "name": cell_name(finding.key),
        "op": finding.op,
        "value": in_json(finding.value),
        "expected": in_json(finding.expected),
    }


def fields_of(
    finding: Finding, tag_name: str, pp_stage: int, group_mates: Sequence[int], run: Mapping[str, object]
) -> dict[str, object]:
    """Return the fields of an entry: the documented ones, then those of :data:`TYPED`.

    Args:
        run: fields from :func:`run_fields`.
    """
    return {
        **documented_fields(finding, tag_name, finding.order, pp_stage, group_mates),
        **value_fields(finding),
        "micro_stepped": finding.micro_stepped,
        "call": finding.key.call,
        **run,
    }


def run_fields(run: str, start: str, first_step: int) -> dict[str, object]:
    """Return the fields that name an entry's run: directory, start, first step; no fields if ``run`` is empty."""
    return {"run": run, "start": start, "first_step": first_step} if run else {}


def is_from(fields: object, run: str, first: int) -> bool:
    """Return whether an object of the file is a finding of ``run`` at step ``first`` or later."""
    if not isinstance(fields, Mapping) or fields.get("run") != run:
        return False
    step = fields.get("step")
    return isinstance(step, int) and step >= first


def in_json(number: float) -> float | str:
    """Return ``number``, or a text if JSON has no such number: ``nan``, ``inf``, ``-inf``."""
    return float(number) if isfinite(number) else str(float(number))
