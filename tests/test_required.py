"""Tests without their packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.required import require, require_installed, require_program


def test_a_package_that_is_there_is_returned() -> None:
    """`require` returns the same module as `import`, dotted names included."""
    assert require("json.decoder") is json.decoder


@pytest.mark.parametrize("name", ["absent_package", "absent_package.part", "json.absent_part"])
@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_absence_skips_for_users_and_fails_in_ci(
    name: str, ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without a framework can run the rest; CI cannot pass without it."""
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match=f"{name} is not installed"):
        require(name)
    require_installed("json", "pytest")
    with pytest.raises(outcome, match="absent_package is not installed"):
        require_installed("json", "absent_package")


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_an_absent_program_is_treated_alike(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first program that is there is taken; none at all skips for users and fails in CI."""
    monkeypatch.setenv("CI", ci)
    assert Path(require_program("absent_program", "python3")).name == "python3"
    with pytest.raises(outcome, match="none of absent_program, absent_too is installed"):
        require_program("absent_program", "absent_too")


def test_a_broken_package_is_no_absent_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure to import inside a package is raised, not skipped."""
    (tmp_path / "broken_package.py").write_text("import absent_package")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="absent_package"):
        require("broken_package")


def test_monitors_of_tests_write_outside_the_repository(output_dir: Path, tmp_path: Path) -> None:
    """The default output directory of every test is its own."""
    assert output_dir.parent == tmp_path
