"""Training run on MindSpore's dynamic graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import mindspore
from mindspore import Tensor, ops
from mindspore.experimental import optim

from probe.demo.mindspore.model import Gpt
from probe.demo.recipe import BYTES, LEARNING_RATE, LONGEST_GRADIENT, Bytes, Size, warm_up


class MindsporeTraining:
    """Training with AdamW as in PyTorch (``nn.AdamWeightDecay`` corrects no bias), warm-up and clipping."""

    def __init__(self, size: Size, seed: int) -> None:
        self.model = Gpt(size, seed)
        self.optimizer = optim.AdamW(self.model.trainable_params(), LEARNING_RATE)
        self._rates = optim.lr_scheduler.LambdaLR(self.optimizer, warm_up)
        self._loss_and_gradients = mindspore.value_and_grad(self._loss, None, self.optimizer.parameters)

    def step(self, tokens: Bytes, targets: Bytes, log: Callable[..., None]) -> float:
        loss, gradients = self._loss_and_gradients(
            *(mindspore.tensor(ids, mindspore.int32) for ids in (tokens, targets))
        )
        log(loss=loss)
        self.optimizer(clipped(gradients, LONGEST_GRADIENT))
        self._rates.step()
        return float(loss)

    def _loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return ops.cross_entropy(self.model(tokens).reshape(-1, BYTES), targets.reshape(-1))


def clipped(gradients: Sequence[Tensor], longest: float) -> tuple[Tensor, ...]:
    """Scale gradients so that their common norm is at most ``longest``.

    ``ops.clip_by_global_norm`` takes ten times as long on a CPU (2.10.0), and is deprecated.
    """
    norm = ops.sqrt(sum(ops.square(gradient).sum() for gradient in gradients))
    factor = ops.minimum(longest / (norm + 1e-6), Tensor(1.0))
    return tuple(gradient * factor for gradient in gradients)


def few_threads() -> AbstractContextManager[None]:
    """Change nothing: once MindSpore is loaded, the number of its threads cannot be reduced (2.10.0)."""
    return nullcontext()
