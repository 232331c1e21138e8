"""The compiled pass, against NumPy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from probe.core.backend import fused_reduce

pytestmark = pytest.mark.skipif(not fused_reduce.available, reason="no C compiler was at hand when probe was installed")


def of(x: Any) -> fused_reduce.Four | None:
    return fused_reduce.one(x.ctypes.data, x.size)


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 1023, 1024, 1025, 1056, 4097, 100_003])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_every_element_counts_once(size: int, scale: float) -> None:
    x = (np.random.default_rng(size).normal(0.5, 1, size) * scale).astype(np.float32)
    exact = x.astype(np.float64)
    low, high, total, squares = of(x)  # type: ignore[misc]
    assert (low, high) == (x.min(), x.max())
    assert total == pytest.approx(exact.sum(), abs=1e-6 * np.abs(exact).sum())
    assert squares == pytest.approx(np.square(exact).sum(), rel=1e-6)


@pytest.mark.parametrize("place", [0, 31, 32, 1500, 2049])
def test_extremes_are_found_anywhere(place: int) -> None:
    for value in (7.0, -7.0):
        x = np.linspace(-1, 1, 2050, dtype=np.float32)
        x[place] = value
        low, high, _, _ = of(x)  # type: ignore[misc]
        assert (low, high) == (min(x), max(x))


@pytest.mark.parametrize("place", [0, 40, 2047])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -3e38])
def test_what_float32_cannot_hold_is_left_to_others(place: int, value: float) -> None:
    x = np.ones(2050, np.float32)
    x[place] = value
    assert of(x) is None


def test_squares_that_lost_their_digits_are_left_to_others() -> None:
    assert of(np.full(5000, 1e-25, np.float32)) is None


def test_zeros_are_exact() -> None:
    assert of(np.zeros(5000, np.float32)) == (0.0, 0.0, 0.0, 0.0)


def test_rounding_does_not_grow_with_the_length() -> None:
    """A million equal elements: one float32 sum of squares would be off by 1e-4."""
    x = np.full(1_000_003, 1.1, np.float32)
    _, _, total, squares = of(x)  # type: ignore[misc]
    one = float(np.float32(1.1))
    assert total == pytest.approx(one * x.size, rel=1e-6)
    assert squares == pytest.approx(one * one * x.size, rel=1e-6)


@pytest.mark.parametrize("size", [1, 33, 1024, 5001])
def test_bfloat16_is_read_as_it_is(size: int) -> None:
    """Its numbers are those float32 numbers whose lower half is zero."""
    bits = np.random.default_rng(size).normal(0.5, 2, size).astype(np.float32).view(np.uint32) & 0xFFFF0000
    x, halves = bits.view(np.float32), (bits >> 16).astype(np.uint16)
    assert fused_reduce.one(halves.ctypes.data, size, "bfloat16") == of(x)


def test_many_at_once_are_as_one_by_one() -> None:
    arrays = [np.linspace(-i, 2, i * 700 + 1, dtype=np.float32) for i in range(1, 6)] + [np.full(3, np.nan, np.float32)]
    rows, sound = fused_reduce.each([x.ctypes.data for x in arrays], [x.size for x in arrays])
    assert sound.tolist() == [True] * 5 + [False]
    assert [tuple(row) for row in rows[:5].tolist()] == [of(x) for x in arrays[:5]]
