"""MindSpore's own optimizers (``nn``, ``experimental.optim``, ``mint.optim``): cells that are called with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from mindspore import ParameterTuple, nn
from mindspore.experimental import optim

from probe.core.backend.patch import Shared
from probe.core.backend.protocols import Adam, Remove, StepListener
from probe.core.door import FaultCounter, attempt, replace
from probe.mindspore import cell_hooks
from probe.mindspore.cell_hooks import surfacing
from probe.mindspore.gradients import applied, on_reduction, release
from probe.mindspore.loss_scale import held_scale, listened
from probe.mindspore.optimizers.rates import rates

KINDS: tuple[type, ...] = (nn.Optimizer, optim.Optimizer)
"""Base classes of all MindSpore optimizers; those of ``mint.optim`` inherit from the second."""
EXP_AVG = {"moment1": "exp_avg", "moments1": "exp_avg"}
EXP_AVG_SQ = {"moment2": "exp_avg_sq", "moments2": "exp_avg_sq"}
NAMES: dict[str, dict[str, str]] = {
    "Adagrad": {"accum": "sum"},
    "Adadelta": {"accum": "square_avg", "accum_update": "acc_delta"},
    "AdaMax": EXP_AVG | {"moment2": "exp_inf"},
    "Momentum": {"moments": "momentum_buffer"},
    "RMSProp": {"ms": "square_avg", "mg": "grad_avg", "moment": "momentum_buffer"},
    "RMSprop": {"mean_square": "square_avg", "mean_grad": "grad_avg", "moment": "momentum_buffer"},
    "SGD": {"accum": "momentum_buffer", "momentum_buf": "momentum_buffer"},
}
"""Torch's names for the state of an optimizer, by class and MindSpore's name."""
ANY_CLASS = EXP_AVG | EXP_AVG_SQ | {"vhat": "max_exp_avg_sq"}
NO_STATE = ("parameters", "_parameters", "params", "learning_rate", "stat", "grad_clone")
"""Attributes that are no state: the parameters, the learning rates of groups, the first-step flag of SGD's operator."""
UNCORRECTED = ("mindspore.nn.optim.adam.AdamWeightDecay",)
"""Optimizers without bias correction of their moments."""
EARLY = (
    "mindspore.nn.optim.adam.Adam",
    "mindspore.nn.optim.adam.AdamOffload",
    "mindspore.nn.optim.lazyadam.LazyAdam",
    "mindspore.experimental.optim.adam.Adam",
)
"""Optimizers that add eps to the square root before its bias correction."""


def knows(optimizer: Any) -> bool:
    """Return whether ``optimizer`` is a cell that holds parameters."""
    return isinstance(optimizer, nn.Cell) and hasattr(optimizer, "parameters")


def owned(optimizer: Any) -> list[Any]:
    """Return every parameter, in the order of the gradients that the optimizer is called with."""
    return list(optimizer.parameters)


def on_step(optimizer: Any, listener: StepListener) -> Callable[[], None]:
    """Listen to the calls of this one object."""

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with applied(optimizer, owned, next(iter((*args, *kwargs.values())), ()), listener):
            scale = attempt(listener.faults, "loss scale", held_scale, optimizer) if listener.reads_gradients else None
            listener.before(optimizer, scale)

    def leave(_: Any) -> None:
        try:
            listener.after(optimizer, "applied")
        finally:
            release()

    with ExitStack() as attached:
        attached.callback(on_reduction(lambda: owned(optimizer), listener))
        attached.enter_context(listened(optimizer))
        attached.callback(cell_hooks.before(optimizer, enter))
        attached.callback(cell_hooks.after(optimizer, leave))
        return attached.pop_all().close


def state(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """Return the optimizer's tensors for ``parameter``."""
    layout = _layout(optimizer)
    place = layout.places.get(id(parameter))
    return {} if place is None else {kind: kept[place] for kind, (_, kept) in layout.kept.items()}


def state_names(optimizer: Any) -> dict[str, str]:
    """Return MindSpore's name for each kind of state."""
    return {kind: native for kind, (native, _) in _layout(optimizer).kept.items()}


def learning_rate(optimizer: Any) -> object:
    """Return the learning rate of the first group of parameters. A schedule is called here, because ``get_lr`` counts a
    step in graph mode and in MindSpore 2.4."""
    known = rates(optimizer)[:1]
    if known and not math.isnan(known[0]):
        return known[0]
    rate = getattr(optimizer, "learning_rate", None)
    if rate is None:  # optimizers with groups of parameters as torch has them
        return next((group.get("lr") for group in getattr(optimizer, "param_groups", ())), None)
    rate = rate[0] if isinstance(rate, (list, tuple)) else rate
    return rate(optimizer.global_step) if isinstance(rate, nn.Cell) else rate


def adam(optimizer: Any) -> Callable[[Any], Adam | None]:
    """Return a lookup of the hyperparameters, read from groups, else from the optimizer; values may be parameters."""
    groups = {id(p): group for group in getattr(optimizer, "param_groups", ()) for p in group["params"]}
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(optimizer).__mro__}
    plain, early = not kinds.isdisjoint(UNCORRECTED), not kinds.isdisjoint(EARLY)
    counters = (getattr(optimizer, name, None) for name in ("state_step", "global_step"))
    steps = math.inf if plain else next((counter for counter in counters if counter is not None), None)

    def lookup(parameter: Any) -> Adam | None:
        group = groups.get(id(parameter), vars(optimizer))
        own = [getattr(optimizer, name, None) for name in ("beta1", "beta2", "eps")]
        betas = group.get("betas") or own[:2]
        about = Adam(betas[0], betas[1], group.get("eps", own[2]), steps, early)
        return None if any(value is None for value in about) else about

    return lookup


class _Layout(NamedTuple):
    """Cached map from a parameter to its optimizer state; building it may synchronise the device."""

    places: dict[int, int]
    """Index of each parameter, by its identity, in every tuple of tensors."""
    kept: dict[str, tuple[str, Any]]
    """MindSpore's name, and a tuple of one tensor for each parameter, by kind."""


_layouts: WeakKeyDictionary[Any, _Layout] = WeakKeyDictionary()


def _layout(optimizer: Any) -> _Layout:
    layout = _layouts.get(optimizer)
    if layout is None or len(layout.places) != len(optimizer.parameters):  # a group has been added
        places = {id(parameter): place for place, parameter in enumerate(optimizer.parameters)}
        kept = {_name(optimizer, native): (native, tensors) for native, tensors in _kept(optimizer).items()}
        layout = _layouts[optimizer] = _Layout(places, kept)
    return layout


def _kept(optimizer: Any) -> dict[str, Any]:
    """Return the attributes that hold one tensor for each parameter."""
    attributes = {**vars(optimizer), **getattr(optimizer, "_params_list", {})}
    return {
        name: kept
        for name, kept in attributes.items()
        if isinstance(kept, ParameterTuple)
        and len(kept) == len(optimizer.parameters)
        and name not in NO_STATE
        and not _idle(optimizer, name)
    }


def _idle(optimizer: Any, name: str) -> bool:
    """Return whether MindSpore keeps ``name`` without using it; torch has no such state then."""
    groups = getattr(optimizer, "param_groups", [])
    if name == "max_exp_avg_sq":
        if type(optimizer).__module__ == "mindspore.experimental.optim.adam":  # 2.10.0: amsgrad changes nothing there
            return True
        return not any(group.get("amsgrad") for group in groups)
    if name in ("accum", "momentum_buf") and any(kind.__name__ == "SGD" for kind in type(optimizer).__mro__):
        return not any(group.get("momentum") for group in groups) if groups else not _uses_momentum(optimizer)
    return False


def _uses_momentum(optimizer: Any) -> bool:
    return bool(float(optimizer.momentum.asnumpy())) if hasattr(optimizer.momentum, "asnumpy") else True


def _name(optimizer: Any, attribute: str) -> str:
    for kind in type(optimizer).__mro__:
        if attribute in NAMES.get(kind.__name__, {}):
            return NAMES[kind.__name__][attribute]
    return ANY_CLASS.get(attribute, attribute)


def on_every_step(began: Callable[[Any], None], ended: Callable[[Any], None], faults: FaultCounter) -> Remove:
    """Call ``began`` and ``ended`` around each call of every optimizer of MindSpore's own."""
    before, after = (surfacing(partial(attempt, faults, "optimizer", listen)) for listen in (began, ended))
    return _listening.listen((before, after))


def _listen_to(kind: Any) -> Remove:
    inherited = kind.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        for began, _ in _listening:
            began(self)
        result = inherited(self, *args, **kwargs)
        for _, ended in _listening:
            ended(self)
        return result

    return replace(kind, "__call__", call)


_listening: Shared[tuple[Callable[[Any], None], Callable[[Any], None]]] = Shared(lambda: map(_listen_to, KINDS))
