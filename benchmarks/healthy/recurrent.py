"""LSTM over text with states that pass from batch to batch; gradients are clipped."""

from __future__ import annotations

import torch
from data import VOCABULARY, arguments, report, text
from torch import Tensor, nn


class RNNModel(nn.Module):
    """Embedding, LSTM, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(VOCABULARY, 48)
        self.rnn = nn.LSTM(48, 64, 2, batch_first=True)
        self.decoder = nn.Linear(64, VOCABULARY)

    def forward(self, tokens: Tensor, hidden: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return logits and the next state."""
        output, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return self.decoder(self.drop(output)).flatten(0, 1), hidden


args = arguments()
model = RNNModel()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
hidden = (torch.zeros(2, 8, 64), torch.zeros(2, 8, 64))
model.train()
for step in range(args.steps):
    tokens = text(args.seed, step, length=17)
    hidden = (hidden[0].detach(), hidden[1].detach())
    model.zero_grad()
    output, hidden = model(tokens[:, :-1], hidden)
    loss = criterion(output, tokens[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    report(step, loss)
