"""Watch of a program's training: its optimizers as they are made, their models at the first forward, one monitor each
time."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, Protocol

from probe.core.backend.patch import Undo, replace
from probe.core.messages import complain, plural
from probe.core.monitor.trainer_mon import Monitor, is_watched
from probe.launch.environment import configuration

ADVICE = """to watch it, write in the program, after model and optimizer are made:
    from probe.{framework} import TrainerMon
    monitor = TrainerMon("monitor_config.json")
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)"""


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

    def trains(self, model: Any) -> bool:
        """Return whether a call of ``model`` now may belong to training."""

    def parameters(self, model: Any) -> Iterable[Any]:
        """Yield the parameters in a model."""

    def owned(self, optimizer: Any) -> Iterable[Any]:
        """Return the parameters that an optimizer updates, as models have them."""

    def models(self) -> list[Any]:
        """Return all models of the process, whatever holds them."""

    def chosen(self, model: Any, wanted: frozenset[int], parents: Callable[[Any], list[Any]]) -> Any:
        """Return what to watch for a model that holds the ``wanted`` parameters, by identity: a wrapper around it, or a
        part of it."""

    def made_steps(self, optimizer: Any) -> int:
        """Return the number of updates that an optimizer has made, in an earlier run too; 0 if it keeps none."""


class FoundRun:
    """Models and optimizers that one monitor watches."""

    def __init__(self, monitor: Monitor, models: Sequence[Any], optimizers: Sequence[Any], begun: int) -> None:
        self.monitor, self.begun = monitor, begun
        self._models = [weakref.ref(model) for model in models]
        self.optimizers = [weakref.ref(optimizer) for optimizer in optimizers]

    def is_gone(self) -> bool:
        """Return whether a model or all optimizers are gone."""
        return any(each() is None for each in self._models) or all(each() is None for each in self.optimizers)

    def shares(self, models: Iterable[Any]) -> bool:
        """Return whether it watches any of ``models``."""
        mine = {id(each()) for each in self._models}
        return any(id(model) in mine for model in models)


class ScriptWatch:
    """Watch of this process. Every method is safe: a failure costs the watching, not the training."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._new: list[weakref.ref[Any]] = []
        self._paired: list[tuple[list[weakref.ref[Any]], weakref.ref[Any]]] = []
        self._runs: list[FoundRun] = []
        self._undo: Undo | None = None
        self._inside = threading.local()
        self._process = os.getpid()
        self._reason = ""

    # What the program does.

    def made(self, optimizer: Any) -> None:
        """Note a new optimizer; from now on calls of models are looked at."""
        if not _is_own(optimizer):
            return
        self._new.append(weakref.ref(optimizer))
        self._listen()

    def paired(self, models: Any, optimizer: Any) -> None:
        """Note a new optimizer with the models that it belongs to."""
        each = list(models) if isinstance(models, list | tuple) else [models]
        self._paired.append(([weakref.ref(model) for model in each], weakref.ref(optimizer)))
        self._listen()

    def _listen(self) -> None:
        if self._undo is None:
            self._undo = replace(self._finder.called, "__call__", self._calling(self._finder.called.__call__))

    def _rest(self) -> None:
        self._new.clear()
        self._paired.clear()
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        inside = self._inside

        def __call__(model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if getattr(inside, "call", False):
                return original(model, *args, **kwargs)
            inside.call = True
            try:
                self._guarded(lambda: self._called(model))
                return original(model, *args, **kwargs)
            finally:
                inside.call = False

        return __call__

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the program goes on
            self._give_up(" ".join(str(error).split()) or type(error).__name__)

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        self._rest()
        complain(f"this program is not watched: {reason}", "warning")

    # Models and optimizers that belong together.

    def _waiting(self) -> list[Any]:
        owners = [owner for each in self._new if (owner := each()) is not None]
        if not owners and not self._paired:
            self._rest()
        return owners

    def _called(self, model: Any) -> None:
        owners = self._waiting()
        if self._undo is None or not self._finder.trains(model):
            return
        for models, optimizer in self._paired:
            known = [each() for each in models]
            if any(model is each for each in known) and (owner := optimizer()) is not None:
                self._watch([each for each in known if each is not None], [owner], prefixed=False)
                return
        wanted = {id(parameter) for owner in owners for parameter in self._finder.owned(owner)}
        if wanted and any(id(parameter) in wanted for parameter in self._finder.parameters(model)):
            self._attach(model, owners)

    def _attach(self, called: Any, owners: Sequence[Any]) -> None:
        everything = _Models(self._finder, called)
        found: list[Any] = []
        served: list[Any] = []
        for owner in owners:
            model = everything.of(owner)
            if model is None:
                kind = type(owner).__name__
                complain(f"no model holds the parameters of an optimizer ({kind}): it is not watched", "warning")
                continue
            served.append(owner)
            found.append(model)
        if served:
            self._watch(everything.outermost(found), served, prefixed=True)
        else:
            self._give_up("no model holds the parameters of its optimizers")

    def _watch(self, models: Sequence[Any], optimizers: Sequence[Any], prefixed: bool) -> None:
        """Attach a monitor."""
        for run in [*self._runs]:
            if run.is_gone() or run.shares(models):
                run.monitor.stop()
                self._runs.remove(run)
        self._rest()
        if any(map(is_watched, models)):
            return  # the program has a monitor of its own
        names = named(models) if prefixed and len(models) > 1 else {}
        begun = max((self._finder.made_steps(optimizer) for optimizer in optimizers), default=0)
        monitor = self._finder.monitor(configuration(os.environ))
        monitor.automatic = True
        several = len(models) > 1
        monitor.set_monitor(
            names if names else list(models) if several else models[0],
            1,
            list(optimizers) if len(optimizers) > 1 else optimizers[0],
            start_iteration=begun,
        )
        self._runs.append(FoundRun(monitor, models, optimizers, begun))
        complain(_attached(monitor, names or {"": models[0]}, optimizers, begun), "info")

    # The end.

    def ended(self) -> None:
        """Report what was watched, or why nothing was."""
        if os.getpid() != self._process:
            return
        for run in self._runs:
            steps, where = run.monitor.step - run.begun, run.monitor.output_directory
            number = len(run.monitor.findings)
            text = f"{steps} {plural(steps, 'step')} watched, {number} {plural(number, 'finding')}"
            complain(f"{text}; files in {where}" if where else text, "info")
        if not self._runs and not self._reason and (self._new or self._paired):
            reason = "an optimizer was made, and no model with its parameters was called for training"
            complain(f"nothing was watched: {reason}; {ADVICE.format(framework=self._finder.framework)}", "warning")


class _Models:
    """All models of the process, looked up once."""

    def __init__(self, finder: Finder, called: Any) -> None:
        self._finder, self._called = finder, called
        self._all: list[Any] | None = None
        self._held: dict[int, frozenset[int]] = {}

    def of(self, optimizer: Any) -> Any:
        """Return the model of an optimizer: the one that was called if it holds all parameters, else the smallest that
        does; None if none does."""
        wanted = frozenset(id(parameter) for parameter in self._finder.owned(optimizer))
        if not wanted:
            return None
        if self._called is not None and wanted <= self._parameters(self._called):
            return self._finder.chosen(self._called, wanted, self._parents)
        holding = [model for model in self._everything() if wanted <= self._parameters(model)]
        if not holding:
            return None
        smallest = min(map(len, map(self._parameters, holding)))
        alike = [model for model in holding if len(self._parameters(model)) == smallest]
        inner = {id(child) for model in alike for child in _children(model, alike)}
        return self._finder.chosen(next(each for each in alike if id(each) not in inner), wanted, self._parents)

    def outermost(self, models: Sequence[Any]) -> list[Any]:
        """Return each model once, without those that are in another."""
        each = list({id(model): model for model in models}.values())
        inner = {id(child) for model in each for child in _children(model, each)}
        return [model for model in each if id(model) not in inner]

    def _everything(self) -> list[Any]:
        if self._all is None:
            self._all = self._finder.models()
        return self._all

    def _parameters(self, model: Any) -> frozenset[int]:
        if id(model) not in self._held:
            self._held[id(model)] = frozenset(id(parameter) for parameter in self._finder.parameters(model))
        return self._held[id(model)]

    def _parents(self, model: Any) -> list[Any]:
        return [each for each in self._everything() if each is not model and _holds(each, model)]


def _holds(model: Any, child: Any) -> bool:
    held = getattr(model, "_modules", None) or getattr(model, "_cells", None) or {}
    return any(each is child for each in held.values())


def _children(model: Any, among: Sequence[Any]) -> Iterator[Any]:
    """Yield those of ``among`` that are in ``model``, at any depth."""
    inside = getattr(model, "modules", None) or getattr(model, "cells_and_names", None)
    held = {id(each[1] if isinstance(each, tuple) else each) for each in inside()} if callable(inside) else set[int]()
    yield from (each for each in among if each is not model and id(each) in held)


def _is_own(optimizer: Any) -> bool:
    """Return whether an optimizer can be referred to weakly."""
    try:
        weakref.ref(optimizer)
    except TypeError:
        return False
    return True


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


def _attached(monitor: Monitor, models: dict[str, Any], optimizers: Sequence[Any], begun: int) -> str:
    """Return the line that is written when a monitor attaches."""
    what = ", ".join(f"{name}: {type(model).__name__}".removeprefix(": ") for name, model in models.items())
    by = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
    parts = [f"watching {what} with {by}"]
    if begun:
        parts.append(f"from step {begun} on, by the optimizer's counter")
    if monitor.output_directory:
        parts.append(f"files in {monitor.output_directory}")
    return "; ".join(parts)
