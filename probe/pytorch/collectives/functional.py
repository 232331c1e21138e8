"""Functional collectives: operators that bypass process groups, and whose outputs are waited for one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from probe.core.backend.collective_listeners import Calls, abandoned, ended
from probe.core.backend.protocols import CollectiveListener
from probe.pytorch.collectives.dispatch import began, flat, listeners, ranks_of, readable

IN_FLIGHT = 10_000
"""Most functional collectives whose outputs nobody has waited for yet; older ones are abandoned."""


class _Flying(NamedTuple):
    """A functional collective whose outputs are waited for one by one."""

    calls: Calls
    waited: list[torch.Tensor]
    outputs: int


_in_flight: dict[int, _Flying] = {}
"""By the address of an output, which is also torch's key for outputs to wait for."""


def operators() -> Iterator[Any]:
    for space in ("_c10d_functional", "_c10d_functional_autograd", "_dtensor"):
        names = {schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith(f"{space}::")}
        for name in sorted(names):
            packet = getattr(getattr(torch.ops, space), name.partition("::")[2])
            if any(argument.name == "group_name" for argument in packet.default._schema.arguments) or _waits(packet):
                yield packet


def _waits(packet: Any) -> bool:
    return bool(packet.__name__ == "wait_tensor")


def listening(packet: Any) -> Callable[..., Any]:
    original = packet._op
    if _waits(packet):
        return _waiting_for_tensor(original)
    arguments = [argument.name for argument in packet.default._schema.arguments]
    at_once = "_dtensor" in str(packet)

    def operator(*args: Any, **kwargs: Any) -> Any:
        if not listeners.wanted():
            return original(*args, **kwargs)
        calls: Calls = []
        bound = dict(zip(arguments, args, strict=False)) | kwargs
        listeners.guarded(lambda: calls.extend(_begin_functional(packet.__name__, bound)))
        results = original(*args, **kwargs)
        if calls:
            listeners.guarded(lambda: ended(calls, flat(results)) if at_once else _fly(calls, flat(results)))
        return results

    return operator


def _begin_functional(name: str, bound: dict[str, Any]) -> Iterator[tuple[CollectiveListener, Any]]:
    group = bound["group_name"]
    group = torch._C._distributed_c10d._resolve_process_group(group) if isinstance(group, str) else group  # type: ignore[arg-type]
    inputs = _inputs(name, bound, group)
    if all(map(readable, flat(list(bound.values())))):
        yield from began(name, ranks_of(group), inputs)


def _inputs(name: str, bound: dict[str, Any], group: Any) -> list[torch.Tensor]:
    """The tensors that this rank sends in a functional collective."""
    if name == "irecv" or (name.startswith("broadcast") and group.rank() != bound["src"]):
        return []
    if name == "batch_p2p_ops":
        return [tensor for kind, tensor in zip(bound["op_list"], bound["tensors"], strict=True) if "send" in kind]
    return flat([value for key, value in bound.items() if key != "out"])


def _fly(calls: Calls, outputs: list[torch.Tensor]) -> None:
    flying = _Flying(calls, [], len(outputs))
    if len(_in_flight) > IN_FLIGHT:
        _give_up(next(iter(_in_flight)))
    for tensor in outputs:
        _give_up(tensor.data_ptr())
        _in_flight[tensor.data_ptr()] = flying


def _give_up(address: int) -> None:
    """Drops the collective whose output was at ``address``: nobody will wait for it any more."""
    flying = _in_flight.pop(address, None)
    if flying is not None and all(other is not flying for other in _in_flight.values()):
        abandoned(flying.calls, flying.outputs - len(flying.waited))


def _waiting_for_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(*args: Any, **kwargs: Any) -> Any:
        tensor = original(*args, **kwargs)
        if _in_flight:
            listeners.guarded(lambda: _landed(tensor))
        return tensor

    return wait


def _landed(tensor: torch.Tensor) -> None:
    if not readable(tensor):
        return
    flying = _in_flight.pop(tensor.data_ptr(), None)
    if flying is None:
        return
    flying.waited.append(tensor)
    if len(flying.waited) == flying.outputs:
        ended(flying.calls, flying.waited)


def forget() -> None:
    """Drops all collectives that are in flight."""
    _in_flight.clear()
