"""Optimizers of Megatron-Core: gradients are in ``main_grad``, state belongs to fp32 copies of the parameters, or of
this rank's part of them.

The training step is ``step()`` of the outermost optimizer, which does not call ``step()`` of the optimizers that it
chains, nor, if the loss scale was too high, that of torch's optimizer inside.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist

from probe.core.backend.protocols import Adam, Remove, Shard, StepListener
from probe.core.records import Coverage, Outcome
from probe.pytorch.engines import native
from probe.pytorch.engines.homes import home, piece
from probe.pytorch.engines.megatron.groups import is_a, together
from probe.pytorch.loss_scale import on_own_scale

OPTIMIZER = "megatron.core.optimizer.optimizer.MegatronOptimizer"
DISTRIBUTED = "megatron.core.optimizer.distrib_optimizer.DistributedOptimizer"

_sharing: weakref.WeakKeyDictionary[Any, Sharing] = weakref.WeakKeyDictionary()


def knows(optimizer: Any) -> bool:
    """Return whether ``optimizer`` is one of Megatron's."""
    return is_a(optimizer, OPTIMIZER)


def owned(optimizer: Any) -> list[torch.nn.Parameter]:
    """Return the model's parameters, not the copies that are updated; all of them even if each rank updates a part."""
    return [parameter for inner in _chained(optimizer) for parameter in _of_the_model(inner)]


def value(optimizer: Any, parameter: torch.nn.Parameter) -> torch.Tensor | Shard | None:
    """Return the model's parameter; only this rank's part if those of the others arrive with the next forward."""
    sharing = _shares(optimizer, parameter)
    if sharing is not None and sharing.late:
        return sharing.part(parameter, parameter.detach())
    return native.value(optimizer, parameter)


def gradient(optimizer: Any, parameter: torch.nn.Parameter, main_grad: bool) -> torch.Tensor | Shard | None:  # noqa: ARG001
    """Return the reduced gradient in ``main_grad``; of a distributed optimizer only this rank's part, since the rest is
    not reduced here. Megatron holds gradients nowhere else, so the argument ``main_grad`` is ignored."""
    stored, sharing = native.held(parameter, True), _shares(optimizer, parameter)
    return piece(parameter, stored) if sharing is None or stored is None else sharing.part(parameter, stored)


def state(optimizer: Any, parameter: torch.nn.Parameter) -> Mapping[str, torch.Tensor | Shard]:
    """Return the tensors that torch's optimizer inside keeps for the parameter or its copy."""
    sharing, updated = _shares(optimizer, parameter), _in_place_of(optimizer, parameter)
    states = (inner.optimizer.state for inner in _chained(optimizer))
    if sharing is not None and updated is None:  # this rank has no part
        kinds: Mapping[str, Any] = next((state for table in states for state in table.values()), {})
        return {kind: sharing.part(parameter, parameter.detach()) for kind, v in kinds.items() if _is_state(kind, v)}
    entries: Mapping[str, Any] = next((state[updated] for state in states if updated in state), {})
    covered = piece if sharing is None else sharing.covered
    return {kind: covered(parameter, value) for kind, value in entries.items() if _is_state(kind, value)}


def adam(optimizer: Any) -> Callable[[torch.nn.Parameter], Adam | None]:
    """Return a function to the hyperparameters of torch's optimizers inside for the tensor that they update in place of
    a parameter."""
    lookups = [native.adam(inner.optimizer) for inner in _chained(optimizer)]

    def lookup(parameter: torch.nn.Parameter) -> Adam | None:
        updated = _in_place_of(optimizer, parameter)
        return None if updated is None else next((values for find in lookups if (values := find(updated))), None)

    return lookup


def _in_place_of(optimizer: Any, parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """Return the tensor that is updated in place of ``parameter``; None if this rank has no part."""
    sharing, main = _shares(optimizer, parameter), getattr(parameter, "main_param", None)
    return sharing.updated.get(parameter) if sharing is not None else parameter if main is None else main


def _is_state(kind: str, value: object) -> bool:
    """Return whether ``value`` is a tensor other than the step counter."""
    return isinstance(value, torch.Tensor) and (kind != "step" or bool(value.dim()))


def held_scale(optimizer: Any) -> torch.Tensor | None:
    """Return the loss scale, by which ``main_grad`` is multiplied until the step divides it out."""
    scalers = [scaler for inner in _chained(optimizer) if (scaler := getattr(inner, "grad_scaler", None))]
    return scalers[0].scale if scalers else None


def on_step(optimizer: Any, listener: StepListener) -> Remove:
    """Call ``listener`` at every training step of ``optimizer``; Megatron offers no hook (0.16)."""
    return on_own_scale(optimizer, listener, lambda: held_scale(optimizer), _outcome, lambda: owned(optimizer))


def _outcome(result: Any) -> Outcome:
    succeeded = result[0] if isinstance(result, tuple) and result else result
    return "skipped" if succeeded is False else "applied"


class Sharing:
    """Constant distribution of a distributed optimizer's parameters among ranks.

    The parameters lie end to end in a buffer, and each rank has an interval of every bucket of it: all of a parameter,
    a part or nothing.
    """

    def __init__(self, inner: Any) -> None:
        self.late: bool = inner.ddp_config.overlap_param_gather
        """True if the other ranks' parts of an updated parameter arrive only with the next forward."""
        self._groups = {p: dist.get_process_group_ranks(b.data_parallel_group) for b in inner.buffers for p in b.params}
        self._places = {p: inner._get_model_param_range_map(p)["param"] for p in inner.model_param_gbuf_map}
        self.updated = dict(_updated(inner))
        """Tensors that the inner optimizer updates, by the parameters that they replace; only this rank's parts."""
        self._coverage: dict[torch.nn.Parameter, Coverage] = {}

    def __contains__(self, parameter: torch.nn.Parameter) -> bool:
        return parameter in self._groups

    def part(self, parameter: torch.nn.Parameter, tensor: torch.Tensor) -> torch.Tensor | Shard:
        """Return this rank's part of ``tensor``, which has the shape of ``parameter``; an empty shard if it has none,
        so that all ranks of the parameter are known."""
        start, end = self._range(parameter)
        return self.covered(parameter, tensor.reshape(-1)[start:end])

    def _range(self, parameter: torch.nn.Parameter) -> tuple[int, int]:
        place = self._places.get(parameter)
        return (0, 0) if place is None else (place.start, place.end)

    def covered(self, parameter: torch.nn.Parameter, part: torch.Tensor) -> torch.Tensor | Shard:
        """Return ``part`` with its coverage; in the shape of the parameter if it is the whole."""
        if len(self._groups[parameter]) == 1:
            return cast("torch.Tensor | Shard", piece(parameter, part.view(parameter.shape)))
        if parameter not in self._coverage:
            self._coverage[parameter] = self._covers(parameter)
        return Shard(part, self._coverage[parameter])

    def _covers(self, parameter: torch.nn.Parameter) -> Coverage:
        """Return the coverage of a parameter, which may itself be a part of one split over tensor-parallel ranks."""
        engine, ranks = home(parameter), self._groups[parameter]
        split: Coverage | None = getattr(engine, "coverage", None)
        where = "{}:{}".format(*self._range(parameter))
        if split is None:
            return Coverage(tuple(parameter.shape), where, tuple(sorted(ranks)))
        return Coverage(split.shape, f"{split.part}, {where}", together(split.ranks, ranks, dist.get_rank()))


def _shares(optimizer: Any, parameter: torch.nn.Parameter) -> Sharing | None:
    """Return the distribution of ``parameter`` among ranks, if a distributed optimizer updates it."""
    for inner in _chained(optimizer):
        if is_a(inner, DISTRIBUTED):
            if inner not in _sharing:
                _sharing[inner] = Sharing(inner)
            if parameter in _sharing[inner]:
                return _sharing[inner]
    return None


def _updated(inner: Any) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    """Yield each parameter with the tensor that is updated in its place: a view of this rank's part, or an fp32 copy of
    that view; the view if the inner optimizer keeps the fp32 copies."""
    for models, views in zip(inner.model_fp32_groups, inner.shard_fp32_groups, strict=True):
        yield from zip(models, views, strict=True)
    groups = inner.model_float16_groups, inner.shard_fp32_from_float16_groups, inner.shard_float16_groups
    for models, copies, views in zip(*groups, strict=True):
        for model, copy, view in zip(models, copies, views, strict=True):
            yield model, view if copy is None else copy


def _chained(optimizer: Any) -> Iterator[Any]:
    """Yield the optimizers that hold parameters."""
    for inner in getattr(optimizer, "chained_optimizers", [optimizer]):
        if hasattr(inner, "chained_optimizers"):
            yield from _chained(inner)
        elif getattr(inner, "optimizer", None) is not None:
            yield inner


def _of_the_model(inner: Any) -> Iterator[torch.nn.Parameter]:
    if is_a(inner, DISTRIBUTED):
        for buffer in inner.buffers:
            yield from buffer.params
    elif hasattr(inner, "float16_groups"):
        for group in (*inner.float16_groups, *inner.fp32_from_fp32_groups):
            yield from group
    else:
        yield from inner.get_parameters()
