"""torchtitan: a part of a ``MetricsProcessor`` that attaches a monitor, and records what the trainer logs.

::

    class Metrics(WatchedMetrics, MetricsProcessor):
        probe_config = "monitor.json"
"""

from __future__ import annotations

from typing import Any, ClassVar

from probe.core.door import attempt
from probe.core.naming import GRAD_NORM, LOSS
from probe.launch.trainer_run import Source, TrainerRun
from probe.pytorch.adapter import TrainerMon

NAMES = {"global_avg_loss": LOSS, "global_max_loss": "max_loss", "grad_norm": GRAD_NORM}
"""Arguments of ``log``, and their names here."""
POSITIONS = ("step", "global_avg_loss", "global_max_loss", "grad_norm", "extra_metrics")
"""Arguments of ``log`` by position."""


class WatchedMetrics:
    """First base of a class whose second base is torchtitan's ``MetricsProcessor``.

    The monitor attaches when the trainer has set ``model_parts`` and ``optimizers``, before it loads a checkpoint, so
    that steps of a resumed run are counted from :attr:`probe_start` on, and stops at ``close``.
    """

    probe_config: ClassVar[Source | None] = None
    """JSON or YAML file, or a mapping with the same keys; None for what ``PROBE_CONFIG`` names, else gradients and
    alerts."""
    probe_start: ClassVar[int] = 0
    """Number of the first step."""
    probe_run: TrainerRun | None = None
    """Run that is watched."""

    def __init_subclass__(cls, **values: Any) -> None:
        super().__init_subclass__(**values)
        if not hasattr(super(), "log"):
            expected = f"class {cls.__name__}: expected MetricsProcessor behind WatchedMetrics, got none"
            raise TypeError(f"{expected}; write class {cls.__name__}(WatchedMetrics, MetricsProcessor)")

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("model_parts", "optimizers") and self.probe_run is None:
            models, optimizers = (getattr(self, attribute, None) for attribute in ("model_parts", "optimizers"))
            if models is not None and optimizers is not None:
                self.probe_run = run = TrainerRun(TrainerMon, self.probe_config)
                run.begin(list(models), list(optimizers), begun=self.probe_start)

    @property
    def monitor(self) -> Any:
        """The monitor; None before the trainer has its models and optimizers."""
        return self.probe_run.monitor if self.probe_run is not None else None

    def log(self, *args: Any, **kwargs: Any) -> None:
        """Log as torchtitan does, and record loss, gradient norm and what is extra for the step that ended last."""
        super().log(*args, **kwargs)  # type: ignore[misc] # of the other base
        if self.probe_run is not None:
            attempt(self.probe_run.faults, "callback log", self._record, self.probe_run, args, kwargs)

    def _record(self, run: TrainerRun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = {**dict(zip(POSITIONS, args, strict=False)), **kwargs}
        extra = values.get("extra_metrics") or {}
        numbers = {name: values.get(argument) for argument, name in NAMES.items()}
        run.log_ended(**numbers, **{name: extra[name] for name in extra.keys() - numbers.keys()})

    def close(self) -> None:
        """Close torchtitan's loggers, and stop the monitor."""
        if self.probe_run is not None:
            self.probe_run.end()
        super().close()  # type: ignore[misc] # of the other base
