"""Callbacks for training loops, for the Hugging Face Trainer and for Lightning.

The last two are imported when they are used, since their packages are optional.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from probe.pytorch.callbacks.transformers import MFLossMonitor, TrainingCallbacks, TrainingStateMonitor, from_yaml

__all__ = ["MFLossMonitor", "TrainingCallbacks", "TrainingStateMonitor", "from_yaml"]

_LAZY = {
    "HuggingFaceCallback": "probe.pytorch.callbacks.huggingface",
    "LightningCallback": "probe.pytorch.callbacks.lightning",
}
"""Callbacks of optional packages, and their modules."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
