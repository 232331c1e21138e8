"""Tensors that cannot be read in host memory: their own rows are missing and named, all others are there."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from tests.required import require
from tests.tables import EVERY_SIGNAL, Rows, read

os.environ.setdefault("GLOG_v", "4")  # MindSpore logs its warnings to the terminal
ms = require("mindspore")

from probe.mindspore import TrainerMon  # noqa: E402 - only where MindSpore is

pytestmark = pytest.mark.skipif(not hasattr(ms, "float8_e5m2"), reason="MindSpore before 2.10 has none of these dtypes")


class Odd(ms.nn.Cell):  # type: ignore[misc, name-defined]
    """Hands out tensors beside what it computes."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__()
        self.fc = ms.nn.Dense(3, 3)
        self.values = values

    def construct(self, x: Any) -> Any:
        return self.fc(x), *self.values


class Model(ms.nn.Cell):  # type: ignore[misc, name-defined]
    """Computes with the first of what the inner cell hands out."""

    def __init__(self, odd: Odd) -> None:
        super().__init__()
        self.odd = odd

    def construct(self, x: Any) -> Any:
        return self.odd(x)[0]


def trained(values: list[Any]) -> tuple[dict[str, int], Rows]:
    """Faults and rows of two steps of a model that hands out ``values``."""
    model = Model(Odd(values))
    trained = ms.ParameterTuple([*model.odd.fc.get_parameters()])
    optimizer = ms.nn.Momentum(trained, 0.1, 0.9)
    differentiated = ms.value_and_grad(lambda x: model(x).sum(), None, trained)
    with TrainerMon(EVERY_SIGNAL | {"ops": ["norm"]}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for _ in range(2):
            _, gradients = differentiated(ms.Tensor(np.ones((2, 3), np.float32)))
            optimizer(gradients)
    return monitor.faults, read(monitor.output_directory)


def test_only_the_row_of_what_cannot_be_read_is_missing() -> None:
    """NumPy has no float8: each such tensor has its name in the faults, once a step, and nothing else is missing."""
    odd = [
        ms.Tensor(np.ones(size, np.uint8), dtype)
        for dtype in (ms.float8_e4m3fn, ms.float8_e5m2, ms.hifloat8)
        for size in ((2, 4), (100, 100))
    ]
    readable = [
        ms.Tensor(np.ones((2, 2), np.float32)).astype(dtype)
        for dtype in (ms.bfloat16, ms.complex64, ms.bool_, ms.uint64)
    ]
    faults, rows = trained([*odd, *readable])
    assert faults == {f"actv of odd.output_{i + 1}: TypeError": 2 for i in range(len(odd))}
    norms = {row.name: values["norm"] for row, values in rows.items() if row.step == 1}
    for i in range(len(odd), len(odd) + len(readable)):
        assert norms[f"odd.output_{i + 1}"] == 2.0
    assert {row for row in trained([])[1] if not row.name.startswith("odd.output")} <= set(rows)
