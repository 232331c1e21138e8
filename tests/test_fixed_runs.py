"""The proof that moves change no file: :mod:`tests.fixed_runs`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import user_scripts
from tests.fixed_runs.__main__ import ROOT, hashes
from tests.quick_python import quick_python
from tests.required import require

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Trains by an interpreter that has imported torch."""
    require("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", quick_python(*user_scripts.TORCH))
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """One of the runs, and the hashes of its files."""
    root = tmp_path_factory.mktemp("fixed")
    return root, hashes(ROOT, root, ["formats"], ["pytorch"])


def test_a_run_that_is_repeated_hashes_alike(written: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    """Neither clocks nor paths nor numbers of processes are in the hashes, and nothing else in a file varies."""
    _, first = written
    assert hashes(ROOT, tmp_path, ["formats"], ["pytorch"]) == first


def test_every_format_is_hashed(written: tuple[Path, dict[str, str]]) -> None:
    """CSV, Parquet, event files, the tables of a database and the manifest."""
    _, found = written
    for part in (".csv", ".parquet", "events.out.tfevents", ".db/", "manifest.json"):
        assert any(part in name for name in found), part


def test_another_number_hashes_otherwise(written: tuple[Path, dict[str, str]]) -> None:
    """One digit in one cell, one field of the manifest: each is seen."""
    from tests.fixed_runs.contents import content

    root, _ = written
    for pattern, old, new in (("actv_3-3.csv", "fc1.input", "fc1.inputs"), ("manifest.json", '"rank": 0', '"rank": 1')):
        path = next(root.rglob(pattern))
        (_, before), text = next(content(path, root)), path.read_text(encoding="utf-8")
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        (_, after) = next(content(path, root))
        path.write_text(text, encoding="utf-8")
        assert old in text
        assert after != before
