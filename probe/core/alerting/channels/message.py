"""Texts of alerts for people, of a bounded size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probe.core.language import Message, in_language, joined, message
from probe.core.messages import plural, shortened, writable
from probe.core.records import SEVERITIES, Alert
from probe.core.times import sound_time, utc_text

MOST_TITLE, MOST_TEXT, MOST_LABELS = 200, 4000, 1000
"""Most characters of a title, of the details of one alert, and of its labels."""


PLACE = ("rule", "signal", "name")
"""Labels for machines: people read the place in title and text."""


def clipped(text: str, most: int) -> str:
    """Return ``text``, or its beginning with the number of characters that were left out."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} characters left out)"


def sound(alert: Alert) -> Alert:
    """Return ``alert`` with values that every channel can write, whatever a program or another machine has put into it:
    a time that is none becomes the present one, an unknown severity ``critical``."""
    return Alert(
        key=writable(alert.key),
        kind=writable(alert.kind),
        severity=alert.severity if alert.severity in SEVERITIES else "critical",
        title=writable(alert.title),
        text=writable(alert.text),
        labels={writable(name): writable(value) for name, value in alert.labels.items()},
        time=sound_time(alert.time, time.time()),
        resolved=alert.resolved is True,
        lasting=alert.lasting is True,
        repeated=alert.repeated is True,
        language=writable(alert.language),
    )


def highest(alerts: Sequence[Alert]) -> str:
    """Return the highest severity of ``alerts`` that have not ended; ``info`` if all have."""
    return max((alert.severity for alert in alerts if not alert.resolved), key=SEVERITIES.index, default="info")


def heading(alert: Alert) -> str:
    """Return the first line of one alert: its severity or ``resolved``, and its title."""
    state = message("resolved") if alert.resolved else message(alert.severity)
    return f"[{_in_language_of(alert, state)}] {clipped(_one_line(alert.title), MOST_TITLE)}"


def subject(alerts: Sequence[Alert]) -> str:
    """Return the first line of a message: job, unless the title begins with it, and the only alert or the number of
    them with the most severe."""
    job = next((alert.labels["job"] for alert in alerts if alert.labels.get("job")), "")
    worst = max(alerts, key=lambda alert: (not alert.resolved, SEVERITIES.index(alert.severity)))
    lead = f"{clipped(_one_line(job), MOST_TITLE)}: " if job and not worst.title.startswith(job) else ""
    if len(alerts) == 1:
        return lead + heading(alerts[0])
    number = _in_language_of(worst, message("{number} alerts", number=len(alerts)))
    return f"{lead}{number}: {heading(worst)}"


def details(alert: Alert) -> str:
    """Return the lines below the heading of one alert: text, labels, time."""
    pairs = [(name, value) for name, value in alert.labels.items() if name not in PLACE]
    parts = [joined("", [message(name), f" {value}"]) for name, value in pairs]
    labels = _in_language_of(alert, joined(", ", parts))
    lines = (shortened(alert.text.strip(), MOST_TEXT), clipped(labels, MOST_LABELS), utc_text(alert.time))
    return "\n".join(filter(None, lines))


def paragraphs(alerts: Sequence[Alert]) -> list[str]:
    """Return one paragraph for each alert; of a single one, whose heading is the subject, the details alone."""
    return [details(alert) if len(alerts) == 1 else f"{heading(alert)}\n{details(alert)}" for alert in alerts]


def fitting(parts: Sequence[str], fits: Callable[[list[str]], bool]) -> list[str]:
    """Return the first of ``parts`` that fit, with the number of those left out; of the first one as much as fits."""
    if fits([*parts]):
        return [*parts]
    low, high = 0, len(parts)  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits([*parts[:middle], _left_out(len(parts) - middle)]) else (low, middle)
    if low:
        return [*parts[:low], _left_out(len(parts) - low)]
    rest, size = [_left_out(len(parts) - 1)] if len(parts) > 1 else [], len(parts[0])
    while size and not fits([shortened(parts[0], size), *rest]):
        size //= 2
    return [shortened(parts[0], size), *rest]


def _left_out(number: int) -> str:
    return f"{number} {plural(number, 'alert')} left out: the message would be too long"


def as_json(alert: Alert) -> Mapping[str, Any]:
    """Return an alert as an object of JSON."""
    fields = alert._asdict()
    del fields["repeated"]  # of this process alone
    if not alert.language:
        del fields["language"]
    return {
        **fields,
        "title": clipped(alert.title, MOST_TITLE),
        "text": shortened(alert.text, MOST_TEXT),
        "labels": {str(name): clipped(str(value), MOST_LABELS) for name, value in alert.labels.items()},
    }


def _in_language_of(alert: Alert, text: Message) -> str:
    return in_language(text, alert.language) if alert.language else text


def _one_line(text: str) -> str:
    return " ".join(text.split())
