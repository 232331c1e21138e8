"""Healthy trainings whose losses are hard to judge: restarts, ramps, curricula, noise, reinforcement, adversaries.

As in ``_healthy_pytorch.py``, each is a function of a seed and a text; its step returns numbers of the run by name,
``skipped`` (1 for an update that the gradient scaler skipped) among them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import torch
from _healthy import Training, pieces
from _healthy_pytorch import BYTES, TRAININGS, Schedule, _NextByte, _Recurrent, cosine, warm_up
from torch import nn
from torch.nn import functional

from probe.demo import recipe
from probe.demo.pytorch.training import PytorchTraining

Values = dict[str, float]


def restarts(period: int) -> Schedule:
    """Cosine that begins anew after ``period`` steps, and then after twice as many (Loshchilov and Hutter, 2017)."""

    def factor(step: int) -> float:
        length = period
        while step >= length:
            step, length = step - length, 2 * length
        return 0.5 * (1 + np.cos(np.pi * step / length))

    return factor


def run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[int], torch.Tensor],
    schedule: Schedule = lambda _: 1.0,
    clip: float = float("inf"),
    extra: Callable[[int], Values] = lambda _: {},
    scaler: Any = None,
) -> Training:
    """Loop over ``loss`` of the step's number that returns its numbers."""
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    numbers = count()

    def step() -> Values:
        n = next(numbers)
        optimizer.zero_grad()
        value = loss(n)
        values = {"loss": value.item(), "learning_rate": rates.get_last_lr()[0], **extra(n)}
        if scaler is None:
            value.backward()
            values["grad_norm"] = nn.utils.clip_grad_norm_(model.parameters(), clip).item()
            optimizer.step()
        else:
            values |= scaled(model, optimizer, value, scaler, clip)
        rates.step()
        return values

    return Training(model, optimizer, step)


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer, value: torch.Tensor, scaler: Any, clip: float) -> Values:
    """Update with gradients that pass through float16."""
    scale = scaler.get_scale()
    scaler.scale(value).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad.half().float())
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip).item()
    scaler.step(optimizer)
    scaler.update()
    return {"grad_norm": norm, "loss_scale": scale, "skipped": float(scaler.get_scale() < scale)}


def bytes_loss(model: nn.Module, text: bytes, seed: int, size: Callable[[int], tuple[int, int]]) -> Any:
    """Loss of the next byte, the length and number of the sequences chosen by step."""
    streams: dict[tuple[int, int], Any] = {}

    def loss(step: int) -> torch.Tensor:
        length, batch = size(step)
        stream = streams.setdefault((length, batch), pieces(text, length, seed, batch))
        tokens, targets = (torch.from_numpy(array) for array in next(stream))
        logits = model(tokens)
        wanted = targets[:, -1] if logits.dim() == 2 else targets.flatten()
        return functional.cross_entropy(logits.flatten(0, -2), wanted)

    return loss


def mlp_restarts(seed: int, text: bytes) -> Training:
    """SGD with warm restarts: the loss rises by itself for tens of steps after each."""
    torch.manual_seed(seed)
    model = _NextByte(128)
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    return run(model, optimizer, bytes_loss(model, text, seed, lambda _: (8, 64)), restarts(120))


def lstm_restarts(seed: int, text: bytes) -> Training:
    """Adam with warm restarts."""
    torch.manual_seed(seed)
    model = _Recurrent(nn.LSTM, 64)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    return run(model, optimizer, bytes_loss(model, text, seed, lambda _: (16, 8)), restarts(100), clip=1.0)


def batch_ramp(seed: int, text: bytes) -> Training:
    """Batches that double every 150 steps."""
    torch.manual_seed(seed)
    model = _NextByte(128)
    sizes = (8, 16, 32, 64, 128, 256)

    def size(step: int) -> int:
        return sizes[min(step // 150, len(sizes) - 1)]

    loss = bytes_loss(model, text, seed, lambda step: (8, size(step)))
    return run(model, torch.optim.Adam(model.parameters(), 1e-3), loss, extra=lambda step: {"batch_size": size(step)})


def length_curriculum(seed: int, text: bytes) -> Training:
    """Sequences that grow longer every 200 steps."""
    torch.manual_seed(seed)
    model = _Recurrent(nn.GRU, 64)
    lengths = (4, 8, 16, 32)

    def length(step: int) -> int:
        return lengths[min(step // 200, len(lengths) - 1)]

    loss = bytes_loss(model, text, seed, lambda step: (length(step), 16))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    return run(model, optimizer, loss, clip=1.0, extra=lambda step: {"tokens": 16 * length(step)})


def _images(seed: int) -> tuple[nn.Module, Callable[[int, float], tuple[torch.Tensor, torch.Tensor]]]:
    """Small network over noisy patterns, and the function that draws them."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in ((1, 8), (8, 16)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 4, 10))
    patterns = torch.randn(10, 1, 8, 8)

    def draw(batch: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(10, (batch,))
        return patterns[labels] + noise * torch.randn(batch, 1, 8, 8), labels

    return model, draw


def noise_curriculum(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its images are drawn
    """Images that become harder, from one step to the next, every 250 steps."""
    model, draw = _images(seed)

    def loss(step: int) -> torch.Tensor:
        images, labels = draw(32, 0.8 + 0.25 * (step // 250))
        return functional.cross_entropy(model(images), labels)

    return run(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), loss)


def label_noise(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its images are drawn
    """A third of the labels are wrong."""
    model, draw = _images(seed)

    def loss(_: int) -> torch.Tensor:
        images, labels = draw(16, 0.7)
        wrong = torch.rand(16) < 0.33
        return functional.cross_entropy(model(images), torch.where(wrong, torch.randint(10, (16,)), labels))

    return run(model, torch.optim.Adam(model.parameters(), 2e-3), loss, cosine(20, 1000))


def tiny_batches(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its images are drawn
    """Two images a step: most losses near 0, some above 5."""
    model, draw = _images(seed)

    def loss(_: int) -> torch.Tensor:
        images, labels = draw(4, 0.9)
        return functional.cross_entropy(model(images)[:2], labels[:2])

    return run(model, torch.optim.Adam(model.parameters(), 1e-3), loss)


def single_samples(seed: int, text: bytes) -> Training:
    """One prediction a step."""
    torch.manual_seed(seed)
    model = _NextByte(64)
    return run(model, torch.optim.Adam(model.parameters(), 3e-4), bytes_loss(model, text, seed, lambda _: (8, 1)))


def epochs(seed: int, text: bytes) -> Training:
    """A small set, seen again and again in another order, with a short last batch, until it is known by heart."""
    torch.manual_seed(seed)
    model = _NextByte(192)
    tokens, targets = (torch.from_numpy(array) for array in next(pieces(text, 8, seed, 500)))
    orders: dict[int, torch.Tensor] = {}

    def loss(step: int) -> torch.Tensor:
        epoch, at = divmod(step, 16)
        order = orders.setdefault(epoch, torch.randperm(500))
        chosen = order[32 * at : 32 * at + 32]
        return functional.cross_entropy(model(tokens[chosen]), targets[chosen, -1])

    return run(model, torch.optim.AdamW(model.parameters(), 2e-3), loss, warm_up(30))


def fine_tuning(seed: int, text: bytes) -> Training:
    """A model that has learnt one text goes on with another, with a small rate."""
    torch.manual_seed(seed)
    model = _NextByte(128)
    before = torch.optim.Adam(model.parameters(), 2e-3)
    learn = run(model, before, bytes_loss(model, text[: len(text) // 2], seed, lambda _: (8, 64)))
    for _ in range(400):
        learn.step()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-4)
    loss = bytes_loss(model, text[len(text) // 2 :].upper(), seed, lambda _: (8, 8))
    return run(model, optimizer, loss, cosine(30, 800), clip=1.0)


def float16(seed: int, text: bytes) -> Training:
    """Gradients in float16 under a gradient scaler: skipped updates at first, and one whenever the scale has grown."""
    model = PytorchTraining(recipe.Size(1, 48, 4, 32), seed).model
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=40)
    loss = bytes_loss(model, text, seed, lambda _: (32, 8))
    return run(model, optimizer, loss, warm_up(20), clip=1.0, scaler=scaler)


class _Experts(nn.Module):
    """Router that sends each token to one of eight networks, and remembers how even the load was."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 8)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width)) for _ in range(8)
        )
        self.imbalance = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router(x).softmax(-1)
        best, chosen = shares.max(-1)
        load = functional.one_hot(chosen, 8).float().mean(0)
        self.imbalance = 8 * (load * shares.mean(0)).sum()
        found = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            at = torch.where(chosen == n)[0]
            found[at] = expert(x[at]) * best[at, None]
        return x + found


def experts(seed: int, text: bytes) -> Training:
    """Mixture of experts with a term for an even load (Fedus, Zoph and Shazeer, 2022)."""
    torch.manual_seed(seed)
    inside = nn.Sequential(nn.Embedding(BYTES, 16), nn.Flatten(), nn.Linear(128, 64), nn.ReLU())
    mixture, output = _Experts(64), nn.Linear(64, BYTES)
    model = nn.Sequential(inside, mixture, output)
    plain = bytes_loss(model, text, seed, lambda _: (8, 32))

    def loss(step: int) -> torch.Tensor:
        value = plain(step)
        return value + 0.01 * mixture.imbalance

    return run(model, torch.optim.AdamW(model.parameters(), 2e-3), loss, warm_up(20))


def _policy(seed: int) -> tuple[nn.Module, Callable[[int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
    """Policy over five actions, and the function that plays: states, actions, noisy rewards."""
    torch.manual_seed(seed)
    policy, best = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 5)), torch.randn(6, 5)

    def play(games: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        states = torch.randn(games, 6)
        actions = torch.distributions.Categorical(logits=policy(states).detach()).sample()
        rewards = (states @ best).gather(1, actions[:, None])[:, 0]
        return states, actions, rewards + 2 * torch.randn(games).exp() * torch.randn(games)

    return policy, play


def reinforce(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its games are played
    """Policy gradient: losses of both signs with heavy tails."""
    policy, play = _policy(seed)
    mean = torch.zeros(())

    def loss(_: int) -> torch.Tensor:
        states, actions, rewards = play(16)
        mean.mul_(0.95).add_(0.05 * rewards.mean())
        chosen = policy(states).log_softmax(-1).gather(1, actions[:, None])[:, 0]
        return -(chosen * (rewards - mean)).mean()

    return run(policy, torch.optim.Adam(policy.parameters(), 1e-3), loss)


def group_relative(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its games are played
    """Policy gradient relative to the group, two updates a batch: every other loss is 0 but for rounding, the others
    are small."""
    policy, play = _policy(seed)
    held: list[torch.Tensor] = []

    def loss(step: int) -> torch.Tensor:
        if step % 2 == 0:
            states, actions, rewards = play(32)
            chosen = policy(states).log_softmax(-1).gather(1, actions[:, None])[:, 0].detach()
            held[:] = [states, actions, (rewards - rewards.mean()) / rewards.std(), chosen]
        states, actions, better, before = held
        ratio = (policy(states).log_softmax(-1).gather(1, actions[:, None])[:, 0] - before).exp()
        return -torch.minimum(ratio * better, ratio.clamp(0.8, 1.2) * better).mean()

    return run(policy, torch.optim.Adam(policy.parameters(), 3e-3), loss, clip=1.0)


def temporal_differences(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its games are played
    """Values against a copy of the network that is renewed every 100 steps: the loss leaps at each."""
    torch.manual_seed(seed)
    values, rewards = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)), torch.randn(8, 4)
    moves = torch.randn(4, 8, 8) / 3
    target = copy.deepcopy(values)

    def loss(step: int) -> torch.Tensor:
        if step % 100 == 0:
            target.load_state_dict(values.state_dict())
        states, actions = torch.randn(32, 8), torch.randint(4, (32,))
        after = torch.einsum("bi,bij->bj", states, moves[actions]) + 0.3 * torch.randn(32, 8)
        reward = (states @ rewards).gather(1, actions[:, None])[:, 0]
        with torch.no_grad():
            wanted = reward + 0.9 * target(after).max(1).values
        return functional.smooth_l1_loss(values(states).gather(1, actions[:, None])[:, 0], wanted)

    return run(values, torch.optim.Adam(values.parameters(), 1e-3), loss)


def adversaries(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its points are drawn
    """Generator and critic in turns; the generator's loss is logged."""
    torch.manual_seed(seed)
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    learning = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.999))
    centres = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])

    def loss(_: int) -> torch.Tensor:
        real = centres[torch.randint(4, (32,))] + 0.1 * torch.randn(32, 2)
        made = generator(torch.randn(32, 4))
        learning.zero_grad()
        (functional.softplus(-critic(real)) + functional.softplus(critic(made.detach()))).mean().backward()
        learning.step()
        return functional.softplus(-critic(made)).mean()

    return run(generator, torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.999)), loss)


def denoising(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its points are drawn
    """Noise of random strength is removed from few samples: losses over two orders of magnitude."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(9, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 8))
    basis = torch.randn(2, 8)

    def loss(_: int) -> torch.Tensor:
        clean, level = torch.randn(4, 2).sin() @ basis, (3 * torch.rand(4, 1) - 2.5).exp()
        noise = torch.randn(4, 8)
        found = model(torch.cat([clean + level * noise, level.log()], 1))
        return ((found - noise) ** 2).mean()

    return run(model, torch.optim.AdamW(model.parameters(), 1e-3), loss, clip=1.0)


def variational(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its points are drawn
    """Autoencoder whose second term fades in: the loss falls, then rises slowly."""
    torch.manual_seed(seed)
    model = nn.ModuleDict({"encoder": nn.Linear(16, 8), "decoder": nn.Sequential(nn.Linear(4, 32), nn.ReLU())})
    model["output"], mixing = nn.Linear(32, 16), torch.randn(3, 16)

    def loss(step: int) -> torch.Tensor:
        x = torch.randn(32, 3) @ mixing + 0.2 * torch.randn(32, 16)
        mean, logarithm = model["encoder"](x).chunk(2, 1)
        y = model["output"](model["decoder"](mean + (0.5 * logarithm).exp() * torch.randn_like(mean)))
        divergence = 0.5 * (mean**2 + logarithm.exp() - 1 - logarithm).sum(1).mean()
        return ((x - y) ** 2).sum(1).mean() + min(step / 500, 1.0) * divergence

    return run(model, torch.optim.Adam(model.parameters(), 2e-3), loss)


def two_tasks(seed: int, text: bytes) -> Training:
    """Steps of two tasks in random turns: one loss near 2, the other near 0.05."""
    torch.manual_seed(seed)
    model = nn.ModuleDict({"bytes": _NextByte(64), "numbers": nn.Sequential(nn.Linear(8, 16), nn.Tanh())})
    model["last"] = nn.Linear(16, 1)
    plain = bytes_loss(model["bytes"], text, seed, lambda _: (8, 32))

    def loss(step: int) -> torch.Tensor:
        if torch.rand(()) < 0.7:
            x = torch.randn(32, 8)
            return functional.mse_loss(model["last"](model["numbers"](x))[:, 0], x[:, 0].sin())
        return plain(step)

    return run(model, torch.optim.Adam(model.parameters(), 1e-3), loss)


def rare_task(seed: int, text: bytes) -> Training:
    """As above, but the second task comes in one step of fifty."""
    torch.manual_seed(seed)
    model = nn.ModuleDict({"bytes": _NextByte(64), "numbers": nn.Linear(8, 1)})
    plain = bytes_loss(model["bytes"], text, seed, lambda _: (8, 32))

    def loss(step: int) -> torch.Tensor:
        if step % 50 == 49:
            x = torch.randn(32, 8)
            return functional.mse_loss(model["numbers"](x)[:, 0], 2 * x[:, 0].sin() + 1)
        return plain(step)

    return run(model, torch.optim.Adam(model.parameters(), 1e-3), loss)


def outliers(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its numbers are drawn
    """Least squares with targets whose errors have heavy tails (Student's t with three degrees of freedom)."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    errors = torch.distributions.StudentT(3.0)

    def loss(_: int) -> torch.Tensor:
        x = torch.randn(16, 8)
        return functional.mse_loss(model(x)[:, 0], x[:, 0] + 0.5 * errors.sample((16,)))

    return run(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), loss, clip=5.0)


def margins(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its points are drawn
    """Hinge loss of classes that can be told apart: soon it is exactly 0 in most steps."""
    torch.manual_seed(seed)
    model, direction = nn.Linear(10, 1), torch.randn(10)

    def loss(_: int) -> torch.Tensor:
        x = torch.randn(64, 10)
        side = x @ direction
        x, side = x[side.abs() > 0.7][:8], side[side.abs() > 0.7][:8].sign()
        return (0.3 - side * model(x)[:, 0]).clamp(min=0).mean()

    return run(model, torch.optim.SGD(model.parameters(), 0.3), loss)


def contrasts(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its points are drawn
    """Pairs among others, with a learnt temperature."""
    torch.manual_seed(seed)
    model = nn.ParameterDict({"one": nn.Parameter(torch.randn(12, 8)), "two": nn.Parameter(torch.randn(12, 8))})
    model["heat"] = nn.Parameter(torch.tensor(1.0))

    def loss(_: int) -> torch.Tensor:
        x = torch.randn(32, 12)
        one = functional.normalize(x @ model["one"], dim=1)
        two = functional.normalize((x + 0.3 * torch.randn_like(x)) @ model["two"], dim=1)
        return functional.cross_entropy(one @ two.T * model["heat"].exp(), torch.arange(32))

    return run(model, torch.optim.Adam(model.parameters(), 2e-3), loss)


RUNS: dict[str, Callable[[int, bytes], Training]] = {
    **{
        name: make
        for name, make in TRAININGS.items()
        if not name.startswith("gpt deep") and name not in ("gpt", "gpt wide")
    },
    "mlp, warm restarts": mlp_restarts,
    "lstm, warm restarts": lstm_restarts,
    "batch ramp": batch_ramp,
    "length curriculum": length_curriculum,
    "noise curriculum": noise_curriculum,
    "label noise": label_noise,
    "batches of two": tiny_batches,
    "batches of one": single_samples,
    "epochs": epochs,
    "fine-tuning": fine_tuning,
    "float16": float16,
    "experts": experts,
    "policy gradient": reinforce,
    "group relative": group_relative,
    "temporal differences": temporal_differences,
    "adversaries": adversaries,
    "denoising": denoising,
    "variational": variational,
    "two tasks": two_tasks,
    "rare task": rare_task,
    "outliers": outliers,
    "margins": margins,
    "contrasts": contrasts,
}
"""Trainings that are assumed to be healthy."""
