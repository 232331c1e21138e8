"""The exporter in a process of its own, scraped and parsed by Prometheus' own Python client."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.forks import Forked
from tests.http_requests import exchange
from tests.required import require
from tests.services.server_process import listening
from tests.waiting import PATIENCE

parser = require("prometheus_client.parser")
MODULES = ("probe.cli.exporter", "probe.services.exporter.node_page", "uvicorn.protocols.http.h11_impl", "psutil")
TEXT = "text/plain; version=0.0.4"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """Values by name and labels."""

    def of(self, name: str, **labels: str) -> list[float]:
        """Values of the series that have these labels, and maybe others."""
        wanted = set(labels.items())
        return [value for (found, more), value in self.items() if found == name and wanted <= more]

    def one(self, name: str, **labels: str) -> float:
        found = self.of(name, **labels)
        assert len(found) == 1, (name, labels, found)
        return found[0]

    def labels(self, name: str, **labels: str) -> list[dict[str, str]]:
        wanted = set(labels.items())
        return [dict(more) for found, more in self if found == name and wanted <= more]


def parsed(text: str) -> Scrape:
    """The series of a page; each stands once."""
    found = Scrape()
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            place = sample.name, frozenset(sample.labels.items())
            assert place not in found, place
            found[place] = sample.value
    return found


class Exported(NamedTuple):
    """A running exporter."""

    process: Forked
    address: str
    errors: Path
    """What it writes to standard error."""

    def request(self, path: str = "/metrics", headers: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Status, type and text of an answer."""
        status, fields, answer = exchange(self.address, "GET", path, headers={"Accept": TEXT, **(headers or {})})
        return status, fields["Content-Type"], answer.decode()

    def scrape(self) -> Scrape:
        status, _, text = self.request()
        assert status == 200, text
        return parsed(text)

    def wait_for(self, name: str, value: float | None = None, **labels: str) -> Scrape:
        """The first page that has a series, with a value."""
        deadline = time.monotonic() + PATIENCE
        while True:
            page = self.scrape()
            found = page.of(name, **labels)
            if found and (value is None or value in found):
                return page
            assert time.monotonic() < deadline, (name, labels, found, self.errors.read_text())
            time.sleep(0.02)  # between two looks

    def end(self, number: int = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def exporting(errors: Path, *options: str, **environment: str) -> Iterator[Exported]:
    """An exporter that is killed at the end, if it still runs."""
    arguments = ["-m", "probe.__main__", "exporter", *options, *([] if "--port" in options else ["--port", "0"])]
    with listening(arguments, MODULES, errors, environment) as (process, address):
        yield Exported(process, address.removesuffix("/metrics"), errors)
