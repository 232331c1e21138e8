"""Tensors inside arguments and outputs of modules: nested tuples, lists, dicts, named tuples and dataclasses.

No code of the user's runs: containers are read by their exact class, or as their framework's registry declares. What
reading might change (a lazy mapping, a subclass of dict) is left alone.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MemberDescriptorType
from typing import Any, cast

DEPTH = 8
"""Levels of nesting that are searched."""
MOST = 4096
"""Elements that are searched, of all levels together."""
BEYOND = f"elements beyond the first {MOST}"

Unpack = Callable[[Any], Sequence[Any]]
"""Function that returns the direct elements of a container."""
PLAIN_KEYS = (str, int, float, bool, type(None))
_DICTS = (dict, OrderedDict, defaultdict)
_registries: list[Callable[[type], Unpack | None]] = []
_stored: dict[type, Unpack | None] = {}
"""Functions that read containers of classes without an entry in a registry."""


def consult(registry: Callable[[type], Unpack | None]) -> None:
    """Read containers of classes that a framework knows as its registry declares, which returns None for others."""
    _registries.append(registry)


def leaves(value: object, left: Callable[[str], object] = lambda _: None) -> Iterator[object]:
    """Yield all leaves of ``value`` in order, including None and other non-tensors, so that places are stable.

    Args:
        left: receives the name of a class whose instance is left alone, or :data:`BEYOND`.
    """
    return _walk(value, DEPTH, [MOST], left)


def _walk(value: object, depth: int, budget: list[int], left: Callable[[str], object]) -> Iterator[object]:
    kind = type(value)
    unpack = _unpack(kind) if depth else None
    if unpack is None:
        if _is_left_alone(kind):
            left(f"{kind.__module__}.{kind.__qualname__}")
        yield value
        return
    for element in unpack(value):
        if not budget[0]:
            left(BEYOND)
            return
        budget[0] -= 1
        yield from _walk(element, depth - 1, budget, left)


def children(value: object) -> Sequence[Any]:
    """Return the direct elements of a container; ``[value]`` for anything else."""
    unpack = _unpack(type(value))
    return [value] if unpack is None else unpack(value)


def keys(value: object) -> list[str]:
    """Return the keys of a dict as text; an empty list for anything else."""
    if not issubclass(type(value), dict) or _unpack(type(value)) is None:
        return []
    names: Iterable[object] = dict.keys(cast("dict[object, object]", value))
    return [str(key) if type(key) in PLAIN_KEYS else type(key).__name__ for key in islice(names, MOST)]


def kind(value: object) -> str:
    """Return the name of ``value`` in an element selector: ``tuple``, ``list``, ``dict``, ``tensor``."""
    of = type(value)
    if _unpack(of) is None:
        return "tensor"
    return next((known.__name__ for known in (tuple, list) if issubclass(of, known)), "dict")


def numbered(values: Iterable[Any], is_tensor: Callable[[object], bool], place: str) -> list[tuple[str, Any]]:
    """Return tensors among ``values`` with their parts: ``input`` if it is the only value, else ``input_0``, ..."""
    found = list(values)
    if len(found) == 1:
        return [(place, found[0])] if is_tensor(found[0]) else []
    return [(f"{place}_{i}", value) for i, value in enumerate(found) if is_tensor(value)]


def _unpack(kind: type) -> Unpack | None:
    """Return the function that reads containers of a class; None if there is none."""
    for registry in () if kind in _EXACT else _registries:
        if (unpack := registry(kind)) is not None:
            return unpack
    if kind not in _stored:
        _stored[kind] = _of_class(kind)
    return _stored[kind]


def _of_class(kind: type) -> Unpack | None:
    if kind in _EXACT:
        return _EXACT[kind]
    if issubclass(kind, tuple) and type(vars(kind).get("_fields", getattr(kind, "_fields", None))) is tuple:
        return lambda value: [*tuple.__iter__(value)]
    if (fields := getattr(kind, "__dataclass_fields__", None)) is None:
        return None
    if issubclass(kind, dict):  # as outputs of models in transformers
        return lambda value: [*islice(dict.values(value), MOST + 1)]
    return lambda value: [_member(value, name) for name in fields]


def _member(value: object, name: str) -> object:
    """Return what an object stores under ``name``, None if nothing: no property or ``__getattr__`` runs."""
    for kind in type(value).__mro__:
        slot = vars(kind).get(name)
        if type(slot) is MemberDescriptorType:
            try:
                return slot.__get__(value, kind)
            except AttributeError:
                return None
    try:
        held: dict[str, object] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return held.get(name)


def _is_left_alone(kind: type) -> bool:
    """Return whether instances of a class may hold tensors, and cannot be read without effect."""
    if kind in _EXACT:  # too deep
        return False
    if kind not in _opaque:
        _opaque[kind] = _unpack(kind) is None and issubclass(kind, (Mapping, list, tuple, deque))
    return _opaque[kind]


_EXACT: dict[type, Unpack] = {
    tuple: lambda value: value,
    list: lambda value: value,
    deque: lambda value: [*islice(value, MOST + 1)],
    **dict.fromkeys(_DICTS, lambda value: [*islice(value.values(), MOST + 1)]),
}
"""Classes of containers that run no code of the user's."""
_opaque: dict[type, bool] = {}
