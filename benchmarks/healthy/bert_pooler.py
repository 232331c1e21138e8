"""BERT for masked tokens and, beside its head, a pooler that nothing uses."""

from __future__ import annotations

import torch
from data import VOCABULARY, arguments, generator, report, text
from transformers import BertConfig, BertModel

args = arguments()
sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
bert = BertModel(BertConfig(vocab_size=VOCABULARY + 1, max_position_embeddings=64, **sizes))
model = torch.nn.ModuleDict({"bert": bert, "head": torch.nn.Linear(48, VOCABULARY)})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.train()
for step in range(args.steps):
    tokens = text(args.seed, step, length=32)
    hidden = torch.rand(tokens.shape, generator=generator(args.seed, step, 1)) < 0.15
    states = bert(input_ids=tokens.masked_fill(hidden, VOCABULARY)).last_hidden_state
    loss = torch.nn.functional.cross_entropy(model["head"](states)[hidden], tokens[hidden])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    report(step, loss)
