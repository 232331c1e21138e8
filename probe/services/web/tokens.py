"""Secrets of servers: files that hold them, and checks of what a request has sent against them."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path

from probe.core.alerting.redaction import register
from probe.core.language import message
from probe.services.web.listening import ServerError

FEWEST = 16
"""Least number of characters of a token."""


def token_in(file: Path | None, option: str, variable: str | None = None) -> str | None:
    """Return the token in ``file``, or else in the environment variable; None if it is in neither.

    Raises:
        ServerError: as for :func:`secret_in`; or if it cannot be sent in a header or is easy to guess.
    """
    token = (os.environ.get(variable or "", "").strip() or None) if file is None else secret_in(file, option)
    if token is not None and (len(token) < FEWEST or not token.isascii() or any(letter <= " " for letter in token)):
        raise ServerError(
            "token: expected at least {fewest} printable ASCII characters without spaces, got {token} "
            "characters; make one with: openssl rand -hex 32",
            fewest=FEWEST,
            token=len(token),
        )
    register(token or "")
    return token


def secret_in(file: Path, option: str) -> str:
    """Return the secret in ``file``, which is one line; no message or log has any of it.

    Raises:
        ServerError: if it cannot be read, has another form, or if every user of this machine can read it.
    """
    names = {"option": option, "file": file}
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            text = "{option} {file}: expected a file with one line; this is a {kind}: name another"
            kind = message("folder" if file.is_dir() else "device")
            raise ServerError(text, kind=kind, **names)
        check_private(file, option)
        text = file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise ServerError("{option} {file}: expected UTF-8", **names) from None
    except OSError as error:
        raise ServerError(
            "{option} {file}: cannot be read: {strerror}; expected a file with one line that its user alone can "
            "read: `umask 077; openssl rand -hex 32 > {file}`",
            **names,
            strerror=error.strerror,
        ) from None
    if not text or "\n" in text:
        content = message("several" if text else "an empty file")
        text = "{option} {file}: expected one line, got {content}; `openssl rand -hex 32 > {file}` writes one"
        raise ServerError(text, content=content, **names)
    register(text)
    return text


def check_private(file: Path, option: str) -> None:
    """Check that not every user of this machine can read ``file``.

    Raises:
        ServerError: if each can.
        OSError: if there is no such file.
    """
    if file.stat().st_mode & stat.S_IROTH:
        raise ServerError(
            "{option} {file}: every user of this machine can read it; run: chmod 600 {file}", option=option, file=file
        )


class TokenCheck:
    """Check of a text against the expected one, in a time that depends on neither's length."""

    def __init__(self, expected: str) -> None:
        self._expected = _digest(expected.encode())

    def passes(self, sent: bytes) -> bool:
        """Return whether ``sent`` is the expected text."""
        return hmac.compare_digest(_digest(sent), self._expected)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
