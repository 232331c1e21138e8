"""The heartbeat server in a process of its own, and requests to it by a client that is not ours."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import probe
from tests.forks import Forked, ForkServer
from tests.http_requests import bearer, exchange
from tests.waiting import PATIENCE

ROOT = Path(probe.__file__).parents[1]
MODULES = ("probe.cli.serve", "probe.services.server.service", "uvicorn.protocols.http.h11_impl")


class Served(NamedTuple):
    """A running server."""

    process: Forked
    address: str
    token: str | None
    errors: Path
    """What it writes to standard error."""

    def request(
        self, method: str, path: str, content: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of an answer."""
        status, _, answer = exchange(self.address, method, path, content, bearer(self.token) | (headers or {}))
        return status, answer

    def get(self, path: str) -> Any:
        status, content = self.request("GET", path)
        assert status == 200, content
        return json.loads(content)

    def post(self, content: object, path: str = "/v1/heartbeats") -> tuple[int, Any]:
        status, answer = self.request("POST", path, json.dumps(content).encode())
        return status, json.loads(answer)

    def stored(self, job: str | None = None) -> list[dict[str, Any]]:
        """All stored messages, of one job or of all, in the order of their commits."""
        found: list[dict[str, Any]] = []
        while True:
            after = found[-1]["id"] if found else 0
            more = self.get(f"/v1/messages?after={after}{f'&job={quote(job)}' if job else ''}")["messages"]
            if not more:
                return found
            found += more

    def job(self, name: str) -> dict[str, Any]:
        """The entry of a job on the page; empty if it has none."""
        return next((job for job in self.get("/v1/board")["jobs"] if job["job"] == name), {})

    def end(self, number: int = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@functools.cache
def fork_server(modules: Sequence[str]) -> ForkServer:
    """A process that has imported what services need: that takes longer than their start."""
    return ForkServer(modules, {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})


@contextmanager
def listening(
    arguments: Sequence[str],
    modules: Sequence[str],
    errors: Path,
    environment: Mapping[str, str] = {},
    executable: str = "",
) -> Iterator[tuple[Forked, str]]:
    """A service in a process of its own that is killed at the end, if it still runs; and its address.

    Args:
        arguments: those of Python.
        modules: all that it imports.
        errors: file to which its standard error is appended.
        executable: what it is to take for its interpreter.
    """
    reading, writing = os.pipe()
    with errors.open("a") as file, os.fdopen(reading) as output:
        own = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        process = fork_server(tuple(modules)).start(
            arguments, environment=own, cwd="/", stdout=writing, stderr=file.fileno(), executable=executable
        )
        os.close(writing)
        try:
            line = ""
            while not line.startswith("probe: listening at "):
                line = output.readline()
                assert line, errors.read_text()
            yield process, line.split()[-1]
        finally:
            process.kill()
            process.wait(PATIENCE)


@contextmanager
def serving(database: Path, *options: str, token: str | None = None) -> Iterator[Served]:
    """A server that is killed at the end, if it still runs."""
    errors = database.with_suffix(".errors")
    environment = {"PROBE_SERVER_TOKEN": token} if token else {}
    arguments = ["-m", "probe.__main__", "serve", "--database", str(database)]
    arguments += [*options] if "--port" in options else ["--port", "0", *options]
    with listening(arguments, MODULES, errors, environment) as (process, address):
        yield Served(process, address, token, errors)


def batch(
    job: str = "job",
    *,
    rank: int = 0,
    run: str = "run",
    launch: str = "launch",
    numbers: Sequence[int] = (0,),
    **more: Any,
) -> dict[str, Any]:
    """A batch of metrics, as any client may send it."""
    promise, values, kind = more.pop("promise", None), more.pop("values", {}), more.pop("kind", "train_metrics")
    messages = [
        {"number": n, "kind": kind, "time": 1.7e9 + n, "promise": promise, "values": {"step": n, "loss": 1.0, **values}}
        for n in numbers
    ]
    return {"job": job, "rank": rank, "world": 1, "run": run, "launch": launch, "messages": messages, **more}
