"""Objects that variables of the program lead to."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import probe
from probe.core.backend.call_stack import callers

MOST_OBJECTS, MOST_INSIDE = 5000, 1000
"""Objects that are looked at from the variables of one function on, and those of one container."""
CONTAINERS = frozenset({list, tuple, deque, dict, OrderedDict, defaultdict})
HEAP_TYPE = 1 << 9
"""Flag of classes that Python code has made."""
OURS = str(Path(probe.__file__).parent)


def reached() -> Iterator[Any]:
    """Yield objects that the variables of the script lead to, from Python 3.13 on those of the functions that are
    running on this thread, too: before, a look at these keeps what they hold until they end. No code of the user's
    runs."""
    frames = callers() if sys.version_info >= (3, 13) else ()
    roots = [dict(frame.f_locals) for frame in frames if not frame.f_code.co_filename.startswith(OURS)]
    met = set[int]()
    for root in (*roots, vars(sys.modules["__main__"])):
        waiting, limit = deque[Any]([root]), len(met) + MOST_OBJECTS
        while waiting and len(met) < limit:
            thing = waiting.popleft()
            if id(thing) in met:
                continue
            met.add(id(thing))
            if type(thing) not in CONTAINERS:
                yield thing
            with suppress(RuntimeError):  # another thread changes it
                waiting.extend(islice(_inside(thing), MOST_INSIDE))


def _inside(thing: Any) -> Iterable[Any]:
    """Return what a container holds, or the attributes of an object whose class Python code has made."""
    kind = type(thing)
    if kind in CONTAINERS:
        inside: Iterable[Any] = thing.values() if issubclass(kind, dict) else thing
        return inside
    if kind.__flags__ & HEAP_TYPE and not issubclass(kind, (type, ModuleType)):
        with suppress(AttributeError):
            return [object.__getattribute__(thing, "__dict__")]
    return ()
