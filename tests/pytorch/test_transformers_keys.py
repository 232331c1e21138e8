"""Every key of MindSpore Transformers' configuration changes what its callbacks record, by the table of the dialect."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from probe.core.transformers.configuration import merged, read_configuration
from probe.core.transformers.dialect import TRANSFORMERS
from probe.core.transformers.schema import StateSection
from probe.core.transformers.text_page import CONDITIONS
from tests.core.test_transformers_monitor import SAMPLE, scalars_of, texts_of
from tests.required import require

torch = require("torch")

from probe.pytorch import from_yaml  # noqa: E402 - only where torch is

Config = dict[str, Any]
ON: Config = {"monitor_config": {"monitor_on": True}, "tensorboard": {"tensorboard_dir": "curves"}}
LOSS: Config = {"callbacks": [{"type": "MFLossMonitor"}], "runner_config": {"epochs": 2}, **ON}
TIME = re.compile(r"(?<=per_step_time: )\d+|(?<=throughput_linearity: )\S+|(?<=\| )\S+(?= samples/s)|\d+:\d\d:\d\d")
"""Numbers of lines that no two runs share."""


def state(**keys: object) -> Config:
    return merged(ON, {"monitor_config": keys})


def events(**keys: object) -> Config:
    return merged(LOSS, {"tensorboard": keys})


def loss(**keys: object) -> Config:
    return LOSS | {"callbacks": [{"type": "MFLossMonitor", **keys}]}


def dynamic(train_state: Config, **keys: object) -> Config:
    return {"monitor": {"train_state": train_state, "tensorboard": {"output_dir": "curves", **keys}}}


def samples(runner: Config, **parallel: object) -> Config:
    return {**LOSS, "runner_config": runner, "parallel_config": parallel}


SPIKE: Config = state(check_for_global_norm=True) | {"with": {"grad_norm": 9.0}}
LOCAL: Config = {"local_loss": True}
NAN: Config = {"with": {"loss": float("nan")}}
BATCH: Config = samples({"batch_size": 3})
WAITS: Config = {"waits": True}
NORMS: Config = {"local_norm_format": ["tensorboard"]}
PAIRS: dict[str, tuple[Config, Config]] = {
    "check_for_nan_in_loss_and_grad": (ON | NAN, ON | NAN | {"check_for_nan_in_loss_and_grad": True}),
    "use_skip_data_by_global_norm": (
        state(global_norm_spike_count_threshold=2) | {"with": {"grad_norm": 9.0}},
        state(global_norm_spike_count_threshold=2) | {"use_skip_data_by_global_norm": True, "with": {"grad_norm": 9.0}},
    ),
    "output_dir": (SPIKE, SPIKE | {"output_dir": "elsewhere"}),
    "micro_batch_interleave_num": (
        samples({"batch_size": 3}), samples({"batch_size": 3}) | {"micro_batch_interleave_num": 2}
    ),
    "monitor": (ON, dynamic({"local_loss": True})),
    "monitor_config.monitor_on": (state(monitor_on=False, **NORMS), state(**NORMS)),
    "monitor_config.target": (state(**NORMS), state(**NORMS, target=["^0"])),
    "monitor_config.invert": (state(**NORMS, target=["^0"]), state(**NORMS, target=["^0"], invert=True)),
    "monitor_config.step_interval": (state(**NORMS), state(**NORMS, step_interval=2)),
    **{f"monitor_config.{key}": (ON, state(**{key: ["log", "tensorboard"]})) for key in StateSection().formats},
    "monitor_config.throughput_baseline": (BATCH, merged(BATCH, state(throughput_baseline=100))),
    "monitor_config.print_struct": (ON, state(print_struct=True)),
    "monitor_config.check_for_global_norm": (
        ON | {"with": {"grad_norm": 9.0}}, state(check_for_global_norm=True) | {"with": {"grad_norm": 9.0}}
    ),
    "monitor_config.global_norm_spike_threshold": (
        state(check_for_global_norm=True) | {"with": {"grad_norm": 9.0}},
        state(check_for_global_norm=True, global_norm_spike_threshold=10.0) | {"with": {"grad_norm": 9.0}},
    ),
    "monitor_config.global_norm_spike_count_threshold": (
        ON | {"use_skip_data_by_global_norm": True, "with": {"grad_norm": 9.0}},
        state(global_norm_spike_count_threshold=2) | {"use_skip_data_by_global_norm": True, "with": {"grad_norm": 9.0}},
    ),
    "tensorboard.tensorboard_dir": (events(tensorboard_dir=None), LOSS),
    "tensorboard.tensorboard_queue_size": (events() | WAITS, events(tensorboard_queue_size=1) | WAITS),
    "tensorboard.log_loss_scale_to_tensorboard": (events(), events(log_loss_scale_to_tensorboard=True)),
    "tensorboard.log_timers_to_tensorboard": (events(), events(log_timers_to_tensorboard=True)),
    "callbacks.type": (ON, LOSS),
    "callbacks.per_print_times": (loss(), loss(per_print_times=2)),
    "callbacks.micro_batch_num": (loss() | {"pipelined": True}, loss(micro_batch_num=2) | {"pipelined": True}),
    "callbacks.micro_batch_interleave_num": (loss(), loss(micro_batch_interleave_num=2)),
    "callbacks.gradient_accumulation_steps": (loss(), loss(gradient_accumulation_steps=2)),
    "callbacks.origin_epochs": (loss(), loss(origin_epochs=7)),
    "callbacks.dataset_size": (loss(), loss(dataset_size=9)),
    "callbacks.initial_step": (loss(), loss(initial_step=5)),
    "callbacks.global_batch_size": (loss(), loss(global_batch_size=5)),
    "callbacks.calculate_per_token_loss": (
        loss(gradient_accumulation_steps=2), loss(gradient_accumulation_steps=2, calculate_per_token_loss=True)
    ),
    "callbacks.learning_rate": (loss(), loss(learning_rate=0.5)),
    "monitor.train_state": (dynamic({}), dynamic({"local_loss": True})),
    "monitor.tensorboard": ({"monitor": {"train_state": {"local_loss": True}}}, dynamic({"local_loss": True})),
    **{f"monitor.train_state.{key}": (dynamic({}), dynamic({key: True}))
       for key in ("local_norm", "local_loss", "device_norm", "device_loss")},
    "monitor.tensorboard.output_dir": (
        {"monitor": {"train_state": {"local_loss": True}}}, dynamic({"local_loss": True})
    ),
    "monitor.tensorboard.log_interval": (dynamic({"local_norm": True}), dynamic({"local_norm": True}, log_interval=2)),
    "monitor.tensorboard.queue_size": (dynamic(LOCAL) | WAITS, dynamic(LOCAL, queue_size=1) | WAITS),
    "monitor.tensorboard.tensorboard_dir": (
        {"monitor": {"train_state": {"local_loss": True}}},
        {"monitor": {"train_state": {"local_loss": True}, "tensorboard": {"tensorboard_dir": "curves"}}},
    ),
    "monitor.tensorboard.tensorboard_log_interval": (
        dynamic({"local_norm": True}), dynamic({"local_norm": True}, tensorboard_log_interval=2)
    ),
    "monitor.tensorboard.tensorboard_queue_size": (
        dynamic(LOCAL) | WAITS, dynamic(LOCAL, tensorboard_queue_size=1) | WAITS
    ),
    "runner_config.epochs": (loss(), loss() | {"runner_config": {"epochs": 7}}),
    "runner_config.origin_epochs": (loss(), loss() | {"runner_config": {"epochs": 2, "origin_epochs": 7}}),
    "runner_config.sink_mode": (loss(), loss() | {"runner_config": {"epochs": 2, "sink_mode": False}}),
    "runner_config.global_batch_size": (samples({}), samples({"global_batch_size": 12})),
    "runner_config.batch_size": (samples({}), samples({"batch_size": 3})),
    "runner_config.gradient_accumulation_steps": (
        samples({"batch_size": 3}), samples({"batch_size": 3, "gradient_accumulation_steps": 2})
    ),
    "parallel_config.data_parallel": (samples({"batch_size": 3}), samples({"batch_size": 3}, data_parallel=2)),
    "parallel_config.micro_batch_num": (
        samples({"batch_size": 3}, pipeline_stage=2), samples({"batch_size": 3}, pipeline_stage=2, micro_batch_num=3)
    ),
    "parallel_config.pipeline_stage": (
        samples({"batch_size": 3}, micro_batch_num=3), samples({"batch_size": 3}, micro_batch_num=3, pipeline_stage=2)
    ),
}  # fmt: skip
"""Two configurations for each key that differ in it alone, by its path; ``with`` are numbers of each
step, ``pipelined`` stands for several pipeline stages, with ``waits`` the
result says whether all numbers of the steps still wait."""
TAGS = [key.name for key in TRANSFORMERS.keys if key.effect == "A tag of the TEXT page."]
DUMPS = "monitor_config.dump_path"
"""Key of MindSpore's graph mode alone, which tests/mindspore/test_transformers_callbacks.py trains in."""


class Lines(logging.Handler):
    """Lines of the callbacks without numbers that no two runs share."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(TIME.sub("", record.getMessage()))


def curves_of(folder: Path) -> dict[str, object]:
    """Curves by tag; of times and rates the steps alone."""
    timed = ("time", "through", "day")
    curves = scalars_of(folder).items()
    return {tag: [at for at, _ in points] if any(word in tag for word in timed) else points for tag, points in curves}


def recorded(config: Config, folder: Path) -> dict[str, object]:
    """Log lines, curves and how training ended, of three steps on PyTorch."""
    values = {key: value for key, value in config.items() if key not in ("with", "pipelined", "waits")}
    step: Config = {"loss": 2.0, "grad_norm": 1.0, "loss_scale": 8.0, **config.get("with", {})}
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    callbacks, ended, waiting = from_yaml(values, dataset_size=4).attach(model, optimizer), "", False
    if "pipelined" in config:
        callbacks[0].pipelined = True
    try:
        for _ in range(3):
            callbacks.step_begin()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            callbacks.step_end(**step)
        for callback in callbacks:
            callback._values.flush(60)  # flush() would write what waits
        waiting = "waits" in config and not any(
            points for path in folder.rglob("events*") for points in scalars_of(path.parent).values()
        )
    except (ValueError, RuntimeError, SystemExit) as error:
        ended = f"{type(error).__name__}: {str(error).partition(';')[0]}"
    callbacks.close()
    curves = {str(path.parent): curves_of(path.parent) for path in folder.rglob("events*")}
    return {"curves": curves, "ended": ended, "waiting": waiting, "files": sorted(map(str, folder.rglob("*.json")))}


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Lines]:
    """The lines of a test, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "monitor_output"))
    logger, handler = logging.getLogger("probe.transformers"), Lines()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def outcome(config: Config, lines: Lines, root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """What a run in a folder of its own records, and its lines."""
    (root / name).mkdir()
    monkeypatch.chdir(root / name)
    lines.lines.clear()
    return recorded(config, Path()), sorted(lines.lines)


@pytest.mark.parametrize("path", sorted({key.path for key in TRANSFORMERS.keys if key.supported} - {*TAGS, DUMPS}))
def test_a_key_changes_what_is_recorded(
    path: str, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainings that differ in the key alone have other lines, curves or ends; the same one twice has the same."""
    without, with_key = PAIRS[path]
    results = [
        outcome(config, lines, tmp_path, str(n), monkeypatch) for n, config in enumerate((without, with_key, with_key))
    ]
    assert results[0] != results[1] == results[2]


def test_every_other_key_at_the_top_is_on_the_text_page(
    lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its value, as TensorBoard reads it."""
    read = ("monitor_config", "tensorboard", "callbacks", "runner_config", "parallel_config")
    switches = dict.fromkeys(("resume_training", "load_checkpoint", "profile", "do_eval", "lr_scale"), True)
    switches |= {"auto_trans_ckpt": True}
    values = {name: f"value of {name}" for name in TAGS if name not in (*read, *switches, "ignore_data_skip")}
    outcome(LOSS | switches | values, lines, tmp_path, "page", monkeypatch)
    page = texts_of(Path("curves/rank_0"))
    assert {name: page[name] for name in values} == values
    assert set(page) >= {*TAGS, *CONDITIONS} - {"parallel_config"}


@pytest.mark.parametrize("key", [key for key in TRANSFORMERS.keys if not key.supported], ids=lambda key: key.path)
def test_a_key_without_an_effect_is_named(key: Any, caplog: pytest.LogCaptureFixture) -> None:
    """With what does the same here, in its section."""
    value = {"stable_rank_config": {"format": "log"}}.get(key.name, 1)
    entry = {"type": "MFLossMonitor", key.name: value}
    section = {"callbacks": [entry]} if key.section == "callbacks" else {key.section: {key.name: value}}
    read_configuration(merged(ON, section), environ={})
    assert f"{key.name} is not supported; here, {key.effect}" in caplog.text


def test_every_key_of_the_documented_sample_is_in_the_table() -> None:
    """The page's YAML, section by section."""
    sample = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))
    sampled = {*sample, *(f"callbacks.{name}" for name in sample["callbacks"][0])}
    sampled |= {f"{section}.{name}" for section in ("monitor_config", "tensorboard") for name in sample[section]}
    assert sampled <= {key.path for key in TRANSFORMERS.keys}
