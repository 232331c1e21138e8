"""The numbers of tensors of every kind, against NumPy in float64."""

from __future__ import annotations

import functools
import math
import os
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.backend import fused_reduce
from probe.core.moments import OPS, columns_for, derive, merge
from probe.pytorch import device_moments, tensors
from tests.required import require

torch = require("torch")
pytestmark = pytest.mark.filterwarnings("ignore:.*(Sparse|sparse|quantize).*:UserWarning")

Tensor = Any
Moments = Callable[[Sequence[Tensor], Sequence[str], Any], Any]
EPS = 1e-8
EVERY_OP = ("min", "max", "mean", "norm", "zeros", "nans", "infs", "std")
SIZES = (1, 7, 4096, 4097, 270_000)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
NAN, INF = math.nan, math.inf


@pytest.fixture(params=["host", "host, compiled", "device"])
def moments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Moments:
    """All reductions: those of host tensors, and that of tensors on a device (which can be run anywhere)."""
    if request.param == "host, compiled":
        if not fused_reduce.available:
            pytest.skip("no C compiler was at hand when probe was installed")
        return tensors.moments
    monkeypatch.setattr(fused_reduce, "available", False)
    return tensors.moments if request.param == "host" else device_moments.moments


def ops_of(moments: Moments, tensor: Tensor, ops: Sequence[str] = EVERY_OP, eps: float = EPS) -> dict[str, float]:
    """Ops of ``tensor`` as a user would read them."""
    columns = columns_for(ops)
    rows = tensors.to_host([moments([tensor], columns, eps)])()
    assert rows.shape == (1, len(columns))
    by_name = {name: rows[:, i] for i, name in enumerate(columns)}
    return {op: float(derive(op, by_name, [tuple(tensor.shape)])[0]) for op in ops}


def elements(tensor: Tensor) -> np.ndarray:
    """All elements in float64, through nothing but plain conversions."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        return np.abs(tensor.resolve_conj().resolve_neg().to(torch.complex128).numpy()).ravel()
    return tensor.to(torch.float64).resolve_neg().numpy().ravel()


def expected(tensor: Tensor, eps: float = EPS) -> dict[str, float]:
    """The same by NumPy."""
    x = elements(tensor)
    with np.errstate(all="ignore"):
        numbers = {"min": x.min(), "max": x.max(), "mean": x.mean(), "norm": np.sqrt(np.sum(x * x)), "std": x.std()}
        counts = {"zeros": np.mean(np.abs(x) < eps), "nans": np.isnan(x).sum(), "infs": np.isinf(x).sum()}
    return {op: float(value) for op, value in (numbers | counts).items()}


def check(moments: Moments, tensor: Tensor) -> None:
    """Extremes and counts exact, norm and std to 1e-5, mean to 1e-5 of the RMS."""
    got, want = ops_of(moments, tensor), expected(tensor)
    rms = want["norm"] / math.sqrt(tensor.numel())
    exact = ("zeros", "nans", "infs") if tensor.is_complex() else ("min", "max", "zeros", "nans", "infs")
    for op in EVERY_OP:
        if op in exact or not math.isfinite(want[op]):
            assert got[op] == pytest.approx(want[op], rel=0, abs=0, nan_ok=True), op
        elif op in ("mean", "min", "max"):
            assert abs(got[op] - want[op]) <= 1e-5 * rms, op
        else:
            # Of equal elements the true std is 0: float32 sums may miss it by their own resolution of the elements.
            assert got[op] == pytest.approx(want[op], rel=1e-5, abs=1e-7 * rms if op == "std" else 0), op


def normal(size: int, seed: int = 0) -> Tensor:
    """Random elements in float64, the same every time."""
    return _normal(size, seed).clone()


@functools.cache
def _normal(size: int, seed: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8], ids=str)
def test_floating_point_of_every_width_and_size(moments: Moments, dtype: Any, size: int) -> None:
    """Ordinary values of every floating-point dtype and size give NumPy's numbers."""
    check(moments, normal(size).to(dtype))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(moments: Moments, dtype: Any, size: int) -> None:
    """Integers count by their value, over their whole range."""
    bounds = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(1)
    check(moments, torch.randint(bounds.min, bounds.max, (size,), dtype=dtype, generator=generator))


@pytest.mark.parametrize("size", SIZES)
def test_bool(moments: Moments, size: int) -> None:
    """True counts as 1, False as 0."""
    check(moments, normal(size) > 0.3)


@pytest.mark.parametrize("magnitude", [1e-25, 1.0, 1e25])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_numbers_count_by_magnitude(moments: Moments, dtype: Any, size: int, magnitude: float) -> None:
    """A complex element is its magnitude."""
    check(moments, torch.complex(normal(size), normal(size, 2)).to(dtype) * magnitude)


@pytest.mark.parametrize("magnitude", [1e-25, 1e25])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_magnitudes_whose_squares_leave_the_range_of_float32(
    moments: Moments, dtype: Any, size: int, magnitude: float
) -> None:
    """Elements of 1e-25 and 1e25 have a norm and a std."""
    check(moments, (normal(size) * magnitude).to(dtype))


@pytest.mark.parametrize("kind", ["normal", "tight", "constant"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_three_million_elements(moments: Moments, dtype: Any, kind: str) -> None:
    """Long sums keep their digits: random values, a std of 1e-4 of the mean, and a constant that float32 rounds."""
    x = {"normal": normal(3_000_000), "tight": 1 + 1e-4 * normal(3_000_000), "constant": torch.full((3_000_000,), 0.1)}
    check(moments, x[kind].to(dtype))


@pytest.mark.parametrize("mean", [1.0, -3e-25, 1e25])
@pytest.mark.parametrize("size", [7, 4096, 4097, 300_000])
def test_std_far_below_the_mean(moments: Moments, size: int, mean: float) -> None:
    """A std of 1e-4 of the mean is right to five digits."""
    check(moments, (mean * (1 + 1e-4 * normal(size))).to(torch.float32))


def test_float32_near_its_limits(moments: Moments) -> None:
    """Sums beyond float32's range, of one sign and of both, and denormals are right."""
    check(moments, torch.full((5000,), 1.5e38))
    check(moments, torch.tensor([1.5e38, -1.5e38]).repeat(200_000))
    check(moments, torch.full((5000,), 1e-40))
    check(moments, torch.full((5000,), 1e-45))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("odd", [(NAN,), (INF,), (-INF,), (NAN, INF), (INF, -INF), (NAN, INF, -INF)], ids=str)
def test_nan_and_infinity(moments: Moments, odd: tuple[float, ...], dtype: Any, size: int) -> None:
    """NaN goes through to min, max, mean and norm; Inf makes the norm infinite; both are counted exactly."""
    x = normal(size)
    x[-len(odd) :] = torch.tensor(odd, dtype=torch.float64)[-size:]
    tensor = x.to(dtype)
    check(moments, tensor)
    got, held = ops_of(moments, tensor), odd[-size:]
    if any(math.isnan(value) for value in held):
        assert all(math.isnan(got[op]) for op in ("min", "max", "mean", "norm"))
    else:
        assert got["norm"] == INF
    assert got["nans"] == sum(math.isnan(value) for value in held)
    assert got["infs"] == sum(math.isinf(value) for value in held)


def test_float8_nan(moments: Moments) -> None:
    """The dtype that has a NaN but no infinity."""
    check(moments, torch.tensor([1.0, NAN] * 3000).to(torch.float8_e4m3fn))


@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8, *INTEGERS, torch.bool, *COMPLEX], ids=str)
def test_all_zeros(moments: Moments, dtype: Any) -> None:
    """A tensor of zeros has no norm and is all zeros, in half precision too, where eps itself would be 0."""
    for size in SIZES:
        got = ops_of(moments, torch.zeros(size).to(dtype))  # torch 2.4 makes no zeros in eight bits
        assert got == {"min": 0, "max": 0, "mean": 0, "norm": 0, "zeros": 1, "nans": 0, "infs": 0, "std": 0}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_zeros_counts_below_eps(moments: Moments, dtype: Any) -> None:
    """Half of the elements are below eps; what is at or above it does not count."""
    for size in (8, 8000):
        tensor = torch.tensor([0.0, 1e-9, -1e-9, -0.0, 1e-3, -1e-3, 1.0, NAN], dtype=dtype).repeat(size // 8)
        assert ops_of(moments, tensor, ["zeros"])["zeros"] == 0.5
        assert ops_of(moments, tensor, ["zeros"], eps=0.0)["zeros"] == 0.0
        assert ops_of(moments, tensor, ["zeros"], eps=0.5)["zeros"] == 0.75


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
def test_layouts(moments: Moments, name: str) -> None:
    """Views, sparse tensors and scalars give the numbers of the elements they show."""
    check(moments, LAYOUTS[name])


def test_quantised(moments: Moments) -> None:
    """A quantised tensor counts by the values it stands for."""
    quantised = torch.quantize_per_tensor(normal(5000).float(), 0.1, 0, torch.qint8)
    assert ops_of(moments, quantised) == pytest.approx(expected(quantised.dequantize()), rel=1e-5)


def test_expanded_beyond_memory(moments: Moments) -> None:
    """A view that would fill terabytes as a copy is reduced in a moment and without memory."""
    got = ops_of(moments, torch.tensor([[1.0], [-3.0]]).expand(2, 10**12))
    assert got["norm"] == pytest.approx(math.sqrt(10 * 10**12))
    assert (got["mean"], got["std"], got["min"], got["max"]) == (-1.0, 2.0, -3.0, 1.0)


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
    before = peak_kilobytes(reset=True)
    ops_of(tensors.moments, tensor, ["min", "max", "mean", "norm"])
    assert peak_kilobytes() - before < 20_000


@pytest.mark.parametrize("size", [7, 5000])
def test_each_op_alone(moments: Moments, size: int) -> None:
    """Any op can be asked for alone, and only its own column is then reduced."""
    tensor = normal(size).float()
    tensor[0] = 0.0
    want = expected(tensor)
    for op in EVERY_OP:
        assert columns_for([op]) == (OPS[op].moment,)
        assert ops_of(moments, tensor, [op])[op] == pytest.approx(want[op], rel=1e-5, abs=1e-7), op
    tensor[1:3] = torch.tensor([NAN, INF])
    assert ops_of(moments, tensor, ["nans"]) == {"nans": 1}
    assert ops_of(moments, tensor, ["infs"]) == {"infs": 1}


def test_every_pair_of_ops(moments: Moments) -> None:
    """Whatever is asked for together gives the same numbers as alone."""
    for tensor in (normal(50).float(), normal(9000).float()):
        alone = {op: ops_of(moments, tensor, [op])[op] for op in EVERY_OP}
        for one in EVERY_OP:
            for other in EVERY_OP:
                got = ops_of(moments, tensor, [one, other])
                assert got == pytest.approx({one: alone[one], other: alone[other]}, rel=1e-6)


def test_id_is_the_value_of_a_scalar(moments: Moments) -> None:
    """``id`` is the value of a tensor without dimensions and NaN for any other."""
    assert ops_of(moments, torch.tensor(2.5), ["id"]) == {"id": 2.5}
    assert math.isnan(ops_of(moments, torch.tensor([2.5]), ["id"])["id"])


def test_a_list_keeps_its_order(moments: Moments) -> None:
    """Tensors of every size, dtype and layout reduced together give one row each, in their order."""
    many = list(LAYOUTS.values())
    many += [normal(size).to(dtype) for size in SIZES for dtype in FLOATS]
    columns = columns_for(["min", "norm"])
    rows = tensors.to_host([moments(many, columns, EPS)])()
    assert rows.shape == (len(many), 2)
    for row, tensor in zip(rows, many, strict=True):
        want = expected(tensor)
        assert row[0] == pytest.approx(want["min"], rel=1e-6, nan_ok=True)
        assert math.sqrt(row[1]) == pytest.approx(want["norm"], rel=1e-5, nan_ok=True)


def test_blocks_arrive_in_order() -> None:
    """Host and device blocks of different lengths come back as one table in the order they were made."""
    groups = [[1.0], [2.0, 3.0, 4.0], [5.0], [6.0, 7.0]]
    reductions = [tensors.moments, device_moments.moments, tensors.moments, device_moments.moments]
    blocks = [
        reduce([torch.full((3,), value) for value in group], ("max", "sum"), EPS)
        for group, reduce in zip(groups, reductions, strict=True)
    ]
    assert tensors.to_host(blocks)().tolist() == [[value, 3 * value] for group in groups for value in group]


def test_readings_do_not_differentiate_or_change_anything(moments: Moments) -> None:
    """Reducing a tensor that takes part in training leaves it, its version and its graph alone."""
    parameter = torch.nn.Parameter(normal(5000).float())
    version, before = parameter._version, parameter.detach().clone()
    result = ops_of(moments, (parameter * 2).detach())
    assert result["norm"] == pytest.approx(2 * expected(before)["norm"])
    assert parameter._version == version
    assert parameter.grad is None
    assert torch.equal(parameter.detach(), before)


@pytest.mark.parametrize("spoil", [None, NAN, INF])
def test_shards_merge_to_the_whole(moments: Moments, spoil: float | None) -> None:
    """The moments of shards, empty ones too, add up to those of the whole tensor."""
    whole = (5 + normal(10_000) * 0.01).float()
    if spoil is not None:
        whole[4321] = spoil
    shards = [whole[:100], whole[100:100], whole[100:6000], whole[6000:]]
    columns = columns_for(EVERY_OP)
    rows = [
        dict(zip(columns, tensors.to_host([moments([s], columns, EPS)])()[0].tolist(), strict=True))
        for s in shards
        if len(s)
    ]
    rows.insert(1, dict.fromkeys(columns, NAN))
    merged = merge(rows, [len(shard) for shard in shards])
    got = {op: float(derive(op, {k: np.array([v]) for k, v in merged.items()}, [(10_000,)])[0]) for op in EVERY_OP}
    assert got == pytest.approx(expected(whole), rel=1e-5, nan_ok=True)


def test_scaled_readings_compare_with_a_scaled_eps() -> None:
    """Gradients that carry a loss scale count as zeros what would be below eps without it."""
    for size in (3, 6000):
        tensor = torch.full((size,), 1e-9) * 1024
        block = tensors.moments([tensor], columns_for(["zeros"]), EPS, torch.tensor(1024.0))
        assert tensors.to_host([block])()[0, 0] == size
