"""Answers of servers, with the headers that all of them have."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from probe.core.alerting.redaction import describe_error

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Permissions of a page: its own files and its server alone."""
PAGE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of pages, and of answers that do not name another one of these."""
DATA_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Headers of answers with data."""
Handler = Callable[[Request, Exception], Awaitable[Response]]


def json_answer(status: int, body: object, *, retry_after: int | None = None, close: bool = False) -> Response:
    """Return an answer in JSON.

    Args:
        retry_after: seconds after which the sender may try again.
        close: whether the connection ends. Otherwise uvicorn discards what is left of the request's body, so that its
            sender gets the answer and not a broken connection.
    """
    text = json.dumps(body, separators=(",", ":"), allow_nan=False)
    response = Response(text, status, headers=DATA_HEADERS, media_type="application/json")
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    if close:
        response.headers["Connection"] = "close"
    return response


def text_answer(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a line of plain text; an empty one for no text."""
    return Response(f"{text}\n" if text else "", status, headers, media_type="text/plain")


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
    return json_answer(error.status_code, {"error": error.detail})
