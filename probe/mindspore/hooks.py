"""What core asks of models, for MindSpore's dynamic graph: names, and hooks that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mindspore
from mindspore import nn

from probe.core.leaves import leaves
from probe.mindspore import engine, listeners, tensors
from probe.mindspore.engine import backward_id, differentiates, feeds
from probe.mindspore.gradients import gradient, on_gradient
from probe.mindspore.input_gradients import on_input_gradients, watch_inputs
from probe.mindspore.optimizers import known, on_step, owned, state, state_names

__all__ = [
    "at_next_forward",
    "backward_id",
    "check",
    "differentiates",
    "feeds",
    "gradient",
    "held_scale",
    "loss_scale",
    "modules",
    "on_forward",
    "on_gradient",
    "on_input_gradients",
    "on_step",
    "on_tensor_gradient",
    "owned",
    "parameters",
    "recomputed_by",
    "state",
    "state_names",
    "trainable",
    "watch_inputs",
]

RECOMPUTING = ("_RecomputeCell", "_WrapCell")
"""Cells that ``Cell.recompute`` makes, which older versions list among the user's."""

Remove = Callable[[], None]
Guard = Callable[[Callable[..., None]], Callable[..., None]]


def check(chunks: Sequence[tuple[int, Any]], optimizers: Sequence[Any], settings: Any) -> None:
    """Refuses what cannot be watched.

    Raises:
        ValueError: saying what was expected, what came and what to do.
    """
    if mindspore.get_context("mode") == mindspore.GRAPH_MODE:
        raise ValueError(
            "set_monitor: MindSpore runs in GRAPH_MODE, which compiles cells and optimizers whole, so that no hook "
            "runs: call mindspore.set_context(mode=mindspore.PYNATIVE_MODE) first. There, functions compiled by "
            "mindspore.jit keep their speed; all but the activations inside them can be monitored"
        )
    for _, model in chunks:
        if not isinstance(model, nn.Cell):
            raise ValueError(f"set_monitor: model: expected a mindspore.nn.Cell or a list of them, got {type(model)}")
        if settings.xy_distribution and (names := _compiled(model)):
            raise ValueError(
                f"set_monitor: cell {names[0]!r} is compiled by mindspore.jit, so that hooks on the cells inside would "
                "not run. Weight gradients, parameters and optimizer state can be monitored (xy_distribution: false); "
                "for activations take the decorator away"
            )
    for optimizer in optimizers:
        if not known(optimizer):
            raise ValueError(
                "set_monitor: optimizer: expected a mindspore.nn.Optimizer, a mindspore.experimental.optim.Optimizer "
                f"or an object with step() and param_groups, got {type(optimizer)}"
            )


def _compiled(model: nn.Cell) -> list[str]:
    """Names of cells with cells inside whose ``construct`` is compiled."""
    return [
        name
        for name, cell in modules(model)
        if getattr(cell.construct, "__wrapped_by_jit__", False) and next(iter(cell.cells()), None) is not None
    ]


def modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Every cell once, under its first name; the root is ``""``."""
    found = model.named_modules() if hasattr(model, "named_modules") else model.cells_and_names()
    yield from ((name, cell) for name, cell in found if type(cell).__name__ not in RECOMPUTING)


def parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Every parameter once, by the path of attributes that leads to it."""
    yield from model.named_parameters() if hasattr(model, "named_parameters") else model.parameters_and_names()


def trainable(parameter: Any) -> bool:
    """Whether a gradient hook can be placed now."""
    return bool(parameter.requires_grad)


def loss_scale() -> None:
    """Not known: gradients are written as MindSpore computed them."""


def held_scale(optimizer: Any) -> None:
    """Not known, as :func:`loss_scale`."""


def on_tensor_gradient(tensor: Any, listen: Callable[[Any], None], guard: Guard) -> None:
    """Listens to the gradient of ``tensor`` in the graph it is part of; the hook goes with the graph."""
    if not engine.HAS_GRAPH or tensor._grad_node is not None:
        tensor.register_hook(listeners.surfacing(guard(listen)))


def on_forward(
    module: Any,
    root: Any,  # noqa: ARG001 - whether a cell is in training says nothing, see engine.forward_kind
    before: Callable[[str, Any], None],
    after: Callable[[str, Any], None],
    guard: Guard,
) -> Remove:
    """Listens to forwards that are differentiated; each is told its kind, ``training`` or ``recompute``."""

    @guard
    def began(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kind := engine.forward_kind():
            before(kind, (args, kwargs))

    @guard
    def ended(outputs: Any) -> None:
        if kind := engine.forward_kind():
            after(kind, outputs)

    removes = listeners.before(module, began), listeners.after(module, ended)

    def remove() -> None:
        for each in removes:
            each()

    return remove


def at_next_forward(model: Any, function: Callable[[], None]) -> Remove:
    """Calls ``function`` in the backward of the next forward of ``model``: there no hook of a cell is running, and a
    hook can be taken away only then."""
    called = False

    def once(_: Any) -> None:
        nonlocal called
        if not called:
            called = True
            function()

    def ended(outputs: Any) -> None:
        for value in leaves(outputs):
            if tensors.is_tensor(value) and differentiates():
                on_tensor_gradient(value, once, lambda f: f)

    return listeners.after(model, ended)


def recomputed_by() -> int | None:
    """Identity of the recomputed cell that is running, in the forward or again in the backward, if any."""
    again = engine.recomputed_by()
    return None if again is None else again[0]
