"""``probe view``: a page over runs, as they are and while they grow."""

from __future__ import annotations

import webbrowser
from typing import Annotated, Any

import typer

from probe.cli import refusing
from probe.cli.places import run_argument
from probe.core.messages import printable

PLACES = "Folders with runs, such as MONITOR_OUTPUT_DIR of one, or URLs. Else ./monitor_output, or the current folder."


def view(
    directories: Annotated[list[Any] | None, run_argument(PLACES, "[DIR]...")] = None,
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
        view_until_ended(ViewOptions(places, host, port), lambda address: _started(address, browser))


def _usual() -> str:
    """Return the folder that is shown if none is named."""
    import os
    from pathlib import Path

    from probe.core.storage.run_directory import output_root

    usual = output_root(os.environ)
    return str(usual if usual.is_dir() else Path.cwd())


def _started(address: str, browser: bool) -> None:
    typer.echo(f"probe: listening at {printable(address)}")
    if browser:
        webbrowser.open(address)
