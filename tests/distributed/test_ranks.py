"""The processes that the other tests of this folder run in."""

from __future__ import annotations

import os

import pytest

from tests.distributed.ranks import Ranks


def total(number: int) -> int:
    """Of ``number`` and the rank, over all ranks."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor(number + dist.get_rank())
    dist.all_reduce(tensor)
    return int(tensor)


def fail_on(rank: int) -> None:
    """Raises on one rank while the others wait for it."""
    if int(os.environ["RANK"]) == rank:
        raise RuntimeError("no more")
    total(0)


def die_on(rank: int) -> int:
    """One rank is gone."""
    if int(os.environ["RANK"]) == rank:
        os._exit(3)
    return rank


def test_every_rank_answers(two_ranks: Ranks) -> None:
    assert two_ranks.run(total, 5) == [11, 11]


def test_a_rank_that_raises_is_named_and_the_next_call_works(two_ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"rank 1: (.*\n)*RuntimeError: no more"):
        two_ranks.run(fail_on, 1, grace=0.5)
    assert two_ranks.run(total, 1) == [3, 3]


def test_a_rank_that_dies_is_told(two_ranks: Ranks) -> None:
    assert two_ranks.outcomes(die_on, 1) == [("returned", 1), ("died", 3)]
    assert two_ranks.run(total, 0) == [1, 1]
