"""Adapter of MindSpore, and its monitor."""

from __future__ import annotations

import mindspore

from probe.core.backend import numpy_ops
from probe.core.backend.protocols import FrameworkAdapter
from probe.core.monitor.trainer_mon import Monitor
from probe.mindspore import collectives, compiled_steps, groups, hooks, tensors, training_loop
from probe.mindspore.optimizers.nn_cell import on_every_step

ADAPTER = FrameworkAdapter(
    name="mindspore",
    version=str(mindspore.__version__),
    tensors=tensors,
    hooks=hooks,
    groups=groups,
    collectives=collectives,
    arrays=numpy_ops,
    loop=training_loop,
    on_every_step=on_every_step,
)


class TrainerMon(Monitor):
    """Monitor of the training of a ``mindspore.nn.Cell``. See :class:`probe.core.monitor.trainer_mon.Monitor`."""

    framework = ADAPTER

    def end_compiled_step(self, loss: object = None) -> None:
        """Count a step of training in graph mode, in which no hook runs; without effect elsewhere.

        ``RunCallback`` calls it at the end of each step.

        Args:
            loss: the loss that the compiled cell has returned, a tensor.
        """
        if (attachment := self._attachment) is not None and (session := attachment.session) is not None:
            training_loop.end_compiled_backward(loss, compiled_steps.optimizers(session.steps))
            compiled_steps.ended(session.steps)
