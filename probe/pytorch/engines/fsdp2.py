"""``fully_shard``: a module's parameters are DTensors of which each rank keeps some rows; while the module runs, plain
whole tensors, the stand-ins, replace them.

Autograd sees the stand-ins. They are made once, when first needed, and hooks on them receive this rank's own gradient,
before it is reduced.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

from probe.core.backend.protocols import Guard, Remove
from probe.core.door import Around
from probe.pytorch.dtensor import add
from probe.pytorch.engines.engine import Engine, Listen, Parameter
from probe.pytorch.hook_handles import on_accumulated, on_own

CLASS = "torch.distributed.fsdp._fully_shard._fully_shard", "FSDPModule"


def homes(model: torch.nn.Module) -> Iterator[tuple[Parameter, Stored]]:
    """Yield every parameter that ``fully_shard`` has taken over."""
    for group in _groups(model):
        for stored in group.fsdp_params:
            yield stored.sharded_param, Stored(stored, group)


def stand_ins(model: torch.nn.Module) -> Iterator[tuple[Parameter, Parameter]]:
    """Yield the stand-ins of parameters while modules run, with the parameters."""
    for group in _groups(model):
        for stored in group.fsdp_params:
            for name in ("_unsharded_param", "_sharded_post_forward_param"):
                if (stand_in := getattr(stored, name, None)) is not None:
                    yield stand_in, stored.sharded_param


def _groups(model: torch.nn.Module) -> Iterator[Any]:
    """Yield the groups of parameters that are sharded together, each once: modules may share a state."""
    kind: Any = getattr(sys.modules.get(CLASS[0]), CLASS[1], None)
    seen: set[int] = set()
    for module in model.modules() if kind is not None else ():
        if not isinstance(module, kind):
            continue
        state: Any = module._get_fsdp_state()
        several = getattr(state, "_fsdp_param_groups", None)  # older torch, such as 2.6, has only one
        for group in [state._fsdp_param_group] if several is None else several:
            if group is not None and id(group) not in seen:
                seen.add(id(group))
                yield group


class _GuardedFaults:
    """Counter of failures that a guard counts."""

    uncounted = 0

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def note(self, where: str, error: BaseException) -> None:  # noqa: ARG002 - the guard has a place of its own
        """Let the guard count a failure."""

        def fail() -> None:
            raise error

        self._guard(fail)()


class Stored:
    """Home of one parameter.

    Args:
        stored: ``fully_shard``'s own object for the parameter.
        group: ``fully_shard``'s group of parameters that are gathered and reduced together.
    """

    def __init__(self, stored: Any, group: Any) -> None:
        self._stored_ref, self._group_ref = weakref.ref(stored), weakref.ref(group)

    @property
    def _stored(self) -> Any:
        return self._stored_ref()

    def _reduces(self) -> bool:
        return bool(getattr(self._group_ref(), "reduce_grads", True))

    def on_gradient(self, parameter: Parameter, listen: Listen, *, own: bool, main_grad: bool, guard: Guard) -> Remove:  # noqa: ARG002
        """Listen to the gradients that this rank passes to a reduction or has accumulated while reduction is off, in
        the dtype of the forward (the sum in that of the reduction)."""
        receive = functools.partial(self._own if own else self._sum, listen)
        placed = ExitStack()

        def place() -> bool:
            unsharded = self._unsharded()
            if unsharded is None or not unsharded.requires_grad:
                return False
            placed.callback(on_own(unsharded, receive, guard) if own else on_accumulated(unsharded, guard(receive)))
            return True

        if not place():
            self._once_there(place, placed, guard)
        return placed.close

    def _own(self, listen: Listen, gradient: torch.Tensor) -> None:
        listen(gradient, reduced=self._reduces())

    def _sum(self, listen: Listen, unsharded: torch.Tensor) -> None:
        """Send ``listen`` the sum over backwards that are not reduced yet. If the reduction has a dtype of its own,
        FSDP keeps the sum of the earlier ones separately, in that dtype."""
        earlier, gradient = self._stored.unsharded_accumulated_grad, unsharded.grad
        if gradient is not None:
            total = gradient if earlier is None else add(earlier, gradient)
            listen(total, reduced=self._reduces())

    def _once_there(self, place: Callable[[], bool], placed: ExitStack, guard: Guard) -> None:
        """Call ``place`` after the method that makes the stand-in, since it has no hook (torch 2.13), until that has
        succeeded. Nothing lies in ``fully_shard``'s object, which users copy with its module."""

        def after(_: object) -> None:
            try:
                done = place()
            except Exception:
                remove()
                raise
            if done:
                remove()

        remove = Around(self._stored, "to_unsharded", _GuardedFaults(guard), lambda *_: None, after).place()
        placed.callback(remove)

    def _unsharded(self) -> Any:
        return getattr(self._stored, "_unsharded_param", None)

    def piece(self, parameter: Parameter, tensor: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - a DTensor
        """Return ``tensor`` itself: a DTensor has its coverage."""
        return tensor

    def leaf(self, parameter: Parameter) -> torch.Tensor | None:  # noqa: ARG002 - known
        """Return the stand-in."""
        return self._unsharded()


ENGINE = Engine(homes=homes, stand_ins=stand_ins)
