"""DeepSpeed's optimizers: one training step is one call of *their* ``step``, whatever they call inside it.

Where they keep what they hold is told in :mod:`probe.pytorch.engines.deepspeed.zero`.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from probe.core.backend.patch import replace
from probe.core.backend.protocols import Adam, Remove, Shard, StepListener
from probe.core.backend.shield import shielded
from probe.pytorch.engines.deepspeed import zero
from probe.pytorch.engines.deepspeed.zero import in_use, layout, layout_of, owned
from probe.pytorch.engines.native import of_group
from probe.pytorch.loss_scale import asked, on_loss_scale

__all__ = ["adam", "around", "check", "gradient", "knows", "on_step", "owned", "state", "value"]


def knows(optimizer: Any) -> bool:
    """Whether ``optimizer`` is one of DeepSpeed's."""
    return layout_of(type(optimizer)) is not None


def around(optimizer: Any) -> Any:
    """The optimizer of DeepSpeed that steps through ``optimizer``, if there is one, else ``optimizer`` itself.

    What is inside knows nothing of it, so that all objects are looked at; done once, when a monitor attaches.
    """
    if not knows(optimizer) and (kinds := zero.kinds()):
        optimizer = next(_holders(optimizer, kinds), optimizer)
    if knows(optimizer):
        in_use.add(optimizer)
    return optimizer


def _holders(optimizer: Any, kinds: tuple[type, ...]) -> Iterator[Any]:
    for thing in gc.get_objects():
        if issubclass(type(thing), kinds) and vars(thing).get("optimizer") is optimizer:
            yield thing


def check(optimizer: Any) -> None:
    """Refuses what keeps its numbers on disk.

    Raises:
        ValueError: saying what came and what to do.
    """
    if getattr(optimizer, "swap_optimizer", False) or getattr(optimizer, "params_in_nvme_and_cpu", False):
        raise ValueError(
            "set_monitor: optimizer: DeepSpeed keeps parameters or optimizer state on NVMe (offload_param or "
            "offload_optimizer with device nvme), where they cannot be read without moving them; expected them in "
            'memory: set the device to "cpu" or "none"'
        )


def value(optimizer: Any, parameter: torch.nn.Parameter) -> torch.Tensor | Shard:
    """As the model holds it between steps."""
    return layout(optimizer).value(parameter)


def gradient(optimizer: Any, parameter: torch.nn.Parameter, main_grad: bool) -> torch.Tensor | Shard | None:  # noqa: ARG001
    """Averaged over ranks, as ``step`` finds it; None where this rank updates nothing of the parameter."""
    return layout(optimizer).gradient(optimizer, parameter)


def state(optimizer: Any, parameter: torch.nn.Parameter) -> Mapping[str, torch.Tensor | Shard]:
    """What the optimizer inside keeps for this rank's part of ``parameter``."""
    return layout(optimizer).state(optimizer, parameter)


def adam(optimizer: Any) -> Callable[[torch.nn.Parameter], Adam | None]:
    """As the groups of the optimizer inside say, whose tensors have all taken the same number of steps. Stage 3 cuts
    them into smaller ones."""
    inner = optimizer.optimizer
    divided: Mapping[int, int] = getattr(optimizer, "sub_group_to_group_id", {})

    def lookup(parameter: torch.nn.Parameter) -> Adam | None:
        at = zero.place(optimizer, parameter)
        group = {} if at is None else inner.param_groups[divided.get(at[0], at[0])]
        known: Mapping[str, Any] = next((kept for kept in inner.state.values() if "step" in kept), {})
        return of_group(group, known)

    return lookup


def on_step(optimizer: Any, listener: StepListener) -> Remove:
    """Listens by wrapping ``step`` on this one object: DeepSpeed offers no hook."""
    original, scale = optimizer.step, _Scale(optimizer)

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        listener.before(optimizer, asked(lambda _: scale(), optimizer, listener))
        result = original(*args, **kwargs)
        overflow = shielded(listener, "optimizer", getattr, optimizer, "overflow", False)
        listener.after(optimizer, "skipped" if overflow else "applied")
        return result

    with ExitStack() as placed:
        placed.callback(replace(optimizer, "step", step))
        placed.callback(on_loss_scale(scale))
        return placed.pop_all().close


class _Scale:
    """The factor on losses and gradients until the update, as a tensor; None for none."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._known = 1.0
        self._tensor: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor | None:
        now = float(getattr(self._optimizer, "loss_scale", 1.0) or 1.0)
        if now != self._known:
            self._known, self._tensor = now, None if now == 1.0 else torch.tensor(now)
        return self._tensor
