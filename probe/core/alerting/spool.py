"""Spool: alerts on disk from before they are sent until every channel has accepted them.

Each sender has a name, a locked file ``{name}.owner`` and its alerts ``{name}-{number}.json``. The system releases the
lock when the process ends, however it ends: then the next run in the folder, or ``probe alert flush``, takes the alerts
over. It is a record lock (``fcntl``), which works on network file systems, and which a forked child does not share.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from probe.core.alerting.channels.message import as_json, sound
from probe.core.alerting.redaction import redact
from probe.core.records import SEVERITIES, Alert
from probe.core.storage.files import replace_text

FOLDER = "alerts"
"""Name of the folder in the output directory."""
LARGEST = 1024 * 1024
"""Most bytes of a file that is read."""
_ALERT = re.compile(r"([0-9a-f]{32})-(\d+)\.json")
_here: set[str] = set()
"""Names that this process holds. To close any file that it has locked would release the lock."""


class SpooledAlert:
    """Alert and the channels that have not accepted it yet.

    Args:
        path: its file; None if it could not be written.
    """

    def __init__(self, alert: Alert, pending: set[str], path: Path | None = None) -> None:
        self.alert, self.pending, self.path = alert, pending, path
        self.spool: Spool | None = None
        """Spool that holds the file."""


class Spool:
    """Files of one sender, made with the first alert.

    Args:
        folder: the folder of all senders of an output directory.
        name: name of a sender whose files are taken over; None for a new one.
        channels: the channels in a configuration, addresses left out, for those who take the alerts over.
    """

    def __init__(self, folder: Path, name: str | None = None, channels: Sequence[Mapping[str, Any]] = ()) -> None:
        self._folder, self._name, self._channels = folder, name or uuid.uuid4().hex, channels
        self._number, self._lock = 0, -1

    def put(self, entry: SpooledAlert) -> None:
        """Write an alert.

        Raises:
            OSError: if it cannot be written.
        """
        if self._lock < 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.lock()
            with suppress(OSError):
                os.write(self._lock, json.dumps(self._channels).encode())
        self._number += 1
        path = self._folder / f"{self._name}-{self._number}.json"
        _write(path, entry)
        entry.path, entry.spool = path, self

    def accept(self, entry: SpooledAlert, channel: str) -> None:
        """Record that ``channel`` has accepted an alert; the file is removed when all have.

        Raises:
            OSError: if it cannot be recorded.
        """
        entry.pending.discard(channel)
        if entry.path is not None:
            if entry.pending:
                _write(entry.path, entry)
            else:
                entry.path.unlink(missing_ok=True)

    def lock(self) -> bool:
        """Lock the name; return false if another process holds it."""
        if self._name in _here:
            return self._lock >= 0
        path = self._folder / f"{self._name}.owner"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino != path.stat().st_ino:
                raise FileNotFoundError  # removed by the process that took the alerts over
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError | PermissionError | FileNotFoundError):
                return False
            raise
        self._lock = descriptor
        _here.add(self._name)
        return True

    def channels(self) -> list[Any]:
        """Return the channels of the sender whose files these are; empty if they cannot be read."""
        try:  # through the descriptor: to close another one would release the lock
            channels = json.loads(os.pread(self._lock, LARGEST, 0))
        except (OSError, ValueError):
            return []
        return channels if isinstance(channels, list) else []

    def alerts(self) -> Iterator[SpooledAlert]:
        """Yield the alerts on disk, oldest first; files that cannot be parsed are skipped and stay."""
        paths = {int(match[2]): path for path in self._folder.iterdir() if (match := _ALERT.fullmatch(path.name))
                 and match[1] == self._name}  # fmt: skip
        self._number = max(paths, default=self._number)
        for _, path in sorted(paths.items()):
            try:
                entry = _read(path)
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                continue
            entry.spool = self
            yield entry

    def close(self) -> None:
        """Release the name; its file is removed if no alert is left."""
        if self._lock < 0:
            return
        with suppress(OSError):
            paths = [path for path in self._folder.iterdir() if path.name.lstrip(".").startswith(f"{self._name}-")]
            for path in paths:
                if path.suffix == ".tmp":  # a write that was killed
                    path.unlink()
            if not any(path.suffix == ".json" for path in paths):
                (self._folder / f"{self._name}.owner").unlink()
        with suppress(OSError):
            os.close(self._lock)
        self._lock = -1
        _here.discard(self._name)


def abandoned(folder: Path) -> Iterator[Spool]:
    """Yield the spools in ``folder`` whose senders have ended, locked; the caller closes each."""
    for name in names(folder):
        spool = Spool(folder, name)
        with suppress(OSError):
            if name not in _here and spool.lock():
                yield spool


def names(folder: Path) -> list[str]:
    """Return the names of all senders with files in ``folder``."""
    try:
        files = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    owners = {name.removesuffix(".owner") for name in files if re.fullmatch(r"[0-9a-f]{32}\.owner", name)}
    return sorted(owners | {match[1] for match in map(_ALERT.fullmatch, files) if match})


def _write(path: Path, entry: SpooledAlert) -> None:
    """Write a file in one move, of mode 0600."""
    text = json.dumps({"alert": as_json(entry.alert), "pending": sorted(entry.pending)})
    replace_text(path, text, private=True)


def _read(path: Path) -> SpooledAlert:
    with path.open("rb") as file:
        contents = json.loads(file.read(LARGEST))
    return SpooledAlert(_parsed(contents["alert"]), {str(label) for label in contents["pending"]}, path)


def _parsed(fields: Mapping[str, Any]) -> Alert:
    """Parse an alert.

    Raises:
        ValueError: if a field is not of its kind.
    """
    texts = {name: fields[name] for name in ("key", "kind", "severity", "title", "text")}
    labels = fields["labels"]
    if not all(isinstance(text, str) for text in (*texts.values(), *labels.values())):
        raise ValueError("expected texts")
    if texts["severity"] not in SEVERITIES:
        raise ValueError("expected a severity")
    alert = Alert(**texts, labels=dict(labels), time=fields["time"], resolved=fields["resolved"])
    return sound(alert._replace(lasting=fields.get("lasting"), language=fields.get("language", "")))  # type: ignore[arg-type] # checked there


def without_secrets(alert: Alert) -> Alert:
    """Return ``alert`` with redacted texts of a bounded size."""
    labels = {str(name): redact(str(value)) for name, value in alert.labels.items()}
    bounded = as_json(alert._replace(title=redact(alert.title), text=redact(alert.text), labels=labels))
    return alert._replace(key=redact(alert.key), title=bounded["title"], text=bounded["text"], labels=bounded["labels"])
