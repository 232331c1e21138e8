"""``probe exporter``: the numbers of a node for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from probe.cli import refusing
from probe.core.language import message
from probe.core.messages import echo

PORT = 9445


def exporter(
    listen: Annotated[
        str, typer.Option(help="The address to listen at: HOST:PORT; 0.0.0.0:9445 for other machines too.")
    ] = f"127.0.0.1:{PORT}",
    token_file: Annotated[
        Path | None, typer.Option(help="The file that holds a token; else the variable PROBE_EXPORTER_TOKEN, if set.")
    ] = None,
    progress: Annotated[
        list[Path] | None,
        typer.Option(help="A folder with files of ranks; may be repeated. Else the usual ones of every user."),
    ] = None,
    json_file: Annotated[
        list[Path] | None,
        typer.Option(help="A JSON file of training numbers that a program writes; may be repeated."),
    ] = None,
    gpu: Annotated[bool, typer.Option(help="Read GPUs and NPUs.")] = True,
    device_command: Annotated[
        str, typer.Option(help="A program that takes the place of the readings of GPUs and NPUs.")
    ] = "",
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds from one reading of devices to the next.")] = 10.0,
    deadline: Annotated[
        float, typer.Option(min=0.05, help="Seconds by which a reading may be late before its process is replaced.")
    ] = 10.0,
    host: Annotated[str | None, typer.Option(hidden=True, help="The host of --listen.")] = None,
    port: Annotated[int | None, typer.Option(hidden=True, min=0, max=65535, help="The port of --listen.")] = None,
) -> None:
    """Serve the numbers of all ranks of this node, of its devices and of the machine to Prometheus.

    Without a token everyone who can connect can read them. SIGTERM and Ctrl-C end it. Exit code 0 after that; 2 if it
    cannot start.
    """
    from probe.services.exporter.serving import TOKEN_VARIABLE, ExporterOptions, serve_until_ended
    from probe.services.web.listening import ServerError, address_asked_for, is_loopback
    from probe.services.web.tokens import token_in

    def started(address: str) -> None:
        echo("probe: listening at {address}", address=f"{address}/metrics")
        if token is None and not is_loopback(at[0]):
            echo(message("probe: no token: everyone who can connect from the network can read the metrics"), True)

    with refusing(ServerError, ValueError, ImportError, OSError):
        token = token_in(token_file, "--token-file", TOKEN_VARIABLE)
        at = address_asked_for(listen, PORT, host, port)
        options = ExporterOptions(*at, token, progress or (), json_file or (), gpu, device_command, interval, deadline)
        serve_until_ended(options, started)
