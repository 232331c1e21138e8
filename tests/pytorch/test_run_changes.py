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
AHEAD = """
import torch
torch.manual_seed(1)
nets = [torch.nn.Linear(4, 1) for _ in range(3)]
optimizers = [torch.optim.{kind}(each.parameters(), 0.1) for each in nets]
for net, optimizer in zip(nets, optimizers):
    for step in range(14):
        net(torch.randn(8, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print([float(each.weight.detach().double().sum()) for each in nets])
"""
LATER = """
import torch
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
head, body = torch.optim.SGD(net[1].parameters(), 0.1), torch.optim.SGD(net[0].parameters(), 0.1)
for step in range(20):
    net(torch.randn(8, 4)).mean().backward()
    head.step()
    if step >= 14:
        body.step()
    net.zero_grad()
print(float(net[0].weight.detach().double().sum()))
"""
PUT_BACK = """
import torch
from torch.nn import Module
def place(function):
    return function.__code__.co_filename.rpartition("/")[2]
call = Module.__call__
net = torch.nn.Linear(4, 1)
for stage in range(2):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    print(Module.__call__ is call, place(optimizer.step.__func__))
    net(torch.randn(8, 4)).mean().backward()
    print(Module.__call__ is call)
    optimizer.step()
    optimizer.zero_grad()
    print(place(optimizer.step.__func__))
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


def test_what_is_replaced_in_torch_is_put_back(forks: ForkServer, tmp_path: Path) -> None:
    """`Module.__call__` and steps, from a new optimizer on until its model is found; again for the next one."""
    done = ran(forks, tmp_path / "back", PUT_BACK, watch=True)
    assert done.code == 0, done.errors
    assert done.printed.splitlines() == ["False step_notes.py", "True", "optimizer.py"] * 2


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_folds_made_beforehand_are_runs_of_their_own(forks: ForkServer, tmp_path: Path, kind: str) -> None:
    """All models and optimizers exist before the first is trained: each but the first is watched from its second step
    on, also where the optimizer does not count its steps, under the name that it had."""
    text = AHEAD.format(kind=kind)
    done, plain = ran(forks, tmp_path / "ahead", text, watch=True), ran(forks, tmp_path / "plain", text, watch=False)
    assert (done.code, done.printed) == (0, plain.printed), done.errors
    assert steps_of(done) == [[*range(14)], [*range(1, 14)], [*range(1, 14)]]
    begun = [line.split("; ")[:2] for line in done.said if " info: watching " in line]
    assert [which.partition("watching ")[2] for which, _ in begun[1:]] == [
        f"linear1: Linear with {kind}",
        f"linear2: Linear with {kind}",
    ]
    assert all(moment.startswith("from step 1 on, by the ") for _, moment in begun[1:])
    last = next(text for name, text in done.rows.items() if name == "grad_reduced_13-13.csv")
    assert ".weight,13," in last


def test_an_optimizer_that_steps_later_on_the_same_model_is_watched_with_the_other(
    forks: ForkServer, tmp_path: Path
) -> None:
    """From its second step on, in a run of both that goes on counting."""
    done, plain = ran(forks, tmp_path / "later", LATER, watch=True), ran(forks, tmp_path / "plain", LATER, watch=False)
    assert (done.code, done.printed) == (0, plain.printed), done.errors
    assert steps_of(done) == [[*range(15)], [*range(15, 20)]]
    assert "watching Sequential with SGD, SGD; from step 15 on, by the steps so far" in done.said[-2]
    (last,) = [text for name, text in done.rows.items() if name.startswith("grad_reduced_19")]
    assert "0.weight,19," in last
    assert "1.weight,19," in last


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
