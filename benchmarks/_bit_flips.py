"""Bit flips in one computation of a training step: of a forward, an input gradient or a weight gradient, in one element
or in a tile, on one rank. A fault injection after https://arxiv.org/abs/2604.00726.

    torchrun --standalone --nproc-per-node 4 benchmarks/_bit_flips.py --flip NUMBER [--seed 0] [--steps 120]

trains a small decoder with the flip of that number in :func:`flips`; without a number, with none.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

import _finding  # noqa: F401 - the cases are on the path from then on
import torch
import torch.distributed as dist
from case import watch
from common import GPT, join, text, text_loss, update
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Site = Literal["activation", "input gradient", "weight gradient"]
"""Computation with the flip: the output of a module, the gradient of its input, or that of its weight before any
reduction."""
SITES: tuple[Site, ...] = get_args(Site)
BITS = 20, 24, 26, 28, 30
"""Bits of float32, 30 being the highest of the exponent. Those of bfloat16 are the upper half of these."""
LAYERS, STEPS = 4, 120
STAGES = STEPS // 4, STEPS // 2, 3 * STEPS // 4
"""Steps of a flip: early, in the middle and late in training."""
TILE = 8
"""Side of a tile, in rows and columns of a matrix."""
MODULES = "attn.q", "attn.o", "mlp.up", "mlp.down"
"""Modules of a layer that take turns."""
INTEGERS: dict[torch.dtype, tuple[torch.dtype, int]] = {
    torch.float32: (torch.int32, 0),
    torch.bfloat16: (torch.int16, 16),
}
"""Integers of the size of a number, and how many of the lower bits of float32 the number lacks."""


class Flip(NamedTuple):
    """Flip of a bit in one step on one rank."""

    site: Site
    module: str
    """Name of the module; of a wrapped model, without the wrapper."""
    bit: int
    """Bit as float32 has it."""
    step: int
    rank: int = 0
    tile: int = 1
    """Side of the tile; 1 for one element."""
    element: int = 0
    """Row-major number of the first element, modulo those that there are."""

    @property
    def place(self) -> str:
        """Parameter or module whose number is wrong."""
        return f"{self.module}.weight" if self.site == "weight gradient" else self.module


def flipped(values: Tensor, flip: Flip) -> Tensor:
    """Return a copy with the flip, through which gradients go as through ``values``.

    Args:
        values: of float32 or bfloat16.
    """
    copy = values.clone(memory_format=torch.contiguous_format)
    integers, missing = INTEGERS[values.dtype]
    matrix = copy.detach().view(integers)
    matrix = matrix.reshape(-1, matrix.shape[-1] if matrix.ndim else 1)
    row, column = divmod(flip.element % matrix.numel(), matrix.shape[1])
    matrix[row : row + flip.tile, column : column + flip.tile] ^= 1 << (flip.bit - missing)
    return copy


def install(model: nn.Module, flip: Flip, step: Callable[[], int], rank: int = 0) -> Any:
    """Place a hook that flips when ``step()`` is the step of the flip, if this is its rank; return its handle, None on
    other ranks. Called before a monitor is attached, so that the monitor sees the wrong numbers.

    Args:
        model: model without a wrapper.
        rank: of this process.
    """
    if rank != flip.rank:
        return None
    module = model.get_submodule(flip.module)

    def changed(values: Tensor) -> Tensor | None:
        return flipped(values, flip) if step() == flip.step else None

    if flip.site == "activation":
        return module.register_forward_hook(lambda _, __, output: changed(output))
    if flip.site == "weight gradient":
        return module.weight.register_hook(changed)

    def of_inputs(_: nn.Module, gradients: tuple[Tensor, ...], __: Any) -> tuple[Tensor, ...] | None:
        first = changed(gradients[0])
        return None if first is None else (first, *gradients[1:])

    return module.register_full_backward_hook(of_inputs)


def flips(world: int) -> Iterator[Flip]:
    """Yield the flips of the benchmark: every site, bit, stage and size; layers, modules, ranks and elements take
    turns."""
    grid = product(SITES, BITS, STAGES, (1, TILE))
    for number, (site, bit, step, tile) in enumerate(grid):
        module = f"layers.{number % LAYERS}.{MODULES[number // LAYERS % len(MODULES)]}"
        yield Flip(site, module, bit, step, (7 * number + 1) % world, tile, 1_009 * number)


def main() -> None:
    """Train as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flip", type=int, help="number of the flip; none if left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rank = join() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 0
    world = dist.get_world_size() if dist.is_initialized() else 1
    train(args.seed, args.steps, rank, None if args.flip is None else list(flips(world))[args.flip])
    if dist.is_initialized():
        dist.destroy_process_group()


def train(seed: int, steps: int, rank: int, flip: Flip | None) -> None:
    """Train a decoder of :data:`LAYERS` layers, data-parallel if there are several ranks."""
    done = 0
    net = GPT(layers=LAYERS, width=32)
    if flip is not None:
        install(net, flip, lambda: done, rank)
    model = DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(steps):
        done = step
        loss = text_loss(model, text(seed, step, rank, batch=4))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main()
