"""Replacing an attribute for a while, where a framework offers no hook."""

from __future__ import annotations

from collections.abc import Callable

_ABSENT = object()


def replace(owner: object, name: str, replacement: object) -> Callable[[], None]:
    """Sets an attribute of an object or class.

    Returns:
        What puts back the very thing that was there, or takes the attribute away if it was inherited; if somebody else
        has replaced it since, it does nothing.
    """
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, replacement)

    def restore() -> None:
        if vars(owner).get(name) is not replacement:
            return
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    return restore
