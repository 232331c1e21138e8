"""Search for the optimizer that takes the training steps, from the one that the user has.

Accelerate and Lightning wrap the optimizer of the user; DeepSpeed wraps it too, and calls it several times a step.
"""

from __future__ import annotations

from typing import Any

from probe.pytorch.engines.table import ENGINES

INSIDE = {
    "accelerate.optimizer.AcceleratedOptimizer": "optimizer",
    "lightning.pytorch.core.optimizer.LightningOptimizer": "optimizer",
    "pytorch_lightning.core.optimizer.LightningOptimizer": "optimizer",
    **{kind: held for engine in ENGINES.values() for kind, held in engine.wraps_optimizers.items()},
}
"""Classes that only forward steps, or take none, each with the attribute that holds the optimizer."""


def acting(optimizer: Any) -> Any:
    """Return the optimizer that takes the steps of ``optimizer``: inside plain wrappers, or DeepSpeed's around it."""
    while (name := _inside(type(optimizer))) is not None:
        optimizer = getattr(optimizer, name)
    for engine in ENGINES.values():
        if engine.around is not None:
            optimizer = engine.around(optimizer)
    return optimizer


def _inside(kind: type) -> str | None:
    """Return the attribute in which objects of ``kind`` hold the optimizer that they wrap; None if they wrap none."""
    names = (f"{parent.__module__}.{parent.__qualname__}" for parent in kind.__mro__)
    return next((INSIDE[name] for name in names if name in INSIDE), None)
