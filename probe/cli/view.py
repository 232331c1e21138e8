"""``probe view``: a page over runs, as they are and while they grow."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

import typer

from probe.cli import refusing
from probe.cli.places import parsed, run_argument, usual_place
from probe.core.messages import echo
from probe.core.storage.location import Place

PLACES = "Folders with runs, such as MONITOR_OUTPUT_DIR of one, or URLs. Else ./monitor_output, or the current folder."


_cell: list[str] = []
"""Query of the page that the place on the command line names, such as ``signal=actv&step=30``."""


def _place_and_cell(text: str) -> Place:
    """Parse a folder or a URL, of which the part after ``#`` is a place on the page, as ``probe run`` prints it."""
    folder, mark, cell = text.rpartition("#")
    if not mark or Path(text).exists():
        return parsed(text)
    _cell[:] = [urlencode(parse_qsl(cell))]
    return parsed(folder)


def view(
    directories: Annotated[list[Any] | None, run_argument(PLACES, "[DIR]...", _place_and_cell)] = None,
    listen: Annotated[
        str, typer.Option(help="The address to listen at: HOST:PORT; 0.0.0.0:8090 for other machines too.")
    ] = "127.0.0.1:0",
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Show runs on a page: heatmaps, curves, findings down to the row and its file, and two runs against each other.

    It reads only, and prints one address, with a secret in it, that opens the page. Ctrl-C ends it. Exit code 2 if it
    cannot start.
    """
    from probe.services.web.listening import ServerError, parsed_address
    from probe.view.serving import ViewOptions, view_until_ended

    with refusing(ServerError, ValueError, ImportError, OSError):
        host, port = parsed_address(listen)
        places = tuple(map(str, directories or [_usual()]))
        query = f"&run=0&{_cell.pop()}" if _cell and len(places) == 1 else ""
        view_until_ended(ViewOptions(places, host, port), lambda address: _started(f"{address}{query}", browser))


def _usual() -> str:
    """Return the folder that is shown if none is named."""
    usual = usual_place()
    return str(usual if usual.is_dir() else Path.cwd())


def _started(address: str, browser: bool) -> None:
    echo("probe: listening at {address}", address=address)
    if browser:
        webbrowser.open(address)
