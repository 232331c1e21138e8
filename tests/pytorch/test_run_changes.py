"""``probe run``: programs whose models and optimizers change while they train."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import user_scripts
from tests.forks import ForkServer
from tests.pytorch.run_scripts import CONFIG, ran, steps_of
from tests.required import require

require("torch")

FOLDS = """
import torch
for fold in range(3):
    torch.manual_seed(fold)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(fold + 2):
        net(torch.randn(8, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    net.eval()
    net(torch.ones(1, 4))
"""
IDLE = """
import torch
torch.manual_seed(1)
generator, critic = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
first, second = torch.optim.SGD(generator.parameters(), 0.1), torch.optim.SGD(critic.parameters(), 0.1)
for step in range(30):
    critic(generator(torch.randn(8, 4))).mean().backward()
    first.step()
    first.zero_grad()
print(float(generator.weight.detach().double().sum()))
"""
EVALUATING = """
import torch
torch.manual_seed(1)
net = torch.nn.Linear(4, 1).eval()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(5):
    net(torch.randn(8, 4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WRAPPED = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(1)
net = plain = torch.nn.Sequential(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(5):
    if step == 2:
        net = torch.nn.parallel.DistributedDataParallel(plain)
    net(torch.randn(8, 4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def forks() -> ForkServer:
    """A process that has imported torch and the monitor."""
    return user_scripts.forks(*user_scripts.TORCH)


def test_each_fold_is_a_run(forks: ForkServer, tmp_path: Path) -> None:
    """With a model and an optimizer of its own."""
    done = ran(forks, tmp_path / "folds", FOLDS, watch=True)
    assert done.code == 0, done.errors
    assert steps_of(done) == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize("interval", [1, 4])
def test_an_optimizer_that_never_steps_is_dropped_with_its_model(
    forks: ForkServer, tmp_path: Path, interval: int
) -> None:
    """After ten steps of the other, whose rows go on in the same run; also while hooks rest between sampled steps."""
    config = {**CONFIG, "step_interval": interval}
    done = ran(forks, tmp_path / "idle", IDLE, watch=True, config=config)
    plain = ran(forks, tmp_path / "plain", IDLE, watch=False)
    assert (done.code, done.printed) == (0, plain.printed), done.errors
    assert any("no longer watched, without a step in 10 of the others: SGD with critic" in line for line in done.said)
    (steps,) = steps_of(done, "actv")
    assert steps[-2:] == ([28, 29] if interval == 1 else [24, 28])
    rows = {step: done.rows[f"actv_{step}-{step}.csv"] for step in steps}
    assert {step for step, text in rows.items() if "critic" in text} == {step for step in steps if step < 11}
    assert all("generator" in text for text in rows.values())
    assert not [line for line in done.said if "fault" in line]


def test_a_model_that_trains_as_in_evaluation_is_watched_from_the_second_step(
    forks: ForkServer, tmp_path: Path
) -> None:
    """No call in training mode is seen; a line says so."""
    done = ran(forks, tmp_path / "eval", EVALUATING, watch=True)
    assert done.code == 0, done.errors
    assert steps_of(done) == [[1, 2, 3, 4]]
    assert "no call of the model in training was seen before its first step, which is left out" in done.said[0]
    assert "from step 1 on, by the steps so far" in done.said[1]


def test_a_wrapper_that_is_put_on_later_is_watched_from_then_on(forks: ForkServer, tmp_path: Path) -> None:
    """In a run that goes on counting."""
    done = ran(forks, tmp_path / "wrapped", WRAPPED, watch=True)
    assert done.code == 0, done.errors
    assert steps_of(done) == [[0, 1], [2, 3, 4]]
    assert "watching DistributedDataParallel with SGD; from step 2 on, by the steps so far" in done.said[-2]
