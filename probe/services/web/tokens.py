"""Secrets of servers: files that hold them, and checks of what a request has sent against them."""

from __future__ import annotations

import hashlib
import hmac
import stat
from pathlib import Path

from probe.core.language import message
from probe.services.web.listening import ServerError

FEWEST = 16
"""Least number of characters of a token."""


def check_token(token: str) -> None:
    """Check that ``token`` can be sent in a header and is hard to guess.

    Raises:
        ServerError: if not.
    """
    if len(token) < FEWEST or not token.isascii() or any(letter <= " " for letter in token):
        raise ServerError(
            f"token: expected at least {FEWEST} printable ASCII characters without spaces, got "
            f"{len(token)} characters; make one with: openssl rand -hex 32"
        )


def secret_in(file: Path, option: str) -> str:
    """Return the secret in ``file``, which is one line; no message has any of it.

    Raises:
        ServerError: if it cannot be read, has another form, or if every user of this machine can read it.
    """
    names = {"option": option, "file": file}
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ServerError(message("{option} {file}: expected a regular file", **names))
        if status.st_mode & stat.S_IROTH:
            raise ServerError(
                message("{option} {file}: every user of this machine can read it; run: chmod 600 {file}", **names)
            )
        text = file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise ServerError(message("{option} {file}: expected UTF-8", **names)) from None
    except OSError as error:
        raise ServerError(
            message("{option} {file}: cannot be read: {strerror}", **names, strerror=error.strerror)
        ) from None
    if not text or "\n" in text:
        raise ServerError(message("{option} {file}: expected one line", **names))
    return text


class TokenCheck:
    """Check of a text against the expected one, in a time that depends on neither's length."""

    def __init__(self, expected: str) -> None:
        self._expected = _digest(expected.encode())

    def passes(self, sent: bytes) -> bool:
        """Return whether ``sent`` is the expected text."""
        return hmac.compare_digest(_digest(sent), self._expected)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
