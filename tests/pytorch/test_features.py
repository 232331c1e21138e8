"""Interpretable features of what only torch's modules do."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import register_parametrization

from probe.pytorch import TrainerMon

LINEAR = {"recording_l2_features": True, "l2_targets": {"linear_hook": []}, "ndigits": 20}


def train(model: Any, config: dict[str, Any] | None) -> tuple[list[bytes], list[str]]:
    """Parameters, buffers and the random state after three steps, and the names of the rows of linear layers."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = None
    if config is not None:
        monitor = TrainerMon(config)
        monitor.set_monitor(model, 1, optimizer)
    inputs = torch.linspace(-1, 1, 24).reshape(4, 6)
    for _ in range(3):
        model(inputs).abs().square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = [tensor.numpy().tobytes() for tensor in (*model.state_dict().values(), torch.get_rng_state())]
    if monitor is None:
        return state, []
    monitor.stop()
    assert monitor.faults == {}
    lines = [csv.DictReader(path.open(encoding="utf-8")) for path in Path(monitor.output_directory or "").glob("*.csv")]
    return state, sorted(line["name"] for each in lines for line in each)


class Noisy(torch.nn.Module):
    """A parametrization that draws random numbers."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + 1e-3 * torch.randn_like(weight)


def parametrized(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    first = torch.nn.Linear(6, 5)
    if kind == "noisy":
        register_parametrization(first, "weight", Noisy())
    else:
        parametrizations.spectral_norm(first)
    return torch.nn.Sequential(first, torch.nn.Linear(5, 3))


@pytest.mark.parametrize("kind", ["spectral_norm", "noisy"])
def test_a_weight_that_is_computed_at_each_reading_is_left_alone(kind: str) -> None:
    """To read it would take a step of torch's power method, or random numbers of training's."""
    plain, _ = train(parametrized(kind), None)
    state, names = train(parametrized(kind), LINEAR)
    assert state == plain
    assert names == ["1.linear"] * 3


class Unready(torch.nn.Module):
    """A module whose ``weight`` cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = torch.nn.Linear(6, 3)

    @property
    def weight(self) -> torch.Tensor:
        raise RuntimeError("not now")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x)


def test_a_property_that_raises_is_no_weight() -> None:
    """Nor a reason not to attach."""
    assert train(Unready(), LINEAR)[1] == ["inside.linear"] * 3


@pytest.mark.filterwarnings("ignore:Complex modules")
def test_complex_weights_have_no_row() -> None:
    """Their real parts alone would be something else."""
    model = torch.nn.Linear(6, 3).to(torch.complex64)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return model(x.to(torch.complex64))

    whole = torch.nn.Sequential(torch.nn.Linear(6, 6), Called(model, forward))
    assert train(whole, LINEAR)[1] == ["0.linear"] * 3


class Called(torch.nn.Module):
    """Runs a function around a module."""

    def __init__(self, inside: torch.nn.Module, function: Any) -> None:
        super().__init__()
        self.inside, self.function = inside, function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(x)
        return result


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_gives_no_second_row(reentrant: bool) -> None:
    """A forward that runs again for the backward is the same call."""
    from torch.utils.checkpoint import checkpoint

    attention = Attention()
    whole = torch.nn.Sequential(
        torch.nn.Linear(6, 6), Called(attention, lambda x: checkpoint(attention, x, use_reentrant=reentrant))
    )
    config = {"recording_l2_features": True, "l2_targets": {"attention_hook": ["1.inside.core"]}, "sa_order": "b,s,h,d"}
    assert train(whole, config)[1] == ["1.inside.core.attention"] * 3


class Core(torch.nn.Module):
    """Attention of one head, causal by an argument."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool) -> torch.Tensor:
        swapped = [x.transpose(1, 2) for x in (query, key, value)]
        return torch.nn.functional.scaled_dot_product_attention(*swapped, is_causal=is_causal)


class Attention(torch.nn.Module):
    """Of one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x[None, :, None]
        result: torch.Tensor = self.core(parts, parts, parts, is_causal=True)
        return result


def test_autocast_does_not_reach_features() -> None:
    """Features do not have the rounding of products in half precision."""
    model = torch.nn.Linear(6, 3)
    weight = model.weight.detach().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with TrainerMon(LINEAR) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        with torch.autocast("cpu", torch.bfloat16):
            model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
    (path,) = Path(monitor.output_directory or "").glob("linear_hook*.csv")
    (row,) = csv.DictReader(path.open(encoding="utf-8"))
    assert float(row["kernel_norm"]) == pytest.approx(float(torch.linalg.matrix_norm(weight, 2)), rel=1e-5)
