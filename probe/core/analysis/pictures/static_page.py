"""The page of :mod:`probe.view` as one file, with its answers inside: it needs neither a server nor the network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

from probe import __version__
from probe.core.analysis.pictures.packing import packed_text
from probe.core.storage.run_directory import plain

PAGE = Path(__file__).parents[3] / "view" / "page"
"""Files of the page."""
POLICY = "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:"
"""Permissions of the page in a browser: nothing leaves the machine, and no script runs but the page's own."""
LANGUAGES = ("en", "zh")
OF_SERVERS = ("jobs", "runs", "live")
"""Modules of pages that a file has not."""
FILES_OF_SERVER = re.compile(r"<(title>|link rel=\"stylesheet\"|script src=).*\n")
"""Lines of the page that name what a file has inside, and its title."""
EXPORT = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.MULTILINE)
IMPORT = re.compile(r'^import \{ (.+) \} from "\./(\w+)\.js";$', re.MULTILINE)
COMMENT = re.compile(r"/\*\*.*?\*/ ?|^ *//.*?$|^ +", re.DOTALL | re.MULTILINE)
"""Comments, and the indentation of lines: the file is read by a browser."""
BETWEEN_RULES = re.compile(r"\s*([{};])\s*")
"""White space around the signs of a style sheet."""


def static_page(title: str, answers: Mapping[str, object], cells: Mapping[str, object] | None = None) -> str:
    """Text of an HTML file.

    Args:
        title: text; escaped here.
        answers: answers of the page's server, by address; NaN and Inf become texts.
        cells: packed cells, of which ``static.js`` makes the answers about one run.
    """
    loader = COMMENT.sub("", _asset("loader.js"))
    scripts = _asset("uPlot.iife.min.js"), bundle("main")
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in (loader, *scripts))
    kinds = 'data-compressed="style"', 'data-compressed="script"', 'data-compressed="script" data-type="module"'
    parts = zip(kinds, (_asset("uPlot.min.css") + _style("page.css"), *scripts), strict=True)
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY.format(scripts=hashes)}">',
        f'<meta name="generator" content="probe {escape(__version__)}">',
        f"<title>{escape(title)}</title>",
    ]
    messages = {f"page/messages.{own}.json": json.loads(_asset(f"messages.{own}.json")) for own in LANGUAGES}
    answered = packed_text(json.dumps(plain({**answers, **messages}), allow_nan=False))
    body = [
        f'<script type="text/plain" id="answers">{answered}</script>',
        f'<script type="application/json" id="cells">{json.dumps(cells, separators=(",", ":"))}</script>',
        f'<script type="text/plain" id="licence">{_asset("uPlot.LICENSE.txt")}</script>',
        *(f'<script type="text/plain" {kind}>{packed_text(text)}</script>' for kind, text in parts),
        f"<script>{loader}</script>",
    ]
    frame = FILES_OF_SERVER.sub("", _asset("index.html"))
    frame = frame.replace("</head>", "\n".join([*head, "</head>"]))
    return frame.replace("</body>", "\n".join([*body, "</body>"]))


def bundle(name: str) -> str:
    """A module and all that it imports as one module, each in a scope of its own; without those of a server."""
    texts: dict[str, str] = {}
    _collect(name, texts)
    return "\n".join(texts.values())


def _collect(name: str, texts: dict[str, str]) -> None:
    """Put the texts of a module, after those that it imports, into ``texts``."""
    source = COMMENT.sub("", _asset(f"{name}.js"))
    for _, imported in IMPORT.findall(source):
        if imported in OF_SERVERS:
            texts[imported] = f"const ${imported} = {{}};"
        elif imported not in texts:
            _collect(imported, texts)
    names = ", ".join(EXPORT.findall(source))
    body = re.sub(r"^export ", "", IMPORT.sub(r"const { \1 } = $\2;", source), flags=re.MULTILINE)
    texts[name] = f"const ${name} = await (async () => {{{body}return {{ {names} }};\n}})();"


def _style(name: str) -> str:
    return BETWEEN_RULES.sub(r"\1", _asset(name))


def _asset(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
