"""Models of torch as seen by core: names, and hooks that change nothing.

Module backward hooks are not used: they wrap every input and output, cost time when idle and raise on in-place modules.
Gradients of outputs come from tensor hooks placed in the forward, those of inputs from the graph (``input_gradients``).
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.autograd.function import FunctionCtx
from torch.jit._script import RecursiveScriptModule
from torch.nn.parameter import is_lazy

from probe.core.backend.call_stack import callers
from probe.core.backend.protocols import ForwardKind, Guard, Listen, Remove, unheard
from probe.core.config.schema import Settings
from probe.core.door import FaultCounter, Hook
from probe.core.faults import Misfit
from probe.pytorch import compiled
from probe.pytorch.engines import fsdp1, names, native, pipelining, table
from probe.pytorch.engines.homes import HOMES, hidden, home, ready
from probe.pytorch.engines.names import modules  # noqa: F401 - like others, of the protocol
from probe.pytorch.engines.steps import (  # noqa: F401
    adam,
    check_optimizer,
    gradients_of,
    holds,
    on_step,
    owned,
    state,
    state_names,
    value,
)
from probe.pytorch.hook_handles import PlacedHook, PlacedHooks
from probe.pytorch.input_gradients import edge_of, on_input_gradients, some, watch_inputs  # noqa: F401
from probe.pytorch.loss_scale import found_inf, held_scale, loss_scale  # noqa: F401

_BACKWARD = tuple(inspect.unwrap(function).__code__ for function in (torch.autograd.backward, torch.autograd.grad))
level = getattr(torch._C._functorch, "maybe_current_level", lambda: None)
"""Level of the active transformations of ``torch.func`` (``vmap``, ``grad``, ...), whose tensors have no numbers."""


def parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield every parameter once, a tied one under its first name; find the home of each."""
    table.look_at(model)
    stand_ins = table.stand_ins(model)
    for name, parameter in names.parameters(model):
        yield name, stand_ins.get(id(parameter), parameter)


def learning_rate(optimizer: Any) -> object:
    """Return the learning rate of the first group of parameters; None if ``optimizer`` shows none."""
    groups = getattr(optimizer, "param_groups", None)
    return groups[0].get("lr") if groups else None


def runs(module: torch.nn.Module) -> bool:
    """Return whether ``module`` has a forward; a ``ModuleList`` has none."""
    return getattr(type(module), "forward", None) is not torch.nn.Module.forward or "forward" in vars(module)


def structure(model: torch.nn.Module) -> tuple[int, ...]:
    """Return the identities of the modules of ``model`` and, unless a wrapper exchanges them at each forward, of their
    parameters; last the number of those that FSDP has hidden since. No code of the user's runs."""
    identities, waiting, whole = dict[int, None](), [model], not HOMES
    may_hide, gone = fsdp1.may_be_used(), 0
    while waiting:
        inside = vars(module := waiting.pop())
        if id(module) in identities:
            continue
        identities[id(module)] = None
        parameters = inside.get("_parameters", {}).values()
        if whole:
            identities.update(dict.fromkeys(map(id, parameters)))
        if may_hide:
            gone += hidden(parameters)
        waiting.extend(child for child in inside.get("_modules", {}).values() if child is not None)
    return (*identities, gone)


def tokens(parameters: Sequence[torch.nn.Parameter]) -> list[int]:
    """Return the addresses of the tensors behind ``parameters``, which ``torch.utils.swap_tensors`` exchanges."""
    with torch._C.DisableTorchFunctionSubclass():
        return [parameter._cdata for parameter in parameters]


def trainable(parameter: torch.nn.Parameter) -> bool:
    """Return whether a gradient hook can be placed now; on a lazy parameter only after its first forward."""
    return parameter.requires_grad and ready(parameter) and not is_lazy(parameter)


def check_model(model: Any, settings: Settings) -> None:
    """Refuse an object that is no module and, if activations are recorded, a module that is already compiled.

    Raises:
        ValueError: with the expected and the actual object, and the remedy.
    """
    if not isinstance(model, torch.nn.Module):
        raise ValueError(
            f"set_monitor: model: expected a torch.nn.Module or a list of them, got {type(model)}; pass the model, one "
            "of MindSpore to probe.mindspore"
        )
    if settings.compiled == "record":
        compiled.check()
    elif settings.xy_distribution and model not in _UNTRACED and (names := _compiled(model)):
        raise ValueError(
            f"set_monitor: module {names[0]!r} is compiled by torch.compile, and hooks do not run inside; to record "
            'what runs there, set "compiled": "record" (torch 2.13 or later) in the configuration, and call '
            "set_monitor before the first forward; without activations (xy_distribution: false) the model can be "
            "watched as it is"
        )
    table.check(model)


def attach_before_tracing(model: torch.nn.Module) -> None:
    """Accept a model in which modules are compiled, since none of them has run: as if the monitor had come first."""
    _UNTRACED.add(model)


_UNTRACED: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def _compiled(model: torch.nn.Module) -> list[str]:
    """Return the names of modules that ``torch.compile`` has already wrapped."""
    return [
        name
        for name, module in model.named_modules()
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
    ]


backward_id = torch._C._current_graph_task_id
"""Function that returns the identity of the running backward pass; -1 if none is running."""
graph_size = getattr(torch.autograd, "_get_sequence_nr", lambda: None)
"""Function that returns the number of nodes that this thread has made (torch 2.4 to 2.13)."""


def differentiates() -> bool:
    """Return whether operations now become part of a graph."""
    call = compiled.RUNNING.call
    return torch.is_grad_enabled() if call is None else call.differentiates


def on_gradient(
    parameter: torch.nn.Parameter, listen: Callable[..., None], *, own: bool, main_grad: bool, guard: Guard
) -> Remove:
    """Listen once a backward: to the gradient of this backward alone (``own``), or to the sum after it."""
    engine = home(parameter)
    place = native.on_gradient if engine is None else engine.on_gradient
    return place(parameter, listen, own=own, main_grad=main_grad, guard=guard)


def on_tensor_gradient(tensor: torch.Tensor, listen: Listen) -> None:
    """Listen to the gradient of ``tensor`` in its graph; the hook goes with the graph. Ignore a parameter, which a
    module may return: it outlives the graph, and its gradient is not that of an activation."""
    if (call := compiled.running()) is not None:
        call.expect(tensor, listen)
    elif tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter):
        tensor.register_hook(some(listen))


def on_forward(
    module: torch.nn.Module,
    before: Callable[..., None],
    after: Callable[..., None],
    guard: Guard,
    *,
    inside: Callable[[], bool] | None = None,
    gradients: bool = False,
) -> Remove:
    """Listen to forwards. Where one raises an exception, ``after`` is called with None while that is handled.

    While ``torch.compile`` traces, the hooks do nothing, unless ``inside`` is passed: if traced, they would break the
    graph, or raise if breaks are forbidden. A hook that is removed while a forward calls the module's hooks is still
    called in that forward, but without keyword arguments (torch 2.13).

    Raises:
        Misfit: for a module that takes no hooks.
    """
    if isinstance(module, RecursiveScriptModule):
        raise Misfit("expected a module that takes hooks, got one of torch.jit.script, whose forwards are not seen")
    if inside is not None:
        return compiled.on_forward(module, before, after, guard, inside, gradients)

    def enter(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        before(args, kwargs or {})

    entering = PlacedHook(module.register_forward_pre_hook(guard(enter), with_kwargs=True))
    if after is unheard:
        return entering

    def leave(_: torch.nn.Module, __: tuple[Any, ...], outputs: Any) -> None:
        after(outputs)

    with ExitStack() as placed:
        placed.callback(entering)
        leaving = PlacedHook(module.register_forward_hook(guard(leave), always_call=True))
        placed.pop_all()
        return PlacedHooks(entering, leaving)


def has_compiled() -> bool:
    """Return whether torch.compile has compiled anything in this process."""
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    return compiler is not None and bool(getattr(compiler, "FRAME_COUNTER", 1) != 0)  # torch 2.13


def may_rest() -> bool:
    """Return whether nothing was compiled in this process: graphs may depend on the hooks that a module had."""
    return not has_compiled()


def at_next_forward(model: torch.nn.Module, function: Callable[[], None], faults: FaultCounter) -> Remove:
    """Call ``function`` whenever ``model`` begins a forward, when hooks may be removed."""

    return model.register_forward_pre_hook(Hook(faults, "end of the run", lambda *_: function())).remove


def at_work() -> bool:
    """Return whether a backward or an optimizer's update runs on this thread, so that no hook may be removed: torch
    iterates over an optimizer's dict of hooks, and in C++ over those of parameters (2.13), but copies modules'."""
    codes = (frame.f_code for frame in callers())
    return backward_id() != -1 or any(code in _BACKWARD or native.is_update(code) for code in codes)


def forward_kind(root: torch.nn.Module) -> ForwardKind | None:
    """Return ``recompute`` inside a backward, ``training`` if gradients will follow, None for evaluation and if the
    model is only traced or transformed."""
    if (
        not root.training
        or (pipelining.STAGE in sys.modules and pipelining.on_trial())
        or torch._C._get_tracing_state()
        or level() is not None
    ):
        return None
    if backward_id() != -1:
        return "recompute"
    return "training" if differentiates() or recomputed_by() is not None else None


def recomputed_by() -> int | None:
    """Return the identity of the running custom autograd function, if any: reentrant checkpointing runs a part of the
    model in the forward of one, without gradients, and again in its backward.

    Only the stack has the running function (torch 2.13): as the argument ``ctx``, by convention.
    """
    for frame in callers():
        if frame.f_code.co_name in ("forward", "backward"):
            context = frame.f_locals.get("ctx")
            if isinstance(context, FunctionCtx) and not compiled.is_graph(context):
                return id(context)
    return None


def feeds(models: Iterable[torch.nn.Module]) -> bool:
    """Return whether the running backward leads to parameters: that of ``torch.autograd.grad`` may lead only to
    inputs, for a gradient penalty or a force."""
    for model in models:
        for parameter in model.parameters():
            if parameter.requires_grad and _will_be_reached(parameter):
                return True
    return False


def _will_be_reached(parameter: torch.nn.Parameter) -> bool:
    engine = home(parameter)
    leaf = parameter if engine is None else engine.leaf(parameter)
    try:
        node = edge_of(leaf)[0] if isinstance(leaf, torch.Tensor) else leaf
        return node is not None and bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # the parameter is itself an input of torch.autograd.grad
        return True
