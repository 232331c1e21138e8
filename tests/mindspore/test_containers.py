"""Which cells construct anything."""

from __future__ import annotations

from typing import Any

import pytest

from tests.required import require

require("mindspore")

from mindspore import nn  # noqa: E402

from probe.mindspore.hooks import runs  # noqa: E402


class Called(nn.CellList):
    """A list that is called."""

    def construct(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("cell", "has"),
    [
        (nn.CellList([nn.ReLU()]), False),
        (nn.CellDict({"a": nn.ReLU()}), False),
        (nn.Cell(), False),
        (nn.SequentialCell([nn.ReLU()]), True),
        (nn.Dense(1, 1), True),
        (Called([nn.ReLU()]), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_container_constructs_nothing(cell: nn.Cell, has: bool) -> None:
    """Unless its class says how."""
    assert runs(cell) is has
