"""Runs every test of this folder on every framework."""

from __future__ import annotations

import os
from importlib import import_module

import pytest

from tests.matrix.harness import FRAMEWORKS, Harness
from tests.matrix.known_differences import KNOWN_DIFFERENCES
from tests.required import require

os.environ.setdefault("GLOG_v", "4")  # MindSpore logs its warnings to the terminal


@pytest.fixture(params=FRAMEWORKS, scope="session")
def framework(request: pytest.FixtureRequest) -> Harness:
    """The harness of each framework in turn."""
    entry = FRAMEWORKS[request.param]
    require(entry.package)
    harness: Harness = import_module(entry.harness)  # type: ignore[assignment]
    return harness


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(feature): leaves out the frameworks that lack it by construction")
    config.addinivalue_line("markers", "lacks(feature): for the frameworks that lack it, to say what happens then")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what a framework cannot do by construction; what is listed as a difference must fail."""
    impossible = [item for item in items if not _applies(item)]
    items[:] = [item for item in items if item not in impossible]
    config.hook.pytest_deselected(items=impossible)
    for item in items:
        if reason := KNOWN_DIFFERENCES.get(difference_of(item)):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def difference_of(item: pytest.Item) -> tuple[str, str]:
    """How ``KNOWN_DIFFERENCES`` calls a test: its id without the framework, and the framework."""
    name = _framework_of(item)
    if name is None:
        return item.nodeid, ""
    head, _, rest = item.name.partition("[")
    others = rest.removesuffix("]").split("-")
    others.remove(name)
    test = f"{head}[{'-'.join(others)}]" if others else head
    return f"{item.path.name}::{test}", name


def _framework_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("framework")


def _applies(item: pytest.Item) -> bool:
    """Whether a test is for what its framework has, or lacks."""
    name = _framework_of(item)
    lacking = frozenset() if name is None else FRAMEWORKS[name].lacks
    needed, missed = (
        {feature for marker in item.iter_markers(kind) for feature in marker.args} for kind in ("needs", "lacks")
    )
    return not needed & lacking and missed <= lacking
