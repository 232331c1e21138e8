"""Run of a program that is watched as it is: what one monitor watches, and which of its optimizers have stepped."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from probe.core.monitor.trainer_mon import Monitor, narrow
from probe.launch.model_search import Finder

ENOUGH = 10
"""Steps of others after which an optimizer without a step is dropped."""
BRIEF = 2
"""Updates of an optimizer that is hardly used."""


class FoundRun:
    """Models and optimizers that one monitor watches.

    Args:
        models: by name; one alone has an empty name.
        begun: number of the first step.
    """

    def __init__(self, monitor: Monitor, models: Mapping[str, Any], optimizers: Sequence[Any], begun: int) -> None:
        self.monitor, self.begun = monitor, begun
        self._since = begun
        """Number of the step in which an optimizer was made anew."""
        self.continued: int | None = None
        """Number of the step with which another run goes on, if a wrapper was put around the model."""
        self._models = {name: weakref.ref(model) for name, model in models.items()}
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._steps = dict.fromkeys(map(id, optimizers), 0) if len(optimizers) > 1 else {}
        """Updates by optimizer, until each has made one or was dropped."""

    @property
    def models(self) -> dict[str, Any]:
        """Models that there still are, by name."""
        return {name: model for name, reference in self._models.items() if (model := reference()) is not None}

    @property
    def optimizers(self) -> list[Any]:
        """Optimizers that there still are."""
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    @property
    def counts(self) -> bool:
        """True if an optimizer has not stepped yet, while another may."""
        return bool(self._steps)

    def hand_over(self) -> None:
        """Stop; another run, of the wrapper around the model, goes on from here."""
        self.monitor.stop()
        self.continued = self.monitor.step

    def is_gone(self) -> bool:
        """Return whether a model or all optimizers are gone."""
        return len(self.models) < len(self._models) or not self.optimizers

    def shares(self, models: Iterable[Any]) -> bool:
        """Return whether it watches any of ``models``."""
        mine = {id(model) for model in self.models.values()}
        return any(id(model) in mine for model in models)

    def goes_on_with(self, optimizer: Any, finder: Finder) -> bool:
        """Return whether ``optimizer`` is one of its own that the program has made anew, which the monitor follows: of
        the same class and parameters, and with the same settings, unless that one has made an update or two alone."""
        parameters = [*map(id, finder.owned(optimizer))]
        for position, reference in enumerate(self._optimizers):
            if (former := reference()) is None or type(former) is not type(optimizer):
                continue
            if [*map(id, finder.owned(former))] == parameters:
                is_same = finder.settings(optimizer) == finder.settings(former) != ""
                if not is_same and self.monitor.step - self._since > BRIEF:
                    return False
                self._optimizers[position], self._since = weakref.ref(optimizer), self.monitor.step
                self._steps = {id(optimizer) if key == id(former) else key: n for key, n in self._steps.items()}
                return True
        return False

    def stepped(self, optimizer: Any) -> list[Any]:
        """Count an update; return the optimizers that have made none while another made enough of them."""
        if id(optimizer) not in self._steps:
            return []
        self._steps[id(optimizer)] += 1
        idle = [optimizer for optimizer in self.optimizers if not self._steps[id(optimizer)]]
        if idle and max(self._steps.values()) < ENOUGH:
            return []
        self._steps = {}
        return idle

    def drop(
        self, idle: Sequence[Any], owned: Callable[[Any], Iterable[Any]], parameters_of: Callable[[Any], Any]
    ) -> dict[str, Any]:
        """Watch ``idle`` no more, nor the models of which no other optimizer owns a parameter; return these by name."""
        without = {id(optimizer) for optimizer in idle}
        remaining = [optimizer for optimizer in self.optimizers if id(optimizer) not in without]
        trained = {id(parameter) for optimizer in remaining for parameter in owned(optimizer)}
        trained_models = {
            name: model
            for name, model in self.models.items()
            if any(id(parameter) in trained for parameter in parameters_of(model))
        }
        dropped = {name: model for name, model in self.models.items() if name not in trained_models}
        narrow(self.monitor, [*trained_models.values()], remaining)
        self._models = {name: weakref.ref(model) for name, model in trained_models.items()}
        self._optimizers = [weakref.ref(optimizer) for optimizer in remaining]
        return dropped
