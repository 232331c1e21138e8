"""Fixtures of tests on MindSpore."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def graph_mode() -> Iterator[None]:
    """MindSpore's other mode, for one test."""
    import mindspore

    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
