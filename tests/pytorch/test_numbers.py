"""Moments of torch tensors of every layout, beside the contract that all reductions keep."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.pytorch import device_moments, tensors
from tests.contract.backends import BACKENDS, Backend
from tests.contract.moments import EPS, INF, NAN, SIZES, assert_moments, check, expected, row_of
from tests.required import require

torch = require("torch")
pytestmark = pytest.mark.filterwarnings("ignore:.*(Sparse|sparse|quantize).*:UserWarning")

Tensor = Any


@pytest.fixture(params=[backend for backend in BACKENDS if backend.package == "torch"], ids=lambda each: each.name)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """All reductions: those of host tensors, and that of tensors on a device (which can be run anywhere)."""
    backend: Backend = request.param
    backend.prepare(monkeypatch)
    return backend


def normal(size: int, seed: int = 0) -> Tensor:
    """Random elements in float64, the same every time."""
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layouts() -> dict[str, Tensor]:
    """Tensors whose memory is not simply their elements in order."""
    x, c = normal(12_000).float(), torch.complex(normal(12_000), normal(12_000, 3))
    index = torch.tensor([[0, 5, 5, 99], [1, 2, 2, 70]])
    some = {
        "transposed": x.view(100, 120).t(),
        "permuted": x.view(20, 30, 20).permute(2, 0, 1),
        "sliced": x[::3],
        "columns": x.view(100, 120)[:, 3:90],
        "flipped": x.flip(0),
        "channels last": x.view(2, 10, 20, 30).contiguous(memory_format=torch.channels_last),
        "windows": x.unfold(0, 8, 3),
        "negated view": c.conj().imag,
        "conjugated": c.conj(),
        "conjugated columns": c.view(100, 120).conj()[:, ::2],
        "expanded": x[:5].view(5, 1).expand(5, 4000),
        "expanded scalar": torch.tensor(0.1).expand(300, 100),
        "expanded half": x[:6].bfloat16().view(2, 1, 3, 1).expand(2, 70, 3, 80),
        "coo": torch.sparse_coo_tensor(index, torch.tensor([1.0, 2.0, 3.0, -4.0]), (100, 120)),
        "coo of rows": torch.sparse_coo_tensor(index[:1], x[:480].view(4, 120), (100, 120)),
        "coo of integers": torch.sparse_coo_tensor(index, torch.tensor([1, 2, 3, -4]), (100, 120)),
        "coo without zeros": torch.eye(3).add(1).to_sparse(),
        "coo without elements": torch.sparse_coo_tensor(torch.empty(2, 0, dtype=torch.long), [], (10, 10)),
        "coo with nan": torch.sparse_coo_tensor(index, torch.tensor([1.0, NAN, 3.0, INF]), (100, 120)),
        "csr": x.view(100, 120).relu().to_sparse_csr(),
        "csc": x.view(100, 120).relu().to_sparse_csc(),
        "0-d": torch.tensor(-2.5),
        "0-d integer": torch.tensor(7),
        "0-d bool": torch.tensor(True),
        "one element of many dimensions": torch.full((1, 1, 1, 1), 3.0),
    }
    small = {
        f"small {name}": tensor[:3] for name, tensor in some.items() if name in ("transposed", "conjugated columns")
    }
    return some | small


with warnings.catch_warnings():  # torch calls sparse tensors a beta feature
    warnings.simplefilter("ignore")
    LAYOUTS = layouts()


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(backend: Backend, name: str) -> None:
    """Views, sparse tensors and scalars give the numbers of the elements they show."""
    check(backend, LAYOUTS[name])


def test_jagged() -> None:
    """A nested tensor counts by the elements of its parts."""
    parts = [normal(12).float().view(3, 4), normal(20, 3).float().view(5, 4)]
    nested, dense = torch.nested.nested_tensor(parts, layout=torch.jagged), torch.cat(parts)
    blocks = [tensors.moments([x], ("min", "max", "sum", "sumsq"), EPS) for x in (nested, dense)]
    got, want = tensors.to_host(blocks)().tolist()
    assert got == want


def test_quantised(backend: Backend) -> None:
    """A quantised tensor counts by the values it stands for."""
    quantised = torch.quantize_per_tensor(normal(5000).float(), 0.1, 0, torch.qint8)
    got, want = row_of(backend, quantised), expected(backend.elements(quantised.dequantize()))
    assert got == pytest.approx(want, rel=1e-5)


def test_expanded_beyond_memory(backend: Backend) -> None:
    """What would fill terabytes as a copy is reduced in a moment and without memory."""
    got = row_of(backend, torch.tensor([[1.0], [-3.0]]).expand(2, 10**12), ("sumsq", "sum", "m2", "min", "max"))
    assert got == pytest.approx({"sumsq": 10e12, "sum": -2e12, "m2": 8e12, "min": -3, "max": 1})


def peak_kilobytes(reset: bool = False) -> int:
    """The most memory that this process has held since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peak memory cannot be reset here")
@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x.t(), lambda x: x[:, ::2]], ids=["whole", "transposed", "strided"]
)
def test_copies_stay_small(view: Callable[[Tensor], Tensor]) -> None:
    """A large half-precision tensor in host memory is never converted as a whole: float32 would take 96 megabytes."""
    tensor = view(torch.zeros(4000, 6000, dtype=torch.bfloat16))
    tensors.moments([tensor], ("min", "max", "sum", "sumsq"), EPS)  # what the allocator keeps from then on is no copy
    before = peak_kilobytes(reset=True)
    tensors.moments([tensor], ("min", "max", "sum", "sumsq"), EPS)
    assert peak_kilobytes() - before < 20_000


def test_a_list_of_layouts_keeps_its_order(backend: Backend) -> None:
    """Tensors of every size and layout reduced together give one row each, in their order."""
    many = list(LAYOUTS.values())
    many += [normal(size).float() for size in SIZES]
    rows = backend.moments(many, ("min", "sumsq"), EPS)
    assert rows.shape == (len(many), 2)
    for row, tensor in zip(rows, many, strict=True):
        got = dict(zip(("min", "sumsq"), row.tolist(), strict=True))
        assert_moments(backend, got, backend.elements(tensor).reshape(-1))


def test_blocks_arrive_in_order() -> None:
    """Host and device blocks of different lengths come back as one table in the order they were made."""
    groups = [[1.0], [2.0, 3.0, 4.0], [5.0], [6.0, 7.0]]
    reductions = [tensors.moments, device_moments.moments, tensors.moments, device_moments.moments]
    blocks = [
        reduce([torch.full((3,), value) for value in group], ("max", "sum"), EPS)
        for group, reduce in zip(groups, reductions, strict=True)
    ]
    assert tensors.to_host(blocks)().tolist() == [[value, 3 * value] for group in groups for value in group]


def test_readings_do_not_differentiate_or_change_anything(backend: Backend) -> None:
    """Reducing a tensor that takes part in training leaves it, its version and its graph alone."""
    parameter = torch.nn.Parameter(normal(5000).float())
    version, before = parameter._version, parameter.detach().clone()
    result = row_of(backend, (parameter * 2).detach())
    assert result["sumsq"] == pytest.approx(4 * expected(backend.elements(before))["sumsq"])
    assert parameter._version == version
    assert parameter.grad is None
    assert torch.equal(parameter.detach(), before)


def test_scaled_readings_compare_with_a_scaled_eps() -> None:
    """Gradients that carry a loss scale count as zeros what would be below eps without it."""
    for size in (3, 6000):
        tensor = torch.full((size,), 1e-9) * 1024
        block = tensors.moments([tensor], ("below",), EPS, torch.tensor(1024.0))
        assert tensors.to_host([block])()[0, 0] == size
