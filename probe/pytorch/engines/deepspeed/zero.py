"""Layouts of gradients and state in DeepSpeed's optimizers, as far as this rank holds them.

Optimizers are recognised by the names of their classes, without importing DeepSpeed. No function takes a collective.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist

from probe.core.backend.protocols import Shard
from probe.core.records import Coverage

Parameter = torch.nn.Parameter
State = Mapping[str, torch.Tensor | Shard]


in_use: WeakSet[Any] = WeakSet()
"""Optimizers that were passed to a monitor."""


def groups_of(optimizer: Any) -> Sequence[Sequence[Parameter]]:
    """Return the model's parameters in the optimizer's own order."""
    names = ("bit16_groups", "bf16_groups", "fp16_groups")
    return next((vars(optimizer)[name] for name in names if name in vars(optimizer)), ())


_places: WeakKeyDictionary[Any, dict[int, tuple[int, int, int]]] = WeakKeyDictionary()


def place(optimizer: Any, parameter: Parameter) -> tuple[int, int, int] | None:
    """Return group, index and first element of ``parameter`` in the optimizer's order; None if the optimizer does not
    update it, because it is frozen, for example."""
    places = _places.get(optimizer)
    if places is None or len(places) != sum(map(len, groups_of(optimizer))):
        places = _places[optimizer] = {}
        for group, members in enumerate(groups_of(optimizer)):
            start = 0
            for index, member in enumerate(members):
                places[id(member)] = group, index, start
                start += member.numel()
    return places.get(id(parameter))


class Layout:
    """Places of numbers in a kind of optimizer, here in FP16_UnfusedOptimizer: every rank holds all tensors, and state
    belongs to high-precision copies of parameters."""

    def value(self, parameter: Parameter) -> torch.Tensor | Shard:
        """Return the part of the model's parameter that this rank holds."""
        return parameter

    def gradient(self, optimizer: Any, parameter: Parameter) -> torch.Tensor | Shard | None:  # noqa: ARG002
        """Return the part of the reduced gradient that this rank holds before the update."""
        return parameter.grad

    def state(self, optimizer: Any, parameter: Parameter) -> State:
        """Return the part of the optimizer's state that this rank keeps."""
        at = place(optimizer, parameter)
        return {} if at is None else _like(optimizer.optimizer, optimizer.fp32_groups[at[0]][at[1]])


class Flattened(Layout):
    """FP16_Optimizer: as FP16_UnfusedOptimizer, but the copies of a group are one flat tensor."""

    def state(self, optimizer: Any, parameter: Parameter) -> State:
        at = place(optimizer, parameter)
        if at is None:
            return {}
        group, _, start = at
        state = _like(optimizer.optimizer, optimizer.fp32_groups_flat[group])
        return {kind: flat.narrow(0, start, parameter.numel()).view_as(parameter) for kind, flat in state.items()}


class Partitioned(Layout):
    """DeepSpeedZeroOptimizer, stages 1 and 2: each rank updates an equal part of each group's parameters, laid end to
    end; a parameter may be split over ranks, and this rank has no part of most parameters."""

    def gradient(self, optimizer: Any, parameter: Parameter) -> torch.Tensor | Shard | None:
        part = _fragment(parameter)
        if part is None:
            return None if place(optimizer, parameter) is None else _nothing(parameter)
        mapping = parameter._hp_mapping  # type: ignore[attr-defined]
        if optimizer.cpu_offload:
            stored = optimizer.single_partition_of_fp32_groups[mapping.param_group_index].grad
            return Shard(_narrow(stored, mapping.hp_fragment_address), part)
        parts = optimizer.averaged_gradients[mapping.param_group_index]
        stored = parts[parameter._index_in_param_group]  # type: ignore[attr-defined]
        if stored.numel() != mapping.lp_fragment_address.numel:
            raise ValueError(
                f"expected {mapping.lp_fragment_address.numel} elements of a gradient, got {stored.numel()}"
            )
        return Shard(stored, part)

    def state(self, optimizer: Any, parameter: Parameter) -> State:
        return self._state(optimizer, optimizer.single_partition_of_fp32_groups, parameter)

    def _state(self, optimizer: Any, partitions: Sequence[torch.Tensor], parameter: Parameter) -> State:
        part = _fragment(parameter)
        if part is None:
            at = place(optimizer, parameter)
            state = {} if at is None else _like(optimizer.optimizer, partitions[at[0]])
            return {kind: _nothing(parameter) for kind in state}
        mapping = parameter._hp_mapping  # type: ignore[attr-defined]
        state = _like(optimizer.optimizer, partitions[mapping.param_group_index])
        return {kind: Shard(_narrow(flat, mapping.hp_fragment_address), part) for kind, flat in state.items()}


class Accumulated(Partitioned):
    """BF16_Optimizer: every rank sums and reduces all gradients in separate tensors, and updates its part."""

    def gradient(self, optimizer: Any, parameter: Parameter) -> torch.Tensor | Shard | None:  # noqa: ARG002
        stored = getattr(parameter, "_hp_grad", None)
        return None if stored is None else stored.view_as(parameter)

    def state(self, optimizer: Any, parameter: Parameter) -> State:
        return self._state(optimizer, optimizer.fp32_groups_flat_partition, parameter)


class Sharded(Layout):
    """DeepSpeedZeroOptimizer_Stage3: each rank holds an equal part of each parameter; the last parts are padded."""

    def value(self, parameter: Parameter) -> torch.Tensor | Shard:
        return _shard(parameter, parameter.ds_tensor)  # type: ignore[attr-defined]

    def gradient(self, optimizer: Any, parameter: Parameter) -> torch.Tensor | Shard | None:
        if optimizer.offload_optimizer:
            group, start, count = optimizer.grad_position[optimizer.get_param_id(parameter)]
            stored = optimizer.fp32_partitioned_groups_flat[group].grad
            return None if stored is None else _shard(parameter, stored.narrow(0, start, count))
        at = place(optimizer, parameter)
        stored = None if at is None else optimizer.averaged_gradients.get(at[0])
        return None if at is None or stored is None else _shard(parameter, stored[at[1]])

    def state(self, optimizer: Any, parameter: Parameter) -> State:
        at = optimizer.grad_position.get(optimizer.get_param_id(parameter))
        if at is None:  # frozen
            return {}
        group, start, count = at
        state = _like(optimizer.optimizer, optimizer.fp32_partitioned_groups_flat[group])
        return {kind: _shard(parameter, flat.narrow(0, start, count)) for kind, flat in state.items()}


LAYOUTS: dict[str, Layout] = {
    "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer": Partitioned(),
    "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3": Sharded(),
    "deepspeed.runtime.bf16_optimizer.BF16_Optimizer": Accumulated(),
    "deepspeed.runtime.fp16.unfused_optimizer.FP16_UnfusedOptimizer": Layout(),
    "deepspeed.runtime.fp16.fused_optimizer.FP16_Optimizer": Flattened(),
}
"""Layouts by the qualified name of the optimizer's class."""


def names(kind: type) -> tuple[str, ...]:
    """Return the qualified names of a class and of its parents."""
    return tuple(f"{parent.__module__}.{parent.__qualname__}" for parent in kind.__mro__)


_known: WeakKeyDictionary[type, Layout | None] = WeakKeyDictionary()


def layout_of(kind: type) -> Layout | None:
    """Return the layout of the optimizers of a class; None if they are not DeepSpeed's."""
    if kind not in _known:
        _known[kind] = next((LAYOUTS[name] for name in names(kind) if name in LAYOUTS), None)
    return _known[kind]


def kinds() -> tuple[type, ...]:
    """Return DeepSpeed's classes of optimizers, as far as they are imported."""
    paths = (name.rpartition(".") for name in LAYOUTS)
    return tuple(vars(sys.modules[module])[kind] for module, _, kind in paths if module in sys.modules)


def layout(optimizer: Any) -> Layout:
    """Return the layout of ``optimizer``, which must be one of DeepSpeed's."""
    kind = layout_of(type(optimizer))
    assert kind is not None, type(optimizer)
    return kind


def owned(optimizer: Any) -> list[Parameter]:
    """Return the model's own parameters: the inner optimizer has others."""
    return [parameter for group in groups_of(optimizer) for parameter in group]


def _like(optimizer: Any, key: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors that ``optimizer`` keeps for ``key`` in its shape; step counters have another shape."""
    state = optimizer.state.get(key, {})
    return {
        kind: value for kind, value in state.items() if isinstance(value, torch.Tensor) and value.shape == key.shape
    }


def _narrow(flat: torch.Tensor, address: Any) -> torch.Tensor:
    return flat.narrow(0, int(address.start), int(address.numel))


def _ranks(group: Any) -> tuple[int, ...]:
    return tuple(sorted(dist.get_process_group_ranks(group)))


def _fragment(parameter: Parameter) -> Coverage | None:
    """Return the part of ``parameter`` in this rank's partition; None if it has none."""
    mapping = getattr(parameter, "_hp_mapping", None)
    if mapping is None:
        return None
    start, count = int(mapping.lp_fragment_address.start), int(mapping.lp_fragment_address.numel)
    return Coverage(tuple(parameter.shape), f"{start}:{start + count}", _ranks(parameter._dp_group))  # type: ignore[attr-defined]


def _nothing(parameter: Any) -> Shard:
    """Return an empty shard for a rank that has no part, so that all ranks of the parameter are known."""
    coverage = Coverage(tuple(parameter.shape), "0:0", _ranks(parameter._dp_group))
    return Shard(parameter.detach().reshape(-1)[:0], coverage)


def _shard(parameter: Any, part: torch.Tensor) -> Shard:
    """Return ``part``, in the layout of the stage-3 ``parameter``, without the padding."""
    group = parameter.ds_process_group
    size, numel = parameter.partition_numel(), parameter.ds_numel
    start = min(size * dist.get_rank(group), numel)
    end = min(start + size, numel)
    coverage = Coverage(tuple(parameter.ds_shape), f"{start}:{end}", _ranks(group))
    return Shard(part.view(-1).narrow(0, 0, end - start), coverage)
