"""Models that engines wrap: checks, and the homes of their parameters."""

from __future__ import annotations

import torch

from probe.pytorch.engines.homes import take_over
from probe.pytorch.engines.table import ENGINES

PIPELINES = tuple(engine.pipelined for engine in ENGINES.values() if engine.pipelined is not None)


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
    return {id(one): parameter for engine in ENGINES.values() for one, parameter in engine.stand_ins(model)}


def pipelined(model: torch.nn.Module) -> bool:
    """Return whether the forward of ``model`` that begins now belongs to a pipeline's schedule."""
    return any(knows(model) for knows in PIPELINES)
