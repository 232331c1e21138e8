"""Models and optimizers of a program of torch that is watched as it is; :mod:`probe.launch.watch` decides."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.variables import nn_module
from torch.optim import optimizer as base

from probe.core.backend.live_objects import instances
from probe.core.door import Remove, passage, replace
from probe.core.faults import Faults
from probe.launch.watch import ScriptWatch
from probe.pytorch import hooks, parallel
from probe.pytorch.adapter import TrainerMon
from probe.pytorch.engines.names import inside
from probe.pytorch.engines.native import on_every_step as every_step
from probe.pytorch.engines.steps import made_steps


class TorchFinder:
    """See :class:`probe.launch.model_search.Finder`."""

    framework = "pytorch"
    monitor = TrainerMon
    called = torch.nn.Module
    step = "step"

    def trains(self, model: torch.nn.Module) -> bool:
        return bool(model.training and torch.is_grad_enabled()) and hooks.backward_id() == -1

    def parameters(self, model: torch.nn.Module) -> Iterable[Any]:
        return (parameter for _, parameter in hooks.parameters(model))

    def owned(self, optimizer: Any) -> Iterable[Any]:
        return hooks.owned(parallel.acting(optimizer))

    def models(self) -> list[Any]:
        return instances(torch.nn.Module)

    def chosen(
        self,
        model: torch.nn.Module,
        wanted: frozenset[int],  # noqa: ARG002
        parents: Callable[[Any], list[Any]],
    ) -> torch.nn.Module:
        """Return the outermost wrapper around ``model``, such as DistributedDataParallel, else the model."""
        while True:
            around = [parent for parent in parents(model) if _wraps(parent, model)]
            if not around:
                break
            model = around[0]
        return model

    def before_tracing(self, models: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
        unwrapped = []
        for model in models:
            while isinstance(model, _COMPILED):
                model = model._orig_mod  # noqa: PLW2901
            hooks.attach_before_tracing(model)
            unwrapped.append(model)
        return unwrapped

    def have_gradients(self, parameters: Iterable[Any]) -> bool:
        return any(parameter.grad is not None for parameter in parameters)

    @passage
    def is_compiled_inside(self) -> bool:
        return callable(_compiler())

    def replace_call(self, replacement: Callable[..., Any]) -> Remove:
        """Replace ``torch.nn.Module.__call__``, and the compiler's reference to it, by which it knows calls that it
        need not check: what it traces now is not compiled again when the method is put back (torch 2.13)."""
        original = torch.nn.Module.__call__
        with ExitStack() as placed:
            placed.callback(replace(torch.nn.Module, "__call__", replacement))
            if getattr(nn_module, _UNPATCHED, None) is original:
                placed.callback(replace(nn_module, _UNPATCHED, replacement))
            return placed.pop_all().close

    def made_steps(self, optimizer: Any) -> int:
        return made_steps(optimizer)

    def settings(self, optimizer: Any) -> str:
        return repr(getattr(optimizer, "defaults", ""))


_compiler = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)
"""Function of torch that returns what compiles the frames of this thread."""
_UNPATCHED = "unpatched_nn_module_call"
"""Name of the compiler's reference to ``torch.nn.Module.__call__``."""
_COMPILED = torch._dynamo.OptimizedModule
"""Class of what ``torch.compile`` returns for a module; it compiles at the first call."""


def _wraps(wrapper: torch.nn.Module, model: torch.nn.Module) -> bool:
    name = inside(wrapper)
    return name is not None and getattr(wrapper, name, None) is model


def optimizers() -> list[torch.optim.Optimizer]:
    """Return all optimizers of the process; not those that only pass calls on to one, such as Accelerate's."""
    return [optimizer for optimizer in instances(torch.optim.Optimizer) if "defaults" in vars(optimizer)]


def can_listen() -> bool:
    """Return whether hooks of steps may be placed now: not while torch iterates over those that there are."""
    placed = base._global_optimizer_pre_hooks or base._global_optimizer_post_hooks  # torch 2.4 to 2.13
    return not placed or not hooks.at_work()


def on_every_step(ended: Callable[[Any], None]) -> Remove:
    """Call ``ended`` after each step of every optimizer."""
    return every_step(lambda *_: None, lambda optimizer, *_: ended(optimizer), Faults())


FINDER = TorchFinder()
WATCH = ScriptWatch(FINDER)
"""Watch of this process; it is made with its first optimizer."""
atexit.register(WATCH.ended)
