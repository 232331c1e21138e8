"""The numbers of MindSpore tensors of every kind, against NumPy in float64, and when two readings are one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from probe.core.faults import Faults
from probe.core.histogram import QUANTILES
from probe.core.instrumentation.recorder import Recorder
from probe.core.moments import OPS, columns_for, derive
from probe.core.records import Key
from tests.required import require

os.environ.setdefault("GLOG_v", "4")  # MindSpore logs its warnings to the terminal
ms = require("mindspore")

from probe.mindspore import device_moments, tensors  # noqa: E402 - only where MindSpore is

Tensor = Any
Moments = Callable[[Sequence[Tensor], Sequence[str], float], Any]
EPS = 1e-8
EVERY_OP = tuple(op for op in OPS if op not in ("id", *QUANTILES))
SIZES = (1, 7, 4097, 70_001)
INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
NAN, INF = math.nan, math.inf


@pytest.fixture(params=["host", "device"])
def moments(request: pytest.FixtureRequest) -> Moments:
    """Both reductions: that of tensors in host memory, and that for a device, whose operators the CPU has too."""
    return tensors.moments if request.param == "host" else device_moments.moments


def ops_of(moments: Moments, tensor: Tensor, ops: Sequence[str] = EVERY_OP, eps: float = EPS) -> dict[str, float]:
    """Ops of ``tensor`` as a user would read them."""
    columns = columns_for(ops)
    rows = tensors.to_host([moments([tensor], columns, eps)])()
    assert rows.shape == (1, len(columns))
    assert rows.dtype == np.float64
    by_name = {name: rows[:, i] for i, name in enumerate(columns)}
    return {op: float(derive(op, by_name, [tuple(tensor.shape)])[0]) for op in ops}


def expected(elements: np.ndarray) -> dict[str, float]:
    """The same by NumPy, from the elements in float64."""
    x = np.abs(elements) if np.iscomplexobj(elements) else elements.astype(np.float64)
    with np.errstate(all="ignore"):
        numbers = {"min": x.min(), "max": x.max(), "mean": x.mean(), "norm": np.sqrt(np.sum(x * x)), "std": x.std()}
        counts = {"zeros": np.mean(np.abs(x) < EPS), "nans": np.isnan(x).sum(), "infs": np.isinf(x).sum()}
    return {op: float(value) for op, value in (numbers | counts).items()}


def check(moments: Moments, tensor: Tensor, elements: np.ndarray) -> None:
    """Counts exact, norm and std to 1e-5, mean to 1e-5 of the RMS, extremes to the dtype's own resolution."""
    got, want = ops_of(moments, tensor), expected(elements)
    rms = want["norm"] / math.sqrt(elements.size)
    for op in EVERY_OP:
        if op in ("zeros", "nans", "infs") or not math.isfinite(want[op]):
            assert got[op] == pytest.approx(want[op], rel=1e-7 if op == "zeros" else 0, abs=0, nan_ok=True), op
        elif op == "mean":
            assert abs(got[op] - want[op]) <= 1e-5 * rms
        elif op in ("min", "max"):
            assert got[op] == pytest.approx(want[op], rel=2e-7, abs=0), op
        else:
            assert got[op] == pytest.approx(want[op], rel=1e-5, abs=2e-7 * rms if op == "std" else 0), op


def normal(size: int, seed: int = 0) -> np.ndarray:
    """Random elements in float64, the same every time."""
    return np.random.default_rng(seed).normal(size=size)


def bfloat16(x: np.ndarray) -> np.ndarray:
    """``x`` with as many digits as bfloat16 has, in float32."""
    return (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_floating_point(moments: Moments, dtype: str, size: int) -> None:
    """Ordinary values of every width that NumPy knows."""
    x = normal(size).astype(dtype)
    check(moments, ms.Tensor(x), x)


@pytest.mark.parametrize("magnitude", [1e-25, 1.0, 1e25])
@pytest.mark.parametrize("size", SIZES)
def test_bfloat16(moments: Moments, size: int, magnitude: float) -> None:
    """The dtype that NumPy lacks keeps its range."""
    x = bfloat16(normal(size) * magnitude)
    tensor = ms.Tensor(x).astype(ms.bfloat16)
    assert str(tensors.describe(tensor)[1]) == "BFloat16"
    check(moments, tensor, x)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(moments: Moments, dtype: str, size: int) -> None:
    """Integers count by their value, over their whole range."""
    bounds = np.iinfo(dtype)
    x = np.random.default_rng(1).integers(bounds.min, bounds.max, size, dtype=dtype, endpoint=True)
    check(moments, ms.Tensor(x), x)


@pytest.mark.parametrize("size", SIZES)
def test_bool(moments: Moments, size: int) -> None:
    """True counts as 1, False as 0."""
    x = normal(size) > 0.3
    check(moments, ms.Tensor(x), x)


@pytest.mark.parametrize("magnitude", [1e-15, 1.0, 1e15])
@pytest.mark.parametrize("size", SIZES)
def test_complex_numbers_count_by_magnitude(moments: Moments, size: int, magnitude: float) -> None:
    """A complex element is its magnitude."""
    x = ((normal(size) + 1j * normal(size, 2)) * magnitude).astype(np.complex64)
    check(moments, ms.Tensor(x), x.astype(np.complex128))


@pytest.mark.parametrize("magnitude", [1e-25, 1e25, 1e38])
@pytest.mark.parametrize("size", SIZES)
def test_magnitudes_whose_squares_leave_the_range_of_float32(moments: Moments, size: int, magnitude: float) -> None:
    """Elements of 1e-25, of 1e25 and near the largest have a norm and a std."""
    x = (np.clip(normal(size), -3, 3) * magnitude).astype(np.float32)
    check(moments, ms.Tensor(x), x)


@pytest.mark.parametrize("mean", [1.0, -3e-25, 1e25])
@pytest.mark.parametrize("size", [7, 4096, 70_001])
def test_std_far_below_the_mean(moments: Moments, size: int, mean: float) -> None:
    """A std of 1e-4 of the mean has as many digits as float32 leaves it."""
    x = (mean * (1 + 1e-4 * normal(size))).astype(np.float32)
    check(moments, ms.Tensor(x), x)


def test_std_near_the_resolution_of_float32(moments: Moments) -> None:
    """If the mean is not as exact as the std needs it, its error is compensated."""
    x = (1 - 5e-7 * np.abs(np.append(0, normal(70_000)))).astype(np.float32)
    assert ops_of(moments, ms.Tensor(x), ["std"])["std"] == pytest.approx(x.astype(np.float64).std(), rel=1e-5)


@pytest.mark.parametrize(("value", "dtype"), [(0.1, "float32"), (0.1, "float16"), (60_000.0, "float16")])
def test_three_million_equal_elements(moments: Moments, value: float, dtype: str) -> None:
    """Long sums keep their digits, and leave the range of float16."""
    x = np.full(3_000_000, value, dtype)
    check(moments, ms.Tensor(x), x)


@pytest.mark.parametrize("size", [1, 5, 70_001])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("odd", [(NAN,), (-INF,), (NAN, INF), (INF, -INF)], ids=str)
def test_nan_and_infinity(moments: Moments, odd: tuple[float, ...], dtype: str, size: int) -> None:
    """NaN goes through to min, max, mean and norm, which MindSpore's own operators do not let it; both are counted."""
    held = odd[-size:]
    for where in (slice(None, len(held)), slice(size - len(held), None)):
        x = bfloat16(normal(size)).astype(np.float64)
        x[where] = held
        x = x.astype(np.float32 if dtype == "bfloat16" else dtype)
        tensor = ms.Tensor(x).astype(getattr(ms, dtype))
        check(moments, tensor, x)
        got = ops_of(moments, tensor)
        assert (got["nans"], got["infs"]) == (sum(map(math.isnan, held)), sum(map(math.isinf, held)))
        if any(map(math.isnan, held)):
            assert all(math.isnan(got[op]) for op in ("min", "max", "mean", "norm", "std"))
        else:
            assert got["norm"] == INF


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", *INTEGERS, "bool_", "complex64"])
def test_all_zeros(moments: Moments, dtype: str) -> None:
    """Zeros are below eps in every dtype, and everything else about them is 0."""
    for size in SIZES:
        got = ops_of(moments, ms.Tensor(np.zeros(size, np.float32)).astype(getattr(ms, dtype)))
        assert got == dict.fromkeys(EVERY_OP, 0.0) | {"zeros": 1.0}


VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.reshape(100, 120).T,
    "every second row": lambda x: x.reshape(100, 120)[::2],
    "columns": lambda x: x.reshape(100, 120)[:, 3:90],
    "a part": lambda x: x[5000:],
    "small part": lambda x: x[5:77],
    "0-d": lambda x: x[4],
    "one of many dimensions": lambda x: x[:1].reshape(1, 1, 1, 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("name", VIEWS)
def test_views(moments: Moments, name: str, dtype: str) -> None:
    """A view gives the numbers of the elements that it shows."""
    x = bfloat16(100 * normal(12_000))
    x = x.astype(dtype) if dtype != "bfloat16" else x
    check(moments, VIEWS[name](ms.Tensor(x).astype(getattr(ms, dtype))), np.asarray(VIEWS[name](x)))


@pytest.mark.parametrize("size", [7, 5000])
def test_each_op_alone(moments: Moments, size: int) -> None:
    """Any op can be asked for alone and gives the same number as with the others."""
    x = normal(size).astype(np.float32)
    x[0] = 0.0
    want = expected(x)
    for op in EVERY_OP:
        assert ops_of(moments, ms.Tensor(x), [op])[op] == pytest.approx(want[op], rel=1e-5, abs=1e-7), op


def test_zeros_counts_below_eps(moments: Moments) -> None:
    """Elements at or above eps do not count, nor does NaN; eps follows the scale of the values."""
    for times in (1, 1000):
        tensor = ms.Tensor(np.tile(np.array([0.0, 1e-9, -1e-9, -0.0, 1e-3, -1e-3, 1.0, NAN], np.float32), times))
        assert [ops_of(moments, tensor, ["zeros"], eps)["zeros"] for eps in (1e-8, 0.0, 0.5)] == [0.5, 0.0, 0.75]
    scaled = tensors.moments([ms.Tensor(np.full(5000, 1024e-9, np.float32))], ("below",), EPS, ms.Tensor(1024.0))
    assert scaled[0, 0] == 5000


def test_a_list_keeps_its_order(moments: Moments) -> None:
    """Tensors of every dtype and size reduced together give one row each, in their order."""
    arrays = [normal(size, i).astype(dtype) for i, size in enumerate(SIZES) for dtype in ("float32", "float16", "int8")]
    rows = tensors.to_host([moments([ms.Tensor(x) for x in arrays], ("min", "sumsq"), EPS)])()
    want = [[x.astype(np.float64).min(), np.square(x.astype(np.float64)).sum()] for x in arrays]
    assert rows == pytest.approx(np.array(want), rel=1e-5)


def test_blocks_arrive_in_order() -> None:
    """Host and device blocks of different lengths come back as one table in the order they were made."""
    groups = [[1.0], [2.0, 3.0, 4.0], [5.0], [6.0, 7.0]]
    for kinds in ([0, 1, 0, 1], [1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]):
        reductions = [(tensors.moments, device_moments.moments)[kind] for kind in kinds]
        blocks = [
            reduce([ms.Tensor(np.full(3, value, np.float32)) for value in group], ("max", "sum"), EPS)
            for group, reduce in zip(groups, reductions, strict=True)
        ]
        assert tensors.to_host(blocks)().tolist() == [[value, 3 * value] for group in groups for value in group]
    assert tensors.to_host([])().size == 0


def test_a_part_of_a_block_is_a_block(moments: Moments) -> None:
    """Core keeps the row of one tensor out of a list's block."""
    block = moments([ms.Tensor(np.full(3, value, np.float32)) for value in (1.0, 2.0)], ("sum",), EPS)
    assert tensors.to_host([block[1:2], block])().tolist() == [[6.0], [3.0], [6.0]]


def test_what_is_a_tensor() -> None:
    """Tensors with numbers in them, parameters and subclasses; nothing sparse, and nothing without elements yet."""

    class Adapted(ms.Tensor):
        """As libraries derive their own."""

    tensor = ms.Tensor(np.ones((2, 3), np.float32))
    assert all(map(tensors.is_tensor, (tensor, ms.Parameter(tensor), Adapted(tensor), tensor * 2, ms.Tensor(True))))
    assert not any(map(tensors.is_tensor, (None, 1.0, np.ones(3), [tensor], ms.float32)))
    assert not tensors.is_tensor(ms.COOTensor(ms.Tensor([[0, 1]]), ms.Tensor([1.0]), (3, 4)))
    assert not tensors.is_tensor(ms.common.initializer.initializer("normal", [3, 4], ms.float32))
    assert tensors.describe(Adapted(tensor)) == ((2, 3), ms.float32, None)
    assert str(tensors.describe(tensor)[1]) == "Float32"


def test_what_is_held_is_a_copy() -> None:
    """A small tensor's numbers are those of the moment when it was held; a large one is not held."""
    small, large = ms.Tensor(np.ones(4096, np.float32)) * 1, ms.Tensor(np.ones(4097, np.float32)) * 1
    held = tensors.hold(small)
    small[0] = 5
    assert tensors.hold(large) is None
    assert tensors.moments([held, small], ("sum",), EPS).tolist() == [[4096.0], [4100.0]]
    half = tensors.hold(small.astype(ms.bfloat16))
    assert tensors.moments([half], ("sum",), EPS).tolist() == [[4100.0]]


def item(x: Tensor) -> None:
    x[0] = 100.0


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "an item": item,
    "assign": lambda x: ms.ops.assign(x, x + 100),
    "assign_add": lambda x: ms.ops.assign_add(x, ms.ops.ones_like(x)),
    "set_data": lambda x: x.set_data(x * 2),
    "copy_": lambda x: x.copy_(x * 2),
    "negated": lambda x: x.set_data(-x),
}


def sums(recorder: Recorder) -> list[float]:
    """The sums of all that was recorded, in order."""
    return [float(total) for batch in recorder.drain().batches(0) for total in batch.columns["sum"]]


@pytest.mark.parametrize("size", [3, 100_001])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_in_place_is_seen(change: str, size: int) -> None:
    """One object read twice gives its numbers then and its numbers now: in a step, and from one step to the next."""
    parameter = ms.Parameter(np.ones(size, np.float32), name="p")
    recorder = Recorder(tensors, ["sum"], EPS, Faults().note)
    recorder.record("before", Key("p"), parameter, shared=True)
    recorder.record_all("all before", [Key("p")], [parameter])
    CHANGES[change](parameter)
    now = float(parameter.asnumpy().sum(dtype=np.float64))
    assert now != size
    recorder.record("after", Key("p"), parameter, shared=True)
    recorder.record_all("all after", [Key("p")], [parameter])
    assert sums(recorder) == [size, size, now, now]
    parameter.set_data(ms.ops.ones_like(parameter))
    recorder.record_all("next step", [Key("p")], [parameter])
    assert sums(recorder) == [size]


def test_a_large_tensor_that_stays_the_same_is_found_again() -> None:
    """Equal content of one object is one identity; other objects, and small ones, have their own."""
    tensor = ms.Tensor(normal(5000).astype(np.float32)) * 1
    (key, alive), (again, _) = tensors.identity(tensor), tensors.identity(tensor)
    assert key == again
    assert alive() is tensor
    assert tensors.unchanged(tensor, tensors.moments([tensor], ("sum",), EPS), 0)
    assert tensors.identity(tensor.copy())[0] != key
    small = tensor[:10]
    assert tensors.identity(small)[0] != tensors.identity(small)[0]
    del tensor, small
    assert alive() is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64", "complex64"])
@pytest.mark.parametrize("size", [4097, 16 * tensors.ROW, 61_440])
def test_the_checksum_depends_on_every_byte(dtype: str, size: int) -> None:
    """A flipped bit anywhere, the same elements with the other sign, and the same bytes of another type all differ."""
    x = (10 * normal(size)).astype(dtype)
    original = tensors.checksum(x)
    assert original == tensors.checksum(x.copy())
    data = x.view(np.uint8)
    for place in {0, 1, data.size // 2, data.size - 9, data.size - 1}:
        data[place] ^= 0x80
        assert tensors.checksum(x) != original, place
        data[place] ^= 0x80
    alternating = np.tile(np.array([1, 5, -2, 5]), size)[:size].astype(dtype)
    assert tensors.checksum(alternating) != tensors.checksum(-alternating)
    assert tensors.checksum(data) != original
    assert tensors.checksum(x[::2]) == tensors.checksum(x[::2].copy())


def after_a_failure() -> Tensor:
    """What uses the result of an operator that has failed, which nobody knows yet: there is no AdamW on the CPU."""
    parameter = ms.Parameter(np.ones((100, 100), np.float32), name="p")
    ms.mint.optim.AdamW([parameter], lr=0.1)((ms.Tensor(np.ones((100, 100), np.float32)),))
    return parameter * 2


def failed() -> Tensor:
    """The result of an operator that fails, which nobody knows yet: the CPU cannot convert to this dtype."""
    return ms.Tensor(np.ones(5000, np.float32)).astype(ms.float8_e5m2)


READINGS: dict[str, Callable[[Tensor], object]] = {
    "identity": tensors.identity,
    "read": tensors.read,
    "moments": lambda tensor: tensors.moments([tensor], ("sum",), EPS),
}
QUESTIONS: dict[str, Callable[[Tensor], object]] = {
    "is_tensor": tensors.is_tensor,
    "describe": tensors.describe,
    "hold": tensors.hold,
    "unchanged": lambda tensor: tensors.unchanged(tensor, None, 0),
}
FAILURES = [(after_a_failure, name, RuntimeError, "AdamW") for name in READINGS]
FAILURES += [(failed, name, TypeError, "Cast") for name in READINGS | QUESTIONS]


@pytest.mark.skipif(not hasattr(ms, "float8_e5m2"), reason="fails otherwise in versions before 2.10")
@pytest.mark.parametrize(("make", "name", "kind", "text"), FAILURES)
def test_a_failure_of_training_surfaces(
    make: Callable[[], Tensor], name: str, kind: type[Exception], text: str
) -> None:
    """The first read raises the error of an operator that failed before, and no guard of probe's swallows it."""
    tensor = make()
    with pytest.raises(tensors.Deferred) as caught:
        (READINGS | QUESTIONS)[name](tensor)
    assert not isinstance(caught.value, Exception)
    assert isinstance(caught.value.error, kind)
    assert text in str(caught.value.error)


def test_readings_do_not_differentiate_or_change_anything(moments: Moments) -> None:
    """Reducing a tensor that takes part in training leaves its gradient, its elements and the generator alone."""
    weight = ms.Parameter(normal(5000).astype(np.float32), name="w")
    before, state = weight.asnumpy().copy(), ms.get_rng_state().asnumpy().copy()
    blocks = []

    def forward() -> Tensor:
        product = weight * weight
        blocks.append(moments([product, weight], ("sumsq", "m2", "min"), EPS))
        return product.sum()

    _, (gradient,) = ms.value_and_grad(forward, None, [weight])()
    assert np.array_equal(gradient.asnumpy(), 2 * before)
    assert np.array_equal(weight.asnumpy(), before)
    assert np.array_equal(ms.get_rng_state().asnumpy(), state)
    wide = before.astype(np.float64)
    assert tensors.to_host(blocks)()[:, 0] == pytest.approx([np.sum(wide**4), np.sum(wide**2)], rel=1e-5)


def test_a_graph_does_not_reach_the_moments() -> None:
    """The result of an operator on a differentiated tensor is no part of its graph."""
    weight = ms.Parameter(np.ones(3, np.float32), name="w")
    nodes = []

    def forward() -> Tensor:
        block = device_moments.moments([weight * 2], ("sum",), EPS)
        nodes.append(getattr(block, "_grad_node", None))
        return weight.sum()

    ms.value_and_grad(forward, None, [weight])()
    assert nodes == [None]
