"""``probe run``: programs of MindSpore as they are, watched as by the three lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import user_scripts
from tests.quick_python import probe_command, quick_python
from tests.required import require

require("mindspore")

ROOT = Path(__file__).parents[2]
CONFIG = {"wg_distribution": True, "xy_distribution": True, "all_xy": True, "ops": ["norm"]}
PROGRAM = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(0)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Dense(4, 8), nn.Dense(8, 1)
    def construct(self, x):
        return self.head(ms.ops.relu(self.fc(x)))
net = Net()
optimizer = nn.Adam(net.trainable_params(), 1e-2)
x, y = Tensor(np.ones((16, 4), np.float32)), Tensor(np.zeros((16, 1), np.float32))
# here
"""
CELLS = """
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
step.set_train()
for _ in range(3):
    step(x, y)
print(sum(float(p.asnumpy().astype(np.float64).sum()) for p in net.get_parameters()))
"""
FUNCTIONS = """
loss = nn.MSELoss()
gradients = ms.value_and_grad(lambda a, b: loss(net(a), b), None, optimizer.parameters)
for _ in range(3):
    optimizer(gradients(x, y)[1])
print(sum(float(p.asnumpy().astype(np.float64).sum()) for p in net.get_parameters()))
"""
MODEL = """
from mindspore.train import Model
pairs = [(x[0].asnumpy() * i, y[0].asnumpy()) for i in range(6)]
trained, other = (ms.dataset.GeneratorDataset(pairs, ["x", "y"], shuffle=False).batch(2) for _ in range(2))
model = Model(net, loss_fn=nn.MSELoss(), optimizer=optimizer, metrics={"loss"})
model.train(1, trained, dataset_sink_mode=False)
model.eval(other, dataset_sink_mode=False)
print(sum(float(p.asnumpy().astype(np.float64).sum()) for p in net.get_parameters()))
"""
ADVERSARIES = """
critic = nn.Dense(1, 1)
second = nn.SGD(critic.trainable_params(), 1e-2)
generate = ms.value_and_grad(lambda a: critic(net(a)).mean(), None, optimizer.parameters)
criticize = ms.value_and_grad(lambda a: critic(net(a)).mean(), None, second.parameters)
for step in range(16):
    optimizer(generate(x)[1])
    if step >= 13:
        second(criticize(x)[1])
print(sum(float(p.asnumpy().astype(np.float64).sum()) for p in [*net.get_parameters(), *critic.get_parameters()]))
"""
ATTACH = """
from probe.mindspore import TrainerMon
monitor = TrainerMon("monitor.json")
monitor.set_monitor(net, 1, optimizer)
"""
"""The three lines."""


class Ended(NamedTuple):
    """What a program has left."""

    printed: str
    errors: str
    rows: dict[str, str]


def ran(folder: Path, text: str, *words: str, python: str = "", **environment: str) -> Ended:
    """Run a program in a folder of its own.

    Args:
        words: of ``probe``, under which it runs.
        python: another interpreter than one that has imported MindSpore.
        environment: what else is set for it.
    """
    folder.mkdir()
    (folder / "train.py").write_text(text)
    (folder / "monitor.json").write_text(json.dumps(CONFIG))
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MONITOR_OUTPUT_DIR": str(folder / "out")}
    program = [python or quick_python(*user_scripts.MINDSPORE), "train.py"]
    command = probe_command(*words, "--", *program) if words else program
    done = subprocess.run(command, cwd=folder, env=own | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {path.name: path.read_text() for path in sorted(folder.glob("out/*/*.csv"))}
    return Ended(done.stdout, done.stderr, rows)


@pytest.mark.parametrize("way", [CELLS, FUNCTIONS, MODEL], ids=["TrainOneStepCell", "value_and_grad", "Model"])
def test_rows_are_those_of_the_three_lines(tmp_path: Path, way: str) -> None:
    """Names, steps and numbers, to the byte, of the network inside cells with its loss and optimizer."""
    by_hand = ran(tmp_path / "hand", (PROGRAM + way).replace("# here\n", ATTACH), **user_scripts.QUEUED)
    alone = ran(tmp_path / "alone", PROGRAM + way, "run", "-c", "monitor.json", **user_scripts.QUEUED)
    assert alone.printed == by_hand.printed
    assert alone.rows == by_hand.rows
    assert len(alone.rows) == 3 * 4
    assert "probe: info: watching Net with Adam; files in " in alone.errors
    assert "probe:   3 steps watched, " in alone.errors  # and what was looked at, not a count of findings


def test_an_optimizer_that_steps_late_is_dropped_and_watched_again(tmp_path: Path) -> None:
    """Rows begin with the names of the models; after ten steps of the other, those of the one that waits end, until it
    has made its first step."""
    alone = ran(tmp_path / "alone", PROGRAM + ADVERSARIES, "run", "-c", "monitor.json", python=sys.executable)
    plain = ran(tmp_path / "plain", PROGRAM + ADVERSARIES)
    assert alone.printed == plain.printed
    said = [line for line in alone.errors.splitlines() if line.startswith("probe: info: ")]
    assert said[0].startswith("probe: info: watching net: Net, critic: Dense with Adam, SGD; files in ")
    assert said[1].endswith("no longer watched, without a step in 10 of the others: SGD with critic")
    assert said[2].startswith("probe: info: watching critic: Dense with SGD; from step 1 on")
    assert len(said) == 5
    steps: dict[str, set[int]] = {"net.fc.weight": set(), "critic.weight": set()}
    for folder in (tmp_path / "alone" / "out").iterdir():
        for path in folder.glob("grad_reduced_[0-9]*.csv"):
            for line in path.read_text().splitlines():
                if (name := line.split(",")[1]) in steps:
                    steps[name].add(int(line.split(",")[2]))
    assert steps["net.fc.weight"] == set(range(16))
    assert steps["critic.weight"] >= {1, 2}
