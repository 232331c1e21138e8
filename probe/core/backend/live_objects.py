"""Objects of the process that are of a kind."""

from __future__ import annotations

import gc
from itertools import chain
from typing import Any


def instances(*kinds: type) -> list[Any]:
    """Return the objects whose classes are ``kinds`` or derived from one of them, as the garbage collector knows them.

    Nobody may hold its list of all objects while another thread runs: CPython resizes tuples that are being filled,
    and raises SystemError in the thread that fills one if anybody else refers to it (3.10 to 3.13). So the classes that
    have objects are read in one call without Python code, and then those objects alone, which refer to their classes.
    """
    classes = list(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))  # the list lives within this call
    present = dict(zip(map(id, classes), classes, strict=True)).values()  # by identity: metaclasses define hashes
    wanted = [cls for cls in present if any(kind in cls.__mro__ for kind in kinds)]
    named = {id(cls) for cls in wanted}
    return [thing for thing in gc.get_referrers(*wanted) if id(type(thing)) in named] if wanted else []
