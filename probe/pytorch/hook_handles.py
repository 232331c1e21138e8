"""Hooks on tensors and modules that are removed without a trace, and can be taken out for a while."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from probe.core.backend.protocols import Guard
from probe.core.door import weakly
from probe.pytorch.input_gradients import edge_of

Hook = Callable[..., None]


class PlacedHook:
    """Hook in one of torch's dicts, which can be taken out for a while: it returns with its number, to its place among
    other hooks. See :class:`probe.core.backend.protocols.PausableHook`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._taken: list[tuple[dict[int, Any], Any]] = []
        """The dicts without the hook, and what they had: the hook, and torch's flags of it."""
        self._earlier: frozenset[int] = frozenset()
        """Numbers of the hooks before this one."""

    def __call__(self) -> None:
        self._taken = []
        self._handle.remove()

    def rest(self) -> None:
        """Take the hook out."""
        number, tables = (
            self._handle.id,
            [table() for table in (self._handle.hooks_dict_ref, *self._handle.extra_dict_ref)],
        )
        if self._taken or tables[0] is None or number not in tables[0]:
            return
        self._earlier = frozenset(itertools.takewhile(lambda hook: hook != number, tables[0]))
        self._taken = [(hooks, hooks.pop(number)) for hooks in tables if hooks is not None and number in hooks]

    def wake(self) -> None:
        """Put the hook back, before those that were placed after it."""
        entries, self._taken = self._taken, []
        for hooks, value in entries:
            hooks[self._handle.id] = value
        if entries:
            hooks = entries[0][0]
            order = [*hooks]
            last = max((i for i, number in enumerate(order) if number in self._earlier), default=-1)
            for number in order[last + 1 : -1]:
                hooks[number] = hooks.pop(number)


class TensorHook(PlacedHook):
    """Hook on a tensor; where it was the only one, the dict that torch has made for it is taken out, too.

    Args:
        attribute: of the tensor, with the dict.
        hook: what stays alive as long as it is placed.
    """

    def __init__(self, handle: Any, tensor: torch.Tensor, attribute: str, hook: Hook) -> None:
        super().__init__(handle)
        self._tensor, self._attribute, self._kept = tensor, attribute, [hook]

    def __call__(self) -> None:
        self._kept.clear()
        super().__call__()
        self._tidy()

    def rest(self) -> None:
        """Take the hook out."""
        super().rest()
        self._tidy()

    def wake(self) -> None:
        """Put the hook back; into the tensor's present dict, if other code has made one."""
        if self._taken:
            (hooks, value), *rest = self._taken
            present = getattr(self._tensor, self._attribute)
            if present is None:
                setattr(self._tensor, self._attribute, hooks)
            elif present is not hooks:
                self._handle.hooks_dict_ref, self._taken = weakref.ref(present), [(present, value), *rest]
        super().wake()

    def _tidy(self) -> None:
        if not getattr(self._tensor, self._attribute):
            setattr(self._tensor, self._attribute, None)


class PlacedHooks:
    """Hooks that are placed, taken out and removed together."""

    def __init__(self, *hooks: PlacedHook) -> None:
        self._hooks = hooks

    def __call__(self) -> None:
        for hook in reversed(self._hooks):
            hook()

    def rest(self) -> None:
        """Take the hooks out."""
        for hook in self._hooks:
            hook.rest()

    def wake(self) -> None:
        """Put the hooks back."""
        for hook in self._hooks:
            hook.wake()


def on_own(tensor: torch.Tensor, listen: Hook, guard: Guard) -> TensorHook:
    """Call ``listen`` with each gradient of ``tensor`` before accumulation."""

    def arrived(gradient: torch.Tensor) -> None:
        if _accumulates(tensor):
            listen(gradient)

    hook = guard(arrived)
    return TensorHook(tensor.register_hook(weakly(hook)), tensor, "_backward_hooks", hook)


def on_accumulated(tensor: torch.Tensor, hook: Hook) -> TensorHook:
    """Call ``hook`` with ``tensor`` when a gradient has been added to ``tensor.grad``."""
    handle = tensor.register_post_accumulate_grad_hook(weakly(hook))
    return TensorHook(handle, tensor, "_post_accumulate_grad_hooks", hook)


def _accumulates(leaf: torch.Tensor) -> bool:
    """Return whether the running backward adds to ``leaf.grad``: ``torch.autograd.grad`` returns the gradient instead,
    which no optimizer receives."""
    try:
        return bool(torch._C._will_engine_execute_node(edge_of(leaf)[0]))
    except RuntimeError:  # a leaf that is an input of torch.autograd.grad (torch 2.4 to 2.13)
        return False
