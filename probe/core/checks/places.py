"""Places in a model: names of parameters, grouped by the modules that they are in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from probe.core.language import message

MOST = 20
"""Places of a finding at most."""
SHOWN = 5
"""Places that a sentence names at most."""


def module_of(name: str) -> str:
    """Return the name of the module that has a parameter; the parameter's own for one of the root."""
    return name.rpartition(".")[0] or name


def ancestors(part: Iterable[str], whole: Iterable[str]) -> tuple[str, ...]:
    """Return the highest modules all of whose parameters are in ``part``, and the parameters in no such module.

    Blocks in a list are named one by one, ``layers.0`` and ``layers.1``, unless they are many.

    Args:
        part: names of parameters, in the order of the result.
        whole: names of all parameters that count, those of ``part`` among them.
    """
    names = list(dict.fromkeys(filter(None, part)))
    inside, outside = Counter[str](), Counter[str]()
    blocks: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        inside.update(_modules(name))
    for name in {*whole, *names} - {""}:
        outside.update(_modules(name))
        for module in _modules(name):
            blocks[module.rpartition(".")[0]].add(module.rpartition(".")[2])

    def is_place(module: str) -> bool:
        few = len(blocks[module]) <= SHOWN and any(block.isdecimal() for block in blocks[module])
        return inside[module] == outside[module] and not few

    places = (next(filter(is_place, _modules(name)), name) for name in names)
    return tuple(dict.fromkeys(places))


def _modules(name: str) -> Iterator[str]:
    """Yield the modules around a parameter, the outermost first, without the root."""
    parts = name.split(".")
    for number in range(1, len(parts)):
        yield ".".join(parts[:number])


def listing(places: Sequence[str]) -> str:
    """Return places for a sentence: ``a, b and 3 more``."""
    if not places:
        return message("parameters without a name")
    first_places = ", ".join(places[:SHOWN])
    more = len(places) - SHOWN
    return message("{places} and {more} more", places=first_places, more=more) if more > 0 else first_places
