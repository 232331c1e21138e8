"""Files of the page, which the servers share that show it."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response

import probe
from probe.services.web.answers import json_answer

PAGE = Path(probe.__file__).parent / "view" / "page"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
"""Types of the files of the page, by suffix."""


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
