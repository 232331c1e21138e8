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

from probe.core import naming
from probe.services.logs import TrainingLogParser
from probe.services.logs.lines import LineReader
from probe.services.logs.log_scan import LogScan
from probe.services.logs.names import ours

PARSER = TrainingLogParser()
FILES = sorted((Path(__file__).parent / "log_lines").glob("*.jsonl"))
TOOLS = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
LINES = {
    "coloured": (
        "step: 20  loss:  7.125  grad_norm:  1.8200  lr: 1e-05",
        {"step": 20, "loss": 7.125, "gradient_norm": 1.82},
    ),
    "cells": ("step 20 | loss 7.125 | grad_norm 1.82 | lr 1.00e-05", {"loss": 7.125, "learning_rate": 1e-05}),
    "JSON": ('{"step": 20, "loss": 7.125, "lr": 1e-05}', {"step": 20, "loss": 7.125, "learning_rate": 1e-05}),
    "dictionary": ("{'loss': 7.125, 'grad_norm': 1.82, 'epoch': 0.5}", {"loss": 7.125, "gradient_norm": 1.82}),
    "verl": ("step:20 - actor/loss:7.125 - actor/lr:1e-05", {"step": 20, "loss": 7.125, "learning_rate": 1e-05}),
    "mlx-lm": ("Iter 20: Train loss 7.125, It/sec 0.51", {"step": 20, "loss": 7.125, "steps_per_second": 0.51}),
    "examples": ("Epoch: [3][ 50/391]\tLoss 7.1250 (7.3)", {"epoch": 3, "batch": 50, "loss": 7.125}),
    "OOM": ("torch.OutOfMemoryError: CUDA out of memory.", "oom_error"),
    "NaN": ("loss: nan at step 20", "nan_loss"),
    "CANN": ("EI0006: Getting socket times out.", "communication_timeout"),
    "Xid": ("NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.", "gpu_xid"),
}
"""Lines, and their numbers or their one anomaly."""
TABLES: dict[str, tuple[str, dict[str, float | str | None], list[str]]] = {
    "nerfstudio": (
        (
            "Step (% Done)       Train Iter (time)    ETA (time)           Train Rays / Sec          latfacto.py:604\n"
            "----------------------------------------------------------------------------------     latfacto.py:554\n"
            "4090 (81.78%)       43.140 ms            39 s, 300.687 ms     14.86 M                   latfacto.py:566\n"
        ),
        {"step": 4090, "step_time": 0.04314},
        [],
    ),
    "ultralytics": (
        (
            "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
            "     3/20    4.50G   1.2500     8.125     3.250     12    640: 100%|██| 20/20 [00:10<00:00,  1.36it/s]\n"
        ),
        {"epoch": 3, "total_epochs": 20, "memory_used_gb": 4.5, "box_loss": 1.25, "dfl_loss": 3.25},
        [],
    ),
    "yolov5": (
        (
            "Epoch   gpu_mem       box       obj       cls    labels  img_size\n"
            "  1/20     0.500G       nan       nan       nan       4       416: 100%|█| 7/7 [00:15<00:00,  2.27s/it]\n"
        ),
        {"epoch": 1, "memory_used_gb": 0.5, "box_loss": "NaN", "obj_loss": "NaN"},
        ["nan_loss"],
    ),
    "fastai": (
        "epoch     train_loss  valid_loss  accuracy  time    \n0         4.125000    4.250000    0.250000  02:05  \n",
        {"epoch": 0, "loss": 4.125, "validation_loss": 4.25, "accuracy": 0.25, "time": None},
        [],
    ),
    "skorch": (
        (
            "  epoch    train_loss    valid_acc    valid_loss     dur\n-------  ------  ------  --------  ----\n"
            "      1        \x1b[36m0.6250\x1b[0m       \x1b[32m0.6150\x1b[0m        \x1b[35m0.6875\x1b[0m  0.0406\n"
        ),
        {"epoch": 1, "loss": 0.625, "validation_loss": 0.6875},
        [],
    ),
    "CSV": (
        "train/loss_step,global_step,epoch,created_at\n0.25,49.0,1,2025-11-07 06:02:10.484610\n",
        {"loss": 0.25, "step": 49, "epoch": 1},
        [],
    ),
    "deepmd-kit": (
        "#  step      rmse_trn    rmse_e_trn         lr\n    100      1.39e+01      2.22e-01    1.0e-03\n",
        {"step": 100, "learning_rate": 1e-3},
        [],
    ),
    "Chainer": (
        (
            "epoch  iteration  main/loss  main/accuracy  lr         validation/main/loss\n"
            "3      100        4.125                     1.25e-09   4.25\n"
        ),
        {"epoch": 3, "step": 100, "loss": 4.125, "learning_rate": 1.25e-9, "validation_loss": 4.25},
        [],
    ),
    "deepxde": (
        "Step      Train loss    Test loss     Test metric\n2000      [nan]         [6.50e+03]    [1.00e+00]\n",
        {"step": 2000, "loss": "NaN", "test_loss": 6500},
        ["nan_loss"],
    ),
    "Ray Tune": (
        (
            "| Trial name  | status  | iter |   total time (s) |    loss |\n"
            "| train_00000 | RUNNING |    3 |            8.25  |   0.125 |\n"
        ),
        {"step": 3, "loss": 0.125, "step_time": None},
        [],
    ),
    "DySPN": (
        (
            "Epoch ,FinishTime     ,LR    ,RMSE_Train ,RMSE_Val\n"
            "    8 ,04.29_12:50:13 ,[0.001]    ,   635.966 , 810.576\n"
        ),
        {"epoch": 8, "learning_rate": 1e-3},
        [],
    ),
    "ChainerRL": (
        "steps\tepisodes\telapsed\taverage_v\taverage_loss\n50099\t52\t992.45\t[-2.17921662]\t-0.0195257508921\n",
        {"step": 50099, "loss": -0.0195257508921},
        [],
    ),
    "frame": (
        "│ step │ loss  │ lr     │\n│ 20   │ 7.125 │ 1.0e-4 │\n",
        {"step": 20, "loss": 7.125, "learning_rate": 1e-4},
        [],
    ),
}
"""Tables of public tools under a row of names, numbers of their last row, and anomalies."""
AROUND = [
    "INFO:root:{}", "2026-03-02 10:11:12,345 - train - INFO - {}", "[rank3]: {}", "[RANK:3] {}", "[default3]:{}",
    "[1,3]<stdout>:{}", " 3: {}", "node-3: {}", "trainer-1  | {}", "\x1b[36m(RayTrainWorker pid=812)\x1b[0m {}",
    "2026-03-02T10:11:12.345678901Z stdout F {}", "Mar  2 10:11:12 node-3 python3[4711]: {}",
    "<13>1 2026-03-02T10:11:12Z node-3 train 4711 - - {}", "2026-03-02 10:11:12.345 | INFO     | a:b:42 - {}",
    "I0302 10:11:12.345678 4711 train.py:42] {}", "[10:11:12] INFO     {}    train.py:42",
    'time="2026-03-02T10:11:12Z" level=info msg="{}"', "2026-03-02 10:11:12 [info     ] {}",
    "[2026-03-02 10:11:12,345] [INFO] [logging.py:96:log_dist] [Rank 0] {}", "[trainer0|3]:{}", "  \u2022 {}",
    "[NeMo I 2026-03-02 10:11:12 rank0] {}", "\u2502 {} \u2502",
    "[WARNING] ME(4711:139):2026-03-02-10:11:12.3 [a.py:4] {}",
]  # fmt: skip
"""Forms that launchers, collectors and formatters of logs give a line."""


def entries(path: Path) -> list[dict[str, Any]]:
    """The lines of a tool, with what is expected of each."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def found_in(entry: dict[str, Any], path: Path) -> tuple[dict[str, float | None], int | None, list[str]]:
    """Expected metrics as parsed, rank and kinds of anomalies of an entry; an entry of several lines is a log."""
    if "\n" in entry["line"]:
        scan, _ = scanned(path, entry["line"])
        return {}, entry.get("rank"), list(dict.fromkeys(first.kind for first in scan.first))
    record = PARSER.parse_log_line(entry["line"])
    parsed = {name: record["metrics"].get(name) for name in entry["metrics"]}
    return parsed, record["rank"], [anomaly["type"] for anomaly in record["anomalies"]]


def scanned(path: Path, content: str) -> tuple[LogScan, list[dict[str, Any]]]:
    """A scan of a log with that content, and its records."""
    path.write_text(content)
    output = io.BytesIO()
    scan = LogScan(TrainingLogParser(), output)
    scan.read(str(path))
    return scan, [json.loads(line) for line in output.getvalue().decode().splitlines()]


@TOOLS
def test_lines_of_public_tools(path: Path, tmp_path: Path) -> None:
    """Numbers under our names and in our units (null: none), the rank, and the anomalies and no others."""
    wrong = []
    for entry in entries(path):
        expected = {name: None if value is None else float(value) for name, value in entry["metrics"].items()}
        parsed, rank, kinds = found_in(entry, tmp_path / "a.log")
        expected = expected if parsed else {}
        if parsed != pytest.approx(expected, nan_ok=True) or (rank, kinds) != (
            entry.get("rank"),
            entry.get("anomalies", []),
        ):
            wrong.append((entry["release"], entry["line"], parsed, rank, kinds))
    assert wrong == []


@TOOLS
def test_a_search_of_blocks_leaves_no_such_line_out(path: Path) -> None:
    """A line with numbers of the training or with an anomaly is parsed within a log too."""
    left_out = []
    for entry in entries(path):
        wanted = any(entry["metrics"].get(name) is not None for name in ("loss", "gradient_norm")) or entry.get(
            "anomalies"
        )
        block = b"nothing here\n" * 300 + entry["line"].encode() + b"\nnothing here\n"
        if wanted and not [line for line in LineReader().feed(block) if line.number > 300]:
            left_out.append(entry["line"])
    assert left_out == []


@pytest.mark.parametrize("around", AROUND)
def test_what_stands_around_a_line_hides_nothing(around: str) -> None:
    """Launchers, collectors and formatters put a prefix before it, a frame around it, or both."""
    lines = {name: PARSER.parse_log_line(around.replace("{}", line)) for name, (line, _) in LINES.items()}
    parsed: dict[str, Any] = {}
    for name, (_, expected) in LINES.items():
        record = lines[name]
        kinds = [anomaly["type"] for anomaly in record["anomalies"]]
        parsed[name] = ", ".join(kinds) or {number: record["metrics"].get(number) for number in expected}
    assert parsed == {name: expected for name, (_, expected) in LINES.items()}


@pytest.mark.parametrize("field", ["log", "message", "msg", "text"])
def test_a_line_within_json_is_parsed(field: str) -> None:
    """A container's log and the loggers that write JSON have the program's own line in a field, with escapes."""
    record = PARSER.parse_log_line(json.dumps({field: "Epoch: [3][ 50/391]\tLoss 7.125 (7.3)\n", "level": "info"}))
    assert {name: record["metrics"][name] for name in ("epoch", "batch", "loss")} == {
        "epoch": 3,
        "batch": 50,
        "loss": 7.125,
    }
    record = PARSER.parse_log_line(json.dumps({field: "loss is nan\n", "time": "2026-03-02T10:11:12Z"}))
    assert [anomaly["type"] for anomaly in record["anomalies"]] == ["nan_loss"]
    assert record["timestamp"] == "2026-03-02T10:11:12+00:00"


def test_names_in_any_spelling() -> None:
    """Words, underscores, humps, scopes, qualifiers and units; the best loss and held-out numbers are others."""
    names = {
        "loss": "loss, Train Loss, train/loss, trainLoss, avg_loss, loss/train, train.loss, running_loss",
        "gradient_norm": "grad_norm, GradNorm, total_grad_norm, actor/grad_norm, grad/norm, gradnorm, global norm",
        "learning_rate": "lr, LearningRate, current_lr, lr/group_0, lr-AdamW, lr0, train/lr, optim0_lr0",
        naming.TOKENS_PER_SECOND: "tps, tokens/sec, tok/s, tokens_per_second, words/s, TokensPerSec",
        "tokens_per_second_per_device": "tgs, tokens_per_sec_per_gpu, throughput/device/tokens_per_sec",
        "step_time": "step_time, sec/step, s/it, time_per_step, seconds_per_step, elapsed time per iteration",
        "throughput": "samples/s, SamplesPerSec, examples_per_second, interval_samples_per_second, images/sec",
        "steps_per_second": "it/s, steps_per_sec, global_step/sec, train_steps_per_second",
        "validation_loss": "val_loss, Validation Loss, val/loss, loss/val, Average Validation Loss, loss of val loss",
        "epoch": "epoch, End of epoch, Training of Epoch",
        "": "best loss, min loss, val accuracy, logit scale, data time, train_steps, total time, val_acc, time/batch, "
        "load time, testing time, number of epoch, size of step",
    }  # fmt: skip
    assert {name: [ours(each) for each in spellings.split(", ")] for name, spellings in names.items()} == {
        name: [name] * len(spellings.split(", ")) for name, spellings in names.items()
    }


def test_numbers_within_a_block_have_the_step_at_its_head(tmp_path: Path) -> None:
    """Lines that are set in, and rows of a table, belong to the counters above them; others do not."""
    content = (
        "2026-03-02 10:11:12\tnode-3\tolmo.train\tINFO\t[step=10/100,epoch=0]\n    train/CrossEntropyLoss=2.5\n"
        "loss 3.5\n[batch=7/50]:\n\t Train loss/train/total: 1.5\n  exitcode  : -9 (pid: 12)\n"
    )
    _, records = scanned(tmp_path / "a.log", content)
    numbers = [
        (record["metrics"].get("loss"), record["metrics"].get("step"), record["metrics"].get("batch"))
        for record in records
    ]
    assert numbers == [
        (None, 10, None),
        (2.5, 10, None),
        (3.5, None, None),
        (None, None, 7),
        (1.5, None, 7),
        (None, None, None),
    ]
    assert [record["metrics"] for record in PARSER.batch_parse_logs(content.splitlines())] == [
        record["metrics"] for record in records
    ]


@pytest.mark.parametrize("tool", TABLES)
def test_rows_of_a_table_have_the_names_of_its_columns(tool: str, tmp_path: Path) -> None:
    """By a scan of a file, which hands over lines that are worth it, and line by line."""
    content, expected, kinds = TABLES[tool]
    scan, (*_, record) = scanned(tmp_path / "a.log", content)
    assert {name: record["metrics"].get(name) for name in expected} == expected
    assert [first.kind for first in scan.first] == kinds
    *_, parsed = PARSER.batch_parse_logs(content.splitlines())
    assert parsed["metrics"].keys() == record["metrics"].keys()
    assert [anomaly["type"] for anomaly in parsed["anomalies"]] == kinds


@pytest.mark.parametrize(
    "content",
    ["20   7.125   1.0e-4\n", "epoch  train_loss  valid_loss\n0      4.5\n1  2  3  4\n", "a  b  c\n1  2  3\n"],
)
def test_rows_of_no_table_have_no_numbers(content: str, tmp_path: Path) -> None:
    """Without names above, of another number of cells, or under names of something else."""
    _, records = scanned(tmp_path / "a.log", content)
    assert [record["metrics"] for record in records if record["metrics"]] == []


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
