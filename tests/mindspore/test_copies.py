"""A copy of a cell that is watched, as a teacher or an average of weights is."""

from __future__ import annotations

import copy

import numpy as np

from tests.mindspore.toys import TinyNet, TrainerMon, X, ms, tensor
from tests.tables import EVERY_SIGNAL, Rows, read


def train(with_copy: bool) -> Rows:
    """Two steps; in each, with a copy, that one goes forward and backward as well."""
    model = TinyNet()
    optimizer = ms.nn.Momentum(model.trainable_params(), 0.1, 0.5)
    step = ms.value_and_grad(lambda x: model(x).sum(), None, optimizer.parameters)
    with TrainerMon({**EVERY_SIGNAL, "ops": ["norm", "mean"]}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for _ in range(2):
            _, gradients = step(tensor(X))
            if with_copy:
                teacher = copy.deepcopy(model)
                learn = ms.value_and_grad(lambda x, of=teacher: of(x).sum(), None, teacher.trainable_params())
                assert np.isfinite(learn(tensor(3 * X))[0].asnumpy())
            optimizer(gradients)
    assert monitor.faults == {}
    return read(str(monitor.output_directory))


def test_a_copy_has_no_rows() -> None:
    """The rows are those of a training without it."""
    rows = train(with_copy=False)
    assert rows
    assert train(with_copy=True) == rows
