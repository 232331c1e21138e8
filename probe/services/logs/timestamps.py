"""Times that log lines carry, in the formats of Python, glog, syslog, the kernel and MindSpore, as ISO 8601."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from probe.services.logs.expressions import Expression

HEAD = 192
"""Bytes at the beginning of a line in which a time is looked for."""
DAY = timedelta(days=1)
MONTHS = {
    name: number
    for number, name in enumerate(
        (b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"), 1
    )
}
NAMES = rb"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"

DATED = Expression(
    rb"\b(\d{4})[-/](\d\d)[-/](\d\d)[T ,_-](\d\d):(\d\d):(\d\d)(?:[.,:](\d{1,9}))?(?:\.\d{1,3}\b)?"
    rb"(Z\b|[+-]\d\d:?\d\d\b)?"
)
"""Python's logging, DeepSpeed, MindSpore (``2024-01-15-10:30:15.123.456``), torchrun, ISO 8601, journald."""
AMERICAN = Expression(rb"\b(\d\d)/(\d\d)/(\d{4}),? (\d\d):(\d\d):(\d\d)")
"""Hugging Face's example scripts: ``01/15/2024 10:30:15 - INFO``."""
GLOG = Expression(rb"(?:^|[\[ :])[IWEF](\d{4})?(\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\b")
"""glog and PyTorch: ``E0321 02:07:08.408271``, or ``E321`` from C++, or with the year and no fraction."""
MONTH_FIRST = Expression(rb"(?:^|[\[ ])(\d\d)[/-](\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\b")
"""OpenMMLab, Detectron2, vLLM: ``08/16 11:26:39``."""
SYSLOG = Expression(rb"\b" + NAMES + rb" {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?: (\d{4})\b)?")
"""syslog, which leaves out the year, and ``dmesg -T`` and ``ctime``, which end with it."""


CLOCK = Expression(rb"\d:\d\d:\d\d")
"""A part that every one of them has."""


def time_of(line: bytes) -> str | None:
    """Return the time in ``line`` as ISO 8601, with the offset from UTC that the line states, or None."""
    if (found := DATED.search(line, 0, HEAD)) and (time := _dated(found.groups())) is not None:
        return time
    if CLOCK.search(line, 0, HEAD) is None:
        return None
    for expression, read in FORMATS:
        found = expression.search(line, 0, HEAD)
        if found and (time := read(found.groups())) is not None:
            return time
    return None


def _dated(parts: tuple[Any, ...]) -> str | None:
    year, month, day, hour, minute, second, fraction, zone = parts
    if not (b"01" <= month <= b"12" and b"01" <= day <= b"31" and hour < b"24" and minute < b"60" and second < b"61"):
        return None
    text = b"%b-%b-%bT%b:%b:%b" % (year, month, day, hour, minute, second)
    if fraction:
        text += b"." + fraction[:6]
    if zone:
        text += b"+00:00" if zone == b"Z" else zone if b":" in zone else zone[:3] + b":" + zone[3:]
    return text.decode("ascii")


def _american(parts: tuple[Any, ...]) -> str | None:
    month, day, year, *clock = parts
    return _dated((year, month, day, *clock, None, None))


def _glog(parts: tuple[Any, ...]) -> str | None:
    year, month, *rest = parts
    return _dated((year, month, *rest, None)) if year else _without_year(month.rjust(2, b"0"), *rest)


def _syslog(parts: tuple[Any, ...]) -> str | None:
    name, day, hour, minute, second, fraction, year = parts
    month, day = b"%02d" % MONTHS[name.lower()], day.rjust(2, b"0")
    if year:
        return _dated((year, month, day, hour, minute, second, fraction, None))
    return _without_year(month, day, hour, minute, second, fraction)


def _without_year(month: bytes, day: bytes, hour: bytes, minute: bytes, second: bytes, fraction: Any) -> str | None:
    """Return the latest such time that is at most a day ahead of now."""
    now = datetime.now()
    for year in (now.year + 1, now.year, now.year - 1):
        text = _dated((b"%d" % year, month, day, hour, minute, second, fraction, None))
        if text is None or (seconds := seconds_of(text)) is None:
            continue
        if seconds <= (now + DAY).timestamp():
            return text
    return None


FORMATS: tuple[tuple[Expression, Callable[[tuple[Any, ...]], str | None]], ...] = (
    (GLOG, _glog),
    (SYSLOG, _syslog),
    (AMERICAN, _american),
    (MONTH_FIRST, lambda parts: _without_year(*parts)),
)
_FRACTION = re.compile(r"\.(\d{1,6})\d{0,3}")


def seconds_of(text: str) -> float | None:
    """Return ISO 8601 as seconds since 1970, for comparison; None if it is no time. Local time without an offset."""
    padded = _FRACTION.sub(lambda found: "." + found[1].ljust(6, "0"), text, count=1)  # Python 3.10 takes 3 or 6 digits
    try:
        return datetime.fromisoformat(padded.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def iso_of(seconds: float) -> str | None:
    """Return seconds (or milliseconds, or nanoseconds) since 1970 as ISO 8601 in UTC, or None if it is no such time."""
    for unit in (1.0, 1e3, 1e6, 1e9):
        if 1e8 <= seconds / unit < 1e10:
            return datetime.fromtimestamp(seconds / unit, timezone.utc).isoformat()
    return None


def now() -> str:
    """Return the local time as ISO 8601, without an offset."""
    return datetime.now().isoformat()
