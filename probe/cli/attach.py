"""``probe attach``: a training that runs already, watched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from probe.cli import refuse, refusing
from probe.cli.json_answer import AsJson, print_answer
from probe.core.language import Message, message, translated
from probe.core.messages import complain, printable
from probe.launch.attach.exchange import AttachExchange, exchange
from probe.launch.attach.processes import Interpreter, UnattachableError, children
from probe.launch.attach.request import AttachRequest, ProcessPlace

SECONDS = 60.0


def attach(
    pids: Annotated[list[int], typer.Argument(metavar="PID...", help="Processes of one run, on this host.")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="JSON or YAML file; none: gradients and alerts.")
    ] = None,
    at_step: Annotated[
        int | None, typer.Option(min=1, help="Number of the first step; none: the next one that all can begin with.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until all are watched.")] = SECONDS,
    as_machine: AsJson = False,
) -> None:
    """Watch a training that runs already, from its next step on: neither its code nor its numbers change.

    It must run Python 3.14 or later, and PyTorch; probe must be installed in its environment. Several processes begin
    with the same step. Exit code 0 if all are watched, 1 if one is not, 2 for wrong use.
    """
    if config is not None:
        _check(config)
    interpreters = {pid: _checked(pid) for pid in dict.fromkeys(pids)}
    request = AttachRequest(tuple(interpreters), None if config is None else str(config.resolve()), at_step)
    attached: dict[int, int] = {}
    answers: dict[int, Mapping[str, Any]] = {}
    with exchange(request) as made:
        for pid, interpreter in interpreters.items():
            _run(interpreter, made.places[pid])
        for pid, answer in made.answers(wait):
            if answer["state"] == "attached":
                attached[pid] = answer["step"]
            answers[pid] = answer
            _show(pid, answer, made, interpreters[pid], as_machine)
    if as_machine:
        print_answer("attach", {"processes": [{"pid": pid, **answer} for pid, answer in answers.items()]})
    if len(set(attached.values())) > 1:
        complain(message("the processes begin with different steps"), "warning")
    if len(attached) < len(interpreters):
        raise typer.Exit(1)


def _check(config: Path) -> None:
    from probe.core.config.errors import ConfigError
    from probe.core.config.load import load

    with refusing(ConfigError):
        load(config)


def _checked(pid: int) -> Interpreter:
    try:
        interpreter = Interpreter.of(pid)
        interpreter.check()
    except UnattachableError as reason:
        refuse("{pid}: {reason}", pid=pid, reason=reason)
    return interpreter


def _run(interpreter: Interpreter, place: ProcessPlace) -> None:
    """Ask a process to run its script; a refusal becomes its answer."""
    try:
        interpreter.run(place.script)
    except UnattachableError as reason:
        place.answer("refused", reason=str(reason))


def _show(pid: int, answer: Mapping[str, Any], made: AttachExchange, interpreter: Interpreter, quiet: bool) -> None:
    if answer["state"] == "busy":  # for a moment: inside the hooks of an optimizer
        _run(interpreter, made.places[pid])
    elif answer["state"] == "attached":
        typer.echo(printable(f"{pid}: {translated(_attached(answer))}"), err=quiet)
    else:
        complain(
            "{pid}: not watched: {reason}{others}", pid=pid, reason=_looked_up(answer["reason"]), others=_others(pid)
        )


def _looked_up(reason: str) -> Message:
    """Return a reason that comes from another process as a message."""
    return reason if isinstance(reason, Message) else message(reason)


def _attached(answer: Mapping[str, Any]) -> Message:
    """Return the line about a process that is watched."""
    what = ", ".join(f"{name}: {kind}".removeprefix(": ") for name, kind in answer["models"].items())
    counted = (
        message("from step {step} on", step=answer["step"])
        if answer["counted"]
        else message("its steps are numbered from here on")
    )
    where = message("; files in {directory}", directory=answer["directory"]) if answer["directory"] else ""
    return message(
        "watching {what} with {optimizers}; {counted}{where}",
        what=what,
        optimizers=", ".join(answer["optimizers"]),
        counted=counted,
        where=where,
    )


def _others(pid: int) -> str:
    below = " ".join(map(str, children(pid)))
    return message("; processes below it that run Python: {below}", below=below) if below else ""
