"""Fixtures of the tests on MindSpore."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.required import require


@pytest.fixture
def queued() -> Iterator[None]:
    """Operators that wait in MindSpore's queues, as users have it, while the test lasts."""
    ms = require("mindspore")
    ms.set_context(pynative_synchronize=False)
    yield
    ms.set_context(pynative_synchronize=True)
