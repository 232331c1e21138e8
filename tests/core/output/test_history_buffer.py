"""Steps held back until something is found: what comes out is what went in, in order."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from probe.core.output.history_buffer import HistoryBuffer
from probe.core.records import Batch, Coverage, Key, Snapshot
from tests.core.output.sink_data import batch, finding, snapshot

VALUES = [1.0, -2.5, np.nan, np.inf, 1e-300]


def a_step(step: int, bad: bool = False) -> Snapshot:
    batches = (
        batch("grad_reduced", step, {"min": [*VALUES, step], "max": [*VALUES, -step]}),
        batch("exp_avg", step, {"min": [step, 2.0]}, coverage=(None, Coverage((6,), "0:6", (0, 1)))),
    )
    return snapshot(step, *batches, findings=(finding(step),) if bad else (), cost={"hooks": step * 0.5})


def steps_written(past: HistoryBuffer, *bad: int, steps: int = 12) -> list[int]:
    return [out.step for step in range(steps) for out in past.admit(a_step(step, step in bad))]


def test_a_healthy_run_writes_nothing() -> None:
    past = HistoryBuffer(3)
    assert steps_written(past) == []
    past.forget()
    assert past.unwritten == 12


@pytest.mark.parametrize(
    ("bad", "written"),
    [
        ((6,), [3, 4, 5, 6, 7, 8, 9]),
        ((0,), [0, 1, 2, 3]),
        ((5, 7), [2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ((2, 11), [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]),
        (tuple(range(12)), list(range(12))),
    ],
)
def test_an_incident_is_written_with_what_was_before_and_after(bad: tuple[int, ...], written: list[int]) -> None:
    """Three steps before, the step, three after; each step once, in order."""
    assert steps_written(HistoryBuffer(3), *bad) == written


def test_what_was_held_is_what_it_was() -> None:
    """To the last bit, with all that the files say of it."""
    past = HistoryBuffer(5)
    for step in range(3):
        assert not [*past.admit(a_step(step))]
    for step, out in enumerate(past.release()):
        wanted = a_step(step)
        assert (out.step, out.time, out.ops, out.cost) == (wanted.step, wanted.time, wanted.ops, wanted.cost)
        for got, want in zip(out.batches, wanted.batches, strict=True):
            assert (got.signal, got.keys, got.shapes, got.dtypes, got.coverage) == (
                want.signal,
                want.keys,
                want.shapes,
                want.dtypes,
                want.coverage,
            )
            assert {name: column.tobytes() for name, column in got.columns.items()} == {
                name: column.tobytes() for name, column in want.columns.items()
            }
    assert not [*past.release()]


def test_memory_is_bounded() -> None:
    """The oldest steps give way, and are counted; the latest is held whatever its size."""
    rng = np.random.default_rng(0)

    def large(step: int) -> Snapshot:
        return snapshot(step, batch("exp_avg", step, {"min": list(rng.normal(size=1000))}))

    past = HistoryBuffer(100, most_bytes=20_000)
    for step in range(10):
        assert not [*past.admit(large(step))]
    held = [out.step for out in past.release()]
    assert held == [8, 9]
    assert past.unwritten == 8
    tiny = HistoryBuffer(100, most_bytes=1)
    assert not [*tiny.admit(large(0))]
    assert [out.step for out in tiny.release()] == [0]


@pytest.mark.slow
@pytest.mark.parametrize("other", ["order", "shapes", "keys"])
def test_what_is_not_a_number_counts_too(other: str) -> None:
    """Activations whose sizes change from step to step, or thousands of rows in another order: what is held takes no
    more than it may."""
    rows, most = 2000, 2_000_000

    def large(step: int) -> Snapshot:
        names = [f"layers.{row}.{step if other == 'keys' else 0}" for row in range(rows)]
        return snapshot(
            step,
            Batch(
                signal="actv",
                step=step,
                keys=tuple(map(Key, names)),
                shapes=tuple((row, step if other == "shapes" else 0) for row in range(rows)),
                dtypes=("float32",) * rows,
                order=np.arange(rows) + (step if other == "order" else 0),
                columns={"min": np.full(rows, float(step))},
            ),
        )

    past = HistoryBuffer(10_000, most_bytes=most)
    tracemalloc.start()
    try:
        for step in range(80):
            assert not [*past.admit(large(step))]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1.5 * most
    held = [*past.release()]
    assert [out.step for out in held] == list(range(past.unwritten, 80))
    assert len(held) > 2
    for out in held:
        (batch,), (wanted,) = out.batches, large(out.step).batches
        assert (batch.keys, batch.shapes, batch.order.tolist()) == (wanted.keys, wanted.shapes, wanted.order.tolist())
        assert batch.columns["min"].tolist() == wanted.columns["min"].tolist()
