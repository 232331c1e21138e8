"""``probe targets`` on files as they come: the existing tool's, mended by hand, broken, of something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from probe.cli import app

SIZE = "size=(2, 2), dtype=torch.float32"
NONE = "<class 'NoneType'>"
EXISTING = {
    "0:layers.0.fc": {
        "input": {"config": "list[1]", "0": SIZE},
        "output": {"config": "tensor", "tensor": SIZE},
        "input_grad": {"config": "tuple[1]", "0": NONE},
        "output_grad": {"config": "tuple[1]", "0": SIZE},
    },
    "0:layers.1.fc": {"input": {"config": "tuple[2]", "0": SIZE, "1": SIZE}},
    "1:layers.0.norm": {"output": {"config": "tuple[3]", "0": NONE, "1": {"config": "list[2]", "0": SIZE, "1": SIZE}}},
}
"""As the existing tool writes it, and one module of another stage with a container inside."""
EXPECTED = {
    "0:layers.0.fc": {"input": "tuple[1]:0", "output": "tensor", "output_grad": "tuple[1]:0"},
    "0:layers.1.fc": {},
    "1:layers.0.norm": {"output": "tuple[3]:1"},
}


def written(folder: Path, content: object) -> Path:
    """A file with this content."""
    path = folder / "module_struct.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def run(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["targets", *map(str, arguments)])


def test_each_module_gets_what_watches_exactly_its_tensors(tmp_path: Path) -> None:
    """Selectors where there is one tensor or container of them, else everything."""
    done = run(written(tmp_path, EXISTING))
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"targets": EXPECTED})


def test_yaml_says_the_same(tmp_path: Path) -> None:
    """Both formats mean one block."""
    done = run(written(tmp_path, EXISTING), "--yaml")
    assert (done.exit_code, yaml.safe_load(done.stdout)) == (0, {"targets": EXPECTED})


@pytest.mark.parametrize("pattern", ["*layers.0*", "layers.0.*"])
def test_match_chooses_by_the_name_with_or_without_its_stage(tmp_path: Path, pattern: str) -> None:
    """A shell pattern for the whole name."""
    done = run(written(tmp_path, EXISTING), "--match", pattern)
    assert list(json.loads(done.stdout)["targets"]) == ["0:layers.0.fc", "1:layers.0.norm"]


def test_match_of_nothing_names_what_is_near(tmp_path: Path) -> None:
    """Wrong use, with the nearest name."""
    done = run(written(tmp_path, EXISTING), "--match", "layers.0.fd")
    assert done.exit_code == 2
    assert "layers.0.fc" in done.stderr


def test_modules_that_did_not_run_are_left_out(tmp_path: Path) -> None:
    """And counted on the error stream, so that what is printed stays a configuration."""
    done = run(written(tmp_path, {**EXISTING, "0:idle": {}}))
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"targets": EXPECTED})
    assert "left out 1 module in" in done.stderr


@pytest.mark.parametrize("match", [["--match", "idle.*"], []], ids=["matching", "all"])
def test_where_no_tensor_was_seen_nothing_is_printed(tmp_path: Path, match: list[str]) -> None:
    """An empty block would watch everything, which is the opposite of what was chosen."""
    idle: dict[str, Any] = {"0:idle.0": {}, "0:idle.1": {"output": {"config": "tensor", "tensor": NONE}}}
    done = run(written(tmp_path, {**EXISTING, **idle} if match else idle), *match)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no tensor was seen in any of 2 modules" in done.stderr


@pytest.mark.parametrize("entry", [3, None, [SIZE], {"input": SIZE}, "tensor"])
def test_an_entry_that_cannot_be_read_is_named_and_the_rest_done(tmp_path: Path, entry: Any) -> None:
    """With exit code 1, since something is missing."""
    done = run(written(tmp_path, {**EXISTING, "0:odd": entry}))
    assert (done.exit_code, json.loads(done.stdout)) == (1, {"targets": EXPECTED})
    assert "0:odd" in done.stderr


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        json.dumps(EXISTING)[:200],
        "[]",
        "3",
        '{"targets": {}, "ops": ["norm"]}',
        '{"rank": 0, "step": 3}',
        '{"a": {"b": {"c": 1}}}',
        "[" * 100_000,
    ],
    ids=["empty", "brace", "truncated", "list", "number", "configuration", "foreign", "foreign mapping", "nested"],
)
def test_what_is_no_such_file_is_wrong_use(tmp_path: Path, content: str) -> None:
    """One line with the file's name, no traceback, nothing printed that could be pasted."""
    done = run(written(tmp_path, content))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "module_struct.json" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_file_is_wrong_use(tmp_path: Path) -> None:
    """The message names it."""
    done = run(tmp_path / "nothing.json")
    assert done.exit_code == 2
    assert "nothing.json" in done.stderr


@pytest.mark.parametrize("config", ["tuple", "tuple[x]", "tuple[1]", "set[2]", 7, None])
def test_a_form_that_no_selector_has_means_everything(tmp_path: Path, config: Any) -> None:
    """Rather than a selector that would be refused or miss the tensor."""
    done = run(written(tmp_path, {"0:fc": {"output": {"config": config, "1": SIZE}}}))
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"targets": {"0:fc": {}}})
