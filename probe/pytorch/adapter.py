"""PyTorch as core sees it."""

from __future__ import annotations

import torch

from probe.core.framework import FrameworkAdapter
from probe.core.trainer_mon import Monitor
from probe.pytorch import array_ops, collectives, compiled, device_clock, groups, hooks, parallel, tensors
from probe.pytorch.optimizers.every import on_every_step

ADAPTER = FrameworkAdapter(
    name="pytorch",
    version=str(torch.__version__),
    tensors=tensors,
    hooks=hooks,
    groups=groups,
    collectives=collectives,
    parallel=parallel,
    arrays=array_ops,
    prepare=compiled.prepare,
    capturing=device_clock.capturing if torch.backends.cuda.is_built() else lambda: False,
    clock=device_clock if torch.backends.cuda.is_built() else None,
    on_every_step=on_every_step,
)


class TrainerMon(Monitor):
    """Watches the training of a ``torch.nn.Module``. See :class:`probe.core.trainer_mon.Monitor`."""

    framework = ADAPTER
