"""``probe serve``: the heartbeat server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from probe.cli import refusing
from probe.core.messages import complain, echo

DAY = 86_400.0
PORT = 8765


def serve(
    listen: Annotated[
        str, typer.Option(help="The address to listen at: HOST:PORT; 0.0.0.0:8765 for other machines too.")
    ] = f"127.0.0.1:{PORT}",
    database: Annotated[Path, typer.Option(help="The SQLite file; made if missing.")] = Path("heartbeats.sqlite"),
    token_file: Annotated[
        Path | None, typer.Option(help="The file that holds the token; else the variable PROBE_SERVER_TOKEN.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A configuration (JSON or YAML) with alert.channels and run.rules.")
    ] = None,
    dead_man: Annotated[str | None, typer.Option(help="An address that is called as long as the server works.")] = None,
    dead_man_file: Annotated[Path | None, typer.Option(help="The file that holds this address, if secret.")] = None,
    dead_man_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds from one call to the next.")] = 60.0,
    keep_days: Annotated[float, typer.Option(min=0.01, help="Days for which messages are kept.")] = 7.0,
    keep_messages: Annotated[int, typer.Option(min=1000, help="The most messages that are kept.")] = 5_000_000,
    host: Annotated[str | None, typer.Option(hidden=True, help="The host of --listen.")] = None,
    port: Annotated[int | None, typer.Option(hidden=True, min=0, max=65535, help="The port of --listen.")] = None,
) -> None:
    """Store the heartbeats of many ranks, alert when one falls silent, and show all jobs on a page.

    Without a token the server listens on this machine alone. SIGTERM and Ctrl-C end it with everything committed. Exit
    code 0 after that; 1 if not everything could be committed; 2 if it cannot start.
    """
    from probe.core.config.load import load
    from probe.services.database import StoreError
    from probe.services.server.serving import TOKEN_VARIABLE, ServerOptions, serve_until_ended
    from probe.services.web.listening import ServerError, address_asked_for
    from probe.services.web.tokens import secret_in, token_in

    with refusing(ServerError, StoreError, ValueError, ImportError, OSError):
        token = token_in(token_file, "--token-file", TOKEN_VARIABLE)
        address = dead_man if dead_man_file is None else secret_in(dead_man_file, "--dead-man-file")
        settings = None if config is None else load(config)
        at = address_asked_for(listen, PORT, host, port)
        options = ServerOptions(
            *at, database, token, settings, address, dead_man_seconds, keep_days * DAY, keep_messages
        )
        committed = serve_until_ended(options, lambda at: echo("probe: listening at {address}", address=at))
    if not committed:
        complain("{database}: not everything was committed", database=database)
        raise typer.Exit(1)
