"""The moments that every reduction promises, of every dtype, size and content, against sums in NumPy's widest type."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, cycle
from typing import Any

import numpy as np
import pytest

from probe.core.backend.numpy_moments import BLOCK, SMALL
from probe.core.moments import MOMENTS, merge
from tests.contract.backends import BACKENDS, INTEGERS, Backend
from tests.contract.moments import (
    COLUMNS,
    CONTENTS,
    EPS,
    INF,
    NAN,
    SHORT,
    assert_moments,
    check,
    draw,
    expected,
    normal,
    possible,
    row_of,
    sizes_for,
)
from tests.contract.pairwise import pairwise

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy's, of NaN and Inf


def marked(backend: Backend, *values: Any) -> Any:
    """A case, named by its values, that can be left out where its framework is not at hand."""
    name = "-".join(map(str, (backend.name, *values)))
    marks = () if backend.package == "numpy" else getattr(pytest.mark, backend.package)
    return pytest.param(backend, *values, id=name, marks=marks)


@pytest.fixture(params=[marked(backend) for backend in BACKENDS])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Each reduction in turn."""
    backend: Backend = request.param
    backend.prepare(monkeypatch)
    return backend


def cases_of(backend: Backend) -> dict[str, list[tuple[int, str]]]:
    """Sizes and contents by dtype."""
    found: dict[str, list[tuple[int, str]]] = {}
    for dtype, size, content in pairwise(backend.dtypes, sizes_for(backend), tuple(CONTENTS), possible=possible):
        found.setdefault(dtype, []).append((size, content))
    return found


CASES = {backend.name: cases_of(backend) for backend in BACKENDS}


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [marked(backend, dtype) for backend in BACKENDS for dtype in CASES[backend.name]],
    indirect=["backend"],
)
def test_every_dtype_size_and_content(backend: Backend, dtype: str) -> None:
    """Each has its moments: NaN goes through to extremes and sums, Inf makes the sum of squares infinite, and both are
    counted, wherever they are; integers count by their value, bool as 0 and 1, complex numbers by their magnitude. All
    sizes and contents of a dtype are one test, since each takes less time than a test."""
    for size, content in CASES[backend.name][dtype]:
        check_content(backend, dtype, size, content)


def check_content(backend: Backend, dtype: str, size: int, content: str) -> None:
    values, odd = draw(content, dtype, size), CONTENTS[content].odd
    check(backend, backend.tensor(values, dtype))
    if odd:
        got = row_of(backend, backend.tensor(values[::-1].copy(), dtype))
        assert_moments(backend, got, backend.elements(backend.tensor(values, dtype)))
        assert (got["nans"], got["infs"]) == (sum(map(math.isnan, odd)), sum(map(math.isinf, odd)))
        if any(map(math.isnan, odd)):
            assert all(math.isnan(got[name]) for name in ("min", "max", "sum", "sumsq", "m2"))
        else:
            assert got["sumsq"] == INF
    if content == "zeros":
        assert row_of(backend, backend.tensor(values, dtype)) == dict.fromkeys(MOMENTS, 0.0) | {"below": size}


def halves(backend: Backend) -> str:
    """A dtype of half precision."""
    return "bfloat16" if "bfloat16" in backend.dtypes else "float16"


MILLIONS = 3_000_000


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-20, 7e12, 60_000.0])
def test_three_million_equal_elements(backend: Backend, value: float) -> None:
    """Long sums of a value that float32 rounds keep their digits, and leave the range of half precision."""
    for dtype in ("float32", "float16") if value in (0.1, 60_000.0) else ("float32",):
        one = float(np.dtype(dtype).type(value))
        got = row_of(backend, backend.tensor(np.full(MILLIONS, value), dtype))
        assert (got["min"], got["max"]) == (one, one)
        assert got["sum"] == pytest.approx(one * MILLIONS, rel=1e-5)
        assert math.sqrt(got["sumsq"]) == pytest.approx(one * math.sqrt(MILLIONS), rel=1e-5)
        assert math.sqrt(got["m2"] / MILLIONS) <= max(1e-7, backend.resolution) * one


@pytest.mark.parametrize("content", ["ordinary", "tight"])
def test_three_million_elements(backend: Backend, content: str) -> None:
    """Long sums of random elements keep their digits."""
    for dtype in ("float32", halves(backend)):
        check(backend, backend.tensor(draw(content, dtype, MILLIONS), dtype))


LIMITS = {
    "sum overflows": (np.full(5000, 1.5e38), "float32"),
    "partial sums overflow": (np.tile([1.5e38, -1.5e38], 200_000), "float32"),
    "denormal": (np.full(5000, 1e-40), "float32"),
    "least denormal": (np.full(5000, 1e-45), "float32"),
    "half overflows": (np.full(200_000, 60_000.0), "float16"),
    "one near the largest": (np.array([2.5e38]), "float32"),
    "many near the largest": (1e38 * np.clip(normal(SHORT + 7), -3, 3), "float32"),
}


KNOWN_GAPS = {
    ("mindspore-device", limit): "its operators take denormals for 0" for limit in ("denormal", "least denormal")
}
"""Limits that a reduction does not keep, each with its reason; one that is kept after all fails."""


@pytest.mark.parametrize("limit", LIMITS)
def test_near_the_limits_of_a_dtype(backend: Backend, limit: str) -> None:
    """Sums beyond the range of the dtype, and denormals, are right."""
    if (backend.name, limit) not in KNOWN_GAPS:
        check(backend, backend.tensor(*LIMITS[limit]))
        return
    with pytest.raises(AssertionError):
        check(backend, backend.tensor(*LIMITS[limit]))


def test_blocks_out_of_range_beside_ordinary_ones(backend: Backend) -> None:
    """Each part of a long tensor is judged by itself."""
    x = normal(5 * BLOCK)
    for begin, magnitude in ((0, 1e-25), (2 * BLOCK, 1e25), (3 * BLOCK, 0.0)):
        x[begin : begin + BLOCK] *= magnitude
    check(backend, backend.tensor(x, "float32"))


def test_blocks_with_means_of_their_own(backend: Backend) -> None:
    """The spread between parts counts, however narrow each is."""
    steps = np.repeat([0.0, 3.0, -8.0, 3.001], BLOCK)
    check(backend, backend.tensor(steps + 1e-4 * normal(steps.size), "float32"))


def test_a_std_near_the_resolution_of_float32(backend: Backend) -> None:
    """Where the mean itself cannot be had as exactly as the std needs it, its error is made up for."""
    tensor = backend.tensor(1 - 5e-7 * np.abs(np.append(0, normal(70_000))), "float32")
    want = expected(backend.elements(tensor))["m2"]
    assert math.sqrt(row_of(backend, tensor)["m2"]) == pytest.approx(math.sqrt(want), rel=1e-5)


@pytest.mark.parametrize("times", [1, 3000])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_below_counts_magnitudes_under_eps(backend: Backend, dtype: str, times: int) -> None:
    """Elements at or above eps do not count, nor does NaN; eps is not rounded to 0 in half precision."""
    held = dtype if dtype in backend.dtypes else "float32"
    tensor = backend.tensor(np.tile(np.array([0.0, 1e-9, -1e-9, -0.0, 1e-3, -1e-3, 1.0, NAN]), times), held)
    for eps, count in ((EPS, 4), (0.0, 0), (0.5, 6)):
        assert row_of(backend, tensor, ("below",), eps) == {"below": count * times}


@pytest.mark.parametrize(
    ("backend", "size"),
    [
        marked(backend, size)
        for backend in BACKENDS
        for size in ((SMALL + 1,) if backend.reduction == "device" else (50, SMALL + 1, 2 * BLOCK + 5))
    ],
    indirect=["backend"],
)
def test_each_column_alone_and_with_every_other(backend: Backend, size: int) -> None:
    """Columns asked for together, in any order, have the numbers that they have alone."""
    x = normal(size)
    x[0] = 0.0
    tensor = backend.tensor(x, "float32")
    alone = {name: row_of(backend, tensor, (name,))[name] for name in MOMENTS}
    assert_moments(backend, alone, backend.elements(tensor))
    exact = 0 if backend.package == "numpy" else 1e-6
    for names in (*combinations(MOMENTS, 2), COLUMNS[::-1]):
        together = row_of(backend, tensor, names)
        assert together == pytest.approx({name: alone[name] for name in names}, rel=exact, abs=0)


def test_one_count_alone_of_what_is_not_finite(backend: Backend) -> None:
    """NaN and Inf are counted where nothing else is asked for."""
    for size in (7, 5000):
        x = normal(size)
        x[1:4] = NAN, INF, INF
        tensor = backend.tensor(x, "float32")
        assert row_of(backend, tensor, ("nans",)) == {"nans": 1}
        assert row_of(backend, tensor, ("infs",)) == {"infs": 2}


VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.reshape(400, 500).T,
    "every third": lambda x: x[::3],
    "columns": lambda x: x.reshape(400, 500)[:, 3:490],
    "every second column": lambda x: x.reshape(400, 500)[:, ::2],
    "every second row": lambda x: x.reshape(400, 500)[::2],
    "a part": lambda x: x[5000:],
    "small part": lambda x: x[5:77],
    "small transposed": lambda x: x[:3000].reshape(30, 100).T,
    "0-d": lambda x: x[4],
    "one of many dimensions": lambda x: x[:1].reshape(1, 1, 1, 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(backend: Backend, name: str) -> None:
    """A view has the moments of the elements that it shows, each once for every place where it is shown."""
    others = () if backend.reduction == "device" else ("float64", "int32", "complex64")
    for dtype in ("float32", halves(backend), *others):
        values = draw("ordinary", dtype, 200_000) * 100
        tensor = VIEWS[name](backend.tensor(values, dtype))
        shown = VIEWS[name](backend.elements(backend.tensor(values, dtype)))
        assert_moments(backend, row_of(backend, tensor), np.asarray(shown).reshape(-1))


def test_a_list_keeps_its_order(backend: Backend) -> None:
    """Tensors of every dtype and size reduced together give one row each, in their order."""
    sizes = sizes_for(backend)
    many = [
        backend.tensor(draw("range" if dtype in INTEGERS else "ordinary", dtype, size), dtype)
        for dtype, size in zip([*backend.dtypes, *backend.dtypes[::-1]], cycle(sizes), strict=False)
    ]
    many[1:1] = [view(backend.tensor(normal(200_000), "float32")) for view in VIEWS.values()]
    columns = ("sumsq", "min", "m2")
    rows = backend.moments(many, columns, EPS)
    assert rows.shape == (len(many), 3)
    for row, tensor in zip(rows, many, strict=True):
        assert_moments(backend, dict(zip(columns, row.tolist(), strict=True)), backend.elements(tensor))


@pytest.mark.parametrize("odd", [None, NAN, INF])
def test_shards_merge_to_the_whole(backend: Backend, odd: float | None) -> None:
    """The moments of shards, empty ones too, are those of the whole once core has merged them."""
    whole = 5 + 0.01 * normal(3 * BLOCK + 100)
    if odd is not None:
        whole[4321] = odd
    shards = np.split(whole, [10, 10, BLOCK, 2 * BLOCK + 50])
    rows = [
        row_of(backend, backend.tensor(shard, "float32")) if shard.size else dict.fromkeys(MOMENTS, NAN)
        for shard in shards
    ]
    merged = merge(rows, [len(shard) for shard in shards])
    assert_moments(backend, dict(merged), backend.elements(backend.tensor(whole, "float32")))


def test_tensors_are_left_alone(backend: Backend) -> None:
    """Reducing writes nothing and warns of nothing."""
    x = np.array([1e30, -1e30, 1e-30, 0.0, INF, NAN] * 20_000)
    tensors = [backend.tensor(values, "float32") for values in (x, x[:60], x[::2].copy())]
    before = [backend.elements(tensor).tobytes() for tensor in tensors]
    assert before[0] == x.astype(np.float32).astype(np.float64).tobytes()
    with np.errstate(all="raise" if backend.reduction != "kernels" else None):  # Triton's interpreter is NumPy
        backend.moments(tensors, COLUMNS, EPS)
    assert [backend.elements(tensor).tobytes() for tensor in tensors] == before
