"""JSON lines of our own logger."""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.core.alerting.redaction import register
from probe.services.logs import TrainingLogParser, structured

LOGGER = logging.getLogger("probe.test_of_json_lines")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """File that this test's logger writes to, as rank 3 of the job `pretrain`."""
    handler = structured(tmp_path / "probe.jsonl", job="pretrain", rank=3, logger=LOGGER.name)
    yield tmp_path / "probe.jsonl"
    LOGGER.removeHandler(handler)
    handler.close()


def lines(path: Path) -> list[dict[str, Any]]:
    """Records of a file; each is one line for every program that splits at line breaks of Unicode too."""
    text = path.read_text("utf-8")
    assert len(text.splitlines()) == text.count("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in text.split("\n")[:-1]]


def test_a_record_has_the_fields_of_ecs(path: Path) -> None:
    """Time in UTC, level, message, logger, process, host, service, and labels, also those of the record."""
    LOGGER.warning("loss is %.1f", 2.5, extra={"step": 12})
    (record,) = lines(path)
    assert record["@timestamp"].endswith("Z")
    assert abs(path.stat().st_mtime - _seconds(record["@timestamp"])) < 5
    expected = {
        "log.level": "warning", "message": "loss is 2.5", "log.logger": LOGGER.name, "process.pid": os.getpid(),
        "host.name": os.uname().nodename, "service.name": "probe", "labels.job": "pretrain", "labels.rank": 3,
        "labels.step": 12, "ecs.version": "8.11",
    }  # fmt: skip
    assert {name: record.get(name) for name in expected} == expected


def _seconds(time: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def test_an_error_has_type_message_and_stack_trace(path: Path) -> None:
    """As fields of their own."""
    try:
        raise ValueError("no such layer")
    except ValueError:
        LOGGER.exception("failed")
    (record,) = lines(path)
    assert (record["error.type"], record["error.message"]) == ("ValueError", "no such layer")
    assert record["error.stack_trace"].startswith("Traceback (most recent call last):\n")
    assert record["error.stack_trace"].endswith("ValueError: no such layer")


def test_secrets_are_redacted(path: Path) -> None:
    """In messages, errors and stack traces."""
    register("a-secret-of-ours")
    try:
        raise ValueError("a-secret-of-ours")
    except ValueError:
        LOGGER.exception("with https://user:a-secret-of-ours@host/ and a-secret-of-ours")
    assert "a-secret-of-ours" not in path.read_text()
    (record,) = lines(path)
    assert (record["error.type"], record["error.message"]) == ("ValueError", "***")


def test_secrets_are_redacted_in_records_of_any_logger(tmp_path: Path) -> None:
    """Of the program itself, and in labels: the filter of our own loggers sees neither."""
    register("a-secret-of-ours")
    own = logging.getLogger("program.of.a.user")
    handler = structured(tmp_path / "a.jsonl", job="of a-secret-of-ours", logger=own.name)
    own.warning("with %s", "a-secret-of-ours", extra={"phase": "a-secret-of-ours"})
    own.removeHandler(handler)
    handler.close()
    (record,) = lines(tmp_path / "a.jsonl")
    assert (record["message"], record["labels.phase"], record["labels.job"]) == ("with ***", "***", "of ***")


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_any_text_is_one_line(path: Path) -> None:
    """Line breaks of every kind, control characters, lone surrogates, huge texts, and objects without a text."""
    alone = logging.Logger("alone")  # without pytest's own handlers, which raise
    alone.addHandler(LOGGER.handlers[0])
    alone.info("a\nb\r\u2028\u0085\x1b[31m\ud800 \x00")
    alone.info("x" * 1_000_000)
    alone.info("%s", _Unprintable())
    alone.info("%d %d", *["no number"])
    alone.info("number", extra={"step": 10**5000})
    alone.info("number", extra={"step": float("nan"), "rank": _Unprintable()})
    first, second, third, fourth, fifth, sixth = lines(path)
    assert first["message"] == "a\nb\r\u2028\u0085\x1b[31m\\ud800 \x00"
    assert second["message"].endswith("... (967232 more characters)")
    assert "arguments do not fit" in third["message"]
    assert fourth["message"] == "%d %d (arguments do not fit: ('no number',))"
    assert fifth["labels.step"] == "<int that cannot be printed>"
    assert (sixth["labels.step"], sixth["labels.rank"]) == ("NaN", "<_Unprintable that cannot be printed>")


def test_what_cannot_be_written_is_counted(tmp_path: Path) -> None:
    """On a full disk nothing is raised, and the first line after it has the number of those that are lost."""
    code = """
import logging, resource, signal, sys
from probe.services.logs import structured
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
handler = structured(sys.argv[1])
log = logging.getLogger("probe.full")
log.info("before")
resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.RLIM_INFINITY))
for number in range(5):
    log.info("lost " + "x" * 200)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.info("after")
"""
    path = tmp_path / "a.jsonl"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    texts = []
    for line in path.read_text().split("\n"):
        if line.startswith("{") and line.endswith("}"):
            texts.append(json.loads(line)["message"])
    kept = sum(text.startswith("lost") for text in texts)
    assert (texts[0], texts[-2:]) == ("before", [f"{5 - kept} records could not be written", "after"])
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_processes_share_a_file(tmp_path: Path) -> None:
    """Lines of three processes stay whole."""
    code = (
        "import logging, sys; from probe.services.logs import structured; structured(sys.argv[1]); "
        "[logging.getLogger('probe.x').info('%s', 'y' * 500) for _ in range(100)]"
    )
    path = tmp_path / "a.jsonl"
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, path], env={**os.environ, "RANK": str(rank)}) for rank in range(3)
    ]
    assert [rank.wait() for rank in ranks] == [0] * 3
    records = lines(path)
    assert len(records) == 300
    assert {record["labels.rank"] for record in records} == {0, 1, 2}


def test_switching_it_on_loads_no_service() -> None:
    """A training process pays for the standard library alone."""
    code = (
        "import sys; from probe.services.logs import structured; structured('/dev/null'); "
        "print([name for name in ('starlette', 'uvicorn', 'asyncio', 'numpy', 're2', 'typer') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_place_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    """Before training begins."""
    with pytest.raises(FileNotFoundError):
        structured(tmp_path / "missing" / "a.jsonl")
    with pytest.raises(ValueError, match="LOUD"):
        structured(tmp_path / "a.jsonl", level="LOUD")


def test_our_own_lines_are_parsed(path: Path) -> None:
    """Level, time and rank of our own JSON lines are read back."""
    LOGGER.error("CUDA out of memory")
    LOGGER.info("all is well")
    error, info = map(TrainingLogParser().parse_log_line, path.read_text().splitlines())
    assert (error["level"], error["rank"], error["anomalies"][0]["type"]) == ("ERROR", 3, "oom_error")
    assert (info["level"], info["anomalies"], info["timestamp_source"]) == ("INFO", [], "line")


def test_a_file_that_was_rotated_away_is_begun_anew(path: Path) -> None:
    """Each file has the records of its time, also if it was removed, or is truncated in place."""
    LOGGER.warning("one")
    rotated = path.rename(path.with_suffix(".1"))
    LOGGER.warning("two")
    assert [[record["message"] for record in lines(file)] for file in (rotated, path)] == [["one"], ["two"]]
    path.unlink()
    LOGGER.warning("three")
    assert [record["message"] for record in lines(path)] == ["three"]
    os.truncate(path, 0)
    LOGGER.warning("four")
    assert [record["message"] for record in lines(path)] == ["four"]


def test_records_go_to_the_rotated_file_as_long_as_no_new_one_can_be_made(path: Path) -> None:
    """None is lost, and the new file is begun as soon as it can be."""
    LOGGER.warning("one")
    rotated = path.rename(path.parent.parent / f"{path.parent.name}.1")
    path.parent.rename(path.parent.with_suffix(".moved"))
    LOGGER.warning("two")
    path.parent.with_suffix(".moved").rename(path.parent)
    LOGGER.warning("three")
    assert [[record["message"] for record in lines(file)] for file in (rotated, path)] == [["one", "two"], ["three"]]
