"""Conversion to TensorBoard, read back with its own reader and compared with what Python's csv module reads."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.convert.csv2tb import convert as by_pieces
from probe.core.analysis.convert.csv2tb import csv2tensorboard_by_step
from probe.core.analysis.engines.workers import LocalEngine
from tests.core.analysis.cut_engine import CutEngine
from tests.core.storage.run_files import cells_of, write_run

pytestmark = pytest.mark.slow

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

Curves = dict[str, list[tuple[int, float]]]


def read(folder: Path) -> Curves:
    """Step and value of every point, by tag, in the order of the files."""
    events = event_accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def read_all(output: Path) -> dict[str, Curves]:
    """The curves of every folder, by its path."""
    folders = sorted(output.glob("rank*/*"))
    return {str(folder.relative_to(output)): read(folder) for folder in folders}


def written(*directories: tuple[Path, int]) -> dict[str, Curves]:
    """Curves of the ranks' files; of a step that comes twice, the later row."""
    curves: dict[str, dict[str, dict[int, float]]] = {}
    for path, of in directories:
        for (rank, kind, stage, name, micro, op), step, value in cells_of(path, of):
            tag = f"vp{stage}:{name}{f':micro{micro}' if kind == 'actv' else ''}/{op}"
            points = curves.setdefault(f"rank{rank}/{kind}", {}).setdefault(tag, {})
            points[step] = float(np.float32(value))
    return {
        folder: {tag: sorted(points.items()) for tag, points in tags.items()} for folder, tags in sorted(curves.items())
    }


def convert(root: Path, output: Path, **fields: Any) -> Any:
    return csv2tensorboard_by_step(root, output_dirpath=output, **fields)


def test_every_number_of_every_rank_is_there(tmp_path: Path) -> None:
    """Folders, tags, steps and values, whatever lies in how many files."""
    runs = [(write_run(tmp_path, rank, range(9), steps_per_file=4), rank) for rank in (0, 12)]
    done = convert(tmp_path, tmp_path / "tb")
    assert (done.rows, done.files, done.problems.lines()) == (2 * 9 * 6, 2 * 2 * 3, [])
    assert read_all(tmp_path / "tb") == written(*runs)
    assert set(read_all(tmp_path / "tb")) == {"rank0/actv", "rank0/grad_reduced", "rank12/actv", "rank12/grad_reduced"}


def test_tags_and_values_are_those_of_the_existing_tool(tmp_path: Path) -> None:
    """A net of known weights: its input in two micro batches, and its weight's gradient."""
    directory = tmp_path / "Dec03_21-34-40-rank0-1f0c9a3e"
    directory.mkdir()
    (directory / "actv_0-0.csv").write_text(
        "vpp_stage,name,step,micro_step,norm,shape,dtype\n"
        '0,fc.input,0,0,1.732051,"[2, 2]",torch.float32\n0,fc.input,0,1,3.464102,"[2, 2]",torch.float32\n'
    )
    (directory / "grad_reduced_0-0.csv").write_text(
        'vpp_stage,name,step,norm,shape,dtype\n0,fc.weight,0,8.485281,"[3, 2]",torch.float32\n'
    )
    convert(tmp_path, tmp_path / "tb")
    curves = {
        tag: round(points[0][1], 4) for folder in read_all(tmp_path / "tb").values() for tag, points in folder.items()
    }
    assert curves == {
        "vp0:fc.input:micro0/norm": 1.7321, "vp0:fc.input:micro1/norm": 3.4641, "vp0:fc.weight/norm": 8.4853
    }  # fmt: skip


@pytest.mark.parametrize("module", ["torch", "mindspore"])
def test_the_documented_script_runs(tmp_path: Path, module: str) -> None:
    """The import of the documentation, arguments by their names, processes without a main guard."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    framework = {"torch": "pytorch"}.get(module, module)
    directory = write_run(tmp_path, 0, range(3))
    script = tmp_path / "convert.py"
    script.write_text(f"""
print("begun")
from probe.{framework}.csv2tb import csv2tensorboard_by_step
csv2tensorboard_by_step(
    monitor_path={str(tmp_path)!r}, time_start="Dec03_21-34-40", time_end="Dec03_21-34-42", process_num=8,
    data_type_list=["actv"],
)
""")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert ran.stdout.count("begun") == 1
    (output,) = tmp_path.glob("*_csv2tensorboard_by_step")
    assert read_all(output) == {"rank0/actv": written((directory, 0))["rank0/actv"]}


def test_processes_change_nothing(tmp_path: Path) -> None:
    """More of them than there are folders do no harm."""
    for rank in range(2):
        write_run(tmp_path, rank, range(5))
    convert(tmp_path, tmp_path / "one")
    convert(tmp_path, tmp_path / "many", process_num=9)
    assert read_all(tmp_path / "many") == read_all(tmp_path / "one")
    assert len(read_all(tmp_path / "one")) == 4


def test_numbers_that_are_not_finite_survive(tmp_path: Path) -> None:
    """A value beyond float32 is infinite; a missing one is no point."""
    directory = tmp_path / "Dec03_21-34-40-rank0-0"
    directory.mkdir()
    cells = ["nan", "inf", "-inf", "1e300", "-1e300", "1e-30", ""]
    lines = "".join(f"0,p{n},0,{cell},{n}\n" for n, cell in enumerate(cells))
    (directory / "exp_avg_0-0.csv").write_text(f"vpp_stage,name,step,norm,max\n{lines}")
    assert convert(tmp_path, tmp_path / "tb").problems.lines() == []
    curves = read(tmp_path / "tb" / "rank0" / "exp_avg")
    values = [curves[f"vp0:p{n}/norm"][0][1] for n in range(6)]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, math.inf, -math.inf, float(np.float32(1e-30))]
    assert "vp0:p6/norm" not in curves
    assert [curves[f"vp0:p{n}/max"] for n in range(7)] == [[(0, float(n))] for n in range(7)]


def test_a_resumed_run_is_one_curve_and_its_later_steps_are_kept(tmp_path: Path) -> None:
    """Points are in the order of the steps; those that come again are logged once."""
    first = write_run(tmp_path, 0, range(5), time="Nov30_08-00-00")
    second = write_run(tmp_path, 0, range(3, 7), time="Dec01_08-00-00", scale=10)
    done = convert(tmp_path, tmp_path / "tb")
    assert read_all(tmp_path / "tb") == written((first, 0), (second, 0))
    said = [line for line in done.problems.lines() if "actv" in line]
    assert len(said) == 1
    assert "2 steps from 3 to 4 come again in a later directory" in said[0]
    assert not done.problems.skipped


def test_a_run_written_in_two_formats_is_one_curve(tmp_path: Path) -> None:
    """Every point comes once, as the Parquet files have it; what only the CSV files have is there too."""
    pytest.importorskip("duckdb")
    directory = write_run(tmp_path, 0, range(3, 6), steps_per_file=4, sink="parquet")
    write_run(tmp_path, 0, range(8), steps_per_file=2)
    done = convert(tmp_path, tmp_path / "tb")
    expected = written((directory, 0))
    curves = read_all(tmp_path / "tb")
    for folder, tags in expected.items():
        for tag, points in tags.items():
            found = sorted(curves[folder][tag])
            assert [step for step, _ in found] == list(range(8))
            assert [value for _, value in found] == pytest.approx([value for _, value in points], rel=1e-5)
            # The files have six digits, and the numbers more.
            assert [one[1] == other[1] for one, other in zip(found, points, strict=True)] == [
                not 3 <= step < 6 for step in range(8)
            ]
    assert (done.rows, done.problems.lines()) == (8 * 6, [])


def test_a_row_that_comes_twice_is_one_point(tmp_path: Path) -> None:
    """As the later one has it."""
    directory = tmp_path / "Dec03_21-34-40-rank0-0"
    directory.mkdir()
    (directory / "actv_0-0.csv").write_text("vpp_stage,name,step,min\n0,a,0,1\n0,b,0,2\n0,a,0,3\n")
    convert(tmp_path, tmp_path / "tb")
    assert read(tmp_path / "tb" / "rank0" / "actv") == {"vp0:a/min": [(0, 3.0)], "vp0:b/min": [(0, 2.0)]}


def test_large_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that a piece ends and the next goes on with is one step."""
    from probe.core.storage import csv_reader

    directory = write_run(tmp_path, 0, range(5), steps_per_file=10)
    monkeypatch.setattr(csv_reader, "PIECE_BYTES", 100)
    done = convert(tmp_path, tmp_path / "tb")
    assert read_all(tmp_path / "tb") == written((directory, 0))
    assert done.problems.lines() == []


def test_steps_that_were_appended_once_more_are_one_point(tmp_path: Path) -> None:
    """Repeated steps, within a file and in a file of their own, take the later rows, and are logged once."""
    directory = tmp_path / "Dec03_21-34-40-rank0-0"
    directory.mkdir()
    head = "vpp_stage,name,step,min\n"
    (directory / "actv_0-9.csv").write_text(
        head + "0,a,0,1\n0,b,0,2\n0,a,1,3\n0,b,1,x\n0,a,2,5\n0,a,1,6\n0,b,1,7\n0,a,2,8\n0,a,3,9\n"
    )
    (directory / "actv_0-9_part_1.csv").write_text(head + "0,a,0,11\n0,a,3,10\n")
    done = convert(tmp_path, tmp_path / "tb")
    curves = {tag: sorted(points) for tag, points in read(tmp_path / "tb" / "rank0" / "actv").items()}
    assert curves == {"vp0:a/min": [(0, 11.0), (1, 6.0), (2, 8.0), (3, 10.0)], "vp0:b/min": [(1, 7.0)]}
    told = done.problems.lines()
    assert len(told) == 2
    assert "actv_0-9.csv:5: expected a number in column min, got 'x'" in told[0]
    assert "actv: 4 steps from 0 to 3 come again in the same directory: the later rows are taken" in told[1]


def test_rows_may_change_from_step_to_step(tmp_path: Path) -> None:
    """What is remembered of the step before never shows in this one."""
    directory = tmp_path / "Dec03_21-34-40-rank0-0"
    directory.mkdir()
    (directory / "actv_0-3.csv").write_text(
        "vpp_stage,name,step,min\n0,a,0,1\n0,b,0,2\n0,b,1,3\n0,a,1,4\n0,c,2,5\n0,d,2,6\n0,a,300,7\n"
    )
    convert(tmp_path, tmp_path / "tb")
    assert read(tmp_path / "tb" / "rank0" / "actv") == {
        "vp0:a/min": [(0, 1.0), (1, 4.0), (300, 7.0)],
        "vp0:b/min": [(0, 2.0), (1, 3.0)],
        "vp0:c/min": [(2, 5.0)],
        "vp0:d/min": [(2, 6.0)],
    }


def test_names_of_any_script_and_length(tmp_path: Path) -> None:
    """The encoding counts bytes, not letters, also beyond 127 of them."""
    directory = tmp_path / "Dec03_21-34-40-rank0-0"
    directory.mkdir()
    names = ["层.注意力", "a" * 130, 'quo"ted, and more', "b" * 20000]
    rows = "".join('0,"{}",0,{}\n'.format(name.replace('"', '""'), n) for n, name in enumerate(names))
    (directory / "actv_0-0.csv").write_text("vpp_stage,name,step,min\n" + rows)
    convert(tmp_path, tmp_path / "tb")
    assert read(tmp_path / "tb" / "rank0" / "actv") == {
        f"vp0:{name}/min": [(0, float(n))] for n, name in enumerate(names)
    }


def test_a_bad_file_is_told_and_the_rest_of_its_kind_is_converted(tmp_path: Path) -> None:
    """Exit code 1, the file and the line; the files after it are there."""
    directory = write_run(tmp_path, 0, range(4))
    (directory / "actv_1-1.csv").write_text("vpp_stage,name,step,min\n0,a,1,word\n0,b,1,2\n")
    (directory / "actv_2-2.csv").write_text("something else\n")
    ran = CliRunner().invoke(app, ["csv2tb", str(tmp_path), "-o", str(tmp_path / "tb"), "-j", "2"])
    assert ran.exit_code == 1
    assert "actv_1-1.csv:2: expected a number in column min, got 'word'" in ran.stdout
    assert "actv_2-2.csv:1: expected a header" in ran.stdout
    curves = read(tmp_path / "tb" / "rank0" / "actv")
    assert [step for step, _ in curves["vp0:fc.input:micro0/min"]] == [0, 3]
    assert curves["vp0:b/min"] == [(1, 2.0)]


def test_what_a_worker_cannot_do_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    """A folder that cannot be made: exit code 1; the other folders are whole."""
    directory = write_run(tmp_path, 0, range(2))
    (tmp_path / "tb" / "rank0").mkdir(parents=True)
    (tmp_path / "tb" / "rank0" / "actv").touch()
    ran = CliRunner().invoke(app, ["csv2tb", str(tmp_path), "-o", str(tmp_path / "tb"), "-j", "2"])
    assert ran.exit_code == 1
    assert "rank0/actv: FileExistsError" in ran.stdout
    assert read(tmp_path / "tb" / "rank0" / "grad_reduced") == written((directory, 0))["rank0/grad_reduced"]


def test_curves_are_never_doubled(tmp_path: Path) -> None:
    """A second conversion into the same folder is refused, another kind may join."""
    write_run(tmp_path, 0, range(2))
    convert(tmp_path, tmp_path / "tb", data_type_list=["actv"])
    with pytest.raises(ValueError, match="there are curves already"):
        convert(tmp_path, tmp_path / "tb")
    convert(tmp_path, tmp_path / "tb", data_type_list=["grad_reduced"])
    assert set(read_all(tmp_path / "tb")) == {"rank0/actv", "rank0/grad_reduced"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"data_type_list": ["activation"]}, "there is no activation; there are actv, grad_reduced"),
        ({"data_type_list": "actv"}, "expected a list of names"),
        ({"process_num": 0}, "process_num: expected a whole number from 1"),
        ({"process_num": 2.5}, "process_num: expected a whole number"),
        ({"time_start": "Dec04_00-00-00"}, "no directory from Dec04_00-00-00 to the last; there are Dec03_21-34-40"),
    ],
)
def test_wrong_use_is_told(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    """What was expected and what is there; nothing is made."""
    write_run(tmp_path / "run", 0, [0])
    with pytest.raises(ValueError, match=said):
        convert(tmp_path / "run", tmp_path / "tb", **fields)
    assert not (tmp_path / "tb").exists()


def test_memory_does_not_grow_with_the_steps(tmp_path: Path) -> None:
    """Ten times the steps of a file take no more memory to convert."""
    program = """
import sys
from probe.core.analysis.convert.csv2tb import convert
done = convert(sys.argv[1], output_dirpath=sys.argv[2])
status = open("/proc/self/status").read()  # ru_maxrss would include what the process that started this one held
print(done.rows, status.partition("VmHWM:")[2].split()[0])
"""
    peaks = []
    for steps in (60, 600):
        directory = tmp_path / str(steps) / "Dec03_21-34-40-rank0-0"
        directory.mkdir(parents=True)
        with (directory / "actv_0-999.csv").open("w") as file:
            file.write("vpp_stage,name,step,micro_step,min,max\n")
            for step in range(steps):
                file.writelines(f"0,layers.{n}.input,{step},0,{n / 7:.6g},{step / 7:.6g}\n" for n in range(500))
        command = [sys.executable, "-c", program, str(directory.parent), str(tmp_path / f"tb{steps}")]
        rows, peak = subprocess.check_output(command, text=True).split()
        assert int(rows) == steps * 500
        peaks.append(int(peak))
    assert peaks[1] < peaks[0] + (8 << 10), peaks  # KiB


def test_nothing_but_event_files_is_left(tmp_path: Path) -> None:
    """Not what they were called before they were complete."""
    write_run(tmp_path, 0, range(2))
    convert(tmp_path, tmp_path / "tb")
    names = [name for _, _, files in os.walk(tmp_path / "tb") for name in files]
    assert len(names) == 2
    assert all(name.startswith("events.out.tfevents.") for name in names)


def test_pieces_change_nothing(tmp_path: Path) -> None:
    """The same curves, numbers and problems in any number of pieces, in any order and in other processes."""
    for rank in range(5):
        directory = write_run(tmp_path / "run", rank, range(5))
        if rank % 2:
            path = next(directory.glob("actv_*.csv"))
            path.write_text(path.read_text()[:-9])
    plain = by_pieces(tmp_path / "run", output_dirpath=tmp_path / "plain")
    assert plain.rows
    assert len(plain.problems.lines()) == 2
    engines = [*(CutEngine(number, seed=number) for number in (1, 2, 7)), LocalEngine(2)]
    for n, engine in enumerate(engines):
        done = by_pieces(tmp_path / "run", output_dirpath=tmp_path / str(n), engine=engine)
        assert (done.rows, done.files, done.problems) == (plain.rows, plain.files, plain.problems)
        assert read_all(tmp_path / str(n)) == read_all(tmp_path / "plain")
        assert not list((tmp_path / str(n)).glob(".*"))


def test_a_failed_piece_is_named(tmp_path: Path) -> None:
    """Its ranks have no curves, and the conversion is not complete."""
    for rank in range(3):
        write_run(tmp_path / "run", rank, range(3))
    done = by_pieces(tmp_path / "run", output_dirpath=tmp_path / "tb", engine=CutEngine(3, failing=[1]))
    assert done.problems.lines() == [f"{tmp_path / 'run'}: rank 1: OSError: the machine is gone: left out"]
    assert done.problems.skipped
    assert sorted(path.name for path in (tmp_path / "tb").iterdir()) == ["rank0", "rank2"]


def test_the_command_has_engines(tmp_path: Path) -> None:
    """``--engine local -j 2`` converts by ranks; another name is wrong use."""
    for rank in range(2):
        write_run(tmp_path / "run", rank, range(3))
    command = ["csv2tb", str(tmp_path / "run"), "-o", str(tmp_path / "tb"), "--engine"]
    assert CliRunner().invoke(app, [*command, "nowhere"]).exit_code == 2
    result = CliRunner().invoke(app, [*command, "local", "-j", "2"])
    assert result.exit_code == 0
    assert len(read_all(tmp_path / "tb")) == 4
