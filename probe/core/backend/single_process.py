"""Functions of :class:`probe.core.backend.protocols.Parallel` for processes that hold every tensor whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def acting(optimizer: Any) -> Any:
    """Return the optimizer itself."""
    return optimizer


def check_again(parameter: Any) -> None:
    """Accept every parameter: nothing hides one."""


def pipelined(model: Any) -> bool:  # noqa: ARG001
    """Return False: one process has no pipeline."""
    return False


def named() -> Mapping[str, Sequence[int]]:
    """Return no group."""
    return {}


def has_store() -> bool:
    """Return False."""
    return False


def store(where: str) -> Any:
    """Raise NotImplementedError: one process has no store."""
    raise NotImplementedError(f"there is no store here for messages about {where}")


def meet(ranks: Sequence[int], where: str, message: bytes, seconds: float) -> Any:
    """Raise NotImplementedError: no tensor is distributed."""
    raise NotImplementedError(f"no tensor is shared out here, but ranks {list(ranks)} were to meet at {where}")
