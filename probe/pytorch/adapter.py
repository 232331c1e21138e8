"""PyTorch as core sees it."""

from __future__ import annotations

import torch

from probe.core.framework import FrameworkAdapter
from probe.core.trainer_mon import Monitor
from probe.pytorch import array_ops, collectives, compiled, device_clock, groups, hooks, parallel, tensors
from probe.pytorch.optimizers.every import on_every_step

ADAPTER = FrameworkAdapter(
    "pytorch",
    str(torch.__version__),
    tensors,
    hooks,
    groups,
    {},
    collectives,
    parallel,
    array_ops,
    compiled.prepare,
    device_clock.capturing if torch.backends.cuda.is_built() else lambda: False,
    device_clock if torch.backends.cuda.is_built() else None,
    on_every_step,
)


class TrainerMon(Monitor):
    """Watches the training of a ``torch.nn.Module``. See :class:`probe.core.trainer_mon.Monitor`."""

    framework = ADAPTER
