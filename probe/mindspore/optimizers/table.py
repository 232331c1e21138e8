"""The kinds of optimizers, in the order in which they are asked."""

from __future__ import annotations

from probe.mindspore.optimizers import nn_cell, torch_style
from probe.mindspore.optimizers.contract import Optimizers

OPTIMIZERS: dict[str, Optimizers] = {
    "torch_style": torch_style,
    "nn_cell": nn_cell,
}
"""Every kind. To add one, add a line here."""
