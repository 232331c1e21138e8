"""Events of a training loop of MindSpore between two updates, in PyNative mode: its backwards, the total norms by which
it clips, and the gradients that optimizers are called with. Everything here is called in every step, sampled or not.

MindSpore passes gradients as arguments: parameters hold none between a backward and the update, and nothing is added up
unless the program does it. Only packages that imitate torch (msadapter, mindtorch) keep them in ``grad``.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import mindspore
import numpy as np
import numpy.typing as npt
from mindspore import nn
from mindspore.nn.layer.normalization import _BatchNorm

from probe.core.backend.module_trees import ModuleTree
from probe.core.backend.patch import Shared, Undo
from probe.core.backend.protocols import Remove
from probe.core.checks.beginning import Beginning
from probe.core.door import FaultCounter, attempt, replace
from probe.mindspore import autograd, compiled_steps, gradients, loss_graphs, loss_scale, tensors
from probe.mindspore.cell_hooks import surfacing
from probe.mindspore.data_sets import on_habit  # noqa: F401 - a function of the protocol
from probe.mindspore.loss_graphs import loss_graph, uses  # noqa: F401 - functions of the protocol
from probe.mindspore.oddities import oddities  # noqa: F401
from probe.mindspore.optimizers import table
from probe.mindspore.optimizers.rates import groups, rates  # noqa: F401 - functions of the protocol
from probe.mindspore.private_api import executor

try:
    from mindspore.ops.function.clip_func import _ClipByGlobalNorm as GlobalNormClip
except ImportError:  # before 2.5
    from mindspore.ops.composite.clip_ops import _ClipByGlobalNorm as GlobalNormClip

Began = Callable[["mindspore.Tensor | None", Collection[int]], None]
Clipped = Callable[[float, Callable[[float], float]], None]
ACTIVE = (_BatchNorm, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Cells that compute otherwise in training."""
NORMALISING = frozenset({"exp_avg_sq", "exp_inf", "square_avg", "acc_delta", "sum"})
"""State of optimizers whose updates do not depend on the size of the gradient."""
LEAST_SCALE = 8.0
"""Least gradient of a loss that is taken for the factor of a scaler: others weigh the loss, or turn its sign."""
_TREE = ModuleTree(nn.Cell, "_params", "_cells", ("_params_list", "_buffers"))
MARKED = 1024
"""Elements of a gradient that show whether it was written: its version does not show every write (MindSpore 2.10)."""


class _Backwards:
    """Listener to the backwards of this process."""

    def __init__(self, began: Began, ended: Callable[[], None], faults: FaultCounter) -> None:
        self.began, self.ended, self.faults = began, ended, faults


class _Norms:
    """Listener to total norms, and to the clipping by them."""

    def __init__(self, measured: Callable[[Sequence[Any]], None], clipped: Clipped, faults: FaultCounter) -> None:
        self.measured, self.clipped, self.faults = measured, clipped, faults


class _Forward:
    """The forward that was recorded last, whose gradient may be asked for next. Its output is not kept alive."""

    def __init__(self) -> None:
        self.function = 0
        """Identity of the function or cell."""
        self.output: Callable[[], Any] = _nothing
        """Function that returns its output, or the first of several."""
        self.single = False
        """True if it has one output."""

    def ended(self, function: Any, output: Any) -> None:
        """Note the end of a forward."""
        self.single = not isinstance(output, tuple | list)
        first = output if self.single else next(iter(output), None)
        self.function = id(function)
        self.output = weakref.ref(first) if isinstance(first, mindspore.Tensor) else _nothing

    def root(self, function: Any, has_aux: bool) -> Any:
        """Return the output of ``function`` whose gradient is computed if it is a loss: one number, alone or with
        others that are only returned."""
        output = self.output() if self.function == id(function) and (self.single or has_aux) else None
        if output is None or not tensors.is_tensor(output) or output.size != 1:
            return None
        return output if "Float" in str(output.dtype) else None


def _nothing() -> None:
    """Return None, as a reference to a tensor that is gone."""


_forward = _Forward()
_scale: Any = None
"""Factor on the loss of the backward that begins, if the function that is differentiated multiplies by one."""
_given: tuple[Any, ...] = ()
"""Arguments of the function that is differentiated in the backward that begins."""
_measured: Sequence[Any] | None = None
"""Gradients whose total norm is about to be computed."""
_objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The latest object for each gradient that a parameter holds, by the address of its elements."""
_clipped: dict[int, tuple[Callable[[], Any], int]] = {}
"""Gradients that the latest clip has made: a reference to each by its identity, and the identity of what it was."""


def on_backward(began: Began, ended: Callable[[], None], faults: FaultCounter) -> Remove:
    """Call ``began`` before each backward that runs in no other, with the loss and the identities of the parameters
    whose gradients were asked for; ``ended`` after it, if it did not raise."""
    return _backwards.listen(_Backwards(began, ended, faults))


def _listen_to_executor() -> Iterator[Undo]:
    kind = type(executor)
    for name, around in (("end_graph", _around_forward), ("check_run", _around_search), ("grad", _around_gradient)):
        if hasattr(kind, name):
            original = getattr(kind, name)
            yield replace(kind, name, functools.wraps(original)(around(original)))
    if callable(original := getattr(mindspore.Tensor, "backward", None)):  # of a package that imitates torch
        yield replace(mindspore.Tensor, "backward", functools.wraps(original)(_around_backward(original)))
    yield replace(nn.LossBase, "__call__", _compute_loss)


def _compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
    result = super(nn.LossBase, self).__call__(*args, **kwargs)  # others replace that, too
    for listener in _backwards:
        surfacing(attempt)(listener.faults, "loss", loss_graphs.called, self, args, result)
        break
    return result


_backwards: Shared[_Backwards] = Shared(_listen_to_executor, weak=True)


def _around_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def end_graph(self: Any, function: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, function, output, *args, **kwargs)
        for listener in _backwards:
            attempt(listener.faults, "forward", _forward.ended, function, output)
        return result

    return end_graph


def _around_search(original: Callable[..., Any]) -> Callable[..., Any]:
    def check_run(self: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, function, *args, **kwargs)
        if isinstance(result, tuple) and len(result) == 2 and result[0]:  # the forward has run before
            for listener in _backwards:
                attempt(listener.faults, "forward", _forward.ended, function, result[1])
        return result

    return check_run


def _around_gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    def grad(self: Any, function: Any, operation: Any, weights: Any, *args: Any, **kwargs: Any) -> Any:
        if autograd.backward_id() != -1:
            return original(self, function, operation, weights, *args, **kwargs)
        for listener in _backwards:
            surfacing(attempt)(
                listener.faults, "backward", _announce, listener.began, function, operation, weights, args
            )
        loss_graphs.forget()
        result = original(self, function, operation, weights, *args, **kwargs)
        for listener in _backwards:
            surfacing(attempt)(
                listener.faults, "backward", _conclude, listener.ended, function, operation, weights, args, result
            )
        return result

    return grad


def _announce(began: Began, function: Any, operation: Any, weights: Any, given: tuple[Any, ...]) -> None:
    global _scale, _given  # noqa: PLW0603 - facts of the process, for the time of the call
    _given = given
    root = _forward.root(function, bool(getattr(operation, "has_aux", False)))
    _scale = None if root is None else loss_scale.scale_within(function)
    if _passed(operation, given) >= LEAST_SCALE:  # the gradients have this factor, and the loss has not
        _scale = mindspore.Tensor(1.0, mindspore.float32)
    try:
        began(root, {id(weight) for weight in _asked(function, operation, weights)})
    finally:
        _scale, _given = None, ()


def _passed(operation: Any, given: Sequence[Any]) -> float:
    """Return the gradient of the loss itself: 1 if none is passed in, NaN if it is not one number that the host
    knows."""
    if not getattr(operation, "sens_param", False):
        return 1.0
    passed: Any = given[-1] if given else None
    number = tensors.number(passed) if tensors.is_tensor(passed) and passed.size == 1 else None
    return math.nan if number is None else number


def _asked(function: Any, operation: Any, weights: Any) -> Sequence[Any]:
    """Return the parameters whose gradients are asked for, in their order."""
    if weights is None:
        alone = getattr(operation, "get_by_list", False) and isinstance(function, nn.Cell)
        return function.trainable_params() if alone else ()
    return [weights] if isinstance(weights, mindspore.Tensor) else [*weights]


def _conclude(
    ended: Callable[[], None], function: Any, operation: Any, weights: Any, given: Sequence[Any], result: Any
) -> None:
    asked = _asked(function, operation, weights) if not math.isnan(_passed(operation, given)) else ()
    if getattr(operation, "get_all", False) or getattr(operation, "get_by_position", False):
        result = result[-1] if asked and isinstance(result, tuple | list) and len(result) == 2 else ()
    values = [result] if isinstance(result, mindspore.Tensor) else [*(result or ())]
    pairs = zip(asked, values, strict=True) if len(asked) == len(values) else ()
    with gradients.returned({id(parameter): value for parameter, value in pairs}):
        ended()


def _around_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if autograd.backward_id() != -1:
            return original(tensor, *args, **kwargs)
        passed = next(iter((*args, *kwargs.values())), None)
        for listener in _backwards:
            surfacing(attempt)(listener.faults, "backward", _announce_root, listener.began, tensor, passed)
        loss_graphs.forget()
        result = original(tensor, *args, **kwargs)
        for listener in _backwards:
            surfacing(attempt)(listener.faults, "backward", listener.ended)
        return result

    return backward


def _announce_root(began: Began, tensor: Any, passed: Any) -> None:
    began(tensor if passed is None and tensor.size == 1 else None, ())


def end_compiled_backward(loss: object, optimizers: Iterable[Any]) -> None:
    """Announce a backward that was compiled with its update, after it: of what the compiled cell has returned."""
    asked = {id(parameter) for optimizer in optimizers for parameter in table.owned(optimizer)}
    root = loss if isinstance(loss, mindspore.Tensor) and loss.size == 1 else None
    for listener in _backwards:
        surfacing(attempt)(listener.faults, "backward", listener.began, root, asked)
        surfacing(attempt)(listener.faults, "backward", listener.ended)


def scale_of(root: Any) -> Any:  # noqa: ARG001
    """Return the factor by which a ``LossScaler`` has multiplied the loss of the backward that begins; None if none
    has."""
    return _scale


def first_not_finite(root: Any, names: Mapping[int, str]) -> Beginning | None:  # noqa: ARG001
    """Return an input of the function that is differentiated, or labels, where the numbers that are not finite begin;
    None if these are finite: nodes of MindSpore's graph do not show the values that they keep."""
    return loss_graphs.spoilt_input(_given)


def unregistered(model: Any) -> dict[int, str]:
    """Return the trainable parameters of cells that nested containers of a cell hold, by identity, with their names: a
    plain list of cells is registered."""
    found = _TREE.unregistered(model, lambda thing: isinstance(thing, mindspore.Parameter) and thing.requires_grad)
    loss_graphs.PARAMETERS.update({identity: thing for identity, (_, thing) in found.items()})
    return {identity: name for identity, (name, _) in found.items()}


def kept_losses(models: Sequence[Any], root: Any) -> Mapping[str, bool]:  # noqa: ARG001
    """Return nothing: losses that cells keep are not looked for."""
    return {}


def collectives() -> int:
    """Return 0: nothing counts them."""
    return 0


def life(root: Any) -> tuple[()]:  # noqa: ARG001
    """Return nothing: MindSpore frees its graph with the backward."""
    return ()


def on_total_norm(measured: Callable[[Sequence[Any]], None], clipped: Clipped, faults: FaultCounter) -> Remove:
    """Call ``measured`` with the gradients whose total norm ``ops.clip_by_global_norm`` is about to compute, and
    ``clipped`` with that norm, NaN if only a device knows it, and a function from it to the factor by which they are
    then multiplied."""
    return _norms.listen(_Norms(measured, clipped, faults))


def _listen_to_clips() -> Iterator[Undo]:
    def call(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        for listener in _norms:
            surfacing(attempt)(listener.faults, "total norm", _measure, listener, x, self)
        result = super(GlobalNormClip, self).__call__(x, *args, **kwargs)  # others replace that, too
        for listener in _norms:
            attempt(listener.faults, "clip", _remember, x, result)
        return result

    yield replace(GlobalNormClip, "__call__", call)


_norms: Shared[_Norms] = Shared(_listen_to_clips, weak=True)


def _measure(listener: _Norms, values: Sequence[Any], clip: Any) -> None:
    global _measured  # noqa: PLW0603 - a fact of the process, for the time of the call
    _measured = values
    try:
        listener.measured(values)
        rows = tensors.moments(values, ("sum", "sumsq"), 0.0)
        limit = tensors.number(clip.clip_norm)
        norm = math.sqrt(rows[:, 1].sum()) if isinstance(rows, np.ndarray) else math.nan
        listener.clipped(norm, lambda norm: math.nan if limit is None else limit / max(norm, limit))
    finally:
        _measured = None


def _remember(values: Sequence[Any], result: Sequence[Any]) -> None:
    _clipped.clear()
    for value, made in zip(values, result, strict=True):
        _clipped[id(made)] = weakref.ref(made), id(value)


def origins(values: Sequence[Any]) -> list[int]:
    """Return the identities of the gradients of which a clip has made these; their own if none has."""
    return [
        mark[1] if (mark := _clipped.get(id(value))) is not None and mark[0]() is value else id(value)
        for value in values
    ]


def on_epoch(began: Callable[[object, int], None], faults: FaultCounter) -> Remove:  # noqa: ARG001
    """Listen to nothing: datasets draw another order in each epoch themselves."""
    return lambda: None


def advanced(optimizer: Any) -> None:
    """Return None: a schedule is counted with the optimizer."""


def forwards(models: Iterable[Any]) -> None:
    """Return None: batch statistics do not show how often they were written."""


def overrun(optimizer: Any, times: int) -> str:  # noqa: ARG001
    """Return nothing: a schedule is a list of rates, one an update."""
    return ""


def divided(parameters: Sequence[Any]) -> bool:  # noqa: ARG001
    """Return False: each rank holds whole gradients where they are clipped."""
    return False


def on_cut(cut: Callable[[], None], faults: FaultCounter) -> Remove:  # noqa: ARG001
    """Listen to nothing: what ``Cell.recompute`` runs again is part of the graph."""
    return lambda: None


def shows_gradients(optimizer: Any) -> bool:  # noqa: ARG001
    """Return whether the update that runs was not compiled: what MindSpore compiles calls nothing."""
    return not compiled_steps.counting()


def keeps_elsewhere(optimizer: Any) -> bool:  # noqa: ARG001
    """Return False: gradients are arguments."""
    return False


def keeps(parameters: Sequence[Any]) -> bool:
    """Return whether gradients stay with ``parameters`` from a backward to the update: only those of packages that
    imitate torch do."""
    return any(hasattr(parameter, "grad") for parameter in parameters[:1])


def held(parameters: Sequence[Any]) -> list[Any]:
    """Return the gradient of each parameter that the update that runs was called with, or that a backward has just
    returned, or that is about to be clipped; else the one that the parameter holds."""
    values = _measured
    if values is not None:
        same = [tuple(value.shape) for value in values] == [tuple(parameter.shape) for parameter in parameters]
        return [*values] if same else [None] * len(parameters)
    found = (gradients.present(parameter) for parameter in parameters)
    present = [value if isinstance(value, mindspore.Tensor) else None for value in found]
    if keeps(parameters):
        _objects.update((_address(value), value) for value in present if value is not None)
    return present


def _address(value: Any) -> int:
    """Return the address of the elements; in versions that do not show it the identity of the object."""
    return int(value.data_ptr()) if hasattr(value, "data_ptr") else id(value)


def versions(values: Iterable[Any]) -> list[int]:
    """Return a number for each tensor that writing it changes; -1 for None, and for parameters that no watched model
    has, to which programs add up gradients."""
    return [-1 if value is None or _is_sum(value) else _version(value) for value in values]


def _is_sum(value: Any) -> bool:
    return isinstance(value, mindspore.Parameter) and id(value) not in loss_graphs.PARAMETERS


def _version(value: Any) -> int:
    """Return a hash of the version, and of the first elements of what is in host memory."""
    number = getattr(value, "_version", 0)
    if not tensors.on_host(value):
        return abs(hash((number, id(value))))
    return abs(hash((number, tensors.numbers(value).reshape(-1)[:MARKED].tobytes())))


def reference(value: Any) -> Callable[[], object]:
    """Return a function that returns a gradient as long as it exists; None at once for a parameter, to which programs
    add up gradients in place, so that being the same object says nothing. A gradient that a parameter holds is another
    object at each access: the function returns the latest with the same elements."""
    if isinstance(value, mindspore.Parameter):
        return _nothing
    address = _address(value)
    return functools.partial(_objects.get, address) if _objects.get(address) is value else weakref.ref(value)


class CellReader:
    """Reader of the same parameters again and again.

    Args:
        columns: moments to read.
    """

    def __init__(self, parameters: Sequence[Any], columns: tuple[str, ...]) -> None:
        self._parameters, self._columns = parameters, columns

    def read(self, positions: Sequence[int]) -> tuple[list[int], Callable[[], npt.NDArray[np.float64]]]:
        """Return those of ``positions`` whose parameters have numbers now, and a function that waits for their
        moments."""
        ready = [position for position in positions if tensors.is_tensor(self._parameters[position])]
        if not ready:
            return [], lambda: np.empty((0, len(self._columns)))
        stored = [self._parameters[position] for position in ready]
        return ready, tensors.to_host([tensors.moments(stored, self._columns, 0.0)])


def reader(parameters: Sequence[Any], columns: tuple[str, ...]) -> CellReader:
    """Return a reader of the moments of ``parameters``."""
    return CellReader(parameters, columns)


def own_gradients(parameters: Sequence[Any], blind: Callable[[], bool], faults: FaultCounter) -> None:
    """Return None: what a backward returns may be reduced already."""


def sizes(parameters: Iterable[Any]) -> tuple[int, ...]:
    """Return the number of elements of each parameter."""
    return tuple(int(parameter.size) for parameter in parameters)


def dtypes(parameters: Iterable[Any]) -> tuple[str, ...]:
    """Return the dtype of each parameter."""
    return tuple(str(parameter.dtype) for parameter in parameters)


def resting(models: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of parts in evaluation mode: see :meth:`probe.core.backend.module_trees.ModuleTree.resting`."""
    cells = (model for model in models if isinstance(model, nn.Cell))
    return _TREE.resting(cells, _is_active, lambda part: bool(part.trainable_params()))


def _is_active(part: Any) -> bool:
    """Return whether a part computes otherwise in training."""
    return any(isinstance(cell, ACTIVE) for _, cell in part.cells_and_names())


def normalises(optimizer: Any) -> bool:
    """Return whether the size of an update does not depend on that of the gradients: those of Adam and its like."""
    return not NORMALISING.isdisjoint(table.state_names(optimizer))


def requires(parameters: Iterable[Any]) -> list[bool]:
    """Return which parameters require a gradient."""
    return [bool(parameter.requires_grad) for parameter in parameters]


def training(models: Iterable[Any]) -> bool:
    """Return whether any of the models is in training mode."""
    return any(bool(model.training) for model in models)


def counted(optimizer: Any, parameters: Sequence[Any]) -> int | None:  # noqa: ARG001
    """Return the number of steps in the optimizer's state; None if none is counted, or only a device knows it. That of
    ``nn.Optimizer`` counts only with a schedule, and some versions not even then."""
    steps = getattr(optimizer, "state_step", None)
    number = tensors.number(steps) if isinstance(steps, mindspore.Tensor) and steps.size == 1 else None
    return None if number is None else int(number)


def ties(model: Any) -> tuple[tuple[str, ...], ...]:
    """Return the names that stand for one parameter of a cell, for each parameter with several."""
    return _TREE.ties(model)


def part_ways(models: Iterable[Any]) -> bool:  # noqa: ARG001
    """Return False: no wrapper does so."""
    return False


def reduces(models: Iterable[Any]) -> None:
    """Return None: the program reduces gradients itself."""
