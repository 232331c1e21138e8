"""MindSpore as core sees it."""

from __future__ import annotations

import mindspore

from probe.core.framework import FrameworkAdapter
from probe.core.trainer_mon import Monitor
from probe.mindspore import array_ops, collectives, groups, hooks, parallel, tensors
from probe.mindspore.optimizers.every import on_every_step

ADAPTER = FrameworkAdapter(
    name="mindspore",
    version=str(mindspore.__version__),
    tensors=tensors,
    hooks=hooks,
    groups=groups,
    collectives=collectives,
    parallel=parallel,
    arrays=array_ops,
    on_every_step=on_every_step,
)


class TrainerMon(Monitor):
    """Watches the training of a ``mindspore.nn.Cell``. See :class:`probe.core.trainer_mon.Monitor`."""

    framework = ADAPTER
