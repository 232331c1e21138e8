"""Logs that programs wrote: torchrun of PyTorch 2.13, transformers 5.23, Lightning 2.6, MindSpore 2.10."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from probe.services.logs.log_scan import LogScan
from probe.services.logs.parser import TrainingLogParser

HERE = Path(__file__).parent / "recorded_logs"


def scanned(name: str) -> tuple[LogScan, list[dict[str, Any]]]:
    """A scan of a recorded log, and its records."""
    output = io.BytesIO()
    scan = LogScan(TrainingLogParser(), output)
    scan.read(str(HERE / name))
    return scan, [json.loads(line) for line in output.getvalue().decode().splitlines()]


def test_torchrun_names_the_rank_that_was_killed_first() -> None:
    """Rank 1 got SIGKILL; the launcher ended rank 0, which had lost its peer."""
    scan, records = scanned("torchrun_kill.log")
    first, second, *_ = scan.first
    assert (first.rank, first.kind, first.severity) == (1, "process_failed", "high")
    assert "exitcode  : -9" in first.message
    assert (second.rank, second.kind, second.severity) == (0, "process_failed", "medium")
    assert {(each.rank, each.kind) for each in scan.first} == {
        (1, "process_failed"), (0, "process_failed"), (None, "process_failed"), (0, "communication_error")
    }  # fmt: skip
    assert [each["metrics"] for each in records if "failed (exitcode" in each["raw_message"]] == [
        {"exit_code": -9, "local_rank": 1}
    ]


def test_a_collective_that_waits_too_long_is_a_timeout() -> None:
    """As Gloo reports it."""
    scan, _ = scanned("torchrun_hang.log")
    assert (0, "communication_timeout", "critical") in {(each.rank, each.kind, each.severity) for each in scan.first}


def test_hugging_face_trainer() -> None:
    """Losses as dictionaries of texts, also between the states of progress bars, and the mean at the end."""
    scan, records = scanned("huggingface.log")
    metrics = [each["metrics"] for each in records]
    assert [each["loss"] for each in metrics if "loss" in each] == [0.8366, 1.35, 0.6368, 1.103, 1.107, 1.412]
    assert [each["eval_loss"] for each in metrics if "eval_loss" in each] == [1.093, 1.093, 1.105, 1.105]
    assert [each["loss_mean"] for each in metrics if "loss_mean" in each] == [0.9412, 1.208]
    assert [metrics[-1][name] for name in ("percent", "step", "total_steps")] == [100, 6, 6]
    assert scan.first.number == 0


def test_lightning() -> None:
    """The last state of each line, with the loss of the progress bar."""
    scan, records = scanned("lightning.log")
    last = records[-1]["metrics"]
    assert (last["epoch"], last["batch"], last["total_batches"], last["loss"]) == (1, 4, 4, 0.139)
    assert scan.first.number == 0


def test_mindspore() -> None:
    """Losses, times, and the log's own levels and times."""
    scan, records = scanned("mindspore.log")
    losses = [each["metrics"]["loss"] for each in records if "loss" in each["metrics"]]
    assert (len(losses), losses[0]) == (8, pytest.approx(0.7856168))
    assert next(each["metrics"] for each in records if "step_time" in each["metrics"]) == {
        "epoch_time": pytest.approx(0.181333), "step_time": pytest.approx(0.045333)
    }  # fmt: skip
    stated = [(each["level"], each["timestamp"]) for each in records if "of our own" in each["raw_message"]]
    assert stated == [("ERROR", "2026-11-23T04:41:44.737")]
    assert scan.first.number == 0
