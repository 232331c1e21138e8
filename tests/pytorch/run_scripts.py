"""Programs as users write them, for ``probe run``, and what they leave."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from probe.launch.environment import watched
from tests import user_scripts
from tests.forks import ForkServer

ROOT = Path(__file__).parents[2]
OWN = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
CONFIG = {
    "wg_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm", "nans"],
}
ATTACH = """
import os
from probe.pytorch import TrainerMon
monitor = TrainerMon(os.environ["CONFIG"])
monitor.set_monitor({model}, 1, {optimizer}, start_iteration={begun})
"""
"""The three lines."""
SUM = "print(sum(float(p.detach().double().sum()) for p in {}.parameters()))\n"


class Script(NamedTuple):
    """Program, in which ``# here`` stands where a user would write the three lines."""

    text: str
    model: str = "net"
    optimizer: str = "optimizer"
    begun: int = 0


LOOP = """
for step in range(5):
    for _ in range({micro}):
        net(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SCRIPTS = {
    "a loop": Script(
        "import torch\ntorch.manual_seed(1)\nnet = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))\n"
        "optimizer = torch.optim.AdamW(net.parameters())\n# here\n" + LOOP.format(micro=1) + SUM.format("net")
    ),
    "accumulation": Script(
        "import torch\ntorch.manual_seed(2)\nnet = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n# here\n" + LOOP.format(micro=3) + SUM.format("net")
    ),
    "tied weights": Script(
        """
import torch
torch.manual_seed(3)
class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.fc = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.fc(self.embedding(x))
class Language(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer, self.head = Inner(), torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.transformer.embedding.weight
    def forward(self, x):
        return self.head(self.transformer(x))
net = Language()
optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad])
# here
for step in range(4):
    net(torch.randint(7, (2, 5))).logsumexp(-1).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
        + SUM.format("net")
    ),
    "part of the parameters": Script(
        """
import torch
torch.manual_seed(4)
backbone, head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)
class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = backbone.requires_grad_(False), head
    def forward(self, x):
        return self.head(self.backbone(x))
net = Both()
optimizer = torch.optim.SGD(head.parameters(), 0.1)
# here
"""
        + LOOP.format(micro=1)
        + SUM.format("net")
    ),
    "two models": Script(
        """
import torch
torch.manual_seed(5)
class Adversaries:
    def __init__(self):
        self.generator, self.critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        self.first = torch.optim.Adam(self.generator.parameters())
        self.second = torch.optim.Adam(self.critic.parameters())
    def fit(self):
        for step in range(4):
            self.critic(self.generator(torch.randn(8, 2)).detach()).mean().backward()
            self.second.step(); self.second.zero_grad()
            (-self.critic(self.generator(torch.randn(8, 2))).mean()).backward()
            self.first.step(); self.first.zero_grad()
both = Adversaries()
# here
both.fit()
"""
        + SUM.format("both.generator"),
        "{'generator': both.generator, 'critic': both.critic}",
        "[both.first, both.second]",
    ),
    "evaluation before, and a resumed run": Script(
        """
import torch
torch.manual_seed(6)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters())
one = {"step": torch.tensor(7.0), "exp_avg": torch.zeros(1), "exp_avg_sq": torch.zeros(1)}
other = {"step": torch.tensor(7.0), "exp_avg": torch.zeros(1, 4), "exp_avg_sq": torch.zeros(1, 4)}
optimizer.load_state_dict({"state": {0: other, 1: one}, "param_groups": optimizer.state_dict()["param_groups"]})
# here
net.eval()
with torch.no_grad():
    net(torch.ones(1, 4))
net.train()
"""
        + LOOP.format(micro=1)
        + SUM.format("net"),
        begun=7,
    ),
    "a closure": Script(
        """
import torch
torch.manual_seed(8)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=3)
# here
x = torch.randn(8, 4)
def closure():
    optimizer.zero_grad()
    loss = net(x).pow(2).mean()
    loss.backward()
    return loss
for step in range(3):
    optimizer.step(closure)
"""
        + SUM.format("net")
    ),
    "a copy that follows, and a teacher": Script(
        """
import copy, torch
torch.manual_seed(9)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
teacher, follows = torch.nn.Linear(4, 1), copy.deepcopy(net)
optimizer = torch.optim.AdamW(net.parameters())
# here
for step in range(4):
    x = torch.randn(8, 4)
    goal = teacher(x).detach() + follows(x).detach()
    (net(x) - goal).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    for own, copied in zip(net.parameters(), follows.parameters()):
        copied.data.lerp_(own.data, 0.1)
"""
        + SUM.format("net")
    ),
    "an optimizer of optimizers": Script(
        """
import torch
torch.manual_seed(10)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
class Container(torch.optim.Optimizer):
    def __init__(self, parts):
        self.optimizers = [torch.optim.AdamW(part.parameters()) for part in parts]
        super().__init__([p for part in parts for p in part.parameters()], {})
    def step(self, closure=None):
        for each in self.optimizers:
            each.step()
    def zero_grad(self, set_to_none=True):
        for each in self.optimizers:
            each.zero_grad()
optimizer = Container(net)
# here
"""
        + LOOP.format(micro=2)
        + SUM.format("net"),
        optimizer="optimizer.optimizers",
    ),
    "an optimizer of two models and a parameter": Script(
        """
import torch
torch.manual_seed(12)
encoder, decoder = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh()), torch.nn.Linear(2, 4)
scale = torch.nn.Parameter(torch.zeros(()))
optimizer = torch.optim.Adam([scale, *encoder.parameters(), *decoder.parameters()], 0.1)
# here
for step in range(4):
    x = torch.randn(8, 4)
    ((decoder(encoder(x)) - x).pow(2).mean() * scale.exp() - scale).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
        + SUM.format("decoder"),
        "{'encoder': encoder, 'decoder': decoder}",
    ),
    "compiled layers": Script(
        "import torch\ntorch.manual_seed(11)\n"
        "net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n# here\n"
        "net[0] = torch.compile(net[0], backend='eager')\nnet[1].compile(backend='eager')\n"
        + LOOP.format(micro=1)
        + SUM.format("net")
    ),
    "a compiled model": Script(
        "import torch\ntorch.manual_seed(7)\n"
        "plain = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))\n"
        "optimizer = torch.optim.SGD(plain.parameters(), 0.1)\nnet = plain\n# here\n"
        "net = torch.compile(plain, backend='eager')\n" + LOOP.format(micro=1) + SUM.format("plain")
    ),
}


class Ended(NamedTuple):
    """What a program has left."""

    code: int
    printed: str
    errors: str
    folder: Path

    @property
    def rows(self) -> dict[str, str]:
        """Files of all runs, by name."""
        return {path.name: path.read_text() for path in sorted(self.folder.glob("out/*/*.csv"))}

    @property
    def said(self) -> list[str]:
        """Lines of the monitor."""
        return [line for line in self.errors.splitlines() if line.startswith("probe: ")]


def ran(
    forks: ForkServer,
    folder: Path,
    text: str,
    watch: bool,
    environment: Mapping[str, str] = {},
    config: object = CONFIG,
) -> Ended:
    """Run a program in a folder of its own."""
    folder.mkdir()
    script, settings = folder / "train.py", folder / "monitor.json"
    script.write_text(text)
    settings.write_text(json.dumps(config))
    own = {**os.environ, **OWN, "MONITOR_OUTPUT_DIR": str(folder / "out"), "CONFIG": str(settings), **environment}
    own = watched(own, settings) if watch else own
    return Ended(*user_scripts.ran(forks, [str(script)], folder, own), folder)


def steps_of(ended: Ended, signal: str = "grad_reduced") -> list[list[int]]:
    """Steps with rows of a signal, by run."""
    runs = (run.glob(f"{signal}_[0-9]*.csv") for run in (ended.folder / "out").iterdir())
    return sorted(sorted(int(path.stem.split("_")[-1].split("-")[0]) for path in run) for run in runs)
