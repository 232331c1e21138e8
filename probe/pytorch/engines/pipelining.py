"""``torch.distributed.pipelining``: the forwards of a stage that are micro batches.

Schedules run several micro batches forward before the first backward and, in the first step, every stage once more to
infer shapes. Schedules have no hooks (torch 2.13; https://github.com/pytorch/pytorch/issues/167897): only the stack
distinguishes these forwards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from probe.core.backend.call_stack import callers
from probe.pytorch.engines.engine import Engine

STAGE = "torch.distributed.pipelining.stage"
SCHEDULES = "torch.distributed.pipelining.schedules"
MICRO_BATCH = "forward_one_chunk"
TRIALS = frozenset({"_forward_metadata_inference", "_shape_inference"})
"""Methods that run a stage to infer shapes, in torch 2.13 and 2.6."""

SPLIT = "BACKWARD_WEIGHT"
"""Name of an action in those schedules only that compute the weights' gradients later than the inputs'."""

_splitting: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def pipelined(model: torch.nn.Module) -> bool:  # noqa: ARG001 - every model inside a stage's forward is
    """Return whether the forward that begins now belongs to a schedule.

    Raises:
        ValueError: if the schedule differentiates the weights later, in a way that calls no hook.
    """
    running = _running()
    if running is None or running.f_code.co_name != MICRO_BATCH:
        return False
    schedule: Any = next((owner for owner in map(_owner, _from(running)) if hasattr(owner, "pipeline_order")), None)
    if schedule is not None and _splits(schedule):
        raise ValueError(
            f"{type(schedule).__name__} splits each backward in two, so that gradients cannot be distinguished and "
            "many are not seen; use a schedule that does not (ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B), "
            "or collect no gradients"
        )
    return True


def on_trial() -> bool:
    """Return whether the running forward only infers shapes."""
    running = _running()
    return running is not None and running.f_code.co_name in TRIALS


def _running() -> FrameType | None:
    """Return the frame in which a stage runs, if one does."""
    if STAGE not in sys.modules:
        return None
    for frame in callers():
        name = frame.f_code.co_name
        if (name == MICRO_BATCH or name in TRIALS) and frame.f_globals.get("__name__") == STAGE:
            return frame
    return None


def _from(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _owner(frame: FrameType) -> Any:
    return frame.f_locals.get("self") if frame.f_globals.get("__name__") == SCHEDULES else None


def _splits(schedule: Any) -> bool:
    splits = _splitting.get(schedule)
    if splits is None:
        actions = (action for order in schedule.pipeline_order.values() for action in order if action is not None)
        splits = _splitting[schedule] = any(action.computation_type.name == SPLIT for action in actions)
    return splits


ENGINE = Engine(pipelined=pipelined)
