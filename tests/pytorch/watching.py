"""Attaching a monitor in a test, and reading back what it wrote."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.required import require

torch = require("torch")

from probe.pytorch import TrainerMon  # noqa: E402 - only where torch is
from tests.tables import EVERY_SIGNAL, OPS, Row, Rows, read  # noqa: E402

__all__ = ["EVERYTHING", "OPS", "Row", "Rows", "assert_rows", "numbers", "read", "rows_of", "watch", "weights_only"]

EVERYTHING: dict[str, Any] = {
    **EVERY_SIGNAL,
    "ops": OPS,
    "ndigits": 20,
}


def watch(model: Any, optimizer: Any, grad_acc_steps: int = 1, **settings: Any) -> TrainerMon:
    """A monitor attached to ``model``; all signals are on unless ``settings`` has others."""
    monitor = TrainerMon({**EVERYTHING, **settings}, params_have_main_grad=False)
    monitor.set_monitor(model, grad_acc_steps, optimizer)
    return monitor


def weights_only(**settings: Any) -> dict[str, Any]:
    """Settings without activations."""
    return {"xy_distribution": False, **settings}


def rows_of(monitor: TrainerMon) -> Rows:
    """Everything a monitor wrote, after stopping it; a row that came twice fails, and so does any fault."""
    monitor.stop()
    assert monitor.faults == {}
    return read(monitor.output_directory)


def numbers(tensor: Any) -> dict[str, float]:
    """Ops by their definitions, by NumPy in float64."""
    values = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    x = values.double().numpy()
    with np.errstate(all="ignore"):
        return {
            "min": float(x.min()),
            "max": float(x.max()),
            "mean": float(x.mean()),
            "norm": float(np.sqrt(np.square(x).sum())),
            "nans": float(np.isnan(x).sum()),
            "infs": float(np.isinf(x).sum()),
        }


def assert_rows(rows: Rows, expected: dict[Row, Any], signals: tuple[str, ...], relative: float = 1e-4) -> None:
    """Of ``signals`` there are exactly the ``expected`` rows, with the numbers of the expected tensors."""
    found = {row for row in rows if row.signal in signals}
    wanted = {row for row in expected if row.signal in signals}
    assert found == wanted, f"missing {sorted(wanted - found)[:6]}, too many {sorted(found - wanted)[:6]}"
    for row in wanted:
        for op, value in numbers(expected[row]).items():
            scale = max(abs(value), numbers(expected[row])["norm"] * 0.01) if np.isfinite(value) else 1.0
            got = rows[row][op]
            same = (np.isnan(got) and np.isnan(value)) or got == value or abs(got - value) <= relative * scale + 1e-7
            assert same, f"{row} {op}: {got}, expected {value}"
