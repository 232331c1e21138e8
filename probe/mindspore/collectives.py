"""Listeners to MindSpore's communication functions: ``communication.comm_func``, ``ops.communication``,
``mint.distributed``.

These are plain functions that modules import from each other by name, so each is replaced in every loaded module that
holds it. Communication by cells and operators (``nn.DistributedGradReducer``, ``ops.AllReduce``) does not use them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, FunctionType, ModuleType
from typing import Any

import mindspore
from mindspore import communication

from probe.core.backend import collective_listeners
from probe.core.backend.collective_listeners import Calls, CollectiveListeners, Handles, Transfer
from probe.core.backend.patch import Undo
from probe.core.backend.protocols import CollectiveListener, Remove
from probe.core.backend.pytree import leaves
from probe.core.door import replace
from probe.mindspore import groups, tensors
from probe.mindspore.collective_functions import FILLED, FUNCTIONS, HOMES, WORLD, Direction
from probe.mindspore.tensors import Deferred

_inside = threading.local()
"""``depth`` of calls on this thread: one function may call others."""


def listen(listener: CollectiveListener) -> Remove:
    """Send every call to ``listener``."""
    return _listeners.listen(listener)


def bytes_of(tensor: Any) -> int:
    """Return the size of the elements in bytes."""
    return int(tensor.nbytes)


def _install() -> Iterator[Undo]:
    listening: dict[FunctionType, FunctionType] = {}
    handles: set[Any] = {mindspore._c_expression.CommHandle}
    operations: set[Any] = set()
    for home in (sys.modules[name] for name in HOMES if name in sys.modules):
        for name, direction in FUNCTIONS.items():
            function = vars(home).get(name)
            if inspect.isfunction(function) and function.__module__ == home.__name__:
                listening[function] = _listening(function, direction)
        if isinstance(handle := vars(home).get("CommHandle"), type):
            handles.add(handle)
        if isinstance(operation := vars(home).get("P2POp"), type):
            operations.add(operation)
    originals = {replacement: function for function, replacement in listening.items()}
    yield lambda: _exchange(originals)  # undone last: this includes functions that were imported while listening
    yield _handles.forget
    for handle in handles:
        yield replace(handle, "wait", _handles.waiting(handle.wait))
    for operation in operations:
        yield replace(operation, "__new__", _by_name(operation.__new__))
    _exchange(listening)


_listeners = CollectiveListeners(_install)


def _by_name(original: Callable[..., Any]) -> Any:
    """Wrap ``P2POp.__new__`` so that functions are passed by name: it compares a function object with the originals."""

    def new(cls: type, op: Any, *args: Any, **kwargs: Any) -> Any:
        return original(cls, getattr(op, "__name__", op), *args, **kwargs)

    return staticmethod(new)


def _exchange(functions: dict[FunctionType, FunctionType]) -> None:
    """Replace each of ``functions`` by its value in every loaded module that holds it.

    Replacement in the defining module is not enough: ``mint.distributed`` and scripts import the functions by name.
    Unlike torch, MindSpore has no Python class that all of them call in the end, and no hook (2.10; no upstream issue
    is known).
    """
    for module in list(sys.modules.values()):
        if type(module) is ModuleType:
            for name, held in list(vars(module).items()):
                if type(held) is FunctionType and held in functions:
                    setattr(module, name, functions[held])


def _listening(function: Any, direction: Direction) -> Any:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def transfer(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "depth", 0) or not _listeners.wanted():
            return function(*args, **kwargs)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # raises its own error
        calls: Calls = []
        outputs: list[Any] = []
        _attempt(lambda: _begin(function.__name__, direction, bound, calls, outputs))
        _inside.depth = 1
        try:
            results = function(*args, **kwargs)
        finally:
            _inside.depth = 0
        if calls:
            _attempt(lambda: _issued(function.__name__, results, direction, calls, outputs))
        return results

    return transfer


def _begin(name: str, direction: Direction, bound: inspect.BoundArguments, calls: Calls, outputs: list[Any]) -> None:
    bound.apply_defaults()
    arguments, rank = bound.arguments, groups.rank()
    if name == "batch_isend_irecv":
        inputs, outputs[:] = _of_batch(arguments["p2p_op_list"])
        arguments = {"group": getattr(arguments["p2p_op_list"][0], "group", None)}
    else:
        named = [(key, value) for key, value in arguments.items() if key not in ("group", "op")]
        filled = ("tensor",) if name == "scatter" else FILLED
        inputs = _tensors([value for key, value in named if not key.startswith(filled)])
        outputs[:] = _tensors([value for key, value in named if key.startswith(filled)]) or inputs
    inputs = inputs if _takes_part(direction.inputs, arguments, rank) else []
    outputs[:] = outputs if _takes_part(direction.outputs, arguments, rank) else []
    ranks = groups.ranks_of(arguments["group"] if arguments.get("group") not in WORLD else _world())
    calls.extend(_listeners.began(name, ranks, inputs, _caller()))


def _world() -> str:
    return str(communication.GlobalComm.WORLD_COMM_GROUP)


def _takes_part(where: str, arguments: Any, rank: int) -> bool:
    return where == "all" or (where != "none" and arguments[where] == rank)


def _of_batch(operations: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    sides: tuple[list[Any], list[Any]] = ([], [])
    for operation in operations:
        name = operation.op if isinstance(operation.op, str) else operation.op.__name__
        sides["recv" in name].extend(_tensors(operation.tensor))
    return sides


def _tensors(values: Any) -> list[Any]:
    return [value for value in leaves(values) if tensors.is_tensor(value)]


def _caller() -> FrameType:
    """Return the nearest frame outside of MindSpore's communication and of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (
        __name__,
        collective_listeners.__name__,
        *HOMES,
    ):
        frame = frame.f_back
    return frame


def _attempt(function: Callable[[], None]) -> None:
    """Call ``function``; an earlier failure of training that is noticed while reading is raised as it was."""
    try:
        _listeners.attempt(function)
    except Deferred as deferred:
        raise deferred.error from None


_handles = Handles(_attempt)


def _issued(operation: str, results: Any, direction: Direction, calls: Calls, outputs: list[Any]) -> None:
    """Record the outputs of a function that has returned: new or in place, complete unless there is a handle."""
    everything = list(leaves(results))
    handle = next((value for value in everything if isinstance(value, mindspore._c_expression.CommHandle)), None)
    # a batch returns one entry for each tensor that it sends, too
    returned = () if operation == "batch_isend_irecv" else _tensors(everything)
    outputs = (returned or outputs) if outputs or direction.outputs == "all" else []
    _handles.expect(handle, [Transfer(calls, list(outputs), [])])
