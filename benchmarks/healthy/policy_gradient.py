"""Policy gradient with a baseline; episodes of varying length, sparse rewards."""

from __future__ import annotations

import torch
from data import arguments, report
from torch import Tensor, nn
from torch.nn import functional


class Policy(nn.Module):
    """Two heads on one body."""

    def __init__(self) -> None:
        super().__init__()
        self.affine = nn.Linear(12, 64)
        self.action_head = nn.Linear(64, 2)
        self.value_head = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of actions and the value of the states."""
        x = functional.relu(self.affine(x))
        return self.action_head(x), self.value_head(x)[:, 0]


args = arguments()
model = Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(args.steps):
    at, states, actions, rewards = 2, [], [], []
    with torch.no_grad():
        while len(states) < 30 and at < 11:
            logits, _ = model(torch.eye(12)[[at]])
            states.append(at)
            actions.append(int(torch.multinomial(logits[0].softmax(0), 1)))
            at = max(0, at + 2 * actions[-1] - 1)
            rewards.append(1.0 if at == 11 else -0.1 if at == 0 else 0.0)
    returns, total = torch.zeros(len(rewards)), 0.0
    for n in reversed(range(len(rewards))):
        returns[n] = total = rewards[n] + 0.95 * total
    optimizer.zero_grad()
    logits, values = model(torch.eye(12)[states])
    chances = logits.log_softmax(1)
    chosen = chances.gather(1, torch.tensor(actions)[:, None])[:, 0]
    entropy = -(chances.exp() * chances).sum(1).mean()
    loss = -(chosen * (returns - values.detach())).mean() + 0.5 * functional.mse_loss(values, returns) - 0.01 * entropy
    loss.backward()
    optimizer.step()
    report(step, loss)
