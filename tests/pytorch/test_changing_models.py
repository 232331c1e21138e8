"""Models that change while they are watched: what comes has rows, what goes is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.pytorch.toys import TinyNet, X
from tests.pytorch.watching import EVERYTHING, read, watch
from tests.required import require

torch = require("torch")

from probe.pytorch import TrainerMon  # noqa: E402 - only where torch is

ENDED = "modules and parameters: rows that ended, since the program took the thing out of the model"
SIGNALS = ("actv", "actv_grad", "grad_unreduced", "grad_reduced")


class Lora(torch.nn.Module):
    """A layer with a second path of low rank."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, 1, bias=False)
        self.up = torch.nn.Linear(1, base.out_features, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


class Grown(torch.nn.Module):
    """A model that makes a layer in its first forward."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.late = torch.nn.Linear(2, 2), torch.nn.ModuleList()

    def forward(self, x: Any) -> Any:
        if not self.late:
            self.late.append(torch.nn.Linear(2, 1))
        return self.late[0](self.fc(x))


def train(
    model: Any, change: Callable[[Any, Any], Any] = lambda model, optimizer: optimizer, steps: int = 4, **settings: Any
) -> tuple[dict[int, set[tuple[str, str]]], dict[str, int]]:
    """Train; before step 1 call ``change``, which returns the optimizer from then on.

    Returns:
        Signal and name of the rows of each step, and the faults.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = watch(model, optimizer, mv_distribution=False, **settings)
    for step in range(steps):
        if step == 1:
            optimizer = change(model, optimizer)
        model(X.to(next(model.parameters()).dtype)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    rows: dict[int, set[tuple[str, str]]] = {step: set() for step in range(steps)}
    for row in read(monitor.output_directory):
        if row.signal in SIGNALS:
            rows[row.step].add((row.signal, row.name))
    return rows, monitor.faults


def adapted(model: Any, optimizer: Any) -> Any:
    model.fc = Lora(model.fc)
    optimizer.add_param_group({"params": [*model.fc.down.parameters(), *model.fc.up.parameters()]})
    return optimizer


def test_modules_that_come_later_are_recorded() -> None:
    """Of a layer with low-rank adapters, gradients and activations are recorded in the step after it was put in."""
    rows, faults = train(TinyNet(), adapted)
    new = {
        ("actv", "fc.down.output"),
        ("actv", "fc.base.output"),
        ("actv_grad", "fc.up.output"),
        ("grad_reduced", "fc.down.weight"),
    }
    assert not new & rows[0]
    for step in (1, 2, 3):
        assert rows[0] <= rows[step]
        assert new <= rows[step]
    assert {("grad_unreduced", "fc.up.weight"), ("grad_unreduced", "fc.down.weight")} <= rows[2]
    assert faults == {}


@pytest.mark.parametrize("interval", [1, 2])
def test_a_new_head_and_its_optimizer(interval: int) -> None:
    """The rows of a replaced layer go on under its name, and its predecessor has no hooks left."""
    heads: list[Any] = []

    def replaced(model: Any, _: Any) -> Any:
        heads.append(model.fc2)
        model.fc2 = torch.nn.Linear(3, 1, bias=False)
        return torch.optim.SGD(model.parameters(), lr=0.01)

    rows, faults = train(TinyNet(), replaced, step_interval=interval, steps=5)
    assert rows[4] == rows[0]
    assert rows[0]
    assert faults == {}
    assert not heads[0]._forward_hooks
    assert not heads[0]._forward_pre_hooks
    assert not heads[0].weight._backward_hooks


def test_rows_that_end_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A layer that is taken out is named with its parameters, and each is counted once."""

    def shortened(model: Any, _: Any) -> Any:
        model.fc2, model.relu = torch.nn.Identity(), torch.nn.Identity()
        del model.fc2
        model.fc2 = lambda x: x
        return torch.optim.SGD(model.parameters(), lr=0.01)

    rows, faults = train(TinyNet(), shortened)
    assert ("actv", "fc2.output") in rows[0]
    assert ("actv", "fc2.output") not in rows[3]
    assert ("actv", "relu.output") in rows[3]
    assert faults == {ENDED: 2}
    assert "modules are no longer in the model, and their rows end: 'fc2'" in caplog.text
    assert "parameters are no longer in the model, and their rows end: 'fc2.weight'" in caplog.text


@pytest.fixture
def _swaps() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("_swaps")
def test_a_part_that_takes_no_hooks(caplog: pytest.LogCaptureFixture) -> None:
    """A scripted part that comes into the model has rows of its parameters; that it has no others is said once."""

    def replaced(model: Any, _: Any) -> Any:
        model.fc2 = torch.jit.script(torch.nn.Linear(3, 1))
        return torch.optim.SGD(model.parameters(), lr=0.01)

    rows, faults = train(TinyNet(), replaced)
    assert {("actv", "fc2.output"), ("actv", "fc.output"), ("grad_reduced", "fc2.weight")} <= rows[0]
    assert {("actv", "fc.output"), ("grad_reduced", "fc2.weight"), ("grad_unreduced", "fc2.weight")} <= rows[2]
    assert ("actv", "fc2.output") not in rows[2]
    assert faults == {"modules that take no hooks: Misfit": 1}
    assert [text for text in caplog.messages if "torch.jit.script, whose forwards" in text][1:] == []


@pytest.mark.parametrize("own", [False, True])
def test_exchanged_tensors_are_hooked_again(own: bool) -> None:
    """A model that is converted with ``swap_tensors`` has all its rows, before and after, and none of them twice."""
    rows, faults = train(
        TinyNet(), lambda model, optimizer: (model.to(torch.float64), optimizer)[1], monitor_mbs_grad=own
    )
    assert rows[0] == rows[1] == rows[3]
    assert faults == {}


def test_lazy_parameters_are_watched_once_they_exist() -> None:
    """A lazy layer can be watched from the start; the gradients of its parameters follow its first forward."""
    model = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    rows, faults = train(model)
    assert {("actv", "0.output"), ("grad_reduced", "0.weight")} <= rows[0]
    assert {("grad_unreduced", "0.weight"), ("grad_unreduced", "0.bias")} <= rows[1]
    assert rows[1] == rows[3]
    assert faults == {}


def test_layers_made_in_the_first_forward() -> None:
    """A layer that a forward has made is watched once the optimizer has its parameters."""

    def add(model: Any, optimizer: Any) -> Any:
        optimizer.add_param_group({"params": [*model.late.parameters()]})
        return optimizer

    rows, faults = train(Grown(), add)
    assert {("actv", "late.0.output"), ("grad_unreduced", "late.0.weight"), ("grad_reduced", "late.0.bias")} <= rows[2]
    assert faults == {}


def test_a_part_without_values(caplog: pytest.LogCaptureFixture) -> None:
    """A part on the meta device is named once, as no failure; it has rows from the step on in which it has values."""
    model = TinyNet()
    model.spare = torch.nn.Linear(2, 2, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = TrainerMon(EVERYTHING)
    monitor.set_monitor(model, 1, optimizer)
    for step in range(4):
        if step == 2:
            model.spare.to_empty(device="cpu")
            torch.nn.init.ones_(model.spare.weight), torch.nn.init.ones_(model.spare.bias)
        model(X).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    told = [text for text in caplog.messages if "meta device" in text]
    assert ["'spare.bias', 'spare.weight': they are left out until they have values" in text for text in told] == [True]
    assert monitor.faults == {}
    rows = read(monitor.output_directory)
    assert {row.step for row in rows if (row.signal, row.name) == ("param_updated", "spare.weight")} == {2, 3}
