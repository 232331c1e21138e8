"""``TrainerMonitorV2``, the class of msprobe's Monitor V2, over ``TrainerMon``."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from probe.core.config.errors import nearest
from probe.core.config.schema import Settings
from probe.core.instrumentation.other_updates import StepMark
from probe.core.monitor import arguments
from probe.core.monitor.legacy import CheckedAttributes
from probe.core.monitor.trainer_mon import Monitor
from probe.core.monitor_v2.configuration import (
    FRAMEWORKS,
    ModuleSection,
    MonitorV2Config,
    WeightGradSection,
    read_monitor_v2,
)

MOST_NAMED = 20
"""Most modules that an error names."""
_ATTACHING = frozenset({"dp_group", "tp_group", "start_iteration"})
"""Arguments of ``start`` that ``set_monitor`` has, too."""
_log = logging.getLogger("probe")
NEVER_STARTED = "TrainerMonitorV2 was made, and nothing was watched: call start(model=model, optimizer=optimizer), too"


class TrainerMonitorV2(CheckedAttributes):
    """Monitor of a training run, with the calls of msprobe's Monitor V2.

    Args:
        config_path: JSON or YAML file of Monitor V2, or a mapping with the same keys.
        fr: framework: ``pytorch`` (``pt``, ``torch``) or ``mindspore`` (``ms``); None: the key ``framework``.

    Raises:
        ConfigError: naming every problem of the configuration.
        ValueError: for a framework of another name.
    """

    monitor: Monitor | None = None
    """The monitor that records, from :meth:`start` on."""

    @arguments.checked("config_path, fr=None")
    def __init__(self, config_path: str | os.PathLike[str] | Mapping[str, Any], fr: str | None = None) -> None:
        self._reported = set()
        self._config = read_monitor_v2(config_path)
        framework = self.config.framework if fr is None else FRAMEWORKS.get(str(fr).strip().lower())
        if framework is None:
            names = ", ".join(FRAMEWORKS)
            raise ValueError(f"TrainerMonitorV2: fr: expected one of {names}, got {fr!r}; pass the framework in use")
        self._class: type[Monitor] = import_module(f"probe.{framework}").TrainerMon
        self._mark: StepMark | None = None
        self._warns = True
        self._never_started = weakref.finalize(self, _log.warning, NEVER_STARTED)

    @property
    def config(self) -> MonitorV2Config:
        """The configuration."""
        return self._config

    def start(self, model: Any = None, optimizer: Any = None, **context: Any) -> None:
        """Attach to a model and its optimizer; a second call begins another run.

        Args:
            model: model, or a list of virtual pipeline stages.
            optimizer: None: the one that updates the model is followed; while none does, each call of :meth:`step` ends
                a training step. Only the sections ``module`` and ``cc`` may be on then.
            context: ``grad_acc_steps`` or ``micro_batch_number``, checked only; ``dp_group``, ``tp_group`` and
                ``start_iteration`` as for ``set_monitor``. Others are passed over.

        Raises:
            ValueError: for a missing model or optimizer, and for parts of names that no module has.
        """
        if model is None:
            raise ValueError("TrainerMonitorV2.start: model: expected a model, got None; call start(model=model, ...)")
        self._never_started.detach()
        self.stop()
        for _, each in _stages(model):
            self._class.framework.hooks.check_model(each, Settings.model_validate({}))
        if optimizer is None:
            optimizer = self._mark = self._stand_in(model)
        passed = {name: context.pop(name) for name in _ATTACHING & context.keys()}
        counts = (context.pop(name, None) for name in ("micro_batch_number", "grad_acc_steps"))
        accumulated = next((count for count in (*self._micro_batches(), *counts) if count is not None), 1)
        for name in context:
            close = nearest(name, (*arguments.NAMES, "micro_batch_number"))
            level, hint = (logging.WARNING, f"; did you mean {close}?") if close else (logging.INFO, "")
            _log.log(level, "TrainerMonitorV2.start: %s: passed over%s", name, hint)
        monitor = self._class(self.config.settings(self._targets(model)))
        monitor.set_monitor(model, optimizer=optimizer, grad_acc_steps=accumulated, **passed)
        self.monitor = monitor

    @arguments.reported(lambda: None, needs="")
    def step(self) -> None:
        """End a training step if no optimizer was passed; else steps are counted by updates, and this has no effect."""
        if self._mark is not None:
            if not self._mark.is_replaced:
                self._mark.step()
        elif self._warns and self.monitor is None:
            self._warns = False
            _log.warning("TrainerMonitorV2.step: nothing is recorded; call start(model=model, ...) before training")
        elif self._warns and self.config.patch_optimizer_step is not False:
            self._warns = False
            _log.warning(
                "TrainerMonitorV2.step has no effect beside an optimizer, whose updates are counted; leave it out, or "
                "set patch_optimizer_step to false"
            )

    @arguments.reported(lambda: None, needs="")
    def stop(self) -> None:
        """Remove every hook, write all pending steps and close the files."""
        if self.monitor is not None:
            self.monitor.stop()

    def _stand_in(self, model: Any) -> StepMark:
        needing = [name for name in self.config.monitors.enabled if name not in ("module", "cc")]
        if needing or self.config.patch_optimizer_step:
            key = f"monitors.{needing[0]}" if needing else "patch_optimizer_step"
            raise ValueError(
                f"TrainerMonitorV2.start: optimizer: expected the optimizer that trains, as {key} needs it, got None; "
                "call start(model=model, optimizer=optimizer)"
            )
        hooks = self._class.framework.hooks
        return StepMark(parameter for _, each in _stages(model) for _, parameter in hooks.parameters(each))

    def _micro_batches(self) -> Iterator[int | None]:
        section = self.config.monitors.weight_grad
        if isinstance(section, WeightGradSection):
            yield from (section.micro_batch_number, section.grad_acc_steps)

    def _targets(self, model: Any) -> dict[str, Any]:
        """Return the modules whose names contain a part that ``monitors.module.targets`` lists; the parameters of all
        others, too, if a section about parameters is on.

        Raises:
            ValueError: for parts that no name contains, on a run of one process.
        """
        sections = self.config.monitors.enabled
        module = sections.get("module")
        if not isinstance(module, ModuleSection) or not module.targets:
            return {}
        hooks = self._class.framework.hooks
        stages = _stages(model)
        names = [f"{stage}:{name}" for stage, each in stages for name, _ in hooks.modules(each) if name]
        chosen = [name for name in names if any(part in name for part in module.targets)]
        missing = [part for part in module.targets if not any(part in name for name in names)]
        self._refuse(missing, names)
        if not sections.keys() & {"weight_grad", "optimizer", "param"}:
            return {name: {} for name in chosen}
        parameters = [f"{stage}:{name}" for stage, each in stages for name, _ in hooks.parameters(each)]
        return {name: {} for name in (*chosen, *parameters)}

    def _refuse(self, missing: Iterable[str], names: list[str]) -> None:
        listed = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" * (len(names) > MOST_NAMED))
        sentences = [
            f"monitors.module.targets: expected parts of names of modules, got {part!r}; there are {listed}"
            for part in missing
        ]
        if sentences and self._class.framework.groups.world_size() > 1:
            _log.warning("not on this rank: %s", "; ".join(sentences))
        elif sentences:
            raise ValueError("\n".join(sentences))


def _stages(model: Any) -> list[tuple[int, Any]]:
    """Return the model, or the stages of a virtual pipeline, with their numbers."""
    return list(enumerate(model)) if isinstance(model, list | tuple) else [(0, model)]
