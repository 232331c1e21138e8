"""Prometheus in a process of its own, with a recording in its storage, and queries as Grafana sends them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import yaml

from tests.required import require_program
from tests.resources.monitoring_process import Server, running
from tests.resources.recording import Recording

VARIABLE = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")


class PrometheusServer(NamedTuple):
    """Running Prometheus."""

    server: Server

    def processor_seconds(self) -> float:
        """Time of all processors that it has used so far."""
        fields = Path(f"/proc/{self.server.process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def get(self, path: str, **fields: Any) -> Any:
        """Data of an answer of the API."""
        answer = json.loads(self.server.request("GET", f"/api/v1/{path}?{urlencode(fields, doseq=True)}")[1])
        assert answer["status"] == "success", (fields, answer)
        return answer["data"]

    def at(self, expression: str, moment: float) -> list[dict[str, Any]]:
        """Series of an expression at a moment."""
        found = self.get("query", query=expression, time=moment)["result"]
        assert isinstance(found, list)
        return found

    def over(self, expression: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        """Series of an expression over a time."""
        found = self.get("query_range", query=expression, start=begin, end=end, step=step)["result"]
        assert isinstance(found, list)
        return found

    def values_of(self, label: str, selector: str, begin: float, end: float) -> list[str]:
        """Values that a label has in the series of a selector."""
        found = self.get(f"label/{label}/values", **{"match[]": selector, "start": begin, "end": end})
        assert isinstance(found, list)
        return found


@contextmanager
def prometheus_with(
    recording: Recording, folder: Path, scraped: Sequence[Mapping[str, Any]] = (), storage: Path | None = None
) -> Iterator[PrometheusServer]:
    """Prometheus that has stored ``recording`` and scrapes ``scraped``; it is killed at the end.

    Args:
        folder: an empty one.
        scraped: configurations of scrapes.
        storage: its data if there are some already.
    """
    program = require_program("prometheus")
    data = storage or stored(recording, folder)
    configuration, log = folder / "prometheus.yml", folder / "prometheus.log"
    configuration.write_text(yaml.safe_dump({"scrape_configs": list(scraped)}), "utf-8")
    options = [f"--config.file={configuration}", f"--storage.tsdb.path={data}", "--storage.tsdb.retention.time=100y"]
    with running(program, options, log) as server:
        yield PrometheusServer(server)


def stored(recording: Recording, folder: Path) -> Path:
    """Storage of Prometheus with a recording."""
    text, data = folder / "recording.om", folder / "data"
    with text.open("w", encoding="utf-8") as file:
        recording.write(file)
    command = [require_program("promtool"), "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    subprocess.run([*command, str(text), str(data)], check=True, stdout=subprocess.DEVNULL)
    text.unlink()
    return data


def filled(text: str, chosen: Mapping[str, str]) -> str:
    """``text`` with the variables of Grafana replaced.

    Raises:
        KeyError: if there is one that is not in ``chosen``.
    """
    return VARIABLE.sub(lambda found: chosen[found[1] or found[2]], text)
