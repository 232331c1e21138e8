"""Exporters that cannot start, requests that are refused, and numbers from JSON files."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.services.exporter.json_numbers import LONGEST_SECONDS, MOST_BYTES, NUMBERS, JsonNumbers
from probe.services.exporter.ranks import NodeRanks
from tests.quick_python import probe_command
from tests.required import require
from tests.services.exporter_process import Exported, exporting
from tests.services.metrics_rank import written
from tests.services.server_process import ROOT

require("starlette")
require("uvicorn")
require("psutil")
require("prometheus_client")

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-24-characters"


def refusal(*options: str, **environment: str) -> str:
    """The complaint of an exporter that does not start."""
    done = subprocess.run(
        probe_command("exporter", *options),
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done
    return done.stderr


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    """An exporter with a token for all of this machine, and two JSON files."""
    folder = tmp_path_factory.mktemp("exporter")
    token = folder / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    options = ("--json-file", str(folder / "a.json"), "--json-file", str(folder / "b.json"), "--no-gpu")
    with exporting(folder / "errors", "--host", "0.0.0.0", "--token-file", str(token), *options) as started:
        yield started
        assert TOKEN not in started.errors.read_text()


def test_the_token_reads_numbers_of_json_files(guarded: Exported) -> None:
    """As the names that older exporters use; a file that is not there is no error, and is named at the start."""
    folder = guarded.errors.parent
    assert f"--json-file {folder / 'b.json'}: not there yet" in guarded.errors.read_text()
    (folder / "a.json").write_text(json.dumps({"job_name": 'x"', "loss": 2.5, "throughput": 512, "step": 7}))
    status, _, text = guarded.request("/metrics", {"Authorization": f"Bearer {TOKEN}"})
    assert status == 200
    assert 'training_loss{job_name="x\\""} 2.5\n' in text
    assert 'training_throughput_samples_per_second{job_name="x\\""} 512.0\n' in text
    assert 'training_step{job_name="x\\""} 7.0\n' in text
    assert "\nprobe_exporter_unreadable_files 0.0\n" in text
    assert "training_epoch" not in text


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metric", "/v1/board"])
def test_other_paths_are_not_there(guarded: Exported, path: str) -> None:
    """Nothing is written to the log for them."""
    before = guarded.errors.read_text()
    assert guarded.request(path, {"Authorization": f"Bearer {TOKEN}"})[0] in (307, 404)
    assert guarded.errors.read_text() == before


def test_an_exporter_without_a_token_that_others_reach_says_so(tmp_path: Path) -> None:
    """When it starts; it answers under any name."""
    with exporting(tmp_path / "errors", "--no-gpu", "--host", "0.0.0.0") as everyone:
        assert everyone.request("/metrics", {"Host": "node7"})[0] == 200
        assert "everyone who can connect from the network can read the metrics" in everyone.errors.read_text()


def test_a_taken_port_is_refused() -> None:
    """With the advice to choose another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = refusal("--port", str(taken.getsockname()[1]))
    assert "another program listens there; choose another port" in text


def test_wrong_options_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """Each names the option, the expected value and the way out; no message has a token."""
    short = tmp_path / "short"
    short.write_text("short-secret")
    short.chmod(0o600)
    refused = [
        (("--token-file", str(tmp_path / "none")), "cannot be read: No such file"),
        (("--token-file", str(short)), "token: expected at least 16 printable ASCII characters"),
        (("--progress", str(short)), "expected a directory"),
        (("--json-file", str(tmp_path)), "expected a file, got a directory"),
        (("--device-command", "'open"), "expected a program with its arguments"),
        (("--device-command", "there-is-no-such-program"), "expected a program that can be run"),
        (("--interval", "nan"), "--interval"),
        (("--deadline", "inf"), "--deadline: expected a positive number of seconds, got inf"),
    ]
    for options, expected in refused:
        done = CliRunner().invoke(app, ["exporter", "--port", "0", *options])
        assert done.exit_code == 2, done.output
        text = " ".join(done.output.split())
        assert expected in text
        assert "short-secret" not in text


def test_files_that_do_not_answer_delay_a_page_by_their_deadline_alone(tmp_path: Path) -> None:
    """The rest is served; when they answer again they are shown again."""
    from probe.services.exporter.node_page import NodePage

    answers, asked = threading.Event(), threading.Event()

    def folders() -> list[Path]:
        asked.set()
        answers.wait(120)
        return [tmp_path]

    file = written(tmp_path, "job", 0, {("probe_training_loss",): 2.5})

    async def scrape() -> None:
        page = NodePage(NodeRanks(folders), JsonNumbers([]), deadline=0.05)
        for _ in range(3):
            began = time.monotonic()
            text, _ = await page.text("")
            assert time.monotonic() - began < 60  # of 120
            assert b'probe_exporter_probe_hung{probe="files"} 1.0' in text
            assert b"probe_training_loss" not in text
        assert asked.is_set()
        assert page.hung == ["files"]
        answers.set()
        while b'probe_training_loss{job="job",rank="0"} 2.5' not in text:
            text, _ = await page.text("")
        assert page.hung == []

    asyncio.run(asyncio.wait_for(scrape(), 30))
    file.close()


def test_numbers_are_read_from_whatever_a_program_writes(tmp_path: Path) -> None:
    """Numbers, NaN and infinities, also as texts; nothing else."""
    path = tmp_path / "numbers.json"
    path.write_text(
        '{"loss": NaN, "throughput": "5.5e2", "gradient_norm": "Infinity", "learning_rate": "fast", "step": true,'
        ' "epoch": "nan", "accuracy": [1], "val_loss": 1' + "0" * 400 + ', "step_time": -Infinity, "timestamp": "now"}'
    )
    (found,) = JsonNumbers([path]).look()
    assert found.job == "unknown"
    assert {key for key, value in found.values.items() if math.isnan(value)} == {"loss", "epoch"}
    assert {key: value for key, value in found.values.items() if not math.isnan(value)} == {
        "throughput": 550.0,
        "gradient_norm": math.inf,
        "step_time": -math.inf,
    }
    assert {"loss", "throughput", "gradient_norm", "step", "epoch"} <= set(NUMBERS)


@pytest.mark.parametrize(
    "content",
    [b"", b'{"loss": 1', b"[1]", b"1", b"\xff\xfe", b"[" * 500_000, b'{"a":' * 100_000, b"9" * 10_000,
     b'{"loss": 1}' + b" " * MOST_BYTES],
)  # fmt: skip
def test_the_last_good_numbers_stay_while_a_file_is_broken(tmp_path: Path, content: bytes) -> None:
    """Half written, hostile or gone; it is counted as long as it cannot be read."""
    path = tmp_path / "numbers.json"
    path.write_text('{"loss": 2.5}')
    numbers = JsonNumbers([path])
    assert numbers.look()[0].values == {"loss": 2.5}
    path.write_bytes(content)
    assert numbers.look()[0].values == {"loss": 2.5}
    assert numbers.unreadable == 1
    path.unlink()
    assert numbers.look()[0].values == {"loss": 2.5}
    assert numbers.unreadable == 0
    path.write_text('{"loss": 3.5}')
    assert numbers.look()[0].values == {"loss": 3.5}


def test_old_numbers_are_left_out(tmp_path: Path) -> None:
    """After 15 minutes they are no numbers of now; of two files of one job the newer counts."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text('{"job_name": "a", "loss": 1}')
    new.write_text('{"job_name": "a", "loss": 2}')
    now = time.time()
    os.utime(old, (now - 60,) * 2)
    numbers = JsonNumbers([new, old])
    assert [each.values for each in numbers.look()] == [{"loss": 2.0}]
    os.utime(new, (now - LONGEST_SECONDS - 60,) * 2)
    assert [each.values for each in numbers.look()] == [{"loss": 1.0}]
    os.utime(old, (now - LONGEST_SECONDS - 60,) * 2)
    assert numbers.look() == []


def test_a_fifo_in_place_of_a_json_file_is_not_waited_for(tmp_path: Path) -> None:
    """It is no file; the others are read."""
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "good.json").write_text('{"loss": 1}')
    numbers = JsonNumbers([tmp_path / "fifo.json", tmp_path / "good.json"])
    assert len(numbers.look()) == 1
    assert numbers.unreadable == 1
