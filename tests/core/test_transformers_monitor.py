"""MindSpore Transformers' configuration, log lines, tags and files, without a framework of training."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from probe.core.naming import MODEL_TFLOPS
from probe.core.run_state.rules import RunStep
from probe.core.transformers.event_writer import EventWriter, Scalar, event_writer
from probe.core.transformers.global_norm import NormCheck, NormRecord
from probe.core.transformers.log_lines import LossLine, Position, loss_lines, positional, state_line
from probe.core.transformers.schema import LossSection, StateSection, TensorboardSection
from probe.core.transformers_monitor import (
    CONDITIONS,
    NAMES,
    LossMonitoring,
    StateMonitoring,
    TransformersConfig,
    TransformersConfigError,
    make_callbacks,
    monitor_settings,
    read_configuration,
    texts,
)
from tests.matrix.numpy_framework import Tensor, TrainerMon
from tests.required import require

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "resources" / "mindspore_transformers.yaml"
RECORDED = json.loads((ROOT / "tests" / "mindspore" / "mindformers_1_9_0.json").read_text(encoding="utf-8"))
BOTH = ("tensorboard", "log")
EVENTS = {"tensorboard": {"tensorboard_dir": "curves"}}


class Loss(LossMonitoring):
    """``MFLossMonitor`` of the toy framework."""

    framework = TrainerMon.framework


class State(StateMonitoring):
    """``TrainingStateMonitor`` of the toy framework."""

    framework = TrainerMon.framework
    monitor_class = TrainerMon


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The lines that callbacks log."""
    kept: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.getMessage())

    handler, logger = Keep(), logging.getLogger("probe.transformers")
    logger.addHandler(handler)
    yield kept
    logger.removeHandler(handler)


def state_of(**section: Any) -> StateSection:
    """The section ``monitor_config`` as read, with event files."""
    return read_configuration({"monitor_config": {"monitor_on": True} | section} | EVENTS, environ={}).state


def scalars_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Curves as TensorBoard reads them: steps and values by tag."""
    reading = require("tensorboard.backend.event_processing.event_accumulator")
    found = reading.EventAccumulator(str(folder), {"scalars": 0, "tensors": 0}).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def texts_of(folder: Path) -> dict[str, str]:
    """The TEXT page as TensorBoard reads it: text by tag."""
    reading = require("tensorboard.backend.event_processing.event_accumulator")
    found = reading.EventAccumulator(str(folder), {"scalars": 0, "tensors": 0}).Reload()
    return {
        tag.removesuffix("/text_summary"): found.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in found.Tags()["tensors"]
    }


# Keys.


def test_the_sample_is_read_as_it_stands() -> None:
    """Each key of the documented YAML has its value, and both callbacks are asked for."""
    config = read_configuration(SAMPLE, environ={})
    assert config.state == StateSection(
        monitor_on=True,
        dump_path="./dump",
        target=("layers.0", "layers.1"),
        step_interval=1,
        local_loss_format=BOTH,
        local_norm_format=BOTH,
        device_local_norm_format=BOTH,
    )
    assert config.loss == LossSection(per_print_times=1)
    assert config.tensorboard == TensorboardSection(
        tensorboard_dir="worker/tensorboard",
        tensorboard_queue_size=10,
        log_loss_scale_to_tensorboard=True,
        log_timers_to_tensorboard=True,
    )
    assert config.watches_state
    assert config.output_directory == "./output"


DEFAULTS: dict[str, Any] = {
    "dump_path": "./dump", "target": (".*",), "invert": False, "step_interval": 1, "local_loss_format": (),
    "local_norm_format": (), "device_local_norm_format": (), "device_local_loss_format": (),
    "optimizer_state_format": (), "weight_state_format": (), "throughput_baseline": None, "print_struct": False,
    "check_for_global_norm": False, "global_norm_spike_threshold": 3.0, "global_norm_spike_count_threshold": 10,
}  # fmt: skip


@pytest.mark.parametrize("key", DEFAULTS)
def test_a_key_that_is_missing_or_null_has_its_default(key: str) -> None:
    """Every key of the section has a default, which null stands for, too."""
    assert set(DEFAULTS) | {"monitor_on"} == set(StateSection.model_fields)
    assert getattr(state_of(), key) == getattr(state_of(**{key: None}), key) == DEFAULTS[key]


def test_the_section_of_event_files_has_defaults() -> None:
    """Ten numbers wait; the loss scale and the timers are left out."""
    assert read_configuration(EVENTS, environ={}).tensorboard == TensorboardSection(
        tensorboard_dir="curves",
        tensorboard_queue_size=10,
        log_loss_scale_to_tensorboard=False,
        log_timers_to_tensorboard=False,
    )


def test_a_monitor_that_is_off_reads_no_other_key() -> None:
    """Without monitor_on, which is off by default, the rest of the section has no effect, right or wrong."""
    config = read_configuration({"monitor_config": {"target": 7, "local_norm_format": "disk"}}, environ={})
    assert config.state == StateSection()
    assert not config.watches_state
    assert make_callbacks({"monitor_config": {"monitor_on": False, "weight_state_format": "log"}}, Loss, State) == []


@pytest.mark.parametrize(
    ("value", "places"),
    [("log", ("log",)), ("tensorboard", ("tensorboard",)), (["log", "tensorboard"], BOTH), (None, ()), ([], ())],
)
def test_a_format_names_one_place_or_several(value: object, places: tuple[str, ...]) -> None:
    """Text, list and null are read."""
    assert state_of(weight_state_format=value).weight_state_format == places


BAD: list[tuple[str, object, str]] = [
    ("monitor_on", "yes", "expected true or false"),
    ("target", "layers", "expected a list of texts"),
    ("target", [1], "expected a list of texts"),
    ("target", ["("], "each a regular expression"),
    ("invert", "no", "expected true or false"),
    ("print_struct", 1, "expected true or false"),
    ("step_interval", 1.5, "expected an integer >= 1"),
    ("step_interval", "2", "expected an integer >= 1"),
    ("local_norm_format", "disk", 'expected "log", "tensorboard"'),
    ("local_loss_format", ["log", "disk"], 'expected "log", "tensorboard"'),
    ("device_local_norm_format", 3, 'expected "log", "tensorboard"'),
    ("optimizer_state_format", {"log": 1}, 'expected "log", "tensorboard"'),
    ("throughput_baseline", 0, "expected a positive number or null"),
    ("throughput_baseline", -1.0, "expected a positive number or null"),
    ("throughput_baseline", True, "expected a positive number or null"),
    ("throughput_baseline", math.nan, "expected a positive number or null"),
    ("dump_path", 3, "expected a string"),
    ("check_for_global_norm", "on", "expected true or false"),
    ("global_norm_spike_threshold", "3", "expected a number"),
    ("global_norm_spike_count_threshold", 0, "expected an integer >= 1"),
    ("local_norm_fromat", "log", "did you mean local_norm_format?"),
]


@pytest.mark.parametrize(("key", "value", "expected"), BAD, ids=[f"{key}={value}" for key, value, _ in BAD])
def test_a_bad_value_is_an_error_before_training(key: str, value: object, expected: str) -> None:
    """The message has the path of the key and the expected value."""
    section = {"monitor_on": True} | {key: value}
    with pytest.raises(TransformersConfigError) as raised:
        read_configuration({"monitor_config": section}, environ={})
    (problem,) = raised.value.problems
    assert problem.startswith(f"monitor_config.{key}")
    assert expected in problem


def test_all_problems_are_in_one_error_with_their_lines(tmp_path: Path) -> None:
    """One error names every wrong value of a file, each with its line."""
    path = tmp_path / "train.yaml"
    path.write_text(
        "monitor_config:\n  monitor_on: True\n  target: layers\n  invert: 1\n  throughput_baseline: 0\n"
        "tensorboard:\n  tensorboard_dir: 3\n  colour: red\n"
        "callbacks:\n  - type: MFLossMonitor\n    per_print_times: 0\n  - MFLossMonitor\n",
        encoding="utf-8",
    )
    with pytest.raises(ValueError, match="7 problems") as raised:
        read_configuration(path, environ={})
    assert isinstance(raised.value, TransformersConfigError)
    places = [re.sub(r": expected.*|: unknown.*", "", line) for line in raised.value.problems]
    assert sorted(places) == sorted(
        f"{path}:{line}: {key}"
        for line, key in [
            (3, "monitor_config.target"),
            (4, "monitor_config.invert"),
            (5, "monitor_config.throughput_baseline"),
            (7, "tensorboard.tensorboard_dir"),
            (8, "tensorboard.colour"),
            (11, "callbacks[0].per_print_times"),
            (12, "callbacks[1]"),
        ]
    )
    assert "coming_from.md" in str(raised.value)


@pytest.mark.parametrize(
    ("config", "read", "words"),
    [
        ({"monitor_config": {"monitor_on": True, "step_interval": 0}}, lambda c: c.state.step_interval == 1, "got 0"),
        ({"monitor_config": {"monitor_on": True, "step_interval": -3}}, lambda c: c.state.step_interval == 1, "got -3"),
        (
            {"tensorboard": {"tensorboard_dir": "a", "tensorboard_queue_size": 0}},
            lambda c: c.tensorboard.tensorboard_queue_size == 10,
            "10 is used",
        ),
    ],
)
def test_a_count_below_one_is_a_warning(config: Any, read: Any, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """Such an interval becomes 1, such a queue 10."""
    assert read(read_configuration(config, environ={}))
    assert [words in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("section", "key", "value", "instead"),
    [
        ("monitor_config", "stable_rank_config", {"format": "log"}, "l2_targets.linear_hook"),
        ("monitor_config", "health_checkpoint", {"global_norm_spike_threshold": 1.0}, "check_for_global_norm"),
        ("monitor_config", "moe_monitor", True, "moe_router_logit_hook"),
        ("monitor_config", "max_attention_logit_format", "log", "attention_hook"),
        ("tensorboard", "log_expert_load_to_tensorboard", True, "moe_router_logit_hook"),
    ],
)
def test_a_key_that_is_not_supported_is_named(
    section: str, key: str, value: object, instead: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning says which feature does the same; switched off, the key is passed over."""
    config = {"monitor_config": {"monitor_on": True}, "tensorboard": {"tensorboard_dir": "a"}}
    read_configuration(config | {section: config[section] | {key: None}}, environ={})
    assert caplog.records == []
    read_configuration(config | {section: config[section] | {key: value}}, environ={})
    assert f"{section}.{key} is not supported" in caplog.text
    assert instead in caplog.text


ON = {"monitor_config": {"monitor_on": True}, "tensorboard": {"tensorboard_dir": "curves"}}
PLACED = [
    *(("monitor_config", key, ["log"]) for key in StateSection().formats),
    ("monitor_config", "throughput_baseline", 100),
    ("monitor_config", "print_struct", True),
    ("monitor_config", "check_for_global_norm", True),
    ("monitor_config", "global_norm_spike_threshold", 2.0),
    ("monitor_config", "global_norm_spike_count_threshold", 4),
    ("tensorboard", "tensorboard_queue_size", 20),
    ("tensorboard", "log_loss_scale_to_tensorboard", True),
    ("tensorboard", "log_timers_to_tensorboard", True),
    ("", "use_skip_data_by_global_norm", True),
    ("", "check_for_nan_in_loss_and_grad", True),
]
"""Keys of the tool's pages with their section, and a value that is not the default."""


def effective(config: TransformersConfig) -> tuple[object, ...]:
    """What the callbacks get."""
    return config.state, config.tensorboard, config.skips_spikes, config.checks_nan


@pytest.mark.parametrize(("section", "key", "value"), PLACED)
def test_a_documented_key_has_an_effect_in_its_section_and_is_named_elsewhere(
    section: str, key: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    """In its section it changes what the callbacks get; in another, a warning says where it belongs."""
    plain = effective(read_configuration(ON, environ={}))
    placed = ON | ({section: ON[section] | {key: value}} if section else {key: value})
    assert effective(read_configuration(placed, environ={})) != plain
    assert caplog.records == []
    assert effective(read_configuration(ON | {"runner_wrapper": {key: value}}, environ={})) == plain
    where = f"in the section {section}" if section else "at the top of the file"
    assert f"runner_wrapper.{key} has no effect: it belongs {where}" in caplog.text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"step_interval": 3}, "step_interval has no effect: it belongs in the section monitor_config"),
        ({"per_print_times": 3}, "per_print_times has no effect: it belongs in the section callbacks"),
        ({"device_norm": True}, "device_norm has no effect: it belongs in the section monitor.train_state"),
        (
            {"trainer": {"monitor_config": {}}},
            "trainer.monitor_config has no effect: it belongs at the top of the file",
        ),
        (
            {"monitor_config": {"tensorboard_dir": "a"}},
            "monitor_config.tensorboard_dir has no effect: it belongs in the section tensorboard",
        ),
        (
            {"callbacks": [{"type": "TrainingStateMonitor", "target": ["a"]}]},
            "callbacks[0].target has no effect: it belongs in the section monitor_config",
        ),
        (
            {"callbacks": [{"type": "LossCallback", "per_print_times": 3}]},
            "callbacks[0].per_print_times has no effect: of a LossCallback, log_interval is read",
        ),
        (
            {"tensorboard": {"log_timers_to_tensorboard": True}},
            "tensorboard has no effect without tensorboard.tensorbo",
        ),
        ({"model": {"seed": 1, "tensorboard": {}, "callbacks": [], "target": 1, "type": "a"}}, ""),
    ],
)
def test_a_key_that_is_not_read_where_it_stands_is_named(
    values: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At any depth; names that sections of the program have for things of their own are passed over."""
    read_configuration(values, environ={})
    assert words in caplog.text
    assert bool(words) == bool(caplog.records)


def test_a_key_of_another_checked_section_is_an_error_with_its_place() -> None:
    """Where unknown keys are errors, a known one is an error that says where it belongs."""
    with pytest.raises(
        TransformersConfigError, match=r"monitor_config\.tensorboard_dir: unknown key; it belongs in the"
    ):
        state_of(tensorboard_dir="a")


def test_a_key_that_needs_the_monitor_is_named_without_it(caplog: pytest.LogCaptureFixture) -> None:
    """Skipping of spikes is counted by the monitor of states, which is not added unless it is switched on."""
    read_configuration({"use_skip_data_by_global_norm": True}, environ={})
    assert "use_skip_data_by_global_norm has no effect without monitor_config.monitor_on" in caplog.text


def test_skipped_spikes_end_training_as_the_page_says(tmp_path: Path) -> None:
    """The page's sample: consecutive spikes up to the threshold are left to the training cell, then training ends."""
    sample = {
        "use_skip_data_by_global_norm": True,
        "output_dir": str(tmp_path),
        "monitor_config": {
            "monitor_on": True,
            "check_for_global_norm": False,
            "global_norm_spike_threshold": 3.0,
            "global_norm_spike_count_threshold": 2,
        },
    }
    config = read_configuration(sample, environ={})
    state = State(config=config.state, use_skip_data_by_global_norm=config.skips_spikes)

    def steps() -> None:
        for _ in range(4):
            state.step_begin()
            state.step_end(loss=1.0, grad_norm=5.0)

    with pytest.raises(ValueError, match="global"):
        steps()
    state.close()


def test_without_event_files_the_log_takes_their_place(caplog: pytest.LogCaptureFixture) -> None:
    """`tensorboard` becomes `log`, with one warning that names the keys."""
    section = {"monitor_on": True, "local_norm_format": ["tensorboard"], "weight_state_format": "log"}
    state = read_configuration({"monitor_config": section}, environ={}).state
    assert state.local_norm_format == state.weight_state_format == ("log",)
    assert ["local_norm_format" in record.message for record in caplog.records] == [True]
    assert "weight_state_format" not in caplog.text


def test_the_environment_variable_names_the_directory() -> None:
    """MA_SUMMARY_LOG_DIR makes a section with defaults, and stands before the directory of the file."""
    environ = {"MA_SUMMARY_LOG_DIR": "/summaries"}
    section = {"monitor_on": True, "local_norm_format": "tensorboard"}
    made = read_configuration({"monitor_config": section}, environ=environ)
    assert made.tensorboard == TensorboardSection(tensorboard_dir="/summaries")
    assert made.state.local_norm_format == ("tensorboard",)
    both = read_configuration({"tensorboard": {"tensorboard_dir": "a", "tensorboard_queue_size": 3}}, environ=environ)
    assert both.tensorboard == TensorboardSection(tensorboard_dir="/summaries", tensorboard_queue_size=3)


def test_the_dynamic_graphs_section_is_read() -> None:
    """`monitor` with train_state and tensorboard means the same numbers."""
    monitor = {
        "train_state": {"local_norm": True, "device_loss": True},
        "tensorboard": {"output_dir": "curves", "log_interval": 5, "queue_size": 7},
    }
    config = read_configuration({"monitor": monitor}, environ={})
    assert config.state == StateSection(
        monitor_on=True, step_interval=5, local_norm_format=BOTH, device_local_loss_format=BOTH
    )
    assert config.tensorboard is not None
    assert (config.tensorboard.tensorboard_dir, config.tensorboard.tensorboard_queue_size) == ("curves", 7)
    alone = read_configuration({"monitor": {"train_state": {"device_norm": True, "local_loss": True}}}, environ={})
    assert (alone.state.device_local_norm_format, alone.state.local_loss_format) == (("log",), ("log",))
    assert not read_configuration({"monitor": {"train_state": {"local_norm": False}}}, environ={}).watches_state
    with pytest.raises(TransformersConfigError, match=r"monitor.train_state.local_nrom: unknown key; did you mean"):
        read_configuration({"monitor": {"train_state": {"local_nrom": True}}}, environ={})
    with pytest.raises(TransformersConfigError, match="expected one of monitor and monitor_config"):
        read_configuration({"monitor": monitor, "monitor_config": {"monitor_on": True}}, environ={})


def test_arguments_stand_before_the_file() -> None:
    """Arguments replace single keys of sections; the others stay."""
    arguments = {"seed": 3, "monitor_config": {"step_interval": 4}, "runner_config": {"epochs": 2}}
    config = read_configuration(SAMPLE, arguments, environ={})
    assert (config.values["seed"], config.state.step_interval, config.epochs) == (3, 4, 2)
    assert config.state.target == ("layers.0", "layers.1")


@pytest.mark.parametrize(
    ("values", "batch"),
    [
        ({}, 0),
        ({"runner_config": {"global_batch_size": 512, "batch_size": 4}}, 512),
        ({"runner_config": {"batch_size": 4}}, 4),
        ({"runner_config": {"batch_size": 4}, "parallel_config": {"data_parallel": 8, "micro_batch_num": 3}}, 32),
        (
            {
                "runner_config": {"batch_size": 4, "gradient_accumulation_steps": 2},
                "parallel_config": {"data_parallel": 8, "micro_batch_num": 3, "pipeline_stage": 2},
                "micro_batch_interleave_num": 2,
            },
            4 * 2 * 8 * 3 * 2,
        ),
    ],
)
def test_the_number_of_samples_comes_from_the_configuration(values: Any, batch: int) -> None:
    """The product of the batch and its copies, unless the global number is there."""
    assert read_configuration(values, environ={}).global_batch_size == batch


def test_the_listed_callback_has_its_arguments(caplog: pytest.LogCaptureFixture) -> None:
    """`per_print_times` is read; callbacks of other types are left to the program, and named."""
    caplog.set_level(logging.INFO, "probe.transformers")
    listed = [{"type": "CheckpointMonitor"}, {"type": "MFLossMonitor", "per_print_times": 7}]
    loss, *others = make_callbacks({"callbacks": listed, "runner_config": {"epochs": 3, "batch_size": 2}}, Loss, State)
    assert others == []
    assert (loss.section.per_print_times, loss.section.global_batch_size, loss.counter.epochs) == (7, 2, 3)
    assert "CheckpointMonitor" in caplog.text
    assert "did you mean" not in caplog.text


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("MFLosMonitor", "MFLossMonitor"),
        ("mflossmonitor", "MFLossMonitor"),
        ("TrainStateMonitor", "TrainingStateMonitor"),
    ],
)
def test_a_misspelt_callback_is_a_warning(written: str, meant: str, caplog: pytest.LogCaptureFixture) -> None:
    """It names the entry and the type that was probably meant; a callback of the program may be called so."""
    assert make_callbacks({"callbacks": [{"type": "CheckpointMonitor"}, {"type": written}]}, Loss, State) == []
    assert f"callbacks[1].type: {written} is left to the program; did you mean {meant}?" in caplog.text


def test_nan_checks_alone_add_the_state_monitor() -> None:
    """`check_for_nan_in_loss_and_grad` needs no monitor_config."""
    (state,) = make_callbacks({"check_for_nan_in_loss_and_grad": True}, Loss, State)
    assert isinstance(state, State)


@pytest.mark.parametrize(
    ("section", "chosen"),
    [
        ({}, {}),
        ({"target": [r"layers\.[01]"]}, {"layers.0.w": {}, "layers.1.w": {}}),
        ({"target": ["head", r"\.0\."]}, {"head.w": {}, "layers.0.w": {}}),
        ({"target": [r"^layers"], "invert": True}, {"head.w": {}}),
        ({"target": ["head"], "device_local_norm_format": "log"}, {}),
    ],
)
def test_the_monitor_collects_what_is_asked_for(section: Mapping[str, Any], chosen: Any) -> None:
    """The mapping to a TrainerMon configuration: gradients at multiples of the interval, of the chosen parameters."""
    names = ["layers.0.w", "layers.1.w", "layers.2.w", "head.w"]
    settings = monitor_settings(state_of(local_norm_format="log", step_interval=3, **section), names)
    assert settings["targets"] == chosen
    assert (settings["wg_distribution"], settings["start_step"], settings["step_interval"]) == (True, 2, 3)
    assert TrainerMon(settings).settings.wg_distribution


def test_without_gradients_there_is_no_monitor() -> None:
    """Weights, optimizer state and the loss need none, nor does a target that matches nothing."""
    assert monitor_settings(state_of(weight_state_format="log", optimizer_state_format="log"), ["w"]) == {}
    assert monitor_settings(state_of(local_norm_format="log", target=["none"]), ["w"]) == {}


# TEXT page.


def documented() -> str:
    """The names of the configuration as the user-facing page lists them."""
    return (
        "seed output_dir run_mode use_parallel resume_training ignore_data_skip data_skip_steps load_checkpoint "
        "load_ckpt_format auto_trans_ckpt transform_process_num src_strategy_path_or_dir load_ckpt_async "
        "only_save_strategy profile profile_communication profile_level profile_memory profile_start_step "
        "profile_stop_step profile_rank_ids profile_pipeline init_start_profile layer_decay layer_scale lr_scale "
        "lr_scale_factor micro_batch_interleave_num remote_save_url callbacks context data_size device_num do_eval "
        "eval_callbacks eval_step_interval eval_epoch_interval eval_dataset eval_dataset_task lr_schedule metric model "
        "moe_config optimizer parallel_config parallel recompute_config remove_redundancy runner_config runner_wrapper "
        "monitor_config tensorboard train_dataset_task train_dataset trainer swap_config"
    )


def test_the_page_has_56_names_of_which_21_have_a_condition() -> None:
    """Names and their number are those of the documentation."""
    assert list(NAMES) == documented().split()
    assert (len(NAMES), len(CONDITIONS)) == (56, 21)


OPENED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((name, {"profile": True}, {"profile": False}) for name in NAMES if re.match("profile_|init_start", name)),
    *((name, {"do_eval": True}, {"do_eval": False}) for name in NAMES if name.startswith("eval_")),
    *(
        (name, {"load_checkpoint": "a.ckpt"}, {"load_checkpoint": ""})
        for name in ("load_ckpt_format", "auto_trans_ckpt", "load_ckpt_async")
    ),
    *(
        (name, {"load_checkpoint": "a", "auto_trans_ckpt": True}, {"load_checkpoint": "a", "auto_trans_ckpt": False})
        for name in ("transform_process_num", "src_strategy_path_or_dir")
    ),
    ("lr_scale_factor", {"lr_scale": True}, {"lr_scale": False}),
    ("ignore_data_skip", {"resume_training": True}, {"resume_training": False}),
    ("data_skip_steps", {"resume_training": True}, {"resume_training": True, "ignore_data_skip": True}),
]


@pytest.mark.parametrize(("name", "values", "without"), OPENED, ids=[name for name, *_ in OPENED])
def test_a_name_with_a_condition_is_written_under_it_alone(name: str, values: Any, without: Any) -> None:
    """Each of the 21 is there if its condition holds, and missing else."""
    assert {name for name, *_ in OPENED} == set(CONDITIONS)
    assert name in dict(texts(values))
    assert name not in dict(texts(without))


def test_texts_are_those_of_arguments_file_and_defaults() -> None:
    """An argument stands before the file, the file before the default; sections are whole; other keys follow."""
    values = read_configuration(SAMPLE, {"seed": 5, "my_key": {"a": 1}}, environ={}).values
    page = dict(texts(values))
    assert (page["seed"], page["output_dir"], page["use_parallel"], page["my_key"]) == (
        "5", "./output", "False", "{'a': 1}"
    )  # fmt: skip
    assert yaml.safe_load(page["monitor_config"])["check_for_global_norm"] is False
    assert len(page) == 56 - 21 + 1


def test_secrets_are_hidden_on_the_page() -> None:
    """Passwords and tokens that a configuration holds are not written; ids of tokens are."""
    values = {"auth_token": "hunter2", "model": {"model_config": {"pad_token_id": 7, "api_key": "hunter2"}}}
    page = dict(texts(values))
    assert "hunter2" not in str(page)
    assert "'pad_token_id': 7" in page["model"]


# Log lines.

NUMBERS = re.compile(
    r"\{ Epoch:\[ *(\d+)/ *(\d+)\], step:\[ *(\d+)/ *(\d+)\], loss:(?: (\S+)|\[(\S+)/(\S+)\]), per_step_time: (\d+)ms, "
    r"lr: (\S+), overflow cond: (True|False), loss_scale: (\S+), global_norm: \[(\S+)\]"
)


@pytest.mark.parametrize("line", [line for line in RECORDED["lines"] if line.startswith("{")])
def test_lines_of_numbers_are_those_of_the_tool(line: str) -> None:
    """From the numbers of a line that release 1.9.0 wrote, the same line is made, character for character."""
    found = NUMBERS.match(line)
    assert found
    position = Position(*map(int, found.groups()[:4]))
    made = LossLine(
        position, float(found[6]), float(found[7]), (int(found[8]) + 0.5) / 1000, float(found[9]),
        found[10] == "True", float(found[11]), float(found[12]), None, 0.0,
    )  # fmt: skip
    assert loss_lines(made, "1.9")[0] == line


def test_lines_of_progress_are_those_of_the_tool() -> None:
    """Percentage, bar, throughput and remaining time: the same characters."""
    recorded = RECORDED["lines"]
    pairs = [(line, recorded[i + 1]) for i, line in enumerate(recorded) if line.startswith("{")]
    assert len(pairs) == 5
    for numbers, progress in pairs:
        found = NUMBERS.match(numbers)
        assert found
        throughput, seconds = float(progress.split("|")[2].split()[0]), int(found[8]) / 1000
        position = Position(*map(int, found.groups()[:4]))
        made = loss_lines(LossLine(position, 1.0, None, seconds, 1.0, False, None, None, None, throughput), "1.9")[1]
        assert made.rsplit("  ", 1)[0] == progress.rsplit("  ", 1)[0]
        assert re.fullmatch(r"\d:\d\d:\d\d }", made.rsplit("  ", 1)[1])


def test_lines_of_states_are_those_of_the_tool() -> None:
    """The same text before each number, and the same number."""
    of_state = [line for line in RECORDED["lines"] if line.startswith("Epoch")]
    assert len(of_state) > 50
    for line in of_state:
        found = re.fullmatch(r"Epoch:\[ *(\d+)/ *(\d+)\], step:\[ *(\d+)/ *(\d+)\] (\S+): (\S+)", line)
        assert found
        made = state_line(Position(*map(int, found.groups()[:4])), found[5], float(found[6]), "1.9")
        assert made.rpartition(": ")[0] == line.rpartition(": ")[0]
        assert np.float32(made.rpartition(": ")[2]) == np.float32(found[6])


def test_the_older_lines_have_fewer_places() -> None:
    """Style 1.6: three decimal places of the loss, four of norms, and the throughput of the device at the end."""
    line = LossLine(Position.of(5, 2, 4), 0.80481, None, 0.0821, 0.001, False, 1024.0, 6.4241424, 180.1234, 24.1)
    assert loss_lines(line, "1.6") == (
        (
            "{ Epoch:[  2/  2], step:[    1/    4], loss: 0.805, per_step_time: 82ms, lr: 0.001, overflow cond: False, "
            "loss_scale: 1024.0, global_norm: [6.4241424], train_throughput_per_npu: 180.123T"
        ),
        f"  62.5% |{'█' * 31}{' ' * 19}| 24.10000 samples/s/p  0:00:00 }}",
    )
    assert loss_lines(line._replace(mean_loss=0.5), "1.6")[0].split(", ")[2] == "loss:[0.805/0.500]"
    assert state_line(Position.of(5, 2, 4), "weight_norm", 6.0187, "1.6") == (
        "Epoch:[  2/  2], step:[    1/    4] weight_norm: 6.0187"
    )


def test_numbers_that_are_not_known_are_left_out_or_named() -> None:
    """Without a learning rate, a loss scale and a global norm the line reads as the tool's does."""
    line = LossLine(Position.of(1, 1, 0), 2.0, None, 0.5, None, True, None, None, None, 0.0)
    assert loss_lines(line, "1.9")[0] == (
        "{ Epoch:[  1/  1], step:[    1/    0], loss: 2.000000, per_step_time: 500ms, overflow cond: True, "
        "loss_scale: unavailable, global_norm: None"
    )


def test_an_epoch_beyond_the_last_is_one_more() -> None:
    """Where fewer epochs are configured than the program runs, no more than all is done."""
    beyond = Position.of(9, 1, 4)
    assert (beyond.text, beyond.done, beyond.remaining) == ("Epoch:[  3/  3], step:[    1/    4]", 0.75, 3)


@pytest.mark.parametrize("style", ["1.6", "1.9"])
@pytest.mark.parametrize("value", [1e-5, 2.5e-9, 3e-30, 1e-44, 0.00009, 123456.75, 3e38, 1.0])
def test_readers_of_lines_read_small_norms(style: str, value: float) -> None:
    """The expressions of the tool's own readers find the number, and it is not rounded to nothing."""
    line = LossLine(Position.of(3, 1, 4), value, None, 0.1, 0.1, False, 1.0, value, None, 1.0)
    numbers = loss_lines(line, style)[0]
    norm = re.search(r"global_norm: \[(\d+\.\d+)\]", numbers)
    loss = re.search(r"loss: (\d+\.\d+)", numbers)
    state = re.search(r"local_norm/w: (\d+\.\d+)$", state_line(line.position, "local_norm/w", value, style))
    assert norm
    assert loss
    assert state
    assert float(norm[1]) == pytest.approx(value, rel=1e-6, abs=1e-45)
    assert float(state[1]) == pytest.approx(value, rel=1e-3 if style == "1.6" else 1e-6, abs=1e-45)
    assert float(loss[1]) > 0
    step = re.search(r"step:\[\s*(\d+)/\s*(\d+)\]", numbers)
    assert step
    assert step.groups() == ("3", "4")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_shown_as_they_are(value: float) -> None:
    """NaN and infinity stay."""
    assert positional(value) == str(value)
    line = LossLine(Position.of(1, 1, 1), value, value, value, value, False, value, value, None, 0.0)
    assert str(value) in loss_lines(line, "1.9")[0]
    assert state_line(line.position, "a", value, "1.6").endswith(str(value))


@pytest.mark.parametrize("value", [1e-50, 1e300, -1e-50])
def test_numbers_beyond_float32_are_shown(value: float) -> None:
    """They neither vanish nor become infinite."""
    assert float(positional(value)) == value


def test_steps_count_over_epochs() -> None:
    """The position of a step, and how much of training is done."""
    assert Position.of(9, 3, 4) == Position(3, 3, 1, 4)
    assert Position.of(8, 3, 4) == Position(2, 3, 4, 4)
    assert (Position.of(9, 3, 4).done, Position.of(9, 3, 4).remaining) == (0.75, 3)
    assert (Position.of(9, 3, 0).done, Position.of(9, 3, 0).remaining) == (0.0, 0)


def test_an_unknown_style_is_an_error() -> None:
    """Styles are those of two releases."""
    with pytest.raises(ValueError, match=r"log_style: expected one of 1.6, 1.9, got '2'"):
        Loss(log_style="2")


# The loss of each step.


def train(loss: Loss, steps: int, first: int = 1, **values: Any) -> None:
    """End ``steps`` steps with the loss 1 / step and with ``values``."""
    for step in range(first, first + steps):
        loss.step_begin()
        loss.step_end(loss=1.0 / step, **values)
    loss.close()
    assert loss.faults == {}


FULL = {"log_loss_scale_to_tensorboard": True, "log_timers_to_tensorboard": True, "tensorboard_queue_size": 1}
ALWAYS = {"learning-rate", "batch-size", "loss", "grad-norm"}
TIMERS = {"iteration-time", "throughput"}
GIVEN = {"learning_rate": 0.5, "grad_norm": 2.0, "loss_scale": 1024.0}


@pytest.mark.parametrize("suffix", ["_vs_samples", "-vs-samples", " vs samples"])
def test_every_tag_is_written_and_all_but_two_against_samples_too(tmp_path: Path, suffix: str) -> None:
    """The nine tags of the documentation; the axis of the second curves is the number of samples."""
    events = {"tensorboard_dir": str(tmp_path), **FULL}
    loss = Loss(global_batch_size=8, tensorboard=events, flops_per_step=3e12, samples_suffix=suffix)
    train(loss, 3, **GIVEN)
    found = scalars_of(tmp_path / "rank_0")
    both = ALWAYS | TIMERS | {"loss-scale"}
    assert set(found) == both | {f"{tag}{suffix}" for tag in both} | {
        "B-samples-per-day",
        "model-flops-throughput-per-npu",
    }
    assert found["loss"] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert found[f"loss{suffix}"] == [(8, 1.0), (16, 0.5), (24, pytest.approx(1 / 3))]
    assert found["learning-rate"] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert found["grad-norm"][0] == (1, 2.0)
    assert found["loss-scale"][0] == (1, 1024.0)
    assert found["batch-size"][0] == (1, 8.0)
    for (_, seconds), (_, rate), (_, day), (_, flops) in zip(
        *(
            found[tag]
            for tag in ("iteration-time", "throughput", "B-samples-per-day", "model-flops-throughput-per-npu")
        ),
        strict=True,
    ):
        assert rate == pytest.approx(8 / (seconds / 1000), rel=1e-5)
        assert day == pytest.approx(rate * 86400 / 1e9, rel=1e-5)
        assert flops == pytest.approx(3 / (seconds / 1000), rel=1e-5)


@pytest.mark.parametrize(
    ("switches", "more"),
    [
        ({}, set()),
        ({"log_loss_scale_to_tensorboard": True}, {"loss-scale"}),
        ({"log_timers_to_tensorboard": True}, TIMERS),
    ],
)
def test_tags_under_a_condition_need_their_switch(tmp_path: Path, switches: Any, more: set[str]) -> None:
    """The loss scale and the timers are left out by default."""
    train(Loss(global_batch_size=8, tensorboard={"tensorboard_dir": str(tmp_path)} | switches), 1, **GIVEN)
    steps_only = {"B-samples-per-day"} if more == TIMERS else set()
    both = ALWAYS | more
    assert set(scalars_of(tmp_path / "rank_0")) == both | {f"{tag}_vs_samples" for tag in both} | steps_only


def test_numbers_that_no_step_has_make_no_curve(tmp_path: Path) -> None:
    """Without a batch size there is no axis of samples; nothing is written as zero."""
    train(Loss(tensorboard={"tensorboard_dir": str(tmp_path), **FULL}), 2)
    assert set(scalars_of(tmp_path / "rank_0")) == {"loss", "iteration-time"}


def test_lines_come_at_multiples_of_per_print_times(tmp_path: Path, lines: list[str]) -> None:
    """Lines and curves alike; the mean of the epoch is over all of its steps."""
    events = {"tensorboard_dir": str(tmp_path)}
    loss = Loss(per_print_times=2, origin_epochs=2, dataset_size=4, tensorboard=events, sink_mode=False)
    train(loss, 8, **GIVEN)
    assert [step for step, _ in scalars_of(tmp_path / "rank_0")["loss"]] == [2, 4, 6, 8]
    numbers = [line for line in lines if line.startswith("{")]
    assert [re.findall(r"step:\[ *(\d+)", line) for line in numbers] == [["2"], ["4"], ["2"], ["4"]]
    second = f"loss:[{1 / 8:5.6f}/{sum(1 / step for step in range(5, 9)) / 4:5.6f}]"
    assert second in numbers[-1]
    assert all(" }" in line for line in lines if line not in numbers)


def test_a_resumed_run_goes_on_counting(tmp_path: Path, lines: list[str]) -> None:
    """Steps, epochs and samples continue after initial_step, in lines and curves alike."""
    events = {"tensorboard_dir": str(tmp_path)}
    loss = Loss(origin_epochs=3, dataset_size=4, initial_step=5, global_batch_size=2, tensorboard=events)
    train(loss, 2, 6)
    found = scalars_of(tmp_path / "rank_0")
    assert found["loss"] == [(6, pytest.approx(1 / 6)), (7, pytest.approx(1 / 7))]
    assert [step for step, _ in found["loss_vs_samples"]] == [12, 14]
    assert "Epoch:[  2/  3], step:[    2/    4]" in lines[0]


@pytest.mark.parametrize(
    ("options", "pipelined", "expected"),
    [
        ({}, False, 12.0),
        ({"gradient_accumulation_steps": 2}, False, 6.0),
        ({"micro_batch_interleave_num": 3}, False, 4.0),
        ({"micro_batch_num": 4}, False, 12.0),
        ({"micro_batch_num": 4}, True, 3.0),
        ({"gradient_accumulation_steps": 2, "calculate_per_token_loss": True}, False, 12.0),
    ],
)
def test_the_loss_is_divided_by_its_parts(options: Any, pipelined: bool, expected: float, lines: list[str]) -> None:
    """A sum over micro batches, accumulated or interleaved ones becomes a mean."""
    loss = Loss(**options)
    loss.pipelined = pipelined
    loss.step_end(loss=12.0)
    loss.close()
    assert f"loss: {expected:.6f}" in lines[0]


def test_tensors_are_read_on_another_thread(lines: list[str]) -> None:
    """Tensors of the framework, and a list of them, one a micro batch, become numbers."""
    loss = Loss()
    loss.step_end(loss=[Tensor(np.array([1.0, 3.0])), Tensor(np.array(4.0))], grad_norm=Tensor(np.array([0.25])))
    loss.step_end(loss=np.float32(0.5), learning_rate=np.array([0.1]))
    loss.close()
    assert loss.faults == {}
    assert "loss: 3.000000" in lines[0]
    assert "global_norm: [0.25]" in lines[0]
    assert "loss: 0.500000" in lines[2]
    assert "lr: 0.1," in lines[2]


def test_a_value_that_is_no_number_is_counted_and_training_goes_on(lines: list[str]) -> None:
    """Nothing raises into training; the next step is logged."""
    loss = Loss()
    loss.step_end(loss="a")
    loss.step_end(loss=1.0)
    loss.close()
    assert loss.faults == {"MFLossMonitor: ValueError": 1}
    assert len(lines) == 2


def test_the_run_gets_the_same_numbers() -> None:
    """A monitor that is passed receives what the steps have, under the names of ``monitor.log``."""
    received: list[dict[str, Any]] = []

    class Run:
        def log_ended(self, **values: Any) -> None:
            received.append(values)

    train(Loss(monitor=Run()), 1, **GIVEN, batch_size=4, accuracy=0.5)
    assert received == [{"loss": 1.0, "batch_size": 4, "accuracy": 0.5} | GIVEN]


def test_the_run_says_how_many_operations_a_step_has(tmp_path: Path) -> None:
    """The rate is that of the step in question, though the run's own is still that of an earlier and faster one."""

    class Run:
        def log_ended(self, **_: Any) -> None:
            pass

        def on_run_step(self, listener: Any) -> Any:
            listener(RunStep(0, 0.0, 0.001, "applied", {MODEL_TFLOPS: 3000.0}))
            return lambda: None

    loss = Loss(monitor=Run(), tensorboard={"tensorboard_dir": str(tmp_path), **FULL})
    train(loss, 2)
    found = scalars_of(tmp_path / "rank_0")
    for (_, seconds), (_, rate) in zip(
        *(found[t] for t in ("iteration-time", "model-flops-throughput-per-npu")), strict=True
    ):
        assert rate == pytest.approx(3 / (seconds / 1000), rel=1e-5)


def test_a_rank_has_its_folder_and_its_part_of_the_throughput(tmp_path: Path, lines: list[str]) -> None:
    """Of four processes the last writes to rank_3; throughput is of a device, samples a day are of all."""
    groups = SimpleNamespace(rank=lambda: 3, world_size=lambda: 4, ranks_of=lambda group: [3])

    class OneOfFour(Loss):
        framework = TrainerMon.framework._replace(groups=groups)

    events = {"tensorboard_dir": str(tmp_path), "log_timers_to_tensorboard": True}
    train(OneOfFour(global_batch_size=8, tensorboard=events), 1)
    assert [folder.name for folder in tmp_path.iterdir()] == ["rank_3"]
    found = {tag: points[0][1] for tag, points in scalars_of(tmp_path / "rank_3").items()}
    assert found["throughput"] == pytest.approx(8 / 4 / (found["iteration-time"] / 1000), rel=1e-5)
    assert found["B-samples-per-day"] == pytest.approx(4 * found["throughput"] * 86400 / 1e9, rel=1e-5)
    assert re.search(r"([\d.]+) samples/s/p", lines[1])


def test_other_arguments_of_the_tool_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    """Those that ask for anything are named; what the tool does not have is an error."""
    loss = Loss(check_for_nan_in_loss_and_grad=True, print_separate_loss=False)
    state = State(micro_batch_num=2, embedding_size=4096, use_local_norm=True)
    assert ({type(loss), type(state)}, caplog.records) == ({Loss, State}, [])
    Loss(print_separate_loss=True)
    assert "print_separate_loss is not supported" in caplog.text
    with pytest.raises(TypeError, match="TrainingStateMonitor: unexpected argument 'colour'"):
        State(colour="red")


# Event files.


def test_as_many_numbers_wait_as_configured(tmp_path: Path) -> None:
    """Up to tensorboard_queue_size numbers wait; with one more all are written."""
    writer = EventWriter(tmp_path / "rank_0", 3)
    writer.add([Scalar("a", step, 1.0, 1.0) for step in range(3)])
    assert [*writer.folder.iterdir()] == []
    writer.add([Scalar("a", 3, 1.0, 1.0)])
    assert [step for step, _ in scalars_of(writer.folder)["a"]] == [0, 1, 2, 3]
    writer.add([Scalar("a", 4, 1.0, 1.0)])
    writer.flush()
    assert len(scalars_of(writer.folder)["a"]) == 5
    (file,) = writer.folder.iterdir()
    assert file.name.startswith("events.")


def test_callbacks_of_a_process_share_a_file(tmp_path: Path) -> None:
    """TensorBoard follows the latest file of a folder alone."""
    writer = event_writer(tmp_path, 10)
    assert event_writer(tmp_path / ".." / tmp_path.name, 10).folder.samefile(tmp_path)
    assert event_writer(tmp_path, 10) is writer
    assert event_writer(tmp_path / "b", 10) is not writer


def test_texts_are_read_back(tmp_path: Path) -> None:
    """A tag a name on the TEXT page, as soon as the callbacks are made; what is in the folder stays."""
    folder = tmp_path / "rank_0"
    folder.mkdir()
    (folder / "mine.txt").write_text("kept", encoding="utf-8")
    events = {"tensorboard": {"tensorboard_dir": str(tmp_path)}}
    make_callbacks(yaml.safe_load(SAMPLE.read_text(encoding="utf-8")) | events, Loss, State, {"my_key": "é"})
    page = texts_of(folder)
    assert len(page) == 56 - 21 + 1
    assert (page["seed"], page["my_key"], page["device_num"]) == ("0", "é", "1")
    assert (folder / "mine.txt").read_text(encoding="utf-8") == "kept"


def test_a_folder_that_cannot_be_made_is_an_error_before_training(tmp_path: Path) -> None:
    """The error has the key, the folder, the reason and what to do."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    expected = (
        r"tensorboard_dir: expected a folder that can be made .*file/rank_0: (File exists|Not a dir.*); name another"
    )
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TransformersConfigError, match=expected.replace("file/", f"{folder.name}/")):
            make_callbacks(
                {"tensorboard": {"tensorboard_dir": str(folder)}, "callbacks": [{"type": "MFLossMonitor"}]}, Loss, State
            )


# The global norm.


@pytest.mark.parametrize("norm", [3.0, 1e9, math.nan, math.inf])
def test_a_spike_ends_training_once(tmp_path: Path, norm: float) -> None:
    """NaN and infinity are spikes, too. The step is recorded; when it is done again, training goes on."""
    check = NormCheck(3.0, NormRecord(tmp_path), 0, False)
    check.judge(1, 1.0, 2.999)
    assert check.take(1) is None
    check.judge(2, 1.0, norm)
    check.judge(3, 1.0, norm)  # will be done again
    assert check.take(1) is None  # each rank ends at the same step, whenever its numbers arrive
    error = check.take(2)
    check.judge(4, 1.0, norm)
    assert isinstance(error, RuntimeError)
    assert str(error).startswith("TREError occurred......")
    stored = json.loads((tmp_path / "abnormal_global_norm.json").read_text(encoding="utf-8"))
    assert stored == {"2": [norm if math.isfinite(norm) else str(norm)]}
    again = NormCheck(3.0, NormRecord(tmp_path), 0, False)
    again.judge(2, 1.0, norm)
    assert again.take(2) is None
    assert len(json.loads((tmp_path / "abnormal_global_norm.json").read_text(encoding="utf-8"))["2"]) == 2


def test_every_rank_writes_and_reads_the_record(tmp_path: Path) -> None:
    """On one file system ranks add to one file; without, each has its own, and none ends training again."""
    ranks = [NormRecord(tmp_path / "shared"), NormRecord(tmp_path / "shared"), NormRecord(tmp_path / "apart")]
    for record in ranks:
        record.add(300, 3.5)
    ranks[1].add(400, 4.5)
    assert json.loads(ranks[0].path.read_text(encoding="utf-8")) == {"300": [3.5], "400": [4.5]}
    assert all(300 in NormRecord(record.path.parent) for record in ranks)
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["abnormal_global_norm.json"]


@pytest.mark.parametrize("text", ["", "[1]", '{"300": [3.3', '{"300": 3.3}'])
def test_a_record_that_cannot_be_read_is_replaced(tmp_path: Path, text: str) -> None:
    """A torn file of another tool stops nothing."""
    (tmp_path / "abnormal_global_norm.json").write_text(text, encoding="utf-8")
    record = NormRecord(tmp_path)
    record.add(7, 9.0)
    assert json.loads(record.path.read_text(encoding="utf-8")) == {"7": [9.0]}


def test_consecutive_spikes_end_training_if_updates_are_skipped() -> None:
    """At the configured number; a good step begins the count anew."""
    check = NormCheck(3.0, None, 2, False)
    for step, norm in enumerate([9.0, 1.0, 9.0], 1):
        check.judge(step, 1.0, norm)
    assert check.take(3) is None
    check.judge(4, 1.0, math.nan)
    assert isinstance(check.take(4), ValueError)


@pytest.mark.parametrize(("loss", "norm", "name"), [(math.nan, 1.0, "loss"), (1.0, math.inf, "global_norm")])
def test_numbers_that_are_not_finite_end_training_if_asked(loss: float, norm: float, name: str) -> None:
    """The error names the number."""
    check = NormCheck(None, None, 0, True)
    check.judge(1, 1.0, None)
    assert check.take(1) is None
    check.judge(2, loss, norm)
    with pytest.raises(ValueError, match=rf"in {name} of step 2, terminate training"):
        raise check.take(2) or AssertionError


def test_both_reactions_to_spikes_at_once_are_an_error() -> None:
    """To end training and to skip the update exclude each other."""
    with pytest.raises(ValueError, match="expected one of them, got both"):
        State(config={"check_for_global_norm": True}, use_skip_data_by_global_norm=True)


def test_an_unknown_option_is_an_error_with_the_nearest() -> None:
    """In the words of the call that users write."""
    with pytest.raises(TypeError, match=r"^from_yaml: there is no option dataset_sise; did you mean dataset_size\?$"):
        make_callbacks({}, LossMonitoring, StateMonitoring, dataset_sise=3)
