"""``AnomalyExtreme``: one element of an activation that outgrows all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from probe.core.records import Key
from probe.core.rules.extreme import AnomalyExtreme, ExtremeArgs
from tests.core.rules.rule_batches import OPS, batch_of

OUT = Key("down", "output")
Tensor = np.ndarray[Any, np.dtype[np.float64]]


def peaks(tensors: Iterable[Tensor], ops: tuple[str, ...] = OPS, signal: str = "actv", **args: Any) -> list[Any]:
    """Findings in these tensors, one a step."""
    rule = AnomalyExtreme(ExtremeArgs(**args), 0, ops)
    return [f for n, x in enumerate(tensors) for f in rule.judge(batch_of({OUT: x}, n, ops, signal))]


def normal(step: int, size: int = 4096) -> Tensor:
    """Normal noise, of another scale in each step."""
    return np.random.default_rng([step, 3]).normal(size=size) * 1.3 ** (step % 7)


def with_peak(value: float, at: Callable[[int], bool]) -> list[Tensor]:
    """Sixty tensors, with one element of this size, in standard deviations, in some steps."""
    tensors = [normal(step) for step in range(60)]
    for step in filter(at, range(60)):
        tensors[step][777] = value * tensors[step].std()
    return tensors


@pytest.mark.parametrize(("value", "op"), [(30.0, "max"), (-30.0, "min")])
def test_element_that_is_wrong_is_reported(value: float, op: str) -> None:
    """With its value and the largest that is usual; the norm hardly shows it."""
    (finding,) = peaks(with_peak(value, lambda step: step == 40))
    assert (finding.step, finding.op, finding.key) == (40, op, OUT)
    assert finding.value == pytest.approx(value * normal(40).std(), rel=0.02)
    assert 3 < abs(finding.expected) / normal(40).std() < 6
    assert np.sign(finding.expected) == np.sign(value)


def test_peaks_that_come_again_are_no_history() -> None:
    """Each is compared with sound samples; after a report ten samples are silent."""
    found = peaks(with_peak(50.0, lambda step: step >= 30 and step % 5 == 0))
    assert [finding.step for finding in found] == [30, 45]


def test_peak_that_stays_is_a_new_level() -> None:
    """Ten samples in a row begin the history anew."""
    found = peaks(with_peak(50.0, lambda step: step >= 20))
    assert [finding.step for finding in found] == [20]


def test_what_few_elements_make_up_is_not_judged() -> None:
    """One-hot codes, outputs that are mostly zero, small tensors, and samples before the warm-up."""
    sparse = [np.eye(4096)[step] * (step + 1) for step in range(60)]
    mostly_zero = [np.where(np.arange(4096) < 4, normal(step), 0.0) for step in range(60)]
    small = [np.where(np.arange(32) == step, 50.0, normal(step, 32)) for step in range(60)]
    assert peaks(sparse) + peaks(mostly_zero) + peaks(small) == []
    assert peaks(with_peak(50.0, lambda step: step == 12)) == []


def test_other_signals_and_missing_ops_are_left_alone() -> None:
    """Gradients have longer tails, and without extremes there is nothing to judge."""
    tensors = with_peak(50.0, lambda step: step == 40)
    assert peaks(tensors, signal="actv_grad") == []
    assert peaks(tensors, ("norm",)) == []


def test_scale_is_no_peak() -> None:
    """A loss that explodes scales all elements alike."""
    assert peaks(normal(step) * 10.0 ** (step - 30 if step > 30 else 0) for step in range(60)) == []
