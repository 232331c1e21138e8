"""DQN with replay memory, a target network that follows slowly, and evaluation between updates."""

from __future__ import annotations

import copy
import random
from collections import deque

import torch
from data import arguments, report
from torch import nn

LONG = True
SIZE = 5


def move(at: int, action: int) -> tuple[int, float]:
    """Return the next state and the reward; the right end is the aim."""
    following = min(SIZE - 1, max(0, at + 2 * action - 1))
    return (0, random.gauss(1, 0.2)) if following == SIZE - 1 else (following, 0.0)


args = arguments()
random.seed(args.seed)
policy_net = nn.Sequential(nn.Linear(SIZE, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
target_net = copy.deepcopy(policy_net)
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
criterion = nn.SmoothL1Loss()
memory: deque[tuple[int, int, int, float]] = deque(maxlen=2000)
at, states = 0, torch.eye(SIZE)
for step in range(args.steps):
    for _ in range(4):
        with torch.no_grad():
            action = int(policy_net(states[at]).argmax()) if random.random() > 0.3 else random.randrange(2)
        following, reward = move(at, action)
        memory.append((at, action, following, reward))
        at = following
    before, actions, after, rewards = zip(*random.choices(memory, k=32), strict=True)
    values = policy_net(states[list(before)]).gather(1, torch.tensor(actions)[:, None])[:, 0]
    with torch.no_grad():
        target = torch.tensor(rewards) + 0.9 * target_net(states[list(after)]).max(1).values
    loss = criterion(values, target)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    followers = target_net.state_dict()
    for name, value in policy_net.state_dict().items():
        followers[name] = 0.05 * value + 0.95 * followers[name]
    target_net.load_state_dict(followers)
    if step % 20 == 0:
        policy_net.eval()
        with torch.no_grad():
            path = policy_net(states).argmax(1)
        policy_net.train()
    report(step, loss)
