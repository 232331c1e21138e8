"""Tensors inside arguments and outputs of modules: nested tuples, lists, mappings and dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

DEPTH = 8
"""Levels of nesting that are searched."""


def leaves(value: object, depth: int = DEPTH) -> Iterator[object]:
    """Yield all leaves of ``value`` in order, including None and other non-tensors, so that places are stable."""
    for inner in children(value) if depth else [value]:
        if inner is value:
            yield value
        else:
            yield from leaves(inner, depth - 1)


def children(value: object) -> list[Any]:
    """Return the direct elements of a container; ``[value]`` for anything else."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (tuple, list)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return [value]


def kind(value: object) -> str:
    """Return the name of ``value`` in an element selector: ``tuple``, ``list``, ``dict``, ``tensor``."""
    if isinstance(value, (tuple, list)):
        return "tuple" if isinstance(value, tuple) else "list"
    return "dict" if isinstance(value, Mapping) or dataclasses.is_dataclass(value) else "tensor"


def numbered(values: list[Any], is_tensor: Callable[[object], bool], place: str) -> list[tuple[str, Any]]:
    """Return tensors among ``values`` with their parts: ``input`` if it is the only value, else ``input_0``, ..."""
    if len(values) == 1:
        return [(place, values[0])] if is_tensor(values[0]) else []
    return [(f"{place}_{i}", value) for i, value in enumerate(values) if is_tensor(value)]
