"""Values changed in a configuration file: the rest stays to the letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from probe.core.config.edit import change, edit
from probe.core.config.errors import ConfigError
from probe.core.config.parse import read

JSON = """// my run
{
    "targets": {"a.b": {}},  // "dynamic_on": true is not here
    "dynamic_on": true, /* on */
    "alert": {"rules": [], "dump": false},
    "eps": 1e-8, // last
}
"""
YAML = """# my run
dynamic_on: true   # on
targets:
  a.b: {}
alert:
  rules: []
  dump: false # no
ops: [norm, min] # two
"""


@pytest.mark.parametrize(
    ("key", "value", "before", "after"),
    [
        ("dynamic_on", False, '"dynamic_on": true, /*', '"dynamic_on": false, /*'),
        ("alert.dump", True, '"dump": false}', '"dump": true}'),
        ("targets", {"c": {}}, '"targets": {"a.b": {}},', '"targets": {"c": {}},'),
        ("eps", 0.5, '"eps": 1e-8, //', '"eps": 0.5, //'),
    ],
)
def test_only_the_value_changes_in_json(key: str, value: Any, before: str, after: str) -> None:
    assert before in JSON
    assert edit(JSON, {key: value}, is_yaml=False) == JSON.replace(before, after)


def test_json_without_blanks_stays_without() -> None:
    """A value begins right behind its colon."""
    assert edit('{"eps":1,"dynamic_on":true}', {"eps": 20}, is_yaml=False) == '{"eps":20,"dynamic_on":true}'


@pytest.mark.parametrize(
    ("key", "value", "before", "after"),
    [
        ("dynamic_on", False, "dynamic_on: true   #", "dynamic_on: false   #"),
        ("alert.dump", True, "dump: false #", "dump: true #"),
        ("ops", ["max"], "ops: [norm, min] #", 'ops: ["max"] #'),
    ],
)
def test_only_the_value_changes_in_yaml(key: str, value: Any, before: str, after: str) -> None:
    assert before in YAML
    assert edit(YAML, {key: value}, is_yaml=True) == YAML.replace(before, after)


@pytest.mark.parametrize("text", ["{}", "{ }", '{"a": 1}', '{"a": {}}', "{\n}", '{\n  "z": 1 // one\n}', JSON])
def test_what_is_missing_is_added_to_json(tmp_path: Path, text: str) -> None:
    """And everything that was there means what it meant; comments are still there."""
    path = tmp_path / "c.json"
    path.write_text(text)
    before = read(path).values
    change(path, {"a.b.c": 1, "collect_times": 3})
    after = read(path).values
    assert after == before | {"a": {"b": {"c": 1}}, "collect_times": 3}
    assert [line.partition("//")[2] for line in text.splitlines() if "//" in line] == [
        line.partition("//")[2] for line in path.read_text().splitlines() if "//" in line
    ]


@pytest.mark.parametrize("text", ["{}", "a: 1\n", "# only\nz: [1,\n  2]\n", "{a: 1, b: {c: 2}}\n", YAML])
def test_what_is_missing_is_added_to_yaml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    before = read(path).values
    change(path, {"collect_times": 3, "alert.dump": True})
    after = read(path).values
    alert = {**(before.get("alert") or {}), "dump": True}
    assert after == before | {"collect_times": 3, "alert": alert}
    assert text.count("#") == path.read_text().count("#")


def test_a_block_in_yaml_is_replaced_as_a_whole() -> None:
    """Down to its last line and no further."""
    edited = edit(YAML, {"targets": {}}, is_yaml=True)
    assert yaml.safe_load(edited) == yaml.safe_load(YAML) | {"targets": {}}
    assert edited.endswith(YAML[YAML.index("alert:") :])


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("apply_at_step:\ndynamic_on: true\n", {"apply_at_step": 4}),
        ("apply_at_step: # none yet\ndynamic_on: true\n", {"apply_at_step": 4}),
        ("dynamic_on: true\napply_at_step:", {"apply_at_step": 4}),
        ("ops:\n- norm\n- max\neps: 1\n", {"ops": ["min"]}),
        ("a: &yes true\ndynamic_on: *yes\nb: *yes\n", {"dynamic_on": False}),
        ("{a: &yes true, dynamic_on: *yes, b: *yes}\n", {"dynamic_on": False}),
        ("base: &base\n  dynamic_on: true\n<<: *base\n", {"dynamic_on": False}),
        ("dynamic_on: &unused true\n", {"dynamic_on": False}),
    ],
)
def test_yaml_as_people_write_it_stays_usable(tmp_path: Path, text: str, changes: dict[str, Any]) -> None:
    """Empty values, lists below their keys, aliases: what was not to change means what it meant."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    before = yaml.safe_load(text)
    change(path, changes)
    assert yaml.safe_load(path.read_text()) == before | changes


@pytest.mark.parametrize(
    ("text", "key"),
    [("dynamic_on: &on true\nb: *on\n", "dynamic_on"), ("a: &a {dump: true}\nalert: *a\n", "alert.dump")],
)
def test_what_others_refer_to_is_not_changed(tmp_path: Path, text: str, key: str) -> None:
    """Their values would change too, or be lost: it is an error, and the file stays."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{key} cannot be changed alone"):
        change(path, {key: False})
    assert path.read_text() == text


@pytest.mark.parametrize(("name", "text"), [("c.json", '{\n\t"a": 1\n}\n'), ("c.yaml", "# 1\na: 1\n")])
def test_a_file_of_another_system_stays_one(tmp_path: Path, name: str, text: str) -> None:
    """Its line endings, and the mark at its beginning."""
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    change(path, {"a": 2, "dynamic_on": True})
    written = path.read_bytes()
    assert written.startswith(b"\xef\xbb\xbf")
    assert written.count(b"\n") == written.count(b"\r\n") == text.count("\n") + 1
    assert read(path)[0] == {"a": 2, "dynamic_on": True}


def test_who_could_write_the_file_still_can(tmp_path: Path) -> None:
    """Its rights stay, and a link goes on leading to it."""
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text('{"a": 1}')
    real.chmod(0o660)
    link.symlink_to(real)
    change(link, {"a": 2})
    assert (link.is_symlink(), real.stat().st_mode & 0o777, json.loads(real.read_text())) == (True, 0o660, {"a": 2})


def test_a_file_that_is_no_configuration_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"a": ')
    with pytest.raises(ConfigError):
        change(path, {"a": 1})
    assert path.read_text() == '{"a": '
    assert json.dumps([*tmp_path.iterdir()], default=str).count("c.json") == 1
