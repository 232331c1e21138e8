"""Dynamic start and stop: following the configuration file during training, and the step at which it takes effect.

Ranks agree on edits and on the steps from which they hold, without waiting for each other. The first rank alone reads
the file: it announces each edit that it takes up, with a step far enough ahead for every rank to read it in time
(:mod:`probe.core.distributed.announcements`), in a log beside the file or, if ranks share no file system, in a store.
Where no log can be written, each rank reads the file, and the step in it counts. See
``docs/explanation/decisions/0012-dynamic.md``.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from probe.core.backend.protocols import Groups
from probe.core.config import parse
from probe.core.config.edit import change
from probe.core.config.errors import ConfigError
from probe.core.config.load import dynamic, load
from probe.core.config.schema import Settings
from probe.core.control.agreement import ScheduledChange, too_late
from probe.core.distributed.announcements import FolderNotices, Notices
from probe.core.faults import Faults

SETTLING_SECONDS = 2.0
"""Age up to which a file is read again though its time is unchanged: some file systems count in whole seconds."""

LOG = ".changes"
"""Ending of the folder with the log of changes; before it comes the name of the configuration file."""

UNSENT = "what ends training is not sent to other ranks: it takes effect only if it is configured from the start on"

_log = logging.getLogger("probe.control")


class _Seen(NamedTuple):
    """The attributes of a file that change when it is written again."""

    time: int
    size: int
    inode: int


class Control:
    """Follower of a configuration file on one rank. It is polled once a step, at the cost of one ``stat`` while nothing
    changes.

    Args:
        settings: as read from ``path`` when the monitor was made, or as in effect since.
        content: content of the file when ``settings`` were read: later changes take effect.
        first: number of the first step of training.
        alone: whether there is one rank only.
        leads: whether this rank writes the step at which all ranks switch.
        lead_steps: returns the number of steps after which every rank has read what is announced now.
        sent: announcements of the configuration for the other ranks; None if all read the file.
        shared: whether the other ranks see the file, too: they begin with it, and it may end training.
    """

    def __init__(
        self,
        path: Path,
        settings: Settings,
        content: bytes,
        first: int,
        alone: bool,
        leads: bool,
        faults: Faults,
        lead_steps: Callable[[], int],
        sent: Notices | None = None,
        shared: bool = False,
    ) -> None:
        self._path, self._alone, self._leads, self._faults, self._lead_steps = path, alone, leads, faults, lead_steps
        self._content, self._away = content, False
        self._seen: _Seen | None = self._begin(content)
        self._broken: bytes | None = None
        self._stale: int | None = None
        """The past ``apply_at_step`` in the file."""
        self._pending: Settings | None = None
        self._since, self._sent, self._shared = first, sent, shared
        self._announced = sent is None or shared
        """True if the other ranks know the pending configuration. Then no newer one replaces it."""
        self._outstanding = 0
        """Number of own announcements that this rank has not read back: other ranks cannot have received them."""
        self._toggle: Toggle | None = None
        self._heed_signal(settings.toggle_on_signal)
        if settings.dynamic_on:
            at = settings.apply_at_step
            waits = at is not None and at > first
            self._pending = settings if waits else _at(settings, first + 1)
            if waits:  # the step may be left over from an earlier run, which had reached a later step
                _log.warning("%s: collecting begins at step %d, as apply_at_step asks", path, at)
        else:
            self._stale = settings.apply_at_step
        self._initial = self._pending

    def _begin(self, content: bytes) -> _Seen | None:
        """Return the attributes of the file if it still has the content that was read, else None."""
        try:
            return self._look() if self._read() == content else None
        except (OSError, ConfigError) as error:
            advice = "with DYNAMIC_MONITOR=True it is followed while training runs: put it back"
            problem = f"{self._path}: expected the configuration file to stay, it cannot be read any more; {advice}"
            raise ConfigError(str(self._path), [problem]) from error

    def poll(self, step: int, idle: bool) -> Settings | None:
        """Return the configuration that takes effect with ``step``, which is about to begin, or None for no change.

        Args:
            idle: whether nothing is collected now: then a file that was only touched counts as changed.
        """
        try:
            if self._toggle is not None and self._toggle.taken():
                change(self._path, {"dynamic_on": idle})
            while self._sent is not None and self._sent.read() is not None:
                self._outstanding -= 1
            if not self._settled(step):
                self._follow(step, idle)
        except (OSError, ConfigError) as error:
            self._faults.note("control", error)
        return self._due(step)

    def finish(self) -> None:
        """Note that collecting has ended: the first rank writes ``dynamic_on: false`` into the file."""
        if not self._leads or self._pending is not None:
            return  # a pending configuration itself decides whether collecting goes on
        try:
            if self._read() == self._content:  # else a change has just been made, which must still take effect
                self._write({"dynamic_on": False})
        except (OSError, ConfigError) as error:
            self._faults.note("control", error)

    def close(self) -> None:
        """Stop following."""
        self._heed_signal(False)

    @property
    def content(self) -> bytes:
        """Content of the file whose configuration has taken effect; empty if one is pending, or none was read."""
        return b"" if self._pending is not None else self._content

    @property
    def first_change(self) -> tuple[int, Settings] | None:
        """The configuration with which the run began, and its step; None if it has taken effect, or is replaced."""
        pending = self._pending if self._pending is self._initial else None
        return None if pending is None or pending.apply_at_step is None else (pending.apply_at_step, pending)

    def _settled(self, step: int) -> bool:
        """Return whether the pending configuration takes effect too soon for a newer one to replace it on all ranks."""
        if self._pending is None or self._alone:
            return False
        at = self._pending.apply_at_step
        if self._sent is not None:
            return self._announced and at is not None and at <= step + self._lead_steps()
        return at is not None and at != self._stale and step <= at <= step + self._lead_steps()

    def _follow(self, step: int, idle: bool) -> None:
        try:
            seen = self._look()
        except OSError as error:
            self._miss(error)
            return
        before, self._seen, self._away = self._seen, seen, False
        touched = seen != before
        if not touched and self._broken is None and time.time() - seen.time / 1e9 > SETTLING_SECONDS:
            return
        try:
            content = self._read()
        except ConfigError as error:
            if touched:
                _log.warning("the configuration was changed, but cannot be used; the old one goes on: %s", error)
            return
        if self._look() != seen:  # written since: the next step reads it again, as one change
            self._seen = before
            return
        woken = touched and idle and self._pending is None
        if content == self._content and not woken:
            self._broken = None
        elif content != self._broken:
            self._read_in(content, step)

    def _read_in(self, content: bytes, step: int) -> None:
        try:
            settings = load(self._path)
            if self._sent is not None and not self._shared and (keys := settings.ends_training):
                raise ConfigError(str(self._path), [f"{keys[0]}: {UNSENT}"])
        except ConfigError as error:
            self._broken = content
            _log.warning("the configuration was changed, but cannot be used; the old one goes on: %s", error)
            return
        self._content, self._broken = content, None
        self._pending, self._since, self._announced = settings, step, self._sent is None

    def _miss(self, error: OSError) -> None:
        """Log and count once that the file is missing: some editors remove it for a moment."""
        if not self._away:
            self._away = True
            self._faults.lost(f"control: {type(error).__name__}", 1)
            problem = "expected the configuration file to stay while training runs"
            _log.warning(
                "%s: %s, got: %s; the configuration in effect goes on, put the file back to change it",
                self._path,
                problem,
                error.strerror,
            )

    def _due(self, step: int) -> Settings | None:
        settings = self._pending
        if settings is None:
            return None
        at = settings.apply_at_step if settings.apply_at_step != self._stale else None
        if not self._announced:
            if not self._outstanding:
                named = at if self._shared and at is not None and at > step else None
                self._announce(settings, named or max(step + self._lead_steps(), at or 0))
            return None
        if at is not None and at > step:
            return None
        if self._alone or at == step:
            return self._take(settings)
        if self._leads:
            self._announce(settings, step + self._lead_steps())
        elif at is not None and step - self._since >= self._lead_steps():
            self._faults.note("control", too_late(self._since, at))
            return self._take(settings)
        return None

    def _take(self, settings: Settings) -> Settings:
        self._pending, self._stale = None, settings.apply_at_step
        self._heed_signal(settings.toggle_on_signal)
        return settings

    def _announce(self, settings: Settings, at: int) -> None:
        if self._sent is not None and not self._send(self._sent, settings, at):
            return
        written = (self._shared and at == settings.apply_at_step) or self._write({"apply_at_step": at})
        if not written and self._sent is None:
            return  # the other ranks would never read it; the next step tries again
        self._pending, self._announced = _at(settings, at), True
        _log.info("a change of %s takes effect on all ranks at step %d", self._path, at)

    def _send(self, sent: Notices, settings: Settings, at: int) -> bool:
        """Announce ``settings`` for the step ``at``; return true on success."""
        try:
            sent.give({"step": at, "configuration": settings.model_dump(mode="json", exclude_unset=True)})
        except OSError as error:
            self._faults.note("control", error)
            return False
        self._outstanding += 1
        return True

    def _write(self, values: dict[str, object]) -> bool:
        """Write ``values`` into the file, unless an edit of it has still to be read; return true on success."""
        try:
            change(self._path, values, only=self._content)
            self._seen, self._content = self._look(), self._read()
        except InterruptedError:
            return False
        except (OSError, ConfigError) as error:
            written = ", ".join(f"{key}: {value}" for key, value in values.items()).lower()
            failure = OSError(f"{self._path}: {written} cannot be written into it, do that by hand: {error}")
            self._faults.note("control", failure)
            return False
        return True

    def _heed_signal(self, enabled: bool) -> None:
        """Set whether SIGUSR1 toggles collecting from now on."""
        if enabled and self._leads and self._toggle is None:
            self._toggle = Toggle()
        elif not enabled and self._toggle is not None:
            self._toggle.remove()
            self._toggle = None

    def _look(self) -> _Seen:
        status = self._path.stat()
        return _Seen(status.st_mtime_ns, status.st_size, status.st_ino)

    def _read(self) -> bytes:
        return parse.content(str(self._path))


class SentSwitch:
    """Follower of the configuration that the first rank announces, on a rank that does not see the file."""

    def __init__(self, sent: Notices, faults: Faults) -> None:
        self._changes = ScheduledChange("control", sent, _configuration, faults)

    def poll(self, step: int, idle: bool) -> Settings | None:  # noqa: ARG002 - there is no file to be touched
        with self._changes.counted():
            while self._changes.read():
                pass
        return self._changes.poll(step)

    content = b""
    """Nothing: this rank reads no file."""

    def finish(self) -> None:
        """Do nothing: the first rank writes."""

    def close(self) -> None:
        """Do nothing: no handler is set."""


class LoggedSwitch:
    """Follower of the log that the first rank keeps beside the file, on another rank; of the file if there is no log.

    Args:
        log: the announcements of the first rank.
        control: follower of the file.
    """

    def __init__(self, log: FolderNotices, control: Control, faults: Faults) -> None:
        self._log, self._control = log, control
        self._changes = ScheduledChange("control", log, _logged, faults)
        self._logged = False
        """True once there is a log: from then on the file does not count here."""

    def poll(self, step: int, idle: bool) -> Settings | None:
        """Return the configuration that takes effect with ``step``; see :meth:`Control.poll`."""
        if not self._logged:
            if not self._log.exists():
                return self._control.poll(step, idle)
            self._logged = True
            if (first := self._control.first_change) is not None:
                self._changes.expect(*first)
        with self._changes.counted():
            while self._changes.read():
                pass
        return self._changes.poll(step)

    @property
    def content(self) -> bytes:
        """Content of the file whose configuration has taken effect; empty if this rank follows the log."""
        return b"" if self._logged else self._control.content

    def finish(self) -> None:
        """Do nothing: the first rank writes."""

    def close(self) -> None:
        """Do nothing: the first rank alone has a handler."""


def _configuration(notice: Mapping[str, Any]) -> Settings:
    settings = _logged(notice)
    if keys := settings.ends_training:
        raise PermissionError(f"{keys[0]}: {UNSENT}")
    return settings


def _logged(notice: Mapping[str, Any]) -> Settings:
    """Return the configuration of a notice in the log, whose writers can write the file, too."""
    return load(notice["configuration"])


def _at(settings: Settings, step: int | None) -> Settings:
    return settings.model_copy(update={"apply_at_step": step})


Switch = Control | SentSwitch | LoggedSwitch


def follow(
    path: Path | None,
    settings: Settings,
    content: bytes,
    first: int,
    groups: Groups,
    faults: Faults,
    lead_steps: Callable[[], int],
    sent: Notices | None = None,
    number: int = 0,
) -> Switch | None:
    """Return the source of a run's changes; None if the environment does not enable them.

    Args:
        content: content of the file when ``settings`` were read.
        sent: announcements in a store; None if the ranks share the file.
        number: number of the attachment, the same on all ranks.
    """
    if not dynamic(os.environ):
        return None
    leads, alone = groups.rank() == 0, groups.world_size() == 1
    if sent is not None and not leads:
        return SentSwitch(sent, faults)
    if path is None:
        _log.warning("DYNAMIC_MONITOR has no effect: expected a file, got a mapping; pass the path of a file")
        return None
    if sent is not None or alone:
        return Control(path, settings, content, first, alone, leads, faults, lead_steps, sent)
    log = FolderNotices(path.with_name(path.name + LOG) / f"run{number}", groups.rank())
    if leads:
        announced = log if _usable(log, path) else None
        return Control(path, settings, content, first, alone, leads, faults, lead_steps, announced, shared=True)
    return LoggedSwitch(log, Control(path, settings, content, first, alone, leads, faults, lead_steps), faults)


def _usable(log: FolderNotices, path: Path) -> bool:
    """Make the log; return false if it cannot be written."""
    try:
        log.begin()
    except OSError as error:
        _log.warning(
            "%s: changes cannot be logged beside it: %s; each rank reads the file, and all need apply_at_step in it",
            path,
            error,
        )
        return False
    return True


SIGNAL = signal.SIGUSR1


class Toggle:
    """Handler of the signal that remembers it until :meth:`taken`, and calls the previous handler as well."""

    def __init__(self) -> None:
        self._received = self._forgotten = False
        self._before: Any = signal.getsignal(SIGNAL)
        self._ours = threading.current_thread() is threading.main_thread() and self._before is not None
        if self._ours:
            signal.signal(SIGNAL, self._handle)
        else:
            _log.warning("SIGUSR1 does not switch monitoring: its handler cannot be set here")

    def taken(self) -> bool:
        """Return true if the signal was received since the last call."""
        received, self._received = self._received, False
        return received

    def remove(self) -> None:
        """Restore the previous handler, unless another was set since. Python permits that on the main thread alone; on
        another thread our handler stays, and restores and calls the previous one at the next signal."""
        self._forgotten = True
        main = threading.current_thread() is threading.main_thread()
        if self._ours and main and signal.getsignal(SIGNAL) == self._handle:
            signal.signal(SIGNAL, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._received = True
        if self._forgotten:
            self.remove()
        if callable(self._before):
            self._before(number, frame)
        elif self._forgotten and self._before == signal.SIG_DFL:
            os.kill(os.getpid(), number)
