"""Monitors of probe and of the existing tool for the same training with the same configuration."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXISTING_TOOL = "mindstudio-probe==26.2.0"
OPS = ["min", "max", "mean", "norm", "nans"]

SETTINGS: dict[str, dict[str, Any]] = {
    "weight gradients": {"wg_distribution": True},
    "parameters": {"param_distribution": True},
    "optimizer state": {"mv_distribution": True},
    "activations": {"xy_distribution": True, "all_xy": True},
}
SETTINGS["everything"] = {key: on for setting in SETTINGS.values() for key, on in setting.items()}

SENTINEL = "sentinel"
EXTRAS = (
    "everything, default alerts",
    "everything, TensorBoard",
    "everything, small model",
    SENTINEL,
    f"{SENTINEL}, tiny model",
)
"""Settings that differ from ``everything`` by one thing, and the sentinel without any rows; the small model has 4
layers of width 128, the tiny one 2 of width 48."""
LARGE = ("weight gradients, large model", "parameters, large model", f"{SENTINEL}, large model")
"""Settings for a device: a model of 1.0e9 parameters in sequences of 1,024 tokens."""
SIZES = {
    "small model": {"layers": 4, "width": 128},
    "tiny model": {"layers": 2, "width": 48, "heads": 4, "tokens": 32},
    "large model": {"layers": 20, "width": 2048, "heads": 16, "tokens": 1024},
}

TARGETS = {
    "weight gradients": 0.15,
    "parameters": 0.14,
    "optimizer state": 0.16,
    "activations": 0.07,
    "everything": 0.09,
}
"""Largest time that probe may add to a step, as a fraction of the time that the existing tool adds."""
TARGETS_ALONE = {"weight gradients": 0.1, "everything": 0.6}
"""Largest time that probe may add to a step on MindSpore, as a fraction of the plain step."""
SENTINEL_AIMS = {SENTINEL: 0.02, f"{SENTINEL}, tiny model": 0.25e-3, f"{SENTINEL}, large model": 0.02}
"""Largest time that the sentinel may add: a part of a step of 200 ms, or seconds of a short one."""


def configuration(setting: str, **more: Any) -> dict[str, Any]:
    """Configuration of both: CSV files and no alerts, but for what ``setting`` names after a comma."""
    watched, _, extra = setting.partition(", ")
    config = {"targets": {}, "ops": OPS, "format": "csv", "alert": {"rules": []}, **more}
    config |= {"sentinel": {"enable": True}} if watched == SENTINEL else SETTINGS[watched]
    if extra == "default alerts":
        del config["alert"]
    if extra == "TensorBoard":
        config["format"] = "tensorboard"
    return config


def size_of(setting: str) -> dict[str, int]:
    """Size of the model that ``setting`` trains, where it is not the default one."""
    return SIZES.get(setting.partition(", ")[2], {})


def has_existing_tool() -> bool:
    """Return whether the existing tool is installed, which only the benchmarks' own environment has."""
    return importlib.util.find_spec("msprobe") is not None


def training_module(framework: str) -> Any:
    """Module that trains a GPT on one framework, with ``Training`` and ``wait``."""
    return importlib.import_module({"pytorch": "_gpt", "mindspore": "_gpt_mindspore"}[framework])


def framework_of(training: Any) -> str:
    """Framework of ``training``."""
    return "mindspore" if type(training).__module__.endswith("mindspore") else "pytorch"


def attach_probe(training: Any, config: dict[str, Any], directory: Path, micro_batches: int = 1) -> Any:
    """Attach probe's monitor, writing to ``directory``."""
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory)
    monitor_class = importlib.import_module(f"probe.{framework_of(training)}").TrainerMon
    monitor = monitor_class(config, params_have_main_grad=False)
    monitor.set_monitor(training.model, grad_acc_steps=micro_batches, optimizer=training.optimizer)
    return monitor


def attach_existing_tool(training: Any, config: dict[str, Any], directory: Path) -> Any:
    """Attach the existing tool's monitor, writing to ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory)
    file = directory.with_suffix(".json")
    file.write_text(json.dumps(config))
    monitor_class = importlib.import_module(f"msprobe.{framework_of(training)}").TrainerMon
    monitor = monitor_class(str(file), params_have_main_grad=False)
    monitor.set_monitor(training.model, grad_acc_steps=1, optimizer=training.optimizer)
    return monitor


ATTACH: dict[str, Callable[[Any, dict[str, Any], Path], Any]] = {
    "probe": attach_probe,
    "existing tool": attach_existing_tool,
}
