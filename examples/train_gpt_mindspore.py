"""Train a small GPT on the source text of Python's standard library, with the monitor attached.

A plain MindSpore loop in dynamic graph mode, with gradient accumulation and clipping, to copy from. Lines for the
monitor are marked "probe".

    pip install mindspore && pip install -e path/to/probe
    python examples/train_gpt_mindspore.py --steps 100

Files go to the directory that MONITOR_OUTPUT_DIR names, by default ./monitor_output.
"""

import argparse
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from probe.mindspore import TrainerMon  # probe

MONITOR = {  # probe: a path to a JSON or YAML file works as well; docs/reference/configuration.md explains every key
    "wg_distribution": True,  # weight gradients, before and after reduction
    "xy_distribution": True,  # inputs and outputs of modules, and their gradients
    "all_xy": True,
    "ops": ["norm", "min", "max"],
    "step_count_per_record": 100,
    "alert": {"rules": [{"rule_name": "AnomalyNan"}, {"rule_name": "AnomalySpike"}]},
}
CONTEXT, WIDTH, HEADS, LAYERS = 64, 96, 4, 2


class Gpt(nn.Cell):
    """Map bytes ``(batch, time)`` to logits ``(batch * time, 256)``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH, embedding_table="normal")
        self.positions = nn.Embedding(CONTEXT, WIDTH, embedding_table="normal")
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm((WIDTH,)))
        self.output = nn.Dense(WIDTH, 256)

    def construct(self, tokens: Tensor) -> Tensor:
        time = tokens.shape[1]
        x = self.embedding(tokens) + self.positions(ops.arange(time))
        future = Tensor(np.triu(np.ones((time, time), dtype=bool), 1))
        return self.output(self.blocks(x, src_mask=future)).reshape(-1, 256)


def read_text() -> np.ndarray:
    """Read a million bytes of Python source."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return np.frombuffer(b"".join(path.read_bytes() for path in sources)[:1_000_000], dtype=np.uint8)


def micro_batch(text: np.ndarray, random: np.random.Generator, size: int = 8) -> tuple[Tensor, Tensor]:
    """Draw bytes at random places, and the byte after each."""
    starts = random.integers(len(text) - CONTEXT, size=(size, 1))
    pieces = text[starts + np.arange(CONTEXT + 1)].astype(np.int32)
    return Tensor(pieces[:, :-1]), Tensor(pieces[:, 1:].flatten())


def clipped(gradients: Sequence[Tensor], longest: float = 1.0) -> tuple[Tensor, ...]:
    """Scale gradients so that their common norm is at most ``longest``."""
    length = ops.sqrt(sum(ops.square(gradient).sum() for gradient in gradients))
    factor = ops.minimum(longest / (length + 1e-6), Tensor(1.0))
    return tuple(gradient * factor for gradient in gradients)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT with the monitor attached.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--accumulate", type=int, default=2, help="micro batches in a step")
    args = parser.parse_args()
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.set_seed(0)
    random, text, model = np.random.default_rng(0), read_text(), Gpt()
    rates = [1e-3 * min(1.0, (step + 1) / 20) for step in range(args.steps)]
    optimizer = nn.AdamWeightDecay(model.trainable_params(), rates, weight_decay=0.01)

    def mean_loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return ops.cross_entropy(model(tokens), targets) / args.accumulate

    loss_and_gradients = mindspore.value_and_grad(mean_loss, None, optimizer.parameters)

    monitor = TrainerMon(MONITOR)  # probe
    monitor.set_monitor(model, grad_acc_steps=args.accumulate, optimizer=optimizer)  # probe

    for step in range(args.steps):
        loss, gradients = loss_and_gradients(*micro_batch(text, random))
        for _ in range(args.accumulate - 1):
            another, more = loss_and_gradients(*micro_batch(text, random))
            loss, gradients = loss + another, [sum(pair) for pair in zip(gradients, more, strict=True)]
        optimizer(clipped(gradients))
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step:>4}  loss {float(loss):.3f}", end="  ")
            print(f"findings {len(monitor.findings)}")  # probe

    monitor.stop()  # probe: writes pending steps; the end of the program does so too
    print(f"written to {monitor.output_directory}")  # probe


if __name__ == "__main__":
    main()
