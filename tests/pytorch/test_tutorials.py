"""The tutorials: scripts run as a reader runs them and do what their pages claim; pages show their code and output."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from tests import user_scripts
from tests.core.trackers.wandb_file import read_runs
from tests.quick_python import probe_command, quick_python
from tests.required import require, require_version

require("torch")
require("duckdb")
ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "tutorial"
PAGES = {path.stem: path for path in sorted((ROOT / "docs" / "tutorial").glob("*.md"))}
OWN = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOG_v": "4"}


class Tutorial(NamedTuple):
    """What a script has left."""

    folder: Path
    printed: str

    def probe(self, *words: str) -> dict:
        """What a command prints as JSON about these files."""
        command = probe_command(*words, "--json")
        done = subprocess.run(
            command, cwd=self.folder, env=os.environ | OWN, capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def tutorials(tmp_path_factory):
    """Runs a script once, in a folder that has nothing else, with the working directory's own output."""
    done: dict[str, Tutorial] = {}

    def ran(name: str) -> Tutorial:
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            environment = {key: value for key, value in os.environ.items() if key != "MONITOR_OUTPUT_DIR"} | OWN
            script = started(name, folder, environment)
            assert script.returncode == 0, script.stderr
            done[name] = Tutorial(folder, script.stdout)
        return done[name]

    return ran


def started(name: str, folder: Path, environment: dict[str, str]):
    """The end of a script, forked from a process that has imported its framework."""
    command = [str(SCRIPTS / f"{name}.py")]
    if name == "with_wandb":
        path = f"{ROOT}{os.pathsep}{require_version('wandb-0.31.0')}"
        environment = {**environment, "PYTHONPATH": path, "WANDB_SILENT": "true"}
    elif name == "from_mindspore_transformers":
        require("mindspore")
        return user_scripts.ran(user_scripts.forks(*user_scripts.MINDSPORE), command, folder, environment)
    command = [quick_python(*user_scripts.TORCH), *command]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def plain(text: str) -> str:
    """A text without line breaks, rules of tables and digits, which differ between widths and machines."""
    return re.sub(r"\s+", " ", re.sub(r"\d+([.,]\d+)*(e-?\d+)?", "0", text.replace("─", ""))).strip()


def test_every_script_has_a_page_and_every_page_a_script() -> None:
    """Files beside them are imported by the scripts."""
    scripts = {path.stem for path in SCRIPTS.glob("*.py")}
    assert scripts - set(PAGES) == {"command_line", "model", "pictures"}
    assert set(PAGES) <= scripts


@pytest.mark.parametrize("name", PAGES)
def test_the_code_of_a_page_is_the_scripts(name: str) -> None:
    """Letter by letter, or the model's, or that of a configuration beside it."""
    files = [SCRIPTS / f"{name}.py", SCRIPTS / "model.py", *SCRIPTS.glob("*.json"), *SCRIPTS.glob("*.yaml")]
    code = "".join(path.read_text("utf-8") for path in files)
    shown = [block for language in ("python", "json", "yaml") for block in blocks(PAGES[name], language)]
    assert shown
    assert [block for block in shown if block not in code] == []


@pytest.mark.parametrize("name", PAGES)
def test_the_output_of_a_page_is_the_scripts(name: str, tutorials) -> None:
    """Numbers aside, and what a page leaves out at a line of dots."""
    printed = plain(tutorials(name).printed)
    pieces = [
        piece for block in blocks(PAGES[name], "text") for piece in re.split(r"^\.\.\.$", block, flags=re.MULTILINE)
    ]
    assert pieces
    assert [piece for piece in pieces if plain(piece) not in printed] == []
    typed = [line for block in blocks(PAGES[name], "console") for line in block.splitlines() if line.startswith("$ ")]
    assert [line for line in typed if line not in tutorials(name).printed] in ([], ["$ probe merge monitor_output"])


@pytest.mark.parametrize("name", PAGES)
def test_the_pictures_of_a_page_are_made_by_its_script(name: str, tutorials) -> None:
    """Each picture that a page shows comes out of the script, as an image with something drawn in it."""
    shown = re.findall(r"\]\(\.\./pictures/([\w.]+)\)", PAGES[name].read_text("utf-8"))
    assert sorted(shown) == sorted(path.name for path in tutorials(name).folder.glob("*.svg"))
    for picture in shown:
        drawn = {
            element.tag.rpartition("}")[2] for element in ElementTree.parse(tutorials(name).folder / picture).iter()
        }
        assert drawn >= {"svg", "text", "path"}


def test_a_watched_run_learns_and_has_a_report(tutorials) -> None:
    """The loss falls, nothing is found, and the page is there."""
    run = tutorials("watch_a_run")
    losses = [float(loss) for loss in re.findall(r"loss (\S+) findings 0", run.printed)]
    assert losses[-1] < losses[0] / 10
    assert (run.folder / "report.html").stat().st_size > 100_000


def test_the_nan_is_found_where_it_was_planted(tutorials) -> None:
    """The norm, at the step of the empty sample; guarded, its gradient; without that sample, nothing."""
    run = tutorials("find_a_nan")
    first = run.probe("anomalies", "broken")["diagnosis"]["first"]
    assert (first["name"], first["step"], first["rank"]) == ("layers.0.norm.output", 23, 0)
    guarded = run.probe("anomalies", "guarded")["diagnosis"]["first"]
    assert (guarded["signal"], guarded["name"], guarded["step"]) == ("actv_grad", "layers.0.norm.input", 23)
    assert run.probe("anomalies", "repaired")["diagnosis"] is None


def test_the_first_difference_is_the_function_that_was_exchanged(tutorials) -> None:
    """And a repeated run has none."""
    run = tutorials("compare_two_runs")
    assert run.probe("compare", "yesterday", "again", "--rtol", "0")["same"]
    first = run.probe("compare", "yesterday", "today", "--rtol", "1e-5")["first"][0]
    assert (first["name"], first["step"]) == ("layers.0.act.output", 0)


def test_the_rank_that_read_the_bad_sample_is_named(tutorials) -> None:
    """Rank 1, though both ranks' weights became NaN."""
    run = tutorials("several_ranks")
    first = run.probe("anomalies", "ranks")["diagnosis"]["first"]
    assert (first["name"], first["step"], first["rank"]) == ("layers.0.norm.output", 12, 1)


def test_the_first_cause_stands_beside_the_programs_losses(tutorials) -> None:
    """In the program's own run of W&B, all of whose losses are at their steps; files are sent to another one."""
    own, sent = read_runs(tutorials("with_wandb").folder / "wandb")
    assert [row["_step"] for row in own.rows if "loss" in row] == list(range(30))
    assert "NaN in layers.0.norm.output, step 23" in own.summary["probe/first_cause"]
    assert any("layers.0.norm.output" in title for title, _, _ in own.alerts)
    assert [row["probe/step"] for row in sent.rows if "probe/actv/norm_max" in row] == list(range(30))


def test_files_are_where_msprobe_has_them(tutorials) -> None:
    """For the same training, the same files with the same columns and rows, apart from their order."""
    folder = tutorials("from_msprobe").folder
    (theirs,), (ours,) = ((*(folder / root).glob("*-rank0-*"),) for root in ("msprobe_output", "monitor_output"))
    files = sorted(path.name for path in theirs.iterdir())
    assert files == sorted(path.name for path in ours.glob("*.csv"))
    for name in files:
        table, other = (csv.DictReader((each / name).open(newline="")) for each in (theirs, ours))
        assert table.fieldnames == other.fieldnames
        places = [[(row["name"], row["step"]) for row in each] for each in (table, other)]
        assert sorted(places[0]) == sorted(places[1])


def test_the_layer_is_named_that_the_lines_of_mindspore_transformers_leave_open(tutorials) -> None:
    """Their norms are NaN in every layer at that step."""
    run = tutorials("from_mindspore_transformers")
    bad = re.findall(r"step:\[ +9/ +12\] local_norm/(\S+): nan", run.printed)
    assert {name.partition(".fc")[0] for name in bad} == {"layers.0", "layers.1"}
    first = run.probe("anomalies", "watched")["diagnosis"]["first"]
    assert (first["name"], first["step"], first["rank"]) == ("layers.0.norm.output", 8, 0)
