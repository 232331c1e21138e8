"""Messages of the command line: templates in the code, tables of words, help, and texts of Typer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

TYPER = (
    *("Usage:", "Options", "Arguments", "Commands", "Error", "Aborted.", "[required]", "[default: {}]", "(dynamic)"),
    *("Show this message and exit.", "Try [blue]'{command_path} {help_option}'[/] for help.", "Missing argument"),
    *("Missing option", "Missing parameter", "Missing command.", "No such option {name!r}.", "[env var: {}]"),
    *("No such command {name!r}.", "Invalid value: {message}", "Invalid value for {param_hint}: {message}"),
    *("Option {name!r} requires an argument.", "Did you mean {possibility}?", "(Possible options: {possibilities})"),
    *(
        "{value!r} is not a valid {number_type}.",
        "{value} is not in the range {range}.",
        "Could not open file {filename!r}: {message}",
    ),
    *(
        "{name} {filename!r} does not exist.",
        "Got unexpected extra argument ({args})",
        "Got unexpected extra arguments ({args})",
    ),
    *("Install completion for the current shell.",),
    "Show completion for the current shell, to copy it or customize the installation.",
)
"""Texts of Typer, and of Click inside it, that it looks up in the domain of the process."""


SERVERS = ("agents", "services", "view")
"""Packages whose logs are of servers, and stay English."""
LEVELS = ("warning", "error", "exception")
"""Methods of loggers whose lines are seen in a terminal."""
BARE = re.compile(r"%(?:[.]\d)?[sdrfg]")
"""Fields of lines of a log."""
MESSAGES = ("message", "invalid", "refuse", "RefusalError", "ServerError", "SourceError", "StoreError")
MESSAGES += ("UnattachableError", "_HeaderError")
"""Functions and errors whose first argument is a template."""
PRINTED = ("complain", "echo")
"""Functions whose first argument is a template where values follow."""
CALLS = re.compile(
    rf"\b(?:{'|'.join((*MESSAGES, *PRINTED))}|NotApplicable|counted|_table|in_number)\(|\b(?:_log|logger)\."
)
"""Calls that give a text."""
SEPARATORS = (", ", "; ", ": ", " or ", " and ", ", and ")
"""Texts between the parts of joined messages; a space between sentences needs no translation."""


def templates(package: Path) -> Iterator[str]:
    """Texts in the first argument of each call of :data:`MESSAGES`, and those passed to it by way of ``in_number``."""
    for path in sorted(package.rglob("*.py")):
        logs = path.relative_to(package).parts[0] not in SERVERS
        text = path.read_text("utf-8")
        if not CALLS.search(text):
            continue
        tree = ast.parse(text)
        of_module = _named(tree)
        for function in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))):
            if calls := [node for node in ast.walk(function) if isinstance(node, ast.Call)]:
                yield from _of_calls(calls, {**of_module, **_named(function)}, logs)


def _of_calls(calls: list[ast.Call], named: dict[str, list[ast.expr]], logs: bool) -> Iterator[str]:
    for node in calls:
        if isinstance(node.func, ast.Attribute) and node.args:
            if logs and node.func.attr in LEVELS and ast.unparse(node.func.value) in ("_log", "logger"):
                yield from (text for text in _texts(node.args[0], named) if any(map(str.isalpha, BARE.sub("", text))))
        elif isinstance(node.func, ast.Name):
            if node.args and (node.func.id in MESSAGES or (node.func.id in PRINTED and node.keywords)):
                yield from _texts(node.args[0], named)
            elif node.func.id == "NotApplicable" and node.args:
                yield from _texts(node.args[0])
            elif node.func.id == "counted":
                nouns = [text for argument in node.args[1:] for text in _texts(argument)]
                yield from (f"{{n:,}} {noun}" for noun in (nouns if len(nouns) != 1 else [*nouns, f"{nouns[0]}s"]))
            elif node.func.id == "_table":
                parts = (part for argument in node.args[1:2] for part in ast.walk(argument))
                yield from (text for part in parts for text in _texts(part) if isinstance(part, ast.Constant))
            elif node.func.id == "in_number":
                yield from (text for each in node.args[1:] for text in _texts(each, named))


def _named(node: ast.AST) -> dict[str, list[ast.expr]]:
    """Values of the names that a function or a module assigns."""
    named: dict[str, list[ast.expr]] = {}
    body = node.body if isinstance(node, ast.Module) else ast.walk(node)  # type: ignore[attr-defined]
    for each in body:
        if isinstance(each, ast.Assign):
            for target in each.targets:
                pairs = [(target, each.value)]
                if isinstance(target, ast.Tuple) and isinstance(each.value, ast.Tuple):
                    pairs = [*zip(target.elts, each.value.elts, strict=False)]
                for name, value in pairs:
                    if isinstance(name, ast.Name):
                        named.setdefault(name.id, []).append(value)
    return named


def _texts(node: ast.AST, named: Mapping[str, list[ast.expr]] = MappingProxyType({})) -> Iterator[str]:
    """Texts of an expression; those of a name by what the function or the module assigns to it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        yield from (text for value in named.get(node.id, ()) for text in _texts(value))
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body, named), *_texts(node.orelse, named))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "plural":
        one, *several = (text for each in node.args[1:] for text in _texts(each))
        yield from (one, *(several or [f"{one}s"]))


COMPARED = (
    *("loss", "job", "rank", "host", "step", "critical", "warning", "info", "resolved"),
    *("finding", "exception", "rule", "name", "text", "severity", "type", "launch", "phase", "seconds"),
    *("replicas-differ", "rank-unlike-peers", "same-data", "the gradients and the loop at every step"),
)
"""Labels of alerts and values of events, kinds of findings between ranks, and what else a verdict may say."""


REASONS = (
    *("no update was seen", "no loss function of the framework was called on what a model returned"),
    *("the model was not called again", "fewer than two updates", "no output of a module was seen"),
    *("no model got tokens along two axes", "the model could not be called again"),
    "the inputs of too few forwards were seen",
)
"""Reasons for which a precheck could not judge."""


def words() -> Iterator[str]:
    """Texts of tables of which each entry becomes a message."""
    from probe.cli.anomalies import COLUMNS
    from probe.cli.config_summary import HEADINGS
    from probe.cli.control import ANSWERS, STATES
    from probe.core.analysis.compare.explain import COLUMNS as DIFFERENCES
    from probe.core.analysis.diagnosis.causality import Cause
    from probe.core.analysis.diagnosis.explain import KINDS_OF_TENSOR, NEXT, Kind
    from probe.core.analysis.performance.throughput import LOWEST, RATINGS
    from probe.core.checks import CHECKS
    from probe.core.checks.check import GRADES
    from probe.core.config.parse import KINDS
    from probe.core.config.reference import entries, form_of, judges
    from probe.core.judged_findings import BATCH
    from probe.core.naming import SIGNALS
    from probe.core.prechecks import PRECHECKS
    from probe.core.prechecks.parameters import CONVENTIONS
    from probe.core.sentinel.run_account import SIGNALS_OF
    from probe.core.verdict import SWITCH_ON

    yield from (
        *SEPARATORS,
        "error",
        "warning",
        "info",
        *COLUMNS,
        *DIFFERENCES,
        *HEADINGS,
        *ANSWERS,
        *STATES,
        *(rating for _, rating in RATINGS),
        LOWEST,
        *KINDS.values(),
        "device",
        *KINDS_OF_TENSOR.values(),
        *NEXT.values(),
        *GRADES,
        SWITCH_ON,
        *(text for check in CHECKS.values() for text in (check.name, check.lacks)),
        *PRECHECKS,
        *REASONS,
        *(convention.meaning for convention in CONVENTIONS),
        *(text for entry in entries() for text in (form_of(entry), entry.meaning)),
        *(entry.range for entry in entries() if "name" not in entry.type),
        *(text for judge in judges() for text in (*judge[1:-1],) if text),
        *SIGNALS_OF.values(),
        *COMPARED,
        BATCH,
    )
    yield from (each.value for each in (*Cause, *Kind))
    yield from (each.meaning for each in SIGNALS.values())
    nouns = ("boolean", "integer", "number", "string")
    yield from (*(f"{'an' if noun[0] == 'i' else 'a'} {noun}" for noun in (*nouns, "mapping")),)
    yield from (f"a list of {noun}s" for noun in (*nouns, "name", "mapping"))


def helps() -> Iterator[str]:
    """Help of every command, argument and option."""
    from typer.main import get_command

    from probe.cli import app

    yield from _help_of(get_command(app))


def _help_of(command: Any) -> Iterator[str]:
    texts = [getattr(part, name, None) for part in (command, *command.params) for name in ("help", "short_help")]
    yield from filter(None, texts)
    if hasattr(command, "list_commands"):
        for verb in command.list_commands(None):
            yield from _help_of(command.get_command(None, verb))


def messages(package: Path) -> list[str]:
    """All messages of the command line, each once."""
    found = (*words(), *templates(package), *helps(), *TYPER)
    return [text for text in dict.fromkeys(found) if text in SEPARATORS or any(map(str.isalpha, text))]
