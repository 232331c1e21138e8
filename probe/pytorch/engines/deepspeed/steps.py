"""DeepSpeed's optimizers: one training step is one call of *their* ``step``, however often that calls another.

For the places of gradients and state see :mod:`probe.pytorch.engines.deepspeed.zero`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from probe.core.backend.live_objects import instances
from probe.core.backend.protocols import Adam, Remove, Shard, StepListener
from probe.core.door import attempt
from probe.core.records import Outcome
from probe.pytorch.engines.deepspeed import zero
from probe.pytorch.engines.deepspeed.zero import in_use, layout, layout_of, owned
from probe.pytorch.engines.native import of_group
from probe.pytorch.loss_scale import on_own_scale

__all__ = ["adam", "around", "check", "gradient", "knows", "on_step", "owned", "state", "value"]


def knows(optimizer: Any) -> bool:
    """Return whether ``optimizer`` is one of DeepSpeed's."""
    return layout_of(type(optimizer)) is not None


def around(optimizer: Any) -> Any:
    """Return DeepSpeed's optimizer that wraps ``optimizer``, if there is one, else ``optimizer`` itself."""
    if not knows(optimizer) and (kinds := zero.kinds()):
        optimizer = next(_holders(optimizer, kinds), optimizer)
    if knows(optimizer):
        in_use.add(optimizer)
    return optimizer


def _holders(optimizer: Any, kinds: tuple[type, ...]) -> Iterator[Any]:
    """Return DeepSpeed's optimizers that hold ``optimizer``, from all objects of the process, once at attachment.

    A user may pass the optimizer that DeepSpeed has wrapped. The only reference is from the wrapper to that optimizer,
    and DeepSpeed keeps no list of its engines (0.16.9 to 0.19.8; no upstream issue is known).
    """
    return (holder for holder in instances(*kinds) if vars(holder).get("optimizer") is optimizer)


def check(optimizer: Any) -> None:
    """Refuse an optimizer that keeps its numbers on disk.

    Raises:
        ValueError: with the problem and its remedy.
    """
    if getattr(optimizer, "swap_optimizer", False) or getattr(optimizer, "params_in_nvme_and_cpu", False):
        raise ValueError(
            "set_monitor: optimizer: DeepSpeed keeps parameters or optimizer state on NVMe (offload_param or "
            "offload_optimizer with device nvme), where they cannot be read without moving them; expected them in "
            'memory: set the device to "cpu" or "none"'
        )


def value(optimizer: Any, parameter: torch.nn.Parameter) -> torch.Tensor | Shard:
    """Return the part of ``parameter`` that the model holds between steps."""
    return layout(optimizer).value(parameter)


def gradient(optimizer: Any, parameter: torch.nn.Parameter, main_grad: bool) -> torch.Tensor | Shard | None:  # noqa: ARG001
    """Return the gradient that ``step`` applies, averaged over ranks; None if this rank updates no part."""
    return layout(optimizer).gradient(optimizer, parameter)


def state(optimizer: Any, parameter: torch.nn.Parameter) -> Mapping[str, torch.Tensor | Shard]:
    """Return the tensors that the inner optimizer keeps for this rank's part of ``parameter``."""
    return layout(optimizer).state(optimizer, parameter)


def adam(optimizer: Any) -> Callable[[torch.nn.Parameter], Adam | None]:
    """Return a function to the hyperparameters in the groups of the inner optimizer, all of whose tensors have taken
    the same number of steps. Stage 3 divides the groups into smaller ones."""
    inner = optimizer.optimizer
    divided: Mapping[int, int] = getattr(optimizer, "sub_group_to_group_id", {})

    def lookup(parameter: torch.nn.Parameter) -> Adam | None:
        at = zero.place(optimizer, parameter)
        group = {} if at is None else inner.param_groups[divided.get(at[0], at[0])]
        state: Mapping[str, Any] = next((state for state in inner.state.values() if "step" in state), {})
        return of_group(group, state)

    return lookup


def on_step(optimizer: Any, listener: StepListener) -> Remove:
    """Call ``listener`` at every training step. DeepSpeed's optimizers neither run torch's step hooks nor have their
    own (0.16.9 to 0.19.8; https://github.com/deepspeedai/DeepSpeed/issues/160)."""

    def outcome(_: Any) -> Outcome:
        overflow = attempt(listener.faults, "optimizer", getattr, optimizer, "overflow", False)
        return "skipped" if overflow else "applied"

    return on_own_scale(optimizer, listener, _Scale(optimizer), outcome, lambda: owned(optimizer))


class _Scale:
    """Factor on losses and gradients until the update, as a tensor; None if it is 1."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._known = 1.0
        self._tensor: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor | None:
        now = float(getattr(self._optimizer, "loss_scale", 1.0) or 1.0)
        if now != self._known:
            self._known, self._tensor = now, None if now == 1.0 else torch.tensor(now)
        return self._tensor
