"""Lines of help in the language of the command line: broken by the width of characters, with a translated heading.

Chinese has no spaces to break at: Rich takes a sentence for one word, and cuts what does not fit in a cell.
"""

from __future__ import annotations

from typing import Any

from probe.core.language import looked_up
from probe.core.messages import WORD


def break_anywhere() -> None:
    """Let Rich break lines between any two wide characters, and count cells where it drops blanks at their ends."""
    from rich import _wrap
    from rich.text import Text

    setattr(Text, "rstrip_end", _drop_blanks)  # noqa: B010 - that of Rich 15 counts characters
    if hasattr(_wrap, "re_word"):  # Rich 10 to 15 have it
        _wrap.re_word = WORD


def _drop_blanks(text: Any, size: int) -> None:
    """Remove as many blanks at the end of a line as it is wider than ``size`` cells."""
    excess = text.cell_len - size
    if excess > 0:
        text.right_crop(min(excess, len(text.plain) - len(text.plain.rstrip())))


def translate_usage(context_class: Any) -> None:
    """Let the first line of a help begin with the translation of ``Usage:``."""
    formatter: Any = context_class.formatter_class

    class UsageFormatter(formatter):  # type: ignore[misc]
        """Formatter of the first line."""

        def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
            super().write_usage(prog, args, f"{looked_up('Usage:')} " if prefix is None else prefix)

    context_class.formatter_class = UsageFormatter


def translate_help_option(command: Any) -> None:
    """Put the help of ``--help``, which a command makes anew each time, into the language of the command line."""
    make = command.get_help_option

    def translated(context: Any) -> Any:
        option = make(context)
        if option is not None and option.help:
            option.help = looked_up(option.help)
        return option

    command.get_help_option = translated
