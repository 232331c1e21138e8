"""Train a small GPT on the source text of Python's standard library, with the monitor attached.

A plain PyTorch loop with gradient accumulation and clipping, to copy from. Lines for the monitor are marked "probe".

    pip install torch && pip install -e "path/to/probe[tensorboard]"
    python examples/train_gpt_pytorch.py --steps 100

Files go to the directory that MONITOR_OUTPUT_DIR names, by default ./monitor_output.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from probe.pytorch import TrainerMon  # probe

MONITOR = {  # probe: a path to a JSON or YAML file works as well; docs/reference/configuration.md explains every key
    "wg_distribution": True,  # weight gradients, before and after reduction
    "param_distribution": True,  # weights, before and after the update
    "mv_distribution": True,  # optimizer state
    "xy_distribution": True,  # inputs and outputs of modules, and their gradients
    "all_xy": True,
    "ops": ["norm", "mean", "min", "max", "nans"],
    "format": ["csv"],  # add "tensorboard" for curves
    "step_count_per_record": 100,
    "alert": {"rules": [{"rule_name": "AnomalyNan"}, {"rule_name": "AnomalySpike"}]},
}
CONTEXT, WIDTH, HEADS, LAYERS = 64, 96, 4, 2


class Gpt(nn.Module):
    """Map bytes ``(batch, time)`` to logits ``(batch, time, 256)``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.output = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        time = tokens.shape[1]
        x = self.embedding(tokens) + self.positions(torch.arange(time))
        mask = nn.Transformer.generate_square_subsequent_mask(time)
        return self.output(self.blocks(x, mask=mask, is_causal=True))


def read_text() -> torch.Tensor:
    """Read a million bytes of Python source."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in sources)[:1_000_000]), dtype=torch.uint8)


def micro_batch(text: torch.Tensor, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw bytes at random places, and the byte after each."""
    starts = torch.randint(len(text) - CONTEXT, (size,)).tolist()
    pieces = torch.stack([text[start : start + CONTEXT + 1] for start in starts]).long()
    return pieces[:, :-1], pieces[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT with the monitor attached.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--accumulate", type=int, default=2, help="micro batches in a step")
    args = parser.parse_args()
    torch.manual_seed(0)
    text, model = read_text(), Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))

    monitor = TrainerMon(MONITOR, params_have_main_grad=False)  # probe
    monitor.set_monitor(model, grad_acc_steps=args.accumulate, optimizer=optimizer)  # probe

    for step in range(args.steps):
        total = 0.0
        for _ in range(args.accumulate):
            tokens, targets = micro_batch(text)
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()) / args.accumulate
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step:>4}  loss {total:.3f}", end="  ")
            print(f"findings {len(monitor.findings)}")  # probe

    monitor.stop()  # probe: writes pending steps; the end of the program does so too
    print(f"written to {monitor.output_directory}")  # probe


if __name__ == "__main__":
    main()
