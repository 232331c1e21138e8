"""Training of a trainer, as its callback watches it: attached when training begins, stopped when it ends."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from probe.core.config.load import load
from probe.core.config.parse import read
from probe.core.door import FaultCounter, attempt
from probe.core.faults import Faults
from probe.core.messages import complain
from probe.core.monitor import arguments
from probe.core.monitor.legacy import NEVER_BEGUN, PassedToTrainer
from probe.core.monitor.trainer_mon import Monitor, watcher_of
from probe.launch.environment import CONFIG, DEFAULTS, configuration

Method = TypeVar("Method", bound=Callable[..., None])
Source = str | os.PathLike[str] | Mapping[str, Any]
"""JSON or YAML file, or a mapping with the same keys."""


TWICE = "a callback of probe: expected once among the trainer's callbacks, got twice: losses count twice; leave one out"


class NumberReceiver(Protocol):
    """Receiver of numbers of the run, such as a ``TrainerMon``."""

    def log_ended(self, **values: Any) -> None:
        """Record ``values`` of the step that ended last."""


class Watching(PassedToTrainer):
    """Part of the callbacks of trainers that watch a training.

    Args:
        config: JSON or YAML file, or a mapping with the same keys; None for what ``PROBE_CONFIG`` names, else gradients
            and alerts. A monitor that the program attaches itself: then its numbers alone are passed to it.
        overrides: keys of the configuration, which replace those of ``config``.

    Raises:
        ConfigError: naming every problem of the configuration.
    """

    monitor_class: type[Monitor]

    @arguments.checked("config=None, **overrides")
    def __init__(self, config: Source | NumberReceiver | None = None, **overrides: Any) -> None:
        self._run = TrainerRun(self.monitor_class, config, overrides)

    @property
    def monitor(self) -> Any:
        """The monitor of the training in progress, or of the last one; None before the first."""
        return self._run.monitor

    @property
    def faults(self) -> FaultCounter:
        """The counter of failures."""
        return self._run.faults


class Fallible(Protocol):
    """Callback of a trainer, with a counter of its failures."""

    @property
    def faults(self) -> FaultCounter:
        """The counter of failures."""


def harmless(method: Method) -> Method:
    """Count what a method of a :class:`Fallible` callback raises: the trainer goes on."""

    @functools.wraps(method)
    def call(self: Fallible, *args: Any, **kwargs: Any) -> None:
        attempt(self.faults, f"callback {method.__name__}", lambda: method(self, *args, **kwargs))

    return call  # type: ignore[return-value] # the same arguments


class TrainerRun:
    """Monitor of a trainer's training. Errors that the user can repair are raised, before training; others never.

    A model that the program watches itself is not watched twice: numbers go to the monitor that is there.

    Args:
        kind: class of monitors.
        config: JSON or YAML file, or a mapping with the same keys; None for what ``PROBE_CONFIG`` names, else gradients
            and alerts. A monitor of the program: then numbers go there, and nothing is attached or stopped.
        overrides: keys of the configuration, which replace those of ``config``.
        automatic: whether nobody has written the callback into the program: then the program's own monitors come first,
            failures leave training alone, and a line is written where it begins.

    Raises:
        ConfigError: naming every problem of the configuration.
    """

    def __init__(
        self,
        kind: type[Monitor],
        config: Source | NumberReceiver | None = None,
        overrides: Mapping[str, Any] | None = None,
        automatic: bool = False,
    ) -> None:
        self._kind, self._automatic, self.faults = kind, automatic, Faults()
        self._own: NumberReceiver | None = None
        """Monitor of the program."""
        self.source: Source = {}
        """Configuration of the monitor."""
        if config is None or isinstance(config, str | os.PathLike | Mapping):
            self.source = configured(config, overrides or {})
        elif isinstance(config, type) or not callable(getattr(config, "log_ended", None)):
            expected = "a callback of probe: config: expected a file, a mapping or a monitor"
            raise TypeError(f"{expected}, got {config!r:.80}; pass one of them")
        else:
            self._own = config
        self._never_begun = weakref.finalize(self, complain, NEVER_BEGUN, "warning")
        if automatic:
            self._never_begun.detach()
        self.monitor: Monitor | None = None
        """The monitor that watches the training in progress, or has watched the last one."""
        self._owned = False

    @property
    def receiver(self) -> NumberReceiver | None:
        """The receiver of the trainer's numbers; None before a training."""
        return self._own if self._own is not None else self.monitor

    def begin(
        self,
        models: Sequence[Any] | Mapping[str, Any],
        optimizers: Sequence[Any],
        micro_batches: int = 1,
        begun: int = 0,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Attach a monitor, unless one watches these models already.

        Args:
            models: stages of a pipeline, or models by name.
            begun: number of the first step.
            changes: keys of the configuration that this training cannot do without.

        Raises:
            ValueError: for a model that cannot be watched. Any other failure is reported, and the training is not
                watched.
        """
        watched = [*models.values()] if isinstance(models, Mapping) else [*models]
        if self._owned and self.monitor is watcher_of(watched) and getattr(self.monitor, "step", None) == begun:
            complain(TWICE, "warning")
            return
        self.end()
        if self._own is not None or not models or not optimizers:
            return
        try:
            self._begin(models, optimizers, micro_batches, begun, changes or {})
        except Exception as error:
            if isinstance(error, ValueError) and not self._automatic:
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            complain(f"this training is not watched: {reason}", "warning")

    def _begin(
        self,
        models: Sequence[Any] | Mapping[str, Any],
        optimizers: Sequence[Any],
        micro_batches: int,
        begun: int,
        changes: Mapping[str, Any],
    ) -> None:
        named = dict(models) if isinstance(models, Mapping) else {}
        watched = [*named.values()] if named else [*models]
        earlier = watcher_of(watched)
        if earlier is not None and (self._automatic or not earlier.automatic):
            self.monitor = earlier
            return
        monitor = self._kind(configured(self.source, changes))
        monitor.automatic, monitor.way, self.monitor = self._automatic, "callback", monitor
        monitor.set_monitor(named or _one([*models]), micro_batches, _one(optimizers), start_iteration=begun)
        check_attached(monitor, watched)
        monitor.log(step=monitor.step, loss=None)  # numbers of every step from the first on
        self._owned = True
        way = "the trainer's callback, which `probe run` adds" if self._automatic else "the program's callback"
        complain(attached(monitor, named or {"": next(iter(models))}, optimizers, begun, "the trainer", way), "info")

    def log_ended(self, **values: Any) -> None:
        """Record numbers of the step that ended last."""
        numbers, receiver = _recordable(values), self.receiver
        if receiver is not None and numbers:
            attempt(self.faults, "numbers of the trainer", lambda: receiver.log_ended(**numbers))

    def log(self, at: int | None, **values: Any) -> None:
        """Record numbers of the step ``at``, which is in progress or has ended last; None for the one in progress."""
        numbers, receiver = _recordable(values), self.receiver
        if isinstance(receiver, Monitor) and numbers:
            attempt(self.faults, "numbers of the trainer", lambda: receiver.log(step=at, **numbers))
        elif numbers:
            self.log_ended(**numbers)

    def end(self) -> None:
        """Stop the monitor if it was attached here."""
        self._never_begun.detach()
        if self._owned and self.monitor is not None:
            self._owned = False
            attempt(self.faults, "end of the training", self.monitor.stop)


def _recordable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are known, under names that are no argument of ``log``."""
    return {name: value for name, value in values.items() if value is not None and name not in ("self", "step", "at")}


def _one(several: Sequence[Any]) -> Any:
    return several[0] if len(several) == 1 else list(several)


def configured(config: Source | None, overrides: Mapping[str, Any]) -> Source:
    """Return a valid configuration: ``config`` with ``overrides``. A file stays a file if nothing is replaced in it, so
    that its changes can be followed.

    Args:
        config: None for what ``PROBE_CONFIG`` names, else gradients and alerts.

    Raises:
        ConfigError: naming every problem.
    """
    if config is None:
        source: Source = configuration(os.environ) if CONFIG in os.environ else DEFAULTS
    else:
        source = config
    load(source)
    if not overrides:
        return source
    values = source if isinstance(source, Mapping) else read(Path(source))[0]
    merged = {**values, **overrides}
    load(merged)
    return merged


def attached(
    monitor: Monitor, models: Mapping[str, Any], optimizers: Sequence[Any], begun: int, by: str, way: str = ""
) -> str:
    """Return the line that is written when a monitor attaches.

    Args:
        begun: number of the first step.
        by: source of that number.
        way: noun phrase for what has attached it; empty for `probe run` or `probe attach` alone.
    """
    classes = ", ".join(f"{name}: {type(model).__name__}".removeprefix(": ") for name, model in models.items())
    kinds = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
    parts = [f"watching {classes} with {kinds}"]
    if begun:
        parts.append(f"from step {begun} on, by {by}")
    if monitor.output_directory:
        parts.append(f"files in {monitor.output_directory}")
    parts += [f"attached by {way}"] if way else []
    return "; ".join(parts)


def check_attached(monitor: Monitor, models: Sequence[Any]) -> None:
    """Refuse to call models watched that are not: where the machine fails, ``set_monitor`` raises nothing.

    Raises:
        RuntimeError: with what has failed.
    """
    if watcher_of(models) is not monitor:
        raise RuntimeError(f"the machine failed while a monitor attached ({', '.join(monitor.faults)})")


def watched_by(monitor: Monitor) -> str:
    """Return the sentence about a model that is watched already."""
    where = f"; files in {monitor.output_directory}" if monitor.output_directory else ""
    kind = "a monitor of `probe run` or `probe attach`"
    if not monitor.automatic:
        kind = f"the program's own {monitor.way or 'monitor'}"
    return f"the model is watched already, by {kind}{where}"
