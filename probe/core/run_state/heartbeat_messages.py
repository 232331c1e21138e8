"""Messages of heartbeats as they travel: JSON, the same for the client and for the server.

JSON has neither NaN nor infinities: they travel as the texts ``NaN``, ``Infinity`` and ``-Infinity``, as in the JSON
form of Protocol Buffers, and the server makes numbers of them again. Nested mappings are flattened: ``{"a": {"b": 1}}``
is ``{"a_b": 1}``.
"""

from __future__ import annotations

import json
import math
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from probe.core.launch import launch_names
from probe.core.messages import printable, printable_lines, shortened, writable
from probe.core.times import sound_time

PATHS = {"heartbeats": "/v1/heartbeats", "findings": "/v1/findings", "exceptions": "/v1/exceptions"}
"""Addresses of the server's endpoints, by name."""
KINDS = {
    "train_metrics": PATHS["heartbeats"],
    "init_time": PATHS["heartbeats"],
    "stage_time": PATHS["heartbeats"],
    "progress": PATHS["heartbeats"],
    "finding": PATHS["findings"],
    "exception": PATHS["exceptions"],
}
"""Kinds of messages, each with the endpoint that takes it."""
EVENTS = ("finding", "exception")
"""Kinds that are about one matter; their values are no numbers of the run."""
ENDED = {"state": "ended"}
"""Values of the last message of a process, of the kind ``progress``: no further one follows."""
MOST_MESSAGES = 500
"""Most messages of a batch."""
MOST_BYTES = 1 << 20
"""Largest batch in bytes."""
MOST_VALUES = 256
"""Most values of a message."""
LONGEST_TEXT = 8192
"""Most characters of a text in a message; of a longer one the beginning and the end are kept."""
CUT_TEXT = LONGEST_TEXT - 64
"""Most characters that are kept of a longer one, beside the note on those that were left out."""
LONGEST_NAME = 200
"""Most characters of names: of a job, a launch, a run, a value."""
LONGEST_SHOWN = 40
"""Most characters that an error shows of a value."""
LARGEST_INTEGER = 1 << 53
"""Integers beyond it travel as floating-point numbers."""
LONGEST_SECONDS = 1e15
"""Times beyond it are infinite."""
DEEPEST = 8
"""Most levels of nested mappings."""

Value = float | int | str | bool | None
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class HeartbeatMessage(NamedTuple):
    """Message of one rank."""

    number: int
    """Number of the message within its run, ascending from 0: the same number is stored once."""
    kind: str
    time: float
    """Seconds since the epoch at which it was made."""
    promise: float | None
    """Longest time in seconds until the next message; None: as before; infinite: none needs to follow."""
    values: Mapping[str, Value]


class Origin(NamedTuple):
    """Sender of messages."""

    job: str
    rank: int
    world: int
    """Number of ranks of the job."""
    run: str
    """Name of the process, never used again."""
    launch: str
    """Name that the ranks of one launch share, and other jobs of the same name do not."""


class HeartbeatBatch(NamedTuple):
    """Messages that are sent together."""

    origin: Origin
    messages: tuple[HeartbeatMessage, ...]
    late: bool = False
    """True if the process that made them has ended: they say nothing about its life."""


class MalformedBatchError(ValueError):
    """Error of a body that is no batch."""


def flattened(message: Mapping[str, object]) -> tuple[dict[str, Value], int]:
    """Return the values of ``message`` in one level, and the number of those left out: neither numbers nor texts, or
    too many."""
    values: dict[str, Value] = {}
    lost = 0
    for name, value in _leaves("", message, 0):
        if len(values) >= MOST_VALUES or not _is_value(value):
            lost += 1
        else:
            values[writable(name)[:LONGEST_NAME]] = _plain(value)
    return values, lost


def _leaves(prefix: str, value: object, depth: int) -> Iterator[tuple[str, object]]:
    if depth <= DEEPEST and isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(f"{prefix}_{name}" if prefix else writable(name), inner, depth + 1)
    elif depth <= DEEPEST and isinstance(value, list | tuple) and len(value) <= MOST_VALUES:
        for place, inner in enumerate(value):
            yield from _leaves(f"{prefix}_{place}", inner, depth + 1)
    else:
        yield prefix, value


def _is_value(value: object) -> bool:
    return value is None or isinstance(value, str | numbers.Real)


def _plain(value: Any) -> Value:
    """Return a value as JSON has it, but for NaN and infinities."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _bounded(writable(value))
    if isinstance(value, numbers.Integral) and abs(int(value)) <= LARGEST_INTEGER:
        return int(value)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _bounded(text: str) -> str:
    """Return a text that a message can have."""
    return text if len(text) <= LONGEST_TEXT else shortened(text, CUT_TEXT)


def number_text(value: float) -> float | str:
    """Return a floating-point number as it travels."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def travelling(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return ``values`` with texts in place of NaN and infinities."""
    return {name: number_text(value) if isinstance(value, float) else value for name, value in values.items()}


def numeric(value: Value) -> Value:
    """Return NaN or an infinity for the text of one, any other value as it is."""
    return _WORDS.get(value, value) if isinstance(value, str) else value


def encoded(message: HeartbeatMessage) -> bytes:
    """Return the JSON of ``message``."""
    fields = {
        **message._asdict(),
        "promise": None if message.promise is None else number_text(message.promise),
        "values": travelling(message.values),
    }
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()


def body(origin: Origin, messages: Iterable[bytes], late: bool = False) -> bytes:
    """Return the JSON of a batch of encoded messages."""
    head = json.dumps({**origin._asdict(), "late": late})[:-1].encode()
    return head + b', "messages": [' + b",".join(messages) + b"]}"


def parsed(data: bytes, path: str) -> HeartbeatBatch:
    """Parse the body of a request to ``path``.

    Raises:
        MalformedBatchError: with the place, the expected value and the one that came.
    """
    fields = _object(_json(data), "body")
    origin = Origin(
        _name(fields, "job"),
        _whole(fields, "rank", "body"),
        max(_whole(fields, "world", "body"), 1),
        _name(fields, "run"),
        _name(fields, "launch"),
    )
    messages = fields.get("messages")
    if not isinstance(messages, list) or not 1 <= len(messages) <= MOST_MESSAGES:
        raise _wrong("messages", f"a list of 1 to {MOST_MESSAGES} messages", messages)
    kinds = tuple(kind for kind, place in KINDS.items() if place == path)
    batch_messages = tuple(
        _message(fields_of_message, f"messages[{place}]", kinds) for place, fields_of_message in enumerate(messages)
    )
    return HeartbeatBatch(origin, batch_messages, fields.get("late") is True)


def dated(batch: HeartbeatBatch, now: float) -> tuple[HeartbeatBatch, int]:
    """Return ``batch`` with ``now`` in place of each time that is none, such as one in milliseconds, and the number of
    those: what a message says is worth more than when it was made."""
    messages = tuple(message._replace(time=sound_time(message.time, now)) for message in batch.messages)
    wrong = sum(new.time != old.time for new, old in zip(messages, batch.messages, strict=True))
    return batch._replace(messages=messages), wrong


def _message(entry: object, where: str, kinds: Sequence[str]) -> HeartbeatMessage:
    fields = _object(entry, where)
    if (kind := fields.get("kind")) not in kinds:
        raise _wrong(f"{where}.kind", " or ".join(kinds), kind)
    values = _object(fields.get("values"), f"{where}.values")
    if len(values) > MOST_VALUES:
        raise MalformedBatchError(f"{where}.values: expected at most {MOST_VALUES} values, got {len(values)}")
    time, promise = _seconds(fields.get("time")), fields.get("promise")
    if time is None or math.isinf(time):
        raise _wrong(f"{where}.time", "seconds since the epoch", fields.get("time"))
    if promise is not None and (promise := _seconds(promise)) is None:
        raise _wrong(f"{where}.promise", "seconds until the next message, or null", fields.get("promise"))
    return HeartbeatMessage(
        _whole(fields, "number", where),
        str(kind),
        time,
        promise,
        {_clean_name(name): _clean(value, f"{where}.values") for name, value in values.items()},
    )


def _seconds(value: Any) -> float | None:
    """Return a time in seconds, which may be infinite; None if it is none."""
    value = numeric(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        return None
    return float(value) if value < LONGEST_SECONDS else math.inf


def _json(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), parse_constant=_refuse)
    except UnicodeDecodeError:
        raise MalformedBatchError("body: expected UTF-8") from None
    except RecursionError:
        raise MalformedBatchError("body: expected an object, got JSON that is nested too deep") from None
    except ValueError as error:
        raise MalformedBatchError(f"body: expected JSON: {str(error)[:200]}") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f'{word} is not JSON: send the text "{word}"')


def _object(value: object, where: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise _wrong(where, "an object", value)


def _name(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise _wrong(key, f"a text of 1 to {LONGEST_NAME} characters", value)
    return _clean_name(value)


def _clean_name(text: str) -> str:
    """Return ``text`` without characters that a database, a terminal or a log cannot hold."""
    return printable(text)[:LONGEST_NAME]


def _whole(fields: Mapping[str, Any], key: str, where: str) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_INTEGER:
        raise _wrong(f"{where}.{key}", f"a whole number from 0 to {LARGEST_INTEGER}", value)
    return value


def _clean(value: object, where: str) -> Value:
    """Return a value that the database can hold."""
    if isinstance(value, str):
        return numeric(printable_lines(_bounded(value)))
    if _is_value(value):
        return _plain(value)
    raise _wrong(where, "numbers, texts, booleans and null", value)


def _wrong(where: str, expected: str, value: object) -> MalformedBatchError:
    """Return the error that names the value that came, or its kind and length: it may be a megabyte."""
    sized = value if isinstance(value, (str, list, dict)) else ()
    long = f"{type(value).__name__} of length {len(sized)}" if len(sized) > LONGEST_SHOWN else repr(value)
    came = "nothing" if value is None else long[:LONGEST_SHOWN]
    return MalformedBatchError(f"{where}: expected {expected}, got {came}")


def launch_name(environ: Mapping[str, str], otherwise: Callable[[], str]) -> str:
    """Return the name that all ranks of this launch share, from what launchers export; ``otherwise()`` if there is
    nothing. ``PROBE_LAUNCH`` overrides it."""
    return "/".join(launch_names(environ).values())[:LONGEST_NAME] or otherwise()


def unique_name() -> str:
    """Return a name that no other process has: random, without a random generator that training uses."""
    return os.urandom(12).hex()
