"""Oddities of models and optimizers, looked for in a few updates: settings that no training means, and tensors that are
written without effect. No code of the user's runs, and nothing waits for a device."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from tokenize import TokenError
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from probe.core.checks.oddities import LOST, MOMENTUM, settings_of
from probe.pytorch import tensors
from probe.pytorch.dtensor import PLAIN
from probe.pytorch.modes import unseen
from probe.pytorch.reached import reached

Oddities = Mapping[str, tuple[str, ...]]
REFERENCES = 3
"""Parameters of which copies are looked for."""
MOST_COPIES, MOST_ROUNDED, MOST_ELEMENTS = 32, 8, 1 << 16
"""Copies of each, weights of half precision, and elements of one, that are looked at."""
ROUNDING = frozenset({torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW})
"""Optimizers whose updates round weights to the nearest number."""
FUNCTIONAL = ("F", "functional", "nn.functional", "torch.nn.functional")
"""Names of the module of functions."""
LONG = 1 << 14
"""Bytes of the code of a function from which on its source is not read."""
WRITES = 5
"""Number of writes between two looks from which on a copy is written with each update."""


class _Copy(NamedTuple):
    """Tensor of the size of a parameter."""

    tensor: Callable[[], torch.Tensor | None]
    name: str
    version: int
    moments: Callable[[], Any]
    """Function that waits for its sum and sum of squares."""


class _Past(NamedTuple):
    """State as of the last look."""

    norms: dict[str, tuple[int, int]]
    """Versions of weight and statistics of frozen batch norms, by name."""
    copies: Sequence[_Copy]


_pasts: weakref.WeakKeyDictionary[Any, _Past] = weakref.WeakKeyDictionary()
"""State as of the last look, by optimizer."""


def oddities(models: Sequence[torch.nn.Module], optimizer: Any) -> Callable[[], Oddities]:
    """Return a function that waits for the oddities, by kind, each with its places: ``frozen norms``, ``norm
    momentum``, ``one memory``, ``betas``, ``decay``, ``rounded away``, ``copies that stay``, ``always drops``
    and ``schedules`` that were never stepped, by their numbers of steps. What changes is compared with the last
    look."""
    with torch._C.DisableTorchFunction(), unseen(), torch.no_grad():
        names = {id(parameter): name for model in models for name, parameter in model.named_parameters()}
        things = [*reached()]
        norms = [(name, norm) for model in models for name, norm in model.named_modules() if _counts(norm)]
        frozen = {name: _versions(norm) for name, norm in (*norms, *_outside(things, models)) if _is_frozen(norm)}
        owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        past, copies = _pasts.get(optimizer, _Past({}, ())), [*_copies(things, owned, names, optimizer)]
        lost = [*_lost(optimizer, names)]
        _pasts[optimizer] = _Past(frozen, copies)
        drifting = (name for name, (weight, seen) in frozen.items() if _drifts(past.norms.get(name), weight, seen))
        settings = {
            "frozen norms": tuple(drifting),
            "norm momentum": tuple(name for name, norm in norms if MOMENTUM <= (norm.momentum or 0) < 1),
            "one memory": tuple(_doubled(owned, names)),
            **settings_of(type(optimizer).__name__, optimizer.param_groups),
        }
        settings["always drops"] = tuple(
            name or type(module).__name__
            for model in models
            for name, module in model.named_modules()
            if _always_drops(type(module))
        )
        settings["schedules"] = tuple(_resting(things, optimizer))
        now = {id(copy.tensor()): copy for copy in copies}
        pairs = [(before, now[id(thing)]) for before in past.copies if id(thing := before.tensor()) in now]
        return lambda: {
            **settings,
            "copies that stay": tuple(dict.fromkeys(_staying(pairs))),
            "rounded away": tuple(_most(lost)),
        }


def _resting(things: Iterable[Any], optimizer: Any) -> list[str]:
    """Return the number of steps of each schedule of an optimizer, 0 where it is not known to be one of updates, if
    none was stepped. An average of weights has a schedule that begins later."""
    schedules = [
        thing
        for thing in things
        if issubclass(type(thing), lr_scheduler.LRScheduler) and vars(thing).get("optimizer") is optimizer
    ]
    if any(vars(schedule).get("_step_count", 2) > 1 for schedule in schedules):
        return []
    steps = (vars(schedule).get("total_steps") for schedule in schedules if type(schedule) is not SWALR)
    return [str(number) if type(number) is int else "0" for number in steps]


_dropping: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _always_drops(kind: type) -> bool:
    """Return whether the forward of a class of modules calls the function of dropout, and never looks at its mode."""
    if kind not in _dropping:
        forward = next((vars(base)["forward"] for base in kind.__mro__ if "forward" in vars(base)), None)
        names = forward.__code__.co_names if isinstance(forward, FunctionType) else ()
        is_named = "dropout" in names and "training" not in names
        _dropping[kind] = is_named and any(map(_has_no_mode, _parsed(forward)))
    return _dropping[kind]


def _parsed(function: Any) -> Iterable[ast.AST]:
    """Return the parts of the source of a function; none if it is long, or cannot be read."""
    if len(function.__code__.co_code) > LONG:
        return ()
    try:
        return ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
    except (OSError, TypeError, ValueError, SyntaxError, LookupError, RecursionError, TokenError):  # in no file
        return ()


def _has_no_mode(part: ast.AST) -> bool:
    if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute) or part.func.attr != "dropout":
        return False
    is_function = ast.unparse(part.func.value) in FUNCTIONAL
    return is_function and len(part.args) < 3 and not any(word.arg in ("training", None) for word in part.keywords)


def _counts(module: Any) -> bool:
    """Return whether a module is a batch norm that follows the batches."""
    return isinstance(module, _BatchNorm) and module.training and module.running_mean is not None


def _outside(things: Iterable[Any], models: Sequence[torch.nn.Module]) -> Iterator[tuple[str, Any]]:
    """Yield the batch norms that follow the batches in other models, such as a teacher, with their names there."""
    inside = {id(module) for model in models for module in model.modules()}
    for thing in things:
        if (
            issubclass(type(thing), torch.nn.Module)
            and "_modules" in vars(thing)
            and inside.isdisjoint(map(id, thing.modules()))
        ):
            inside |= {*map(id, thing.modules())}
            yield from (
                (f"{type(thing).__name__}.{name}", norm) for name, norm in thing.named_modules() if _counts(norm)
            )


def _is_frozen(norm: _BatchNorm) -> bool:
    return norm.weight is not None and not norm.weight.requires_grad


def _lost(optimizer: Any, names: Mapping[int, str]) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield the largest weights of half precision, each with a function that waits for whether rounding to the nearest
    number loses their updates, as the optimizers of torch make them."""
    groups = optimizer.param_groups if type(optimizer) in ROUNDING else ()
    pairs = [
        (parameter, group)
        for group in groups
        for parameter in group["params"]
        if id(parameter) in names and _is_half(parameter) and _is_half(parameter.grad)
    ]
    for parameter, group in sorted(pairs, key=lambda pair: -pair[0].numel())[:MOST_ROUNDED]:
        rates = [rate for rate in (group["lr"], group.get("initial_lr")) if isinstance(rate, float | int)]
        if not rates:
            continue
        weights, gradients = (x.detach().flatten()[:MOST_ELEMENTS].float() for x in (parameter, parameter.grad))
        sizes = gradients.abs() / max(1 - group["momentum"], 1e-3) if "momentum" in group else (gradients != 0).float()
        # half of the distance to the next number is a quarter of the precision of a weight, or more
        is_lost = max(rates) * sizes < weights.abs() * (torch.finfo(parameter.dtype).eps / 4)
        counts = [(is_lost & (gradients != 0)).sum().float(), (gradients != 0).sum().float()]
        wait = tensors.to_host([tensors.moments(counts, ("sum",), 0.0)])
        yield names[id(parameter)], functools.partial(_hardly_moves, wait)


def _most(lost: Sequence[tuple[str, Callable[[], bool]]]) -> list[str]:
    """Return the names of the weights whose updates are lost, if they are half of those that were looked at or more."""
    names = [name for name, is_lost in lost if is_lost()]
    return names if 2 * len(names) >= len(lost) else []


def _is_half(tensor: Any) -> bool:
    """Return whether a tensor is a matrix of half precision, whose numbers lie in a row."""
    is_plain = type(tensor) in PLAIN and tensor.layout is torch.strided and tensor.is_contiguous()
    return is_plain and tensor.dtype in (torch.bfloat16, torch.float16) and tensor.dim() > 1


def _hardly_moves(wait: Callable[[], Any]) -> bool:
    lost, number = wait()[:, 0].tolist()
    return bool(lost > LOST * number > 0)


def _versions(norm: _BatchNorm) -> tuple[int, int]:
    return norm.weight._version, 0 if norm.num_batches_tracked is None else norm.num_batches_tracked._version


def _drifts(before: tuple[int, int] | None, weight: int, statistics: int) -> bool:
    """Return whether nothing has written the weight since the last look, and batches have written the statistics."""
    return before is not None and before[0] == weight and before[1] < statistics


def _doubled(owned: Sequence[Any], names: Mapping[int, str]) -> Iterator[str]:
    """Yield the names of parameters that lie where another one does."""
    places = dict[tuple[int, int], int]()
    for parameter in owned:
        if (
            type(parameter) in PLAIN
            and parameter.layout is torch.strided
            and parameter.numel()
            and parameter.data_ptr()
        ):
            place = parameter.data_ptr(), parameter.numel()
            if places.setdefault(place, id(parameter)) != id(parameter):
                yield names.get(id(parameter), "")


def _copies(things: Iterable[Any], owned: Sequence[Any], names: Mapping[int, str], optimizer: Any) -> Iterator[_Copy]:
    """Yield tensors of the sizes of a few parameters that are no parameters, gradients or moments of the optimizer."""
    some = [p for p in owned if type(p) in PLAIN and p.dim() > 1 and p.numel() <= MOST_ELEMENTS and id(p) in names]
    places = {tuple(parameter.shape): names[id(parameter)] for parameter in some[:REFERENCES]}
    states = (value for state in getattr(optimizer, "state", {}).values() for value in state.values())
    parts = {*map(id, owned), *(id(p.grad) for p in owned), *map(id, states)}
    counts = dict.fromkeys(places, 0)
    for thing in things if places else ():
        if type(thing) not in PLAIN or id(thing) in parts or thing.requires_grad or not thing.is_floating_point():
            continue
        shape = tuple(thing.shape)
        if shape not in places or thing.layout is not torch.strided or thing.is_inference():
            continue
        # a tensor of version 1 was written once, as it was made
        if counts[shape] < MOST_COPIES and thing._version > 1 and thing.data_ptr():
            counts[shape] += 1
            wait = tensors.to_host([tensors.moments([thing], ("sum", "sumsq"), 0.0)])
            yield _Copy(weakref.ref(thing), places[shape], thing._version, wait)


def _staying(pairs: Sequence[tuple[_Copy, _Copy]]) -> Iterator[str]:
    for before, after in pairs:
        if after.version - before.version >= WRITES:
            first, second = before.moments(), after.moments()
            if first.tolist() == second.tolist() and first.all():
                yield before.name
