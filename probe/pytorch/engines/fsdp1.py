"""``FullyShardedDataParallel``: the parameters of a unit lie end to end in a flat parameter, of which each rank keeps
an interval that may begin and end inside a parameter.

Autograd sees the flat parameter, which is whole while the unit runs: hooks on it receive this rank's own gradient,
before FSDP's own hook reduces it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from probe.core.backend.protocols import Guard, Remove, Shard
from probe.core.records import Coverage
from probe.pytorch.engines.engine import Engine, Listen, Parameter
from probe.pytorch.hook_handles import on_accumulated, on_own

CLASS = "torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"


def check(model: torch.nn.Module) -> None:
    """Refuse units without ``use_orig_params``, and a part of a unit.

    Raises:
        ValueError: with the problem and its remedy.
    """
    units = list(_units(model))
    for unit in units:
        if not unit._handle._use_orig_params:
            raise ValueError(
                "set_monitor: model: its parameters have no names of their own, because FullyShardedDataParallel was "
                "made with use_orig_params=False; wrap the model with use_orig_params=True"
            )
    originals = {id(parameter) for unit in units for parameter in _originals(unit._handle.flat_param)}
    for name, parameter in model.named_parameters() if CLASS[0] in sys.modules else ():
        if is_flat(parameter) and id(parameter) not in originals:
            raise ValueError(
                f"set_monitor: parameter {name!r} belongs to a FullyShardedDataParallel unit around the model that was "
                "given, where its gradients cannot be seen; give the wrapped model to set_monitor"
            )


may_be_used: Callable[[], bool] = getattr(dist, "is_initialized", bool)
"""Function that returns false as long as there can be no unit, since there is no process group."""


def is_flat(parameter: Parameter) -> bool:
    """Return whether a unit has taken over ``parameter``."""
    return getattr(parameter, "_fsdp_flattened", False)


def check_unwrapped(parameter: Parameter) -> None:
    """Refuse a parameter that a unit has taken over after attachment: it no longer holds a whole tensor.

    Raises:
        ValueError: with the remedy.
    """
    if is_flat(parameter):
        raise ValueError(
            "FullyShardedDataParallel has wrapped the model after set_monitor, so that its gradients cannot be seen; "
            "wrap it first and give the wrapped model to set_monitor"
        )


def homes(model: torch.nn.Module) -> Iterator[tuple[Parameter, FlatUnit]]:
    """Yield every parameter of every unit, with the unit."""
    for module in _units(model):
        if originals := _originals(module._handle.flat_param):  # else the model is refused
            unit = FlatUnit(module)
            yield from ((parameter, unit) for parameter in originals)


def _units(model: torch.nn.Module) -> Iterator[Any]:
    """Yield the wrappers in ``model`` that have parameters of their own."""
    kind: Any = getattr(sys.modules.get(CLASS[0]), CLASS[1], None)
    for module in model.modules() if kind is not None else ():
        if isinstance(module, kind) and getattr(module, "_handle", None) is not None:
            yield module


def _originals(flat: Any) -> list[Parameter]:
    return [*(flat._params or ()), *(flat._shared_params or ())]


class FlatPiece(NamedTuple):
    """Place of one parameter in the flat parameter."""

    shape: torch.Size
    start: int
    """Index of its first element in the whole flat parameter."""
    numel: int
    kept: int
    """Number of its elements that this rank keeps."""
    part: str
    """Interval of these elements in the flattened parameter."""


class FlatUnit:
    """Home of the parameters that lie in one flat parameter."""

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)  # a home must not keep its parameters alive
        self._flat_ref = weakref.ref(module._handle.flat_param)
        self._sharded = bool(module._handle.uses_sharded_strategy)
        self._ranks = tuple(sorted(dist.get_process_group_ranks(module.process_group)))
        self.pieces = WeakIdKeyDictionary()
        flat, places = self._flat, {}
        for parameter, info, piece in zip(flat._params, flat._param_infos, self._pieces(), strict=True):
            self.pieces[parameter] = places[id(info.module), info.param_name] = piece
        for parameter, info in zip(flat._shared_params, flat._shared_param_infos, strict=True):
            self.pieces[parameter] = places[id(info.prim_module), info.prim_param_name]

    @property
    def _flat(self) -> Any:
        return self._flat_ref()

    def _pieces(self) -> Iterator[FlatPiece]:
        flat = self._flat
        sizes, padding = flat._numels_with_padding, flat._is_padding_mask
        starts = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
        starts = [start for start, pads in zip(starts, padding, strict=True) if not pads]
        for shape, start, shard in zip(flat._shapes, starts, flat._shard_param_infos, strict=True):
            if not self._sharded:
                yield FlatPiece(shape, start, shape.numel(), shape.numel(), "")
            elif shard.in_shard:
                part = f"{shard.intra_param_start_idx}:{shard.intra_param_end_idx + 1}"
                yield FlatPiece(shape, start, shape.numel(), shard.numel_in_shard, part)
            else:
                yield FlatPiece(shape, start, shape.numel(), 0, "0:0")

    @property
    def ready(self) -> bool:
        """True if a hook can be placed now."""
        return bool(self._flat.requires_grad)

    def on_gradient(self, parameter: Parameter, listen: Listen, *, own: bool, main_grad: bool, guard: Guard) -> Remove:  # noqa: ARG002
        """Listen to the gradients, in the dtype of the forward, that this rank passes to a reduction or has accumulated
        under ``no_sync``."""
        piece = self.pieces[parameter]

        def arrived(gradient: torch.Tensor | None) -> None:
            if gradient is not None and gradient.numel() >= piece.start + piece.numel:
                flattened = gradient.detach().view(-1)[piece.start : piece.start + piece.numel]
                reduced = bool(getattr(self._module(), "_sync_gradients", True))
                listen(flattened.view(piece.shape), reduced=reduced)

        if own:
            return on_own(self._flat, arrived, guard)
        return on_accumulated(self._flat, guard(lambda flat: arrived(flat.grad)))

    def piece(self, parameter: Parameter, tensor: torch.Tensor) -> torch.Tensor | Shard:
        """Return a flat part (of parameter, reduced gradient, state) with its coverage; other tensors unchanged."""
        piece = self.pieces[parameter]
        if not self._sharded or tensor.numel() != piece.kept:
            return tensor
        return Shard(tensor, Coverage(tuple(piece.shape), piece.part, self._ranks))

    def absent(self, parameter: Parameter) -> Shard | None:
        """Return the gradient of a parameter of which this rank has no element."""
        piece = self.pieces[parameter]
        if not self._sharded or piece.kept:
            return None
        return Shard(parameter.detach(), Coverage(tuple(piece.shape), piece.part, self._ranks))

    def leaf(self, parameter: Parameter) -> Any:  # noqa: ARG002 - all lie in the same one
        """Return the node that receives the flat parameter's gradient. It changes between steps: FSDP keeps it only
        from the forward to the end of the backward."""
        return getattr(self._flat, "_post_backward_hook_state", (None,))[0]


ENGINE = Engine(
    check=check,
    homes=homes,
    wraps={"torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "_fsdp_wrapped_module"},
)
