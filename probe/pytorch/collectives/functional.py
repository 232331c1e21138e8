"""Functional collectives: operators that bypass process groups; training waits for their outputs one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from probe.core.backend.collective_listeners import Calls, abandoned, ended
from probe.core.backend.patch import Undo
from probe.core.backend.protocols import CollectiveListener
from probe.core.door import compiling, passage, replace
from probe.pytorch.collectives.dispatch import began, flat, listeners, ranks_of, readable

IN_FLIGHT = 10_000
"""Maximal number of unfinished functional collectives; beyond it, the oldest are abandoned."""


class _Unfinished(NamedTuple):
    """Functional collective that is finished when training has waited for each of its outputs."""

    calls: Calls
    waited: list[torch.Tensor]
    outputs: int


SPACES = "_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::"
"""Beginnings of the names of operators that are looked at."""
_in_flight: dict[int, _Unfinished] = {}
"""Unfinished collectives by the address of an output, which is also torch's key for waiting."""


def changes() -> Iterator[Undo]:
    """Replace the operators by functions that call listeners; yield an undo for each."""
    for packet in _operators():
        yield replace(packet, "_op", _listening(packet))
    yield _in_flight.clear


def _operators() -> Iterator[Any]:
    names = torch._C._dispatch_get_all_op_names()  # of thousands, with their overloads (torch 2.4 to 2.13)
    for name in sorted({name.partition(".")[0] for name in names if name.startswith(SPACES)}):
        space, _, operator = name.partition("::")
        packet = getattr(getattr(torch.ops, space), operator)
        if any(argument.name == "group_name" for argument in packet.default._schema.arguments) or _waits(packet):
            yield packet


def _waits(packet: Any) -> bool:
    return bool(packet.__name__ == "wait_tensor")


def _listening(packet: Any) -> Callable[..., Any]:
    original = packet._op
    if _waits(packet):
        return _waiting_for_tensor(original)
    arguments = [argument.name for argument in packet.default._schema.arguments]
    at_once = "_dtensor" in str(packet)

    @passage
    def operator(*args: Any, **kwargs: Any) -> Any:
        if compiling() or not listeners.wanted():
            return original(*args, **kwargs)
        calls: Calls = []
        bound = dict(zip(arguments, args, strict=False)) | kwargs
        listeners.attempt(lambda: calls.extend(_begin_functional(packet.__name__, bound)))
        results = original(*args, **kwargs)
        if calls:
            listeners.attempt(lambda: ended(calls, flat(results)) if at_once else _track(calls, flat(results)))
        return results

    return operator


def _begin_functional(name: str, bound: dict[str, Any]) -> Iterator[tuple[CollectiveListener, Any]]:
    group = bound["group_name"]
    group = torch._C._distributed_c10d._resolve_process_group(group) if isinstance(group, str) else group  # type: ignore[arg-type]
    inputs = _inputs(name, bound, group)
    if all(map(readable, flat(list(bound.values())))):
        yield from began(name, ranks_of(group), inputs)


def _inputs(name: str, bound: dict[str, Any], group: Any) -> list[torch.Tensor]:
    """Return the tensors that this rank sends in a functional collective."""
    if name == "irecv" or (name.startswith("broadcast") and group.rank() != bound["src"]):
        return []
    if name == "batch_p2p_ops":
        return [tensor for kind, tensor in zip(bound["op_list"], bound["tensors"], strict=True) if "send" in kind]
    return flat([value for key, value in bound.items() if key != "out"])


def _track(calls: Calls, outputs: list[torch.Tensor]) -> None:
    unfinished = _Unfinished(calls, [], len(outputs))
    if len(_in_flight) > IN_FLIGHT:
        _abandon(next(iter(_in_flight)))
    for tensor in outputs:
        _abandon(tensor.data_ptr())
        _in_flight[tensor.data_ptr()] = unfinished


def _abandon(address: int) -> None:
    """Drop the collective whose output was at ``address``: no code can wait for it any more."""
    unfinished = _in_flight.pop(address, None)
    if unfinished is not None and all(other is not unfinished for other in _in_flight.values()):
        abandoned(unfinished.calls, unfinished.outputs - len(unfinished.waited))


def _waiting_for_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
    @passage
    def wait(*args: Any, **kwargs: Any) -> Any:
        tensor = original(*args, **kwargs)
        if not compiling() and _in_flight:
            listeners.attempt(lambda: _output_ended(tensor))
        return tensor

    return wait


def _output_ended(tensor: torch.Tensor) -> None:
    if not readable(tensor):
        return
    unfinished = _in_flight.pop(tensor.data_ptr(), None)
    if unfinished is None:
        return
    unfinished.waited.append(tensor)
    if len(unfinished.waited) == unfinished.outputs:
        ended(unfinished.calls, unfinished.waited)
