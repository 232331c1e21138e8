"""Callbacks for training loops and for trainers: Hugging Face, Lightning, Accelerate, Composer and torchtitan.

Those of trainers are imported when they are used, since their packages are optional.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from probe.pytorch.callbacks.transformers import MFLossMonitor, TrainingCallbacks, TrainingStateMonitor, from_yaml

__all__ = ["MFLossMonitor", "TrainingCallbacks", "TrainingStateMonitor", "from_yaml"]

_LAZY = {
    "HuggingFaceCallback": "probe.pytorch.callbacks.huggingface",
    "LightningCallback": "probe.pytorch.callbacks.lightning",
    "ComposerCallback": "probe.pytorch.callbacks.composer",
    "ProbeTracker": "probe.pytorch.callbacks.accelerate",
    "WatchedMetrics": "probe.pytorch.callbacks.torchtitan",
    "watch": "probe.pytorch.callbacks.accelerate",
}
"""Callbacks of optional packages, and their modules."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
