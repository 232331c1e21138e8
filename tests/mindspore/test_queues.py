"""Training with MindSpore's queues, as users have it; most other tests run each operator in the thread that calls it.

The tests of ``test_steps.py`` and the scripts of users have the queues too.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.mindspore.toys import Deep, X, ms, nn, one_step, rows_of, tensor, watch, weights
from tests.tables import Rows


def micro_batches(model: Any, optimizer: Any) -> None:
    """A step of two."""
    one_step(model, optimizer, 2)


def cell(model: Any, optimizer: Any) -> None:
    """A step of a cell that differentiates and updates."""
    nn.TrainOneStepCell(nn.WithLossCell(model, nn.MSELoss()), optimizer).set_train()(tensor(X), tensor([[1], [0]]))


def trained(step: Any, watched: bool = True) -> tuple[Rows, list[bytes]]:
    """Rows and weights of a run."""
    model = Deep()
    optimizer = nn.Adam(model.trainable_params(), 0.1)
    monitor = watch(model, optimizer) if watched else None
    for _ in range(3):
        step(model, optimizer)
    return rows_of(monitor) if monitor else {}, weights(model)


@pytest.mark.parametrize("step", [micro_batches, cell])
def test_rows_and_weights_are_those_of_a_run_without_queues(step: Any, request: pytest.FixtureRequest) -> None:
    """To the bit; and the weights are those of a run without a monitor."""
    assert ms.get_context("pynative_synchronize")
    expected = trained(step)
    request.getfixturevalue("queued")
    assert not ms.get_context("pynative_synchronize")
    assert trained(step) == expected
    assert trained(step, watched=False)[1] == expected[1]
    assert len(expected[0]) > 100
