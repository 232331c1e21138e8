"""Shapes before and after a view: which views exchange axes."""

from __future__ import annotations

import pytest

from probe.core.checks.loss_calls import exchanges

EXCHANGED = {
    "heads split": ((8, 32, 48), (8, 4, 32, 12)),
    "heads split, with the batch": ((5, 32, 48), (20, 32, 12)),
    "heads merged": ((8, 4, 32, 12), (8, 32, 48)),
    "batch and time": ((16, 24, 32), (24, 16, 32)),
    "layers of a state merged": ((2, 5, 7), (5, 14)),
    "tokens as an image": ((2, 36, 32), (2, 32, 6, 6)),
}
REGULAR = {
    "batch and heads merged": ((10, 4, 8), (10, 8, 4)),
    "patches": ((4, 8, 16, 16), (4, 2, 4, 8, 2, 8, 2)),
    "patches merged": ((256, 4, 2, 2), (4, 16, 16, 4)),
    "groups of channels": ((8, 32, 9), (32, 72)),
    "flat": ((4, 9, 48), (36, 48)),
    "ones": ((1, 9, 48), (9, 1, 48)),
    "pairs of tokens": ((4, 8, 6), (4, 4, 12)),
    "unknown": ((0,), (4, 8)),
}


@pytest.mark.parametrize("name", EXCHANGED)
def test_a_view_that_moves_an_axis_is_known(name: str) -> None:
    """By a size that is elsewhere afterwards."""
    assert exchanges(*EXCHANGED[name])


@pytest.mark.parametrize("name", REGULAR)
def test_a_view_that_splits_and_merges_is_none(name: str) -> None:
    """Also where two sizes are the same by chance."""
    assert not exchanges(*REGULAR[name])
