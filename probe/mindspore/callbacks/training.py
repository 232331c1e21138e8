"""Callback for ``mindspore.train.Model`` and MindSpore Transformers: attaches a monitor, and records the outputs of the
training cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore

from probe.core.door import attempt
from probe.core.monitor import arguments
from probe.launch.trainer_run import NumberReceiver, Source, TrainerRun
from probe.mindspore.adapter import TrainerMon
from probe.mindspore.callbacks.outputs import backbone_of, optimizer_of
from probe.mindspore.callbacks.run import RunCallback

NUMBERS_ALONE: Mapping[str, Any] = {
    "wg_distribution": False,
    "monitor_mbs_grad": False,
    "param_distribution": False,
    "mv_distribution": False,
    "mg_direction": False,
    "relative_update": False,
    "ur_distribution": False,
    "xy_distribution": False,
    "recording_l2_features": False,
    "stack_info": False,
    "cc_distribution": {"enable": False},
    "on_anomaly": None,
}
"""Settings in graph mode, where no hook runs."""


class ProbeCallback(RunCallback):
    """Callback that watches a training: ``model.train(epochs, dataset, callbacks=[ProbeCallback("monitor.json")])``.

    It attaches a monitor to the network inside the training cell when training begins, and stops it when training ends.
    Loss, loss scale, learning rate and global norm of each step are recorded. In graph mode these are recorded alone.
    If the dataset is sunk to the device, many steps end together: only the last one's numbers are known, and one
    warning says so.

    MindSpore Transformers makes it from its YAML (``callbacks: [{type: ProbeCallback}]``) once this module is imported,
    or under ``probe run``.

    Args:
        config: JSON or YAML file, or a mapping with the same keys; None for what ``PROBE_CONFIG`` names, else gradients
            and alerts. A monitor that the program attaches itself: then its numbers alone are passed to it.
        overrides: keys of the configuration, which replace those of ``config``.

    Raises:
        ConfigError: naming every problem of the configuration.
    """

    @arguments.checked("config=None, **overrides")
    def __init__(self, config: Source | NumberReceiver | None = None, **overrides: Any) -> None:
        self._run = TrainerRun(TrainerMon, config, overrides)
        super().__init__(self._run)

    @property
    def monitor(self) -> Any:
        """The monitor of the training in progress, or of the last one; None before the first."""
        return self._run.monitor

    def on_train_begin(self, run_context: Any) -> None:
        params = run_context.original_args()
        optimizer = optimizer_of(params)
        compiled = mindspore.get_context("mode") == mindspore.GRAPH_MODE
        changes = NUMBERS_ALONE if compiled else {}
        begun = attempt(self.faults, "attach", _begun, params, optimizer) or 0
        optimizers = [] if optimizer is None else [optimizer]
        self._run.begin([backbone_of(params)], optimizers, begun=begun, changes=changes)
        self._monitor = self._run.receiver or self._run

    def on_train_end(self, run_context: Any) -> None:  # noqa: ARG002
        self._run.end()


def _begun(params: Any, optimizer: Any) -> int:
    """Return the number of steps that were made in earlier runs."""
    counter = getattr(optimizer, "global_step", None)
    counted = int(counter.asnumpy().reshape(-1)[0]) if counter is not None else 0
    return max(counted, int(params.cur_step_num or 0), int(params.get("initial_step", None) or 0))


def register(module: Any) -> None:
    """Add the callback to the register of MindSpore Transformers, ``mindformers.tools.register``."""
    kind = module.MindFormerModuleType.CALLBACK
    if not module.MindFormerRegister.is_exist(kind, ProbeCallback.__name__):
        module.MindFormerRegister.register_cls(ProbeCallback, kind)
