"""Programs whose configurations are no ``TrainerMon``'s, recognised by their keys: other monitors, which have readers
here, and tools that are no monitors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from probe.core.config.errors import ConfigError
from probe.core.config.schema import Settings
from probe.core.language import Message, message


class ForeignMonitor(NamedTuple):
    """Monitor with a configuration of its own."""

    title: str
    usage: Message
    """Advice for whoever passes its configuration to ``TrainerMon``."""


TRANSFORMERS = ForeignMonitor(
    "MindSpore Transformers",
    message("pass it to from_yaml of probe.mindspore or probe.pytorch"),
)
MONITOR_V2 = ForeignMonitor(
    "msprobe's Monitor V2", message("pass it to TrainerMonitorV2 of probe.core.monitor_v2.trainer")
)
INTERNEVO = ForeignMonitor("InternEvo's monitor", message("pass it to read_monitor_config of probe.core.alert"))
PRECISION_DEBUGGER = ForeignMonitor(
    "msprobe's PrecisionDebugger",
    message("it dumps tensors; write the keys of the monitor, such as wg_distribution, into a file of their own"),
)
DEEPSPEED = ForeignMonitor(
    "DeepSpeed", message("write the keys of the monitor, such as wg_distribution, into a file of their own")
)

_OF_MONITOR_V2 = frozenset({"monitors", "framework", "patch_optimizer_step", "async_write", "stop_step"})
_OF_TRANSFORMERS = frozenset(
    {
        *(
            "monitor_config",
            "callbacks",
            "runner_config",
            "runner_wrapper",
            "parallel_config",
            "run_mode",
            "tensorboard",
        ),
        *("use_parallel", "train_dataset", "train_dataset_task", "moe_config", "recompute_config", "lr_schedule"),
        *("check_for_nan_in_loss_and_grad", "use_skip_data_by_global_norm"),
        *("monitor_on", "local_loss_format", "local_norm_format", "device_local_norm_format"),
    }
)
_OF_TRAINER_MON = frozenset(Settings.model_fields.keys() - {"alert", "run", "output_dir"}) - frozenset(
    {"format", "ops", "eps", "start_step", "collect_times", "step_interval", "step_count_per_record"}
)
"""Keys that no other monitor's configuration has at the top."""
_OF_ALERTS = frozenset({"enable_feishu_alert", "feishu_alert_address", "light_monitor_address", "alert_file_path"})
"""Keys of InternEvo's section ``alert``."""

_BY_KEYS = (
    (frozenset({"task"}), PRECISION_DEBUGGER),
    (frozenset({"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"}), DEEPSPEED),
    (_OF_MONITOR_V2, MONITOR_V2),
)
"""Keys of which one is enough, and the monitor or the tool that has it."""


def refuse_trainer_mon(values: Mapping[Any, Any], source: str, title: str, error: type[ConfigError]) -> None:
    """Refuse a configuration of ``TrainerMon`` in the place of that of another monitor.

    Raises:
        ConfigError: as ``error``.
    """
    if values.keys() & _OF_TRAINER_MON:
        text = "{source}: expected a configuration of {title}, this is one of TrainerMon; pass it to TrainerMon"
        raise error(source, [message(text, source=source, title=title)])


def monitor_of(values: Mapping[Any, Any], is_python: bool = False) -> ForeignMonitor | None:
    """Return the monitor to which a configuration belongs; None for that of ``TrainerMon``, whose keys msprobe's
    Monitor and kj600 have.

    Args:
        is_python: true for values of a Python file.
    """
    keys = values.keys()
    if keys & _OF_TRAINER_MON and not is_python:
        return None
    if is_python or _has_alerts(values) or _has_alerts(values.get("monitor")):
        return INTERNEVO
    if monitor := next((monitor for names, monitor in _BY_KEYS if keys & names), None):
        return monitor
    section = values.get("monitor")
    if keys & _OF_TRANSFORMERS or (isinstance(section, Mapping) and section.keys() & {"train_state", "tensorboard"}):
        return TRANSFORMERS
    return INTERNEVO if isinstance(section, Mapping) and not section.keys() & Settings.model_fields.keys() else None


def _has_alerts(section: object) -> bool:
    alert = section.get("alert") if isinstance(section, Mapping) else None
    return isinstance(alert, Mapping) and bool(alert.keys() & _OF_ALERTS)
