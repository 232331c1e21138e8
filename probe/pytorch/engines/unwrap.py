"""The optimizer that takes the training steps, found from whichever the user has in hand.

Accelerate and Lightning wrap the optimizer of the user; DeepSpeed wraps it too, and calls it several times a step.
"""

from __future__ import annotations

from typing import Any

from probe.pytorch.engines.deepspeed import steps
from probe.pytorch.engines.deepspeed.zero import names

INSIDE = {
    "accelerate.optimizer.AcceleratedOptimizer": "optimizer",
    "deepspeed.runtime.engine.DeepSpeedEngine": "optimizer",
    "lightning.pytorch.core.optimizer.LightningOptimizer": "optimizer",
    "pytorch_lightning.core.optimizer.LightningOptimizer": "optimizer",
}
"""What only passes steps on, or none at all, and under which name it holds what takes them."""


def acting(optimizer: Any) -> Any:
    """What takes the steps of ``optimizer``: inside of what merely wraps it, or DeepSpeed's around it."""
    while (name := _inside(type(optimizer))) is not None:
        optimizer = getattr(optimizer, name)
    return steps.around(optimizer)


def _inside(kind: type) -> str | None:
    """Under which name objects of ``kind`` hold the optimizer they wrap."""
    return next((INSIDE[name] for name in names(kind) if name in INSIDE), None)
