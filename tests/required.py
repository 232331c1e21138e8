"""Packages that a test cannot do without: their absence skips on a user's machine and fails in CI."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import pytest


def require(name: str) -> Any:
    """The module ``name``, for use at the top of a test module or inside a test.

    A package that is there but broken raises as it is: only absence is excused.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{name}.".startswith(f"{missing.name}."):
            raise
    reason = f"{name} is not installed (make venv)"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)
