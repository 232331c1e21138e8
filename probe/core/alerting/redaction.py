"""Redaction of secrets in every text that leaves the process: messages, logs, tracebacks, the spool, the manifest.

Two kinds are replaced by ``***``: secrets that were registered (:func:`register`, :func:`register_address`), in all
spellings in which a library may print them, and forms that are secrets wherever they stand, such as the last part of a
Feishu webhook.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import traceback
from collections.abc import Iterable, Iterator
from types import TracebackType
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

MASK = "***"
SHORTEST = 4
"""Least number of characters of a registered secret: a shorter one would mask parts of ordinary words."""
SHORTEST_TOKEN, LONG = 8, 16
"""Least number of characters of a part of an address that is taken for a token: with a digit or in mixed case, and
without."""
LOGGERS = ("probe", "httpx", "httpcore", "apprise", "urllib3", "requests")
"""Loggers, each with those below it, whose records are redacted: libraries log the addresses that they open."""

_END = "{1,65536}"
"""Bound of a token's last repetition: far above any, so that no rest of one stays."""
_NAME = (
    r"(?:(?-i:(?<=[A-Z0-9]_)TOKEN)|(?<![a-z0-9])(?:password|passwd|passphrase|pwd"
    r"|(?:access|secret|private|account|api)[_-]?key(?:[_-]id)?|secret"
    r"|(?:access|auth|refresh|session|api|bot)[_-]?token))"
)
"""Names of secrets, behind any prefix: those that name nothing else in the texts of training."""
_LIKELY = r"(?=[^\s'\"]{0,128}\d)[^\s'\",;&<>)]{8,65536}"
"""A value where prose may follow: with a digit, and no short word."""
_FORMS = tuple(
    (re.compile(pattern.replace("{END}", _END).replace("{NAME}", _NAME), re.IGNORECASE), replacement)
    for pattern, replacement in (
        (
            (
                r"(authorization['\"]?\s{0,64}[:=,]\s{0,64}(?:b(?=['\"]))?['\"]?(?:(?:bearer|basic|token)\s{1,64})?)"
                r"[^\s'\",}]{END}"
            ),
            r"\1" + MASK,
        ),
        (r"\b((?:bearer|basic)\s{1,64})[\w.~+/-]{8,65536}={0,8}", r"\1" + MASK),
        (r"(://)[^\s/'\"<>]{0,8192}@", r"\1" + MASK + "@"),
        (
            (
                r"([?&](?:x-amz-|x-goog-)?(?:key|token|secret|sign|signature|sig|pass|password|pwd|api[_-]?key|auth"
                r"|access[_-]?token|security-token|credential)=)"
                r"[^&\s'\"<>]{END}"
            ),
            r"\1" + MASK,
        ),
        (
            (
                r"((?:{NAME}|\btoken)(?:\\?['\"])?\s{0,64}(?:=|%3d)\s{0,64}(?:\\?['\"])?)"
                r"[^\s'\",;&<>)]{END}"
            ),
            r"\1" + MASK,
        ),
        (
            (
                r"((?:{NAME}|['\"]token)\\?['\"]\s{0,64}[:,]\s{0,64}(?:b(?=['\"]))?\\?['\"])"
                r"[^'\"\n]{END}"
            ),
            r"\1" + MASK,
        ),
        (r"((?:{NAME}\s{0,64}:|--(?:{NAME}|token))\s{1,64})" + _LIKELY, r"\1" + MASK),
        (r"(\bcookie['\"]?\s{0,64}[:,]\s{0,64}(?:b(?=['\"]))?['\"]?[\w.-]{1,64}=)[^'\"\n]{END}", r"\1" + MASK),
        (r"\b(gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-)(?=[\w-]{0,64}\d)[\w-]{16,65536}", r"\1" + MASK),
        (r"(/open-apis/bot/(?:v2/)?hook/)[\w%.~-]{END}", r"\1" + MASK),
        (r"(slack\.com(?::\d{1,5})?/(?:services|workflows|triggers)/)[\w%/.~-]{END}", r"\1" + MASK),
        (r"(discord(?:app)?\.com(?::\d{1,5})?/api/(?:v\d{1,3}/)?webhooks/)[\w%/.~-]{END}", r"\1" + MASK),
        (r"(office\.com(?::\d{1,5})?/webhook(?:b2)?/)[\w%/.@~-]{END}", r"\1" + MASK),
        (r"(api\.telegram\.org(?::\d{1,5})?/bot)[\w%:.~-]{END}", r"\1" + MASK),
    )
)
"""Secrets by their form: the headers Authorization and Cookie, ``user:password@``, tokens in queries, what is assigned
to names of secrets (variables of the environment, options, JSON), tokens of known services, and the webhooks of Feishu,
Slack, Discord, Teams and Telegram. Those of DingTalk and WeCom have their tokens in the query.

Every repetition has a bound, so that the time for a text is proportional to its length; a test holds it."""


class Redaction:
    """Registry of secrets, and a filter of log records; of use from any thread."""

    def __init__(self) -> None:
        self._spellings: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._lock = threading.Lock()

    def add(self, secrets: Iterable[str]) -> None:
        """Register secrets in every spelling: as they are, percent-encoded, and escaped in JSON and by ``repr``."""
        spellings = {spelling for secret in secrets for spelling in _spellings(secret) if len(spelling) >= SHORTEST}
        with self._lock:
            if spellings <= self._spellings:
                return
            self._spellings |= spellings
            longest_first = sorted(self._spellings, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE)

    def text(self, text: str) -> str:
        """Return ``text`` with each secret in it replaced."""
        if self._pattern is not None:
            text = self._pattern.sub(MASK, text)
        for form, replacement in _FORMS:
            text = form.sub(replacement, text)
        return text

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact ``record``, its traceback included; a record without a secret stays as it is.

        A traceback with a secret becomes text, so that no handler can print the exception itself.
        """
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit: logging reports it itself
            return True
        if (redacted := self.text(message)) != message:
            record.msg, record.args = redacted, None
        if record.exc_info and record.exc_info[1] is not None:
            trace = "".join(traceback.format_exception(*_parts(record.exc_info))).rstrip("\n")
            if (redacted := self.text(trace)) != trace:
                record.exc_text, record.exc_info = redacted, None
        if record.stack_info:
            record.stack_info = self.text(record.stack_info)
        return True


def _parts(
    info: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
) -> tuple[type[BaseException] | None, BaseException | None, TracebackType | None]:
    return info


def _spellings(secret: str) -> Iterator[str]:
    for plain in {secret, unquote(secret)}:
        yield plain
        yield quote(plain)
        yield quote(plain, safe="")
        yield quote_plus(plain)
        yield json.dumps(plain)[1:-1]
        yield json.dumps(plain, ensure_ascii=False)[1:-1]
        yield repr(plain)[1:-1]


def secrets_of(address: str) -> Iterator[str]:
    """Yield the parts of ``address`` that must not be seen: the whole of it if it has any, path with query, user,
    password, values of the query, and parts of path and host that look like tokens."""
    tokens = list(_tokens(address))
    if tokens:
        parts = urlsplit(address)
        yield address
        yield from (part for part in (parts.path, f"{parts.path}?{parts.query}") if len(part) >= SHORTEST_TOKEN)
    yield from tokens


def _tokens(address: str) -> Iterator[str]:
    try:
        parts = urlsplit(address)
    except ValueError:  # such as an open bracket
        yield address
        return
    user, at, host = parts.netloc.rpartition("@")
    if at:
        yield user
        yield from (part for part in user.split(":") if len(part) >= SHORTEST)
    yield from (value for _, value in parse_qsl(parts.query) if len(value) >= SHORTEST_TOKEN)
    yield from filter(_is_token, parts.path.split("/"))
    if "." not in host and parts.scheme not in ("http", "https"):  # dingtalk://TOKEN
        yield from filter(_is_token, host.split(":"))


def _is_token(part: str) -> bool:
    mixed = any(map(str.isdigit, part)) or (part != part.lower() and part != part.upper())
    return len(part) >= LONG or (len(part) >= SHORTEST_TOKEN and mixed)


def shown_address(address: str) -> str:
    """Return scheme and host of ``address``, which people may see; ``***`` stands for all else."""
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    more = address != f"{parts.scheme}://{host}"
    return f"{parts.scheme}://{host}" + (f"/{MASK}" if more and address != f"{parts.scheme}://{host}/" else "")


REDACTION = Redaction()
"""Registry of this process."""


def register(*secrets: str) -> None:
    """Register secrets, such as passwords and tokens, and have the loggers of :data:`LOGGERS` redacted."""
    REDACTION.add(filter(None, secrets))
    for name in LOGGERS:
        logging.getLogger(name)
    install()


def register_address(address: str) -> None:
    """Register the secret parts of an address."""
    register(*secrets_of(address))


def redact(text: str) -> str:
    """Return ``text`` without secrets."""
    return REDACTION.text(text)


def describe_error(error: BaseException) -> str:
    """Return kinds and texts of ``error`` and of its causes on one line, without secrets."""
    chain: list[str] = []
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        text = f"{type(at).__name__}: {at}".rstrip(": ")
        chain += [text] if not chain or str(at) not in chain[-1] or not str(at) else []
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return redact("; from ".join(chain))


def install() -> None:
    """Add the filter to the loggers of :data:`LOGGERS`, and to those below them that exist, since a filter of a logger
    does not see what those pass up."""
    loggers = logging.root.manager.loggerDict  # getLogger takes a lock, which a thread that waits for us may hold
    for name, logger in [*loggers.items()]:
        if not isinstance(logger, logging.Logger) or REDACTION in logger.filters:
            continue
        if name.partition(".")[0] in LOGGERS:
            logger.addFilter(REDACTION)
