"""Parameters and optimizers of torch itself, and other objects with ``step`` and ``param_groups``."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch.optim import optimizer as base

from probe.core.backend.call_stack import callers
from probe.core.backend.optimizer_kinds import evaluating
from probe.core.backend.protocols import Adam, Guard, Remove, Shard, StepListener
from probe.core.door import Arguments, Around, FaultCounter, Hook, Traced, attempt, count
from probe.core.faults import Faults
from probe.core.records import Outcome
from probe.pytorch.engines.homes import HIDDEN, HOMES, absent, piece
from probe.pytorch.hook_handles import on_accumulated, on_own
from probe.pytorch.loss_scale import on_scaled_step

CHECKPOINTS = "torch.distributed.checkpoint.state_dict"
"""Module that makes the state of an optimizer by a step."""


def knows(optimizer: Any) -> bool:
    """Return whether steps of ``optimizer`` can be listened to."""
    return callable(getattr(optimizer, "step", None))


def owned(optimizer: Any) -> list[torch.nn.Parameter]:
    """Return every parameter of every group."""
    return [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]


def value(optimizer: Any, parameter: torch.nn.Parameter) -> torch.Tensor | Shard:  # noqa: ARG001
    """Return the part of the parameter that this process holds."""
    return piece(parameter, parameter)


def gradient(optimizer: Any, parameter: torch.nn.Parameter, main_grad: bool) -> torch.Tensor | Shard | None:  # noqa: ARG001
    """Return the gradient that the parameter holds."""
    gradient = held(parameter, main_grad)
    if HOMES or HIDDEN:
        return absent(parameter) if gradient is None else piece(parameter, gradient)
    return gradient


def on_gradient(
    parameter: torch.nn.Parameter, listen: Callable[..., None], *, own: bool, main_grad: bool, guard: Guard
) -> Remove:
    """Listen to the gradient of a parameter that holds its own numbers."""
    if own:
        return on_own(parameter, listen, guard)

    def accumulated(parameter: torch.nn.Parameter) -> None:
        total = held(parameter, main_grad)
        if total is not None:
            listen(total)

    return on_accumulated(parameter, guard(accumulated))


def held(parameter: torch.nn.Parameter, main_grad: bool) -> torch.Tensor | None:
    """Return ``main_grad`` if requested and present, else ``grad``."""
    main = getattr(parameter, "main_grad", None) if main_grad else None
    return parameter.grad if main is None else main


def state(optimizer: Any, parameter: torch.nn.Parameter) -> Mapping[str, torch.Tensor | Shard]:
    """Return the tensors kept for ``parameter`` under the optimizer's own names, without the step counter."""
    state = _states(optimizer).get(parameter, {})
    tensors = {kind: value for kind, value in state.items() if isinstance(value, torch.Tensor)}
    return {kind: piece(parameter, value) for kind, value in tensors.items() if kind != "step" or value.dim()}


def _states(optimizer: Any) -> Mapping[Any, Any]:
    """Return the states of the parameters; of a ``ZeroRedundancyOptimizer`` those of the optimizer of its part."""
    states = getattr(getattr(optimizer, "optim", None), "state", None)
    return states if isinstance(states, Mapping) else getattr(optimizer, "state", {})


def adam(optimizer: Any) -> Callable[[Any], Adam | None]:
    """Return a function to the hyperparameters in a parameter's group; the steps are in its state, else its group."""
    groups = {id(p): group for group in getattr(optimizer, "param_groups", ()) for p in group["params"]}
    states = _states(optimizer)
    return lambda parameter: of_group(groups.get(id(parameter)), states.get(parameter, {}))


def of_group(group: Mapping[str, Any] | None, state: Mapping[str, Any]) -> Adam | None:
    """Return the hyperparameters among the options of a group; None if they are not Adam-like."""
    if group is None or "eps" not in group or len(group.get("betas", ())) < 2:
        return None
    steps = state.get("step", group.get("step"))
    if steps is not None and not group.get("bias_correction", True):  # an option of apex's and DeepSpeed's
        steps = math.inf
    return None if steps is None else Adam(group["betas"][0], group["betas"][1], group["eps"], steps)


def on_step(optimizer: Any, listener: StepListener) -> Remove:
    """Listen through torch's own step hooks or, without them, by wrapping ``step`` on this one object."""
    steps = Steps(optimizer, listener)
    traced = Traced(partial(listener.compiled, optimizer, steps.version))
    with ExitStack() as placed:
        if isinstance(optimizer, torch.optim.Optimizer) and hasattr(optimizer, "_optimizer_step_pre_hooks"):
            faults = listener.faults
            placed.callback(optimizer.register_step_pre_hook(Hook(faults, "optimizer", steps.enter, traced)).remove)
            placed.callback(optimizer.register_step_post_hook(Hook(faults, "optimizer", steps.leave, traced)).remove)
        else:
            around = Around(optimizer, "step", listener.faults, steps.entered, steps.leave, traced)
            placed.callback(around.place())
        placed.callback(on_scaled_step(optimizer, steps))
        return placed.pop_all().close


class Steps:
    """Conversion of calls of ``step`` into training steps."""

    def __init__(self, optimizer: Any, listener: StepListener) -> None:
        self._optimizer, self._listener = optimizer, listener
        self._depth = 0
        self._stepped = self._reported = self._silent = False
        self._outcome: Outcome = "applied"

    def enter(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Listen before ``step``; a subclass that calls its parent's ``step`` calls this twice."""
        try:
            return self._enter(args, kwargs)
        except Exception:
            self._reported = True  # after the update, the values before it can no longer be read
            raise

    def entered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Listen before ``step`` of an object that offers no hooks; return other arguments if they change."""
        changed = self.enter(self._optimizer, (self._optimizer, *args), kwargs)
        return None if changed is None else (changed[0][1:], changed[1])

    @property
    def faults(self) -> FaultCounter:
        """The counter of failures around this optimizer."""
        return self._listener.faults

    def version(self) -> int:
        """Return a number that each update changes."""
        return sum(parameter._version for parameter in owned(self._optimizer)[:1])

    @property
    def sampled(self) -> bool:
        """True if the step in progress is sampled."""
        return self._listener.sampled

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._depth and self._running() <= 1:
            self._depth = 0  # an earlier step raised, and its post hook was not called
        self._depth += 1
        if self._depth > 1:
            return None
        self._silent = initializes_state(self._optimizer)
        if self._silent:
            return None
        self._reported, self._outcome = False, "applied"
        if getattr(self._optimizer, "found_inf", None) is not None:
            self._outcome = attempt(self.faults, "optimizer", self._foreseen) or "unknown"
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if callable(closure):
            return self._with(closure, args, kwargs)
        self._report()
        return None

    def leave(self, *_: Any) -> None:
        """Listen after ``step``."""
        self._depth = max(self._depth - 1, 0)
        if self._depth or self._silent:
            return
        self._report()
        self._stepped = True
        self._listener.after(self._optimizer, self._outcome)

    def scaled_began(self) -> None:
        """Listen before ``GradScaler.step``."""
        self._stepped = False

    def scaled_ended(self) -> None:
        """Report a skipped step if ``GradScaler.step``, which has unscaled the gradients, did not call ``step``."""
        if not self._stepped:
            self._listener.before(self._optimizer, None)
            self._listener.after(self._optimizer, "skipped")

    def _with(self, closure: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return arguments with a closure that reports the gradients after its first evaluation; later evaluations are
        line search."""
        report = partial(attempt, self.faults, "optimizer", self._report)
        evaluate = evaluating(closure, lambda: self._reported, report, self._listener)
        if len(args) > 1:
            return (args[0], evaluate, *args[2:]), kwargs
        return args, kwargs | {"closure": evaluate}

    def _report(self) -> None:
        if not self._reported:
            self._reported = True
            self._listener.before(self._optimizer, getattr(self._optimizer, "grad_scale", None))

    def _foreseen(self) -> Outcome:
        """Return the outcome of a fused optimizer's step, ``unknown`` if only a device has it."""
        found_inf = getattr(self._optimizer, "found_inf", None)
        if found_inf is None:
            return "applied"
        if not isinstance(found_inf, torch.Tensor):
            return "skipped" if found_inf else "applied"
        if found_inf.device.type != "cpu" or found_inf.dtype is not torch.float32:
            return "unknown"
        # a reading of memory, no operation of torch: also in steps that are not sampled
        return "skipped" if ctypes.c_float.from_address(found_inf.data_ptr()).value else "applied"

    def _running(self) -> int:
        """Return the number of calls of this optimizer's ``step`` on the stack.

        The depth counted in the hooks is not sufficient: a ``step`` that raises calls no post hook, so that the depth
        stays too high. torch calls the hooks in ``Optimizer.profile_hook_step``, in a function ``wrapper`` with the
        locals ``self`` and ``profile_name`` (torch 2.4 to 2.13; https://github.com/pytorch/pytorch/pull/89176).
        """
        running = (frame.f_locals for frame in callers() if frame.f_code.co_name == "wrapper")
        return sum(variables.get("self") is self._optimizer and "profile_name" in variables for variables in running)


def is_update(code: CodeType) -> bool:
    """Return whether this is the code in which torch calls the hooks of an optimizer, see :meth:`Steps._running`."""
    return code.co_name == "wrapper" and "profile_name" in code.co_varnames


def updates() -> bool:
    """Return whether an update runs on this thread."""
    return any(is_update(frame.f_code) for frame in callers())


def initializes_state(optimizer: Any) -> bool:
    """Return whether ``step`` is called to make the state that a checkpoint is about: by gradients and a rate of 0, in
    ``torch.distributed.checkpoint.state_dict`` (torch 2.4 to 2.13). That is no update of training."""
    if CHECKPOINTS not in sys.modules or getattr(optimizer, "state", True):
        return False
    return any(frame.f_code.co_name == "_init_optim_state" for frame in callers())


class EveryStep:
    """The listeners to the updates of all optimizers that inherit from torch's, behind one pair of hooks.

    torch iterates over these hooks in each update, and a dropped monitor ends wherever garbage is collected: also in an
    update of another optimizer, or on another thread meanwhile. So the hooks stay, without effect, if an update may be
    under way as the last listener leaves.
    """

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[Callable[..., None], Callable[..., None], FaultCounter]] = {}
        self._placed: list[Remove] = []
        self._process = -1
        """Process that has placed them: in a forked one they are without effect."""
        self._updating: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Threads on which an update has begun, and has not ended; one that has raised, until the next one ends."""
        self._initial = set[int]()
        """Optimizers whose state is being made, by identity."""

    def add(self, began: Callable[..., None], ended: Callable[..., None], faults: FaultCounter) -> Remove:
        """Call ``began`` before and ``ended`` after each update; return a function that ends it."""
        if self._process != os.getpid():  # what a parent has placed is without effect here
            self._process = os.getpid()
            self._listeners.clear()
            self._placed.clear()
        with ExitStack() as added:
            added.callback(self._tidy)
            added.callback(self._listeners.pop, key := object(), None)  # no interruption can come before that
            self._listeners[key] = began, ended, faults
            if not self._placed:
                before = base.register_optimizer_step_pre_hook(Hook(Faults(), "optimizer", self._before))
                after = base.register_optimizer_step_post_hook(Hook(Faults(), "optimizer", self._after))
                self._placed += [before.remove, after.remove]
            return added.pop_all().close

    def _before(self, optimizer: Any, *arguments: object) -> None:
        self._updating.add(threading.current_thread())
        if initializes_state(optimizer):
            self._initial.add(id(optimizer))
            return
        self._initial.discard(id(optimizer))
        for began, _, faults in [*self._listeners.values()]:
            try:
                began(optimizer, *arguments)
            except Exception as error:  # noqa: BLE001 - the other listeners are still called
                count(faults, "optimizer", error)

    def _after(self, optimizer: Any, *arguments: object) -> None:
        for _, ended, faults in [*self._listeners.values()] if id(optimizer) not in self._initial else ():
            try:
                ended(optimizer, *arguments)
            except Exception as error:  # noqa: BLE001 - the other listeners are still called
                count(faults, "optimizer", error)
        self._updating.discard(threading.current_thread())

    def _tidy(self) -> None:
        """Remove the hooks if nobody listens, and no update is under way."""
        current = threading.current_thread()
        elsewhere = any(thread.is_alive() and thread is not current for thread in [*self._updating])
        if not self._listeners and not elsewhere and not updates():
            while self._placed:
                self._placed.pop()()


on_every_step = EveryStep().add
"""Call a function before and one after each update by an optimizer that inherits from torch's."""
