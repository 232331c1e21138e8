"""Demonstration as its users run it: it names the broken layer, and its exit code shows whether it was right."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.records import Finding, Key
from tests.cli.json_schema import answer_of
from tests.required import require

require("torch")

from probe.demo import diagnosis, recipe, training  # noqa: E402
from probe.demo.faults import KINDS, Injection, draw  # noqa: E402
from probe.demo.pytorch import places  # noqa: E402
from probe.demo.pytorch.training import Gpt  # noqa: E402
from probe.demo.recipe import (  # noqa: E402
    Size,
    batches,
    initial_weights,
    standard_library,
)
from probe.demo.report import matches  # noqa: E402
from probe.demo.training import DemoPlan  # noqa: E402

STEPS = 24
SMALL = Size(layers=2, width=48, heads=2, context=16)


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """Runs ``probe demo`` with few steps of a small model on small batches; gives the result."""
    monkeypatch.setattr(recipe, "BATCH", 4)
    monkeypatch.setattr(training, "DemoPlan", partial(DemoPlan, size=SMALL))
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*arguments):
        common = ["--steps", str(STEPS), "--output", str(tmp_path / "out put")]
        return CliRunner().invoke(app, ["demo", *common, *arguments], catch_exceptions=False)

    return run


def fresh(code, *arguments):
    """A fresh interpreter that runs ``code`` and then the command line."""
    code = f"import sys; {code}; sys.argv[0] = 'probe'; from probe.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", KINDS)
def test_the_broken_layer_and_step_are_named(demo, kind):
    """The table's two columns agree, and the command succeeds."""
    result = demo("--seed", "1", "--fault", kind)
    assert result.exit_code == 0, result.output
    layer, broken = re.search(r"│ layer +│ (\S+) +│ (\S+) +│", result.output).groups()
    assert broken in (layer, f"{layer}.weight", f"{layer}.bias")
    assert re.search(r"step +│ 20 +│ 20 ", result.output)
    assert "match: the layer and step" in result.output


def test_a_healthy_run_has_no_finding(demo):
    """Nothing is broken, nothing is found, the command succeeds."""
    result = demo("--seed", "2", "--fault", "none", "--json")
    assert result.exit_code == 0, result.output
    answer = answer_of("demo", result.stdout)
    assert (answer["matched"], answer["injected"], answer["found"]) == (True, None, None)


def test_the_report_of_a_demonstration_is_small(demo, tmp_path):
    """The page has every number, and is below 300 kB."""
    demo("--seed", "1", "--fault", "overflow")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "out put"), "-o", str(tmp_path / "page.html")])
    assert "First cause: overflow" in result.output
    assert (tmp_path / "page.html").stat().st_size <= 300_000


def test_without_a_diagnosis_the_command_fails(demo, monkeypatch):
    """The exit code follows what the monitor named, not what was injected."""
    monkeypatch.setattr(diagnosis, "name_first_bad", lambda findings: None)
    result = demo("--seed", "1", "--fault", "nan")
    assert result.exit_code == 1
    assert "no match" in result.output


def test_progress_and_places_are_printed(demo, monkeypatch):
    """Without a terminal a line every ten steps; then commands that work; without tensorboardX CSV alone."""
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    output = demo("--seed", "4", "--fault", "nan").output
    assert re.findall(r"step +(\d+)/24 .*loss.*monitor.*findings", output) == ["1", "11", "21", "24"]
    command = re.search(r"grep .*", output)[0]
    rows = subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout.splitlines()
    steps = {int(row.split(",")[2]): row for row in rows}
    assert sorted(steps) == list(range(STEPS))
    assert "nan" not in steps[19]
    assert "nan" in steps[20]
    files = Path(re.search(r"^  all files +(.*)$", output, re.MULTILINE)[1])
    assert {"manifest.json", "probe.log"} <= {path.name for path in files.iterdir()}
    assert "probe view 'out put#signal=" in output.replace(str(files.parent), "out put")
    assert "TensorBoard needs tensorboardX" in output
    assert "--logdir" not in output


def test_a_terminal_gets_one_live_line(demo, monkeypatch):
    """Where there is a terminal the line is renewed, and TensorBoard's command is given."""
    require("tensorboardX")
    monkeypatch.setenv("FORCE_COLOR", "1")
    output = demo("--seed", "1", "--fault", "none").output
    assert "\x1b[2K" in output  # erase the line
    assert f"step  {STEPS}/{STEPS}" in output
    assert "tensorboard --logdir" in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fault", "nonsense"], "overflow"),
        (["--steps", "5"], "24"),
        (["--framework", "tensorflow"], "mindspore"),
    ],
)
def test_what_cannot_run_is_refused(arguments, said):
    """Wrong usage ends with 2 and prints the right one."""
    result = CliRunner().invoke(app, ["demo", *arguments])
    assert result.exit_code == 2
    assert said in result.output


def test_a_missing_framework_is_named_with_its_remedy():
    """Without torch the command prints how to install it."""
    done = fresh("sys.modules['torch'] = None", "demo")
    assert done.returncode == 2
    assert "pip install torch" in done.stderr


def finding(name, step, part=""):
    key = Key(name, part)
    signal = "actv" if part else "param_origin"
    return Finding("AnomalyNan", signal, key, "norm", float("nan"), float("nan"), step, 0, 0, "", bool(part))


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ([], False),
        ([finding("layers.1.mlp.fc1", 5, "output")], True),
        ([finding("layers.1.mlp.fc1.weight", 5)], True),
        ([finding("layers.1.mlp.fc1", 4, "output")], False),
        ([finding("layers.1.mlp.fc1", 6, "output")], False),
        ([finding("layers.1.mlp", 5, "output")], False),
        ([finding("layers.1.mlp.fc1", 5, "output"), finding("layers.0.norm1.weight", 5)], False),
    ],
)
def test_a_match_is_the_very_place_and_step(found, right):
    """Neither a neighbour, nor another step, nor a place that is only among the findings counts."""
    injection = Injection("overflow", "layers.1.mlp.fc1", 5, "")
    assert matches(injection, diagnosis.name_first_bad(found)) is right
    assert matches(None, diagnosis.name_first_bad(found)) is (not found)


def test_a_seed_means_one_fault_and_seeds_differ():
    """The same seed gives the same fault; many seeds give every kind, and many places and steps."""
    where = places(Gpt(Size(layers=2, width=16)))
    assert draw(None, where, (16, 60), 7) == draw(None, where, (16, 60), 7)
    faults = [draw(None, where, (16, 60), seed) for seed in range(60)]
    assert {fault.kind for fault in faults} == set(KINDS)
    assert len({fault.place for fault in faults}) > 15
    assert min(fault.step for fault in faults) in range(16, 20)
    assert max(fault.step for fault in faults) in range(55, 60)


def test_the_text_is_real_and_the_same_every_time():
    """Python source, bounded."""
    text = standard_library(100_000)
    assert len(text) == 100_000
    assert text == standard_library(200_000)[:100_000]
    assert b"\nimport " in text


def test_a_seed_means_the_same_weights_and_batches():
    """Matrices are normal, those that add to the residual stream smaller; norms change nothing; targets follow."""
    shapes = {"fc1.weight": (200, 100), "fc2.weight": (100, 200), "norm.weight": (3,), "norm.bias": (3,)}
    weights = initial_weights(shapes, layers=8, seed=1)
    assert {name: values.shape for name, values in weights.items()} == shapes
    assert float(weights["fc1.weight"].std()) == pytest.approx(0.02, rel=0.02)
    assert float(weights["fc2.weight"].std()) == pytest.approx(0.005, rel=0.02)
    assert [weights["norm.weight"].tolist(), weights["norm.bias"].tolist()] == [[1.0] * 3, [0.0] * 3]
    (tokens, targets), (again, _) = next(batches(1, 64, seed=1)), next(batches(1, 64, seed=1))
    assert (tokens == again).all()
    assert (tokens[:, 1:] == targets[:, :-1]).all()
    assert bytes(tokens[0].tolist()) in standard_library()
    assert (next(batches(1, 64, seed=2))[0] != tokens).any()
    assert (initial_weights(shapes, layers=8, seed=2)["fc1.weight"] != weights["fc1.weight"]).any()
