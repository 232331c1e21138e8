"""Lightning's Trainer: a callback attaches the monitor, and everything is as in a loop of one's own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from tests.distributed.ranks import Ranks
from tests.pytorch.watching import assert_rows
from tests.required import require, require_installed

require("torch")
require_installed("lightning")

SIGNALS = ("grad_unreduced", "grad_reduced", "param_origin", "param_updated")


def watched(optimizer: str, each: bool) -> Any:
    """What a training leaves; only the ranks import Lightning."""
    return import_module("tests.distributed.lightning_loop").watched(optimizer, each)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("optimizer", ["raw", "wrapped"])
def test_data_parallel_training_with_accumulation(two_ranks: Ranks, optimizer: str, each: bool) -> None:
    """Lightning divides the loss by the number of micro batches."""
    for rows, wanted, same in two_ranks.run(watched, optimizer, each):
        assert same, "losses or weights differ from those without a monitor"
        assert_rows(rows, wanted, SIGNALS, relative=1e-4)
        assert {row.micro_step for row in rows if row.signal == "actv"} == {0, 1}
