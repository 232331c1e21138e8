"""Configuration files as people mistype them: each mistake in plain words, with its line; and files that are traps."""

from __future__ import annotations

import logging
import os
import re
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from probe.core.config.edit import change
from probe.core.config.errors import ConfigError
from probe.core.config.load import load
from probe.core.config.parse import MOST_JSON, MOST_YAML
from probe.core.config.schema import Settings


def refused(path: Path, text: str) -> tuple[str, ...]:
    """The problems of a file, without its name."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert all(problem.startswith(f"{path}:") for problem in caught.value.problems), caught.value.problems
    return tuple(problem.removeprefix(f"{path}:") for problem in caught.value.problems)


MISTAKES = {
    "Python's True": ('{\n"wg_distribution": True\n}', "2:20", "expected a value, got True; write true"),
    "Python's None": ('{\n"ndigits": None,\n"eps": 1}', "2:12", "expected a value, got None; write null"),
    "Python's False in a list": ('{"ops": [False]}', "1:10", "expected a value, got False; write false"),
    "single quotes": ("{\n 'eps': 1}", "2:2", 'expected double quotes, got a single quote; write "..."'),
    "a value in single quotes": ("{\"format\": 'csv'}", "1:12", "got a single quote"),
    "a # comment": ('{\n# all\n"eps": 1}', "2:1", "got #; JSON has no # comments: write //"),
    "a # comment behind": ('{\n"eps": 1 # all\n}', "2:10", "got #; JSON has no # comments: write //"),
    "an early end": ('{\n"alert": {\n"dump": true\n\n', "3:13", "the { of line 2 is not closed; add what is missing"),
    "an early end in a list": ('{"ops": ["norm",\n', "1:17", "the [ of line 1 is not closed"),
    "an early end of a fragment": ('"eps":\n', "1:7", "got the end of the file"),
    "an early end in a text": ('{"format": "cs', "1:12", 'close the text "cs'),
    "a text over two lines": ('{"format": "cs\nv"}', "1:15", 'close the text "cs'),
    "a key without quotes": ("{\neps: 1}", "2:1", 'expected a key in double quotes, got eps; write "eps"'),
    "a text without quotes": ('{"format": csv}', "1:12", 'write texts in double quotes: "csv"'),
    "a comma left out": ('{"eps": 1\n"ndigits": 2}', "2:1", 'expected a comma, got "ndigits"; write a comma before it'),
    "a comma too many": ('{"ops": ["norm",, "max"]}', "1:17", "expected a value, got ,"),
    "a value left out": ('{"eps": , "ndigits": 2}', "1:9", "expected a value, got ,"),
    "a colon left out": ('{"eps"}', "1:7", "expected a colon and a value after the key"),
    "an equals sign": ('{"eps" = 1}', "1:8", "expected a colon, got ="),
    "two mappings": ('{"eps": 1}\n{"ndigits": 2}', "2:1", "expected the end of the file, got {"),
    "a single backslash": (r'{"x": "train.py\[23\]"}', "1:16", "expected a doubled backslash"),
    "a tab in a text": ('{"x": "a\tb"}', "1:9", "got a control character"),
    "a number of another language": ('{"eps": .5}', "1:9", "such as 10, 0.5 or 1e-8, got .5"),
    "a number with a leading zero": ('{"start_step": 010}', "1:17", "got 010"),
    "a comment without an end": ('{"eps": 1 /* one }', "1:11", "a comment that begins with /* ends with */"),
    "a stray sign": ('{"eps": @}', "1:9", "expected a text in double quotes, a number"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_json_is_named_in_plain_words(tmp_path: Path, mistake: str) -> None:
    """The place, what was expected, what came and what to write."""
    text, place, words = MISTAKES[mistake]
    (problem,) = refused(tmp_path / "a.json", text)
    assert problem.startswith(f"{place}: not valid JSON: expected ")
    assert words in problem
    assert "got " in problem


@pytest.mark.parametrize(
    ("name", "text", "problems"),
    [
        ("a.json", '{\n"eps": -1,\n// x\n"ops": [\n"norm",\n"men"]}', {"2": "eps", "6": "ops[1]"}),
        ("a.json", '{"alert": {\n"rules": [\n{\n"args": {}}]}}', {"3": "alert.rules[0].rule_name"}),
        ("a.json", '{"targets": {\n"fc": {\n"inptu": "tensor"}}}', {"3": "targets.fc.inptu"}),
        ("a.json", '{"eps": 1,\n"eps": 2}', {"2": "eps"}),
        ("a.json", '\n"eps": -1,\n"ndigits": 99', {"2": "eps", "3": "ndigits"}),
        ("a.json", '{\n"collect_times": ' + "9" * 5000 + "}", {"2": "collect_times"}),
        ("a.yaml", "eps: -1\nops:\n  - norm\n  - men\n", {"1": "eps", "4": "ops[1]"}),
        ("a.yaml", "alert:\n  rules:\n    - args: {}\n", {"3": "alert.rules[0].rule_name"}),
        ("a.yaml", "eps: 1\n# again\neps: 2\n", {"3": "eps"}),
        ("a.yaml", "targets:\n  a: &a {}\n  b: *a\n  c: &c {x: 1}\n", {"4": "targets.c.x"}),
    ],
)
def test_every_problem_of_a_file_has_the_line_of_its_key(
    tmp_path: Path, name: str, text: str, problems: dict[str, str]
) -> None:
    """Or, for a key that is missing, the line of the mapping that it is missing in."""
    found = refused(tmp_path / name, text)
    assert {problem.split(": ")[0]: problem.split(": ")[1] for problem in found} == problems


def test_a_fragment_is_read_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Documentation prints keys without braces around them."""
    path = tmp_path / "a.json"
    path.write_text('// the first layer\n"targets": {\n    "fc": {}\n},\n"wg_distribution": true,\n')
    with caplog.at_level(logging.WARNING, "probe.settings"):
        assert load(path) == load({"targets": {"fc": {}}, "wg_distribution": True})
    (message,) = caplog.messages
    assert message.startswith(f"{path}: no braces around the keys")


def test_a_fragment_can_be_changed(tmp_path: Path) -> None:
    """In dynamic mode dynamic_on is written into it, and everything else stays as it is."""
    path = tmp_path / "a.json"
    path.write_text('"eps": 1, // small\n"dynamic_on": true')
    change(path, {"dynamic_on": False, "ndigits": 3})
    assert path.read_text() == '"ndigits": 3,"eps": 1, // small\n"dynamic_on": false'


def bomb(levels: int) -> str:
    """YAML in which each level repeats the one before nine times."""
    lines = ["targets:", "  a0: &a0 [x]"]
    lines += [f"  a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)]
    return "\n".join(lines) + "\n"


READING = """
import resource, sys, time
from probe.core.config.errors import ConfigError
from probe.core.config.load import load
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
begun = time.process_time()
try:
    load(sys.argv[1])
except ConfigError as error:
    print(str(error))
print(time.process_time() - begun)
"""


def reading(path: Path) -> tuple[str, float]:
    """Check a file in a process of its own, with 2 GiB; return its output and its seconds of work."""
    done = subprocess.run([sys.executable, "-c", READING, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text, _, seconds = done.stdout.strip().rpartition("\n")
    return text, float(seconds)


@pytest.mark.parametrize("levels", [7, 400])
def test_aliases_that_multiply_are_refused(tmp_path: Path, levels: int) -> None:
    """Few bytes that would become gigabytes cost no more than their bytes."""
    path = tmp_path / "a.yaml"
    path.write_text(bomb(levels))
    text, seconds = reading(path)
    assert f"{path}:8: expected at most 200000 values" in text
    assert "write fewer aliases" in text
    assert seconds < 2


def test_merged_mappings_that_multiply_are_refused(tmp_path: Path) -> None:
    """Aliases behind << count as well."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 30)]
    assert "expected at most 200000 values" in refused(tmp_path / "a.yaml", "\n".join(lines))[0]


def test_an_alias_for_many_targets_is_taken(tmp_path: Path) -> None:
    """One anchor for three thousand modules is accepted."""
    path = tmp_path / "a.yaml"
    lines = ["targets:", "  m0: &all {input: tensor, output: tensor}", *(f"  m{n}: *all" for n in range(1, 3000))]
    path.write_text("\n".join(lines))
    targets = load(path).targets
    assert len(targets) == 3000
    assert targets["m2999"] == targets["m0"]


@pytest.mark.parametrize(("name", "most"), [("a.json", MOST_JSON), ("a.yaml", MOST_YAML)])
def test_a_file_that_is_too_large_is_refused(tmp_path: Path, name: str, most: int) -> None:
    """One byte more than is read, however many follow."""
    path = tmp_path / name
    path.write_text("{" + " " * (most - 2) + "}")
    assert load(path) == Settings()
    assert f" expected at most {most} bytes, got more; name fewer targets" in refused(path, "{" + " " * most + "}")[0]
    with path.open("ab") as file:
        file.truncate(1 << 40)
    begun = time.process_time()
    with pytest.raises(ConfigError, match="expected at most"):
        load(path)
    assert time.process_time() - begun < 1


def test_a_value_that_is_large_is_shown_in_part(tmp_path: Path) -> None:
    """No message is made of the whole."""
    path = tmp_path / "a.json"
    many = "[" + ", ".join(["1"] * 50_000) + "]"
    (problem,) = refused(path, f'{{"eps": {many}}}')
    assert problem == "1: eps: expected a number >= 0, got [" + "1, " * 25 + "1..."
    (problem,) = refused(path, f'{{"{"k" * 100_000}": 1}}')
    assert len(problem) < 500
    assert f"{'k' * 197}...: " in problem
    assert "k" * 198 not in problem


def test_many_problems_are_counted_and_the_first_listed(tmp_path: Path) -> None:
    """A file of fifty thousand unknown keys is refused within seconds, in a message that can be read."""
    path = tmp_path / "a.json"
    path.write_text("{" + ", ".join(f'"k{n}": 1' for n in range(50_000)) + "}")
    text, seconds = reading(path)
    assert len(text.splitlines()) == 53
    assert text.splitlines()[0] == f"{path}: 50000 problems in the configuration"
    assert text.splitlines()[-2] == "and 49950 more"
    assert seconds < 5


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (fifo, "pipe"),
        (listening, "socket"),
        (Path.mkdir, "directory"),
        (lambda path: path.symlink_to("/dev/zero"), "device"),
    ],
    ids=["pipe", "socket", "directory", "device"],
)
def test_only_regular_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, kind: str) -> None:
    """Anything else is refused at once, such as a pipe without a writer."""
    monkeypatch.chdir(tmp_path)
    make(Path("a.json"))
    with pytest.raises(ConfigError, match=rf"a\.json: expected a regular file, this is a {kind}; give the path"):
        load("a.json")


def test_reading_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """Neither of what is read nor of what is refused."""
    (tmp_path / "a.json").write_text("{}")
    os.mkfifo(tmp_path / "b.json")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, hard), hard))
    try:
        for _ in range(300):
            load(tmp_path / "a.json")
            with pytest.raises(ConfigError, match="this is a pipe"):
                load(tmp_path / "b.json")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dump": True}, "dump: unknown key; it belongs in the section alert; move it there"),
        ({"cc_codeline": []}, "cc_codeline: unknown key; it belongs in the section cc_distribution; move it there"),
        ({"targets": {"fc": {"all_xy": True}}}, "targets.fc.all_xy: unknown key; it belongs at the top of the file"),
        (
            {"alert": {"rules": [{"rule_name": "AnomalyNan", "threshold": 1}]}},
            "alert.rules[0].threshold: unknown key; it belongs in the section alert.rules.args",
        ),
    ],
)
def test_a_key_of_another_section_is_named_with_its_own(values: dict[str, object], words: str) -> None:
    """Before training, as every unknown key."""
    with pytest.raises(ConfigError, match=re.escape(words)):
        load(values)
