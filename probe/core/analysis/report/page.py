"""Frame of a page: one self-contained HTML file that needs no network."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from probe import __version__
from probe.core.errors import missing

ASSETS = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
"""Permissions of the page in a browser: nothing leaves the machine."""


class PageSection(NamedTuple):
    """Section of a page."""

    anchor: str
    """Fragment of a link to it: letters, digits and hyphens."""
    heading: str
    """Heading as text; escaped here."""
    html: str
    """Body, put into the page as it is: the caller escapes texts from files (``html.escape``)."""


def page(
    title: str,
    sections: Sequence[PageSection],
    *,
    subtitle: str = "",
    plotly: bool = False,
    data: Mapping[str, object] | None = None,
    scripts: Sequence[str] = (),
) -> str:
    """Text of an HTML file.

    Args:
        title: text; escaped here, as is ``subtitle``.
        plotly: true to include the bundle of plotly.js (2 MB), so that ``scripts`` can use ``Plotly``.
        data: values that ``Page.data(name)`` returns to scripts: anything JSON has, so neither NaN nor Inf.
        scripts: JavaScript that is run once all of that is loaded, one after the other; ``page.js`` lists the functions
            that it may use.

    Raises:
        ImportError: if plotly is wanted and missing.
        ValueError: if ``data`` holds NaN or Inf.
    """
    return "".join(_parts(title, sections, subtitle, plotly, data or {}, scripts))


def asset(name: str) -> str:
    """Text of a file that comes with this package."""
    return (ASSETS / name).read_text(encoding="utf-8")


def as_json(value: object) -> str:
    """JSON of ``value`` that stays inside a ``script`` element whatever its texts are."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _parts(
    title: str,
    sections: Sequence[PageSection],
    subtitle: str,
    plotly: bool,
    data: Mapping[str, object],
    scripts: Sequence[str],
) -> Iterator[str]:
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="generator" content="probe {escape(__version__)}">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>\n{asset("page.css")}</style>\n'
        "</head>\n<body>\n"
    )
    links = "".join(f'<a href="#{escape(s.anchor)}">{escape(s.heading)}</a>' for s in sections)
    yield f'<header>\n<h1>{escape(title)}</h1>\n<p class="quiet">{escape(subtitle)}</p>\n'
    yield f"<nav>{links}</nav>\n</header>\n<main>\n"
    for section in sections:
        anchor = escape(section.anchor)
        yield f'<section id="{anchor}">\n<h2>{escape(section.heading)}</h2>\n{section.html}\n</section>\n'
    yield f'</main>\n<footer class="quiet">probe {escape(__version__)}</footer>\n'
    for name, value in data.items():
        yield f'<script type="application/json" id="data-{escape(name)}">{as_json(value)}</script>\n'
    if plotly:
        yield f'<script type="text/plain" id="compressed-plotly">{packed_text(plotly_bundle())}</script>\n'
    for script in scripts:
        yield f'<script type="text/plain" class="after">\n{_inside_script(script)}\n</script>\n'
    yield f"<script>\n{asset('page.js')}\n</script>\n</body>\n</html>\n"


def plotly_bundle() -> str:
    """Text of plotly.js.

    Raises:
        ImportError: if plotly is missing.
    """
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # it comes without annotations
    except ImportError as absent:
        raise ImportError(missing("the page", "plotly", "analysis")) from absent
    return str(get_plotlyjs())


def packed_text(text: str) -> str:
    """Compress ``text``, in base 64; ``Page.inflated`` reads it."""
    return base64.b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")


def _inside_script(text: str) -> str:
    """Escape ``text`` so that it does not end the element it stands in; within strings it means the same."""
    return re.sub(r"<(/script|!--)", r"\\x3c\1", text, flags=re.IGNORECASE)
