"""Runs every test of this folder on every framework."""

from __future__ import annotations

import gc
import os
from importlib import import_module
from pathlib import Path

import pytest

from tests.matrix.harness import FRAMEWORKS, Harness
from tests.matrix.known_differences import KNOWN_DIFFERENCES, without
from tests.required import require

FOLDER = Path(__file__).parent
COMPILED = ("test_metrics", "test_promises", "test_signals")
os.environ.setdefault("GLOG_v", "4")  # MindSpore logs its warnings to the terminal


@pytest.fixture(params=FRAMEWORKS, scope="session")
def framework(request: pytest.FixtureRequest) -> Harness:
    """The harness of each framework in turn."""
    entry = FRAMEWORKS[request.param]
    require(entry.package)
    harness: Harness = import_module(entry.harness)
    _freeze()
    return harness


@pytest.fixture(autouse=True, scope="module")
def _freeze_what_is_there() -> None:
    """Tests of a file that collect garbage, or look at all objects, do so among their own."""
    _freeze()


@pytest.fixture(autouse=True)
def _updates_as_written(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each optimizer of MindSpore compiles its update, for longer than most tests take. Those of the signals do, and
    those of :mod:`tests.mindspore`; in others its Python runs."""
    if request.path.stem not in COMPILED:
        monkeypatch.setenv("MS_JIT", "0")


def _freeze() -> None:
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(feature): leaves out the frameworks that lack it by construction")
    config.addinivalue_line("markers", "lacks(feature): for the frameworks that lack it, to say what happens then")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what a framework cannot do by construction; what is listed as a difference must fail."""
    impossible = [item for item in items if not _applies(item)]
    items[:] = [item for item in items if item not in impossible]
    config.hook.pytest_deselected(items=impossible)
    for item in items:
        name = _framework_of(item)
        if name and (reason := KNOWN_DIFFERENCES.get((without(name, f"{item.path.name}::{item.name}"), name))):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def _framework_of(item: pytest.Item) -> str | None:
    """The framework that a test runs on; None for tests of other folders, and for those of no framework."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or not item.path.is_relative_to(FOLDER):
        return None
    name: str | None = callspec.params.get("framework")
    return name


def _applies(item: pytest.Item) -> bool:
    """Return whether a test is for a feature that its framework has, or lacks."""
    name = _framework_of(item)
    lacking = frozenset() if name is None else FRAMEWORKS[name].lacks
    needed, missed = (
        {feature for marker in item.iter_markers(kind) for feature in marker.args} for kind in ("needs", "lacks")
    )
    return not needed & lacking and missed <= lacking
