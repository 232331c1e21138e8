"""Values changed in a configuration file: the rest stays to the letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from probe.core.settings_edit import change, edit
from probe.core.settings_files import read
from probe.core.settings_problems import ConfigError

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
    before, _ = read(path)
    change(path, {"a.b.c": 1, "collect_times": 3})
    after, _ = read(path)
    assert after == before | {"a": {"b": {"c": 1}}, "collect_times": 3}
    assert [line.partition("//")[2] for line in text.splitlines() if "//" in line] == [
        line.partition("//")[2] for line in path.read_text().splitlines() if "//" in line
    ]


@pytest.mark.parametrize("text", ["{}", "a: 1\n", "# only\nz: [1,\n  2]\n", "{a: 1, b: {c: 2}}\n", YAML])
def test_what_is_missing_is_added_to_yaml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    before, _ = read(path)
    change(path, {"collect_times": 3, "alert.dump": True})
    after, _ = read(path)
    alert = {**(before.get("alert") or {}), "dump": True}
    assert after == before | {"collect_times": 3, "alert": alert}
    assert text.count("#") == path.read_text().count("#")


def test_a_block_in_yaml_is_replaced_as_a_whole() -> None:
    """Down to its last line and no further."""
    edited = edit(YAML, {"targets": {}}, is_yaml=True)
    assert yaml.safe_load(edited) == yaml.safe_load(YAML) | {"targets": {}}
    assert edited.endswith(YAML[YAML.index("alert:") :])


def test_a_file_that_is_no_configuration_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"a": ')
    with pytest.raises(ConfigError):
        change(path, {"a": 1})
    assert path.read_text() == '{"a": '
    assert json.dumps([*tmp_path.iterdir()], default=str).count("c.json") == 1
