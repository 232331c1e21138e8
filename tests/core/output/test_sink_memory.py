"""Memory of the sinks over many steps, as the C library counts what is in use (tracemalloc sees only Python's)."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import numpy as np
import pytest

from probe.core.output.sinks import SINKS
from tests.core.output.sink_data import batch, context, snapshot
from tests.required import require

ROWS = 200
MOST_BYTES_A_STEP = 300
"""A page of what a step writes is 4096 bytes; names and numbers of a step are more than a kilobyte."""


class _Counts(ctypes.Structure):
    """Result of ``mallinfo2`` of glibc 2.33."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")]
    _fields_ += [(name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33"),
]


@pytest.fixture(autouse=True, scope="module")
def _earlier_objects() -> None:
    """Those of other tests in this process are left out of collections, which else take seconds."""
    gc.collect()
    gc.freeze()


def in_use() -> int:
    """Bytes that are allocated and not freed, in this process."""
    gc.collect()
    count = ctypes.CDLL(None).mallinfo2
    count.restype = _Counts
    counts = count()
    return int(counts.uordblks + counts.hblkhd)


def growth(name: str, root: Path, before: int, steps: int) -> float:
    """Bytes a step that the sink ``name`` keeps, after ``before`` steps: of twice ``steps`` steps those with fewer,
    since threads of other tests may allocate meanwhile."""
    sink = SINKS[name](context(root))
    sink.open()
    values = np.random.default_rng(0).standard_normal((2, ROWS)).tolist()
    measured = []
    for step in range(before + 2 * steps + 1):
        if step in (before, before + steps, before + 2 * steps):
            measured.append(in_use())
        sink.write(snapshot(step, batch("actv", step, {"min": values[0], "max": values[1]})))
    sink.close()
    return min(measured[1] - measured[0], measured[2] - measured[1]) / steps


def test_a_database_is_not_kept_in_memory(tmp_path: Path) -> None:
    """SQLite keeps two megabytes of pages, not all that a run writes."""
    assert growth("sqlite", tmp_path, before=600, steps=300) < MOST_BYTES_A_STEP


def test_parquet_files_that_are_written_leave_nothing_in_memory(tmp_path: Path) -> None:
    """DuckDB keeps a kilobyte of each statement for as long as its connection is open."""
    require("duckdb")
    assert growth("parquet", tmp_path, before=101, steps=100) < MOST_BYTES_A_STEP


@pytest.mark.parametrize("name", ["csv", "tensorboard", "cost", "anomaly"])
def test_a_sink_keeps_nothing_of_a_step(tmp_path: Path, name: str) -> None:
    """Rows of a written step are in the file alone."""
    if name == "tensorboard":
        require("tensorboardX")
    assert growth(name, tmp_path, before=50, steps=100) < MOST_BYTES_A_STEP
