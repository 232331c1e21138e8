"""Directory of a run and rank: its name, and the manifest in it. Each is written and read here."""

from __future__ import annotations

import json
import math
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from probe.core.language import invalid, message
from probe.core.storage import manifest
from probe.core.storage.files import json_of, replacing
from probe.core.storage.location import MARK, Location, Place
from probe.core.storage.manifest import Manifest
from probe.core.storage.problems import Problems

SCHEMA = 1
"""Version of the output's layout; increased when a reader of the older one would be wrong."""

ZONE = timezone(timedelta(hours=8), "UTC+08:00")
"""Time zone of directory names, on every machine, so that names of all ranks and tools can be compared."""

EXAMPLE_TIME = "Dec03_21-34-40"
EXAMPLE_DIRECTORY = f"{EXAMPLE_TIME}-rank0-1f0c9a3e"
"""Names that messages show."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DIRECTORY = re.compile(r"([A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2})-rank(\d{1,6})-\w+")
_TIME = "%Y-%m-%dT%H:%M:%S%z"


def output_root(environ: Mapping[str, str], configured: str | None = None) -> Path:
    """Return the directory that a configuration names (``output_dir``), else ``MONITOR_OUTPUT_DIR``, else
    ``./monitor_output``.

    Raises:
        ValueError: if it is a URL: runs are read from object storage, and written to folders.
    """
    folder = configured or environ.get("MONITOR_OUTPUT_DIR") or "./monitor_output"
    if MARK in folder:
        key = "output_dir" if configured else "MONITOR_OUTPUT_DIR"
        text = "{key}: expected the path of a folder, got {scheme}...; write to a folder, and copy it there afterwards"
        raise invalid(text, key=key, scheme=folder.partition(MARK)[0] + MARK)
    return Path(folder).expanduser()


def stamp(now: float) -> str:
    """Return ``now`` (seconds since the epoch) for names of folders, such as ``Dec03_21-34-40``: one time zone and one
    language on every machine."""
    start = datetime.fromtimestamp(now, ZONE)
    return f"{_MONTHS[start.month - 1]}{start:%d_%H-%M-%S}"


def local_stamp(moment: float) -> str:
    """Return a time (seconds since the epoch) of this machine's zone for lists of runs, such as ``Dec03 13:34:40``."""
    start = datetime.fromtimestamp(moment)
    return f"{_MONTHS[start.month - 1]}{start:%d %H:%M:%S}"


def zone_note(path: str) -> str:
    """Return a clause about the time in a directory's name; empty if there is none, or its zone is this machine's."""
    if parsed_name(Path(path).name) is None or datetime.now(ZONE).astimezone().utcoffset() == ZONE.utcoffset(None):
        return ""
    return message(" (its name has the time of {zone})", zone=ZONE)


def parsed_stamp(text: str, year: int) -> datetime:
    """Parse the time in a folder's name, which lacks the year.

    Raises:
        ValueError: if it is no such time.
    """
    month, rest = text[:3].capitalize(), text[3:]
    if month not in _MONTHS:  # %b would expect the language of the machine
        raise ValueError(f"expected a month of {', '.join(_MONTHS)}, got {month!r}")
    moment = f"{year} {_MONTHS.index(month) + 1:02} {rest}"
    return datetime.strptime(moment, "%Y %m %d_%H-%M-%S").replace(tzinfo=ZONE)


def time_text(moment: time.struct_time) -> str:
    """Return a time for manifests, such as ``2026-11-03T21:34:40+0800``."""
    return time.strftime(_TIME, moment)


def parsed_time(text: str) -> float:
    """Parse a time of a manifest; return seconds since the epoch.

    Raises:
        ValueError: if it is no such time.
    """
    return datetime.strptime(text, _TIME).timestamp()


def directory_name(rank: int, now: float) -> str:
    """Return the name of a run's and rank's directory, such as ``Dec03_21-34-40-rank0-1f0c9a3e``; new at each call.

    Args:
        now: seconds since the epoch.
    """
    # uuid4 asks the operating system: the random generators of the training run are not touched.
    return f"{stamp(now)}-rank{rank}-{uuid.uuid4().hex[:8]}"


def parsed_name(name: str) -> tuple[str, int] | None:
    """Parse the time and the rank in a directory's name; None for a name that no rank's directory has."""
    match = _DIRECTORY.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def directories_of(rank: int | None = None) -> str:
    """Return the pattern of the names of all directories of ``rank``, or of any rank."""
    return "*-rank*" if rank is None else f"*-rank{rank}-*"


def superseded_name(now: float, step: int) -> str:
    """Return the name of the folder that keeps the rows which a resumed run replaces, from ``step`` on."""
    return f"superseded-{stamp(now)}-from-step-{step}"


def rank_folder(rank: int) -> str:
    """Return the name of the folder of one rank in a folder that all runs share."""
    return f"rank{rank}"


def parsed_rank(name: str) -> int | None:
    """Parse the rank in the name of such a folder; None for another name."""
    match = re.fullmatch(r"rank(\d+)", name)
    return None if match is None else int(match[1])


def create(root: Path, name: str) -> Path:
    """Make the directory ``name`` under ``root``.

    Raises:
        OSError: if it cannot be made.
    """
    directory = root / name
    with advised(root):
        directory.mkdir(parents=True)
    return directory


@contextmanager
def advised(root: Path) -> Iterator[None]:
    """Add the environment variable to errors of the block, which makes directories under ``root``.

    Raises:
        OSError: of the same kind and number, with advice.
    """
    try:
        yield
    except OSError as error:
        remedy = "set MONITOR_OUTPUT_DIR, or output_dir in the configuration, to a directory that can be written"
        advice = f"cannot write to {root}: {error.strerror}; {remedy}"
        advised_error = type(error)(advice)
        advised_error.errno = error.errno
        raise advised_error from None


def write_manifest(directory: Path, fields: Mapping[str, object]) -> None:
    """Write ``manifest.json`` as a whole; call this again with more fields when more is known."""
    text = json.dumps(plain({"schema": SCHEMA, **fields}), ensure_ascii=False, indent=1)
    with replacing(directory / manifest.FILE) as file:
        file.write(text + "\n")


def read_manifest(directory: Place, problems: Problems) -> Manifest | None:
    """Read the manifest in ``directory``: empty if there is none, or it cannot be read; None if a later version has
    written the directory, since its files may have another meaning."""
    path = directory / manifest.FILE
    try:
        fields = json_of(path)
    except FileNotFoundError:
        return Manifest()
    except (OSError, ValueError) as error:
        lost = isinstance(path, Location)  # an object that cannot be fetched is not a file that a killed rank has left
        text = "expected a JSON object; {error}: rows are read without it; remove it if its rank was killed"
        problems.add(path, message(text, error=error), getattr(error, "lineno", None), skipped=lost)
        return Manifest()
    if not isinstance(fields, dict):
        text = "expected a JSON object; there is {type}: rows are read without it; remove it if its rank was killed"
        problems.add(path, message(text, type=type(fields).__name__), skipped=False)
        return Manifest()
    schema = fields.get("schema", SCHEMA)
    if not isinstance(schema, int) or schema > SCHEMA:
        trouble = message(
            "schema {schema} is of a newer version; this one reads up to {own}: its rank is left out",
            schema=schema,
            own=SCHEMA,
        )
        problems.add(path, trouble)
        return None
    return Manifest({key: value for key, value in fields.items() if _is_plausible(key, value, path, problems)})


def _is_plausible(key: str, value: object, path: Place, problems: Problems) -> bool:
    """Return whether a field is as documented, or unknown."""
    expected = manifest.misfit(key, value)
    if expected:
        trouble = message(
            "{key}: expected {expected}; there is {value}: not used", key=key, expected=expected, value=repr(value)[:40]
        )
        problems.add(path, trouble, skipped=False)
    return expected is None


def plain(value: Any) -> Any:
    """Return ``value`` in the types of JSON: NaN and the infinities, which JSON lacks, become strings; named tuples,
    mappings."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):  # NumPy's too
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(float(value))
    return str(value)
