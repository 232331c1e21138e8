"""``anomaly.json`` of all ranks, read back: what monitored runs have dumped while they ran."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from probe.core.naming import SIGNALS, signal_of
from probe.core.reading.problems import Problems

FOLDER = "anomaly_detected"
FILE = "anomaly.json"
FORWARD = "input", "output"
BACKWARD = "input_grad", "output_grad", "acc_grad"
"""Tasks under the names that older files have."""

_RANK = re.compile(r"rank(\d+)")
_TAG = re.compile(r"(\d+):(.*)/rank(\d+)/([^/]+)", re.DOTALL)
_MICRO = re.compile(r":\d+(\.call\d+)?$")
_MESSAGE = re.compile(
    r"Rule (\S+) reports anomaly signal in \('.*', '(\w+)'\) at step \d+"
    r"(?:, current value (\S+?))?(?:, [a-z ]+ (\S+?))?\.(?:\s.*)?",
    re.DOTALL,
)
_SIGNAL_OF_TASK = {signal.task: name for name, signal in SIGNALS.items()}


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

    @property
    def task(self) -> str:
        """What is measured, as tags call it."""
        return self.tag_name.rpartition("/")[2]

    @property
    def signal(self) -> str:
        """What is measured, as files are called."""
        return _SIGNAL_OF_TASK.get(self.task, self.task)

    @property
    def name(self) -> str:
        """What the row is about: the tag without stage, rank and task, such as ``fc.weight`` or ``fc.input:0``."""
        found = _TAG.fullmatch(self.tag_name)
        return found[2] if found else self.tag_name

    @property
    def row(self) -> str:
        """The ``name`` in a CSV file."""
        return _MICRO.sub(r"\1", self.name) if self.micro_stepped else self.name

    @property
    def micro_stepped(self) -> bool:
        """Whether the row is one of a micro step's."""
        if self.task in (*FORWARD, *BACKWARD, "actv", "actv_grad"):
            return True
        return self.task == "pre_grad" and bool(_MICRO.search(self.name))

    @property
    def phase(self) -> int:
        """As :attr:`probe.core.naming.Signal.phase`, under older names too."""
        if self.task in FORWARD:
            return SIGNALS["actv"].phase
        return SIGNALS["actv_grad"].phase if self.task in BACKWARD else signal_of(self.signal).phase

    @property
    def rule(self) -> str:
        """The rule that found it; empty if the message does not say."""
        found = _MESSAGE.fullmatch(self.message)
        return found[1] if found else ""

    @property
    def op(self) -> str:
        """The op in which it was found; empty if the message does not say."""
        found = _MESSAGE.fullmatch(self.message)
        return found[2] if found else ""

    def numbers(self) -> tuple[float, float]:
        """The value and what it was compared with; NaN where the message does not say."""
        found = _MESSAGE.fullmatch(self.message)
        texts = (found[3], found[4]) if found else (None, None)
        return _number(texts[0]), _number(texts[1])

    def fields(self) -> dict[str, Any]:
        """The documented object."""
        return asdict(self)


def read(root: Path, problems: Problems) -> Iterator[tuple[str, Entry]]:
    """Every entry of every rank, with its key, one rank after the other.

    Args:
        root: ``anomaly_detected``, or the output directory that holds it.

    Raises:
        ValueError: if there is no such directory, or nothing of a rank in it.
    """
    folders = rank_folders(root)
    if not folders:
        raise ValueError(
            f"{root}: expected {FOLDER}/rank0/{FILE} or rank0/{FILE}, as a run with "
            '"alert": {"dump": true} writes when it finds something; there is none'
        )
    for folder in folders:
        yield from _of_file(folder / FILE, problems)


def rank_folders(root: Path) -> list[Path]:
    """The folders of ranks that have dumped something, in the order of ranks.

    Raises:
        ValueError: if there is no such directory.
    """
    root = root.expanduser()
    if not root.is_dir():
        what = "this is a file" if root.exists() else "there is none of this name"
        raise ValueError(f"{root}: expected a directory; {what}")
    inside = root / FOLDER if (root / FOLDER).is_dir() else root
    found = ((name, path) for path in inside.iterdir() if (name := _RANK.fullmatch(path.name)))
    return [path for _, path in sorted((int(name[1]), path) for name, path in found if (path / FILE).is_file())]


def _of_file(path: Path, problems: Problems) -> Iterator[tuple[str, Entry]]:
    try:
        text = path.read_text(encoding="utf-8")
        if not text:
            problems.add(path, "the file is empty: there is no finding in it", skipped=False)
            return
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        problems.add(path, f"expected a JSON object; {error.msg}: left out", error.lineno)
        return
    except (OSError, ValueError, RecursionError) as error:
        problems.add(path, f"expected a JSON object; {error}: left out")
        return
    if not isinstance(entries, dict):
        problems.add(path, f"expected a JSON object; there is {type(entries).__name__}: left out")
        return
    for key, values in entries.items():
        try:
            yield key, entry_of(values)
        except ValueError as error:
            problems.add(path, f"entry {key!r}: {error}: left out")


def entry_of(values: object) -> Entry:
    """An object of the file; fields that are not known are passed over.

    Raises:
        ValueError: if it is none of ours.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"expected an object; there is {type(values).__name__}")
    numbers = {
        name: _whole(values, name) for name in ("rank", "step", "micro_step", "pp_stage", "vpp_stage", "call_id")
    }
    tag, message = values.get("tag_name"), values.get("message", "")
    if not isinstance(tag, str) or not isinstance(message, str):
        raise ValueError(f"expected tag_name and message as texts; got {tag!r} and {message!r}")
    mates = values.get("group_mates") or []
    if not isinstance(mates, list):
        raise ValueError(f"expected group_mates as a list of ranks; got {mates!r}")
    return Entry(**numbers, tag_name=tag, message=message, group_mates=mates)


def _whole(values: Mapping[str, object], name: str) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected {name} as a whole number; got {value!r}")
    return value


def _number(text: str | None) -> float:
    try:
        return float(text) if text else float("nan")
    except ValueError:
        return float("nan")
