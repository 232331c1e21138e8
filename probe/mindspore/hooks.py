"""Models in MindSpore's dynamic graph, as core sees them: names, and hooks that change nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import mindspore
from mindspore import nn

from probe.core.backend.call_stack import callers
from probe.core.backend.protocols import ForwardKind, Guard, Listen, Remove, StepListener, unheard
from probe.core.backend.pytree import leaves
from probe.core.config.schema import Settings
from probe.core.door import FaultCounter, attempt
from probe.core.instrumentation.signals.sources import chosen
from probe.mindspore import autograd, cell_hooks, compiled_steps, tensors
from probe.mindspore.autograd import backward_id, differentiates, feeds  # noqa: F401 - like others, of the protocol
from probe.mindspore.gradients import gradients_of, holds, on_gradient  # noqa: F401
from probe.mindspore.input_gradients import on_input_gradients, watch_inputs  # noqa: F401
from probe.mindspore.loss_graphs import PARAMETERS
from probe.mindspore.loss_scale import found_inf, held_scale, loss_scale  # noqa: F401
from probe.mindspore.optimizers import table
from probe.mindspore.optimizers.table import adam, learning_rate, owned, state, state_names  # noqa: F401

EMPTY = (nn.Cell.construct, nn.CellList.construct, nn.CellDict.construct)
"""Methods that only raise."""
_log = logging.getLogger("probe")
RECOMPUTING = ("_RecomputeCell", "_WrapCell")
"""Cells that ``Cell.recompute`` makes; older versions list them among the user's."""


def check_model(model: Any, settings: Settings) -> None:
    """Refuse signals in graph mode, an object that is no cell, and activations of a model with a compiled cell.

    Raises:
        ValueError: naming the expectation, the actual value and the remedy.
    """
    if _in_graph_mode() and (settings.print_struct or settings.cc_distribution.enable or chosen(settings)):
        raise ValueError(
            "set_monitor: MindSpore runs in GRAPH_MODE, which compiles cells and optimizers whole, so that no hook "
            "runs: call mindspore.set_context(mode=mindspore.PYNATIVE_MODE) first. There, functions compiled by "
            "mindspore.jit keep their speed; all but the activations inside them can be monitored. In GRAPH_MODE only "
            "numbers of the run can be recorded, by RunCallback: switch all signals off"
        )
    if settings.compiled == "record":
        raise ValueError(
            'set_monitor: compiled: "record" is for torch.compile alone: no hook runs in what mindspore.jit compiles; '
            'use compiled: "skip"'
        )
    if settings.monitor_mbs_grad == "accumulated":
        raise ValueError(
            'set_monitor: monitor_mbs_grad: "accumulated" asks for the running sum of gradients, which MindSpore does '
            "not hold between micro batches; true records each micro batch's own gradient, false the sum of the step"
        )
    if not isinstance(model, nn.Cell) and not adapted(model):
        raise ValueError(
            f"set_monitor: model: expected a mindspore.nn.Cell or a list of them, got {type(model)}; pass the model, "
            "one of PyTorch to probe.pytorch"
        )
    if settings.xy_distribution and (compiled := _compiled(model)):
        raise ValueError(
            f"set_monitor: cell {compiled[0]!r} is compiled by mindspore.jit, so that hooks on the cells inside would "
            "not run. Weight gradients, parameters and optimizer state can be monitored (xy_distribution: false); "
            "for activations take the decorator away"
        )


def _in_graph_mode() -> bool:
    return bool(mindspore.get_context("mode") == mindspore.GRAPH_MODE)


def on_step(optimizer: Any, listener: StepListener) -> Remove:
    """Listen to training steps; in graph mode to those that :class:`probe.mindspore.callbacks.RunCallback` counts."""
    return (compiled_steps if _in_graph_mode() else table).on_step(optimizer, listener)


def check_optimizer(optimizer: Any) -> None:
    """Refuse an object that neither is called with gradients nor has a ``step``.

    Raises:
        ValueError: naming the expectation and the actual type.
    """
    if not table.known(optimizer):
        raise ValueError(
            "set_monitor: optimizer: expected a mindspore.nn.Optimizer, a mindspore.experimental.optim.Optimizer "
            f"or an object with step() and param_groups, got {type(optimizer)}; pass the optimizer that trains"
        )


def _compiled(model: nn.Cell) -> list[str]:
    """Return the names of cells that contain cells and whose ``construct`` is compiled."""
    return [
        name
        for name, cell in modules(model)
        if isinstance(cell, nn.Cell)
        and getattr(cell.construct, "__wrapped_by_jit__", False)
        and next(iter(cell.cells()), None) is not None
    ]


def adapted(model: Any) -> bool:
    """Return whether ``model`` is a module of a ``torch`` that is implemented by MindSpore (msadapter, mindtorch): it
    has torch's methods and MindSpore's parameters."""
    named = getattr(model, "named_parameters", None)
    _, first = next(iter(named()), ("", None)) if callable(named) else ("", None)
    return isinstance(first, mindspore.Tensor)


def modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield every cell once, under its first name; the root is ``""``."""
    found = model.named_modules() if adapted(model) else model.cells_and_names()
    yield from ((name, cell) for name, cell in found if type(cell).__name__ not in RECOMPUTING)


def structure(model: Any) -> tuple[int, ...]:
    """Return the identities of all cells of ``model`` and of their parameters."""
    if adapted(model):
        return tuple(id(thing) for named in (model.named_modules(), model.named_parameters()) for _, thing in named)
    found, waiting = dict[int, None](), [model]
    while waiting:
        if id(cell := waiting.pop()) in found:
            continue
        found[id(cell)] = None
        found.update(dict.fromkeys(map(id, cell._params.values())))
        waiting.extend(child for child in cell._cells.values() if child is not None)
    return tuple(found)


def tokens(parameters: Sequence[Any]) -> list[int]:
    """Return the identities of ``parameters``, whose tensors cannot be exchanged."""
    return [*map(id, parameters)]


def runs(module: Any) -> bool:
    """Return whether a cell has a ``construct``; a ``CellList`` has none."""
    return getattr(type(module), "construct", None) not in EMPTY or "construct" in vars(module)


def parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield every parameter once, by the path of attributes that leads to it."""
    for name, parameter in model.named_parameters() if adapted(model) else model.parameters_and_names():
        PARAMETERS[id(parameter)] = parameter
        yield name, parameter


def value(optimizer: Any, parameter: Any) -> Any:  # noqa: ARG001
    """Return the parameter itself: each process holds it whole."""
    return parameter


def trainable(parameter: Any) -> bool:
    """Return whether a gradient hook can be placed now."""
    return bool(parameter.requires_grad)


def on_tensor_gradient(tensor: Any, listen: Listen) -> None:
    """Listen to the gradient of ``tensor`` in its graph; the hook is freed with the graph."""
    node = tensor._grad_node if autograd.HAS_GRAPH else None
    if autograd.HAS_GRAPH and node is None:
        return
    if node is None or node.is_leaf():
        tensor.register_hook(cell_hooks.surfacing(listen))
        return
    index = tensor._output_index

    def receive(gradients: tuple[Any, ...]) -> None:
        for number, value in enumerate(gradients):
            if number == index and value is not None:
                listen(value)

    # not Tensor.register_hook: mindspore.jit compiles hooks of a function's input tensors into its graph
    node.register_prehook(cell_hooks.surfacing(receive))


def forward_kind(root: Any) -> ForwardKind | None:
    """Return ``recompute`` inside a backward, ``training`` if gradients will follow, None for evaluation.

    ``Cell.training`` does not decide: it is False until a script sets it, and many scripts never do.
    """
    return None if adapted(root) and not root.training else autograd.forward_kind()


def on_forward(
    module: Any,
    before: Callable[..., None],
    after: Callable[..., None],
    guard: Guard,
    *,
    inside: Callable[[], bool] | None = None,  # noqa: ARG001
    gradients: bool = False,  # noqa: ARG001
) -> Remove:
    """Listen to forwards that are not compiled."""
    with ExitStack() as placed:
        placed.callback(cell_hooks.before(module, guard(before)))
        if after is not unheard:
            placed.callback(cell_hooks.after(module, guard(after), raised_too=True))
        return placed.pop_all().close


def graph_size() -> None:
    """Return None: MindSpore does not count what becomes part of a graph."""


def has_compiled() -> bool:
    """Return False: a model with a compiled cell is refused where activations are recorded."""
    return False


def may_rest() -> bool:
    """Return False: the hooks of cells stay."""
    return False


def at_next_forward(model: Any, function: Callable[[], None], faults: FaultCounter) -> Remove:
    """Call ``function`` in the backward of each forward of ``model``: no hook of a cell runs there, so that hooks can
    be removed."""

    def ended(outputs: Any) -> None:
        calls = [function]

        def once(_: Any) -> None:
            if calls:
                attempt(faults, "end of the run", calls.pop())

        for value in leaves(outputs):
            if tensors.is_tensor(value) and differentiates():
                on_tensor_gradient(value, once)

    return cell_hooks.after(model, partial(attempt, faults, "end of the run", ended))


def at_work() -> bool:
    """Return whether a backward runs on this thread, or a cell calls its hooks. The cell iterates over the dict that
    holds its hooks (MindSpore 2.10) and raises if one is removed meanwhile; only the stack shows the iteration."""
    return backward_id() != -1 or any(frame.f_code.co_name in cell_hooks.ITERATING for frame in callers())


def recomputed_by() -> int | None:
    """Return the identity of the recomputed cell that is running, in the forward or again in the backward, if any."""
    again = autograd.recomputed_by()
    return None if again is None else again[0]
