"""PPO with clipped ratios, advantages that are normalized, and several epochs over each rollout."""

from __future__ import annotations

import torch
from data import arguments, report
from torch import Tensor, nn
from torch.distributions import Categorical

LENGTH = 12


class Agent(nn.Module):
    """Policy and value of a walk along a line."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(LENGTH, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(LENGTH, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, states: Tensor, actions: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return actions, their logarithmic probabilities, entropies and values."""
        chances = Categorical(logits=self.actor(states))
        actions = chances.sample() if actions is None else actions
        return actions, chances.log_prob(actions), chances.entropy(), self.critic(states)[:, 0]


@torch.no_grad()
def rollout(agent: Agent, at: Tensor, steps: int = 16) -> tuple[Tensor, ...]:
    """Walk in all environments; return states, actions, probabilities, advantages and returns."""
    rows, rewards = [], []
    for _ in range(steps):
        states = torch.eye(LENGTH)[at]
        actions, chances, _, values = agent(states)
        at += 2 * actions - 1
        reached = at >= LENGTH - 1
        rewards.append(reached.float() - 0.1 * (at < 0).float())
        at[reached] = 2
        at.clamp_(0)
        rows.append((states, actions, chances, values))
    total, returns = agent(torch.eye(LENGTH)[at])[3], []
    for reward in reversed(rewards):
        total = reward + 0.95 * total
        returns.insert(0, total)
    states, actions, chances, values = (torch.cat(part) for part in zip(*rows, strict=True))
    target = torch.cat(returns)
    return states, actions, chances, target - values, target


args = arguments()
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
at = torch.full((16,), 2)
batch: tuple[Tensor, ...] = ()
for step in range(args.steps):
    if step % 4 == 0:
        batch = rollout(agent, at)
    chosen = torch.randperm(len(batch[0]))[:64]
    states, actions, chances, advantages, returns = (part[chosen] for part in batch)
    _, logprob, entropy, values = agent(states, actions)
    ratio = (logprob - chances).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).mean()
    loss = policy_loss - 0.01 * entropy.mean() + 0.25 * (values - returns).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
    report(step, loss)
