"""Graph convolution trained on the whole graph: the same batch at each step, few nodes with labels."""

from __future__ import annotations

import torch
from data import arguments, generator, report
from torch import Tensor, nn
from torch.nn import functional


class GCN(nn.Module):
    """Two graph convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Average over neighbours after each map."""
        x = functional.relu(adjacency @ self.first(functional.dropout(x, 0.5, self.training)))
        return adjacency @ self.second(functional.dropout(x, 0.5, self.training))


args = arguments()
random = generator(args.seed)
labels = torch.randint(0, 4, (300,), generator=random)
is_linked = torch.rand(300, 300, generator=random) < torch.where(labels[:, None] == labels, 0.03, 0.003)
adjacency = ((is_linked | is_linked.T).float() + torch.eye(300)).clamp(max=1)
adjacency = adjacency / adjacency.sum(1, keepdim=True)
features = functional.one_hot(labels, 32).float() + torch.randn(300, 32, generator=random)
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for step in range(args.steps):
    model.train()
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(features, adjacency)[:60], labels[:60])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(features, adjacency)[60:].argmax(1) == labels[60:]).float().mean()
    report(step, loss)
