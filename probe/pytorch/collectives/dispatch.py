"""Listeners to collectives in torch, the caller of a call, and the tensors that can be read."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from probe.core.backend import collective_listeners
from probe.core.backend.protocols import CollectiveListener
from probe.pytorch import tensors

API = ("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_collectives.py")
"""Files whose functions name an operation."""
PLUMBING = (
    *API,
    "torch/distributed/c10d_logger.py",
    "torch/_ops.py",
    "torch/utils/_contextlib.py",
    "torch/_dynamo/eval_frame.py",
    "torch/autograd/function.py",
    "deepspeed/comm/comm.py",
    "deepspeed/comm/torch.py",
    "deepspeed/utils/timer.py",
    "deepspeed/utils/nvtx.py",
    "/contextlib.py",
    "/typing_extensions.py",
    "/warnings.py",
    collective_listeners.__file__,
    *map(str, Path(__file__).parent.glob("*.py")),
)
"""Files between a call and the code that makes it."""
listeners = collective_listeners.CollectiveListeners()
_latest = threading.local()
"""Frame, code and instruction of this thread's latest call, in ``place``."""


def began(name: str, ranks: Sequence[int], inputs: Sequence[torch.Tensor]) -> Iterator[tuple[CollectiveListener, Any]]:
    operation, site, again = _caller(name)
    yield from listeners.began(operation, ranks, inputs, site, again)


def readable(tensor: torch.Tensor) -> bool:
    """Return whether the elements of ``tensor`` can be read: not while torch traces or captures."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and type(tensor).__name__ != "AsyncCollectiveTensor":
        return False
    return tensor.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def ranks_of(group: Any) -> list[int]:
    try:
        return list(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):  # not made by torch.distributed.new_group
        return list(range(group.size()))


def _caller(method: str) -> tuple[str, FrameType, bool]:
    """Return the function of ``torch.distributed`` that was called, the frame that called it, and whether the function
    is still in the same call as last time: then its frame has advanced, while a new call would have a new position."""
    frame, operation = sys._getframe(1), method
    place: tuple[int, object, int] = (0, None, 0)
    while frame.f_back is not None and (path := frame.f_code.co_filename).endswith(PLUMBING):
        name = frame.f_code.co_name
        if path.endswith(API) and name not in ("_coalescing_manager", "_store_based_barrier"):
            operation, place = name, (id(frame), frame.f_code, frame.f_lasti)
        frame = frame.f_back
    before, _latest.place = getattr(_latest, "place", (0, None, 0)), place
    return operation, frame, place[:2] == before[:2] and place[2] > before[2]


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for inner in value for tensor in flat(inner)]
    return [value] if tensors.is_tensor(value) else []
