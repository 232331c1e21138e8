"""Folders of msprobe's Monitor V2, as that tool writes them."""

from __future__ import annotations

import json
from pathlib import Path

from probe.core.storage.directories import find, last_run
from probe.core.storage.problems import Problems
from tests.tables import Row, read
from tests.view.view_process import viewing

MODULE = """vpp_stage,step,module_name,scope,min,norm
-1,0,fc.input.0,forward,0.5,2.0
-1,0,fc.output.0,forward,1.5,3.0
-1,0,fc.output.1,forward,1.0,3.5
-1,0,fc.input.0,forward,0.25,2.5
-1,0,fc.grad_input.0,backward,0.125,4.0
"""
WEIGHTS = """vpp_stage,step,module_name,scope,micro_step,min,norm
1,3,1:fc.weight,unreduced,1,0.5,2.0
1,3,1:fc.weight,reduced,1,0.75,3.0
1,x,1:fc.weight,reduced,1,0.75,3.0
"""
STATE = """vpp_stage,step,module_name,scope,min,norm
0,0,fc.weight.exp_avg,exp_avg,0.5,nan
0,0,exp_avg_sq.fc.weight.exp_avg_sq,exp_avg_sq,0.25,1.0
"""


def write(root: Path, rank: int = 0) -> None:
    """A rank's folder."""
    folder = root / f"rank_{rank}"
    folder.mkdir(parents=True)
    for name, text in (("module", MODULE), ("optimizer", STATE)):
        (folder / f"{name}_step0-1.csv").write_text(text)
    (folder / "weight_grad_step2-3.csv").write_text(WEIGHTS)


def test_rows_have_the_names_and_numbers_of_ours(tmp_path: Path) -> None:
    """Places, stages, states, and a module's repetitions, which are those of micro batches."""
    write(tmp_path / "out")
    problems = Problems()
    (directory,) = find(tmp_path / "out", problems)
    rows = read(directory.path)
    assert (directory.rank, directory.first_step) == (0, 0)
    assert {row: numbers["norm"] for row, numbers in rows.items() if row.signal != "exp_avg"} == {
        Row("actv", 0, "fc.input", 0): 2.0,
        Row("actv", 0, "fc.input", 1): 2.5,
        Row("actv", 0, "fc.output_0", 0): 3.0,
        Row("actv", 0, "fc.output_1", 0): 3.5,
        Row("actv_grad", 0, "fc.input", 0): 4.0,
        Row("grad_unreduced", 3, "fc.weight", 0, 0, 1): 2.0,
        Row("grad_reduced", 3, "fc.weight", 0, 0, 1): 3.0,
        Row("exp_avg_sq", 0, "fc.weight"): 1.0,
    }
    assert Row("exp_avg", 0, "fc.weight") in rows
    (problem,) = problems.kept
    assert str(problem).startswith(f"{tmp_path / 'out' / 'rank_0' / 'weight_grad_step2-3.csv'}:4: ")


def test_ranks_are_one_run(tmp_path: Path) -> None:
    """Also if a rank is given alone; a file that grows is read again."""
    for rank in (0, 1):
        write(tmp_path, rank)
    assert last_run(tmp_path, Problems()).ranks == (0, 1)
    assert last_run(tmp_path / "rank_1", Problems()).ranks == (1,)
    with (tmp_path / "rank_0" / "module_step0-1.csv").open("a") as file:
        file.write("-1,1,fc.input.0,forward,0.5,9.0\n")
    first, _ = find(tmp_path, Problems())
    assert read(first.path)[Row("actv", 1, "fc.input")]["norm"] == 9.0


def test_runs_of_ours_come_before_it(tmp_path: Path) -> None:
    """A folder that has directories of ranks is read as it is."""
    write(tmp_path)
    (own := tmp_path / "Dec03_21-34-40-rank0-1f0c9a3e").mkdir()
    (own / "manifest.json").write_text(json.dumps({"schema": 1, "rank": 0, "world_size": 1}))
    (own / "actv_0-0.csv").write_text("vpp_stage,name,step,micro_step,norm\n0,fc.input,0,0,1.0\n")
    assert [directory.path for directory in find(tmp_path, Problems())] == [own]


def test_the_page_shows_them_and_follows_no_link_out(tmp_path: Path) -> None:
    """The run is in the list and its curve has its numbers; the server stays confined otherwise."""
    write(tmp_path / "runs" / "out")
    write(tmp_path / "elsewhere")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    with viewing(tmp_path / "server", tmp_path / "runs") as server:
        (run,) = server.get("/api/runs")["runs"]
        assert run["location"] == str(tmp_path / "runs" / "out")
        assert [signal["name"] for signal in server.get("/api/runs/0")["signals"]][:1] == ["actv"]
        row = server.get("/api/runs/0/row", signal="actv", row="fc.output_0", rank=0, step=0)
        assert row["values"]["norm"] == 3.0
