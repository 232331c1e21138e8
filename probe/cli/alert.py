"""``probe alert``: test the channels of a configuration, and send alerts that a run could not send."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Annotated, Any

import typer

from probe.cli import VerbGroup, refuse
from probe.cli.json_answer import AsJson, print_answer
from probe.core.alerting.outlet import SEND_SECONDS, Attempt, Outlet, opened, queue_again, refusal_of
from probe.core.alerting.redaction import MASK, describe_error
from probe.core.alerting.spool import FOLDER, Spool, SpooledAlert, abandoned, names
from probe.core.config.errors import ConfigError
from probe.core.config.load import load
from probe.core.faults import Faults
from probe.core.language import message, translated
from probe.core.messages import counted, echo, printable_lines
from probe.core.records import Alert
from probe.core.worker import Worker

app = typer.Typer(
    cls=VerbGroup, no_args_is_help=True, help="Test the channels of alerts, and send alerts that a run could not send."
)

Config = Annotated[Path, typer.Argument(help="A JSON or YAML file with alert.channels.")]


@app.command("test")
def send_test(config: Config, as_machine: AsJson = False) -> None:
    """Send a test alert to each channel, whatever its severity, and print the result.

    Exit code 0 if every channel accepted it, 1 if one did not, 2 for a wrong configuration or use.
    """
    outlets = _outlets(config)
    labels = {"job": "probe alert test", "host": socket.gethostname()}
    text = "This is a test of probe's alerts. Nothing has happened."
    alert = Alert(f"test {time.time_ns()}", "test", "info", "Test alert", text, labels, time.time())
    _show_information()
    entries = {outlet.label: [SpooledAlert(alert, {outlet.label})] for outlet in outlets}
    attempts = _sent(outlets, entries, as_machine)
    if as_machine:
        print_answer("alert test", {"channels": [*map(_result, attempts)]})
    failed = [attempt for attempt in attempts if attempt.error is not None]
    raise typer.Exit(1 if failed else 0)


@app.command()
def flush(
    directory: Annotated[Path, typer.Argument(help="Where a run has written: its MONITOR_OUTPUT_DIR.")],
    config: Annotated[
        Path | None,
        typer.Option(help="A JSON or YAML file with the run's alert.channels; required if addresses stand in it."),
    ] = None,
    as_machine: AsJson = False,
) -> None:
    """Send the alerts that runs in a directory could not send, to the channels that have not accepted them.

    Alerts of runs that are going on are left to them. Exit code 0 if nothing is left to send, 1 if a channel failed, 2
    for a wrong configuration or use.
    """
    outlets = None if config is None else _outlets(config)
    folder = directory if directory.name == FOLDER else directory / FOLDER
    if not directory.is_dir():
        refuse("{directory}: expected a directory, got none; give a run's MONITOR_OUTPUT_DIR", directory=directory)
    spools = list(abandoned(folder))
    try:
        results = [_flush(spool, _of_the_run(spool) if outlets is None else outlets, as_machine) for spool in spools]
    finally:
        for spool in spools:
            spool.close()
    live, complete = len(names(folder)), all(result["complete"] for result in results)
    if as_machine:
        print_answer("alert flush", {"complete": complete, "senders_left": live, "senders": results})
        raise typer.Exit(0 if complete else 1)
    if not spools and not live:
        echo("{folder}: no alert waits to be sent", folder=folder)
    if live:
        senders = counted(live, "sender")
        echo("{senders} in {folder}: going on, or with alerts that are left", senders=senders, folder=folder)
    raise typer.Exit(0 if complete else 1)


def _of_the_run(spool: Spool) -> list[Outlet]:
    """Open the channels of a run by what it has left in its directory, which has no addresses."""
    channels = spool.channels()
    inline = [each["channel"] for each in channels if MASK in str(each.get("args", {}).get("url", ""))]
    if inline or not channels:
        names = ", ".join(inline)
        what = message("the address of {names}" if inline else "the channels of the run", names=names)
        refuse("{what}: not in the directory; give the run's configuration with --config", what=what)
    try:
        return opened(load({"alert": {"channels": channels}}).alert, "the channels of the run")
    except ConfigError as error:
        refuse(str(error))


def _flush(spool: Spool, outlets: Sequence[Outlet], quiet: bool) -> dict[str, Any]:
    """Send the alerts of a spool; return their number, whether all were accepted, and the results of the channels."""
    entries = [*spool.alerts()]
    for entry in entries:
        queue_again(entry, outlets)
    echo("{alerts} to send", quiet, alerts=counted(len(entries), "alert"))
    waiting = {o.label: [entry for entry in entries if o.label in entry.pending] for o in outlets}
    complete, attempts = True, _sent([outlet for outlet in outlets if waiting[outlet.label]], waiting, quiet)
    for attempt in attempts:
        complete &= _settle(attempt.outlet, waiting[attempt.outlet.label], attempt.error, quiet)
    return {"alerts": len(entries), "complete": complete, "channels": [*map(_result, attempts)]}


def _settle(outlet: Outlet, entries: Sequence[SpooledAlert], error: BaseException | None, quiet: bool) -> bool:
    """Take note of the outcome of an attempt with ``entries``, and send each half of those that were refused together:
    one alert stands in no other's way. Return whether all were accepted."""
    if error is None:
        for entry in entries:
            if entry.spool is not None:
                entry.spool.accept(entry, outlet.label)
        return True
    if len(entries) < 2 or refusal_of(error) == "none":
        return False
    complete = True
    for half in (entries[: len(entries) // 2], entries[len(entries) // 2 :]):
        (attempt,) = _sent([outlet], {outlet.label: [*half]}, quiet)
        complete &= _settle(outlet, half, attempt.error, quiet)
    return complete


def _outlets(config: Path) -> list[Outlet]:
    try:
        settings = load(config)
        outlets = opened(settings.alert, str(config))
    except ConfigError as error:
        refuse(str(error))
    if not outlets:
        refuse(
            "{config}: expected alert.channels, got none; `probe config explain alert.channels` describes them",
            config=config,
        )
    return outlets


def _sent(outlets: Sequence[Outlet], entries: dict[str, list[SpooledAlert]], quiet: bool) -> list[Attempt]:
    """Send to all channels at once; print a line for each as it ends, on standard error if ``quiet``."""
    ended: SimpleQueue[Attempt] = SimpleQueue()
    attempts, faults = [], Faults("the other channels are tried")
    for outlet in outlets:
        alerts = [entry.alert for entry in entries[outlet.label]]
        attempts.append(Attempt(outlet, (), _sending(outlet, alerts), SEND_SECONDS))
    for attempt in attempts:
        attempt.error = TimeoutError(message("no answer within {send_seconds:g} s", send_seconds=SEND_SECONDS))
        worker = Worker("probe alert", f"alert: {attempt.outlet.label}", faults, inline=True)
        worker.submit(partial(attempt.run, ended.put))
        worker.end()
    deadline = time.monotonic() + SEND_SECONDS + 0.5
    left = {id(attempt): attempt for attempt in attempts}
    while left:
        try:
            attempt = ended.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            break
        del left[id(attempt)]
        _print(attempt, quiet)
    for attempt in left.values():
        _print(attempt, quiet)
    return attempts


def _sending(outlet: Outlet, alerts: Sequence[Alert]) -> Any:
    return lambda seconds: outlet.channel.send(alerts, seconds)


def _result(attempt: Attempt) -> dict[str, Any]:
    error = None if attempt.error is None else describe_error(attempt.error)
    return {"channel": attempt.outlet.label, "accepted": error is None, "error": error}


def _print(attempt: Attempt, quiet: bool) -> None:
    result = message("accepted")
    if attempt.error is not None:
        result = message("failed: {error}", error=describe_error(attempt.error))
    line = message("{channel}: {result}", channel=attempt.outlet.label, result=result)
    typer.echo(printable_lines(translated(line)), err=quiet)


def _show_information() -> None:
    """Let the channel ``console`` be seen: an alert of severity ``info`` is logged at INFO."""
    if threading.current_thread() is threading.main_thread():
        from probe.core.messages import HANDLER

        HANDLER.setLevel(logging.INFO)
        logging.getLogger("probe.alerts").setLevel(logging.INFO)
