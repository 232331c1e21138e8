"""JSON lines of our own logger, with the fields of the Elastic Common Schema (ECS).

Of use in training: it imports nothing but the standard library and the redaction of secrets, never raises, and writes
each record with one call of the operating system, so that lines of several processes in one file stay whole.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import socket
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from probe.core.alerting.redaction import redact
from probe.core.messages import printable_json
from probe.core.times import utc_text

LONGEST = 32_768
"""Largest number of characters of one text; the rest is cut, and counted in the text."""
ECS = "8.11"
"""Version of the schema."""
Label = str | int | float | bool


class JsonLines(logging.Formatter):
    """Formatter that makes one JSON object of each record, on one line whatever its texts hold, without secrets.

    Args:
        service: The field ``service.name``.
        labels: Fields ``labels.*`` of every record, such as ``job`` and ``rank``; a record adds its own by
            ``extra={"step": 12}``.
    """

    def __init__(self, service: str = "probe", labels: Mapping[str, Label] | None = None) -> None:
        super().__init__()
        self._host = socket.gethostname()
        self._service = service
        self._labels = dict(labels or {})

    def format(self, record: logging.LogRecord) -> str:
        """Return ``record`` as JSON, without the end of the line."""
        fields: dict[str, Any] = {
            "@timestamp": utc_text(record.created),
            "log.level": record.levelname.lower(),
            "message": _message(record),
            "ecs.version": ECS,
            "log.logger": record.name,
            "log.origin.file.name": record.filename,
            "log.origin.file.line": record.lineno,
            "process.pid": record.process,
            "process.thread.name": record.threadName,
            "host.name": self._host,
            "service.name": self._service,
            **self._error(record),
        }
        labels = self._labels | {name: record.__dict__[name] for name in ADDED if name in record.__dict__}
        fields |= {f"labels.{name}": value for name, value in labels.items()}
        return as_line({name: _clean(value) for name, value in fields.items() if value is not None})

    def _error(self, record: logging.LogRecord) -> dict[str, str]:
        fields = {}
        kind, error = record.exc_info[:2] if isinstance(record.exc_info, tuple) else (None, None)
        if kind is not None:
            fields = {"error.type": _name(kind), "error.message": _text(error)}
        if record.exc_text:  # the redaction leaves a traceback with a secret as text alone
            name, _, message = record.exc_text.rpartition("\n")[2].partition(": ")
            fields = fields or {"error.type": name, "error.message": message}
            fields["error.stack_trace"] = record.exc_text
        elif error is not None:
            fields["error.stack_trace"] = "".join(traceback.format_exception(error)).rstrip("\n")
        if record.stack_info:
            fields.setdefault("error.stack_trace", record.stack_info)
        return fields


ADDED = ("job", "rank", "step", "phase", "signal", "rule")
"""Attributes of a record that become labels."""


class JsonLinesFile(logging.Handler):
    """Handler that appends records to a file as JSON lines.

    A record that cannot be written, as on a full disk, is counted in :attr:`lost`; the next one that can be is preceded
    by a line with that number. If the file is moved away or removed, as by logrotate, a new one is begun; as long as
    that is not possible the old one is written.
    """

    def __init__(self, path: str | Path, formatter: logging.Formatter, level: int = logging.INFO) -> None:
        super().__init__(level)
        self.lost = 0
        self.setFormatter(formatter)
        self._path = Path(path).absolute()
        self._file = self._opened()
        self._broken = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write ``record``; nothing is raised."""
        try:
            line = self.format(record)
            if self.lost:
                line = self.format(_notice(self.lost)) + "\n" + line
            self._follow_rotation()
            self._write(line)
            self.lost = 0
        except Exception:  # noqa: BLE001 - training goes on; the number is written later
            self.lost += 1

    def close(self) -> None:
        """Close the file."""
        self.acquire()
        try:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
        finally:
            self.release()
        super().close()

    def _opened(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def _follow_rotation(self) -> None:
        """Open the file anew if the one that is open is no longer the one at its path."""
        try:
            if os.path.samestat(self._path.stat(), os.fstat(self._file)):
                return
        except FileNotFoundError:
            pass
        with suppress(OSError):  # no record is lost: the file that is open is written on
            before, self._file = self._file, self._opened()
            self._broken = False
            os.close(before)

    def _write(self, line: str) -> None:
        content = ("\n" if self._broken else "") + line + "\n"
        data = content.encode("utf-8")
        written = os.write(self._file, data)
        self._broken = 0 < written < len(data)
        if written < len(data):
            raise OSError(f"{written} of {len(data)} bytes written")


def structured(
    path: str | Path,
    *,
    job: str | None = None,
    rank: int | None = None,
    level: int | str = logging.INFO,
    logger: str = "probe",
) -> JsonLinesFile:
    """Append the records of ``logger``, and of all below it, to a file as JSON lines.

    Args:
        path: The file; its folder must exist. Several processes may share it.
        job: Label ``job``; default: none.
        rank: Label ``rank``; default: the variable ``RANK`` (PyTorch) or ``RANK_ID`` (MindSpore), if set.
        level: The lowest level that is written. A logger that has no level of its own gets this one.
        logger: The logger; the empty name is that of all.

    Returns:
        The handler; ``logging.getLogger("probe").removeHandler(handler)`` switches it off.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if there is no such level.
    """
    labels: dict[str, Label] = {} if job is None else {"job": job}
    stated = rank if rank is not None else os.environ.get("RANK", os.environ.get("RANK_ID"))
    if stated is not None and str(stated).isdecimal():
        labels["rank"] = int(stated)
    handler = JsonLinesFile(path, JsonLines(labels=labels))
    handler.setLevel(level)
    chosen = logging.getLogger(logger or None)
    chosen.addHandler(handler)
    if chosen.level == logging.NOTSET or chosen.level > handler.level:
        chosen.setLevel(handler.level)
    return handler


def as_line(record: Mapping[str, Any]) -> str:
    """Return ``record`` as JSON on one line: NaN and infinities as texts, control characters escaped."""
    try:
        text = _encode(record)
    except ValueError:
        text = _encode(_jsonable(record))
    if text.isascii():
        return text
    return printable_json(_LONE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text))


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False).encode
_LONE = re.compile("[\ud800-\udfff]")
"""Halves of surrogate pairs, which UTF-8 cannot hold."""


def _jsonable(value: Any, depth: int = 0) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if depth > 80:
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _jsonable(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(each, depth + 1) for each in value]
    return value


def _clean(value: Any) -> Any:
    """Return a value of JSON: texts without secrets and lone surrogates, cut to a bounded length."""
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    text = redact(_text(value)).encode("utf-8", "backslashreplace").decode("utf-8")
    left = len(text) - LONGEST
    return text if left <= 0 else f"{text[:LONGEST]}... ({left} more characters)"


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - any object may be logged
        return f"<{type(value).__name__} that cannot be printed>"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit the message
        return f"{_text(record.msg)} (arguments do not fit: {_text(record.args)})"


def _name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _notice(number: int) -> logging.LogRecord:
    text = "%d records could not be written"
    return logging.LogRecord("probe.logs", logging.WARNING, __file__, 0, text, (number,), None)
