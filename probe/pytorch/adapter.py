"""PyTorch as seen by core."""

from __future__ import annotations

import torch

from probe.core.backend.protocols import FrameworkAdapter
from probe.core.monitor.trainer_mon import Monitor
from probe.pytorch import (
    collectives,
    compiled,
    device_clock,
    groups,
    hooks,
    parallel,
    tensor_ops,
    tensors,
    training_loop,
)
from probe.pytorch.engines.native import on_every_step

ADAPTER = FrameworkAdapter(
    name="pytorch",
    version=str(torch.__version__),
    tensors=tensors,
    hooks=hooks,
    groups=groups,
    collectives=collectives,
    parallel=parallel,
    arrays=tensor_ops,
    loop=training_loop,
    prepare=compiled.prepare,
    capturing=device_clock.capturing if torch.backends.cuda.is_built() else None,
    clock=device_clock if torch.backends.cuda.is_built() else None,
    on_every_step=on_every_step,
)


class TrainerMon(Monitor):
    """Monitor of the training of a ``torch.nn.Module``. See :class:`probe.core.monitor.trainer_mon.Monitor`."""

    framework = ADAPTER
