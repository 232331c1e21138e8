"""Lines on standard error: ``probe: warning: ...``, from the logger ``probe`` and from the command line.

Names that come from files are escaped: no character moves a terminal's cursor or reverses the direction of text.
"""

from __future__ import annotations

import io
import logging
import os
import re
import select
import sys
from collections.abc import Iterable
from contextlib import suppress
from copy import copy
from itertools import groupby
from pathlib import Path
from typing import Any

from probe.core.alerting.redaction import redact
from probe.core.language import Message, can_print, in_language, message, translated

LOGGER = "probe"
MARGIN = len("probe:   ")
"""Columns before the further lines of a text."""
_WIDE = "\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60"
"""Characters of two cells (UAX 11)."""
_CLOSING = "，。；：？！）》」』、”’…"
"""Characters at which no line begins."""
WORD = re.compile(rf"\s*(?:[{_WIDE}][{_CLOSING}]*|[^\s{_WIDE}]+[{_CLOSING}]*)\s*")
"""Parts of a text between which a line may be broken: Chinese has no spaces to break at."""
_COMMAND = r"probe view (?:'[^']*'|\S)+"
_PIECE = re.compile(rf"\s*[（《「『“]*(?:{_COMMAND}|(?:`[^`]*`|[^\s{_WIDE}])+[{_CLOSING}]*|[{_WIDE}][{_CLOSING}]*)")
"""The same, with commands in one piece."""


def lines(level: str, text: str) -> str:
    """Prefix ``text`` with its level; every further line begins with ``probe:`` too. Control characters are escaped and
    secrets redacted."""
    first, *others = map(printable, redact(text).rstrip("\n").split("\n"))
    return "\n".join([f"probe: {level}: {first}", *(f"probe:   {other}".rstrip() for other in others)])


def terminal_width(stream: Any) -> int:
    """Return the columns of the terminal that a stream writes to; 0 if there is none."""
    with suppress(OSError, ValueError, AttributeError):
        return os.get_terminal_size(stream.fileno()).columns
    return 0


def wrapped(line: str, width: int, indent: int = 2) -> str:
    """Break a line where it is wider than ``width``: between words or Chinese characters, never within a command.

    Args:
        width: number of cells; 0 for no limit.
        indent: blanks before what follows.
    """
    if not width or _cells(line) <= width:
        return line
    broken = [""]
    for piece in _PIECE.findall(line):
        if broken[-1] and _cells(broken[-1] + piece) > width:
            broken.append(" " * indent + piece.lstrip())
        else:
            broken[-1] += piece
    return "\n".join(broken)


def _cells(text: str) -> int:
    return len(text) + len(re.findall(f"[{_WIDE}]", text))


def has_blocks(stream: Any) -> bool:
    """Return whether a stream can encode the block characters of small charts."""
    try:
        "▁█·".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


def shown_path(path: str) -> str:
    """Return a path as people write it: relative if it is below the current folder."""
    with suppress(OSError, ValueError):
        return str(Path(path).relative_to(Path.cwd())) if path else ""
    return path


PIPE_BYTES = 4096
"""Bytes that a pipe which is ready takes without waiting: PIPE_BUF of Linux."""
unwritten = 0
"""Number of texts that could not be written to standard error."""
patience: float | None = 2.0
"""Seconds for which a text waits for the reader of standard error: a pipe that nobody empties must not stop training.
After one in vain there is no waiting. None: without limit, as a command does."""


def complain(text: str, level: str = "error", colour: int = 0, /, **values: object) -> None:
    """Write ``text`` to standard error, in the language of the command line if it is a message. Never raises.

    Args:
        colour: ANSI number of the colour of the first line on a terminal, unless ``NO_COLOR`` is set; 0 for none.
        values: those of ``text`` if it is a template.
    """
    global unwritten  # noqa: PLW0603 - a fact of the process
    try:
        text = message(text, **values) if values else text
        shown = translated(message(level)) if isinstance(text, Message) else level
        width = terminal_width(sys.stderr)
        first, *others = (wrapped(line, width, MARGIN) for line in lines(shown, translated(text)).split("\n"))
        if colour and sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
            first = f"\x1b[1;{colour}m{first}\x1b[0m"
        _write(sys.stderr, "\n".join([first, *others, ""]))
    except Exception:  # noqa: BLE001 - closed, full, replaced or no terminal any more: a report ends no program
        unwritten += 1


def _write(stream: Any, text: str) -> None:
    """Write ``text`` at once, or raise OSError. What stays in the buffer of a stream that cannot be written fails again
    when the process ends, and makes its exit code 120."""
    global patience  # noqa: PLW0603 - a fact of the process
    buffer = getattr(stream, "buffer", None)
    raw = buffer.raw if type(buffer) is io.BufferedWriter else buffer  # with PYTHONUNBUFFERED there is no buffer
    if type(stream) is not io.TextIOWrapper or type(raw) is not io.FileIO:
        stream.write(text)
        return
    stream.flush()
    data = memoryview(text.encode(stream.encoding, "backslashreplace"))
    while data:
        if not _is_ready(stream):
            patience = 0.0
            raise BlockingIOError("nobody reads standard error")
        written = raw.write(data[:PIPE_BYTES])
        if written is None:
            raise BlockingIOError("standard error takes no more")
        data = data[written:]


def _is_ready(stream: Any) -> bool:
    """Return whether ``stream`` takes PIPE_BYTES bytes before patience ends."""
    if patience is None or not hasattr(select, "poll"):  # Windows has none
        return True
    poll = select.poll()
    poll.register(stream, select.POLLOUT)
    return bool(poll.poll(patience * 1000))


def plural(number: float, noun: str, several: str = "") -> str:
    """Return ``noun`` for one, ``several`` (``noun`` with an s if empty) for any other number."""
    return noun if number == 1 else several or f"{noun}s"


def counted(number: float, noun: str, several: str = "") -> Message:
    """Return a number of things, such as ``1,200 rows``, as a message."""
    return message(f"{{n:,}} {plural(number, noun, several)}", n=number)


def spans(numbers: Iterable[int]) -> list[str]:
    """Return whole numbers as texts such as ``4-7`` and ``9``, in order."""
    runs = groupby(enumerate(sorted({*numbers})), lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in ([*pairs] for _, pairs in runs)]
    return [f"{first}-{last}" if last > first else str(first) for first, last in ends]


def in_number(number: float, one: str, several: str, /, **values: object) -> Message:
    """Return the message for one thing, or for several; ``number`` is a value of both."""
    return message(one if number == 1 else several, number=number, **values)


def echo(text: str, to_error: bool = False, /, **values: object) -> None:
    """Print a line, in the language of the command line if it is a message; control characters are escaped.

    Args:
        values: those of ``text`` if it is a template.
    """
    text = message(text, **values) if values else text
    print(printable(translated(text)), file=sys.stderr if to_error else sys.stdout, flush=True)


class Messages(logging.Handler):
    """Handler that writes warnings and errors to standard error if the program has set up no logging of its own.

    Python's last resort would print them bare. If any other handler gets a record, this one ignores it.
    ``logging.getLogger("probe").removeHandler(probe.core.messages.HANDLER)`` removes it.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether no other handler gets ``record``."""
        return not self._others(logging.getLogger(record.name)) and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Write ``record``, with its traceback if it has one."""
        try:
            record = _in_language(record)
            text = self.format(record)
        except Exception as error:  # noqa: BLE001 - as every handler of logging does
            text = f"a message that cannot be formatted: {record.msg!r:.200} ({type(error).__name__})"
        complain(text, record.levelname.lower())

    def _others(self, logger: logging.Logger | None) -> bool:
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def _in_language(record: logging.LogRecord) -> logging.LogRecord:
    """Return a copy of ``record`` in the language of the terminal, where standard error can print it."""
    if not can_print(sys.stderr):
        return record
    shown = copy(record)
    if isinstance(record.msg, str):
        shown.msg = in_language(record.msg if isinstance(record.msg, Message) else message(record.msg))
    if isinstance(record.args, tuple):
        shown.args = tuple(in_language(each) if isinstance(each, Message) else each for each in record.args)
    shown.levelname = in_language(message(record.levelname.lower()))
    return shown


HANDLER = Messages()


def install() -> None:
    """Add the handler to the logger ``probe``, once."""
    logging.getLogger(LOGGER).addHandler(HANDLER)


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters (Unicode's Cc), separators of lines, marks of direction (UAX 9) and lone surrogates."""


def printable(text: str) -> str:
    """Return ``text`` on one line, each control character as Python writes it, such as ``\\x1b`` or ``\\n``."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def encodable(text: str) -> str:
    """Escape every lone surrogate in ``text``, which no encoding holds, as in ``\\udc80``."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def writable(value: object) -> str:
    """Return ``value`` as a text that every file, terminal and socket takes. Raises nothing: an object without a text
    is named by its type."""
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - a method of the program's object
        text = f"<{type(value).__name__}>"
    return encodable(text)


def shortened(text: str, most: int) -> str:
    """Return ``text``, or its beginning and its end with the number of characters left out between them: the message of
    an exception is the last line of its traceback."""
    if len(text) <= most:
        return text
    note = f"\n... ({len(text) - most} characters left out) ...\n"
    end = (most * 2 + 2) // 3
    return f"{text[: most - end]}{note}{text[-end:]}" if most > len(note) else text[:most]


def printable_json(text: str) -> str:
    """Return JSON with each control character escaped as in JSON and YAML: ``\u001b``."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable_lines(text: str) -> str:
    """Apply :func:`printable` to each line of a ``text`` of several lines."""
    return "\n".join(map(printable, text.split("\n")))
