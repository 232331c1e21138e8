"""The smallest models that Megatron-Core trains, for what does not depend on the model."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import ChainedOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

from tests.distributed.megatron_cpu import groups

SCALE = 128.0
"""Of losses in half precision."""


class Fused(torch.autograd.Function):
    """A linear layer whose weight gradient goes straight to ``main_grad``, as Megatron's kernel for GPUs does it."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(inputs)
        ctx.weight = weight
        return inputs @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.weight.main_grad.add_(gradient.t() @ ctx.saved_tensors[0])
        ctx.weight.grad_added_to_main_grad = True
        return gradient @ ctx.weight.detach(), torch.empty_like(ctx.weight)


class Tiny(MegatronModule):
    """One linear layer."""

    def __init__(self, config: Any, fused: bool) -> None:
        super().__init__(config=config)
        torch.manual_seed(1)
        self.linear, self.fused = torch.nn.Linear(4, 3, bias=not fused, dtype=config.params_dtype), fused

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Fused.apply(inputs, self.linear.weight) if self.fused else self.linear(inputs)


def build(half: bool = False, distributed: bool = False, chunks: int = 1, fused: bool = False) -> tuple[list[Any], Any]:
    """Wrapped models and the one optimizer of all of them, in which each has its own."""
    groups()
    dtype = torch.float16 if half else torch.float32
    config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1, fp16=half, params_dtype=dtype)
    reduction = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=distributed)
    models = [DistributedDataParallel(config, reduction, Tiny(config, fused)) for _ in range(chunks)]
    settings = OptimizerConfig(
        optimizer="adam",
        lr=0.01,
        fp16=half,
        params_dtype=dtype,
        use_distributed_optimizer=distributed,
        initial_loss_scale=SCALE,
        hysteresis=1,
    )
    made = [get_megatron_optimizer(settings, [model]) for model in models]
    return models, made[0] if chunks == 1 else ChainedOptimizer(
        [inner for each in made for inner in each.chained_optimizers]
    )


def step(models: list[Any], optimizer: Any, number: int, overflow: bool = False) -> tuple[list[Any], bool]:
    """One training step of two micro batches: this rank's sum of gradients of each model's weight, and whether the
    update was applied."""
    for model in models:
        model.zero_grad_buffer()
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(number * 10 + torch.distributed.get_rank())
    for _ in range(2):
        for model in models:
            inputs = torch.randn(5, 4, generator=generator).to(model.module.linear.weight.dtype)
            optimizer.scale_loss(model(inputs).float().square().mean()).backward()
    sums = [model.module.linear.weight.main_grad.clone() for model in models]
    if overflow:
        models[0].module.linear.weight.main_grad[0, 0] = torch.inf
    for model in models:
        model.finish_grad_sync()
    return sums, bool(optimizer.step()[0])
