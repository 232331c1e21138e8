"""``probe control``: start and stop collecting while a run trains, change its configuration, and watch it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from probe.cli import VerbGroup, refusing
from probe.cli.json_answer import AsJson, print_answer
from probe.core.control import status as live
from probe.core.control.command_requests import (
    COMMANDS,
    Acknowledgement,
    acknowledgements,
    command_of,
    folder_of,
    request,
)
from probe.core.language import invalid, message, translated
from probe.core.messages import complain, echo, printable

ANSWERS = tuple(map(message, ("rank", "state", "before step", "text")))
STATES = tuple(map(message, ("rank", "state", "since step", "directory")))
"""Headings of tables."""


class _DirectoryFirst(VerbGroup):
    """Group that takes ``DIR VERB`` as well as ``VERB DIR``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Swap the first two arguments if the second is a verb, or if the first is a directory."""
        if len(args) > 1 and args[0] not in self.commands and (args[1] in self.commands or Path(args[0]).is_dir()):
            args = [args[1], args[0], *args[2:]]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_DirectoryFirst,
    no_args_is_help=True,
    subcommand_metavar="DIR COMMAND [ARGS]...",
    help="Start and stop collecting while a run trains, change its configuration, watch it, and send it commands. DIR "
    "is the run's MONITOR_OUTPUT_DIR; the run must have been started with DYNAMIC_MONITOR=True and a configuration "
    "file.",
)

Directory = Annotated[Path, typer.Argument(help="Where the run writes: its MONITOR_OUTPUT_DIR.")]
Wait = Annotated[
    float, typer.Option(min=0, help="Seconds to wait until every rank has applied the change; 0: do not wait.")
]
SECONDS = 60.0


@app.command()
def status(directory: Directory, as_machine: AsJson = False) -> None:
    """Show the state of every rank. Exit code 0; 2 if there is no run."""
    with refusing(ValueError):
        states = live.states(directory)
    if as_machine:
        print_answer("control status", {"ranks": states})
    else:
        _show(states)


@app.command()
def start(directory: Directory, wait: Wait = SECONDS, as_machine: AsJson = False) -> None:
    """Begin collecting at the next step. Exit code 0 if every rank did, 1 if not in time, 2 for wrong use."""
    _change(directory, {"dynamic_on": True}, wait, "control start" if as_machine else "")


@app.command()
def stop(directory: Directory, wait: Wait = SECONDS, as_machine: AsJson = False) -> None:
    """Stop collecting at the next step. Exit code 0 if every rank did, 1 if not in time, 2 for wrong use."""
    _change(directory, {"dynamic_on": False}, wait, "control stop" if as_machine else "")


@app.command("set")
def put(
    directory: Directory,
    assignments: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Such as collect_times=10.")],
    wait: Wait = SECONDS,
    as_machine: AsJson = False,
) -> None:
    """Change the configuration; a change with mistakes is refused, and they are listed. Exit codes as of start."""
    with refusing(ValueError):
        values = live.assigned(assignments)
    _change(directory, values, wait, "control set" if as_machine else "")


@app.command()
def command(
    directory: Directory,
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(COMMANDS)}.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE...]", help="Such as factor=0.5.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="The run's configuration file, if it was started without DYNAMIC_MONITOR.")
    ] = None,
    wait: Wait = SECONDS,
    as_machine: AsJson = False,
) -> None:
    """Send a command to the training program, which gets it from monitor.commands() on all ranks before the same step.
    Exit code 0 if every rank has done it, 1 if one refused or failed or if not all have answered in time, 2 for wrong
    use."""
    with refusing(ValueError, OSError):
        file = live.configuration(directory) if config is None else config
        if not file.is_file():
            raise invalid("{file}: expected the configuration file of the run", file=file)
        ranks = [state for state in live.states(directory) if state.state != "ended"]
        sent = request(file, command_of(name, live.assigned(arguments or [])), "probe control")
    typer.echo(printable(f"{folder_of(file)}: {sent}"), err=as_machine)
    answers: list[Acknowledgement] = []
    if wait:
        with Console(stderr=True).status(translated(message("waiting for the ranks"))):
            answers = _answers(folder_of(file), sent, len(ranks), wait)
    if as_machine:
        print_answer("control command", {"request": sent, "ranks": len(ranks), "answers": answers})
    elif wait:
        _show_answers(answers)
    if not wait:
        return
    if len(answers) < len(ranks):
        complain(
            "{answered} of {number} ranks have answered within {wait:g} s; a program has to call "
            "monitor.commands() in each step",
            "warning",
            answered=len(answers),
            number=len(ranks),
            wait=wait,
        )
    if len(answers) < len(ranks) or any(each.state != "done" for each in answers):
        raise typer.Exit(1)


def _show_answers(answers: list[Acknowledgement]) -> None:
    table = Table(*map(translated, ANSWERS))
    for each in answers:
        table.add_row(*(escape(printable(cell)) for cell in (str(each.rank), each.state, str(each.step), each.text)))
    Console().print(table)


def _answers(folder: Path, sent: str, ranks: int, seconds: float) -> list[Acknowledgement]:
    """Return the answers once as many ranks have done or refused it, or when ``seconds`` have passed."""
    deadline = time.monotonic() + seconds
    while True:
        answers = acknowledgements(folder, sent)
        if sum(each.state != "accepted" for each in answers) >= ranks or time.monotonic() > deadline:
            return answers
        time.sleep(live.POLL_SECONDS)


def _change(directory: Path, values: dict[str, Any], wait: float, machine: str) -> None:
    """Change the configuration, and wait until it is applied.

    Args:
        machine: command whose answer is printed as JSON; empty for a table.
    """
    with refusing(ValueError, OSError):
        file, before = live.configuration(directory), live.states(directory)
        with live.turn(file):
            changed = live.put(file, values)
    shown = ", ".join(f"{key} = {value}" for key, value in values.items())
    typer.echo(printable(f"{file}: {shown}"), err=bool(machine))
    begins = values.get("dynamic_on") is True and any(state.state == "at rest" for state in before)
    due = bool(changed) or begins
    if not due:
        echo(message("nothing to change: this is the configuration already"), bool(machine))
    done = not due
    if due and wait:
        with Console(stderr=True).status(translated(message("waiting for the ranks"))):
            done = live.wait(directory, before, wait, lambda _: None)
    if machine:
        states = live.states(directory)
        print_answer(machine, {"file": file, "values": values, "changed": due, "applied": done, "ranks": states})
    elif due and wait:
        _show(live.states(directory))
    if not done and wait:
        complain("not every rank has applied it within {wait:g} s; it still may at a later step", "warning", wait=wait)
        raise typer.Exit(1)


def _show(states: list[live.RankState]) -> None:
    table = Table(*map(translated, STATES))
    for state in states:
        cells = str(state.rank), state.state, str(state.step), state.directory.name
        table.add_row(*(escape(printable(cell)) for cell in cells))
    Console().print(table)
