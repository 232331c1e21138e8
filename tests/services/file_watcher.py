"""Watcher whose alerts are lines of a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from probe.core.records import Alert
from probe.core.run_state.watcher_process import WatcherSettings
from probe.services.watcher.program import main


class AlertLines:
    def __init__(self, settings: WatcherSettings) -> None:
        self._path = Path(settings.output) / "alerts.jsonl"

    def send(self, alert: Alert) -> None:
        self._append(alert._asdict())

    def resolve(self, key: str, text: str) -> None:
        self._append({"key": key, "kind": "resolved", "text": text})

    def close(self, seconds: float) -> None:
        self._append({"key": "", "kind": "closed", "loaded": sorted({name.split(".")[0] for name in sys.modules})})

    def _append(self, fields: dict) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], AlertLines))
