"""First differing row of two runs."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from probe.core.analysis.compare.compare import Comparison, compare
from probe.core.analysis.compare.differences import RELATIVE, Measure, coarsest
from probe.core.analysis.compare.pairing import Options
from tests.core.analysis.compare_data import (
    MICRO_STEPS,
    MODULES,
    STATE,
    WEIGHT,
    Array,
    Change,
    Where,
    rounding,
    same,
    write_run,
)
from tests.required import require

pytestmark = pytest.mark.slow

duckdb = require("duckdb")

ROWS_A_STEP = 2 * len(MODULES) * 2 + len(MODULES) * MICRO_STEPS * 2


def where(row: object) -> tuple[object, ...]:
    return tuple(getattr(row, field) for field in ("signal", "name", "step", "micro_step", "rank"))


def scaled(place: Where, factor: float, then: Change = same) -> Change:
    """One tensor times ``factor``."""
    return lambda at, tensor: then(at, tensor) * (factor if at == place else 1)


def both(tmp_path: Path, of_b: Change, options: Options = Options(), **about: object) -> Comparison:  # noqa: B008
    a, b = write_run(tmp_path / "a", **about), write_run(tmp_path / "b", of_b, **about)  # type: ignore[arg-type]
    return compare(a, b, options)


def test_equal_runs_are_the_same(tmp_path: Path) -> None:
    """All rows are compared, and none differs."""
    found = both(tmp_path, same, ranks=(0, 1))
    assert found.agrees
    assert (found.rows, found.beyond, found.first) == (2 * 6 * ROWS_A_STEP, 0, [])
    assert all(difference == 0 for growth in found.growth for difference in growth.differences)


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    """Elements that are off by a millionth are within the tolerance, and their differences are reported."""
    found = both(tmp_path, rounding(3))
    assert found.agrees
    largest = max(difference for growth in found.growth for difference in growth.differences)
    assert 1e-7 < largest < 2e-5


PLACES = [
    Where("param_origin", "layers.0.fc2.weight", 3, 0, 0),
    Where("actv", "layers.1.fc1", 5, 1, 0),
    Where("actv_grad", "layers.0.fc1", 0, 1, 0),
    Where("grad_reduced", "head.bias", 2, 0, 1),
    Where(STATE, "embedding.bias", 4, 0, 0),
]


@pytest.mark.parametrize(
    ("place", "factor"), [*((place, 1.01) for place in PLACES), *((PLACES[1], f) for f in (0.0, math.nan, math.inf))]
)
def test_one_changed_tensor_is_named(tmp_path: Path, place: Where, factor: float) -> None:
    """A tensor that is a hundredth larger, zero, NaN or infinite in one run is the one row that differs."""
    options = Options() if factor == 1.01 else Options(signals=(place.signal,))  # for what is no number
    found = both(tmp_path, scaled(place, factor, rounding(4)), options, ranks=(0, 1), state=place.signal == STATE)
    assert [where(row)[:3] for row in found.first] == [(place.signal, _row_name(place), place.step)]
    assert where(found.first[0])[3:] == place[3:]
    assert not found.agrees


def _row_name(place: Where) -> str:
    return f"{place.name}.output" if place.signal.startswith("actv") else place.name


def test_the_numbers_of_a_differing_row_are_those_of_its_tensors(tmp_path: Path) -> None:
    """Both values, and the difference: of a norm relative to the larger one."""
    place = PLACES[0]
    kept: dict[str, Array] = {}

    def change(at: Where, tensor: Array) -> Array:
        kept.update({"tensor": tensor} if at == place else {})
        return tensor * (2 if at == place else 1)

    (row,) = both(tmp_path, change, Options(signals=(place.signal,))).first
    norm = next(number for number in row.numbers if number.op == "norm")
    wanted = np.linalg.norm(kept["tensor"])
    assert (norm.a, norm.b) == (pytest.approx(wanted, rel=1e-5), pytest.approx(2 * wanted, rel=1e-5))
    assert norm.difference == pytest.approx(0.5, rel=1e-4)
    mean = next(number for number in row.numbers if number.op == "mean")
    assert mean.a == pytest.approx(kept["tensor"].mean(), rel=1e-4)
    extremes = [2 * abs(kept["tensor"]).max(), 2 * wanted / math.sqrt(kept["tensor"].size)]
    assert mean.difference == pytest.approx(abs(kept["tensor"].mean()) / max(extremes), rel=1e-3)


def test_what_differs_is_in_causal_order(tmp_path: Path) -> None:
    """Within a step weights, then micro step by micro step forward and backward as executed, then reduced gradients."""

    def change(at: Where, tensor: Array) -> Array | None:
        cause = at.signal != "param_origin" or at.name == "layers.1.fc2.weight"
        return tensor * (2 if at.step >= 2 and cause else 1)

    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", change)
    rows = compare(a, b, most=1 + 2 * MICRO_STEPS * len(MODULES) + 3).first
    micro = [
        (signal, f"{module}.output", n)
        for n in range(MICRO_STEPS)
        for signal, modules in (("actv", MODULES), ("actv_grad", MODULES[::-1]))
        for module in modules
    ]
    assert [(row.signal, row.name, row.micro_step) for row in rows] == [
        ("param_origin", "layers.1.fc2.weight", 0),
        *micro,
        *(("grad_reduced", name, 0) for name in ("embedding.weight", "embedding.bias", "layers.0.fc1.weight")),
    ]
    assert {row.step for row in rows} == {2}


def test_the_first_rows_do_not_depend_on_how_many_are_asked_for(tmp_path: Path) -> None:
    """The first k of more are the first k."""
    a, b = write_run(tmp_path / "a", ranks=(0, 1)), write_run(tmp_path / "b", lambda _, x: x * 1.1, ranks=(0, 1))
    options = Options(signals=("actv", "grad_reduced"))
    many = compare(a, b, options, most=150).first
    assert len(many) == 150
    assert compare(a, b, options, most=40).first == many[:40]


def test_nan_in_both_is_equal(tmp_path: Path) -> None:
    """NaN where there is NaN, and Inf where there is Inf of the same sign, is no difference; the other sign is."""
    place = PLACES[0]

    def infinite(sign: float) -> Change:
        def change(at: Where, tensor: Array) -> Array:
            if at.name == "head.weight":
                return np.full_like(tensor, np.nan)
            return np.where(np.arange(tensor.shape[-1]) == 0, sign * np.inf, tensor) if at == place else tensor

        return change

    a, b, c = (write_run(tmp_path / n, infinite(sign)) for n, sign in (("a", 1), ("b", 1), ("c", -1)))
    options = Options(signals=(place.signal,))
    assert compare(a, b, options).agrees
    assert [where(row) for row in compare(a, c, options).first] == [(place.signal, place.name, *place[2:])]


def test_noise_beside_large_rows_is_no_difference(tmp_path: Path) -> None:
    """A row that is rounding noise in both runs, a millionth of the others, is not measured by its own size."""

    def noise(seed: int) -> Change:
        def change(at: Where, tensor: Array) -> Array:
            tiny = 1e-7 * np.random.default_rng([seed, at.step]).normal(size=tensor.shape)
            return tiny if at.name == "head.bias" else tensor

        return change

    a, b = write_run(tmp_path / "a", noise(1)), write_run(tmp_path / "b", noise(2))
    assert compare(a, b, Options(signals=("param_origin", "grad_reduced"))).agrees


def test_a_mean_around_zero_is_measured_by_its_elements(tmp_path: Path) -> None:
    """Means of 0 but for rounding do not differ by all of themselves."""

    def centred(seed: int) -> Change:
        return lambda at, tensor: tensor - tensor.mean() + 1e-5 * np.random.default_rng([seed, at.step]).normal()

    for ops in (("mean", "norm"), ("mean", "min", "max")):
        a, b = (write_run(tmp_path / f"{n}{len(ops)}", centred(n), ops=ops) for n in (1, 2))
        assert compare(a, b, Options(ops=("mean",), signals=("actv", "grad_reduced"))).agrees


def test_a_layer_that_dies_differs_in_zeros(tmp_path: Path) -> None:
    """Fractions of zeros may differ by noise, not from none to all; their difference is not relative."""
    place = PLACES[1]
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", scaled(place, 0))
    (row,) = compare(a, b, Options(ops=("zeros",), signals=(place.signal,))).first
    assert (row.name, row.numbers[0].a, row.numbers[0].b) == ("layers.1.fc1.output", 0.0, 1.0)
    assert row.numbers[0].difference == 1


def test_counts_differ_by_their_number(tmp_path: Path) -> None:
    """Any other count is beyond the tolerance, and the difference is that of the counts."""
    place = PLACES[0]

    def with_nans(columns: int) -> Change:
        return lambda at, x: np.where(np.arange(x.shape[-1]) < columns, np.nan, x) if at == place else x

    a, b = write_run(tmp_path / "a", with_nans(1)), write_run(tmp_path / "b", with_nans(3))
    (row,) = compare(a, b, Options(ops=("nans",), signals=(place.signal,))).first
    rows, _ = WEIGHT
    assert [(number.a, number.b, number.difference) for number in row.numbers] == [(rows, 3 * rows, 2 * rows)]


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["torch.float32", "torch.int64"], "float32"),
        (["torch.float32", "BFloat16"], "bfloat16"),
        (["Float16", "Float32"], "float16"),
        (["torch.float64", "Float64"], "float64"),
        (["torch.float64", "torch.float32"], "float32"),
        (["torch.float8_e4m3fn", "torch.bfloat16"], "float8"),
        ([], "float32"),
    ],
)
def test_the_tolerance_follows_the_coarsest_dtype(dtypes: list[str], expected: str) -> None:
    """Of either framework's spelling."""
    assert coarsest(dtypes) == expected


def test_a_difference_beyond_the_largest_number_is_relative_too() -> None:
    """Numbers of opposite sign whose difference is no finite number differ by twice their size."""
    sides = "(SELECT 1e308 AS max, 1 AS elements) a, (SELECT -1e308 AS max) b, (SELECT 0 AS rms) s"
    [(excess,)] = duckdb.sql(f"SELECT {Measure(['max'], ['max'], 1e-3, 0.0).excess('max')} FROM {sides}").fetchall()
    assert excess * 1e-3 == pytest.approx(2)


def test_half_precision_may_differ_more(tmp_path: Path) -> None:
    """A difference for float32 is none if one of the runs computes in bfloat16."""
    a = write_run(tmp_path / "a")
    b = write_run(tmp_path / "b", rounding(5, 2**-6), dtype="torch.bfloat16")
    c = write_run(tmp_path / "c", rounding(5, 2**-6))
    half, single = (compare(a, other, Options(signals=("param_origin", "actv"))) for other in (b, c))
    assert (half.agrees, half.tolerance) == (True, RELATIVE["bfloat16"])
    assert (single.agrees, single.tolerance) == (False, RELATIVE["float32"])
    assert compare(a, c, Options(relative=0.05, signals=("actv",))).agrees


def test_other_shapes_differ(tmp_path: Path) -> None:
    """A tensor of another shape is a difference, whatever its numbers are."""
    place = PLACES[0]
    b = write_run(tmp_path / "b", lambda at, tensor: tensor.reshape(4, 6) if at == place else tensor)
    (row,) = compare(write_run(tmp_path / "a"), b, Options(signals=(place.signal,))).first
    assert (row.name, row.shape, row.shape_b) == (place.name, "[6, 4]", "[4, 6]")


def test_rows_of_one_run_are_told_by_name(tmp_path: Path) -> None:
    """A layer that only one run has is a difference, named once with its number of rows, unless that is left out."""
    b = write_run(tmp_path / "b", lambda at, tensor: None if at.name == "head.weight" and at.step % 2 else tensor)
    a = write_run(tmp_path / "a")
    found = compare(a, b)
    assert not found.agrees
    assert found.only_names.a == [f"{s} head.weight (3 rows)" for s in ("grad_reduced", "param_origin")]
    assert (found.only_rows, found.only_names.b, found.beyond) == ((6, 0), [], 0)
    assert compare(a, b, Options(common=True)).agrees


def test_state_before_the_first_update_may_be_missing(tmp_path: Path) -> None:
    """Optimizer state of zeros, which some write before the first update and others do not, is no difference."""
    a = write_run(tmp_path / "a", lambda at, x: None if (at.signal, at.step) == (STATE, 0) else x, state=True)
    b = write_run(tmp_path / "b", lambda at, x: x * 0 if (at.signal, at.step) == (STATE, 0) else x, state=True)
    c = write_run(tmp_path / "c", state=True)
    options = Options(signals=(STATE, "grad_reduced"))
    assert compare(a, b, options).agrees
    assert compare(b, a, options).agrees
    assert compare(a, c, options).only_rows == (0, 2 * len(MODULES))


def test_steps_of_one_run_are_told_as_ranges(tmp_path: Path) -> None:
    """Steps that one run lacks are a difference; those in common are compared."""
    a, b = write_run(tmp_path / "a", steps=range(8)), write_run(tmp_path / "b", steps=[1, 2, 3, 6])
    found = compare(a, b)
    assert (found.only_steps.a, found.only_steps.b, found.agrees) == (["0", "4-5", "7"], [], False)
    assert found.rows == 4 * ROWS_A_STEP
    assert compare(a, b, Options(common=True, signals=("actv",))).agrees
    assert compare(a, b, Options(first_step=1, last_step=3, signals=("actv",))).agrees


def test_steps_that_a_run_has_chosen_by_their_cost_are_no_difference(tmp_path: Path) -> None:
    """Of tensors those of one run alone are left out, but neither its numbers of the run nor rows within a step."""

    def paced(name: str, steps: int, recorded: set[int], gap: str = "") -> Path:
        def change(at: Where, x: Array) -> Array | None:
            return x if at.signal == "param_origin" or (at.step in recorded and at.name != gap) else None

        renamed, config = {"param_origin": "run"}, {"max_overhead": 0.01}
        return write_run(tmp_path / name, change, steps=range(steps), signals=renamed, config=config)

    a, b = paced("a", 6, {0, 1, 2, 4}), paced("b", 6, {0, 2, 3, 5})
    found = compare(a, b)
    assert (found.agrees, found.paced, found.only_rows) == (True, True, (0, 0))
    assert {signal: rows for signal, rows, *_ in found.counts}["grad_reduced"] == 2 * 2 * len(MODULES)
    assert compare(a, b, Options(signals=("grad_reduced",))).agrees
    assert compare(a, paced("longer", 7, {0, 2, 6})).only_steps.b == ["6"]
    within = compare(a, paced("gap", 6, {0, 3}, "head.weight"), Options(signals=("grad_reduced",)))
    assert within.only_names.a == ["grad_reduced head.weight (1 row)"]


def test_steps_may_be_numbered_otherwise(tmp_path: Path) -> None:
    """With an offset step 0 of A is compared with step 100 of B, across files that begin elsewhere."""
    place = PLACES[0]
    a = write_run(tmp_path / "a", steps_per_file=4)
    b = write_run(tmp_path / "b", scaled(place, 2), number=lambda step: step + 101, steps_per_file=3)
    with pytest.raises(ValueError, match=r"of those asked for A has 0-5, B 101-106; leave --steps out"):
        compare(a, b)
    found = compare(a, b, Options(step_offset=101))
    assert [where(row) for row in found.first] == [(place.signal, place.name, *place[2:])]
    assert found.rows == 6 * ROWS_A_STEP
    assert compare(a, b, Options(step_offset=101, last_step=2, signals=(place.signal,))).agrees


def test_ranks_are_paired(tmp_path: Path) -> None:
    """Each with that of its number; one that only one run has is a difference; or one chosen of each."""
    a, b = write_run(tmp_path / "a", ranks=(0, 1)), write_run(tmp_path / "b", ranks=(1, 2), world_size=0)
    found = compare(a, b)
    assert (found.ranks, found.only_ranks.a, found.only_ranks.b, found.agrees) == ([(1, 1)], ["0"], ["2"], False)
    assert found.beyond == 0
    other = compare(a, b, Options(ranks=(0, 2)))
    assert (other.ranks, {row.signal for row in other.first}) == ([(0, 2)], {"actv", "actv_grad"})
    with pytest.raises(ValueError, match=": 0, 1; got 2"):
        compare(a, b, Options(ranks=(2, 2)))
    with pytest.raises(ValueError, match=r"no rank in common: A has \[0, 1\], B \[2\]; choose with --rank A:B"):
        compare(a, write_run(tmp_path / "c", ranks=(2,)))


def test_growth_before_the_first_difference_is_told(tmp_path: Path) -> None:
    """The largest difference of the steps before, by which one sees whether the first appears at once."""
    place = Where("param_origin", "head.weight", 4, 0, 0)
    drift = scaled(Where("param_origin", "head.weight", 1, 0, 0), 1 + 5e-4)
    found = both(tmp_path, scaled(place, 2, drift))
    assert where(found.first[0]) == (place.signal, place.name, *place[2:])
    assert found.before == pytest.approx(5e-4, rel=0.05)
    growth = next(each for each in found.growth if each.signal == "param_origin")
    assert growth.steps == list(range(6))
    assert growth.differences == pytest.approx([0, 5e-4, 0, 0, 0.5, 0], rel=0.05, abs=1e-9)
    layers = next(each for each in found.layers if each.signal == "param_origin")
    row = layers.differences[layers.names.index("head.weight")]
    assert row == pytest.approx(growth.differences)
    assert layers.names == [f"{module}.{kind}" for module in MODULES for kind in ("weight", "bias")]


def test_rows_that_come_twice_are_compared_once(tmp_path: Path) -> None:
    """A file with a step twice is reported, and its rows count once: those that were written last."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    path = next(b.glob("*/grad_reduced_0-3.csv"))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines + lines[1:13]), encoding="utf-8")
    found = compare(a, b)
    assert (found.rows, found.agrees) == (6 * ROWS_A_STEP, True)
    assert found.problems == ["grad_reduced: rows come twice in a step: the later of each is taken"]
    cells = [line.split(",") for line in lines[1:13]]
    other = [",".join([*row[:3], "9.5", *row[4:]]) for row in cells]
    path.write_text("".join([lines[0], *other, *lines[1:]]), encoding="utf-8")
    assert compare(a, b).agrees


def test_values_of_few_decimals_are_compared_to_those(tmp_path: Path) -> None:
    """If numbers were rounded to some decimals, half a unit of either is no difference."""
    a = write_run(tmp_path / "a", lambda _, x: x * 1e-3 + 0.01)
    b = write_run(tmp_path / "b", lambda _, x: np.round(x * 1e-3 + 0.01, 4), config={"ndigits": 3})
    c = write_run(tmp_path / "c", lambda _, x: np.round(x * 1e-3 + 0.01, 4))
    options = Options(ops=("min", "max"), signals=("param_origin",))
    assert compare(a, b, options).agrees
    assert not compare(a, c, options).agrees


def test_merged_files_are_a_run_of_one_rank(tmp_path: Path) -> None:
    """Files of ``probe merge`` are compared with a run of a single rank."""
    a = write_run(tmp_path / "a")
    merged = tmp_path / "merged"
    merged.mkdir()
    for path in a.glob("*/param_origin*.csv"):
        header, *rows = path.read_text(encoding="utf-8").splitlines()
        told = [f"{header},ranks,complete", *(f"{row},0-3,1" for row in rows)]
        (merged / path.name).write_text("\n".join(told) + "\n", encoding="utf-8")
    other = shutil.copytree(merged, tmp_path / "other")
    for path in other.iterdir():
        path.write_text(path.read_text(encoding="utf-8").replace(",0-3,", ",0-1,"), encoding="utf-8")
    for first in (a, other):  # of ranks of another number
        found = compare(first, merged, Options(signals=("param_origin",)))
        assert (found.agrees, found.rows, found.problems) == (True, 6 * 2 * len(MODULES), [])


def test_manifests_may_be_missing(tmp_path: Path) -> None:
    """Directories of a tool that writes none are compared by their names."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    for path in b.glob("*/manifest.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["schema"] == 1
        path.unlink()
    assert compare(a, b, Options(signals=("actv", "grad_reduced"))).agrees


def test_files_may_be_read_in_any_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File by file, where the two runs' files end at other steps, or all at once: the same comes of it."""
    place = Where("grad_reduced", "layers.0.fc2.bias", 4, 0, 1)
    a = write_run(tmp_path / "a", ranks=(0, 1), steps=range(9), steps_per_file=2)
    b = write_run(tmp_path / "b", scaled(place, 3, rounding(6)), ranks=(0, 1), steps=range(1, 9), steps_per_file=5)
    options = Options(signals=("actv", "grad_reduced"))
    at_once = compare(a, b, options)
    monkeypatch.setattr("probe.core.analysis.compare.piece_rows.WINDOW", 1)
    in_portions = compare(a, b, options)
    assert in_portions == at_once
    assert at_once.rows == 2 * 8 * len(MODULES) * (MICRO_STEPS + 2)
    assert [where(row) for row in at_once.first] == [(place.signal, place.name, *place[2:])]


def test_a_signal_of_each_micro_step_is_not_one_of_the_step(tmp_path: Path) -> None:
    """A signal with rows for each micro step in one run and for each step in the other is listed, and not compared."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", signals={"actv": "x", "grad_reduced": "actv"})
    found = compare(a, b)
    assert found.only_signals.a == ["actv (each micro step)", "grad_reduced"]
    assert found.only_signals.b == ["actv (once a step)", "x"]
    assert "actv" not in found.signals
    assert (found.beyond, found.agrees) == (0, False)


def test_parquet_stands_beside_csv(tmp_path: Path) -> None:
    """The same tables in the other format are the same run, and what differs is the same."""
    place = PLACES[1]
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", scaled(place, 1.5))
    options = Options(signals=("param_origin", "actv"))
    of_csv = compare(a, b, options)
    for path in b.glob("*/*.csv"):
        duckdb.sql(f"COPY (FROM read_csv('{path}')) TO '{path.with_suffix('.parquet')}' (FORMAT parquet)")
        path.unlink()
    assert compare(a, b, options) == of_csv
    assert [where(row)[2:] for row in of_csv.first] == [place[2:]]
