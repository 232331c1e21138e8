"""A training under Lightning, with and without a monitor: for processes that have imported it."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, Dataset

from tests.distributed.models import WIDTH, Net, by_hand, loss_of
from tests.distributed.models import batch as batch_of
from tests.pytorch.watching import rows_of, watch
from tests.tables import Row, Rows

STEPS, MICRO_BATCHES, LR = 2, 2, 0.1


class Batches(Dataset[Any]):
    """Training data of this rank, a micro batch after the other."""

    def __len__(self) -> int:
        return STEPS * MICRO_BATCHES

    def __getitem__(self, number: int) -> Any:
        return batch_of(number // MICRO_BATCHES, number % MICRO_BATCHES)


class Module(lightning.LightningModule):
    """The usual shape of a user's module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.losses: list[float] = []

    def training_step(self, batch: Any, _: int) -> Any:
        loss = loss_of(self.net(batch.reshape(-1, WIDTH)))
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), LR)


class Watch(lightning.Callback):
    """How users attach."""

    def __init__(self, optimizer: str, each: bool) -> None:
        self.optimizer, self.each, self.monitor = optimizer, each, None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        optimizer = trainer.optimizers[0] if self.optimizer == "raw" else pl_module.optimizers()
        self.monitor = watch(pl_module, optimizer, MICRO_BATCHES, monitor_mbs_grad=self.each, squash_name=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.rows = rows_of(self.monitor)


def fit(callbacks: list[Any], ranks: int) -> Module:
    """A training under Lightning, on one rank or all."""
    module = Module()
    environment = TorchElasticEnvironment()
    strategy = DDPStrategy(process_group_backend="gloo", cluster_environment=environment) if ranks > 1 else "auto"
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=strategy,
        max_epochs=1,
        accumulate_grad_batches=MICRO_BATCHES,
        callbacks=callbacks,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Batches(), batch_size=1))
    return module


def watched(optimizer: str, each: bool) -> tuple[Rows, dict[Row, Any], bool]:
    """The rows, what they must be, and whether training was the same as without a monitor."""
    plain, callback = fit([], dist.get_world_size()), Watch(optimizer, each)
    module = fit([callback], dist.get_world_size())
    same = plain.losses == module.losses
    same &= all(torch.equal(a, b) for a, b in zip(plain.parameters(), module.parameters(), strict=True))
    wanted: dict[Row, Any] = {}
    for step, reference in enumerate(by_hand(STEPS, MICRO_BATCHES, LR / MICRO_BATCHES)):
        for name in reference.before:
            local = [gradients[name] / MICRO_BATCHES for gradients in reference.local]
            wanted[Row("param_origin", step, f"net.{name}")] = reference.before[name]
            wanted[Row("param_updated", step, f"net.{name}")] = reference.after[name]
            wanted[Row("grad_reduced", step, f"net.{name}")] = reference.reduced[name] / MICRO_BATCHES
            for i, gradient in enumerate(local if each else [sum(local)]):
                wanted[Row("grad_unreduced", step, f"net.{name}", i)] = gradient
    return callback.rows, wanted, same
