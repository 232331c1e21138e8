"""Runs that change while they are shown: they grow, begin, are removed, are half written."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.required import require
from tests.view.view_data import SIGNAL, WrittenRank, expected_cells, random_values
from tests.view.view_process import ViewServer, viewing
from tests.waiting import wait_for

require("duckdb")
httpx = require("httpx")


class Changes:
    """Events of a stream, as they come."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def next(self) -> dict[str, Any]:
        """The data of the next event."""
        for line in self._lines:
            if line.startswith("data: "):
                return dict(json.loads(line[len("data: ") :]))
        raise AssertionError("the stream has ended")

    def until(self, fits: Any) -> dict[str, Any]:
        """The data of the first event that fits."""
        while not fits(found := self.next()):
            pass
        return found


@contextmanager
def changes(server: ViewServer, **parameters: Any) -> Iterator[Changes]:
    """A stream of events."""
    with server.client.stream("GET", "/api/events", params=parameters) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Changes(answer.iter_lines())


def picture(server: ViewServer, number: int = 0) -> Any:
    """The heatmap of a run as it is now."""
    return server.binary(f"/api/runs/{number}/heatmap", signal=SIGNAL, op="max")


def test_a_run_is_shown_as_it_grows(tmp_path: Path) -> None:
    """An event with the new last step comes by itself; the picture then has that step."""
    rank = WrittenRank(tmp_path / "run", 0, world=1)
    for step in range(20):
        rank.write(step, random_values(step, 3))
    with viewing(tmp_path / "server", tmp_path / "run") as server:
        assert server.get("/api/runs")["runs"][0]["alive"] is True
        assert picture(server).header["steps"][-1] == [19, 19]
        cursor = server.get("/api/runs")["cursor"]
        began = time.monotonic()
        with changes(server, runs="0", cursor=cursor) as stream:
            for step in (20, 21):
                rank.write(step, random_values(step, 3))
                event = stream.until(lambda event, step=step: any(run["last_step"] == step for run in event["runs"]))
                assert event["runs"][0]["number"] == 0
                found = picture(server)
                assert found.header["steps"][-1] == [step, step]
                expected = expected_cells(rank.written, found.header["lines"], found.header["steps"])
                for name in expected._fields:
                    np.testing.assert_array_equal(found.arrays[name], getattr(expected, name))
        assert time.monotonic() - began >= 1.0  # there is one event a second at most
        rank.end()
        with changes(server, runs="0", cursor=cursor) as stream:  # what was missed comes at once
            last = stream.until(lambda event: event["runs"] and event["runs"][0]["alive"] is False)
            assert last["runs"][0]["last_step"] == 21


def test_a_run_that_begins_is_listed(tmp_path: Path) -> None:
    """In a folder that is shown, with a number of its own; the others keep theirs."""
    for name in ("one", "two"):
        rank = WrittenRank(tmp_path / "runs" / name, 0, world=1)
        rank.write(0, [1.0, 2.0, 3.0])
    with viewing(tmp_path / "server", tmp_path / "runs") as server:
        before = {run["name"]: run["number"] for run in server.get("/api/runs")["runs"]}
        again = WrittenRank(tmp_path / "runs" / "one", 0, time="Dec04_10-00-00", world=1)
        again.write(0, [4.0, 5.0, 6.0])
        after = wait_for(lambda: found if len(found := server.get("/api/runs")["runs"]) == 3 else None)
        numbers = {run["number"]: run["location"].rpartition("/")[2] for run in after}
        assert numbers == {before["one"]: "one", before["two"]: "two", 2: "one"}
        assert picture(server, before["one"]).maximum.ravel().tolist() == [1.0, 2.0, 3.0]
        assert picture(server, 2).maximum.ravel().tolist() == [4.0, 5.0, 6.0]


def test_a_run_that_is_removed_while_it_is_shown_is_gone(tmp_path: Path) -> None:
    """Status 410 with its place, and a list without it; the others are shown on."""
    for name in ("one", "two"):
        rank = WrittenRank(tmp_path / "runs" / name, 0, world=1)
        rank.write(0, [1.0, 2.0, 3.0])
        rank.kill()
    with viewing(tmp_path / "server", tmp_path / "runs") as server:
        runs = {run["name"]: run["number"] for run in server.get("/api/runs")["runs"]}
        for number in runs.values():
            picture(server, number)
        shutil.rmtree(tmp_path / "runs" / "one")
        place = f"/api/runs/{runs['one']}"
        wait_for(lambda: server.client.get(place).status_code == 410)
        assert "one" in server.get(place, 410)["error"]
        assert server.get(f"{place}/heatmap", 410, signal=SIGNAL, op="max")["error"]
        assert [run["name"] for run in server.get("/api/runs")["runs"]] == ["two"]
        assert picture(server, runs["two"]).maximum.ravel().tolist() == [1.0, 2.0, 3.0]


def test_half_written_files_are_read_as_far_as_they_are_whole(tmp_path: Path) -> None:
    """A torn line, a file without a header, an empty one, a torn manifest, Parquet without an end: each is named."""
    rank = WrittenRank(tmp_path / "run", 0, world=1)
    for step in range(12):
        rank.write(step, [1.0, 2.0, 3.0])
    rank.kill()
    with (rank.directory / f"{SIGNAL}_10-19.csv").open("a") as file:
        file.write("0,a,12,0.0,1")
    (rank.directory / f"{SIGNAL}_20-29.csv").write_text("vpp_stage,na")
    (rank.directory / f"{SIGNAL}_30-39.csv").write_text("")
    (rank.directory / f"{SIGNAL}_40-49.parquet").write_bytes(b"PAR1 and no more")
    (rank.directory / "manifest.json").write_text('{"rank": 0, "wor')
    with viewing(tmp_path / "server", tmp_path / "run") as server:
        found = picture(server)
        assert found.header["steps"] == [[step, step] for step in range(12)]
        assert found.maximum[:, -1].tolist() == [1.0, 2.0, 3.0]
        problems = "\n".join(server.get("/api/runs/0")["problems"])
        for name in ("10-19.csv", "20-29.csv", "30-39.csv", "40-49.parquet", "manifest.json"):
            assert name in problems


def test_a_damaged_parquet_file_is_left_out_and_named(tmp_path: Path) -> None:
    """The first request that meets it fails, with what to do; the next one has the other files."""
    rank = WrittenRank(tmp_path / "run", 0, world=1, sink="parquet")
    for step in range(30):
        rank.write(step, [1.0, 2.0, 3.0])
    rank.end()
    path = rank.directory / f"{SIGNAL}_10-19.parquet"
    whole = path.read_bytes()
    data = bytearray(whole)
    data[8:200] = bytes(192)
    path.write_bytes(data)
    with viewing(tmp_path / "server", tmp_path / "run") as server:
        asked = {"signal": SIGNAL, "op": "max"}
        wait_for(lambda: server.client.get("/api/runs/0/heatmap", params=asked).status_code == 200)
        found = picture(server)
        assert found.header["steps"] == [[step, step] for step in (*range(10), *range(20, 30))]
        assert path.name in "\n".join(server.get("/api/runs/0")["problems"])
        path.write_bytes(whole)
        wait_for(lambda: len(picture(server).header["steps"]) == 30)
        assert server.get("/api/runs/0")["problems"] == []


def test_a_hundred_pages_are_served_or_refused(tmp_path: Path) -> None:
    """Streams are bounded; the others are refused with when to come again, and data are answered all the same."""
    rank = WrittenRank(tmp_path / "run", 0, world=1)
    rank.write(0, [1.0, 2.0, 3.0])
    with viewing(tmp_path / "server", tmp_path / "run") as server, ExitStack() as stack:
        limits = httpx.Limits(max_connections=200)
        client = stack.enter_context(httpx.Client(base_url=server.base, limits=limits, timeout=60, trust_env=False))
        client.cookies.update(server.client.cookies)
        statuses, lines = [], []
        for _ in range(100):
            answer = stack.enter_context(client.stream("GET", "/api/events", params={"runs": "0"}))
            statuses.append(answer.status_code)
            if answer.status_code == 200:
                lines.append(answer.iter_lines())  # kept, since the connection ends with it
                assert next(lines[-1]) == "retry: 2000"
            else:
                assert answer.headers["retry-after"]
        assert (statuses.count(200), statuses.count(503)) == (64, 36)
        assert server.get("/api/runs")["total"] == 1
        stack.close()
        wait_for(lambda: _is_open(server))


def _is_open(server: ViewServer) -> bool:
    with server.client.stream("GET", "/api/events") as answer:
        return bool(answer.status_code == 200)


def test_many_requests_at_a_time_are_answered(tmp_path: Path) -> None:
    """Each with the whole picture."""
    rank = WrittenRank(tmp_path / "run", 0, world=1)
    for step in range(30):
        rank.write(step, [1.0, 2.0, 3.0])
    with viewing(tmp_path / "server", tmp_path / "run") as server:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(picture(server).header)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [each["steps"] for each in found] == [[[step, step] for step in range(30)]] * 12


def test_ten_thousand_runs_are_listed_at_once(tmp_path: Path) -> None:
    """The first answer does not wait for all of them to be read."""
    root = tmp_path / "runs"
    rank = WrittenRank(root / "run-0", 0, world=1)
    rank.write(0, [1.0, 2.0, 3.0])
    rank.end()
    for number in range(1, 10_000):
        folder = root / f"run-{number}"
        folder.mkdir()
        (folder / rank.directory.name).symlink_to(rank.directory)
    with viewing(tmp_path / "server", root) as server:
        answer = server.get("/api/runs", sort="name", filter="run-99")
        assert answer["total"] == 111
        assert answer["known"] < 10_000
        assert {run["name"] for run in answer["runs"]} >= {"run-99", "run-999", "run-9999"}
        assert server.get(f"/api/runs/{answer['runs'][0]['number']}")["signals"][0]["rows"] == ["a", "b", "c"]


def test_the_server_ends_at_a_signal_with_streams_open(tmp_path: Path) -> None:
    """At once, with exit code 0, and without a process that goes on."""
    rank = WrittenRank(tmp_path / "run", 0, world=1)
    rank.write(0, [1.0, 2.0, 3.0])
    with viewing(tmp_path / "server", tmp_path / "run") as server:
        server.get("/api/runs/0")
        with changes(server, runs="0"):
            assert server.end() == 0
