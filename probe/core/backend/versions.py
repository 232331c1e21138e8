"""Check of the oldest version of a framework that an adapter supports."""

from __future__ import annotations

import re


def require_version(adapter: str, package: str, installed: str, oldest: str) -> None:
    """Refuse a framework that is older than ``oldest``; accept a version that does not begin with a number.

    Args:
        adapter: the module that is being imported.
        installed: the framework's ``__version__``, such as ``2.13.0+cpu``.
        oldest: numbers and dots only.

    Raises:
        ImportError: if it is older.
    """
    if not is_at_least(installed, oldest):
        raise ImportError(
            f"{adapter}: expected {package} >= {oldest}, got {installed}. "
            f'Install a newer one in this environment: pip install "{package}>={oldest}"'
        )


def is_at_least(installed: str, oldest: str) -> bool:
    """Return whether ``installed`` is at least ``oldest``, or does not begin with a number."""
    numbers = _numbers(installed)
    return not numbers or numbers >= _numbers(oldest)


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
