"""Wrong use of the command line, in the words of all other errors: what was expected, what it is for, an example."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

from probe.core.language import Message, joined, looked_up, message

EXAMPLES = {
    "DIRECTORY": "monitor_output",
    "MONITOR_PATH": "monitor_output",
    "A": "monitor_output/first",
    "B": "monitor_output/second",
    "FILE": "monitor.json",
    "FILE|-|DIR...": "train.log",
    "PID...": "4711",
    "KEY": "step_interval",
    "--OUT": "packed",
    "--CONFIG": "remediate.json",
}
"""Examples of values, by the name of the argument or option that the help shows."""


def usage_error(error: Any) -> Message:
    """Return the text of an error of Typer, which raises it for arguments and options that are missing or wrong.

    Args:
        error: exception with ``format_message``, and perhaps with a context ``ctx`` and a parameter ``param``.
    """
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    command = getattr(context, "command_path", "probe")
    meaning = looked_up(str(getattr(parameter, "help", None) or "")).rstrip(".。")
    if type(error).__name__ == "MissingParameter" and parameter is not None:
        expected = message(
            "{command}: expected {name}: {meaning}; for example `{example}`",
            command=command,
            name=_name(parameter),
            meaning=meaning,
            example=" ".join(_example(command, context, parameter)),
        )
    else:
        text = str(error.format_message()).rstrip(".。")
        expected = message("{command}: {text}", command=command, text=text[:1].lower() + text[1:])
        if meaning:
            expected = joined("\n", [expected, message("{name}: {meaning}", name=_name(parameter), meaning=meaning)])
    more = message("`{command} --help` describes every argument and option.", command=command)
    return joined("\n", [expected, more])


def _name(parameter: Any) -> str:
    """Return the name of a parameter as its help shows it."""
    if parameter.param_type_name == "option":
        return str(parameter.opts[0])
    return str(parameter.metavar or parameter.name).upper()


def _example(command: str, context: Any, missing: Any) -> Iterator[str]:
    """Yield the words of a command with everything that is required."""
    yield command
    for parameter in context.command.params if context is not None else [missing]:
        if parameter.required:
            name = _name(parameter)
            yield from [name] if parameter.param_type_name == "option" else []
            yield EXAMPLES.get(name.upper(), name)


ADVICE = {
    errno.ENOSPC: message("there is no space left: free some, or choose another folder"),
    errno.EDQUOT: message("the quota is used up: free some of it, or choose another folder"),
    errno.EROFS: message("the file system is read-only: choose another folder"),
    errno.EACCES: message("permission is denied: choose another place, or change its permissions"),
    errno.EPERM: message("permission is denied: choose another place, or change its permissions"),
    errno.EISDIR: message("expected a file; this is a folder"),
    errno.ENOTDIR: message("expected a folder; a part of this path is a file"),
    errno.ENOENT: message("there is no such file or folder"),
    errno.EMFILE: message("too many files are open: raise the limit, `ulimit -n 65536`"),
}
"""Sentences about errors of the system, by number."""


def reason_of(error: Exception) -> Message:
    """Return the text of an error; of one of the system the file, what is wrong with it, and what to do."""
    if not isinstance(error, OSError) or error.errno is None:
        return joined("", [str(error)])
    reason: str = ADVICE.get(error.errno) or str(error.strerror or error)
    if error.filename is None:
        return joined("", [reason])
    return message("{path}: {reason}", path=error.filename, reason=reason)
