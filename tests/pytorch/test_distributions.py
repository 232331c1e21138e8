"""Updates of Adam as PyTorch's users configure it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from probe.pytorch import TrainerMon
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
