"""Processes for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Ranks
from tests.required import require


def _ranks(size: int) -> Iterator[Ranks]:
    require("torch")
    ranks = Ranks(size)
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    """Two processes on gloo."""
    yield from _ranks(2)


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    """Four processes on gloo."""
    yield from _ranks(4)
