"""The ``probe`` command. To add a verb, write ``probe/cli/<verb>.py`` and one line in ``VERBS``."""

from __future__ import annotations

import ast
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from probe import __version__

VERBS: dict[str, str] = {
    "alert": "probe.cli.alert:app",
    "anomalies": "probe.cli.anomalies:anomalies",
    "attach": "probe.cli.attach:attach",
    "check": "probe.cli.check:check",
    "compare": "probe.cli.compare:compare",
    "config": "probe.cli.config:app",
    "control": "probe.cli.control:app",
    "csv2db": "probe.cli.convert:csv2db",
    "csv2tb": "probe.cli.convert:csv2tb",
    "demo": "probe.cli.demo:demo",
    "exporter": "probe.cli.exporter:exporter",
    "logs": "probe.cli.logs:app",
    "mcp": "probe.cli.mcp:mcp",
    "merge": "probe.cli.merge:merge",
    "pack": "probe.cli.pack:pack",
    "performance": "probe.cli.performance:performance",
    "remediate": "probe.cli.remediate:remediate",
    "report": "probe.cli.report:report",
    "run": "probe.cli.run:run",
    "serve": "probe.cli.serve:serve",
    "sql": "probe.cli.sql:sql",
    "targets": "probe.cli.targets:targets",
    "track": "probe.cli.track:track",
    "view": "probe.cli.view:view",
}
"""Verbs by the path of a function, or of a ``typer.Typer`` with verbs of its own, which is imported on use."""


URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""Beginning of a URL, as a path writes it."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C."""


def _load(verb: str) -> Any:
    module, _, attribute = VERBS[verb].partition(":")
    found = import_module(module)
    target = getattr(found, attribute)
    holder = typer.Typer()
    if isinstance(target, typer.Typer):
        holder.add_typer(target, name=verb)
    else:
        holder.command(verb, context_settings=getattr(found, "CONTEXT", None))(target)
    command = get_group(holder).commands[verb]
    _translate_help(command)
    _refuse_urls(command)
    return command


def _refuse_urls(command: Any) -> None:
    """Make a command, and its verbs, refuse a URL in the place of a path of this machine."""
    for inner in getattr(command, "commands", {}).values():
        _refuse_urls(inner)
    invoke = command.invoke

    def checked(context: Any) -> Any:
        for parameter in command.params:
            value = context.params.get(parameter.name)
            if isinstance(value, Path) and URL.match(str(value)):
                text = "{name}: expected a path of this machine, got a URL: copy it to this machine, or from it later"
                name = parameter.opts[0]  # of an argument, in small letters
                refuse(text, name=f"{name if name[0] == '-' else name.upper()} {value}")
        return invoke(context)

    command.invoke = checked


def _translate_help(command: Any) -> None:
    """Put the help of a command, of its options and of its verbs into the language of the command line."""
    from probe.core.language import is_active, looked_up

    for part in (command, *command.params):
        for name in ("help", "short_help"):
            if text := getattr(part, name, None):
                setattr(part, name, looked_up(text))
    if is_active():
        from probe.cli.chinese_lines import translate_help_option

        translate_help_option(command)
    for inner in getattr(command, "commands", {}).values():
        _translate_help(inner)


def _help_of(verb: str) -> str:
    """Return the help of a verb from its source: the docstring of a function, or what ``typer.Typer`` gets."""
    module, _, attribute = VERBS[verb].rpartition(".")[2].partition(":")
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            return ast.get_docstring(node) or ""
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == attribute
            and isinstance(node.value, ast.Call)
        ):
            return str(next(ast.literal_eval(word.value) for word in node.value.keywords if word.arg == "help"))
    raise LookupError(VERBS[verb])


class UnknownVerbError(typer.BadParameter):
    """Error of a command that is called with a verb that it does not have.

    Args:
        verb: the verb.
        command: words of the command.
        verbs: verbs that it has.
    """

    def __init__(self, verb: str, command: str, verbs: Sequence[str]) -> None:
        super().__init__(f"there is no verb {verb!r}")
        self.verb, self.command, self.verbs = verb, command, verbs


class VerbGroup(TyperGroup):
    """Group that names its verbs where one is unknown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in (verbs := self.list_commands(ctx)):
            raise UnknownVerbError(args[0], ctx.command_path, verbs)
        return super().resolve_command(ctx, args)


class _LazyVerbs(VerbGroup):
    """Group that imports a verb when it is run; a list of all verbs, and a misspelt one, import none."""

    _lists = False
    """True while the help is written."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is Typer's
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in VERBS and self._lists:
            command = TyperCommand(cmd_name, help=_help_of(cmd_name))
            _translate_help(command)
            return command
        if cmd_name in VERBS and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._lists = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._lists = False


app = typer.Typer(cls=_LazyVerbs, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"probe {__version__}")
        raise typer.Exit


@app.callback()
def _probe(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Watch the inside of a training run and name the first bad layer."""


@contextmanager
def refusing(*wrong: type[Exception]) -> Iterator[None]:
    """End the command with exit code 2 if the block raises one of ``wrong``: print its problems, else its text."""
    try:
        yield
    except wrong as error:
        if isinstance(error, BrokenPipeError):
            raise
        from probe.core.errors import reason_of
        from probe.core.language import joined

        refuse(joined("\n", getattr(error, "problems", [reason_of(error)])))


def refuse(template: str, /, **values: object) -> NoReturn:
    """Print a message, and end the command with exit code 2."""
    from probe.core.language import Message, message
    from probe.core.messages import complain

    complain(template if isinstance(template, Message) else message(template, **values))
    raise typer.Exit(2) from None


def main() -> None:
    """Run the command line; the console script starts here. Ctrl-C ends it with exit code 130."""
    from probe.core import messages
    from probe.core.language import activate, message

    messages.patience = None
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack characters of names
    activate()
    interrupted = _Interrupts()
    try:
        _run()
    except (KeyboardInterrupt, RuntimeError):  # DuckDB makes a RuntimeError of what a signal handler raises
        if not interrupted.seen:
            raise
    except SystemExit:
        if not interrupted.seen:
            raise
    messages.complain(message("interrupted"))
    raise SystemExit(INTERRUPTED)


def _run() -> None:
    """Run a command, and end the process with its exit code; 2 after wrong use."""
    from probe.core.language import is_active

    root = get_command(app)
    if is_active():
        from probe.cli.chinese_lines import break_anywhere, translate_usage

        break_anywhere()
        translate_usage(root.context_class)
        _translate_help(root)
    try:
        code = root.main(prog_name="probe", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except UnknownVerbError as error:
        from probe.cli.usage import unknown_verb
        from probe.core.messages import complain

        complain(unknown_verb(error.verb, error.verbs, error.command))
        raise SystemExit(2) from None
    except OSError as error:
        from probe.core.errors import reason_of
        from probe.core.messages import complain

        if not isinstance(error, BrokenPipeError):  # as of `| head`
            complain(reason_of(error))
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what could not be written would fail again at the end
        code = 1 if isinstance(error, BrokenPipeError) else 2
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ != "NoArgsIsHelpError":  # that one has printed the help
            from probe.cli.usage import usage_error
            from probe.core.messages import complain

            complain(usage_error(error, next((word for word in sys.argv[1:2] if word in VERBS), "")))
        code = getattr(error, "exit_code", 2)
    raise SystemExit(code if isinstance(code, int) else 0)


class _Interrupts:
    """Record of SIGINT, which still raises KeyboardInterrupt; a process that ignores the signal keeps ignoring it."""

    def __init__(self) -> None:
        self.seen = False
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)
