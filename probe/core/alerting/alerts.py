"""Alerts of a run: the interface for all that has something to report."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

from probe.core.alerting.channels.message import sound
from probe.core.alerting.dispatcher import COUNTED, Dispatcher, Omission, Resolution, Start
from probe.core.alerting.matters import Matters, run_name
from probe.core.alerting.outlet import opened
from probe.core.alerting.spool import FOLDER
from probe.core.config import schema
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.language import in_language
from probe.core.messages import shortened, writable
from probe.core.records import Alert

MOST_QUEUED = 1000
"""Most alerts that wait for the thread; further ones are counted, and the number is sent."""
MOST_COUNTED = 100_000
"""Most alerts that are counted by severity; further ones are counted in the faults alone."""
WHERE = "alerts: send"
"""Place under which failures are counted."""
LONGEST = 20_000
"""Most characters of a text that is queued."""


class Alerts:
    """Sender of alerts to the channels of a configuration, from any thread and also within a signal handler.

    After construction nothing here raises, and only :meth:`flush` and :meth:`close` wait, as long as they are asked to.
    A forked child sends nothing. Without channels nothing is done at all.

    Args:
        settings: section ``alert`` of a configuration.
        job: name of the job.
        directory: output directory, in whose folder ``alerts`` unsent alerts are kept; None for none.
        run: name of the run, the same on all its ranks; missing: from the launcher's environment variables.

    Raises:
        ConfigError: with all addresses, files and variables that cannot be used.
    """

    def __init__(
        self,
        settings: schema.AlertSettings,
        *,
        job: str,
        rank: int,
        directory: Path | None,
        faults: Faults,
        run: str | None = None,
    ) -> None:
        self._faults, self._process = faults, os.getpid()
        self._language = "" if settings.language == "en" else settings.language
        outlets = opened(settings)
        folder = None if directory is None else Path(directory).absolute() / FOLDER
        matters = Matters(folder, run or run_name(os.environ), faults)
        facts = {"job": job, "rank": str(rank), "host": socket.gethostname()}
        channels = settings.model_dump(mode="json", exclude_unset=True).get("channels", [])
        self._dispatcher: Dispatcher | None = None
        if outlets:  # with its thread: a signal handler must not start one, since that takes locks
            self._dispatcher = Dispatcher(outlets, settings.group_seconds, folder, matters, faults, facts, channels)
        self._active = True

    def start(self) -> None:
        """Check in the background that the addresses answer, with a warning for each that does not, and send what an
        earlier run in the directory could not."""
        if (dispatcher := self._usable()) is not None:
            dispatcher.put(Start())

    def send(self, alert: Alert) -> None:
        """Queue an alert. It is not sent if its matter is open already, here or on another rank."""
        attempt(self._faults, WHERE, self._send, alert)  # it may be none

    def _send(self, alert: Alert) -> None:
        if (dispatcher := self._usable()) is None:
            return
        waiting = dispatcher.waiting
        if waiting < MOST_QUEUED:
            title, text = self._in_language(alert.title), self._in_language(alert.text)
            alert = sound(alert._replace(title=title, text=text, language=self._language))
            dispatcher.put(alert._replace(text=shortened(alert.text, LONGEST)))
        elif waiting < MOST_COUNTED:
            dispatcher.put(Omission(sound(alert).severity))
        else:
            self._faults.lost(COUNTED, 1)

    def resolve(self, key: str, text: str = "") -> None:
        """Queue the notice that a matter has ended; it is sent only by the rank that sent its alert."""
        attempt(self._faults, WHERE, self._resolve, key, text)

    def _resolve(self, key: str, text: str) -> None:
        if (dispatcher := self._usable()) is not None and dispatcher.waiting < MOST_COUNTED:
            dispatcher.put(Resolution(writable(key), shortened(writable(self._in_language(text)), LONGEST)))

    def _in_language(self, text: str) -> str:
        return in_language(text, self._language) if self._language else text

    def flush(self, seconds: float) -> bool:
        """Send everything now, and wait up to ``seconds``; return whether every channel has accepted all of it. The
        alerts are on disk first."""
        return self._flush(seconds, last=False)

    def close(self, seconds: float) -> bool:
        """Flush and end the thread; what was not sent stays on disk. Further alerts are ignored."""
        complete = self._flush(seconds, last=True)
        self._active = False
        return complete

    def _flush(self, seconds: float, last: bool) -> bool:
        if (dispatcher := self._usable()) is None:
            return True
        return dispatcher.flush(min(max(seconds, 0.0), threading.TIMEOUT_MAX - 2), last)

    def _usable(self) -> Dispatcher | None:
        return self._dispatcher if self._active and os.getpid() == self._process else None
