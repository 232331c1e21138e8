"""A Trainer of transformers with its own loss: the labels of one batch are all ignored, and their mean is NaN."""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory
from typing import Any

import torch
from case import CONFIG, NOT_FINITE, Case, Run
from common import VOCABULARY, main, text
from torch.nn import functional
from torch.utils.data import Dataset

CASE = Case(
    sources=(
        "https://huggingface.co/docs/transformers/main_classes/trainer",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",
    ),
    label="sentinel",
    kinds=NOT_FINITE,
    start=61,
    steps=100,
)
BATCH = 8


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Samples in their order, of which the labels of one batch are ignored."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __len__(self) -> int:
        return BATCH * self.run.steps

    def __getitem__(self, n: int) -> dict[str, torch.Tensor]:
        tokens = text(self.run.seed, n, batch=1)[0]
        is_ignored = self.run.faulty and n // BATCH == CASE.start
        return {"input_ids": tokens, "labels": torch.full_like(tokens, -100) if is_ignored else tokens}


def loss_of(outputs: Any, labels: torch.Tensor, **_: Any) -> torch.Tensor:
    """Mean cross entropy of each next token."""
    return functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def callbacks() -> list[Any]:
    """Return the callback of the guides if a configuration is named."""
    if CONFIG not in os.environ:
        return []
    from probe.pytorch.callbacks.huggingface import ProbeCallback

    return [ProbeCallback(os.environ[CONFIG])]


def train(run: Run) -> None:
    """Train one twin."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    sizes = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    options = {"per_device_train_batch_size": BATCH, "max_steps": run.steps, "learning_rate": 2e-3, "seed": run.seed}
    quiet = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    order = {"train_sampling_strategy": "sequential"}
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, logging_steps=1, **options, **quiet, **order)
        data = Samples(run)
        trainer = Trainer(model, arguments, train_dataset=data, compute_loss_func=loss_of, callbacks=callbacks())
        trainer.train()


if __name__ == "__main__":
    main(CASE, train)
