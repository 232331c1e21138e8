"""The page's server in a process of its own, and requests to it by another client than a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.forks import Forked
from tests.quick_python import quick_python
from tests.required import require
from tests.services.server_process import listening
from tests.waiting import PATIENCE, wait_for

TASKS = (
    *("probe.core.child_process", "probe.view.background", "probe.core.analysis.diagnosis.analyse"),
    *("probe.core.analysis.diagnosis.export", "probe.core.analysis.report.page_verdict", "probe.core.storage.location"),
    *("probe.core.analysis.compare.compare", "probe.core.analysis.compare.explain", "probe.core.analysis.engines"),
    "duckdb",
)
"""What analyses and comparisons import: of low priority, they would take long for it on a busy machine."""
MODULES = ("probe.cli.view", "probe.view.app", "probe.view.serving", "uvicorn.protocols.http.h11_impl", "duckdb")


class BinaryAnswer(NamedTuple):
    """Header and arrays of a binary answer."""

    header: dict[str, Any]
    arrays: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.arrays[name]


class ViewServer(NamedTuple):
    """A running server."""

    process: Forked
    address: str
    """Address with the token."""
    client: Any
    """Client with the cookie."""
    errors: Path
    cache: Path

    @property
    def base(self) -> str:
        """Address without the token."""
        return self.address.partition("/?")[0]

    def get(self, path: str, status: int = 200, **parameters: Any) -> Any:
        """The JSON of an answer."""
        answer = self.client.get(path, params=parameters)
        assert answer.status_code == status, (answer.status_code, answer.text, self.errors.read_text())
        return answer.json()

    def binary(self, path: str, **parameters: Any) -> BinaryAnswer:
        """A binary answer, parsed by its description alone."""
        answer = self.client.get(path, params=parameters)
        assert answer.status_code == 200, (answer.text, self.errors.read_text())
        data = answer.content
        length = int.from_bytes(data[:4], "little")
        assert (4 + length) % 8 == 0
        header = json.loads(data[4 : 4 + length])
        lines = next(header[name] for name in ("lines", "ranks", "names") if name in header)
        shape, at, arrays = (len(lines), len(header["steps"])), 4 + length, {}
        for name, kind, number in header["arrays"]:
            dtype = np.dtype(kind).newbyteorder("<")
            assert number == shape[0] * shape[1]
            size = number * dtype.itemsize
            assert at % dtype.itemsize == 0
            arrays[name] = np.frombuffer(data[at : at + size], dtype).reshape(shape)
            at += size
        assert at == len(data)
        return BinaryAnswer(header, arrays)

    def end(self) -> int:
        """The exit code after SIGTERM."""
        self.process.send_signal(15)
        return self.process.wait(PATIENCE)


@contextmanager
def viewing(folder: Path, *places: object, options: tuple[str, ...] = (), prelude: str = "") -> Iterator[ViewServer]:
    """A server that is killed at the end, if it still runs.

    Args:
        folder: where its cache is, and what it writes to standard error.
        prelude: is run in it first.
    """
    httpx = require("httpx")
    require("uvicorn"), require("starlette"), require("duckdb")
    folder.mkdir(exist_ok=True, parents=True)
    errors = folder / "errors"
    script = folder / "view.py"
    script.write_text(f"{prelude}\nfrom probe.cli import main\nmain()\n")
    arguments = [str(script), "view", *map(str, places), "--no-browser", *options]
    environment = {"XDG_CACHE_HOME": str(folder / "cache")}
    with (
        listening(arguments, MODULES, errors, environment, quick_python(*TASKS)) as (process, address),
        httpx.Client(base_url=address.partition("/?")[0], timeout=PATIENCE, trust_env=False) as client,
    ):
        assert client.get(address).status_code == 303
        yield ViewServer(process, address, client, errors, folder / "cache")


__all__ = ["BinaryAnswer", "ViewServer", "viewing", "wait_for"]
