"""Uses of a model while it is watched: copy it, save it whole, trace it, transform it."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.toys import TinyNet, X
from tests.pytorch.watching import Row, rows_of, watch
from tests.required import require

torch = require("torch")

from probe.pytorch import compiled  # noqa: E402 - only where torch is


def train(between: Any = lambda model: None, steps: int = 2, **settings: Any) -> tuple[Any, dict[Row, Any]]:
    """A short training; ``between`` is done with the model within each step. The monitor, and its rows."""
    torch.manual_seed(0)
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, **settings)
    for _ in range(steps):
        model(X).sum().backward()
        between(model)
        optimizer.step()
        optimizer.zero_grad()
    rows = rows_of(monitor)
    assert monitor.faults == {}
    return monitor, rows


def saved(model: Any) -> io.BytesIO:
    """The whole model, as ``torch.save`` writes it."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


def copied(model: Any) -> None:
    """A copy that is trained, as a teacher or an inner loop is."""
    copy.deepcopy(model)(3 * X).sum().backward()


def loaded(model: Any) -> None:
    """The same by way of a file."""
    torch.load(saved(model), weights_only=False)(3 * X).sum().backward()


def gradients_of_samples(model: Any) -> None:
    """As for differential privacy."""

    def loss(parameters: Any, sample: Any) -> Any:
        return torch.func.functional_call(model, parameters, (sample,)).sum()

    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, X[:, None])


def exported(model: Any) -> None:
    """As for serving."""
    plain = TinyNet()
    plain.register_forward_hook(lambda *_: None)
    try:
        torch.export.export(plain, (X,))
    except AssertionError:
        pytest.skip("this torch (2.4) exports no model that has a hook")
    torch.export.export(model, (X,))


def traced(model: Any) -> None:
    """With torch's own check that two traces are the same."""
    torch.jit.trace(model, X)


@pytest.mark.parametrize("between", [copied, loaded, gradients_of_samples, exported, traced])
def test_what_is_done_with_a_model_beside_training_has_no_rows(between: Any) -> None:
    """The rows are those of a training without it, and nothing fails."""
    assert train(between)[1] == train()[1]


@pytest.mark.skipif(not compiled.RECORDS, reason="needs torch 2.13 or later")
@pytest.mark.parametrize("between", [copied, loaded])
def test_copies_of_what_is_listened_to_inside_graphs_have_no_rows_either(between: Any) -> None:
    """With ``compiled: record``, whose hooks are others."""
    assert train(between, compiled="record")[1] == train()[1]


def test_a_scripted_model_says_what_to_do() -> None:
    """torch.jit.script compiles hooks: its failure is explained, and it works after the end of the monitor."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    monitor = watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(AttributeError, match=r"torch\.jit\.script.*stop\(\) the monitor"):
        torch.jit.script(model)
    monitor.stop()
    assert torch.equal(torch.jit.script(model)(X), model(X))


def test_a_saved_model_needs_no_monitor(tmp_path: Path) -> None:
    """Where the package is not installed it loads, runs, and gives the same numbers."""
    file, outputs = tmp_path / "model.pt", []

    def save(model: Any) -> None:
        torch.save(model, file)
        outputs.append(model(X).sum().item())

    train(save, steps=1)
    assert b"probe" not in file.read_bytes().replace(str(tmp_path).encode(), b"")
    code = """
import sys
sys.modules["probe"] = None  # importing it fails
import torch
from tests.pytorch import toys
model = torch.load(sys.argv[1], weights_only=False)
print(model(toys.X).sum().item())
"""
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == outputs[0]


class Descent:
    """An optimizer of the user's own, which counts its steps and saves everything that it holds."""

    def __init__(self, parameters: Any, lr: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": lr}]
        self.state: dict[Any, Any] = {}
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.data.sub_(parameter.grad, alpha=self.param_groups[0]["lr"])

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Fixed(Descent):
    """One with a method of its own on the object."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.step = self.take  # type: ignore[method-assign]

    def take(self) -> None:
        super().step()


@pytest.mark.parametrize("kind", [Descent, Fixed])
@pytest.mark.parametrize("how", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer)), copy.copy])
def test_a_copy_of_an_optimizer_without_hooks_takes_its_own_steps(kind: type[Descent], how: Any) -> None:
    """A watched optimizer that is no torch.optim.Optimizer copies, pickles and saves as if it were not watched."""
    if kind is Fixed and how is copy.copy:
        pytest.skip("even unwatched, such a copy has the bound method of the original")
    model = TinyNet()
    optimizer = kind(model.parameters(), 0.1)
    plain = set(optimizer.state_dict())
    monitor = watch(model, optimizer, mv_distribution=False)
    model(X).sum().backward()
    twin = how(optimizer)
    assert set(twin.state_dict()) == set(optimizer.state_dict()) == plain
    before = model.fc.weight.detach().clone()
    twin.step()
    assert (optimizer.steps, twin.steps, monitor.step) == (0, 1, 0)
    assert torch.equal(before, model.fc.weight) or how is copy.copy, "it shares the parameters"
    optimizer.step()
    assert (optimizer.steps, twin.steps, monitor.step) == (1, 1, 1)
    monitor.stop()
    assert monitor.faults == {}
    assert vars(Descent)["step"].__module__ == __name__
    assert not hasattr(vars(Descent)["step"], "__wrapped__")
