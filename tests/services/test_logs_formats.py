"""Numbers, levels, times and ranks in the lines of training programs, each in the program's own format."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

import pytest

from probe.services.logs import TrainingLogParser

PARSER = TrainingLogParser()
MEGATRON = (
    " [2024-04-06 02:59:36] iteration       43/     100 | consumed samples:         5504 | "
    "elapsed time per iteration (ms): 5444.9 | throughput per GPU (TFLOP/s/GPU): 239.8 | learning rate: 8.600000E-06 | "
    "global batch size:   128 | lm loss: {loss} | load_balancing_loss: 1.019746E+00 | loss scale: 1.0 | "
    "grad norm: 1.426 | num zeros: 0.0 | number of skipped iterations:   2 | number of nan iterations:   {nans} |"
)
DEEPSPEED = "[2023-04-28 06:59:46,878] [INFO] "
FORMATTED = (
    "2025-07-24 10:00:01,123 - mindformers[mindformers/core/callback/callback.py:316] - INFO - { Epoch:[  1/  2], "
)

NUMBERS: list[tuple[str, dict[str, float]]] = [
    ("2024-01-15 10:30:15 INFO Epoch: 1, Loss: 2.345, Accuracy: 0.78", {"epoch": 1, "loss": 2.345, "accuracy": 0.78}),
    (
        "2024-01-15 10:30:25 INFO Step 100: loss=1.234, lr=1e-4, time=0.5s",
        {"step": 100, "loss": 1.234, "learning_rate": 1e-4, "step_time": 0.5},
    ),
    (
        "GPU 3: 70.5GB / 80.0GB",
        {"gpu_id": 3, "memory_used_gb": 70.5, "memory_total_gb": 80.0, "memory_utilization": 70.5 / 80},
    ),
    (
        "Epoch: 3, Batch: 10, Loss: 2.3451, LR: 1.00e-04, Throughput: 812.33 samples/s, Step Time: 0.039s",
        {"epoch": 3, "batch": 10, "loss": 2.3451, "learning_rate": 1e-4, "throughput": 812.33, "step_time": 0.039},
    ),
    ("Epoch 3 completed: Avg Loss: 2.1000, Time: 12.34s", {"epoch": 3, "loss": 2.1, "epoch_time": 12.34}),
    (
        MEGATRON.format(loss="1.825991E+00", nans=0),
        {
            "step": 43, "total_steps": 100, "consumed_samples": 5504, "step_time": 5.4449, "tflops_per_device": 239.8,
            "learning_rate": 8.6e-6, "global_batch_size": 128, "loss": 1.825991, "load_balancing_loss": 1.019746,
            "loss_scale": 1.0, "gradient_norm": 1.426, "gradient_zeros": 0.0, "skipped_steps": 2, "nan_steps": 0,
        },
    ),
    (
        " validation loss at iteration 1000 | lm loss value: 2.500000E+00 | lm loss PPL: 1.218249E+01 | ",
        {"step": 1000, "validation_loss": 2.5, "validation_perplexity": 12.18249},
    ),
    (
        DEEPSPEED + "[logging.py:96:log_dist] [Rank 0] step=510, skipped=8, lr=[1e-05], mom=[(0.9, 0.999)]",
        {"step": 510, "skipped_steps": 8, "learning_rate": 1e-5},
    ),
    (
        DEEPSPEED + "[timer.py:215:stop] epoch=0/micro_step=10/global_step=5, RunningAvgSamplesPerSec=12.3, "
        + "CurrSamplesPerSec=13.5, MemAllocated=1.2GB, MaxMemAllocated=3.5GB",
        {
            "epoch": 0, "step": 5, "throughput_mean": 12.3, "throughput": 13.5, "memory_used_gb": 1.2,
            "memory_peak_gb": 3.5,
        },
    ),
    (
        "steps: 10 loss: 2.3000 iter time (s): 0.512 samples/sec: 62.500",
        {"step": 10, "loss": 2.3, "step_time": 0.512, "throughput": 62.5},
    ),
    (
        DEEPSPEED + "[loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 2 Skipping step. "
        + "Attempted loss scale: 65536, reducing to 32768",
        {"overflow": 1, "loss_scale": 65536},
    ),
    (
        "{'loss': '2.314', 'grad_norm': '1.2', 'learning_rate': '1e-05', 'epoch': '0.1'}",
        {"loss": 2.314, "gradient_norm": 1.2, "learning_rate": 1e-5, "epoch": 0.1},
    ),
    ("{'eval_loss': 1.5, 'eval_runtime': 0.25, 'epoch': 1.0}", {"eval_loss": 1.5, "eval_runtime": 0.25, "epoch": 1.0}),
    (
        " 12%|█▏        | 320/2724 [11:49:53<88:41:03, 132.80s/it]",
        {"percent": 12, "step": 320, "total_steps": 2724, "steps_per_second": 1 / 132.8},
    ),
    (
        "Epoch 2:  50%|█████     | 32/64 [00:01<00:01, 25.61it/s, v_num=0, train_loss=2.300]",
        {"epoch": 2, "batch": 32, "total_batches": 64, "percent": 50, "steps_per_second": 25.61, "loss": 2.3},
    ),
    ("Downloading:  50%|█████     | 32/64 [00:01<00:01, 25.61it/s]", {"percent": 50, "steps_per_second": 25.61}),
    (
        FORMATTED + "step:[    2/ 1000], loss: 10.623, per_step_time: 1234ms, lr: 9.9e-06, overflow cond: False, "
        + "loss_scale: 1.0, global_norm: [1.33], train_throughput_per_npu: 159.545T",
        {
            "epoch": 1, "total_epochs": 2, "step": 2, "total_steps": 1000, "loss": 10.623, "step_time": 1.234,
            "learning_rate": 9.9e-6, "overflow": 0, "loss_scale": 1.0, "gradient_norm": 1.33,
            "tflops_per_device": 159.545,
        },
    ),
    (
        FORMATTED + "step:[    3/ 1000], loss:[ 2.345/ 2.400], per_step_time: 99ms, lr: 1e-05, overflow cond: True, "
        + "loss_scale: 1024",
        {
            "epoch": 1, "total_epochs": 2, "step": 3, "total_steps": 1000, "loss": 2.345, "loss_mean": 2.4,
            "step_time": 0.099, "learning_rate": 1e-5, "overflow": 1, "loss_scale": 1024,
        },
    ),
    ("   0.2% |█                       | 0.81037 samples/s/p  0:12:34 }", {"throughput_per_device": 0.81037}),
    ("epoch: 1 step: 10, loss is 2.345678", {"epoch": 1, "step": 10, "loss": 2.345678}),
    ("Train epoch time: 1234.567 ms, per step time: 12.345 ms", {"epoch_time": 1.234567, "step_time": 0.012345}),
    ("Step 7/20 loss: -1e-5", {"step": 7, "total_steps": 20, "loss": -1e-5}),
    ("loss: 1e999, lr: 0.1", {"learning_rate": 0.1}),
    ("the flossing: 3 days, stepson: 4, time=12", {}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), NUMBERS, ids=lambda value: str(value)[:40])
def test_numbers_of_each_format(line: str, expected: dict[str, float]) -> None:
    """All of them, under our names, in our units, and no others."""
    assert PARSER.parse_log_line(line)["metrics"] == pytest.approx(expected)


def test_numbers_that_are_none_are_numbers() -> None:
    """NaN and infinities are parsed as such, and 1e-5 is not 1."""
    metrics = PARSER.parse_log_line("Step 3: loss=nan, lr=1e-05, grad_norm=-inf")["metrics"]
    assert math.isnan(metrics["loss"])
    assert metrics["gradient_norm"] == -math.inf
    assert metrics["learning_rate"] == 1e-5


def test_whole_numbers_are_whole() -> None:
    """Steps are integers, and losses are not."""
    metrics = PARSER.parse_log_line("Epoch: 1, Loss: 2, Accuracy: 1")["metrics"]
    assert [type(metrics[name]) for name in ("epoch", "loss", "accuracy")] == [int, float, float]


SAMPLES = [
    ("2024-01-15 10:30:15 INFO Epoch: 1, Loss: 2.345, Accuracy: 0.78", "INFO", "training", []),
    ("2024-01-15 10:30:20 ERROR CUDA out of memory. Tried to allocate 2.00 GiB", "ERROR", "gpu", ["oom_error"]),
    ("2024-01-15 10:30:25 INFO Step 100: loss=1.234, lr=1e-4, time=0.5s", "INFO", "training", []),
    ("2024-01-15 10:30:30 WARNING Loss became nan at step 150", "ERROR", "training", ["nan_loss"]),
]


@pytest.mark.parametrize(("line", "level", "component", "kinds"), SAMPLES)
def test_the_four_usual_sample_lines(line: str, level: str, component: str, kinds: list[str]) -> None:
    """Each with all fields of the older parser; an anomaly makes the line an error."""
    record = PARSER.parse_log_line(line)
    assert {
        "timestamp", "raw_message", "level", "component", "metrics", "anomalies", "structured_data"
    } <= record.keys()  # fmt: skip
    assert (record["level"], record["component"], record["raw_message"]) == (level, component, line)
    assert [each["type"] for each in record["anomalies"]] == kinds
    assert record["timestamp"] == line[:10] + "T" + line[11:19]


def test_a_batch_leaves_blank_lines_out() -> None:
    """The others are parsed in their order."""
    records = PARSER.batch_parse_logs(["loss: 1", "", "  \n", "loss: 2"])
    assert [each["metrics"]["loss"] for each in records] == [1, 2]


LEVELS = [
    ("2024-01-15 10:30:15 INFO no ERROR was found", "INFO"),
    ("finished with no errors, 0 errors, error rate 0.1", "INFO"),
    ("[2023-04-28 06:59:46,878] [WARNING] [config.py:1] x", "WARNING"),
    ("2024-01-15 10:30:15,1 - root - CRITICAL - x", "ERROR"),
    ("W0321 02:07:08.408271 12 torch/x.py:1] y", "WARNING"),
    ("[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] z", "ERROR"),
    ('{"level": "warning", "message": "m"}', "WARNING"),
    ("ts=2024-01-15T10:30:15Z level=debug msg=x", "DEBUG"),
    ("slurmstepd: error: something", "ERROR"),
    ("node1:534:1763 [3] NCCL WARN Missing environment", "WARNING"),
    ("/a/b.py:12: UserWarning: The given buffer is not writable", "WARNING"),
    ("ValueError: bad value", "ERROR"),
    ("Traceback (most recent call last):", "ERROR"),
    ("NO_ERROR_AT_ALL INFORMATION", "INFO"),
    ("DEBUGGING WARNINGS", "INFO"),
    ("NOERROR: fine", "INFO"),
    ("NOERROR: WARNING x", "WARNING"),
]


@pytest.mark.parametrize(("line", "level"), LEVELS)
def test_the_level_is_a_word_of_its_own(line: str, level: str) -> None:
    """The first level in capitals counts; words in sentences do not."""
    assert PARSER.parse_log_line(line)["level"] == level


YEAR = datetime.now().year
TIMES = [
    ("2024-01-15 10:30:15,123 x", "2024-01-15T10:30:15.123"),
    ("[2024-01-15 10:30:15] x", "2024-01-15T10:30:15"),
    ("2024-01-15T10:30:15.123456Z x", "2024-01-15T10:30:15.123456+00:00"),
    ("2024-01-15T10:30:15+0800 x", "2024-01-15T10:30:15+08:00"),
    ("[ERROR] CORE(1,2,MainProcess):2024-01-15-10:30:15.123.456 [a.py:1] x", "2024-01-15T10:30:15.123"),
    ("  time      : 2024-01-15_10:30:15", "2024-01-15T10:30:15"),
    ("01/15/2024 10:30:15 - INFO - __main__ - x", "2024-01-15T10:30:15"),
    ("[Mon Jan 15 10:30:15 2024] NVRM: x", "2024-01-15T10:30:15"),
    ('{"@timestamp": "2024-01-15T10:30:15.000Z", "message": "m"}', "2024-01-15T10:30:15.000+00:00"),
    ('{"time": 1705314615, "message": "m"}', "2024-01-15T10:30:15+00:00"),
]


@pytest.mark.parametrize(("line", "time"), TIMES)
def test_times_of_each_format(line: str, time: str) -> None:
    """As ISO 8601, with an offset where the line states one."""
    record = PARSER.parse_log_line(line)
    assert (record["timestamp"], record["timestamp_source"]) == (time, "line")


@pytest.mark.parametrize(
    "form", ["{0:%b} {0.day:2d} {0:%H:%M:%S} host kernel: x", "[E{0.month}{0:%d %H:%M:%S}.5 a.cpp:1] x"]
)
def test_times_without_a_year_are_of_the_last_months(form: str) -> None:
    """In the format of syslog and of glog, today's and those of half a year ago."""
    for days in (0, 180):
        then = (datetime.now() - timedelta(days=days)).replace(microsecond=0)
        parsed = PARSER.parse_log_line(form.format(then))["timestamp"]
        assert datetime.fromisoformat(parsed).replace(microsecond=0) == then


def test_a_time_that_is_passed_comes_first() -> None:
    """Without one, and without one in the line, it is the clock's; 99 is no hour."""
    assert PARSER.parse_log_line("2024-01-15 10:30:15 x", "2020")["timestamp"] == "2020"
    record = PARSER.parse_log_line("2024-01-15 99:30:15 x")
    assert record["timestamp_source"] == "clock"
    assert abs(datetime.fromisoformat(record["timestamp"]) - datetime.now()) < timedelta(minutes=1)


RANKS = [
    ("[rank3]: ValueError: x", 3, None),
    ("[rank3]:[E321 02:07:08.4 a.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 3] x", 3, None),
    ("[2023-04-28 06:59:46,878] [INFO] [a.py:9:f] [Rank 7] step=510", 7, None),
    ("  rank      : 1 (local_rank: 0)", 1, 0),
    ("[default5]: hello", None, 5),
    ("[1,12]<stderr>: hello", 12, None),
    ("global_rank=4 RANK: 4", 4, None),
    ('{"labels": {"rank": 6}}', 6, None),
    ("using LoRA with rank=16", None, None),
    ("ranking 12 of 13, Frank 3", None, None),
]


@pytest.mark.parametrize(("line", "rank", "local"), RANKS)
def test_ranks(line: str, rank: int | None, local: int | None) -> None:
    """Of PyTorch, DeepSpeed, torchrun, mpirun and JSON; not that of a matrix."""
    record = PARSER.parse_log_line(line)
    assert (record["rank"], record.get("local_rank")) == (rank, local)


DATA: list[tuple[str, dict[str, Any]]] = [
    ('x {"a": {"b": [1, 2.5, null]}, "c": "d"} y', {"a": {"b": [1, 2.5, None]}, "c": "d"}),
    ('{not json} {"a": 1}', {"a": 1}),
    ('{"a": 1', {}),
    (
        "k=v n=12 f=1e-5 t=0.5s q=\"two words\" e='x y'",
        {"k": "v", "n": 12, "f": 1e-5, "t": "0.5s", "q": "two words", "e": "x y"},
    ),
    ('{"level": "INFO"} step=3', {"level": "INFO", "step": 3}),
]


@pytest.mark.parametrize(("line", "data"), DATA)
def test_json_and_pairs_within_a_line(line: str, data: dict[str, Any]) -> None:
    """JSON objects wherever they begin, and pairs with numbers as numbers."""
    assert PARSER.parse_log_line(line)["structured_data"] == data


def test_structured_logs_bring_their_metrics_level_and_component() -> None:
    """A line of JSON with the fields of the older structured log."""
    record = PARSER.parse_log_line(
        '{"timestamp": "2024-01-15T10:30:15.5", "level": "INFO", "component": "training", "message": "m", '
        '"metrics": {"epoch": 1, "batch": 2, "loss": 2.5, "learning_rate": 0.001, "throughput": 3.5, "step_time": 0.1}}'
    )
    assert record["metrics"] == {
        "epoch": 1, "batch": 2, "loss": 2.5, "learning_rate": 0.001, "throughput": 3.5, "step_time": 0.1
    }  # fmt: skip
    assert (record["component"], record["timestamp"]) == ("training", "2024-01-15T10:30:15.5")


def test_an_exception_is_named() -> None:
    """With its type and message."""
    record = PARSER.parse_log_line("2024-01-15 ERROR train: my.own.LoaderException: no shard 12")
    assert record["exception"] == {"type": "my.own.LoaderException", "message": "no shard 12"}


def test_a_long_line_is_cut() -> None:
    """To 64 KiB, with the number of bytes that were left out."""
    record = PARSER.parse_log_line("loss: 2.5 " + "x" * 100_000)
    assert record["cut"] == 100_010 - 65_536
    assert len(record["raw_message"]) == 65_536
    assert record["metrics"] == {"loss": 2.5}


def test_another_language_is_an_error() -> None:
    """With the names of those that there are."""
    with pytest.raises(ValueError, match="expected one of en, zh; got 'fr'"):
        TrainingLogParser("fr")


def test_what_is_no_text_is_an_error_with_the_remedy() -> None:
    """Of a line and of a batch of lines."""
    with pytest.raises(TypeError, match=r"^parse_log_line: expected a line of text, got bytes; decode bytes first$"):
        PARSER.parse_log_line(b"loss: 1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^batch_parse_logs: expected lines, got one text; pass text\.splitlines\(\)$"):
        PARSER.batch_parse_logs("loss: 1")
