"""Updates of Adam as PyTorch's users configure it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from probe.pytorch import TrainerMon
from probe.pytorch.tensors import agreement
from tests.tables import Row, read

BETAS = {"weight": (0.5, 0.75), "bias": (0.25, 0.875)}


def train(model: torch.nn.Module, optimizer: Any, config: dict[str, Any], steps: int = 3) -> Any:
    """The rows of a training on random numbers."""
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    with TrainerMon({"ur_distribution": True, "ops": ["norm", "min", "max"], "ndigits": 20, **config}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for _ in range(steps):
            model(inputs).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert monitor.faults == {}
    return read(monitor.output_directory)


def groups_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    """A group for each parameter, each with betas and eps of its own."""
    return [
        {"params": [parameter], "betas": BETAS[name], "eps": eps}
        for (name, parameter), eps in zip(model.named_parameters(), (1e-3, 0.5), strict=True)
    ]


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_every_group_has_betas_and_eps_of_its_own(kind: Any, options: dict[str, Any]) -> None:
    """The rows are what the options of the parameter's group make of its state."""
    model = torch.nn.Linear(4, 3)
    optimizer = kind(groups_of(model), lr=0.01, weight_decay=0.0, **options)
    rows = train(model, optimizer, {})
    for group, (name, parameter) in zip(optimizer.param_groups, model.named_parameters(), strict=True):
        (beta1, beta2), eps, state = group["betas"], group["eps"], optimizer.state[parameter]
        mean = state["exp_avg"].double() / (1 - beta1**3)
        root = (state["exp_avg_sq"].double() / (1 - beta2**3)).sqrt()
        for signal, vector in (("update", mean / (root + eps)), ("ratio", mean / root)):
            row = rows[Row(signal, 2, name)]
            assert row["norm"] == pytest.approx(float(vector.norm()), rel=1e-5)
            assert row["max"] == pytest.approx(float(vector.max()), rel=1e-5)


class OfComplexNumbers(torch.nn.Linear):
    """Its parameters are complex, what goes in and comes out is real."""

    def __init__(self) -> None:
        super().__init__(4, 3, dtype=torch.cfloat)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(super().forward(x.to(torch.cfloat)))


def test_complex_parameters_are_pairs_of_real_numbers() -> None:
    """To Adam, so that their updates are those of both parts."""
    model = OfComplexNumbers()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rows = train(model, optimizer, {"mg_direction": True})
    state = optimizer.state[model.weight]
    mean, square = (torch.view_as_real(state[name]).double() for name in ("exp_avg", "exp_avg_sq"))
    update = mean / (1 - 0.9**3) / ((square / (1 - 0.999**3)).sqrt() + 1e-8)
    assert rows[Row("update", 2, "weight")]["norm"] == pytest.approx(float(update.norm()), rel=1e-5)
    assert Row("mg_direction", 2, "weight") in rows


def test_directions_of_complex_and_of_sparse_gradients() -> None:
    """Both parts of a complex number count; elements that a sparse gradient leaves out are 0."""
    one, other = torch.randn(2, 7, dtype=torch.cfloat)
    assert agreement(one, other) == agreement(torch.view_as_real(one), torch.view_as_real(other))
    dense = torch.tensor([[0.0, 0.0], [1.0, -2.0], [0.0, 0.0], [3.0, 4.0]])
    moment = torch.tensor([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0], [0.0, 1.0]])
    assert agreement(dense.to_sparse(1), moment) == agreement(dense, moment) == 4.5 / 8


def test_fake_tensors_have_no_rows() -> None:
    """They pass through a watched model without any numbers of their own, and without a warning of torch's."""
    model = torch.nn.Linear(4, 3)
    with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        with TrainerMon({"xy_distribution": True, "ops": ["norm"]}) as monitor:
            monitor.set_monitor(model, 1, optimizer := torch.optim.SGD(model.parameters(), lr=0.01))
            model(torch.zeros(2, 4))
            optimizer.step()
    assert (monitor.faults, read(monitor.output_directory)) == ({}, {})


def test_state_in_half_precision() -> None:
    """Computed in float32: a second moment of 1e-9 is no zero there."""
    model = torch.nn.Linear(4, 3).bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs = torch.ones(2, 4, dtype=torch.bfloat16)
    with TrainerMon({"ur_distribution": True, "ops": ["max"], "ndigits": 20}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        (model(inputs).sum() * 1e-3).backward()
        optimizer.step()
    rows = read(monitor.output_directory)
    assert rows[Row("ratio", 0, "weight")]["max"] == pytest.approx(1.0, rel=2e-2)
    assert rows[Row("update", 0, "weight")]["max"] == pytest.approx(1.0, rel=2e-2)


def test_a_frozen_parameter_has_no_row() -> None:
    """It has no state."""
    model = torch.nn.Linear(4, 3)
    model.bias.requires_grad_(False)
    rows = train(model, torch.optim.Adam(model.parameters(), lr=0.01), {})
    assert {row.name for row in rows} == {"weight"}


def test_amsgrad_divides_by_the_largest_second_moment() -> None:
    """As its update does: the learning rate times the update is how far parameters have moved."""
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.125, betas=(0.5, 0.5), amsgrad=True)
    with TrainerMon({"ur_distribution": True, "ops": ["mean"], "ndigits": 20}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        moved = []
        for factor in (8.0, 1.0, 0.5):  # the second moment falls
            before = model.weight.item()
            (model(torch.ones(1, 1)).sum() * factor).backward()
            optimizer.step()
            optimizer.zero_grad()
            moved.append((before - model.weight.item()) / 0.125)
    rows = read(monitor.output_directory)
    for step, distance in enumerate(moved):
        assert rows[Row("update", step, "weight")]["mean"] == pytest.approx(distance, rel=1e-4)


class Uncorrected(torch.optim.Optimizer):
    """Adam with the option of apex's and DeepSpeed's fused ones."""

    def __init__(self, parameters: Any, bias_correction: bool) -> None:
        super().__init__(parameters, {"betas": (0.5, 0.75), "eps": 1e-2, "bias_correction": bias_correction})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            (beta1, beta2), corrected = group["betas"], group["bias_correction"]
            for p in group["params"]:
                state = self.state[p]
                state["exp_avg"] = beta1 * state.get("exp_avg", 0) + (1 - beta1) * p.grad
                state["exp_avg_sq"] = beta2 * state.get("exp_avg_sq", 0) + (1 - beta2) * p.grad**2
                m = state["exp_avg"] / (1 - beta1 ** group["step"] if corrected else 1)
                v = state["exp_avg_sq"] / (1 - beta2 ** group["step"] if corrected else 1)
                p.sub_(m / (v.sqrt() + group["eps"]))


@pytest.mark.parametrize("corrected", [True, False])
def test_moments_are_corrected_as_the_group_says(corrected: bool) -> None:
    """For having begun at zero, or not."""
    model = torch.nn.Linear(4, 3)
    optimizer = Uncorrected(model.parameters(), corrected)
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    with TrainerMon({"ur_distribution": True, "ops": ["norm"], "ndigits": 20}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        moved = []
        for _ in range(3):
            before = model.weight.detach().double()
            model(inputs).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            moved.append(float((before - model.weight.detach().double()).norm()))
    rows = read(monitor.output_directory)
    for step, distance in enumerate(moved):
        assert rows[Row("update", step, "weight")]["norm"] == pytest.approx(distance, rel=1e-5)
