"""Argument that names a run: a folder of this machine, or a URL of object storage."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from probe.core.language import translated
from probe.core.storage.location import MARK, Place, located
from probe.core.storage.run_directory import output_root

HELP = (
    "Where the ranks have written: MONITOR_OUTPUT_DIR of the run, or its URL, such as s3://bucket/run. "
    "Else ./monitor_output."
)


def parsed(text: str) -> Place:
    """Return the place that ``text`` names.

    Raises:
        typer.BadParameter: if it is a URL that cannot be read from. Typer itself would print the URL, and with it what
            may be credentials.
    """
    try:
        return located(text)
    except ValueError as error:
        raise typer.BadParameter(translated(str(error))) from None


def usual_place() -> Place:
    """Return the place that is read if none is named: MONITOR_OUTPUT_DIR, which may be a URL, else
    ``./monitor_output``."""
    named = os.environ.get("MONITOR_OUTPUT_DIR", "")
    return parsed(named) if MARK in named else output_root(os.environ)


def run_argument(help_text: str = HELP, metavar: str = "DIRECTORY", parser: Callable[[str], Place] = parsed) -> Any:
    """Return the Typer argument of a :data:`Place`; that with the usual text is the usual place if it is left out."""
    usual = (lambda: str(usual_place())) if help_text == HELP else None
    return typer.Argument(
        parser=parser, metavar=metavar, help=help_text, default_factory=usual, show_default=usual is None
    )


RunPlace = Annotated[Any, run_argument()]
"""Annotation of such an argument; its value is a :data:`Place`. Typer refuses the annotation of a union."""
