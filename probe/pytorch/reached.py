"""Objects that variables of the program lead to.

The garbage collector knows them all, but whoever holds its list breaks tuples that other threads are filling: CPython
resizes these, and raises SystemError if anybody else has a reference (3.11).
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import probe
from probe.core.backend.call_stack import callers

MOST_OBJECTS, MOST_INSIDE = 20_000, 1000
"""Objects that are looked at, and those of one container."""
CONTAINERS = frozenset({list, tuple, deque, dict, OrderedDict, defaultdict})
HEAP_TYPE = 1 << 9
"""Flag of classes that Python code has made."""
OURS = str(Path(probe.__file__).parent)


def reached() -> Iterator[Any]:
    """Yield objects that the variables of the functions that are running on this thread lead to, and those of the
    script, the nearest first. No code of the user's runs."""
    waiting = deque[Any](dict(frame.f_locals) for frame in callers() if not frame.f_code.co_filename.startswith(OURS))
    waiting.append(vars(sys.modules["__main__"]))
    met = set[int]()
    while waiting and len(met) < MOST_OBJECTS:
        thing = waiting.popleft()
        if id(thing) in met:
            continue
        met.add(id(thing))
        kind = type(thing)
        if kind in CONTAINERS:
            inside = thing.values() if issubclass(kind, dict) else thing
            with suppress(RuntimeError):  # another thread changes it
                waiting.extend([*islice(inside, MOST_INSIDE)])
            continue
        yield thing
        if kind.__flags__ & HEAP_TYPE and not issubclass(kind, (type, ModuleType)):
            with suppress(AttributeError):
                waiting.append(object.__getattribute__(thing, "__dict__"))
