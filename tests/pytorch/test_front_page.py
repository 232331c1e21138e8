"""The README and the guide to its output: program, outputs and pictures are real."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests import user_scripts
from tests.pytorch.test_tutorials import OWN, blocks, plain
from tests.quick_python import probe_command
from tests.required import require

require("torch")
ROOT = Path(__file__).parents[2]
README, GUIDE = ROOT / "README.md", ROOT / "docs" / "guides" / "reading.md"
PROGRAM = ROOT / "examples" / "nan.py"
FRONT: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "pictures" / "front.py"))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the commands of both pages print, and those of the same program without its fault."""
    folder = tmp_path_factory.mktemp("front")
    healthy = folder / "healthy.py"
    healthy.write_text(PROGRAM.read_text("utf-8").replace("step != 41", "True"), "utf-8")
    texts = []
    for words in (["--deep", str(PROGRAM)], [str(PROGRAM)], [str(healthy)]):
        command = probe_command("run", *words, modules=user_scripts.TORCH)
        done = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        texts.append(done.stderr)
    return "\n".join(texts)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "MONITOR_OUTPUT_DIR"} | OWN


def test_the_program_of_the_readme_is_the_example() -> None:
    """Letter by letter."""
    assert PROGRAM.read_text("utf-8") in blocks(README, "python")


@pytest.mark.parametrize(("page", "language"), [(README, "console"), (GUIDE, "text")], ids=["readme", "guide"])
def test_the_output_that_is_shown_is_the_programs(page: Path, language: str, printed: str) -> None:
    """But for numbers, marks of the explanation, and what is left out at a line of dots."""
    shown = [block for block in blocks(page, language) if "probe: " in block]
    bare = re.sub(r" +\(\d\)$|^\$ .*$", "", "\n...\n".join(shown), flags=re.MULTILINE)
    pieces = [plain(piece) for piece in re.split(r"^\.\.\.$", bare, flags=re.MULTILINE)]
    assert len([*filter(None, pieces)]) >= 2
    assert [piece for piece in pieces if piece not in plain(printed)] == []


def test_the_bars_are_those_of_the_benchmarks() -> None:
    """Made of the tables of ``docs/benchmarks.md`` as they are now: ``make pictures`` draws them again."""
    charts = [*FRONT["charts_in"]((ROOT / "docs" / "benchmarks.md").read_text("utf-8"))]
    assert FRONT["BARS"].read_text("utf-8") == FRONT["bars"](charts)
    numbers = {f"{number:g}" for chart in charts for tool, number in chart.numbers.items() if tool.startswith("probe")}
    (described,) = re.findall(r"!\[(Faults found.*?)\]", README.read_text("utf-8"))
    assert numbers <= set(re.findall(r"[\d.]+(?=[, ])", f"{described} "))


def test_the_moving_picture_shows_what_the_output_says() -> None:
    """The same layer and step; it has an end that is seen without motion."""
    drawn = FRONT["MOVING"].read_text("utf-8")
    words = ["".join(element.itertext()) for element in ElementTree.fromstring(drawn).iter() if "text" in element.tag]
    (verdict,) = re.findall(r"critical: (NaN in \S+, step \d+)", README.read_text("utf-8"))
    assert f"critical: {verdict}" in words
    assert "prefers-reduced-motion" in drawn
    assert len(drawn) < 20_000
