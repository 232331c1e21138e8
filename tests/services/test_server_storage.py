"""What the heartbeat server has acknowledged: committed, once, and there after any end."""

from __future__ import annotations

import json
import resource
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.required import require
from tests.services.server_process import Served, batch, serving
from tests.waiting import wait_for

require("starlette")
require("uvicorn")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server") / "server.sqlite") as started:
        yield started


def load(server: Served, rank: int, acknowledged: list[int], going: threading.Event) -> None:
    """Messages one after the other until the server is gone; those that it has acknowledged are noted."""
    number = 0
    while going.is_set():
        try:
            status, answer = server.post(batch("load", rank=rank, numbers=[number, number + 1]))
        except (OSError, ValueError):
            return
        if status == 200 and answer == {"stored": 2, "known": 0}:
            acknowledged += [number, number + 1]
        number += 2


def test_everything_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    """SIGKILL in the middle of requests of eight ranks loses nothing acknowledged, and stores nothing twice."""
    database, going = tmp_path / "server.sqlite", threading.Event()
    going.set()
    acknowledged: dict[int, list[int]] = {rank: [] for rank in range(8)}
    with serving(database) as server:
        threads = [threading.Thread(target=load, args=(server, rank, acknowledged[rank], going)) for rank in range(8)]
        for thread in threads:
            thread.start()
        wait_for(lambda: all(len(numbers) > 20 for numbers in acknowledged.values()), server.process)
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
        going.clear()
        for thread in threads:
            thread.join()
    with serving(database) as server:
        sent_again = [server.post(batch("load", rank=rank, numbers=acknowledged[rank])) for rank in range(8)]
        stored = Counter((row["rank"], row["number"]) for row in server.stored("load"))
    assert set(stored.values()) == {1}
    assert stored.keys() >= {(rank, number) for rank, numbers in acknowledged.items() for number in numbers}
    assert sent_again == [(200, {"stored": 0, "known": len(numbers)}) for numbers in acknowledged.values()]


def test_a_message_that_is_sent_again_is_stored_once(server: Served) -> None:
    """By job, rank, run and number; also beside new messages in the same batch."""
    assert server.post(batch("again", numbers=[0, 1, 1])) == (200, {"stored": 2, "known": 1})
    assert server.post(batch("again", numbers=[1, 2])) == (200, {"stored": 1, "known": 1})
    assert server.post(batch("again", rank=1, numbers=[2])) == (200, {"stored": 1, "known": 0})
    assert [(row["rank"], row["number"]) for row in server.stored("again")] == [(0, 0), (0, 1), (0, 2), (1, 2)]


def test_two_jobs_with_one_name_stay_apart(server: Served) -> None:
    """Their runs differ: both are stored whole, and the page shows two jobs."""
    for run in ("one", "other"):
        assert server.post(batch("train", run=run, launch=run, numbers=range(3)))[1]["stored"] == 3
    assert Counter(row["run"] for row in server.stored("train")) == {"one": 3, "other": 3}
    assert sorted(job["launch"] for job in server.get("/v1/board")["jobs"] if job["job"] == "train") == ["one", "other"]


def test_a_full_disk_is_no_acknowledgement(tmp_path: Path) -> None:
    """Requests get status 503 with a time to wait, health fails, and the server stores again when there is room."""
    with serving(tmp_path / "server.sqlite") as server:
        for number in range(3):
            assert server.post(batch(numbers=[number]))[0] == 200
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        assert server.post(batch(numbers=[3]))[0] == 503
        assert server.request("GET", "/health")[0] == 503
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert [row["number"] for row in server.stored("job")] == [0, 1, 2]
        wait_for(lambda: server.post(batch(numbers=[3]))[0] == 200, server.process)
        wait_for(lambda: server.request("GET", "/health")[0] == 200, server.process)
        assert [row["number"] for row in server.stored("job")] == [0, 1, 2, 3]


def test_a_database_that_is_gone_is_no_acknowledgement(tmp_path: Path) -> None:
    """Requests get status 503 until the file is back: nothing goes into one that nobody can open."""
    database = tmp_path / "server.sqlite"
    with serving(database) as server:
        assert server.post(batch())[0] == 200
        database.rename(tmp_path / "elsewhere")
        assert server.post(batch(numbers=[1]))[0] == 503
        assert [server.request("GET", path)[0] for path in ("/health", "/v1/messages", "/v1/events")] == [503] * 3
        (tmp_path / "elsewhere").rename(database)
        assert server.post(batch(numbers=[1]))[0] == 200
        assert [row["number"] for row in server.stored("job")] == [0, 1]
        assert "Traceback" not in server.errors.read_text()


def test_old_messages_are_removed_and_stay_known(tmp_path: Path) -> None:
    """The most that are kept, oldest removed first; a removed one that is sent again is not stored again; findings
    stay."""
    with serving(tmp_path / "server.sqlite", "--keep-messages", "1000") as server:
        server.post(batch(numbers=[0], kind="finding"), "/v1/findings")
        for begin in range(1, 2001, 500):
            server.post(batch(numbers=range(begin, begin + 500)))

        def removed() -> bool:
            server.post(batch("other"))
            return server.stored("job")[1]["number"] >= 1000

        wait_for(removed, server.process)
        rows = server.stored("job")
        assert rows[0]["kind"] == "finding"
        assert [row["number"] for row in rows[1:]] == list(range(rows[1]["number"], 2001))
        last = rows[1]["number"] - 1
        assert server.post(batch(numbers=[5, last, 2001])) == (200, {"stored": 1, "known": 2})


def test_the_database_is_plain_sqlite(server: Served) -> None:
    """Numbers stay what they were, NaN and infinities too, as texts that JSON permits."""
    values = {"loss": "NaN", "grad_norm": "Infinity", "tokens": 1 << 60, "note": "a\tb"}
    assert server.post(batch("plain", values=values, promise="Infinity"))[0] == 200
    assert server.stored("plain")[0]["promise"] == "Infinity"
    query = "SELECT contents, promise FROM messages WHERE source IN (SELECT id FROM sources WHERE job = 'plain')"
    with closing(sqlite3.connect(server.errors.with_suffix(".sqlite"))) as connection:
        ((contents, promise),) = connection.execute(query).fetchall()
    expected = {"step": 0, "loss": "NaN", "grad_norm": "Infinity", "tokens": float(1 << 60), "note": "a\\tb"}
    assert (json.loads(contents), promise) == (expected, float("inf"))


def test_large_messages_are_read_in_several_answers(server: Served) -> None:
    """A request holds only a few megabytes in memory, also of messages that are as large as they may be."""
    text = "x" * 8_000
    for number in range(12):
        assert server.post(batch("large", numbers=[number], values={f"k{n}": text for n in range(120)}))[0] == 200
    sizes = [len(server.request("GET", f"/v1/{path}?job=large")[1]) for path in ("messages", "events")]
    assert max(sizes) < 5 << 20
    assert [row["number"] for row in server.stored("large")] == list(range(12))
