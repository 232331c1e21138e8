"""MindSpore Transformers' training monitor: its configuration, and the callbacks ``MFLossMonitor`` and
``TrainingStateMonitor`` without a framework.

``probe.pytorch`` and ``probe.mindspore`` have the callbacks themselves.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from probe.core.config.errors import nearest
from probe.core.transformers.callback_core import CallbackCore, Presentation
from probe.core.transformers.configuration import (
    TransformersConfig,
    TransformersConfigError,
    monitor_settings,
    read_configuration,
)
from probe.core.transformers.event_writer import EventWriter
from probe.core.transformers.loss_monitor import LossMonitoring
from probe.core.transformers.state_monitor import StateMonitoring
from probe.core.transformers.text_page import CONDITIONS, NAMES, texts

_log = logging.getLogger("probe.transformers")

__all__ = [
    "CONDITIONS",
    "NAMES",
    "EventWriter",
    "LossMonitoring",
    "Presentation",
    "StateMonitoring",
    "TransformersConfig",
    "TransformersConfigError",
    "make_callbacks",
    "monitor_settings",
    "read_configuration",
    "texts",
]


def make_callbacks(
    source: str | os.PathLike[str] | Mapping[str, Any],
    loss_class: Callable[..., Any],
    state_class: Callable[..., Any],
    arguments: Mapping[str, Any] | None = None,
    *,
    log_style: str = Presentation().log_style,
    samples_suffix: str = Presentation().samples_suffix,
    global_batch_size: int = 0,
    dataset_size: int | None = None,
    initial_step: int = 0,
    flops_per_step: float | None = None,
    monitor_config: Mapping[str, Any] | None = None,
    monitor: Any = None,
    probe_class: Callable[..., Any] | None = None,
    **unknown: Any,
) -> list[Any]:
    """Return the callbacks that a configuration asks for, and write its TEXT page.

    Args:
        source: the YAML file, or a mapping with the same keys.
        loss_class: ``MFLossMonitor`` of a framework.
        state_class: its ``TrainingStateMonitor``.
        arguments: values that replace those of the file, such as ``{"runner_config": {"epochs": 2}}``.
        log_style: see :class:`Presentation`.
        samples_suffix: see :class:`Presentation`.
        global_batch_size: number of samples in a step, over all devices; 0: as configured.
        dataset_size: number of steps in an epoch.
        initial_step: number of steps that were done before this run.
        flops_per_step: floating-point operations of a step on this device.
        monitor_config: further keys of the ``TrainerMon`` that collects gradients.
        monitor: receives the numbers of ``MFLossMonitor``, too.
        probe_class: ``ProbeCallback`` of a framework; None where the program attaches a ``TrainerMon`` itself.
        unknown: options that there are not.

    Raises:
        TypeError: naming the options, if one is unknown.
        TransformersConfigError: with every problem at once.
        ConfigError: naming every problem of the keys of ``ProbeCallback``.
    """
    for name in unknown:
        options = list(signature(make_callbacks).parameters)[4:-2]
        hint = (
            f"did you mean {close}?" if (close := nearest(name, options)) else f"expected some of {', '.join(options)}"
        )
        raise TypeError(f"from_yaml: there is no option {name}; {hint}")
    config = read_configuration(source, arguments)
    batch = global_batch_size or config.global_batch_size
    style: dict[str, Any] = {
        "log_style": log_style, "samples_suffix": samples_suffix, "tensorboard": config.tensorboard
    }  # fmt: skip
    made: list[Any] = []
    if config.loss is not None:
        given = {key: value for key, value in config.loss if key != "type"}
        given["origin_epochs"] = given["origin_epochs"] or config.epochs
        given["dataset_size"] = given["dataset_size"] or dataset_size
        given["initial_step"] = given["initial_step"] or initial_step
        given["global_batch_size"] = given["global_batch_size"] or batch
        more = {"flops_per_step": flops_per_step, "sink_mode": config.sink_mode, "monitor": monitor}
        made.append(loss_class(**given, **style, **more))
    if config.watches_state:
        made.append(
            state_class(
                origin_epochs=config.epochs,
                config=config.state,
                dataset_size=dataset_size,
                initial_step=initial_step,
                global_batch_size=batch,
                check_for_nan_in_loss_and_grad=config.checks_nan,
                use_skip_data_by_global_norm=config.skips_spikes,
                output_dir=config.output_directory,
                monitor_config=monitor_config,
                **style,
            )
        )
    if made and isinstance(made[0], CallbackCore):
        made[0].write_page({"device_num": made[0].devices, "data_size": dataset_size, **config.values})
    if config.probe is not None and probe_class is not None:
        made.append(probe_class(**config.probe))
    elif config.probe is not None:
        _log.warning("callbacks: ProbeCallback has no effect in this loop; attach a TrainerMon with set_monitor")
    if not made:
        _log.warning(
            "from_yaml: nothing is recorded: expected MFLossMonitor in callbacks, or monitor_on: true in "
            "monitor_config; the keys of TrainerMon are passed to TrainerMon"
        )
    return made
