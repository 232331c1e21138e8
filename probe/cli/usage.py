"""Wrong use of the command line, in the words of all other errors: what was expected, what it is for, an example."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from probe.core.config.errors import nearest
from probe.core.language import Message, joined, looked_up, message

EXAMPLES = {
    "DIRECTORY": "monitor_output",
    "MONITOR_PATH": "monitor_output",
    "A": "monitor_output/first",
    "B": "monitor_output/second",
    "FILE": "monitor.json",
    "FILE|-|DIR...": "train.log",
    "PID...": "4711",
    "CONFIG": "monitor.json",
    "KEY": "step_interval",
    "--OUT": "packed",
    "--CONFIG": "remediate.json",
    "probe targets FILE": "monitor_output/module_struct/rank0/module_struct.json",
}
"""Examples of values, by the name of the argument or option that the help shows, of one command or of all."""


def usage_error(error: Any, verb: str = "") -> Message:
    """Return the text of an error of Typer, which raises it for arguments and options that are missing or wrong.

    Args:
        error: exception with ``format_message``, and perhaps with a context ``ctx`` and a parameter ``param``.
        verb: verb of the command line, for an error without a context.
    """
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    command = getattr(context, "command_path", f"probe {verb}".strip())
    meaning = looked_up(str(getattr(parameter, "help", None) or "")).rstrip(".。")
    if (wrong := _wrong_value(error, parameter)) is not None:
        expected = joined(
            "\n", [message("{command}: {text}", command=command, text=wrong), *_meaning(parameter, meaning)]
        )
    elif hasattr(error, "option_name") and context is not None:
        expected = message("{command}: {text}", command=command, text=_unknown_option(error.option_name, context))
    elif hasattr(error, "option_name") and any(word.startswith(f"{error.option_name}=") for word in sys.argv):
        expected = message(
            "{command}: {option}: expected no value, got one after =; leave it out",
            command=command,
            option=error.option_name,
        )
    elif hasattr(error, "option_name"):
        expected = message(
            "{command}: {option}: expected a value after it, got none", command=command, option=error.option_name
        )
    elif type(error).__name__ == "MissingParameter" and parameter is not None:
        expected = message(
            "{command}: expected {name}: {meaning}; for example `{example}`",
            command=command,
            name=_name(parameter),
            meaning=meaning,
            example=" ".join(_example(command, context, parameter)),
        )
    else:
        text = str(error.format_message()).rstrip(".。").replace("(s)", "s")
        if parameter is not None and hasattr(error, "message"):
            text = f"{_name(parameter)}: {error.message}".rstrip(".。")
        if parameter is None and context is not None:
            arguments = [p for p in context.command.params if p.param_type_name == "argument"]
            pieces = [_name(p) if p.required else f"[{_name(p)}]" for p in arguments]
            text += f"; expected `{' '.join([command, '[OPTIONS]', *pieces])}`"
            text = f"{text[:1].lower()}{text[1:]}; leave out what is too many" if "extra" in text else text
        expected = message("{command}: {text}", command=command, text=text)
        expected = joined("\n", [expected, *_meaning(parameter, meaning)])
    more = message("`{command} --help` describes every argument and option.", command=command)
    return joined("\n", [expected, more])


def unknown_verb(verb: str, verbs: Sequence[str], command: str) -> Message:
    """Return the text of an error about a verb that there is not: the nearest, else all."""
    close = nearest(verb, [*verbs, "help", *(["version"] if command == "probe" else [])])
    meant = close if close in verbs else f"--{close}"
    hint = message("did you mean `{command} {meant}`?", command=command, meant=meant)
    if close is None:
        hint = message("expected one of {names}", names=", ".join(verbs))
    if close is None and ("." in verb or Path(verb).exists()):
        usual = "run" if verb.endswith(".py") else "config" if verb.endswith((".json", ".yaml")) else "view"
        first = next(name for name in (usual, "check", "parse", "status", "test") if name in verbs)
        first = "config check" if first == "config" else first
        text = "expected one before it: {names}; for example `{command} {first} {verb}`"
        hint = message(text, names=", ".join(verbs), command=command, first=first, verb=verb)
    text = message("{command}: there is no verb {verb}; {hint}", command=command, verb=verb, hint=hint)
    return joined("\n", [text, message("`{command} --help` describes every argument and option.", command=command)])


def _meaning(parameter: Any, meaning: str) -> list[Message]:
    return [message("{name}: {meaning}", name=_name(parameter), meaning=meaning)] if meaning else []


def _unknown_option(option: str, context: Any) -> Message:
    """Return a sentence about an option that a command does not have: the nearest, else all."""
    verbs = getattr(context.command, "list_commands", lambda _: ())(context)
    if verb := next((word for word in sys.argv[1:] if word in verbs), ""):
        text = "there is no option {option} before a verb; its own options follow it: `{command} {verb} {option}`"
        return message(text, option=option, command=context.command_path, verb=verb)
    shown = (parameter for parameter in context.command.params if not getattr(parameter, "hidden", False))
    options = [*(name for parameter in shown for name in parameter.opts if name.startswith("--")), "--help"]
    close, launches = nearest(option, options), context.command.name in ("run", "check")
    if close == "--help" and nearest(option, ["--help"], 0.8) is None:
        close = None
    named = (p for p in context.command.params if p.param_type_name == "argument" and p.name == option.strip("-"))
    if (argument := next(named, None)) is not None:
        text = "there is no option {option}; {name} stands alone: `{example}`"
        name = _name(argument)
        example = f"{context.command_path} {EXAMPLES.get(name, name)}"
        return message(text, option=option, name=name, example=example)
    if close is not None and not (launches and nearest(option, [close], 0.75) is None):
        return message("there is no option {option}; did you mean {close}?", option=option, close=close)
    if launches:
        text = (
            "there is no option {option}; expected one of {names}, and then a program: for an option of a launcher "
            "write `{command} -- torchrun {option} ...`"
        )
        return message(text, option=option, names=", ".join(options), command=context.command_path)
    return message("there is no option {option}; expected one of {names}", option=option, names=", ".join(options))


_LIMITS = {
    "greater_than_equal": ("ge", message("a number of at least {limit}")),
    "greater_than": ("gt", message("a number above {limit}")),
    "less_than_equal": ("le", message("a number of at most {limit}")),
    "less_than": ("lt", message("a number below {limit}")),
}
_KINDS = {
    "int_parsing": message("a whole number"),
    "int_from_float": message("a whole number"),
    "float_parsing": message("a number"),
    "bool_parsing": message("true or false"),
}
"""Expected values by the kind of a failure of pydantic, by which newer versions of Typer check them."""


def _wrong_value(error: Any, parameter: Any) -> Message | None:
    """Return a sentence with the value of an argument or option that is wrong; None if the value is not known."""
    cause: Any = getattr(error, "__cause__", None)
    first = next(iter(cause.errors()), None) if hasattr(cause, "errors") and parameter is not None else None
    if first is None:
        return None
    kind, value = first["type"], first.get("input")
    if kind in _LIMITS:
        name, template = _LIMITS[kind]
        expected = message(template.template, limit=first.get("ctx", {}).get(name))
    else:
        choices = _choices(parameter)
        one_of = message("one of {names}", names=", ".join(choices)) if choices else None
        expected = one_of or _KINDS.get(kind) or joined("", [str(first["msg"])])
    name = _name(parameter)
    text = message("{name}: expected {expected}, got {value!r}", name=name, expected=expected, value=value)
    advice = (
        message("; for example {example}", example=EXAMPLES[name]) if name in EXAMPLES else message("; or leave it out")
    )
    return joined("", [text, advice])


def _choices(parameter: Any) -> list[str]:
    """Return the values of an argument or option that has a few; empty for any other."""
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(member.value) for member in annotation]
    return [str(choice) for choice in getattr(getattr(parameter, "type", None), "choices", ())]  # older Typer


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
            yield EXAMPLES.get(f"{command} {name.upper()}") or EXAMPLES.get(name.upper(), name)
