"""`probe logs parse`: JSON lines, summary, exit codes, signals, bounded memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import probe
from probe.cli import app
from tests.quick_python import probe_command
from tests.waiting import wait_for

ROOT = Path(probe.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
OOM = "2024-01-15 10:30:20 ERROR CUDA out of memory. Tried to allocate 2.00 GiB\n"


def parsed(*arguments: object, content: bytes | None = None) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, records and messages of a command."""
    done = CliRunner().invoke(app, ["logs", "parse", *map(str, arguments)], input=content)
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def run(*arguments: object, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A command in a process of its own."""
    command = probe_command("logs", "parse", *arguments)
    return subprocess.run(command, input=content, env=ENVIRONMENT, capture_output=True, check=False, timeout=120)


def test_anomalies_make_exit_code_1(tmp_path: Path) -> None:
    """The summary names the first by time, with rank, file, line, cause and advice; standard output is JSON alone."""
    (tmp_path / "rank0.log").write_text("2024-01-15 10:30:25 INFO Step 1: loss=1, lr=1e-4, time=0.5s\n" + OOM)
    (tmp_path / "rank1.log").write_text("2024-01-15 10:30:15 INFO x\n[Errno 28] No space left on device\n")
    code, records, errors = parsed(tmp_path)
    assert code == 1
    assert [(each["rank"], each["line"]) for each in records] == [(0, 1), (0, 2), (1, 2)]
    lines = errors.splitlines()
    assert lines[0] == "4 lines read, 3 written, 2 anomalies"
    assert lines[1].startswith("2024-01-15T10:30:15  rank 1  critical  disk_full: ")
    assert "rank1.log:2: [Errno 28]" in lines[2]
    assert "Checkpoints, logs or caches" in lines[3]
    assert lines[5].startswith("2024-01-15T10:30:20  rank 0  critical  oom_error: ")


def test_a_clean_log_has_exit_code_0(tmp_path: Path) -> None:
    """And no summary on demand."""
    (tmp_path / "a.log").write_text("loss: 1\n")
    assert parsed(tmp_path / "a.log", "--no-summary")[::2] == (0, "")


def test_chinese_texts(tmp_path: Path) -> None:
    """In records and summary."""
    (tmp_path / "a.log").write_text(OOM)
    _, (record,), errors = parsed(tmp_path / "a.log", "--language", "zh")
    assert record["anomalies"][0]["description"] == "设备显存已耗尽"
    assert "设备显存已耗尽" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MISSING.log"], "MISSING.log: expected a file, a directory or -; there is no such file or folder"),
        (["--output", "SAME.log", "SAME.log"], "expected another file than those that are read"),
        (
            ["--output", "NO/FOLDER/out", "SAME.log"],
            "--output NO/FOLDER/out: cannot be written: there is no such file or folder",
        ),
        (["--follow", "-"], "--follow: standard input is read to its end in any case"),
        (["--follow", "NO/FOLDER/a.log"], "expected a file or a directory; there is no folder NO/FOLDER"),
        (["--language", "fr", "SAME.log"], "'fr' is not one of 'en', 'zh'"),
        ([], "Missing argument"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_wrong_use_has_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the place, the expectation and the reason; the file that is read is left alone."""
    monkeypatch.chdir(tmp_path)
    Path("SAME.log").write_text("loss: 1\n")
    code, records, errors = parsed(*arguments)
    assert (code, records) == (2, [])
    assert message in " ".join(errors.replace("│", " ").split())
    assert Path("SAME.log").read_text() == "loss: 1\n"


def test_standard_input_of_any_bytes(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, NUL and control characters come out as valid JSON in UTF-8."""
    done = run("-", "--all", content=b"\xff\xfe\0 ERROR \x1b[31m caf\xc3\xa9\n" + bytes(range(256)) + b"\nloss: nan")
    records = [json.loads(line, parse_constant=pytest.fail) for line in done.stdout.decode("utf-8").splitlines()]
    assert records[0]["raw_message"] == "\\xff\\xfe\0 ERROR  café"
    assert records[-1]["metrics"] == {"loss": "NaN"}
    assert b"\x1b" not in done.stdout
    assert done.returncode == 1


def test_output_goes_to_a_file(tmp_path: Path) -> None:
    """Within the directory that is read, too: it is not read itself."""
    (tmp_path / "a.log").write_text(OOM)
    for _ in range(2):
        code, records, errors = parsed(tmp_path, "--output", tmp_path / "out.jsonl")
        assert (code, records) == (1, [])
        assert errors.startswith("1 line read, 1 written, 1 anomaly\n")
    assert json.loads((tmp_path / "out.jsonl").read_text())["file"] == str(tmp_path / "a.log")


def test_a_reader_that_closes_ends_it_quietly(tmp_path: Path) -> None:
    """As `head` does."""
    (tmp_path / "a.log").write_text("loss: 1\n" * 50_000)
    process = subprocess.Popen(
        probe_command("logs", "parse", tmp_path / "a.log", "--no-summary"),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(120) == 0
    process.stderr.close()


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    """With exit code 1, not with a traceback."""
    (tmp_path / "a.log").write_text("loss: 1\n")
    done = run(tmp_path / "a.log", "--output", "/dev/full", "--no-summary")
    assert (done.returncode, done.stderr) == (
        1,
        b"probe: error: /dev/full: cannot be written: there is no space left: free some, or choose another folder\n",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_followed_logs_are_read_on_until_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    """Growth, rotation, truncation and a new file; the end is clean, with the incomplete last line and a summary."""
    log, output, other = tmp_path / "logs" / "rank0.log", tmp_path / "out.jsonl", tmp_path / "logs" / "rank1.log"
    log.parent.mkdir()
    log.write_text("loss: 1\n")
    process = subprocess.Popen(
        probe_command("logs", "parse", "--follow", log.parent, "--output", output),
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )

    def losses() -> list[float]:
        return [json.loads(line)["metrics"].get("loss") for line in output.read_text().splitlines()]

    try:
        wait_for(lambda: output.exists() and losses() == [1])
        with log.open("a") as more:
            more.write("loss: 2\n")
        wait_for(lambda: losses() == [1, 2])
        log.rename(log.parent / "rank0.log.1")
        log.write_text("loss: 3\n")
        wait_for(lambda: losses() == [1, 2, 3])
        log.write_text("loss: 4\n")
        wait_for(lambda: losses() == [1, 2, 3, 4])
        other.write_text("loss: 5\nCUDA out of mem")
        wait_for(lambda: losses()[4:] == [5])
        with other.open("a") as more:
            more.write("ory")
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "rank0.log: rotated; the new file is read" in errors
    assert "rank0.log: truncated; read from its beginning" in errors
    assert "rank 1  critical  oom_error" in errors


def test_a_fifo_is_read(tmp_path: Path) -> None:
    """To the end that its writer makes."""
    os.mkfifo(tmp_path / "fifo")
    command = probe_command("logs", "parse", tmp_path / "fifo")
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    (tmp_path / "fifo").write_text("loss: 7\n")
    output, _ = process.communicate(timeout=120)
    assert json.loads(output)["metrics"] == {"loss": 7}
    assert process.returncode == 0


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A line of 30 MB, and 20 MB of short ones: less than 64 MiB."""
    content = b"x" * 30_000_000 + b"\n" + b"[rank1]: CUDA out of memory\n"
    (tmp_path / "a.log").write_bytes(content + b"plain line without anything of interest\n" * 500_000)
    code = (
        "import sys; from probe.cli import main\n"
        "sys.argv = ['probe', 'logs', 'parse', sys.argv[1], '--output', '/dev/null', '--no-summary']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.check_output([sys.executable, "-c", code, str(tmp_path / "a.log")], env=ENVIRONMENT, text=True)
    assert int(done) / 1024 < 64
