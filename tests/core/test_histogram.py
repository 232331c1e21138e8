"""Histograms and quantiles against NumPy on the elements themselves, and where they are written."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.analysis.merge import merge_directory
from probe.core.backend.numpy_moments import moments
from probe.core.histogram import BINS, HIGH, HISTOGRAM, LOW, NAN, QUANTILES, counts, parsed, quantile, shifted, text_of
from probe.core.moments import columns_for, derive, merge_columns
from probe.core.output.history_buffer import HistoryBuffer
from probe.core.output.sinks import SINKS
from probe.core.records import Coverage
from probe.core.storage.run_directory import write_manifest
from tests.core.output.sink_data import batch, context, finding, snapshot

RANDOM = np.random.default_rng(0)
WIDE = RANDOM.standard_normal(5000) * 10.0 ** RANDOM.uniform(-25, 25, 5000)
ARRAYS: dict[str, Any] = {
    "normal": RANDOM.standard_normal(9000),
    "float32": RANDOM.standard_normal(9000).astype(np.float32),
    "float16": RANDOM.standard_normal(3000).astype(np.float16),
    "wide": WIDE,
    "wide float32": WIDE.astype(np.float32),
    "powers of two": np.concatenate([s * 2.0 ** np.arange(-80, 40) for s in (1, -1)]),
    "just below": np.nextafter(2.0 ** np.arange(-80, 40), 0),
    "subnormal": np.array([1e-40, -1e-42, 1e-45, 0.0], np.float32),
    "subnormal float64": np.array([5e-324, -1e-310]),
    "zeros": np.array([0.0, -0.0, 1.0]),
    "not finite": np.array([np.nan, np.inf, -np.inf, np.inf, -np.nan, 3.0]),
    "integers": RANDOM.integers(-1000, 1000, 700),
    "bytes": np.arange(256, dtype=np.uint8),
    "bool": np.array([True, False, True]),
    "complex": RANDOM.standard_normal(50) + 1j * RANDOM.standard_normal(50),
    "strided": RANDOM.standard_normal((60, 50))[::3, ::-2],
    "scalar": np.array(-0.75),
    "large": RANDOM.standard_normal(200_000).astype(np.float32),
}


def as_float(array: Any) -> Any:
    return (np.abs(array) if np.iscomplexobj(array) else np.asarray(array)).astype(np.float64).ravel()


def by_numpy(array: Any) -> list[float]:
    """The counts by the definition, with NumPy's own histogram for what has a bin of its own."""
    x = as_float(array)
    edges = 2.0 ** np.arange(LOW, HIGH + 1)
    edges[-1] = np.nextafter(edges[-1], 0)  # NumPy's last bin includes its end
    sides = []
    for side in (-x, x):
        tiny, huge = np.sum((side > 0) & (side < 2.0**LOW)), np.sum((side >= 2.0**HIGH) & np.isfinite(side))
        sides.append([tiny, *np.histogram(side[np.isfinite(side)], edges)[0], huge, np.sum(side == np.inf)])
    return [*sides[0][::-1], np.sum(x == 0), *sides[1], np.isnan(x).sum()]


def histograms(*arrays: Any) -> Any:
    return moments(arrays, (HISTOGRAM,), 0.0)


@pytest.mark.parametrize("name", ARRAYS)
def test_elements_are_counted_by_their_power_of_two(name: str) -> None:
    """Every element in the right bin, whatever the dtype and the layout."""
    assert histograms(ARRAYS[name])[0].tolist() == by_numpy(ARRAYS[name])


def test_a_histogram_comes_beside_other_moments() -> None:
    """The other moments are what they are without it."""
    arrays = [ARRAYS[name] for name in ("normal", "bool", "large")]
    columns = columns_for(["norm", "histogram", "q50", "min"])
    assert columns == ("min", "max", "sumsq", HISTOGRAM), "quantiles lie between the extremes"
    assert columns_for(["norm", "histogram"]) == ("sumsq", HISTOGRAM)
    both = moments(arrays, columns, 0.0)
    assert both.shape == (3, 3 + BINS)
    assert (both[:, :3] == moments(arrays, columns[:3], 0.0)).all()
    assert (both[:, 3:] == histograms(*arrays)).all()


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("op", QUANTILES)
def test_quantiles_are_off_by_less_than_a_bin(name: str, op: str) -> None:
    """Within a factor of two of what NumPy says, of the right sign; zero and infinity are exact."""
    x = as_float(ARRAYS[name])
    x = x[~np.isnan(x)]
    got = float(derive(op, {HISTOGRAM: histograms(ARRAYS[name])}, [x.shape])[0])
    below, above = (np.quantile(x, QUANTILES[op], method=method) for method in ("lower", "higher"))
    if below == above and (below == 0 or math.isinf(below)):
        assert got == below
        return

    def least(value: float) -> float:
        """The end of the bin of ``value`` that lies towards minus infinity."""
        size = abs(value)
        if size == 0 or math.isinf(size):
            return value
        bottom = 2.0 ** (math.frexp(size)[1] - 1) if 2.0**LOW <= size < 2.0**HIGH else 2.0**HIGH * (size > 1)
        top = 2 * bottom if 0 < bottom < 2.0**HIGH else 2.0**LOW if bottom == 0 else 2.0**HIGH
        return bottom if value > 0 else -top

    assert least(below) <= got <= -least(-above)


@pytest.mark.parametrize("value", [1.0, -3.0, 0.0, 1e-30, 5e20, math.inf, -math.inf])
def test_quantiles_of_one_number_are_that_number(value: float) -> None:
    """They lie between the extremes, which are counted beside them."""
    columns = columns_for(QUANTILES)
    row = moments([np.full(7, value)], columns, 0.0)
    given = dict(zip(columns[:-1], row.T, strict=False)) | {HISTOGRAM: row[:, len(columns) - 1 :]}
    assert [derive(op, given, [(7,)]).tolist() for op in QUANTILES] == [[value]] * len(QUANTILES)


@pytest.mark.parametrize(
    "array", [[1.0, 1.0, 1.9], [-1.9, -1.0, 1.5, 1.75], [np.nan, 1.0, 1.0], [1.0], [-np.inf, np.inf], [np.nan] * 2]
)
def test_quantiles_lie_between_the_extremes(array: list[float]) -> None:
    """Of those elements that are numbers; between two infinities there is none, as NumPy has it."""
    columns, x = columns_for(QUANTILES), np.array(array)
    row = moments([x], columns, 0.0)
    given = dict(zip(columns[:-1], row.T, strict=False)) | {HISTOGRAM: row[:, len(columns) - 1 :]}
    with np.errstate(invalid="ignore"):
        for op, q in QUANTILES.items():
            got, exact = (
                float(derive(op, given, [x.shape])[0]),
                np.quantile(x[~np.isnan(x)], q) if not np.isnan(x).all() else np.nan,
            )
            assert np.isnan(got) == np.isnan(exact)
            if not np.isnan(exact) and not np.isnan(x).any():
                assert x.min() <= got <= x.max()


@pytest.mark.parametrize("sign", [1, -1])
def test_within_a_bin_elements_lie_evenly(sign: int) -> None:
    """In their logarithm: of those that do, quantiles are nearly exact."""
    x = sign * 2.0 ** np.linspace(3, 4, 1000, endpoint=False)
    for op, q in QUANTILES.items():
        got = float(derive(op, {HISTOGRAM: histograms(x)}, [x.shape])[0])
        assert got == pytest.approx(np.quantile(x, q), rel=1e-3)


def test_a_quantile_between_two_elements_is_nearer_to_the_nearer_one() -> None:
    """A tenth of the way from zero, which is exact, to an element that is known to a factor of 2."""
    for far in (3.0, -3.0):
        (got,) = quantile(counts(np.array([0.0, far]))[np.newaxis], 0.1 if far > 0 else 0.9)
        assert 0.15 < math.copysign(got, far * got) < 0.6


def test_nothing_has_no_quantiles() -> None:
    """An empty tensor, and one of NaN alone."""
    empty = np.zeros((2, BINS))
    empty[1, NAN] = 7
    assert np.isnan(quantile(empty, 0.5)).all()


@pytest.mark.parametrize("power", [16, -5, 0, 70, -120])
def test_a_scale_is_divided_out(power: int) -> None:
    """A loss scale is a power of two: bins move by its exponent."""
    x = np.concatenate([RANDOM.standard_normal(500), [0.0, np.nan, np.inf, -np.inf]])
    scaled = shifted(histograms(x * 2.0**power, x), np.array([2.0**power, 1.0]))
    if abs(power) < 50:  # nothing has left the bins
        assert scaled[0].tolist() == by_numpy(x)
    assert scaled[0].sum() == x.size
    assert scaled[1].tolist() == by_numpy(x)


def test_parts_add_up() -> None:
    """Histograms of the parts of a tensor give that of the tensor, exactly."""
    cuts = np.split(ARRAYS["wide"], [10, 10, 3000])
    parts = [*cuts, ARRAYS["bool"]]
    blocks = np.array([histograms(part)[0] if part.size else np.zeros(BINS) for part in parts])
    counts = np.array([len(part) for part in parts], dtype=np.float64)
    merged = merge_columns({HISTOGRAM: blocks}, counts, np.array([0, 0, 0, 0, 1]), 2)
    assert merged[HISTOGRAM].tolist() == [by_numpy(ARRAYS["wide"]), by_numpy(ARRAYS["bool"])]


@pytest.mark.parametrize("name", ARRAYS)
def test_a_cell_says_it_all(name: str) -> None:
    """What is written can be read back."""
    row = histograms(ARRAYS[name])[0]
    assert parsed(text_of(row)).tolist() == row.tolist()


def test_a_cell_can_be_read_by_people() -> None:
    """Signed powers of two and counts, from the smallest numbers to the largest."""
    text = text_of(histograms(np.array([1.0, 1.9, -0.3, 0.0, np.nan, -np.inf, 1e-30, 1e30]))[0])
    assert text == "-inf:1;-2^-2:1;0:1;2^-65:1;2^0:2;2^32:1;nan:1"
    assert text_of(np.zeros(BINS)) == ""
    assert parsed("").tolist() == [0.0] * BINS


@pytest.mark.parametrize("text", ["1:2", "2^99:1", "2^0:1;", "2^0:x", "2^0", "--2^0:1"])
def test_another_cell_is_refused(text: str) -> None:
    """With what was expected and what came."""
    with pytest.raises(ValueError, match=r"expected a histogram such as .*, got"):
        parsed(text)


def distributed(step: int, arrays: Sequence[Any], **fields: Any) -> Any:
    block = moments(arrays, ("sumsq", HISTOGRAM), 0.0)
    made = batch("grad_reduced", step, {"sumsq": block[:, 0].tolist()}, **fields)
    return replace(made, columns={**made.columns, HISTOGRAM: block[:, 1:]})


TWO = (ARRAYS["normal"], ARRAYS["not finite"])
OPS = ("norm", "q50", "histogram")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def test_tables_have_a_cell_for_it(tmp_path: Path) -> None:
    """One cell behind what describes the row; quantiles are columns as all ops are."""
    sink = SINKS["csv"](context(tmp_path))
    sink.open()
    sink.write(snapshot(3, distributed(3, TWO), ops=OPS))
    sink.close()
    rows = rows_of(tmp_path / "run" / "grad_reduced_3-3.csv")
    assert list(rows[0]) == ["vpp_stage", "name", "step", "norm", "q50", "shape", "dtype", "histogram"]
    assert [parsed(row["histogram"]).tolist() for row in rows] == [by_numpy(array) for array in TWO]
    assert float(rows[1]["q50"]) == math.inf


def test_quantiles_alone_leave_the_histogram_out(tmp_path: Path) -> None:
    """It is counted for them, and written only where it is asked for."""
    sink = SINKS["csv"](context(tmp_path))
    sink.open()
    sink.write(snapshot(0, distributed(0, TWO), ops=("q50",)))
    assert list(rows_of(tmp_path / "run" / "grad_reduced_0-0.csv")[0])[3:] == ["q50", "shape", "dtype"]


def test_parquet_has_the_same_cell(tmp_path: Path) -> None:
    """As the CSV files."""
    duckdb = pytest.importorskip("duckdb")
    sink = SINKS["parquet"](context(tmp_path))
    sink.open()
    sink.write(snapshot(0, distributed(0, TWO), ops=OPS))
    sink.close()
    path = tmp_path / "run" / "grad_reduced_0-0.parquet"
    found = duckdb.execute(f"SELECT histogram, norm FROM '{path}'").fetchall()
    assert [parsed(text).tolist() for text, _ in found] == [by_numpy(array) for array in TWO]


def test_a_database_goes_without_it(tmp_path: Path) -> None:
    """It has numbers alone: quantiles are among them."""
    sqlite = SINKS["sqlite"](context(tmp_path))
    sqlite.open()
    sqlite.write(snapshot(0, distributed(0, TWO), ops=OPS))
    sqlite.close()
    assert (tmp_path / "run" / "monitor_metrics.db").stat().st_size


def test_tensorboard_shows_a_histogram(tmp_path: Path) -> None:
    """Under the tag of the row; its buckets hold the finite elements."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sink = SINKS["tensorboard"](context(tmp_path, rank=2))
    sink.open()
    sink.write(snapshot(4, distributed(4, TWO), ops=OPS))
    sink.close()
    events = reading.EventAccumulator(str(tmp_path / "run"), size_guidance={"histograms": 0})
    events.Reload()
    assert sorted(events.Tags()["histograms"]) == ["0:p0/rank2/post_grad", "0:p1/rank2/post_grad"]
    (event,) = events.Histograms("0:p0/rank2/post_grad")
    value, x = event.histogram_value, ARRAYS["normal"]
    assert event.step == 4
    limits = [-math.inf, *value.bucket_limit]
    for left, right, number in zip(limits, value.bucket_limit, value.bucket, strict=False):
        assert number == np.sum((x > left) & (x <= right)), "no element lies on an edge"
    assert value.num == sum(value.bucket) == x.size
    assert value.min <= x.min() <= x.max() <= value.max
    (only,) = events.Histograms("0:p1/rank2/post_grad")
    assert only.histogram_value.num == 1, "what is not finite has no bucket"


def test_held_steps_keep_their_histograms() -> None:
    """A step that waits in memory comes back as it was."""
    past = HistoryBuffer(2)
    before = snapshot(0, distributed(0, TWO), ops=OPS)
    assert list(past.admit(before)) == []
    first, _ = past.admit(snapshot(1, findings=(finding(1),)))
    for name, values in before.batches[0].columns.items():
        assert np.array_equal(first.batches[0].columns[name], values, equal_nan=True), name


def test_merged_files_have_the_whole_histogram(tmp_path: Path) -> None:
    """Ranks that share a tensor out: counts are added, and quantiles are those of the sum."""
    x = ARRAYS["normal"][:64]
    for rank, part in enumerate((x[:40], x[40:])):
        folder = tmp_path / f"Dec03_21-34-40-rank{rank}-abcd"
        sink = SINKS["csv"](context(tmp_path, directory=folder, rank=rank))
        sink.open()
        write_manifest(folder, {"rank": rank, "run": 0, "first_step": 0})
        coverage = (Coverage((64,), f"{40 * rank}:{40 + 24 * rank}", (0, 1)),)
        made = distributed(0, [part], coverage=coverage, shapes=(part.shape,))
        sink.write(snapshot(0, made, ops=OPS))
    merge_directory(tmp_path, tmp_path / "out")
    (row,) = rows_of(tmp_path / "out" / "grad_reduced_0-0.csv")
    assert parsed(row["histogram"]).tolist() == by_numpy(x)
    assert float(row["norm"]) == pytest.approx(np.linalg.norm(x), rel=1e-5)
    assert float(row["q50"]) == pytest.approx(quantile(np.array([by_numpy(x)]), 0.5)[0], rel=1e-5)
