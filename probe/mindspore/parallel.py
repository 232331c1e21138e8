"""What core asks where several processes train. MindSpore holds tensors whole: little differs from one process."""

from __future__ import annotations

from functools import cache
from typing import Any

from probe.core.alone import acting, check_again, has_store, meet, named, pipelined

__all__ = ["acting", "check_again", "has_store", "meet", "named", "pipelined", "store"]


class _Part:
    """What is called ``where/...`` in a store."""

    def __init__(self, kept: Any, where: str) -> None:
        self._kept, self._where = kept, where

    def add(self, key: str, amount: int) -> int:
        return int(self._kept.add(f"{self._where}/{key}", amount))

    def set(self, key: str, value: bytes) -> None:
        self._kept.set(f"{self._where}/{key}", value)

    def get(self, key: str) -> bytes:
        return bytes(self._kept.get(f"{self._where}/{key}"))


def store(where: str, address: tuple[str, int] | None, serves: bool) -> _Part:
    """The part called ``where`` of the store at ``address``.

    Raises:
        ImportError: if this MindSpore has no stores.
        RuntimeError: if there is none at ``address``.
        ValueError: without an address: processes of MindSpore do not meet in a store.
    """
    if address is None:
        raise ValueError("MindSpore's processes do not meet in a store; say at which host and port the first rank is")
    return _Part(_at(*address, serves), f"probe/{where}")


@cache
def _at(host: str, port: int, serves: bool) -> Any:
    """Kept until the process ends: another monitor may use it, on this rank or on others."""
    from mindspore.mint.distributed import TCPStore  # newer than the first MindSpore that is supported

    return TCPStore(host, port, is_master=serves, wait_for_workers=False)
