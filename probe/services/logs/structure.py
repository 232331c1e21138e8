"""Level, rank, exception, JSON and key=value pairs of a line."""

from __future__ import annotations

import json
import re
from typing import Any

from probe.services.logs.expressions import Expression
from probe.services.logs.metrics import ROUND, number_of

HEAD = 256
"""Bytes at the beginning of a line in which the level is looked for."""
MOST_PAIRS = 256
"""Largest number of key=value pairs of one line."""
MOST_RANKS = 4
"""Largest number of ranks in one line that are looked at."""
ROLE_FOLLOWS = b": "
UNDERSCORE = ord("_")
MOST_DEPTH = 64
"""Deepest nesting of JSON that is read."""

LEVEL = Expression(rb"(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|ERR|CRITICAL|FATAL|EMERG|ALERT|PANIC)(?:$|[^\w=])")
"""The end of a word in capitals; the first of a line is its level, so that ``INFO no ERROR found`` is INFO."""
LOWER = Expression(
    rb"(?i)(?:\blevel['\"]?\s{0,2}[=:]\s{0,2}['\"]?|[\[<])"
    rb"(trace|debug|info|notice|warn|warning|error|critical|fatal)(?:$|[^\w])"
)
"""``level=error``, ``[error]``."""
BEFORE_COLON = Expression(rb"(?i)(?:^|[:\]] )\s{0,8}(warning|error|critical|fatal|fatal error): ")
"""``error: ...``, ``slurmstepd: error: ...``, but not ``0 errors`` or ``error rate``."""
GLOG = Expression(rb"(?:^|[\[\] :])([IWEF])\d{3,4} \d\d:\d\d:\d\d\.\d")
EXCEPTION = Expression(
    rb"(?:^|[\s\]:|(])([A-Za-z_][\w.]{0,100}(?:Error|Exception|Warning|Interrupt|OutOfMemory|Timeout))(?::\s{0,2}|$)"
)
"""Name of an exception, as a traceback's last line or a log line has it."""
EXCEPTIONS = (b"Error", b"Exception", b"Warning", b"Interrupt", b"OutOfMemory", b"Timeout")
TRACEBACK = b"Traceback (most recent call last)"
GLOG_LETTERS = (b"I", b"W", b"E", b"F", b"[", b"(")
OURS = {
    **dict.fromkeys((b"trace", b"debug"), "DEBUG"),
    **dict.fromkeys((b"info", b"notice", b"i"), "INFO"),
    **dict.fromkeys((b"warn", b"warning", b"w"), "WARNING"),
    **dict.fromkeys((b"error", b"err", b"severe", b"critical", b"fatal", b"fatal error", b"e", b"f"), "ERROR"),
    **dict.fromkeys((b"emerg", b"alert", b"panic"), "ERROR"),
}
"""Levels of logs in lower case, and ours: DEBUG, INFO, WARNING, ERROR."""

RANK = Expression(
    rb"(?i)(?:^|[^a-z0-9_])((?:local|global|world|[dtpce]p|node|group|data|tensor|pipeline|expert|context|parallel)"
    rb"[ _-]?)?rank(?: of (?:current|this) process)?(?:\[|[_ ]?(?:id)?\s{0,8}(?:[:=#]\s{0,2})?)(\d{1,7})(?:$|\W)"
)
"""``[rank3]:``, ``[Rank 3]``, ``[PG 0 (default_pg) Rank 3]``, ``[RANK:3]``, ``Rank 3 |``, ``rank=3)``, ``RankID:3``;
and the word before it, since a ``local_rank`` and a ``dp rank`` are no rank."""
OF_ALL = (None, b"global", b"world")
ROLE = Expression(
    rb"(?:\[[A-Za-z_]{1,32}(\d{1,5})\]|(?:default|trainer|worker|process|gpu|npu)_?-?(\d{1,5})):(?:\s|\[|$)"
)
"""``[default3]:`` and ``default3:`` of torchrun, whose number is the local rank."""
BARE = Expression(rb"\[(\d{1,5})\]:(?:\s|$)")
"""``[3]:`` of launchers that write only the number of the process."""
MPI = Expression(rb"\[\d{1,4},(?:mpirank:)?(\d{1,7})(?:,[\w-]{1,64})?\]<std(?:out|err)>:")
"""mpirun's prefix: ``[job,rank]<stderr>:``."""

PAIR = Expression(rb"\b([A-Za-z_]\w{0,63})=(\"[^\"]{0,512}\"|'[^']{0,512}'|[^\s,;|(){}\[\]\"']{1,256})")
_DECODER = json.JSONDecoder()
_NESTING = re.compile(r"[\[{\]}]")


def level_of(line: bytes, low: bytes) -> str:
    """Return DEBUG, INFO, WARNING or ERROR. A word such as ``errors`` in a sentence is no level.

    Args:
        line: The line.
        low: The same in lower case.
    """
    if stated := _in_capitals(line):
        return OURS[stated.lower()]
    found = GLOG.search(line, 0, HEAD) if line.startswith(GLOG_LETTERS) else None
    if found is None and _may_have_level(low):
        found = LOWER.search(line, 0, HEAD) or BEFORE_COLON.search(line, 0, HEAD)
        if found is None and TRACEBACK in line:
            return "ERROR"
        if found is None and (error := exception_of(line)):
            return "WARNING" if error["type"].endswith("Warning") else "ERROR"
    return "INFO" if found is None else OURS[found.group(1).lower()]


def _may_have_level(low: bytes) -> bool:
    return (
        b"error" in low or b"warn" in low or b"fatal" in low or b"critical" in low or b"level" in low
        or b"debug" in low or b"trace" in low or b"xception" in low or b"nterrupt" in low
    )  # fmt: skip


def _may_have_capitals(head: bytes) -> bool:
    return (
        b"INFO" in head or b"WARN" in head or b"ERR" in head or b"DEBUG" in head or b"CRIT" in head or b"FATAL" in head
        or b"TRACE" in head or b"NOTICE" in head or b"EMERG" in head or b"ALERT" in head or b"PANIC" in head
    )  # fmt: skip


def _in_capitals(line: bytes) -> bytes:
    """Return the first level in capitals that is a word of its own; empty if there is none."""
    head = line[:HEAD]
    found = LEVEL.search(head) if _may_have_capitals(head) else None
    while found is not None:
        start = found.start()
        if not start or not (head[start - 1 : start].isalnum() or head[start - 1] == UNDERSCORE):
            return bytes(found.group(1))
        found = LEVEL.search(head, found.end())
    return b""


def exception_of(line: bytes) -> dict[str, str] | None:
    """Return type and message of the exception that a line names, or None."""
    if not any(word in line for word in EXCEPTIONS):
        return None
    found = EXCEPTION.search(line)
    if found is None:
        return None
    return {"type": text_of(found.group(1)), "message": text_of(line[found.end() :][:1024].strip())}


def rank_of(line: bytes) -> tuple[int | None, int | None]:
    """Return rank and local rank that a line names, each None if it does not."""
    rank, local = _named_ranks(line) if b"ank" in line or b"RANK" in line else (None, None)
    head = line[:64].lstrip()
    if b"]:" in head or b">:" in head or (ROLE_FOLLOWS in head and head[:1].isalpha()):
        if rank is None and (found := MPI.match(head) or (not ROUND.match(head) and BARE.match(head))):
            rank = int(found.group(1))
        elif rank is None and local is None and (found := ROLE.match(head)):
            local = int(found.group(1) or found.group(2))
    return rank, local


def _named_ranks(line: bytes) -> tuple[int | None, int | None]:
    """Return the first rank and the first local rank among those that a line names by the word."""
    ranks: dict[bool, int] = {}
    start = 0
    for _ in range(MOST_RANKS):
        found = RANK.search(line, start)
        if found is None:
            break
        start = found.end() - 1
        of = found.group(1) and found.group(1).lower().rstrip(b" _-")
        if of == b"local" or of in OF_ALL:
            ranks.setdefault(of == b"local", int(found.group(2)))
    low = line.lower()
    if b"edac " in low or (False in ranks and b"lora" in low and b"[" not in line[: low.find(b"rank")]):
        ranks.pop(False, None)  # of a matrix, or of a memory chip
    return ranks.get(False), ranks.get(True)


def pairs_of(line: bytes) -> dict[str, Any]:
    """Return the pairs ``key=value`` of a line, with numbers as numbers."""
    pairs: dict[str, Any] = {}
    for key, value in PAIR.findall(line)[:MOST_PAIRS]:
        plain = value.strip(b"\"'")
        number = number_of(plain)
        pairs[text_of(key)] = text_of(plain) if number is None else number
    return pairs


def json_of(line: bytes) -> dict[str, Any]:
    """Return the first JSON object within a line; empty if there is none, or if it is nested too deeply."""
    start = line.find(b"{")
    if start < 0 or b'"' not in line or b":" not in line:
        return {}
    text = text_of(line[start:])
    at = 0
    for _ in range(4):
        if _deep(text, at):
            return {}
        try:
            value, _end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            at = text.find("{", at + 1)
            if at < 0:
                break
            continue
        return value if isinstance(value, dict) else {}
    return {}


def text_of(content: bytes) -> str:
    """Return bytes as text; a byte that is not UTF-8 becomes ``\\xff``, so that any output can hold it."""
    return content.decode("utf-8", "backslashreplace")


def _deep(text: str, start: int) -> bool:
    depth = 0
    for found in _NESTING.finditer(text, start):
        depth += 1 if found[0] in "[{" else -1
        if depth > MOST_DEPTH:
            return True
        if depth == 0:
            return False
    return False
