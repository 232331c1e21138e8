"""Search for the models of optimizers, and their names in the program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, Protocol

from probe.core.door import Remove
from probe.core.monitor.trainer_mon import Monitor


class Finder(Protocol):
    """Models and optimizers of a framework, as far as they must be known before a monitor attaches."""

    @property
    def framework(self) -> str:
        """``pytorch`` or ``mindspore``."""

    @property
    def monitor(self) -> type[Monitor]:
        """Class of monitors."""

    @property
    def called(self) -> type:
        """Class of models; each of its objects is called."""

    @property
    def step(self) -> str:
        """Method of optimizers that updates."""

    def trains(self, model: Any) -> bool:
        """Return whether a call of ``model`` now may belong to training."""

    def parameters(self, model: Any) -> Iterable[Any]:
        """Yield the parameters in a model."""

    def owned(self, optimizer: Any) -> Iterable[Any]:
        """Return the parameters that an optimizer updates, as models have them."""

    def models(self) -> list[Any]:
        """Return all models of the process, whatever holds them."""

    def chosen(self, model: Any, wanted: frozenset[int], parents: Callable[[Any], list[Any]]) -> Any:
        """Return the module to watch for a model that holds the ``wanted`` parameters, given by identity: the model, a
        wrapper around it, or a part of it."""

    def before_tracing(self, models: Sequence[Any]) -> list[Any]:
        """Return the modules inside models that will be compiled at their first call, which is about to come."""

    def made_steps(self, optimizer: Any) -> int:
        """Return the number of updates that an optimizer has made, in an earlier run too; 0 if it keeps none."""

    def settings(self, optimizer: Any) -> str:
        """Return the settings with which an optimizer was made; empty if they are not known."""

    def have_gradients(self, parameters: Iterable[Any]) -> bool:
        """Return whether any of ``parameters`` has a gradient now; false if a framework does not keep them there."""

    def is_compiled_inside(self) -> bool:
        """Return whether what the caller calls is compiled if it can be."""

    def replace_call(self, replacement: Callable[..., Any]) -> Remove:
        """Replace the method by which models are called."""


class ModelSearch:
    """All models of the process, looked up once.

    Args:
        called: the model that is called now, if any.
    """

    def __init__(self, finder: Finder, called: Any) -> None:
        self._finder, self._called = finder, called
        self._all: list[Any] | None = None
        self._held: dict[int, frozenset[int]] = {}

    def of(self, optimizer: Any) -> list[Any]:
        """Return the model of an optimizer: the model that was called if it holds all parameters of the optimizer, else
        the smallest model that does. If none does, return the fewest models that together hold as many of the
        parameters as possible, in the order of the optimizer."""
        owned = [id(parameter) for parameter in self._finder.owned(optimizer)]
        parameters = frozenset(owned)
        if not parameters:
            return []
        if self._called is not None and parameters <= self._parameters(self._called):
            return [self._finder.chosen(self._called, parameters, self._parents)]
        places = {parameter: place for place, parameter in enumerate(owned)}
        models: list[tuple[int, Any]] = []
        while parameters and (model := self._holder(parameters)) is not None:
            shared = parameters & self._parameters(model)
            models.append((min(map(places.__getitem__, shared)), self._finder.chosen(model, shared, self._parents)))
            parameters -= shared
        return [model for _, model in sorted(models, key=lambda pair: pair[0])]

    def _holder(self, parameters: frozenset[int]) -> Any:
        """Return the model with most of the ``parameters``, of these the smallest, of these the outermost."""
        counts = [(len(parameters & self._parameters(model)), model) for model in self._everything()]
        most = max((number for number, _ in counts), default=0)
        if not most:
            return None
        holding = [model for number, model in counts if number == most]
        smallest = min(map(len, map(self._parameters, holding)))
        alike = [model for model in holding if len(self._parameters(model)) == smallest]
        inner = {id(child) for model in alike for child in _children(model, alike)}
        return next(model for model in alike if id(model) not in inner)

    def outermost(self, models: Sequence[Any]) -> list[Any]:
        """Return each model once, without those that are in another."""
        distinct_models = list({id(model): model for model in models}.values())
        inner = {id(child) for model in distinct_models for child in _children(model, distinct_models)}
        return [model for model in distinct_models if id(model) not in inner]

    def _everything(self) -> list[Any]:
        if self._all is None:
            self._all = self._finder.models()
        return self._all

    def _parameters(self, model: Any) -> frozenset[int]:
        if id(model) not in self._held:
            self._held[id(model)] = frozenset(id(parameter) for parameter in self._finder.parameters(model))
        return self._held[id(model)]

    def _parents(self, model: Any) -> list[Any]:
        return [candidate for candidate in self._everything() if candidate is not model and _holds(candidate, model)]


def _holds(model: Any, child: Any) -> bool:
    children = getattr(model, "_modules", None) or getattr(model, "_cells", None) or {}
    return any(value is child for value in children.values())


def _children(model: Any, among: Sequence[Any]) -> Iterator[Any]:
    """Yield those of ``among`` that are in ``model``, at any depth."""
    inside = getattr(model, "modules", None) or getattr(model, "cells_and_names", None)
    inner = (
        {id(child[1] if isinstance(child, tuple) else child) for child in inside()} if callable(inside) else set[int]()
    )
    yield from (part for part in among if part is not model and id(part) in inner)


def distinct(owners: Sequence[Any], owned: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """Return the optimizers that are to be watched, of those that hold one another: the outer one, unless it only
    passes its steps on to several that update all of its parameters."""
    dropped: set[int] = set()
    for outer in owners:
        inner = [optimizer for optimizer in owners if optimizer is not outer and _refers(outer, optimizer)]
        parameters = {id(parameter) for parameter in owned(outer)}
        passes_on = len(inner) > 1 and parameters == {
            id(parameter) for optimizer in inner for parameter in owned(optimizer)
        }
        dropped |= {id(outer)} if passes_on else {id(optimizer) for optimizer in inner}
    return [optimizer for optimizer in owners if id(optimizer) not in dropped]


def _refers(outer: Any, inner: Any) -> bool:
    for value in [*getattr(outer, "__dict__", {}).values()]:
        if value is inner or (isinstance(value, list | tuple) and any(item is inner for item in value)):
            return True
    return False


def named(models: Sequence[Any]) -> dict[str, Any]:
    """Return several models by name: that of the variable, or of the attribute of ``self``, that holds it in the
    program; else the class with a number."""
    names: dict[str, Any] = {}
    for number, model in enumerate(models):
        name = _variable(model, sys._getframe(1)) or f"{type(model).__name__.lower()}{number}"
        while name in names:
            name = f"{name}{number}"
        names[name] = model
    return names


def _variable(model: Any, frame: FrameType | None) -> str:
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith("probe."):
            places = [frame.f_locals, getattr(frame.f_locals.get("self"), "__dict__", {}), frame.f_globals]
            for place in places:
                for name, value in [*place.items()]:
                    if value is model and name != "self" and not name.startswith("_") and name.isidentifier():
                        return str(name)
        frame = frame.f_back
    return ""
