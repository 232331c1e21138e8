"""Standstills of a node so far, kept in a file so that a watcher which is started again does not report one twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from probe.core.records import Alert
from probe.core.storage.files import replace_text

FILE = "hangs.json"


class HangEpisode(NamedTuple):
    """Standstill that goes on."""

    step: int
    """Last step that every rank of the node has finished."""
    number: int
    """Position among the standstills at this step, from 1."""
    phase: str
    stuck: dict[str, int]
    """Time of the last sign of progress of each rank whose budget is over, by the name of its file."""

    @property
    def key(self) -> str:
        """Identity in alerts: the same on every node at one step, and another for each standstill."""
        return f"hang step={self.step} number={self.number}"


class EpisodeFile:
    """File of the standstills of this node."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.active: HangEpisode | None = None
        self.alert: Alert | None = None
        """Alert about the present one, if it was sent."""
        self._numbers: Counter[str] = Counter()
        with suppress(OSError, ValueError, TypeError, KeyError):
            memory = json.loads(self._path.read_text("utf-8"))
            self._numbers.update(memory["numbers"])
            self.active = HangEpisode(**memory["active"]) if memory["active"] else None
            self.alert = Alert(**memory["alert"]) if memory["alert"] and self.active else None

    def begin(self, step: int, phase: str, stuck: Mapping[str, int]) -> HangEpisode:
        """Add a standstill."""
        self._numbers[str(step)] += 1
        self.active = HangEpisode(step, self._numbers[str(step)], phase, dict(stuck))
        self._write()
        return self.active

    def keep(self, alert: Alert) -> None:
        """Keep the alert about the present one for a watcher that takes over."""
        self.alert = alert
        self._write()

    def end(self) -> None:
        """Record that the present one has ended."""
        self.active = self.alert = None
        self._write()

    def _write(self) -> None:
        active, alert = (record._asdict() if record else None for record in (self.active, self.alert))
        with suppress(OSError):
            text = json.dumps({"numbers": self._numbers, "active": active, "alert": alert})
            replace_text(self._path, text, private=True)
