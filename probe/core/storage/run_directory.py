"""Where a run's files go, and the manifest that says what they are."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from numbers import Integral, Real
from pathlib import Path

from probe.core.storage.atomic_files import replacing

SCHEMA = 1
"""Version of the output's layout; raised when a reader of the older one would go wrong."""

ZONE = timezone(timedelta(hours=8), "UTC+08:00")
"""Directory names are in this zone whatever the machine's, so that those of all ranks and tools compare."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def output_root(environ: Mapping[str, str]) -> Path:
    """``MONITOR_OUTPUT_DIR``, else ``./monitor_output``."""
    return Path(environ.get("MONITOR_OUTPUT_DIR") or "./monitor_output").expanduser()


def stamp(now: float) -> str:
    """``now`` (seconds since the epoch) as all folder names have it, such as ``Dec03_21-34-40``: one clock and one
    language, whatever the machine's zone and locale."""
    start = datetime.fromtimestamp(now, ZONE)
    return f"{_MONTHS[start.month - 1]}{start:%d_%H-%M-%S}"


def directory_name(rank: int, now: float) -> str:
    """The name of a run's and rank's directory, such as ``Dec03_21-34-40-rank0-1f0c9a3e``; another at each call.

    Args:
        now: seconds since the epoch.
    """
    # uuid4 asks the operating system: the random generators of the training run are not touched.
    return f"{stamp(now)}-rank{rank}-{uuid.uuid4().hex[:8]}"


def create(root: Path, name: str) -> Path:
    """Makes the directory ``name`` under ``root``.

    Raises:
        OSError: if it cannot be made.
    """
    directory = root / name
    with told(root):
        directory.mkdir(parents=True)
    return directory


@contextmanager
def told(root: Path) -> Iterator[None]:
    """What makes directories under ``root``: an error names the environment variable.

    Raises:
        OSError: the one that came, saying what to do.
    """
    try:
        yield
    except OSError as error:
        what = f"cannot write to {root}: {error.strerror}; set MONITOR_OUTPUT_DIR to a directory that can be written"
        raise OSError(error.errno, what, error.filename) from error


def write_manifest(directory: Path, fields: Mapping[str, object]) -> None:
    """Writes ``manifest.json`` as a whole; call it again with more fields when more is known."""
    text = json.dumps(_plain({"schema": SCHEMA, **fields}), ensure_ascii=False, indent=1)
    with replacing(directory / "manifest.json") as file:
        file.write(text + "\n")


def _plain(value: object) -> object:
    """``value`` in what every JSON reader knows: NaN and the infinities, which JSON lacks, become strings."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):  # NumPy's too
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(float(value))
    return str(value)
