"""Commands, configurations and links in the README and the guides."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.main import get_command

from probe.cli import app
from probe.core.config.load import load
from probe.core.config.schema import Settings
from probe.core.older_paths import OLDER_PATHS

ROOT = Path(__file__).parents[1]
GUIDES = [
    *map(ROOT.joinpath, ("README.md", "CONTRIBUTING.md", "docs/llms.txt")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)[^)]*\)")
PATH = re.compile(r"`((?:tests|probe|docs|examples|benchmarks|resources)/[\w./-]+)(?:::(\w+))?`")


class Block(NamedTuple):
    """A piece of code in a guide."""

    language: str
    text: str


def blocks(guide: Path) -> Iterator[Block]:
    """Fenced blocks with a language."""
    for language, text in re.findall(r"^ *```(\w+)\n(.*?)^ *```$", guide.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        yield Block(language, text)


def found(*languages: str) -> list[object]:
    """The blocks of some languages, each with a name for the report of tests."""
    return [
        pytest.param(block, id=f"{guide.name}-{number}")
        for guide in GUIDES
        for number, block in enumerate(blocks(guide))
        if block.language in languages
    ]


def commands() -> list[list[str]]:
    """Arguments of ``probe`` in each line of a command block."""
    texts = (re.sub(r"\\\n(> )?", "", block.text) for guide in GUIDES for block in blocks(guide))  # continued lines
    lines = (line for text in texts for line in text.splitlines())
    typed = (
        shlex.split(re.split(r" > ", line.removeprefix("$ "))[0], comments=True) for line in lines if "probe " in line
    )
    return [words[1:] for words in typed if words[:1] == ["probe"]]


def test_there_are_commands_and_configurations() -> None:
    """So that the tests below are about something."""
    assert {words[0] for words in commands()} >= {
        "anomalies",
        "compare",
        "config",
        "control",
        "csv2db",
        "merge",
        "report",
    }
    assert len(found("json")) >= 5


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_are_understood(words: list[str]) -> None:
    """Every verb, argument and option is one that there is: nothing is left over, nothing missing."""
    command, context, rest = get_command(app), None, words
    while True:
        context = command.make_context("probe", [*rest], parent=context)
        if not hasattr(command, "resolve_command"):
            return
        _, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.parametrize("block", found("json", "yaml"))
def test_configurations_are_correct(block: Block, tmp_path: Path) -> None:
    """Every block that is a configuration, and not a piece of some other file, loads."""
    keys = re.findall(r'^ {0,4}"?([\w.]+)"?:', block.text.replace("{", "{\n"), re.MULTILINE)
    if not set(keys) & set(Settings.model_fields):
        return
    path = tmp_path / f"config.{block.language}"
    path.write_text(block.text, encoding="utf-8")
    assert load(path) != Settings()


@pytest.mark.parametrize("block", found("python"))
def test_what_is_imported_is_there(block: Block) -> None:
    """The module, and the names in it."""
    for node in ast.walk(ast.parse(textwrap.dedent(block.text))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "probe":
            older = OLDER_PATHS.get(str(node.module))
            module = ROOT.joinpath(*(str(node.module) if older is None else older.target).split("."))
            (file,) = (each for each in (module / "__init__.py", module.with_suffix(".py")) if each.exists())
            source = file.read_text("utf-8")
            assert [name.name for name in node.names if not re.search(rf"\b{name.name}\b", source)] == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_what_is_pointed_to_is_there(guide: Path) -> None:
    """Links, files in backticks, and the tests that claims name."""
    text = guide.read_text("utf-8")
    assert [link for link in LINK.findall(text) if not (guide.parent / link).exists()] == []
    for path, test in PATH.findall(text):
        if "<" in path:
            continue
        assert (ROOT / path).exists(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text("utf-8"), (path, test)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_a_page_can_be_read_as_text(guide: Path) -> None:
    """Prose in lines of 120 characters, and tables with cells of 100; code and links of one word may be longer."""
    text = re.sub(
        r"^ *```.*?^ *```$|<!-- benchmarks -->.*<!-- /benchmarks -->", "", guide.read_text("utf-8"), flags=re.S | re.M
    )
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in line.split("|")]
    assert [line for line in lines if len(line) > 120 and " " in line.strip(" -") and line[0] not in "|!"] == []
    assert [cell for cell in cells if len(cell) > 100] == []


def test_files_and_tests_without_a_folder_are_there_too() -> None:
    """Every reference such as ``test_ddp.py::test_x`` or ``test_x`` names a test under ``tests``."""
    files = [(path.name, path.read_text("utf-8")) for path in (ROOT / "tests").rglob("test_*.py")]
    for guide in GUIDES:
        for file, test in re.findall(r"`(test_\w+\.py)?(?:::)?(test_\w+)?`", guide.read_text("utf-8")):
            wanted = f"def {test}(" if test else ""
            assert [name for name, text in files if file in ("", name) and wanted in text], (guide.name, file, test)
