"""Every op from its moments, and shards merged, against NumPy on the elements themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probe.core.histogram import HISTOGRAM, QUANTILES
from probe.core.moments import EMPTY, MOMENTS, OPS, columns_for, derive, merge, repeated

NAN, INF = math.nan, math.inf
EPS = 1e-3


def moments_of(x: np.ndarray) -> dict[str, float]:
    """The moments by their definitions."""
    if not x.size:
        return dict(EMPTY)
    with np.errstate(all="ignore"):
        values = {"min": x.min(), "max": x.max(), "sum": x.sum(), "sumsq": np.sum(x * x), "m2": x.var() * x.size}
    counts = {"nans": np.isnan(x).sum(), "infs": np.isinf(x).sum(), "below": np.sum(np.abs(x) < EPS)}
    return {name: float(value) for name, value in (values | counts).items()}


def ops_of(moments: dict[str, float], shape: tuple[int, ...]) -> dict[str, float]:
    columns = {name: np.array([value]) for name, value in moments.items()}
    return {op: float(derive(op, columns, [shape])[0]) for op in OPS if op not in QUANTILES}


def by_numpy(x: np.ndarray) -> dict[str, float]:
    with np.errstate(all="ignore"):
        numbers = {"min": x.min(), "max": x.max(), "mean": x.mean(), "norm": np.linalg.norm(x), "std": x.std()}
    counts = {"zeros": np.mean(np.abs(x) < EPS), "nans": np.isnan(x).sum(), "infs": np.isinf(x).sum()}
    return {op: float(value) for op, value in (numbers | counts | {"id": NAN}).items()}


ARRAYS = {
    "random": np.random.default_rng(0).normal(size=100) + 3,
    "tight": 1 + 1e-4 * np.random.default_rng(1).normal(size=100),
    "zeros": np.zeros(10),
    "negative zero": np.array([-0.0, 1.0]),
    "nan": np.array([1.0, NAN, 2.0]),
    "infinity": np.array([1.0, INF, 2.0]),
    "both infinities": np.array([INF, -INF]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_ops_from_moments(name: str) -> None:
    """Each op is what NumPy says of the elements."""
    x = ARRAYS[name]
    assert ops_of(moments_of(x), x.shape) == pytest.approx(by_numpy(x), rel=1e-9, nan_ok=True)


def test_an_empty_tensor_has_a_norm_and_counts_but_no_values() -> None:
    """Without elements the norm is 0 and nothing is NaN; extremes, mean, std and fractions do not exist."""
    got = ops_of(dict(EMPTY), (0, 2))
    assert {op: got[op] for op in ("norm", "nans", "infs")} == {"norm": 0, "nans": 0, "infs": 0}
    assert all(math.isnan(got[op]) for op in ("min", "max", "mean", "zeros", "std", "id"))


def test_id_is_for_scalars() -> None:
    """``id`` is the value of a 0-d tensor and of no other, be it of one element."""
    columns = {"sum": np.array([2.5, 2.5, 0.0])}
    got = derive("id", columns, [(), (1,), (0,)])
    assert got[0] == 2.5
    assert np.isnan(got[1:]).all()


def test_only_needed_moments_are_asked_for() -> None:
    """Ops share moments, each is asked for once, and nothing else is."""
    assert columns_for(["nans"]) == ("nans",)
    assert columns_for(["norm", "mean", "id", "norm"]) == ("sum", "sumsq")
    assert columns_for(OPS) == (*MOMENTS, HISTOGRAM)
    assert columns_for([]) == ()


def test_a_column_that_a_signal_adds_is_an_op() -> None:
    """What is no op is looked up under its own name."""
    assert derive("entropy", {"entropy": np.array([0.5])}, [(3,)]).tolist() == [0.5]
    with pytest.raises(KeyError):
        derive("entropy", {"sum": np.array([0.5])}, [(3,)])
    with pytest.raises(KeyError):
        derive("norm", {"sum": np.array([0.5])}, [(3,)])


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("cuts", [[], [1], [1, 1], [0, 1]], ids=str)
def test_shards_merge_to_the_whole(name: str, cuts: list[int]) -> None:
    """However a tensor is cut, empty shards among them, its moments come back."""
    x = ARRAYS[name]
    shards = np.split(x, cuts)
    merged = merge([moments_of(shard) for shard in shards], [len(shard) for shard in shards])
    assert merged == pytest.approx(moments_of(x), rel=1e-9, nan_ok=True)


def test_only_empty_shards_merge_to_an_empty_tensor() -> None:
    """Nothing and nothing is nothing."""
    assert merge([dict(EMPTY), dict(EMPTY)], [0, 0]) == pytest.approx(EMPTY, nan_ok=True)


def test_merging_asks_for_nothing_but_what_the_shards_have() -> None:
    """Any single column merges by itself."""
    for name in set(MOMENTS) - {"m2"}:
        assert merge([{name: 1.0}, {name: 2.0}], [3, 3]) == {name: {"min": 1.0, "max": 2.0}.get(name, 3.0)}


def test_distances_beyond_float64_overflow_to_infinity() -> None:
    """Shards whose means differ by 1e200 have a spread too large for a number, which is no error."""
    shards = [moments_of(np.full(2, value)) for value in (1e200, -1e200)]
    assert merge(shards, [2, 2])["m2"] == INF


def test_copies_of_a_tensor() -> None:
    """An expanded tensor has the moments of as many copies."""
    x = np.array([1.0, -2.0, 1e-9])
    assert repeated(moments_of(x), 5) == pytest.approx(moments_of(np.tile(x, 5)))
