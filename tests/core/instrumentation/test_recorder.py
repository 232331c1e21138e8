"""A step's readings: what is reduced when, and what comes back. The framework is NumPy, in as few lines as it takes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pytest

from probe.core.faults import Faults
from probe.core.instrumentation.recorder import Recorder
from probe.core.moments import columns_for
from probe.core.records import Batch, Key


class Array:
    """A tensor: values that can be changed in place, and a version that counts the changes."""

    def __init__(self, *values: float, address: int | None = None) -> None:
        self.values, self.version = np.array(values, dtype=np.float64), 0
        self.address = id(self) if address is None else address

    def fill(self, value: float) -> None:
        self.values.fill(value)
        self.version += 1


class NumPy:
    """The contract of a framework's tensors, and a record of what was asked of it."""

    def __init__(self, held_elements: int = 0) -> None:
        self._held_elements = held_elements
        self.reduced: list[int] = []
        """Number of tensors of each reduction."""
        self.copies = 0
        """Number of copies of blocks to the host."""

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, Array)

    def host_place(self, tensor: Array) -> None:
        return None

    def describe(self, tensor: Array) -> tuple[tuple[int, ...], object, None]:
        return tensor.values.shape, tensor.values.dtype, None

    def identity(self, tensor: Array) -> tuple[Hashable, Callable[[], object]]:
        return (tensor.address, tensor.version), weakref.ref(tensor)

    def hold(self, tensor: Array) -> Array | None:
        return Array(*tensor.values) if len(tensor.values) <= self._held_elements else None

    def moments(self, tensors: Sequence[Array], columns: Sequence[str], eps: float, scale: Array | None) -> Any:
        self.reduced.append(len(tensors))
        assert all(len(tensor.values) for tensor in tensors), "empty tensors are answered in core"
        limit = eps if scale is None else eps * float(scale.values[0])
        return [[_moment(name, tensor.values, limit) for name in columns] for tensor in tensors]

    def to_host(self, blocks: Sequence[Any]) -> Callable[[], np.ndarray]:
        self.copies += 1
        return lambda: np.array([row for block in blocks for row in block])


def _moment(name: str, x: np.ndarray, eps: float) -> float:
    by_name = {"min": x.min(), "max": x.max(), "sum": x.sum(), "sumsq": np.sum(x * x), "m2": x.var() * len(x)}
    counts = {"nans": np.isnan(x).sum(), "infs": np.isinf(x).sum(), "below": np.sum(np.abs(x) < eps)}
    return float((by_name | counts)[name])


OPS = ("min", "max", "mean", "norm", "std", "zeros")


@pytest.fixture(params=[0, 100], ids=["reduced at once", "held"])
def tensors(request: pytest.FixtureRequest) -> NumPy:
    """A framework whose tensors are reduced at once, or held as copies until the end of the step."""
    return NumPy(held_elements=request.param)


def recorder_of(tensors: NumPy, ops: Sequence[str] = OPS, eps: float = 1e-8) -> Recorder:
    return Recorder(tensors, columns_for(ops), eps, Faults().note)


def drained(recorder: Recorder) -> dict[str, Batch]:
    return {batch.signal: batch for batch in recorder.drain().batches(step=4)}


def column(batch: Batch, op: str) -> dict[str, float]:
    return {key.name: float(value) for key, value in zip(batch.keys, batch.op(op), strict=True)}


def test_rows_come_back_as_recorded(tensors: NumPy) -> None:
    """Every signal has one batch with its keys, shapes, dtypes, call ids and numbers, in the order of recording."""
    recorder = recorder_of(tensors)
    recorder.record("actv", Key("a", "input"), Array(1, 2, 3), micro_stepped=True)
    recorder.record("grad", Key("w"), Array(4, -4))
    recorder.record("actv", Key("b", "output", 1), Array(5), micro_stepped=True)
    assert len(recorder) == 3
    batches = drained(recorder)
    assert list(batches) == ["actv", "grad"]
    actv, grad = batches.values()
    assert actv.keys == (Key("a", "input"), Key("b", "output", 1))
    assert (actv.shapes, actv.dtypes, actv.order.tolist()) == (((3,), (1,)), ("float64", "float64"), [0, 2])
    assert (actv.step, actv.micro_stepped, grad.micro_stepped) == (4, True, False)
    assert actv.op("max").tolist() == [3, 5]
    assert grad.op("norm") == pytest.approx([np.sqrt(32)])
    assert (grad.op("mean").tolist(), grad.op("std").tolist()) == ([0], [4])


def test_values_are_those_of_the_moment(tensors: NumPy) -> None:
    """Later changes of a recorded tensor have no effect."""
    recorder, tensor = recorder_of(tensors), Array(1, 2)
    recorder.record("grad", Key("w"), tensor)
    tensor.fill(9)
    assert column(drained(recorder)["grad"], "max") == {"w": 2}


def test_small_tensors_are_reduced_together() -> None:
    """Held tensors cost one reduction a step, and everything one copy to the host."""
    tensors = NumPy(held_elements=2)
    recorder = recorder_of(tensors)
    for number in range(5):
        recorder.record("grad", Key(f"small{number}"), Array(number))
        recorder.record("actv", Key(f"large{number}"), Array(*range(number + 5)))
    batches = drained(recorder)
    assert tensors.reduced == [1] * 5 + [5]
    assert tensors.copies == 1
    assert column(batches["grad"], "max") == {f"small{number}": number for number in range(5)}
    assert column(batches["actv"], "max") == {f"large{number}": number + 4 for number in range(5)}


def test_lists_are_reduced_together(tensors: NumPy) -> None:
    """Parameters cost one reduction, whatever their number; empty ones are among them and need no reduction."""
    recorder = recorder_of(tensors, ["max", "norm"])
    arrays = [Array(1, 7), Array(), Array(3), Array()]
    recorder.record_all("param", [Key(name) for name in "abcd"], arrays)
    recorder.record_all("state", [Key("e")], [Array()])
    recorder.record_all("nothing", [], [])
    batches = drained(recorder)
    assert tensors.reduced == [2]
    assert set(batches) == {"param", "state"}
    assert column(batches["param"], "max") == pytest.approx({"a": 7, "b": np.nan, "c": 3, "d": np.nan}, nan_ok=True)
    assert column(batches["param"], "norm")["b"] == column(batches["state"], "norm")["e"] == 0
    assert batches["param"].order.tolist() == [0, 1, 2, 3]


def test_an_empty_tensor_alone(tensors: NumPy) -> None:
    """A step in which nothing had elements asks the framework for nothing."""
    recorder = recorder_of(tensors)
    recorder.record("actv", Key("a", "input"), Array())
    (batch,) = drained(recorder).values()
    assert batch.op("norm").tolist() == [0]
    assert np.isnan(batch.op("max")).all()
    assert tensors.reduced == []


def test_one_object_at_one_version_is_reduced_once(tensors: NumPy) -> None:
    """The output of one module that is the input of the next costs one reduction; a changed one costs another."""
    recorder, tensor = recorder_of(tensors), Array(1, 2)
    recorder.record("actv", Key("a", "output"), tensor, shared=True)
    recorder.record("actv", Key("b", "input"), tensor, shared=True)
    tensor.fill(9)
    recorder.record("actv", Key("b", "output"), tensor, shared=True)
    (batch,) = drained(recorder).values()
    assert sum(tensors.reduced) == 2
    assert batch.op("max").tolist() == [2, 2, 9]


def test_an_identity_given_again_is_another_tensor(tensors: NumPy) -> None:
    """When a tensor is gone, a new one in its place is not taken for it."""
    recorder = recorder_of(tensors, ["max"])
    for number in range(3):
        recorder.record("actv", Key(f"{number}"), Array(number, address=1), shared=True)  # and is gone
    (batch,) = drained(recorder).values()
    assert batch.op("max").tolist() == [0, 1, 2]


def test_sharing_lasts_past_a_look(tensors: NumPy) -> None:
    """Asking for values in the middle of a step does not lose which tensors were seen."""
    recorder, tensor = recorder_of(tensors), Array(1, 2)
    recorder.record("actv", Key("a"), tensor, shared=True)
    recorder.peek(["actv"])
    recorder.record("actv", Key("b"), tensor, shared=True)
    assert drained(recorder)["actv"].op("max").tolist() == [2, 2]
    assert sum(tensors.reduced) == 1


def test_a_key_that_comes_again_replaces_its_row(tensors: NumPy) -> None:
    """The running sum of a gradient keeps its place and has its last value."""
    recorder = recorder_of(tensors)
    for value in (1.0, 2.0):
        recorder.record("grad", Key("v"), Array(value))
        recorder.record("grad", Key("w"), Array(10 * value, 0))
    (batch,) = drained(recorder).values()
    assert column(batch, "max") == {"v": 2, "w": 20}
    assert batch.order.tolist() == [2, 3]


def test_repetitions_get_the_next_call(tensors: NumPy) -> None:
    """Repeated calls of a module in a micro step are numbered, in each signal separately."""
    recorder, key = recorder_of(tensors), Key("a", "input")
    for call in range(3):
        assert recorder.next_call("actv", key) == key._replace(call=call)
        recorder.record("actv", recorder.next_call("actv", key), Array(call))
    assert recorder.next_call("actv_grad", key) == key
    assert recorder.next_call("actv", key._replace(micro_step=1)).call == 0


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "as a list"])
def test_a_loss_scale_is_divided_out(tensors: NumPy, op: str, together: bool) -> None:
    """Whichever op is asked for alone, gradients that carry a factor read as without it; other signals stay."""
    recorder = recorder_of(tensors, [op], eps=0.5)
    true, scale = np.array([3.0, -4.0, 0.25]), Array(1024.0)
    carried = Array(*(true * 1024))
    if together:
        recorder.record_all("grad", [Key("w")], [carried], scale=scale)
    else:
        recorder.record("grad", Key("w"), carried, scale=scale)
    recorder.record("actv", Key("a"), Array(*true))
    batches = drained(recorder)
    assert batches["grad"].op(op).tolist() == pytest.approx(batches["actv"].op(op).tolist())


def test_looking_does_not_disturb(tensors: NumPy) -> None:
    """Readings so far can be read at any time; the step goes on being collected."""
    recorder = recorder_of(tensors)
    recorder.record("actv", Key("a"), Array(1))
    recorder.record("grad", Key("v"), Array(2), scale=Array(2.0))
    recorder.record("actv", Key("b"), Array(5, 6, 7))
    for _ in range(2):
        (seen,) = recorder.peek(["grad"]).batches(4)
        assert (seen.signal, seen.op("max").tolist()) == ("grad", [1])
    recorder.record("grad", Key("w"), Array(8), scale=Array(2.0))
    batches = drained(recorder)
    assert column(batches["grad"], "max") == {"v": 1, "w": 4}
    assert column(batches["actv"], "max") == {"a": 1, "b": 7}


def test_a_drained_recorder_begins_anew(tensors: NumPy) -> None:
    """Nothing of one step is in the next, and what was handed over stays as it was."""
    recorder = recorder_of(tensors)
    recorder.record("grad", Key("w"), Array(1))
    pending = recorder.drain()
    assert len(recorder) == 0
    recorder.record("grad", Key("w"), Array(2))
    recorder.record("grad", Key("x"), Array(3))
    assert column(pending.batches(0)[0], "max") == {"w": 1}
    assert column(drained(recorder)["grad"], "max") == {"w": 2, "x": 3}
    assert drained(recorder) == {}


def test_pending_values_can_be_read_twice(tensors: NumPy) -> None:
    """The program and the delivery thread may both ask for the step that ended last."""
    recorder = recorder_of(tensors)
    recorder.record("grad", Key("w"), Array(1, 5))
    pending = recorder.drain()
    assert [column(pending.batches(0)[0], "max") for _ in range(2)] == [{"w": 5}] * 2


def test_every_row_has_its_own_scale(tensors: NumPy) -> None:
    """Of two scaled losses in one step each gradient is divided by its own factor, and an unscaled one by none."""
    recorder = recorder_of(tensors)
    recorder.record("grad", Key("a"), Array(2048), scale=Array(1024.0))
    recorder.record("grad", Key("b"), Array(6), scale=Array(2.0))
    recorder.record("grad", Key("c"), Array(5))
    assert column(drained(recorder)["grad"], "max") == {"a": 2, "b": 3, "c": 5}
