"""Bit flips of the benchmark: which numbers they change, in which step and on which rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.required import require

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def flips(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, whose folder is on the path as for its script."""
    require("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS / "faults"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _bit_flips

    return _bit_flips


@pytest.mark.torch
@pytest.mark.parametrize(("dtype", "tile", "changed"), [("float32", 1, [7]), ("bfloat16", 2, [7, 8, 12, 13])])
def test_a_flip_changes_a_bit_of_its_elements(flips: Any, dtype: str, tile: int, changed: list[int]) -> None:
    """The same bit of both dtypes; gradients go through as without it."""
    import torch

    values = torch.full((3, 5), 1.5, dtype=getattr(torch, dtype), requires_grad=True)
    result = flips.flipped(values, flips.Flip("activation", "", 24, 0, tile=tile, element=7))
    # bit 24 is the second lowest of the exponent, which is set in 127: the number is a quarter
    expected = [1.5 / 4 if n in changed else 1.5 for n in range(15)]
    assert result.flatten().tolist() == expected
    result.sum().backward()
    assert values.grad.tolist() == [[1.0] * 5] * 3


@pytest.mark.torch
def test_a_flip_acts_at_its_site_in_its_step_on_its_rank(flips: Any) -> None:
    """An activation changes the output; gradients leave it, and that of the weight alone changes nothing upstream."""
    import torch
    from torch import nn

    def numbers(site: str, step: int, rank: int = 0) -> list[float]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        flips.install(net, flips.Flip(site, "1", 30, 1, element=5), lambda: step, rank)
        loss = net(torch.ones(2, 4)).square().sum()
        loss.backward()
        return [loss.item(), net[1].weight.grad.norm().item(), net[0].weight.grad.norm().item()]

    healthy = numbers("activation", 0)
    for site, differ in (
        ("activation", [True, True, True]),
        ("input gradient", [False, False, True]),
        ("weight gradient", [False, True, False]),
    ):
        assert numbers(site, 0) == numbers(site, 1, rank=1) == healthy
        assert [one != other for one, other in zip(numbers(site, 1), healthy, strict=True)] == differ


@pytest.mark.torch
def test_the_grid_names_modules_that_there_are(flips: Any) -> None:
    """Every site, bit, stage and size once; each rank has some."""
    net, grid = flips.GPT(layers=flips.LAYERS, width=32), list(flips.flips(4))
    assert len(set(grid)) == len(flips.SITES) * len(flips.BITS) * len(flips.STAGES) * 2
    assert {flip.rank for flip in grid} == {0, 1, 2, 3}
    assert all(net.get_submodule(flip.module) is not None for flip in grid)
