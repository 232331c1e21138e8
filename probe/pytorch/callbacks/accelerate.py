"""Accelerate: ``watch(accelerator)`` after ``prepare``, and a tracker that records what the program logs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from numbers import Real
from typing import Any

import torch

from probe.core.door import FaultCounter, Hook, attempt
from probe.core.errors import missing
from probe.core.monitor import arguments
from probe.launch.model_search import named
from probe.launch.trainer_run import NumberReceiver, Source, TrainerRun, harmless
from probe.pytorch import hooks, parallel
from probe.pytorch.adapter import TrainerMon
from probe.pytorch.engines.steps import made_steps

try:
    from accelerate.tracking import GeneralTracker
except ImportError as absent:
    raise ImportError(missing("ProbeTracker", "accelerate", "parallel")) from absent

_log = logging.getLogger("probe")


class ProbeTracker(GeneralTracker):
    """Tracker that records the numbers of ``accelerator.log`` on every rank::

        accelerator = Accelerator(log_with=[ProbeTracker("monitor.json")])
        accelerator.init_trackers("run")
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        monitor = watch(accelerator)

    A number belongs to the step of the latest forward in training: to the one that ended last if it is logged after the
    update, else to the one in progress. The argument ``step`` of ``log`` is the program's own count, and has no
    influence.

    Args:
        config: JSON or YAML file, or a mapping with the same keys; None for what ``PROBE_CONFIG`` names, else gradients
            and alerts. A monitor that the program attaches itself: then numbers alone are passed to it.
        overrides: keys of the configuration, which replace those of ``config``.

    Raises:
        ConfigError: naming every problem of the configuration.
    """

    name = "probe"
    requires_logging_directory = False
    main_process_only = False

    @arguments.checked("config=None, **overrides")
    def __init__(self, config: Source | NumberReceiver | None = None, **overrides: Any) -> None:
        super().__init__()
        self._run = TrainerRun(TrainerMon, config, overrides)
        self._hooks = ExitStack()
        self._step: int | None = None
        """Step of the latest forward in training."""

    @property
    def tracker(self) -> Any:
        """The monitor; None before :func:`watch`."""
        return self._run.receiver

    @property
    def faults(self) -> FaultCounter:
        return self._run.faults

    def begin(self, accelerator: Any, begun: int | None, logs: bool) -> Any:
        """Attach a monitor to what ``accelerator`` has prepared; return it.

        Args:
            begun: number of the first step; None for the number of updates that the optimizers count.
            logs: whether the accelerator passes numbers to this tracker.
        """
        self.finish()
        optimizers = list(accelerator._optimizers)
        models = attempt(self.faults, "attach", _trained, accelerator._models, optimizers) or list(accelerator._models)
        if not models or not optimizers:
            raise ValueError("watch: expected a model and an optimizer; call it after accelerator.prepare(...)")
        done = begun if begun is not None else attempt(self.faults, "attach", _done, optimizers) or 0
        named_models = named(models) if len(models) > 1 else models
        self._run.begin(named_models, optimizers, accelerator.gradient_accumulation_steps, done)
        began = Hook(self.faults, "accelerator.log", self._forward_began)
        for model in models if logs else ():
            self._hooks.callback(model.register_forward_pre_hook(began).remove)
        return self._run.monitor

    def _forward_began(self, model: torch.nn.Module, _: Any) -> None:
        if model.training and torch.is_grad_enabled():
            self._step = getattr(self._run.receiver, "step", None)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Ignore the program's own settings."""

    @harmless
    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:  # noqa: ARG002
        """Record those of ``values`` that are numbers, or tensors of one element."""
        numbers = {name: value for name, value in values.items() if isinstance(value, Real | torch.Tensor)}
        if self._run.receiver is None:
            _log.warning("accelerator.log: nothing is recorded; call watch(accelerator) after accelerator.prepare")
        self._run.log(self._step, **numbers)

    def finish(self) -> None:
        """End the run, as ``accelerator.end_training()`` does."""
        self._hooks.close()
        self._run.end()


def _trained(models: Sequence[Any], optimizers: Sequence[Any]) -> list[Any]:
    """Return the models with parameters that an optimizer updates."""
    owned = {id(updated) for optimizer in optimizers for updated in hooks.owned(parallel.acting(optimizer))}
    return [model for model in models if any(id(parameter) in owned for _, parameter in hooks.parameters(model))]


def _done(optimizers: Sequence[Any]) -> int:
    return max(map(made_steps, optimizers))


def watch(
    accelerator: Any,
    config: Source | None = None,
    *,
    start_iteration: int | None = None,
    **overrides: Any,
) -> Any:
    """Attach a monitor to the models and optimizers that ``accelerator`` has prepared; return it.

    Args:
        config: as of :class:`ProbeTracker`; if the accelerator has such a tracker, that one's.
        start_iteration: number of the first step; None for the number of updates that the optimizers count.
        overrides: keys of the configuration, which replace those of ``config``.

    Raises:
        ConfigError: naming every problem of the configuration.
        TypeError: for anything but an accelerator.
        ValueError: before ``prepare``, or for a model that cannot be watched.
    """
    if not hasattr(accelerator, "trackers"):
        raise TypeError(f"watch: expected an Accelerator, got {type(accelerator)}; pass the one that has prepared all")
    present = [*accelerator.log_with, *accelerator.trackers]
    trackers = [tracker for tracker in present if isinstance(tracker, ProbeTracker)]
    if trackers and (config is not None or overrides):
        raise ValueError("watch: expected one configuration: pass it to ProbeTracker, or to watch without a tracker")
    tracker = trackers[0] if trackers else ProbeTracker(config, **overrides)
    return tracker.begin(accelerator, start_iteration, bool(trackers))
