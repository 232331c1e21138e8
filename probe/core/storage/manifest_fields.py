"""What a manifest says, as far as it can be: whoever reads it finds a field as documented, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

MOST_RANKS = 1_000_000
"""More than any run has: what tells of more is not believed."""
HIGHEST = 2**31 - 1
"""Of a step, a stage or a run's number: DuckDB and SQLite hold them in 32 bits."""


class _Field(NamedTuple):
    expected: str
    fits: Callable[[object], bool]


def is_whole(value: object, low: int = 0, high: int = HIGHEST) -> bool:
    """Whether ``value`` is a whole number from ``low`` to ``high``."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def misfit(key: str, value: object) -> str | None:
    """What was expected of a manifest's field ``key`` where ``value`` is not that; None where it fits, or where the
    field is not one that is read."""
    field = _FIELDS.get(key)
    return None if field is None or field.fits(value) else field.expected


def _is_control(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    numbers = all(is_whole(value.get(key, 0)) for key in ("step", "changes", "process"))
    return numbers and isinstance(value.get("file", ""), str)


def _is_groups(value: object) -> bool:
    if not isinstance(value, Mapping):
        return value is None
    return all(isinstance(ranks, list) and all(map(is_whole, ranks)) for ranks in value.values())


_WHOLE = _Field(f"a whole number from 0 to {HIGHEST}", is_whole)
_FIELDS = {
    "rank": _Field(f"a whole number below {MOST_RANKS}", lambda value: is_whole(value, 0, MOST_RANKS - 1)),
    "world_size": _Field(f"at most {MOST_RANKS} ranks", lambda value: is_whole(value, 0, MOST_RANKS)),
    "run": _WHOLE,
    "start_time": _Field("a time such as 2026-11-03T21:34:40+0800", lambda value: isinstance(value, str)),
    "first_step": _WHOLE,
    "pp_stage": _WHOLE,
    "groups": _Field("ranks by the name of a group", _is_groups),
    "config": _Field("a configuration", lambda value: isinstance(value, Mapping)),
    "control": _Field("the followed file, and whole numbers for process, step and changes", _is_control),
    "changes": _Field("a list", lambda value: isinstance(value, list)),
    "cost_seconds": _Field("seconds by what took them", lambda value: isinstance(value, Mapping)),
    "findings": _WHOLE,
    "faults": _Field("counts by kind", lambda value: isinstance(value, Mapping)),
    "resumed": _Field("a list", lambda value: isinstance(value, list)),
}
