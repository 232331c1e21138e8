"""Models as engines wrap them: which can be watched, and where their parameters are kept."""

from __future__ import annotations

import torch

from probe.pytorch.engines.homes import take_over
from probe.pytorch.engines.table import ENGINES

PIPELINES = tuple(engine.pipelined for engine in ENGINES.values() if engine.pipelined is not None)


def check(model: torch.nn.Module) -> None:
    """Refuses a model that cannot be watched.

    Raises:
        ValueError: with what was expected, what came and the remedy.
    """
    for engine in ENGINES.values():
        engine.check(model)


def look_at(model: torch.nn.Module) -> None:
    """Finds the homes of the parameters of ``model``."""
    for engine in ENGINES.values():
        for parameter, home in engine.homes(model):
            take_over(parameter, home)


def stand_ins(model: torch.nn.Module) -> dict[int, torch.nn.Parameter]:
    """The parameters that others stand in for while modules run, by the identity of those."""
    return {id(one): parameter for engine in ENGINES.values() for one, parameter in engine.stand_ins(model)}


def pipelined(model: torch.nn.Module) -> bool:
    """Whether the forward of ``model`` that begins now is one of a pipeline's schedule."""
    return any(knows(model) for knows in PIPELINES)
