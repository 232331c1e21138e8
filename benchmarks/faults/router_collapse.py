"""A mixture of four experts, one for each token, whose balancing loss is a constant: the router collapses."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import GPT, MLP, main, text, text_loss, update
from torch import Tensor, nn
from torch.nn import functional

CASE = Case(
    sources=(
        "https://github.com/pytorch/torchtitan/issues/1246",
        "https://github.com/mindspore-ai/hyper-parallel/issues/752",
    ),
    label="rows",
    kinds=("router-collapse",),
    start=10,  # the loads of the experts begin to part
    where=("*router*", "*mlp*"),
    full={
        "recording_l2_features": True,
        "l2_targets": {"moe_router_logit_hook": ["0:layers.0.mlp.router", "0:layers.1.mlp.router"]},
        "router_top_k": 1,
    },
)
EXPERTS = 4


class Experts(nn.Module):
    """Layers of which a router chooses one for each token."""

    def __init__(self, width: int, is_balanced: bool) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(MLP(width) for _ in range(EXPERTS))
        self.is_balanced, self.balance = is_balanced, torch.zeros(())
        nn.init.normal_(self.router.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the chosen expert to each token."""
        tokens = x.flatten(0, 1)
        chances = self.router(tokens).softmax(-1)
        largest, chosen = chances.max(-1)
        result = torch.zeros_like(tokens)
        for n, expert in enumerate(self.experts):
            at = (chosen == n).nonzero()[:, 0]
            if len(at):
                result = result.index_add(0, at, largest[at, None] * expert(tokens[at]))
        share = functional.one_hot(chosen, EXPERTS).float().mean(0)
        balance = EXPERTS * (share * chances.mean(0)).sum()
        self.balance = balance if self.is_balanced else balance.detach()
        return result.view_as(x)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    for layer in model.layers:
        layer.mlp = Experts(48, is_balanced=not run.faulty)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss + 0.05 * sum(layer.mlp.balance for layer in model.layers))
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
