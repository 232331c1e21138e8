"""Endpoints of the exporter: ``/metrics`` and ``/health``."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from probe.services.exporter.node_page import NodePage
from probe.services.web.answers import failures, json_answer
from probe.services.web.gate import Gate, admission


def application(page: NodePage, token: str | None, *, local: bool) -> Gate:
    """Return the ASGI application of the exporter.

    Args:
        page: its page.
        token: token that requests carry; None if none is needed.
        local: whether only this machine can connect.
    """

    async def metrics(request: Request) -> Response:
        content, kind = await page.text(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": kind})

    async def health(_: Request) -> Response:
        return json_answer(200, {"status": "ok", "hung": page.hung})

    routes = [Route("/metrics", metrics), Route("/health", health)]
    inner = Starlette(routes=routes, exception_handlers=failures())
    return Gate(inner, admission(token, "exporter", to_all=not local))
