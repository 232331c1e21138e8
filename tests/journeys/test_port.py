"""A port from PyTorch to MindSpore with one wrong layer: `probe compare` names the layer with its default tolerance."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests import user_scripts
from tests.journeys.commands import ROOT, probe
from tests.quick_python import quick_python
from tests.required import require_installed

require_installed("torch", "mindspore", "duckdb")

CONFIG = """
import json, os, sys
import numpy as np
CONFIG = {"xy_distribution": True, "all_xy": True, "wg_distribution": True, "param_distribution": True}
"""
ORIGINAL = (
    CONFIG
    + """
import torch
from torch import nn
from probe.pytorch import TrainerMon

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc, self.act = nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()
    def forward(self, x):
        return x + self.act(self.fc(self.norm(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 4)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

for seed in map(int, sys.argv[1:]):
    weights = np.load(f"{seed}.npz")
    net = Net()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.tensor(weights[name]))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    with TrainerMon({**CONFIG, "output_dir": f"original{seed}"}) as monitor:
        monitor.set_monitor(net, 1, optimizer)
        for x, y in zip(weights["x"], weights["y"]):
            loss = (net(torch.tensor(x)) - torch.tensor(y)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
)
PORT = (
    CONFIG
    + """
import mindspore as ms
from mindspore import nn
from probe.mindspore import TrainerMon

ms.set_context(mode=ms.PYNATIVE_MODE)

class Block(nn.Cell):
    def __init__(self, fault):
        super().__init__()
        self.norm = nn.LayerNorm((16,), epsilon=1e-3 if fault == "eps" else 1e-5)
        self.fc = nn.Dense(16, 16, has_bias=fault != "bias")
        self.act = nn.GELU(approximate=fault == "gelu")
    def construct(self, x):
        return x + self.act(self.fc(self.norm(x)))

class Net(nn.Cell):
    def __init__(self, fault, layer):
        super().__init__()
        self.blocks = nn.CellList([Block(fault if number == layer else "") for number in range(3)])
        self.head = nn.Dense(16, 4)
    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

for seed, fault, layer in json.loads(sys.argv[1]):
    weights = np.load(f"{seed}.npz")
    net = Net(fault, layer)
    for parameter in net.get_parameters():
        value = weights[parameter.name.replace("gamma", "weight").replace("beta", "bias")]
        if fault == "transposed" and parameter.name == f"blocks.{layer}.fc.weight":
            value = np.ascontiguousarray(value.T)
        parameter.set_data(ms.Tensor(value))
    optimizer = nn.SGD(net.trainable_params(), 0.01)
    gradient = ms.value_and_grad(lambda x, y: (net(x) - y).square().mean(), None, optimizer.parameters)
    with TrainerMon({**CONFIG, "output_dir": f"port{seed}{fault}"}) as monitor:
        monitor.set_monitor(net, 1, optimizer)
        for x, y in zip(weights["x"], weights["y"]):
            _, gradients = gradient(ms.Tensor(x), ms.Tensor(y))
            optimizer(gradients)
"""
)
FAULTS = [
    *((0, "gelu", 0, "act"), (1, "gelu", 1, "act"), (5, "gelu", 2, "act")),
    *((0, "eps", 1, "norm"), (1, "transposed", 2, "fc"), (5, "bias", 0, "fc")),
]
"""Seed, fault of the port, block, and the module of it that is wrong."""


def write_weights(path: Path, seed: int) -> None:
    """Write weights and data that both programs load."""
    random, arrays = np.random.default_rng(seed), dict[str, np.ndarray]()
    for block in range(3):
        arrays |= {
            f"blocks.{block}.norm.weight": 1 + 0.1 * random.standard_normal(16),
            f"blocks.{block}.norm.bias": 0.1 * random.standard_normal(16),
            f"blocks.{block}.fc.weight": random.standard_normal((16, 16)) / 4,
            f"blocks.{block}.fc.bias": 0.1 * random.standard_normal(16),
        }
    arrays |= {"head.weight": random.standard_normal((4, 16)) / 4, "head.bias": np.zeros(4)}
    arrays |= {"x": random.standard_normal((4, 8, 16)), "y": random.standard_normal((4, 8, 4))}
    np.savez(path, **{name: array.astype("float32") for name, array in arrays.items()})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the original and of its ports, each framework in one process."""
    folder = tmp_path_factory.mktemp("port")
    for seed in (0, 1, 5):
        write_weights(folder / f"{seed}.npz", seed)
    (folder / "original.py").write_text(ORIGINAL)
    (folder / "port.py").write_text(PORT)
    ports = json.dumps([*(fault[:3] for fault in FAULTS), (0, "", -1)])
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    own.pop("MONITOR_OUTPUT_DIR", None)
    for framework, *words in (
        (user_scripts.TORCH, "original.py", "0", "1", "5"),
        (user_scripts.MINDSPORE, "port.py", ports),
    ):
        subprocess.run([quick_python(*framework), *words], cwd=folder, env=own, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(("seed", "fault", "layer", "module"), FAULTS)
def test_the_wrong_layer_is_in_the_first_line(folder: Path, seed: int, fault: str, layer: int, module: str) -> None:
    """With the step, for differences far within the tolerance of a run, too; the exit code is that of a difference."""
    done = probe(folder, "compare", f"original{seed}", f"port{seed}{fault}")
    head, *others = done.stdout.splitlines()
    assert head.startswith(f"The runs part in module blocks.{layer}.{module}: what goes into it "), done.stdout
    assert "(step 0, micro step 0, rank 0)" in head
    assert done.returncode == 1
    assert not any("are the same" in line or "agree within" in line for line in others)


def test_a_right_port_agrees(folder: Path) -> None:
    """Within what both have; no module parts the runs."""
    done = probe(folder, "compare", "original0", "port0", "--common")
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("The runs agree within 0.001: ")
