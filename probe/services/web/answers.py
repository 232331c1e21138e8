"""Answers of servers, with the headers that all of them have."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import probe
from probe.core.alerting.redaction import describe_error

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Permissions of a page: its own files and its server alone."""
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers that a gate adds to an answer without them."""
Handler = Callable[[Request, Exception], Awaitable[Response]]
PAGE = Path(probe.__file__).parent / "view" / "page"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
"""Types of the files of the page, by suffix."""


class Reply(NamedTuple):
    """Answer to a request, before HTTP."""

    status: int
    body: object
    retry_after: int | None = None
    """Seconds after which the same request may succeed."""

    def answer(self) -> Response:
        """Return it in JSON."""
        return json_answer(self.status, self.body, retry_after=self.retry_after)


def json_answer(status: int, body: object, *, retry_after: int | None = None, close: bool = False) -> Response:
    """Return an answer in JSON.

    Args:
        retry_after: seconds after which the sender may try again.
        close: whether the connection ends. Otherwise uvicorn discards what is left of the request's body, so that its
            sender gets the answer and not a broken connection.
    """
    text = json.dumps(body, separators=(",", ":"), allow_nan=False)
    response = Response(text, status, media_type="application/json")
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    if close:
        response.headers["Connection"] = "close"
    return response


def refusal(status: int, sentence: str, headers: Mapping[str, str] = {}) -> Response:
    """Return the answer to a request that is refused."""
    response = json_answer(status, {"error": sentence})
    response.headers.update(headers)
    return response


def failures(log: logging.Logger | None = None) -> dict[Any, Handler]:
    """Return Starlette's handlers of exceptions: each is answered in JSON.

    Args:
        log: logger of unexpected ones; none: uvicorn logs them.
    """

    async def internal(_: Request, error: Exception) -> Response:
        if log is not None:
            log.error("internal error: %s", describe_error(error))
        return json_answer(500, {"error": "internal error"})

    return {HTTPException: _failure, Exception: internal}


async def _failure(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, error.detail)


def page_file(name: str) -> Response:
    """Return a file of the page; status 404 for everything else."""
    path = PAGE / name
    kind = TYPES.get(path.suffix)
    if kind is None or "/" in name or "\\" in name or name.startswith(".") or not path.is_file():
        return json_answer(404, {"error": "there is no such file of the page"})
    return _answer(path.read_bytes(), kind)


def jobs_page() -> Response:
    """Return the page, which shows the jobs of a server of heartbeats."""
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    return _answer(text.replace("<body>", '<body data-jobs="yes">').encode("utf-8"), TYPES[".html"])


def _answer(data: bytes, kind: str) -> Response:
    return Response(data, headers={"Content-Type": f"{kind}; charset=utf-8", "Cache-Control": "no-cache"})
