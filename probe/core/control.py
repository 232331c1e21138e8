"""Dynamic start and stop: the configuration file followed while training runs, and the step at which it takes effect.

Ranks agree without talking: what holds for all of them is a step number in the file. The first rank writes it there,
far enough ahead for every rank to see it in time; see ``docs/decisions/0012-dynamic.md``.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import NamedTuple

from probe.core.ahead import Ahead
from probe.core.faults import Faults
from probe.core.framework import Groups
from probe.core.settings import Settings, dynamic, load
from probe.core.settings_edit import change
from probe.core.settings_problems import ConfigError
from probe.core.toggling import Toggle

SETTLING_SECONDS = 2.0
"""A file this young is read again though its time is the same: some file systems count in whole seconds."""

_log = logging.getLogger("probe.control")


class _Seen(NamedTuple):
    """What tells that a file was written again."""

    time: int
    size: int
    inode: int


class Control:
    """Follows one configuration file on one rank. Polled once a step; that costs one ``stat`` while nothing changes.

    Args:
        settings: as read from ``path`` when the monitor was made.
        first: number of the first step of training.
        alone: whether there is one rank only.
        leads: whether this rank writes the step at which all switch.
        ahead: in how many steps every rank will have seen what is written now.
    """

    def __init__(
        self,
        path: Path,
        settings: Settings,
        first: int,
        alone: bool,
        leads: bool,
        faults: Faults,
        ahead: Ahead,
    ) -> None:
        self._path, self._alone, self._leads, self._faults, self._ahead = path, alone, leads, faults, ahead
        self._seen, self._content = self._look(), self._read()
        self._broken: bytes | None = None
        self._stale: int | None = None
        """The step in the file that has had its effect."""
        self._pending: Settings | None = None
        self._since = first
        self._toggle = Toggle() if settings.toggle_on_signal and leads else None
        if settings.dynamic_on:
            at = settings.apply_at_step
            self._pending = settings if at is not None and at > first else _at(settings, first + 1)
        else:
            self._stale = settings.apply_at_step

    def poll(self, step: int, idle: bool) -> Settings | None:
        """The configuration that takes effect with ``step``, which is about to begin, or None if nothing changes.

        Args:
            idle: whether nothing is collected now: then a file that was only touched counts as changed.
        """
        try:
            if self._toggle is not None and self._toggle.taken():
                change(self._path, {"dynamic_on": idle})
            self._follow(step, idle)
            return self._due(step)
        except (OSError, ConfigError) as error:
            self._faults.note("control", error)
            return None

    def finish(self) -> None:
        """Collecting has come to its end: the first rank writes ``dynamic_on: false`` into the file."""
        if self._leads:
            self._write({"dynamic_on": False})

    def close(self) -> None:
        """Follows no longer."""
        if self._toggle is not None:
            self._toggle.forget()

    def _follow(self, step: int, idle: bool) -> None:
        seen = self._look()
        touched, self._seen = seen != self._seen, seen
        if not touched and self._broken is None and time.time() - seen.time / 1e9 > SETTLING_SECONDS:
            return
        content = self._read()
        woken = touched and idle and self._pending is None
        if content == self._broken or (content == self._content and not woken):
            return
        try:
            settings = load(self._path)
        except ConfigError as error:
            self._broken = content
            _log.warning("the configuration was changed, but cannot be used; the old one goes on: %s", error)
            return
        self._content, self._broken = content, None
        self._pending, self._since = settings, step

    def _due(self, step: int) -> Settings | None:
        settings = self._pending
        if settings is None:
            return None
        at = settings.apply_at_step
        fresh = at is not None and at != self._stale
        if fresh and at is not None and at > step:
            return None
        if self._alone or (fresh and at == step):
            return self._take(settings)
        if self._leads:
            self._announce(settings, step + self._ahead(step))
        elif fresh and step - self._since >= self._ahead(step):
            self._faults.note("control", TimeoutError(f"seen at step {self._since}, too late for step {at}"))
            return self._take(settings)
        return None

    def _take(self, settings: Settings) -> Settings:
        self._pending, self._stale = None, settings.apply_at_step
        return settings

    def _announce(self, settings: Settings, at: int) -> None:
        self._write({"apply_at_step": at})
        self._pending = _at(settings, at)
        _log.info("a change of %s takes effect on all ranks at step %d", self._path, at)

    def _write(self, values: dict[str, object]) -> None:
        try:
            change(self._path, values)
            self._seen, self._content = self._look(), self._read()
        except (OSError, ConfigError) as error:
            self._faults.note("control", error)

    def _look(self) -> _Seen:
        found = self._path.stat()
        return _Seen(found.st_mtime_ns, found.st_size, found.st_ino)

    def _read(self) -> bytes:
        return self._path.read_bytes()


def _at(settings: Settings, step: int) -> Settings:
    return settings.model_copy(update={"apply_at_step": step})


def follow(
    path: Path | None, settings: Settings, first: int, groups: Groups, faults: Faults, ahead: Ahead
) -> Control | None:
    """What switches on and off while training runs; None where the environment does not ask for that."""
    if not dynamic(os.environ):
        return None
    if path is None:
        _log.warning("DYNAMIC_MONITOR has no effect: the configuration is not a file that could be changed")
        return None
    return Control(path, settings, first, groups.world_size() == 1, groups.rank() == 0, faults, ahead)
