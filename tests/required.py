"""Packages that a test cannot do without: their absence skips on a user's machine and fails in CI."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest


def require_program(*names: str) -> str:
    """The path of the first of the programs ``names`` that is installed."""
    found = next(filter(None, map(shutil.which, names)), None)
    return found or absent(f"none of {', '.join(names)} is installed")


def require_version(package: str) -> Path:
    """The folder of an older package that ``make venv`` keeps apart, such as ``duckdb-1.5.6``."""
    found = Path(sys.prefix) / "versions" / package
    return found if found.exists() else absent(f"{package} is not installed (make venv)")


def require_installed(*names: str) -> None:
    """Do without the import of packages that only other processes of a test import."""
    for name in names:
        if find_spec(name) is None:
            absent(f"{name} is not installed (make venv)")


def require(name: str) -> Any:
    """The module ``name``, for use at the top of a test module or inside a test.

    A package that is there but broken raises as it is: only absence is excused.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{name}.".startswith(f"{missing.name}."):
            raise
    return absent(f"{name} is not installed (make venv)")


def require_compiled() -> None:
    """Go on only where the C compiler has made the library of the compiled pass."""
    if not import_module("probe.core.backend.fused_reduce").available:
        absent("probe/core/backend/_fused.so is not there: no C compiler when probe was installed (make venv)")


def absent(reason: str) -> NoReturn:
    """Skip on a user's machine, and fail in CI, because of ``reason``."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)
