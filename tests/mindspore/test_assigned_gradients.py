"""``grad_reduced`` is what the optimizer is given, by whichever way it was computed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.mindspore.toys import TinyNet, X, tensor
from tests.required import require
from tests.tables import read

ms = require("mindspore")

from probe.mindspore import TrainerMon  # noqa: E402 - only where MindSpore is


def test_gradients_that_no_backward_gave() -> None:
    """Made by hand, or those of an earlier step again: the row has their numbers; there is no unreduced gradient."""
    model = TinyNet()
    parameters = ms.ParameterTuple(model.trainable_params())
    optimizer = ms.nn.SGD(parameters, 0.25)
    with TrainerMon({"wg_distribution": True, "ops": ["max", "norm"]}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        _, computed = ms.value_and_grad(lambda x: model(x).sum(), None, parameters)(tensor(X))
        optimizer(computed)
        optimizer(computed)
        optimizer(tuple(ms.Tensor(np.full(parameter.shape, 7, np.float32)) for parameter in parameters))
    assert monitor.faults == {}
    rows = read(monitor.output_directory)
    norms = {(row.step, row.name): values["norm"] for row, values in rows.items() if row.signal == "grad_reduced"}
    for parameter, gradient in zip(parameters, computed, strict=True):
        norm = np.linalg.norm(gradient.asnumpy())
        found = [norms[step, parameter.name] for step in range(3)]
        assert found == pytest.approx([norm, norm, 7 * parameter.size**0.5], rel=1e-5)
    assert {row.step for row in rows if row.signal == "grad_unreduced"} == {0}
