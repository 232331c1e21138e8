"""``probe remediate``: actions that alerts of Alertmanager begin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from probe.cli import refuse, refusing
from probe.cli.json_answer import AsJson, print_answer
from probe.core.language import message
from probe.core.messages import counted, echo


def remediate(
    config: Annotated[Path, typer.Option(help="The configuration (JSON or YAML): actions, limits, address.")],
    listen: Annotated[
        str | None, typer.Option(help="The address to listen at, HOST:PORT, in place of the configuration's.")
    ] = None,
    database: Annotated[Path | None, typer.Option(help="The SQLite file, in place of the configuration's.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the configuration, list the actions, and end.")] = False,
    as_machine: AsJson = False,
) -> None:
    """Receive alerts from Alertmanager and carry out the actions that the configuration names for them.

    All actions are rehearsed and recorded only, unless the configuration has dry_run: false. SIGTERM and Ctrl-C end it.
    Exit code 0 after that; 2 if it cannot start.
    """
    from probe.core.config.errors import ConfigError
    from probe.services.database import StoreError
    from probe.services.remediation.serving import serve_until_ended
    from probe.services.remediation.settings import load
    from probe.services.web.listening import ServerError

    if as_machine and not check:
        refuse("--json: expected --check, too: a server has no answer")
    with refusing(ServerError, StoreError, ValueError, ImportError, OSError):
        try:
            options = load(config, listen, database)
        except ConfigError as error:
            refuse(str(error))
        live = [action.name for action in options.actions if not action.dry_run]
        rehearsed = [action.name for action in options.actions if action.dry_run]
        if as_machine:
            print_answer("remediate", {"live": live, "rehearsed": rehearsed})
            return
        actions, none = counted(len(live), "action"), message("none")
        echo("probe: {actions} live: {names}", actions=actions, names=", ".join(live) or none)
        names = ", ".join(rehearsed) or none
        echo("probe: {number} rehearsed: {names}", number=len(rehearsed), names=names)
        if not check:
            serve_until_ended(options, lambda at: echo("probe: listening at {address}", address=at))
