"""Engines, in the order in which they are tried: their checks, and the wrappers and homes that they know."""

from __future__ import annotations

from typing import Any

import torch

from probe.pytorch.engines import deepspeed, fsdp1, fsdp2, megatron, pipelining
from probe.pytorch.engines.engine import Engine
from probe.pytorch.engines.homes import take_over

ENGINES: dict[str, Engine] = {
    "fsdp1": fsdp1.ENGINE,
    "fsdp2": fsdp2.ENGINE,
    "megatron": megatron.ENGINE,
    "deepspeed": deepspeed.ENGINE,
    "pipelining": pipelining.ENGINE,
}
"""Engines other than torch itself (:mod:`probe.pytorch.engines.native`). To add one, add a line here."""
PIPELINES = tuple(engine.pipelined for engine in ENGINES.values() if engine.pipelined is not None)

OPTIMIZERS_INSIDE = {
    "accelerate.optimizer.AcceleratedOptimizer": "optimizer",
    "lightning.pytorch.core.optimizer.LightningOptimizer": "optimizer",
    "pytorch_lightning.core.optimizer.LightningOptimizer": "optimizer",
    **{kind: attribute for engine in ENGINES.values() for kind, attribute in engine.wraps_optimizers.items()},
}
"""Classes that only forward steps, or take none, each with the attribute that holds the optimizer."""


def check(model: torch.nn.Module) -> None:
    """Refuse a model that cannot be watched.

    Raises:
        ValueError: with the problem and its remedy.
    """
    for engine in ENGINES.values():
        engine.check(model)


def look_at(model: torch.nn.Module) -> None:
    """Record the homes of the parameters of ``model``."""
    for engine in ENGINES.values():
        for parameter, home in engine.homes(model):
            take_over(parameter, home)


def stand_ins(model: torch.nn.Module) -> dict[int, torch.nn.Parameter]:
    """Return the parameters that stand-ins replace while modules run, by the identity of the stand-in."""
    return {id(thing): parameter for engine in ENGINES.values() for thing, parameter in engine.stand_ins(model)}


def pipelined(model: torch.nn.Module) -> bool:
    """Return whether the forward of ``model`` that begins now belongs to a pipeline's schedule."""
    return any(knows(model) for knows in PIPELINES)


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
    return next((OPTIMIZERS_INSIDE[name] for name in names if name in OPTIMIZERS_INSIDE), None)
