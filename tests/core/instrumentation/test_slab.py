"""Rows that the compiled pass writes where they stay, and the short path of the recorder to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from probe.core.backend.fused_reduce import FLOAT32, LEAST, FixedArrays, Slab
from probe.core.faults import Faults
from probe.core.histogram import BINS, HISTOGRAM
from probe.core.instrumentation.recorder import Recorder
from probe.core.moments import columns_for
from probe.core.records import Key
from tests.core.instrumentation.test_recorder import Array, NumPy
from tests.required import require_compiled

require_compiled()

COLUMNS = ("min", "max", "sum", "nans")


def arrays(number: int) -> list[Any]:
    return [np.arange(i, 2 * i + 1, dtype=np.float32) for i in range(1, number + 1)]


def expected(number: int) -> list[list[float]]:
    return [[x.min(), x.max(), x.sum(), 0.0] for x in arrays(number)]


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_rows_stay_where_they_are_while_memory_grows(together: bool) -> None:
    """Their numbers count on through all blocks, in this step and the next, which has other rows."""
    slab = Slab(COLUMNS, 0.0)
    for number in (3 * LEAST, 2, 5 * LEAST):
        slab.clear()
        some = arrays(number)
        if together:
            places = slab.read_each([x.ctypes.data for x in some], [x.size for x in some], [FLOAT32] * number)
        else:
            places = [slab.read(x.ctypes.data, x.size, FLOAT32) for x in some]
        assert slab.rows()[[*places]].tolist() == expected(number)


def test_an_invalid_row_is_none_and_harms_no_other() -> None:
    slab, bad = Slab(COLUMNS, 0.0), np.full(64, 1e30, np.float32)
    (one, other) = arrays(2)
    places = [slab.read(x.ctypes.data, x.size, FLOAT32) for x in (one, bad, other)]
    assert places[1] is None
    assert slab.rows()[[places[0], places[2]]].tolist() == expected(2)
    assert slab.read_each([x.ctypes.data for x in (bad, one)], [64, one.size], [FLOAT32] * 2) == [None, 4]


def test_histograms_are_left_to_others() -> None:
    """There are no rows, of the width of the others."""
    slab = Slab(("min", HISTOGRAM), 0.0)
    assert not slab.writes
    assert slab.rows().shape == (0, 1 + BINS)


class Plain(NumPy):
    """A framework with tensors that the compiled pass reads where they are: those of three elements."""

    def host_place(self, tensor: Array) -> Any:
        if len(tensor.values) != 3:
            return None
        if tensor.values[0] == 13:
            raise RuntimeError("no place")
        self.kept = np.array(tensor.values, np.float32) if not hasattr(self, "kept") else self.kept
        self.kept[:] = tensor.values
        return self.kept.ctypes.data, 3, FLOAT32, ((3,), "float32", None)


def recorded(tensors: NumPy, ops: Sequence[str] = ("max", "zeros")) -> Recorder:
    return Recorder(tensors, columns_for(ops), 0.5, Faults().note)


def test_both_paths_meet_in_one_batch() -> None:
    """Plain tensors are read at once, others and those that are not valid as ever; rows come in the order recorded."""
    tensors = Plain(held_elements=2)
    recorder = recorded(tensors)
    three, two = Array(0.25, 2, 7), Array(4, 5)
    for number, tensor in enumerate((three, two, Array(1, np.inf, 3), Array(13, 1, 1), three, Array())):
        recorder.record("grad", Key(f"{number}"), tensor, shared=True)
    recorder.record("grad", Key("scaled"), three, scale=Array(2.0))
    (batch,) = recorder.drain().batches(0)
    assert [key.name for key in batch.keys] == ["0", "1", "2", "3", "4", "5", "scaled"]
    assert batch.op("max").tolist() == pytest.approx([7, 5, np.inf, 13, 7, np.nan, 3.5], nan_ok=True)
    assert batch.op("zeros").tolist()[-1] == pytest.approx(1 / 3)
    assert batch.order.tolist() == [*range(7)]


def test_a_list_is_read_in_one_call_but_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    write = FixedArrays.write
    monkeypatch.setattr(FixedArrays, "write", lambda self, to: (calls.append(len(self.addresses)), write(self, to))[1])
    arrays = [np.full(3, n, np.float32) for n in range(4)]

    class InPlace(NumPy):
        def host_place(self, tensor: Any) -> Any:
            here = arrays[int(tensor.values[0])] if len(tensor.values) == 3 else None
            return None if here is None else (here.ctypes.data, 3, FLOAT32, ((3,), "float32", None))

    recorder = recorded(InPlace(), ("max",))
    given = [Array(0, 0, 0), Array(9), Array(2, 2, 2), Array(3, 3, 3)]
    recorder.record_all("param", [Key(name) for name in "abcd"], given)
    (batch,) = recorder.drain().batches(0)
    assert batch.op("max").tolist() == [0, 9, 2, 3]
    assert calls == [3]
