"""Methods of ``ProcessGroup``, which every function of ``torch.distributed`` calls, and the handles they return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from probe.core.backend.collective_listeners import Handles, Transfer
from probe.core.backend.patch import Undo
from probe.core.door import compiling, passage, replace
from probe.pytorch.collectives.dispatch import began, flat, listeners, ranks_of, readable

Arguments = Sequence[Any]


class CallSides(NamedTuple):
    """Tensors that this rank sends in a transfer, and those that it receives."""

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]


def _in_place(_: Any, args: Arguments) -> CallSides:
    return CallSides(flat(args[0]), flat(args[0]))


def _apart(_: Any, args: Arguments) -> CallSides:
    return CallSides(flat(args[1]), flat(args[0]))


def _received(_: Any, args: Arguments) -> CallSides:
    return CallSides([], flat(args[0]))


def _nothing(_: Any, __: Arguments) -> CallSides:
    return CallSides([], [])


TRANSFERS: dict[str, Callable[[Any, Arguments], CallSides]] = {
    "allreduce": _in_place,
    "allreduce_coalesced": _in_place,
    "broadcast": lambda group, args: CallSides(flat(args[0]) if group.rank() == _root(args) else [], flat(args[0])),
    "reduce": lambda group, args: CallSides(flat(args[0]), flat(args[0]) if group.rank() == _root(args) else []),
    "allgather": _apart,
    "_allgather_base": _apart,
    "all_gather_single": _apart,
    "allgather_coalesced": _apart,
    "allgather_into_tensor_coalesced": _apart,
    "all_gather_single_coalesced": _apart,
    "gather": _apart,
    "scatter": _apart,
    "reduce_scatter": _apart,
    "_reduce_scatter_base": _apart,
    "reduce_scatter_single": _apart,
    "reduce_scatter_tensor_coalesced": _apart,
    "reduce_scatter_single_coalesced": _apart,
    "alltoall": _apart,
    "alltoall_base": _apart,
    "all_to_all_single": _apart,
    "send": lambda _, args: CallSides(flat(args[0]), []),
    "recv": _received,
    "recv_anysource": _received,
    "barrier": _nothing,
    "monitored_barrier": _nothing,
}
"""Methods of a process group that transfer data or synchronize, under the names of all versions of torch."""


def changes() -> Iterator[Undo]:
    """Replace methods of process groups and of handles by functions that call listeners; yield an undo for each."""
    for name, sides in TRANSFERS.items():
        if hasattr(dist.ProcessGroup, name):
            yield replace(dist.ProcessGroup, name, _transferring(name, sides))
    for kind, name, wrap in (
        *((dist.Work, name, handles.waiting) for name in ("wait", "synchronize", "block_current_stream")),
        (dist.ProcessGroup, "_start_coalescing", _coalescing_began),
        (dist.ProcessGroup, "_end_coalescing", _coalescing_ended),
    ):
        if hasattr(kind, name):
            yield replace(kind, name, wrap(getattr(kind, name)))
    yield _forget


def _root(args: Arguments) -> int:
    for value in args[1:]:
        if hasattr(value, "rootRank"):
            return int(value.rootRank)
        if isinstance(value, int):
            return value
    return 0


def _transferring(name: str, sides: Callable[[Any, Arguments], CallSides]) -> Callable[..., Any]:
    original = getattr(dist.ProcessGroup, name)

    @functools.wraps(original)
    @passage
    def transfer(group: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or not listeners.wanted():
            return original(group, *args, **kwargs)
        part = _begin_transfer(name, sides, group, args, kwargs)
        work = original(group, *args, **kwargs)
        if part.calls:
            listeners.attempt(lambda: _issued(group, work, part))
        return work

    return transfer


def _begin_transfer(
    name: str, sides: Callable[[Any, Arguments], CallSides], group: Any, args: Arguments, kwargs: dict[str, Any]
) -> Transfer:
    """Return the transfer that listeners have received. Its handle reports the completion only of transfers on the
    host; on a device, the handle reports that the transfer was queued."""
    transfer = Transfer([], [], [])

    def begin() -> None:
        named = sorted(kwargs.items(), key=lambda pair: not pair[0].startswith("out"))
        every = [*args, *(value for _, value in named)]
        inputs, outputs = sides(group, every)
        if not all(map(readable, (*inputs, *outputs))):
            return
        transfer.outputs.extend(outputs)
        transfer.calls.extend(began(name, ranks_of(group), inputs))
        on_host = (inputs or outputs) and all(tensor.device.type == "cpu" for tensor in (*inputs, *outputs))
        if on_host and all(getattr(value, "asyncOp", True) for value in every):
            transfer.timed.extend(call for _, call in transfer.calls)

    listeners.attempt(begin)
    return transfer


handles = Handles(listeners.attempt)
_coalescing: dict[Any, list[Transfer]] = {}
"""Transfers that are issued when a process group ends coalescing, by group."""


def _issued(group: Any, work: Any, part: Transfer) -> None:
    """Record that a process group has accepted a transfer."""
    if group in _coalescing:
        _coalescing[group].append(part)
    else:
        _expect(work, [part])


def _expect(work: Any, parts: list[Transfer]) -> None:
    """Record that the transfers end when ``work`` does; without a handle, they have ended, in stream order."""
    handles.expect(work, parts)
    if work is not None and (timed := [call for part in parts for call in part.timed]):
        _time(work, timed)


def _time(work: Any, calls: list[Any]) -> None:
    """Register ``finish`` of each call with the handle, which reports its completion."""
    try:
        future = work.get_future()
    except RuntimeError:  # this kind of handle has no future
        return
    future.add_done_callback(lambda _: [call.finish() for call in calls])


def _coalescing_began(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    @passage
    def start(group: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(group, *args, **kwargs)
        if not compiling() and listeners.wanted():
            _coalescing[group] = []
        return result

    return start


def _coalescing_ended(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    @passage
    def end(group: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(group, *args, **kwargs)
        parts = _coalescing.pop(group, [])
        work = original(group, *args, **kwargs)
        if parts:
            listeners.attempt(lambda: _expect(work, parts))
        return work

    return end


def _forget() -> None:
    """Drop all unfinished transfers."""
    handles.forget()
    _coalescing.clear()
