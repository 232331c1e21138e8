"""A run that may be switched on and off, seen from outside through its manifests and its configuration file."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple

from probe.core.config.edit import change, changed
from probe.core.config.errors import ConfigError
from probe.core.config.load import load
from probe.core.config.parse import content, read
from probe.core.language import invalid
from probe.core.storage.directories import find, runs
from probe.core.storage.location import on_disk
from probe.core.storage.manifest import Manifest
from probe.core.storage.problems import Problems

POLL_SECONDS = 0.2


class RankState(NamedTuple):
    """The state of one rank, from its manifest."""

    rank: int
    directory: Path
    state: str
    """``collecting``, ``at rest``, ``ended``, ``gone`` (its process no longer exists), ``not followed`` (it was not
    started with DYNAMIC_MONITOR)."""
    step: int
    """The step since which the rank has been in this state."""
    changes: int
    """Number of changes so far."""


def followed(file: Path, first: int) -> dict[str, object]:
    """Return the manifest entry of this process in a run that may be switched on and off, before step ``first``."""
    return {"file": str(file), "process": os.getpid(), "host": gethostname(), "collecting": False, "step": first}


def states(root: Path) -> list[RankState]:
    """Return the state of every rank of the latest run in ``root``.

    Raises:
        ValueError: if there is none.
    """
    run = runs(find(root, Problems()))[-1]
    latest = {directory.rank: directory for directory in run.directories}
    return [_state(rank, on_disk(directory.path), directory.manifest) for rank, directory in latest.items()]


def configuration(root: Path) -> Path:
    """Return the configuration file that the latest run in ``root`` follows.

    Raises:
        ValueError: if it follows none.
    """
    run = runs(find(root, Problems()))[-1]
    files = [(directory.manifest.control or {}).get("file") for directory in run.directories]
    if not any(files):
        raise invalid(
            "{root}: the run follows no configuration file; expected one that was started with "
            "DYNAMIC_MONITOR=True and whose configuration is a file",
            root=root,
        )
    return Path(next(file for file in files if file))


def put(file: Path, values: Mapping[str, Any]) -> bool:
    """Write ``values`` (dotted keys) into the configuration if the result is valid; return true if they changed it.

    Raises:
        ConfigError: naming the invalid values; nothing is written.
    """
    parsed = read(file)
    if parsed.repeated:
        raise ConfigError(str(file), parsed.repeated)
    load(changed(parsed.values, values))
    before = content(str(file))
    change(file, values)
    return content(str(file)) != before


def wait(root: Path, before: list[RankState], seconds: float, show: Callable[[list[RankState]], None]) -> bool:
    """Wait until every rank that still runs has changed since ``before``; return false if ``seconds`` have passed
    first."""
    changes = {state.rank: state.changes for state in before}
    deadline = time.monotonic() + seconds
    while True:
        now = states(root)
        show(now)
        running = [state for state in now if state.state in ("collecting", "at rest")]
        if running and all(state.changes > changes.get(state.rank, -1) for state in running):
            return True
        if not running or time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)


def _state(rank: int, path: Path, manifest: Manifest) -> RankState:
    control = manifest.control
    if control is None:
        return RankState(rank, path, "ended" if manifest.ended else "not followed", 0, 0)
    state = "collecting" if control.get("collecting") else "at rest"
    if manifest.ended:
        state = "ended"
    elif control.get("host") == gethostname() and not Path(f"/proc/{control.get('process')}").exists():
        state = "gone"
    return RankState(rank, path, state, int(control.get("step", 0)), int(control.get("changes", 0)))


def assigned(assignments: list[str]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` pairs; a value is JSON or, if invalid as such, plain text.

    Raises:
        ValueError: for an argument that is not a pair.
    """
    values = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise invalid(
                "{assignment}: expected KEY=VALUE, such as collect_times=10 or alert.dump=true", assignment=assignment
            )
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    return values


@contextmanager
def turn(file: Path) -> Iterator[None]:
    """Hold a lock on ``file``, so that no change overwrites another. Lock its folder, which every user who reads the
    file can open.

    Raises:
        OSError: if the folder cannot be opened.
    """
    folder = os.open(file.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
