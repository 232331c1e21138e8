"""Schema of the sections of MindSpore Transformers' configuration that are read here: keys, defaults, bad values.

The keys are those of its page on monitoring, and of its releases up to 1.9; the docstring under a field is its meaning.
"""

from __future__ import annotations

import logging
import math
import re
from typing import Annotated, Any

import annotated_types as ranges
from pydantic import AfterValidator, BeforeValidator, PlainValidator

from probe.core.fields import Flag, Form, Integer, Number, Section, Text, not_blank, wrong

LOG, TENSORBOARD = "log", "tensorboard"
FORMATS = (TENSORBOARD, LOG)
"""Places of a number, in the order in which they are written."""
EVERYTHING = (".*",)
"""The expressions that choose every parameter."""
QUEUE = 10
"""Default number of events that wait."""
_FORMAT = Form("format", "", '"log", "tensorboard", a list of them, or null')
_TARGET = Form("list of texts", "", "a list of texts, each a regular expression that is searched in names, or null")
_POSITIVE = Form("number", "> 0", "a positive number or null")
_FLAG = Form("boolean", "", "true or false")
_log = logging.getLogger("probe.transformers")


def _formats(value: object) -> tuple[str, ...]:
    named = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(named, list | tuple) or not all(isinstance(name, str) and name in FORMATS for name in named):
        raise wrong(_FORMAT.expected)
    return tuple(name for name in FORMATS if name in named)


def _target(value: object) -> tuple[str, ...]:
    if value is None or value == []:
        return EVERYTHING
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise wrong(_TARGET.expected)
    try:
        return tuple(re.compile(text).pattern for text in value)
    except re.error:
        raise wrong(_TARGET.expected) from None


def _positive(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise wrong(_POSITIVE.expected)
    return float(value)


def _or(default: object) -> BeforeValidator:
    """Return a validator that reads null as ``default``."""
    return BeforeValidator(lambda value: default if value is None else value)


def _at_least_one(key: str, default: int) -> BeforeValidator:
    """Return a validator that replaces a number below 1 by ``default``, with a warning."""

    def check(value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool) and value < 1:
            _log.warning("%s: expected an integer of at least 1, got %s; %d is used", key, value, default)
            return default
        return default if value is None else value

    return BeforeValidator(check)


Formats = Annotated[tuple[str, ...], PlainValidator(_formats), _FORMAT]
Switch = Annotated[Flag, _or(False), _FLAG]


class StateSection(Section):
    """Section ``monitor_config``: numbers of ``TrainingStateMonitor``."""

    monitor_on: Switch = False
    """Switch of the monitor; if it is off, no other key of the section has an effect."""
    dump_path: Annotated[Text, BeforeValidator(lambda value: value or "./dump")] = "./dump"
    """Directory from whose folders `rank_0`, `rank_1`, ... norms of gradients are read in MindSpore's graph mode, where
    its compiler writes them; no other file is removed. No effect elsewhere."""
    target: Annotated[tuple[str, ...], PlainValidator(_target), _TARGET] = EVERYTHING
    """Parameters whose `local_norm` and optimizer state are recorded: expressions that are searched in their names."""
    invert: Switch = False
    """Choose the parameters that `target` does not match."""
    step_interval: Annotated[Integer, ranges.Ge(1), _at_least_one("monitor_config.step_interval", 1)] = 1
    """Distance in steps from one recorded step to the next."""
    local_loss_format: Formats = ()
    """Places of `local_loss`, the loss of this device."""
    local_norm_format: Formats = ()
    """Places of `local_norm`, the norm of each parameter's gradient before reduction."""
    device_local_norm_format: Formats = ()
    """Places of `device_local_norm`, the root of the sum of the squares of all local norms."""
    device_local_loss_format: Formats = ()
    """Places of `device_accum_local_loss`, the mean loss of the micro batches; on the last pipeline stage."""
    optimizer_state_format: Formats = ()
    """Places of `adam_m_norm` and `adam_v_norm`, the norms of each parameter's moments after the update."""
    weight_state_format: Formats = ()
    """Places of `weight_norm`, the norm of all trainable parameters after the update."""
    throughput_baseline: Annotated[float | None, PlainValidator(_positive), _POSITIVE] = None
    """Throughput in samples per second and device, by which `throughput_linearity` is divided; null: not recorded."""
    print_struct: Switch = False
    """Log the names of all trainable parameters and end training after the first step."""
    check_for_global_norm: Switch = False
    """End training, so that a launcher starts it again, at a global norm of at least `global_norm_spike_threshold`, at
    NaN and at infinity."""
    global_norm_spike_threshold: Annotated[Number, _or(3.0)] = 3.0
    """Least global norm that counts as a spike."""
    global_norm_spike_count_threshold: Annotated[Integer, ranges.Ge(1), _or(10)] = 10
    """Number of consecutive spikes at which training ends, if `use_skip_data_by_global_norm` is on."""

    @property
    def formats(self) -> dict[str, tuple[str, ...]]:
        """Places by the key that names them."""
        return {name: getattr(self, name) for name in type(self).model_fields if name.endswith("_format")}


class TensorboardSection(Section):
    """Section ``tensorboard``."""

    tensorboard_dir: Annotated[Text, AfterValidator(not_blank)] | None = None
    """Directory of the folders `rank_0`, `rank_1`, ..., which hold the event files."""
    tensorboard_queue_size: Annotated[Integer, ranges.Ge(1), _at_least_one("tensorboard_queue_size", QUEUE)] = QUEUE
    """Most events that wait before they are written."""
    log_loss_scale_to_tensorboard: Switch = False
    """Record `loss-scale`."""
    log_timers_to_tensorboard: Switch = False
    """Record `iteration-time`, `throughput` and `B-samples-per-day`."""


class LossSection(Section):
    """Entry of ``callbacks`` with the type ``MFLossMonitor``."""

    type: Text = "MFLossMonitor"
    per_print_times: Annotated[Integer, ranges.Ge(1), _or(1)] = 1
    """Distance in steps from one recorded step to the next."""
    micro_batch_num: Annotated[Integer, ranges.Ge(1), _or(1)] = 1
    """Number of micro batches of a pipeline, by which the loss is divided."""
    micro_batch_interleave_num: Annotated[Integer, ranges.Ge(1), _or(1)] = 1
    """Number of interleaved parts of a batch, by which the loss is divided."""
    gradient_accumulation_steps: Annotated[Integer, ranges.Ge(1), _or(1)] = 1
    """Number of accumulated micro batches, by which the loss is divided."""
    origin_epochs: Annotated[Integer, ranges.Ge(1)] | None = None
    """Number of epochs."""
    dataset_size: Annotated[Integer, ranges.Ge(1)] | None = None
    """Number of steps in an epoch."""
    initial_epoch: Annotated[Integer, ranges.Ge(0), _or(0)] = 0
    """Epoch at which a resumed run continues; without effect, since `initial_step` decides."""
    initial_step: Annotated[Integer, ranges.Ge(0), _or(0)] = 0
    """Number of steps that were done before a resumed run continues."""
    global_batch_size: Annotated[Integer, ranges.Ge(0), _or(0)] = 0
    """Number of samples in a step, over all devices; 0: unknown."""
    calculate_per_token_loss: Switch = False
    """True if the loss is a mean over tokens, which is not divided by numbers of micro batches."""
    learning_rate: Annotated[Any, Form("learning rate")] = None
    """Learning rate, if neither the training cell nor the optimizer has it."""


class TrainState(Section):
    """Section ``monitor.train_state`` of the dynamic graph."""

    local_norm: Switch = False
    """Record `local_norm`."""
    local_loss: Switch = False
    """Record `local_loss`."""
    device_norm: Switch = False
    """Record `device_local_norm`."""
    device_loss: Switch = False
    """Record `device_accum_local_loss`."""


class TrainStateEvents(Section):
    """Section ``monitor.tensorboard`` of the dynamic graph."""

    output_dir: Text | None = None
    """Directory of the folders with event files."""
    log_interval: Annotated[Integer, ranges.Ge(1), _at_least_one("monitor.tensorboard.log_interval", 1)] = 1
    """Distance in steps from one recorded step to the next."""
    queue_size: Annotated[Integer, ranges.Ge(1), _at_least_one("monitor.tensorboard.queue_size", QUEUE)] = QUEUE
    """Most events that wait before they are written."""
    tensorboard_dir: Text | None = None
    """Another name of `output_dir`."""
    tensorboard_log_interval: Annotated[Integer, ranges.Ge(1)] | None = None
    """Another name of `log_interval`."""
    tensorboard_queue_size: Annotated[Integer, ranges.Ge(1)] | None = None
    """Another name of `queue_size`."""


class TrainStateSection(Section):
    """Section ``monitor`` of the dynamic graph."""

    train_state: Annotated[TrainState, _or({})] = TrainState()
    """Numbers to record."""
    tensorboard: Annotated[TrainStateEvents, _or({})] = TrainStateEvents()
    """Event files."""


TOP_KEYS = {
    "check_for_nan_in_loss_and_grad": "End training at NaN or infinity in the loss and the global norm.",
    "use_skip_data_by_global_norm": "End training at the spike `global_norm_spike_count_threshold` in succession; the "
    "training cell leaves out the updates. It needs `monitor_on`.",
    "output_dir": "Directory of `abnormal_global_norm.json`; also a tag of the TEXT page.",
    "micro_batch_interleave_num": "Factor of the number of samples in a step; also a tag of the TEXT page.",
}
"""Keys at the top of the file that more than the TEXT page reads."""
OTHER_SECTIONS = {
    "runner_config": {
        "epochs": "Number of epochs in log lines.",
        "origin_epochs": "Number of epochs in log lines, instead of `epochs`.",
        "sink_mode": "Form of log lines: with a dataset that is sunk to the device, without the mean of the epoch.",
        "global_batch_size": "Number of samples in a step, over all devices.",
        "batch_size": "Number of samples in a step, times the numbers of copies, if `global_batch_size` is missing.",
        "gradient_accumulation_steps": "Factor of the number of samples in a step.",
    },
    "parallel_config": {
        "data_parallel": "Factor of the number of samples in a step.",
        "micro_batch_num": "Factor of the number of samples in a step, with more than one pipeline stage.",
        "pipeline_stage": "Number of pipeline stages.",
    },
}
"""Keys that are read of sections which belong to the program."""
NOT_HERE = {
    "initial_epoch": "`initial_step` decides where a resumed run continues",
}
"""Keys that the sections have and that are without an effect."""
SWITCHED_BY_MONITOR = ("use_skip_data_by_global_norm",)
"""Keys outside of ``monitor_config`` that have no effect unless its ``monitor_on`` is true."""
_SPIKES = "check_for_global_norm with global_norm_spike_threshold ends training at a spike"
_EXPERTS = "l2_targets.moe_router_logit_hook records the load of the experts"
ELSEWHERE: dict[str, dict[str, str]] = {
    "monitor_config": {
        "stable_rank_config": "recording_l2_features with l2_targets.linear_hook records `sr` and `kernel_norm`",
        "use_checkpoint_health_monitor": _SPIKES,
        "health_checkpoint": _SPIKES,
        "moe_monitor": _EXPERTS,
        "max_attention_logit_format": "l2_targets.attention_hook records `softmax_max` of each layer",
    },
    "tensorboard": {"log_expert_load_to_tensorboard": _EXPERTS},
    "callbacks": {
        "print_separate_loss": "monitor.log(lm_loss=..., aux_loss=...) records any number of losses",
        "is_moe_model": "monitor.log(aux_loss=...) records the losses of a mixture of experts",
        "is_mtp_model": "monitor.log(mtp_loss=...) records any number of losses",
    },
}
"""Keys of the tool that are not supported, by section, each with the feature of this package that does the same."""
