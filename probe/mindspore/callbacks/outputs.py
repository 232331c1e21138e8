"""Outputs of a training cell: loss, overflow, loss scale, learning rate and global norm, without waiting for them."""

from __future__ import annotations

from typing import Any

import mindspore
from mindspore import nn

from probe.core.naming import GRAD_NORM, LEARNING_RATE, LOSS, LOSS_SCALE

NAMES = (LOSS, "overflow", LOSS_SCALE, LEARNING_RATE, GRAD_NORM)
"""Outputs of MindSpore Transformers' training cells, in their order."""
LENGTHS = (3, 4, 5, 7)
"""Numbers of outputs that such cells have; others return the loss first."""


def values_of(outputs: Any) -> dict[str, Any]:
    """Return the outputs by name; those that are False or None are missing."""
    several = outputs if isinstance(outputs, tuple | list) else (outputs,)
    named = dict(zip(NAMES, several if len(several) in LENGTHS else several[:1], strict=False))
    return {name: value for name, value in named.items() if value is not None and value is not False}


def learning_rate_of(optimizer: Any) -> Any:
    """Return the learning rate that ``optimizer`` holds; None if it has none, or computes it from the step."""
    groups = getattr(optimizer, "param_groups", None)
    if groups:
        return groups[0].get("lr")
    rate = getattr(optimizer, "learning_rate", None)
    single = isinstance(rate, float) or (isinstance(rate, mindspore.Tensor) and rate.size == 1)
    return rate if single and not getattr(optimizer, "is_group_lr", False) else None


def optimizer_of(params: Any) -> Any:
    """Return the optimizer of a training: that of the model, or of its training cell."""
    found = getattr(params, "optimizer", None)
    cells = (getattr(params, "train_network", None), getattr(params, "network", None))
    return found if found is not None else next((o for c in cells if (o := getattr(c, "optimizer", None))), None)


def backbone_of(params: Any) -> Any:
    """Return the user's model inside the cells that add the loss and the training step."""
    cell = params.network
    while True:
        if isinstance(cell, nn.TrainOneStepCell):
            cell = cell.network
        elif isinstance(cell, nn.WithLossCell):
            cell = cell.backbone_network
        else:
            return cell
