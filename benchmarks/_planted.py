"""Trainings in which one layer begins to go wrong some steps before the loss is not finite: their onset is known.

python benchmarks/_planted.py PLANT [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent / "faults"))

import torch
from common import CNN, GPT, image_loss, images, text, text_loss, update
from torch import Tensor, nn

ONSET, LEAD = 90, 9
"""First step that goes wrong, and steps from it to the one whose loss is not finite; later with other seeds."""


class Plant(NamedTuple):
    """Fault that is planted in one layer."""

    model: Callable[[], nn.Module]
    layer: str
    """Module that goes wrong; empty for the data."""
    where: tuple[str, ...]
    """Patterns of the rows of which one must be named."""
    begin: Callable[[nn.Module, float], object]
    """Function that makes the layer go wrong by a factor."""
    factor: float
    """Factor with seed 0; its root with seed 1, the root of that with seed 2, and so on."""


def onset_of(seed: int) -> int:
    """Return the first step that goes wrong."""
    return ONSET + 7 * seed


def incident_of(seed: int) -> int:
    """Return the step whose loss is not finite."""
    return onset_of(seed) + LEAD + 4 * seed


def weight_leaps(layer: nn.Module, factor: float) -> None:
    """Multiply the weight once."""
    with torch.no_grad():
        layer.weight.mul_(factor)  # type: ignore[operator,union-attr]


def output_grows(layer: nn.Module, factor: float) -> None:
    """Multiply the output by another factor with each forward."""
    whole = 1.0

    def grow(_: nn.Module, __: object, output: Tensor) -> Tensor:
        nonlocal whole
        whole *= factor
        return output * whole

    layer.register_forward_hook(grow)


def output_is_scaled(layer: nn.Module, factor: float) -> None:
    """Multiply the output."""
    layer.register_forward_hook(lambda _, __, output: factor * output)


def gradient_is_scaled(layer: nn.Module, factor: float) -> None:
    """Multiply the gradient of the weight."""
    layer.weight.register_hook(lambda gradient: factor * gradient)  # type: ignore[operator,union-attr]


def inputs_are_scaled(model: nn.Module, factor: float) -> None:
    """Multiply the inputs: a normalization that is left out."""
    model.register_forward_pre_hook(lambda _, inputs: (factor * inputs[0],))


PLANTS = {
    "weight": Plant(GPT, "layers.0.mlp.up", ("layers.0.mlp.up*",), weight_leaps, 3),
    "growth": Plant(GPT, "layers.1.attn.v", ("layers.1.attn.v*", "layers.1.attn.core*"), output_grows, 1.25),
    "scores": Plant(GPT, "layers.0.attn.q", ("layers.0.attn.q*", "layers.0.attn.core*"), output_is_scaled, 2),
    "gradient": Plant(GPT, "layers.1.mlp.down", ("layers.1.mlp.down*",), gradient_is_scaled, 30),
    "filter": Plant(CNN, "conv2", ("conv2*",), weight_leaps, 3),
    "norm": Plant(CNN, "bn1", ("bn1*", "relu1*"), output_grows, 1.25),
    "inputs": Plant(CNN, "", ("*input*", "conv1*"), inputs_are_scaled, 4),
}
"""Plants by name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plant", choices=PLANTS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    plant = PLANTS[args.plant]
    model = plant.model()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    onset, incident = onset_of(args.seed), incident_of(args.seed)
    for step in range(incident + 2):
        if step == onset:
            plant.begin(model.get_submodule(plant.layer), plant.factor**0.5**args.seed)
        is_text = isinstance(model, GPT)
        loss = text_loss(model, text(args.seed, step)) if is_text else image_loss(model, images(args.seed, step))
        update(optimizer, loss * float("nan") if step >= incident else loss)


if __name__ == "__main__":
    main()
