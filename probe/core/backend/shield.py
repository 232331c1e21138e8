"""Protection of training against an adapter's own failures outside the hooks that a run guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Reports(Protocol):
    """Counter of failures."""

    def failed(self, where: str, error: Exception) -> None:
        """Count a failure of the adapter itself, after which training continues."""


def shielded(listener: Reports, where: str, function: Callable[..., Result], *args: object) -> Result | None:
    """Return the result of ``function``; None if it raises, which ``listener`` counts under ``where``."""
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
        listener.failed(where, error)
        return None
