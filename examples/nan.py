from torch import nn, optim, randint

model = nn.Sequential()
model.embed, model.norm, model.head = nn.Embedding(64, 64, padding_idx=0), nn.RMSNorm(64, eps=0.0), nn.Linear(64, 64)
optimizer = optim.AdamW(model.parameters(), lr=3e-3)
for step in range(60):
    tokens = randint(1, 64, (8, 16)) * (step != 41)  # step 41 has nothing but padding: its norm divides 0 by 0
    loss = nn.functional.cross_entropy(model(tokens).transpose(1, 2), (tokens + 1) % 64)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
