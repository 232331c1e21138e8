"""Watch of a program's training: its optimizers as they are made, their models at the first forward, one monitor each
time."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from probe.core.backend.patch import Undo
from probe.core.door import attempt, compiling, passage, replace
from probe.core.messages import complain
from probe.core.monitor.trainer_mon import close_report, watcher_of
from probe.launch.environment import configuration
from probe.launch.failures import unwatched
from probe.launch.found_run import ENOUGH, FoundRun
from probe.launch.model_search import Finder, ModelSearch, distinct, named
from probe.launch.step_notes import StepNotes
from probe.launch.trainer_run import attached, check_attached, watched_by

EXIT_SECONDS = 2.0
"""Longest time by which a monitor holds up ``os._exit``."""
ADVICE = """to watch it, write in the program, after model and optimizer are made:
    from probe.{framework} import TrainerMon
    monitor = TrainerMon("monitor_config.json")
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)"""


class ScriptWatch:
    """Watch of this process. Every method is safe: a failure costs the watching, not the training. It counts its own
    failures, and gives up at the first (:class:`probe.core.door.FaultCounter`)."""

    def __init__(self, finder: Finder) -> None:
        self.uncounted = 0
        self._finder = finder
        self._new: list[weakref.ref[Any]] = []
        self._paired: list[tuple[list[weakref.ref[Any]], weakref.ref[Any]]] = []
        self._runs: list[FoundRun] = []
        self._undo: Undo | None = None
        self._steps = StepNotes(finder.step, finder.is_compiled_inside, self, self._stepping, self._stepped)
        self._errands: list[Callable[[], object]] = []
        """Work for the next call of a model."""
        self._old: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that were found, not noted when they were made: their models may have run."""
        self._in_vain = weakref.WeakSet[Any]()
        """Optimizers that have stepped, and of which no model holds the parameters."""
        self._stranger: weakref.ref[Any] | None = None
        """Latest model that was called for training and has no parameter of the optimizers that wait."""
        self._idle: list[weakref.ref[Any]] = []
        """Optimizers that are no longer watched, because others stepped and they did not."""
        self._prefixes: list[tuple[str, weakref.ref[Any]]] = []
        """Models that are no longer watched, each with its name."""
        self._unseen = weakref.WeakSet[Any]()
        """Optimizers whose first step was not watched."""
        self._inside = threading.local()
        self._process = os.getpid()
        self._leaves_by: Undo | None = None
        self._reason = ""
        self.source: Callable[[], Path | Mapping[str, object]] = lambda: configuration(os.environ)
        """Function that returns the configuration, called just before a monitor is made."""
        self.way = "`probe run`"
        """Command that has attached the monitors."""
        self.listen: Callable[[FoundRun | str], object] = lambda _: None
        """Function that is called when a monitor has attached, or with the reason why none will."""

    # What the program does.

    def made(self, optimizer: Any) -> None:
        """Note a new optimizer; from now on calls of models, and its steps, are looked at."""
        if _is_own(optimizer):
            self._new.append(weakref.ref(optimizer))
            self._listen()
            self._steps.note(optimizer)

    def found(self, optimizers: Sequence[Any]) -> None:
        """Note optimizers that have stepped before, between two training steps."""
        self._old.update(optimizers)
        waiting = {id(optimizer) for optimizer in self._waiting()}
        for optimizer in optimizers:
            if id(optimizer) not in waiting:
                self.made(optimizer)

    def at_next_call(self, errand: Callable[[], object]) -> None:
        """Call ``errand`` when a model is called next."""
        self._errands.append(errand)
        self._listen()

    def paired(self, models: Any, optimizer: Any) -> None:
        """Note a new optimizer with the models that it belongs to."""
        group = list(models) if isinstance(models, list | tuple) else [models]
        self._paired.append(([weakref.ref(model) for model in group], weakref.ref(optimizer)))
        self._listen()

    def wrapped(self, wrapper: Any) -> None:
        """Note a wrapper of models: if one is put around a model that is watched, it is watched instead."""
        for run in [*self._runs]:
            if run.monitor.monitoring and watcher_of([wrapper]) is run.monitor:
                self._leave(run)

    def _leave(self, run: FoundRun) -> None:
        """Stop a run; the next call of its model begins another one, which goes on counting."""
        run.hand_over()
        self._new += map(weakref.ref, run.optimizers)
        self._listen()

    def _listen(self) -> None:
        if self._undo is None:
            self._undo = self._finder.replace_call(self._calling(self._finder.called.__call__))

    def _rest(self) -> None:
        self._new.clear()
        self._paired.clear()
        if self._undo is not None:
            self._undo()
            self._undo = None
        self._forget_steps()

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        inside = self._inside

        @passage
        @functools.wraps(original)
        def __call__(model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if compiling():
                return original(model, *args, **kwargs)
            if getattr(inside, "call", False):
                return original(model, *args, **kwargs)
            inside.call = True
            try:
                attempt(self, "watch", self._called, model)
                return original(model, *args, **kwargs)
            finally:
                inside.call = False

        return __call__

    def note(self, where: str, error: BaseException) -> None:  # noqa: ARG002
        """Watch nothing more in this process, because of a failure."""
        self._give_up(" ".join(str(error).split()) or type(error).__name__)

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        self._rest()
        unwatched(f"this program is not watched: {reason}")
        self.listen(reason)

    # Steps: of optimizers whose model is not called before, or that step while others never do.

    def _forget_steps(self) -> None:
        idle = any(reference() is not None for reference in self._idle)
        if not self._new and not idle and not any(run.counts for run in self._runs):
            self._steps.forget()

    def _stepping(self, optimizer: Any, early: bool) -> None:
        """Attach before a step that calls the model itself, in a closure, or that will be compiled: a hook that is
        placed later would have it compiled once more."""
        if early and self._waits(optimizer) and (waiting := self._unlike_watched()):
            self._attach(None, waiting)

    def _stepped(self, optimizer: Any) -> None:
        """Attach after the first step of an optimizer whose model was not called; count those of others."""
        if any(optimizer is reference() for reference in self._idle):
            self._resume(optimizer)
        elif self._waits(optimizer) and (waiting := self._unlike_watched()):
            self._attach(None, waiting, late=True)
        for run in self._runs:
            if idle := run.stepped(optimizer):
                self._drop(run, idle)
        self._forget_steps()

    def _drop(self, run: FoundRun, idle: Sequence[Any]) -> None:
        """Watch optimizers without a step no more, nor their models, until they make one."""
        dropped = run.drop(idle, self._finder.owned, self._finder.parameters)
        self._idle += map(weakref.ref, idle)
        self._prefixes += [(name, weakref.ref(model)) for name, model in dropped.items()]
        kinds = ", ".join(type(optimizer).__name__ for optimizer in idle)
        also = f" with {', '.join(dropped)}" if dropped else ""
        complain(f"no longer watched, without a step in {ENOUGH} of the others: {kinds}{also}", "info")

    def _resume(self, optimizer: Any) -> None:
        """Watch an optimizer that was dropped from its second step on: in a run of its own, or, if its model is watched
        for another one, in a run of both."""
        self._idle = [reference for reference in self._idle if reference() is not None and reference() is not optimizer]
        self._unseen.add(optimizer)
        owned = {id(parameter) for parameter in self._finder.owned(optimizer)}
        for run in [*self._runs]:
            parameters = (
                id(parameter) for model in run.models.values() for parameter in self._finder.parameters(model)
            )
            if run.monitor.monitoring and not owned.isdisjoint(parameters):
                self._leave(run)
        self.made(optimizer)

    def _waits(self, optimizer: Any) -> bool:
        return any(optimizer is owner for owner in self._waiting()) and optimizer not in self._in_vain

    # Models and optimizers that belong together.

    def _waiting(self) -> list[Any]:
        return [owner for reference in self._new if (owner := reference()) is not None]

    def _unlike_watched(self) -> list[Any]:
        """Return the optimizers that wait, but for those that a monitor takes for another of its own: the program has
        made that one anew."""
        for owner in self._waiting():
            if any(run.monitor.monitoring and run.goes_on_with(owner, self._finder) for run in self._runs):
                self._new = [reference for reference in self._new if reference() is not owner]
        return self._waiting()

    def _called(self, model: Any) -> None:
        while self._errands:
            self._errands.pop()()
        trains = self._finder.trains(model)
        owners = self._unlike_watched() if trains else self._waiting()
        if not owners and not self._paired:
            self._rest()
        if self._undo is None or not trains:
            return
        for models, optimizer in self._paired:
            candidates = [reference() for reference in models]
            if any(model is candidate for candidate in candidates) and (owner := optimizer()) is not None:
                self._watch([candidate for candidate in candidates if candidate is not None], [owner], prefixed=False)
                return
        parameters = {id(parameter) for owner in owners for parameter in self._finder.owned(owner)}
        of_model = [id(parameter) for parameter in self._finder.parameters(model)] if parameters else []
        if not parameters.isdisjoint(of_model):
            self._attach(model, owners)
        elif of_model:  # a loss is a module, too
            self._stranger = weakref.ref(model)

    def _attach(self, called: Any, owners: Sequence[Any], late: bool = False) -> None:
        everything = ModelSearch(self._finder, called)
        owned_models: list[Any] = []
        served: list[Any] = []
        for owner in distinct(owners, self._finder.owned):
            models = everything.of(owner)
            owned_models += models
            if models:
                served.append(owner)
            elif called is not None:
                kind = type(owner).__name__
                are_plain = {type(parameter).__name__ for parameter in self._finder.owned(owner)} <= {"Tensor"}
                level = "info" if are_plain else "warning"  # as the temperature of an actor: no model can hold a tensor
                complain(f"no model holds the parameters of an optimizer ({kind}): it is not watched", level)
        if served:
            self._watch(everything.outermost(owned_models), served, prefixed=True, late=late)
        elif called is None:
            self._in_vain.update(owners)
            self._watch_stranger(owners)
        else:
            self._give_up("no model holds the parameters of its optimizers")

    def _watch_stranger(self, owners: Sequence[Any]) -> None:
        """Watch the model that trains beside optimizers of other parameters: they were made before it was moved, copied
        or loaded, and nothing updates it."""
        model = None if self._stranger is None else self._stranger()
        owned = [parameter for owner in owners for parameter in self._finder.owned(owner)]
        if model is None or not owned or self._finder.have_gradients(owned):
            return
        if self._finder.have_gradients(self._finder.parameters(model)):
            self._watch([model], owners, prefixed=True, late=True)

    def _watch(self, models: Sequence[Any], optimizers: Sequence[Any], prefixed: bool, late: bool = False) -> None:
        """Attach a monitor, unless the program has one of its own."""
        if not late and not any(optimizer in self._old for optimizer in optimizers):
            models = self._finder.before_tracing(models)
        counted = max((self._finder.made_steps(optimizer) for optimizer in optimizers), default=0)
        unseen = late or any(optimizer in self._unseen for optimizer in optimizers)
        begun = max(counted, self._end_others(models), int(unseen))
        self._rest()
        if (watcher := watcher_of(models)) is not None:
            self.listen(watched_by(watcher))
            if not watcher.automatic:
                complain(f"`probe run` attaches no monitor: {watched_by(watcher)}", "info")
            return
        names = self._named(models) if prefixed else {}
        monitor = self._finder.monitor(self.source())
        monitor.automatic = True
        passed: Any = names or (list(models) if len(models) > 1 else models[0])
        monitor.set_monitor(
            passed, 1, list(optimizers) if len(optimizers) > 1 else optimizers[0], start_iteration=begun
        )
        check_attached(monitor, models)
        models_by_name = names or {str(number or ""): model for number, model in enumerate(models)}
        self._runs.append(run := FoundRun(monitor, models_by_name, optimizers, begun))
        if self._leaves_by is None:
            self._leaves_by = replace(os, "_exit", self._leaving(os._exit))
        for optimizer in optimizers if run.counts else ():
            self._steps.note(optimizer)
        if late:
            complain("no call of the model in training was seen before its first step, which is left out", "info")
        by = "the optimizer's counter" if begun == counted else "the steps so far"
        complain(attached(monitor, names or {"": models[0]}, optimizers, begun, by, self.way), "info")
        self.listen(run)

    def _named(self, models: Sequence[Any]) -> dict[str, Any]:
        """Return several models by name, or one that was watched with a name before; else nothing."""
        if len(models) > 1:
            return named(models)
        return {name: models[0] for name, model in self._prefixes if model() is models[0]}

    def _end_others(self, models: Sequence[Any]) -> int:
        """Stop the runs that share ``models``, or whose models are gone. Return the step with which this run begins:
        that of a stopped run whose model was put into a wrapper, else 0."""
        begun = 0
        for run in [*self._runs]:
            if run.is_gone() or run.shares(models) or run.continued is not None:
                begun = max(begun, run.continued or 0)
                run.monitor.stop()
                self._runs.remove(run)
        return begun

    # The end.

    def _leaving(self, original: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
        @passage
        @functools.wraps(original)
        def _exit(status: int) -> NoReturn:
            if compiling():
                original(status)
            try:
                if os.getpid() == self._process:
                    attempt(self, "exit", self._hurry)
            finally:  # a signal may raise, too
                original(status)

        return _exit

    def _hurry(self) -> None:
        """Write what is pending before ``os._exit``, which calls no function at exit."""
        for run in self._runs:
            run.monitor.flush(EXIT_SECONDS)
        self._report()

    def ended(self) -> None:
        """Report what was watched, or why nothing was."""
        if os.getpid() == self._process:
            attempt(self, "end", self._report)

    def _report(self) -> None:
        for run in self._runs:
            close_report(run.monitor)
        if self._runs or self._reason or not (self._new or self._paired):
            return
        if (error := getattr(sys, "last_type", None)) is not None:
            text = "nothing was watched: the program ended by {error} before a model was trained"
            unwatched(text.format(error=error.__name__))
            return
        reason = "an optimizer was made, and no model with its parameters was called for training"
        unwatched(f"nothing was watched: {reason}; {ADVICE.format(framework=self._finder.framework)}")


def _is_own(optimizer: Any) -> bool:
    """Return whether an optimizer can be referred to weakly."""
    try:
        weakref.ref(optimizer)
    except TypeError:
        return False
    return True
