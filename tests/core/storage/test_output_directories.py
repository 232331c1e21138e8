"""Directories and the manifest."""

from __future__ import annotations

import json
import locale
import math
import os
import random
import re
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest

from probe.core.storage import run_directory
from probe.core.storage.files import append, open_for_append, replacing


def test_root_is_the_environment_variable_with_home_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` is the home directory; without the variable, or with an empty one, the default is used."""
    monkeypatch.setenv("HOME", "/somewhere")
    assert run_directory.output_root({"MONITOR_OUTPUT_DIR": "~/out put"}) == Path("/somewhere/out put")
    assert (
        run_directory.output_root({}) == run_directory.output_root({"MONITOR_OUTPUT_DIR": ""}) == Path("monitor_output")
    )


def test_directory_is_named_after_the_time_in_shanghai(tmp_path: Path) -> None:
    """2 December, 20:04:05 UTC is 3 December, 04:04:05 there."""
    now = datetime(2024, 12, 2, 20, 4, 5, tzinfo=timezone.utc).timestamp()
    directory = run_directory.create(tmp_path / "输出 目录", run_directory.directory_name(3, now))
    assert directory.is_dir()
    assert re.fullmatch(r"Dec03_04-04-05-rank3-[0-9a-f]{8}", directory.name)


def test_months_are_english_in_any_locale(tmp_path: Path) -> None:
    """Readers look for English names; Python's ``%b`` would follow the locale."""
    before = locale.setlocale(locale.LC_TIME)
    for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "zh_CN.UTF-8", "C"):
        try:
            locale.setlocale(locale.LC_TIME, name)
        except locale.Error:
            continue
        now = datetime(2024, 5, 1, tzinfo=timezone.utc).timestamp()
        made = run_directory.create(tmp_path, run_directory.directory_name(0, now))
        locale.setlocale(locale.LC_TIME, before)
        assert made.name.startswith("May01_08-00-00-")


def test_directories_of_one_second_differ_and_leave_random_alone(tmp_path: Path) -> None:
    """The same seed gives different directories, and the training's random numbers go on as they would have."""
    random.seed(1)
    expected = random.random()
    random.seed(1)
    first, second = (run_directory.create(tmp_path, run_directory.directory_name(0, 0.0)) for _ in range(2))
    assert random.random() == expected
    assert first != second


def test_manifest_is_strict_json_with_a_schema(tmp_path: Path) -> None:
    """Numbers that JSON lacks are strings, text is UTF-8, and what JSON does not know is text."""
    fields = {
        "model": "模型",
        "lr": np.float32("nan"),
        "nested": [{"a": (math.inf, -math.inf)}],
        "path": Path("x y"),
        "rank": np.int64(0),
    }
    run_directory.write_manifest(tmp_path / "gone", fields)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = (tmp_path / "gone" / "manifest.json").read_bytes().decode("utf-8")
    assert json.loads(text, parse_constant=refuse) == {
        "schema": 1, "model": "模型", "lr": "nan", "nested": [{"a": ["inf", "-inf"]}], "path": "x y", "rank": 0
    }  # fmt: skip
    assert "模型" in text


def test_manifest_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """A failed update leaves the earlier manifest, and nothing else."""

    class Unprintable:
        def __str__(self) -> str:
            raise ValueError("no text")

    run_directory.write_manifest(tmp_path, {"end": None})
    with pytest.raises(ValueError, match="no text"):
        run_directory.write_manifest(tmp_path, {"end": Unprintable()})
    assert json.loads((tmp_path / "manifest.json").read_text()) == {"schema": 1, "end": None}
    run_directory.write_manifest(tmp_path, {"end": 5.0})
    assert json.loads((tmp_path / "manifest.json").read_text())["end"] == 5.0
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_manifest_takes_names_that_are_no_unicode(tmp_path: Path) -> None:
    """A path of undecodable bytes is escaped, not an error."""
    run_directory.write_manifest(tmp_path, {"path": "a\udc80"})
    assert json.loads((tmp_path / "manifest.json").read_bytes())["path"] == "a\udc80"


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    """The system reports only that there is no room."""
    full, table = Path("/dev/full"), tmp_path / "table.csv"
    if not full.exists():
        pytest.skip("no /dev/full")
    with open_for_append(full) as file, pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        append(file, b"rows")
    (tmp_path / f".table.csv.{os.getpid()}.tmp").symlink_to(full)
    with pytest.raises(OSError, match=re.escape(f"No space left on device: '{table}'")), replacing(table) as text:
        text.write("rows")
    assert [*tmp_path.iterdir()] == []
