"""Times since the epoch: which can be written as a date, and how."""

from __future__ import annotations

import math
from datetime import datetime, timezone

EARLIEST, LATEST = -62_135_596_800.0, 253_402_300_799.0
"""First and last second that a date in UTC can have: the years 1 and 9999."""
FUTURE_SECONDS = 86_400.0
"""Most by which the clock of another machine is ahead; a number beyond is no time in seconds (milliseconds, say)."""


def sound_time(seconds: object, now: float) -> float:
    """Return ``seconds`` if that is a time since the epoch which has come, by a clock that may be a day ahead; else
    ``now``."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return now
    return float(seconds) if 0 <= seconds <= now + FUTURE_SECONDS else now  # NaN is in no range


def local_time(seconds: float) -> datetime:
    """Return a time of this machine with its offset from UTC."""
    return datetime.fromtimestamp(seconds).astimezone()


def utc_text(seconds: float) -> str:
    """Return a time in UTC as RFC 3339 writes it, with milliseconds; a time out of range as the nearest date in range.

    >>> utc_text(0)
    '1970-01-01T00:00:00.000Z'
    """
    within = EARLIEST if math.isnan(seconds) else min(max(seconds, EARLIEST), LATEST)
    return datetime.fromtimestamp(within, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
