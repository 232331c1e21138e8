"""Answers to :class:`probe.core.backend.protocols.Parallel` where every process holds every tensor whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def acting(optimizer: Any) -> Any:
    """The optimizer itself."""
    return optimizer


def check_again(parameter: Any) -> None:
    """Nothing hides a parameter."""


def pipelined(model: Any) -> bool:  # noqa: ARG001
    """False: one process has no pipeline."""
    return False


def named() -> Mapping[str, Sequence[int]]:
    """No group."""
    return {}


def has_store() -> bool:
    """False."""
    return False


def store(where: str) -> Any:
    """Raises: one process has no store.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"there is no store here for messages about {where}")


def meet(ranks: Sequence[int], where: str, message: bytes, seconds: float) -> Any:
    """Not needed: no tensor is shared out.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"no tensor is shared out here, but ranks {list(ranks)} were to meet at {where}")
