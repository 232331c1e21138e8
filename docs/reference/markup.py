"""Markdown out of docstrings and short texts."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable

WIDE = 110
"""Characters of a line."""


def joined(parts: Iterable[str]) -> str:
    """Join the parts, one blank line between them."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip("\n") + "\n"


def markdown(docstring: str) -> str:
    """Convert a docstring: paragraphs, and lists of what follows ``Args:`` and the like."""
    parts: list[str] = []
    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        title, _, rest = paragraph.partition("\n")
        if title in ("Args:", "Returns:", "Raises:"):
            entries = re.split(r"\n(?=\S)", textwrap.dedent(rest))
            if title != "Returns:":
                entries = [re.sub(r"^([\w.*]+): ", r"`\1`: ", entry) for entry in entries]
            parts.append(f"{title}\n\n" + "".join(item(inline(entry)) for entry in entries).rstrip("\n"))
        else:
            parts.append(textwrap.fill(inline(" ".join(paragraph.split())), WIDE, break_on_hyphens=False))
    return "\n\n".join(parts) + "\n"


def inline(text: str) -> str:
    """Write roles and double backticks as single ones."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`")


def item(text: str) -> str:
    """Format an item of a list."""
    return f"- {textwrap.fill(' '.join(text.split()), WIDE, subsequent_indent='  ', break_on_hyphens=False)}\n"
