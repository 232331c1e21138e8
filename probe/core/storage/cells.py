"""What the cells of a table say, back as records."""

from __future__ import annotations

import re

from probe.core.records import Coverage, Key
from probe.core.storage.manifest_fields import MOST_RANKS

_COVERAGE = re.compile(r"(\d+) of \[(.*)\] (at|term) (.*) over ranks (.*)")
_PART = re.compile(r"(?:(.*)\.)?((?:input|output)(?:_\d+)?|pre|post)", re.DOTALL)
_WITH_PARTS = frozenset({"actv", "actv_grad", "other"})
"""Signals whose rows are about a part of what has the name."""


def key_of(signal: str, name: str, micro_step: int, call: int, stage: int) -> Key:
    """The key of a row whose cell ``name`` is as :func:`probe.core.naming.cell_name` writes it."""
    if call:
        name = name.removesuffix(f".call{call}")
    part = _PART.fullmatch(name) if signal in _WITH_PARTS else None
    if part is None:
        return Key(name, "", micro_step, call, stage)
    return Key(part[1] or "", part[2], micro_step, call, stage)


def shape_of(text: str | None) -> tuple[int, ...]:
    """``[3, 2]`` or ``(3, 2)``; a scalar's if there is none.

    Raises:
        ValueError: if it is neither.
    """
    return tuple(int(size) for size in (text or "").strip("[]()").split(",") if size.strip())


def coverage_of(text: str | None) -> Coverage | None:
    """What :meth:`probe.core.records.Coverage.text` has written; None for a whole tensor."""
    found = _COVERAGE.fullmatch(text or "")
    if found is None:
        return None
    _, shape, kind, part, ranks = found.groups()
    return Coverage(shape_of(shape), part, ranks_of(ranks), kind == "term")


def ranks_of(text: str) -> tuple[int, ...]:
    """What :func:`probe.core.records.ranks_text` has written: ``0-3``, ``0-6:2`` or ``0,1,5``.

    Raises:
        ValueError: if it is none of these, or more than ``MOST_RANKS``.
    """
    span, _, stride = text.partition(":")
    first, dash, last = span.partition("-")
    if dash:
        ranks = range(int(first), int(last) + 1, int(stride or 1))
        if last > first and int(last) - int(first) > MOST_RANKS:
            raise ValueError(f"expected at most {MOST_RANKS} ranks, got {text}")
        return tuple(ranks)
    return tuple(int(rank) for rank in text.split(",") if rank)
