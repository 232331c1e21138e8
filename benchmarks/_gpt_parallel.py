"""GPT of 4 layers and width 256, trained by two processes with each engine."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch
import torch.distributed as dist
from _gpt import GPT, VOCABULARY
from torch.nn import functional

LAYERS, WIDTH, HEADS, TOKENS, BATCH = 4, 256, 4, 64, 2


def text(seed: int) -> torch.Tensor:
    """Training data of this rank."""
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    return torch.randint(VOCABULARY, (BATCH, TOKENS + 1), generator=generator)


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next byte."""
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def plain() -> GPT:
    """GPT with equal weights on all ranks."""
    torch.manual_seed(0)
    return GPT(layers=LAYERS, width=WIDTH, heads=HEADS, tokens=TOKENS)


class Fsdp2:
    """Training with ``fully_shard`` on every layer and the whole."""

    def __init__(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.model: Any = plain()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in (*self.model.layers, self.model):
            fully_shard(part, mesh=mesh)
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._text = text(0)

    def step(self) -> None:
        loss_of(self.model(self._text[:, :-1]), self._text).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Zero2:
    """DeepSpeed's ZeRO, stage 2, in float32."""

    def __init__(self) -> None:
        importlib.import_module("tests.distributed.deepspeed_on_cpu")
        deepspeed = importlib.import_module("deepspeed")
        model = plain()
        settings = {
            "train_micro_batch_size_per_gpu": BATCH,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": 2, "overlap_comm": False},
            "steps_per_print": 10**9,
        }
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.model, self.optimizer, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        self._text = text(0)

    def step(self) -> None:
        self.model.backward(loss_of(self.model(self._text[:, :-1]), self._text))
        self.model.step()


class Megatron:
    """Megatron-Core's data parallelism in float32, on its own GPT."""

    def __init__(self) -> None:
        importlib.import_module("tests.distributed.megatron_cpu")
        state: Any = importlib.import_module("megatron.core.parallel_state")
        if not state.model_parallel_is_initialized():
            state.initialize_model_parallel()
            seeds: Any = importlib.import_module("megatron.core.tensor_parallel.random")
            seeds.model_parallel_cuda_manual_seed(1)
        core = {
            name: importlib.import_module(f"megatron.core.{name}")
            for name in (
                "transformer",
                "distributed",
                "optimizer",
                "models.gpt.gpt_model",
                "models.gpt.gpt_layer_specs",
            )
        }
        config = core["transformer"].TransformerConfig(
            num_layers=LAYERS,
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            use_cpu_initialization=True,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            gradient_accumulation_fusion=False,
            bias_activation_fusion=False,
            bias_dropout_fusion=False,
            masked_softmax_fusion=False,
            persist_layer_norm=False,
            apply_rope_fusion=False,
        )
        torch.manual_seed(0)
        model = core["models.gpt.gpt_model"].GPTModel(
            config=config,
            transformer_layer_spec=core["models.gpt.gpt_layer_specs"].get_gpt_layer_local_spec(),
            vocab_size=VOCABULARY,
            max_sequence_length=TOKENS,
            position_embedding_type="rope",
        )
        self._config = core["distributed"].DistributedDataParallelConfig()
        self.model: Any = core["distributed"].DistributedDataParallel(config, self._config, model)
        settings = core["optimizer"].OptimizerConfig(optimizer="adam", lr=1e-4, clip_grad=1.0)
        self.optimizer: Any = core["optimizer"].get_megatron_optimizer(settings, [self.model])
        self._finish = core["distributed"].finalize_model_grads
        self._text = text(0)
        ids = self._text[:, :-1]
        self._positions = torch.arange(TOKENS).expand_as(ids)
        self._mask = torch.ones(TOKENS, TOKENS).triu(1).bool()[None, None]

    def step(self) -> None:
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        ids = self._text
        self.model(ids[:, :-1], self._positions, self._mask, labels=ids[:, 1:]).mean().backward()
        self._finish([self.model])
        self.optimizer.step()


TRAININGS = {"FSDP2": Fsdp2, "DeepSpeed ZeRO-2": Zero2, "Megatron-Core": Megatron}
PACKAGES = {"FSDP2": "", "DeepSpeed ZeRO-2": "deepspeed-0.19.8", "Megatron-Core": "megatron-core-0.16.1"}
"""Folders of ``versions`` that must come first on the path."""


def join() -> None:
    """Join the process group of both processes."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=size)
