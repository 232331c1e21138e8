"""Secret that the ranks of a job share, which proves that a message is from one of them.

HMAC (RFC 2104) with SHA-256. The secret itself is never sent, logged or written.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping

VARIABLE = "PROBE_BROADCAST_SECRET"
"""Environment variable that holds the secret."""
FEWEST = 16
"""Least number of characters of a secret."""
MAC = hashlib.sha256().digest_size
"""Size of an authentication code in bytes."""


class SecretError(ValueError):
    """Error of a secret that is missing or too short."""


def secret_in(environ: Mapping[str, str]) -> bytes:
    """Read the secret of this job.

    Raises:
        SecretError: if it is missing or too short.
    """
    secret = environ.get(VARIABLE, "").strip()
    if len(secret) < FEWEST:
        came = f"{len(secret)} characters" if secret else "nothing"
        raise SecretError(
            f"expected the environment variable {VARIABLE}, the same on all ranks, with at least {FEWEST} characters; "
            f"got {came}. Messages between ranks are signed with it. Make one for each job and export it on every "
            "host before training begins: openssl rand -hex 32"
        )
    return secret.encode()


def code(secret: bytes, *parts: bytes) -> bytes:
    """Compute the authentication code of ``parts`` with their lengths; :data:`MAC` bytes."""
    whole = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.new(secret, whole, hashlib.sha256).digest()


def same(one: bytes, other: bytes) -> bool:
    """Return whether two codes are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one, other)


class Seal:
    """Signature of messages that lie in a store under a name.

    The code covers the run and the name, which ends with the message's number: a message that is copied to another
    name, or from another run, is not valid there.

    Args:
        run: name of the run, the same on all ranks.
    """

    def __init__(self, secret: bytes, run: str) -> None:
        self._secret, self._run = secret, run

    def closed(self, name: str, message: bytes) -> bytes:
        """Sign ``message``: return it with its code, as text."""
        return json.dumps([self._code(name, message).hex(), message.decode()]).encode()

    def opened(self, name: str, kept: bytes) -> bytes:
        """Check and return the message in ``kept``.

        Raises:
            PermissionError: if it was not signed under ``name`` with this secret.
        """
        try:
            signed, message = json.loads(kept)
            valid = same(bytes.fromhex(signed), self._code(name, message.encode()))
        except (ValueError, TypeError, AttributeError, RecursionError):
            valid = False
        if not valid:
            raise PermissionError(
                f"{name}: a message in the store is not signed with the {VARIABLE} of this rank; it is ignored"
            )
        return bytes(message.encode())

    def _code(self, name: str, message: bytes) -> bytes:
        return code(self._secret, b"probe notice", self._run.encode(), name.encode(), message)
