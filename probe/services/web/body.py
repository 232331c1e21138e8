"""Bodies of requests: their type, their size and the time they take are checked while they are read."""

from __future__ import annotations

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from probe.services.web.answers import json_answer, refusal

BODY_SECONDS = 10.0
"""Longest time in seconds in which a body arrives."""


class BodyReader:
    """Reader of the bodies that a server gets.

    Args:
        most: bytes of a body at most.
        most_together: bytes of all bodies that are read at one time at most.
        advice: what a sender of a larger one can do.
    """

    def __init__(self, most: int, most_together: int, advice: str = "") -> None:
        self._most, self._most_together, self._advice = most, most_together, advice
        self._reading = 0

    async def read(self, request: Request) -> bytes | Response:
        """Return the body of ``request`` in JSON, or its refusal."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            with anyio.fail_after(BODY_SECONDS):
                data = await self._whole(request)
        except TimeoutError:
            return json_answer(408, {"error": f"expected the whole body within {BODY_SECONDS:g} s"}, close=True)
        except ClientDisconnect:
            return Response(status_code=400)
        except BufferError:
            return json_answer(503, {"error": "too many bodies at one time"}, retry_after=1, close=True)
        return self._too_large() if data is None else data

    async def _whole(self, request: Request) -> bytes | None:
        """Read the body; None if it is too large."""
        parts, size = list[bytes](), 0
        try:
            async for part in request.stream():
                size += len(part)
                self._reading += len(part)
                if size > self._most:
                    return None
                if self._reading > self._most_together:
                    raise BufferError
                parts.append(part)
            return b"".join(parts)
        finally:
            self._reading -= size

    def _refusal(self, request: Request) -> Response | None:
        """Return the refusal of a request whose body is not worth reading. Its type matters, since a browser asks
        before it sends JSON to another site."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return refusal(415, "expected Content-Type: application/json")
        if "content-encoding" in request.headers:
            return refusal(415, "expected no Content-Encoding")
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or len(declared) > 18 or int(declared) > self._most:
            return self._too_large()
        return None

    def _too_large(self) -> Response:
        return refusal(413, f"expected a body of at most {self._most} bytes{self._advice}")
