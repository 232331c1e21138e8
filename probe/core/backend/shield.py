"""A shield of training against an adapter's own failures, where there is no hook that a run guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Reports(Protocol):
    """Counts failures."""

    def failed(self, where: str, error: Exception) -> None:
        """Something of the adapter's own has failed, and training goes on."""


def shielded(listener: Reports, where: str, function: Callable[..., Result], *args: object) -> Result | None:
    """The result of ``function``; None if it raises, which ``listener`` counts under ``where``."""
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
        listener.failed(where, error)
        return None
