"""Lines as public tools print them, by tool and release: what must come out of each.

A file of ``log_lines`` has the lines of one tool in JSON: the release, the source of the format, the line with
numbers and names of ours, and the metrics (others may come out as well), the rank and the anomalies expected.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from probe.services.logs import TrainingLogParser
from probe.services.logs.lines import LineReader
from probe.services.logs.log_scan import LogScan

PARSER = TrainingLogParser()
LINES: list[tuple[str, dict[str, Any]]] = [
    (f"{path.stem} {entry['release']} {number}", entry)
    for path in sorted((Path(__file__).parent / "log_lines").glob("*.jsonl"))
    for number, entry in enumerate(map(json.loads, path.read_text().splitlines()))
]
CASES = pytest.mark.parametrize("entry", [entry for _, entry in LINES], ids=[name for name, _ in LINES])


def scanned(path: Path, content: str) -> tuple[LogScan, list[dict[str, Any]]]:
    """A scan of a log with that content, and its records."""
    path.write_text(content)
    output = io.BytesIO()
    scan = LogScan(TrainingLogParser(), output)
    scan.read(str(path))
    return scan, [json.loads(line) for line in output.getvalue().decode().splitlines()]


@CASES
def test_lines_of_public_tools(entry: dict[str, Any]) -> None:
    """Numbers under our names and in our units, the rank, and the anomalies and no others."""
    record = PARSER.parse_log_line(entry["line"])
    expected = {name: float(value) for name, value in entry["metrics"].items()}
    parsed = {name: record["metrics"].get(name) for name in expected}
    assert parsed == pytest.approx(expected, nan_ok=True)
    assert record["rank"] == entry.get("rank")
    assert [anomaly["type"] for anomaly in record["anomalies"]] == entry.get("anomalies", [])


@CASES
def test_a_search_of_blocks_leaves_no_such_line_out(entry: dict[str, Any]) -> None:
    """A line with numbers of the training or with an anomaly is parsed within a log too."""
    wanted = bool({"loss", "gradient_norm"} & entry["metrics"].keys() or entry.get("anomalies"))
    block = b"nothing here\n" * 300 + entry["line"].encode() + b"\nnothing here\n"
    assert [line.number for line in LineReader().feed(block)] == [301] or not wanted


def test_colours_do_not_hide_an_anomaly_in_a_log(tmp_path: Path) -> None:
    """Nor do they come into the message, whether the byte ESC is there, written out or lost."""
    lines = ["\x1b[31mOOM\x1b[0m", "\\u001b[31mOOM\\u001b[0m", "[31mOOM[0m", "\x1b[1mloss:\x1b[0m \x1b[31mnan\x1b[0m"]
    scan, records = scanned(tmp_path / "a.log", "".join(f"{line}\n" for line in lines))
    assert [(record["raw_message"], record["line"]) for record in records] == [
        ("OOM", 1), ("OOM", 2), ("OOM", 3), ("loss: nan", 4)
    ]  # fmt: skip
    assert {first.kind for first in scan.first} == {"oom_error", "nan_loss"}


def test_gradients_that_stay_nan_are_a_lost_training(tmp_path: Path) -> None:
    """A few are a loss scaler's, ten in a row are not; in a batch of lines as in a file."""
    line = "{{'loss': 2.5, 'grad_norm': {norm}, 'learning_rate': 2e-05}}\n"
    few = line.format(norm="nan") * 3 + line.format(norm=1.5)
    content = few * 5 + line.format(norm="nan") * 12
    scan, records = scanned(tmp_path / "a.log", content)
    kinds = [[anomaly["type"] for anomaly in record["anomalies"]] for record in records]
    assert kinds == [
        [anomaly["type"] for anomaly in each["anomalies"]] for each in PARSER.batch_parse_logs(content.splitlines())
    ]
    assert [kinds.count([kind]) for kind in ("nan_gradient", "training_lost")] == [15 + 9, 3]
    assert {(first.kind, first.severity) for first in scan.first} == {
        ("nan_gradient", "medium"), ("training_lost", "high")
    }  # fmt: skip


def test_a_traceback_is_judged_by_its_last_line(tmp_path: Path) -> None:
    """Names of files and functions and the source that it shows are no messages."""
    frames = (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/opt/deadlock.py", line 12, in check_nan_loss\n'
        "[rank0]:     if stuck or loss_is_nan: fail(out_of_memory)  # OOM\n"
        '  File "/opt/hang.py", line 3, in main\n'
        "    report('CUDA out of memory')\n"
    )
    scan, _ = scanned(tmp_path / "a.log", frames + "[rank0]: ValueError: batch of 3\n")
    assert [first.kind for first in scan.first] == []
    scan, _ = scanned(tmp_path / "b.log", frames + "[rank0]: torch.OutOfMemoryError: CUDA out of memory.\n")
    assert [(first.kind, first.line, first.rank) for first in scan.first] == [("oom_error", 6, 0)]


def test_the_block_of_a_watchdog_is_one_event(tmp_path: Path) -> None:
    """After the timeout the lines that name an error or a timeout are about it; without one they are an error."""
    first = (
        "[rank1]:[E302 10:11:12.5 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=57, OpType=ALLGATHER, Timeout(ms)=600000) ran for 600038 milliseconds before timing out.\n"
    )
    rest = (
        "[rank1]:[E302 10:11:12.6 ProcessGroupNCCL.cpp:2271] [PG ID 1 PG GUID 1 Rank 1]  failure detected by watchdog "
        "at work sequence id: 57 PG status: last enqueued work: 57, last completed work: 56\n"
        "[rank1]:[E302 10:11:12.7 ProcessGroupNCCL.cpp:684] [Rank 1] To avoid data inconsistency, we are taking the "
        "entire process down.\n"
    )
    scan, _ = scanned(tmp_path / "a.log", first + rest)
    assert [(each.kind, each.rank, each.number) for each in scan.first] == [("communication_timeout", 1, 2)]
    scan, _ = scanned(tmp_path / "b.log", rest)
    assert [(each.kind, each.rank, each.number) for each in scan.first] == [("communication_error", 1, 1)]


def test_a_lost_device_is_advised_as_hardware() -> None:
    """With its address, and by an Xid as by words; a kernel's fault is advised as before."""
    words, number = (
        PARSER.parse_log_line(line)["anomalies"][0]
        for line in (
            "NVRM: GPU at PCI:0000:5d:00: GPU-1a2b has fallen off the bus.",
            "NVRM: Xid (PCI:0000:5d:00): 79, pid=12, GPU has fallen off the bus.",
        )
    )
    assert (words["type"], number["type"]) == ("device_lost", "gpu_xid")
    assert words["pci"] == number["pci"] == "0000:5d:00"
    assert words["advice"] == number["advice"]
    assert "Drain the node" in words["advice"]
    assert (
        "LAUNCH_BLOCKING" in PARSER.parse_log_line("CUDA error: device-side assert triggered")["anomalies"][0]["advice"]
    )


@pytest.mark.parametrize("code", ["EE1002", "EL0003", "EZ9999", "EI0006", "EJ0001", "E19999"])
@pytest.mark.parametrize(
    "after", ["2026-03-02-16:50:00.041.231 Failed.", "[PID: 4711] 2026-03-02-16:50 Failed.", "Failed."]
)
def test_codes_of_ascend(code: str, after: str) -> None:
    """With a process, a date or neither after them; the code is in the record, and ``EI0006`` in a sentence is none."""
    (anomaly,) = PARSER.parse_log_line(f"{code}: {after}")["anomalies"]
    assert (anomaly["code"], anomaly["severity"] in ("critical", "high")) == (code, True)
    assert PARSER.parse_log_line(f"see the page on {code} and its causes")["anomalies"] == []
