"""The CSV sink, read back with the csv module."""

from __future__ import annotations

import csv
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.output.sinks import SINKS
from probe.core.records import Key
from tests.core.output.sink_data import batch, context, snapshot
from tests.full_disk import files_of_at_most

NAN, INF = float("nan"), float("inf")


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_layout_is_the_documented_one(tmp_path: Path) -> None:
    """File name, header, order of columns and every cell of activations and of gradients."""
    sink = SINKS["csv"](context(tmp_path))
    sink.open()
    keys = (Key("fc", "input", 1), Key("", "output", 0, stage=1))
    activations = batch(
        "actv", 0, {"min": [-1.5, 0.0], "nans": [0.0, 12345678.0]}, keys=keys, shapes=((2, 3), ()), micro_stepped=True
    )
    gradients = batch("grad_reduced", 0, {"min": [1 / 3], "nans": [1.0]}, shapes=((3,),), dtypes=("Float32",))
    sink.write(snapshot(0, activations, gradients, ops=("nans", "min")))
    sink.close()
    assert (tmp_path / "run" / "actv_0-0.csv").read_text() == (
        "vpp_stage,name,step,micro_step,nans,min,shape,dtype\n"
        '0,fc.input,0,1,0,-1.5,"[2, 3]",torch.float32\n'
        "1,.output,0,0,12345678,0,[],torch.float32\n"
    )
    assert (tmp_path / "run" / "grad_reduced_0-0.csv").read_text() == (
        "vpp_stage,name,step,nans,min,shape,dtype\n0,p0,0,1,0.333333,[3],Float32\n"
    )
    assert names(tmp_path / "run") == ["actv_0-0.csv", "grad_reduced_0-0.csv"]


@pytest.mark.parametrize(
    ("ndigits", "expected"),
    [
        (None, ["1.23457e-10", "1.23457e+25", "nan", "inf", "-inf", "-0.5"]),
        (3, ["0.0", "1.2345678e+25", "nan", "inf", "-inf", "-0.5"]),
        (12, ["1.23e-10", "1.2345678e+25", "nan", "inf", "-inf", "-0.5"]),
    ],
)
def test_values_keep_digits_or_places(tmp_path: Path, ndigits: int | None, expected: list[str]) -> None:
    """Six significant digits by default; with ``ndigits`` that many decimal places."""
    sink = SINKS["csv"](context(tmp_path, ndigits=ndigits))
    values = [1.2345678e-10, 1.2345678e25, NAN, INF, -INF, -0.5]
    sink.write(snapshot(0, batch("exp_avg", 0, {"min": values})))
    assert [row["min"] for row in read(tmp_path / "run" / "exp_avg_0-0.csv")] == expected


@pytest.mark.parametrize("ndigits", [None, 6])
def test_counts_are_whole_numbers_unless_not_finite(tmp_path: Path, ndigits: int | None) -> None:
    """A count prints no decimal point and no exponent."""
    sink = SINKS["csv"](context(tmp_path, ndigits=ndigits))
    sink.write(snapshot(0, batch("actv", 0, {"infs": [0.0, 7.0, 12345678901.0, NAN]}), ops=("infs",)))
    assert [row["infs"] for row in read(tmp_path / "run" / "actv_0-0.csv")] == ["0", "7", "12345678901", "nan"]


def test_steps_share_files_aligned_to_zero(tmp_path: Path) -> None:
    """Step s goes to the file of s // N, wherever the run began; each file has one header."""
    sink = SINKS["csv"](context(tmp_path, steps_per_file=5))
    for step in (3, 4, 5, 12):
        sink.write(snapshot(step, batch("grad_reduced", step, {"min": [float(step)]})))
    steps = {path.name: [row["step"] for row in read(path)] for path in (tmp_path / "run").iterdir()}
    assert steps == {
        "grad_reduced_0-4.csv": ["3", "4"], "grad_reduced_5-9.csv": ["5"], "grad_reduced_10-14.csv": ["12"]
    }  # fmt: skip


def test_any_name_survives(tmp_path: Path) -> None:
    """Colons, commas, quotes, formulas, percent signs, line breaks and CJK come back as they were."""
    odd = ["0:a:b", "a,b", 'say "hi"', "=1+1", "100%d%s", "two\nlines", "层.权重", "@x", ""]
    sink = SINKS["csv"](context(tmp_path / "with space 与汉字"))
    keys = tuple(Key(name) for name in odd)
    sink.write(snapshot(0, batch("actv", 0, {"min": list(range(len(odd)))}, keys=keys)))
    rows = read(tmp_path / "with space 与汉字" / "run" / "actv_0-0.csv")
    assert [(row["name"], row["min"]) for row in rows] == [(name, str(row)) for row, name in enumerate(odd)]


def test_signals_that_are_no_file_names_get_files_of_their_own(tmp_path: Path) -> None:
    """A state tensor may be called anything, and two signals never share a file."""
    sink = SINKS["csv"](context(tmp_path))
    signals = ["../evil", "a/b", "a_b", "a%2Fb"]
    sink.write(snapshot(0, *(batch(signal, 0, {"min": [i]}) for i, signal in enumerate(signals))))
    assert names(tmp_path) == ["run"]
    assert len(names(tmp_path / "run")) == 4
    assert all(name.endswith("_0-0.csv") for name in names(tmp_path / "run"))


def test_repetitions_get_a_last_column_only_where_needed(tmp_path: Path) -> None:
    """A file begun without ``call`` gets it, with 0 in older rows; later files go without again."""
    sink = SINKS["csv"](context(tmp_path, steps_per_file=3))
    plain = {"keys": (Key('q"1", fc', "output"),)}
    repeated = {"keys": (Key('q"1", fc', "output"), Key('q"1", fc', "output", call=1))}
    for step, fields in enumerate((plain, repeated, plain, plain)):
        sink.write(snapshot(step, batch("actv", step, {"min": [0.5] * len(fields["keys"])}, **fields)))
    path = tmp_path / "run" / "actv_0-2.csv"
    assert path.read_text().startswith("vpp_stage,name,step,min,shape,dtype,call\n")
    cells = [(row["step"], row["call"], row["min"], row["shape"], row["name"]) for row in read(path)]
    expected = [("0", "0"), ("1", "0"), ("1", "1"), ("2", "0")]
    endings = {"0": "", "1": ".call1"}
    assert cells == [(step, call, "0.5", "[3, 2]", f'q"1", fc.output{endings[call]}') for step, call in expected]
    assert "call" not in read(tmp_path / "run" / "actv_3-5.csv")[0]
    assert names(tmp_path / "run") == ["actv_0-2.csv", "actv_3-5.csv"]


def test_other_columns_begin_another_file(tmp_path: Path) -> None:
    """When the ops change, the new file's range begins there; every value stays under its own name."""
    sink = SINKS["csv"](context(tmp_path, steps_per_file=10))
    for step, ops in enumerate([("min",), ("min",), ("max", "min"), ("max", "min"), ("min",)]):
        columns = {"min": [-float(step)], "max": [float(step)]}
        sink.write(snapshot(step, batch("actv", step, columns), ops=ops))
    sink = SINKS["csv"](context(tmp_path, steps_per_file=10))
    sink.write(snapshot(5, batch("actv", 5, {"min": [-5.0], "max": [5.0]}), ops=("max",)))
    assert names(tmp_path / "run") == ["actv_0-9.csv", "actv_2-9.csv", "actv_5-9.csv"]
    rows = [row for name in names(tmp_path / "run") for row in read(tmp_path / "run" / name)]
    assert sorted(int(row["step"]) for row in rows) == [0, 1, 2, 3, 4, 5]
    for row in rows:
        assert float(row.get("min", -int(row["step"]))) == -int(row["step"])
        assert float(row.get("max", int(row["step"]))) == int(row["step"])


def test_same_step_with_other_columns_is_not_mixed(tmp_path: Path) -> None:
    """Even a file of one step is left alone by rows that do not fit it."""
    for ops in (("min",), ("max",), ("min", "max"), ("max",)):
        sink = SINKS["csv"](context(tmp_path))
        sink.write(snapshot(0, batch("actv", 0, {"min": [1.0], "max": [2.0]}), ops=ops))
    assert names(tmp_path / "run") == ["actv_0-0.csv", "actv_0-0_part_1.csv", "actv_0-0_part_2.csv"]
    assert [row["max"] for row in read(tmp_path / "run" / "actv_0-0_part_1.csv")] == ["2", "2"]


def test_columns_of_a_signal_are_written_under_their_names(tmp_path: Path) -> None:
    """A signal without moments writes what it adds."""
    sink = SINKS["csv"](context(tmp_path))
    sink.write(snapshot(0, batch("linear_hook", 0, {"sr": [1.5], "kernel_norm": [2.5]}, shapes=((),))))
    (row,) = read(tmp_path / "run" / "linear_hook_0-0.csv")
    assert list(row) == ["vpp_stage", "name", "step", "sr", "kernel_norm", "shape", "dtype"]
    assert (row["sr"], row["kernel_norm"]) == ("1.5", "2.5")


def test_nothing_measured_is_no_file(tmp_path: Path) -> None:
    """A batch without rows leaves no trace."""
    sink = SINKS["csv"](context(tmp_path))
    sink.open()
    sink.write(snapshot(0, batch("actv", 0, {"min": []}, order=np.array([], dtype=np.int64))))
    assert names(tmp_path / "run") == []


def test_shapes_and_dtypes_may_change_from_step_to_step(tmp_path: Path) -> None:
    """The cache of the step before never shows in this one."""
    sink = SINKS["csv"](context(tmp_path, steps_per_file=9))
    changes: list[dict[str, Any]] = [{}, {"shapes": ((7,),)}, {"dtypes": ("torch.bfloat16",)}, {"keys": (Key("q"),)}]
    for step, fields in enumerate(changes):
        sink.write(snapshot(step, batch("actv", step, {"min": [0.0]}, **fields)))
    rows = read(tmp_path / "run" / "actv_0-8.csv")
    assert [row["shape"] for row in rows] == ["[3, 2]", "[7]", "[3, 2]", "[3, 2]"]
    assert [row["dtype"] for row in rows] == ["torch.float32", "torch.float32", "torch.bfloat16", "torch.float32"]
    assert [row["name"] for row in rows] == ["p0", "p0", "p0", "q"]


@pytest.mark.parametrize("left", ["vpp_st", "vpp_stage,name,step,min,shape,dtype"])
def test_torn_header_is_begun_again(tmp_path: Path, left: str) -> None:
    """A file that was cut inside its header gets a whole one."""
    path = tmp_path / "run" / "actv_0-0.csv"
    path.parent.mkdir()
    path.write_text(left)
    SINKS["csv"](context(tmp_path)).write(snapshot(0, batch("actv", 0, {"min": [1.0]})))
    assert [row["min"] for row in read(path)] == ["1"]


def test_torn_row_is_cut_off_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A row cut inside its quotes would swallow the rows after it."""
    sink = SINKS["csv"](context(tmp_path, steps_per_file=9))
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0]})))
    path = tmp_path / "run" / "actv_0-8.csv"
    with path.open("a") as file:
        file.write('0,p1,0,1,"[3,')
    with caplog.at_level(logging.WARNING, "probe"):
        sink.write(snapshot(1, batch("actv", 1, {"min": [2.0]})))
    assert [(row["name"], row["step"], row["min"]) for row in read(path)] == [("p0", "0", "1"), ("p0", "1", "2")]
    assert "13 bytes" in caplog.text


def test_full_disk_costs_the_step_but_not_the_file(tmp_path: Path) -> None:
    """A write that does not fit raises and leaves no half row; the next one that fits is written."""
    sink = SINKS["csv"](context(tmp_path, steps_per_file=9))
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0] * 10})))
    path = tmp_path / "run" / "actv_0-8.csv"
    before = path.read_bytes()
    with files_of_at_most(len(before) + 100), pytest.raises(OSError):  # noqa: PT011 (which errno is the system's affair)
        sink.write(snapshot(1, batch("actv", 1, {"min": [1.0] * 10})))
    assert path.read_bytes() == before
    sink.write(snapshot(2, batch("actv", 2, {"min": [1.0] * 10})))
    assert [row["step"] for row in read(path)] == ["0"] * 10 + ["2"] * 10


def test_one_bad_file_does_not_keep_others_from_being_written(tmp_path: Path) -> None:
    """The failure is raised, after the other signals have been written."""
    (tmp_path / "run" / "actv_0-0.csv").mkdir(parents=True)
    sink = SINKS["csv"](context(tmp_path))
    with pytest.raises(IsADirectoryError):
        sink.write(snapshot(0, batch("actv", 0, {"min": [1.0]}), batch("exp_avg", 0, {"min": [1.0]})))
    assert len(read(tmp_path / "run" / "exp_avg_0-0.csv")) == 1


def test_directory_removed_or_blocked_comes_back(tmp_path: Path) -> None:
    """A removed directory is made again; one that cannot be made fails until it can."""
    sink = SINKS["csv"](context(tmp_path, steps_per_file=9))
    sink.open()
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0]})))
    shutil.rmtree(tmp_path / "run")
    sink.write(snapshot(1, batch("actv", 1, {"min": [1.0]})))
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").touch()
    with pytest.raises(OSError):  # noqa: PT011
        sink.write(snapshot(2, batch("actv", 2, {"min": [1.0]})))
    (tmp_path / "run").unlink()
    sink.write(snapshot(3, batch("actv", 3, {"min": [1.0]})))
    assert [row["step"] for row in read(tmp_path / "run" / "actv_0-8.csv")] == ["3"]
