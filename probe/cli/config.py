"""``probe config``: check a configuration file, and explain every key."""

from __future__ import annotations

import json
import logging
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from probe.cli import VerbGroup
from probe.cli.config_summary import SUMMARIES, foreign_summary, summary
from probe.core.config.errors import ConfigError, UnreadableConfigError, nearest
from probe.core.config.foreign import monitor_of
from probe.core.config.lint import many_files, without_effect
from probe.core.config.load import load
from probe.core.config.parse import content, is_python, parse, text_of
from probe.core.config.schema import Settings
from probe.core.fields import describe, inner_sections
from probe.core.language import message
from probe.core.messages import complain, printable_lines

WIDE = 110
"""Characters of a line of text."""

logger = logging.getLogger("probe.settings")
app = typer.Typer(cls=VerbGroup, no_args_is_help=True, help="Check a configuration file, or read what its keys mean.")

INTRODUCTION = """\
# Configuration

A configuration is a JSON file of at most 1 MiB (comments that begin with `//` or stand in `/* */`, and a comma after a
last element, are allowed; missing braces around all keys give a warning) or a YAML file (`.yaml`, `.yml`) of at most
256 KiB. Every key may be left out unless its default says `required`. `probe config check FILE` names everything that
is wrong with a file, each with its line, and keys that have no effect; `probe config explain KEY` prints one entry of
this page. KEY may also be the last part of a key.

A key inside another is written with a dot. The keys of `targets` are names of modules, and `alert.rules`,
`alert.channels` and `run.rules` are lists: the name and the position are left out here.

This page is printed by `probe config explain --markdown`.
"""


class KeyReference(NamedTuple):
    """Reference of one key."""

    key: str
    rule: str
    """Rule or channel whose argument this is, or empty."""
    type: str
    default: str
    range: str
    meaning: str

    @property
    def short(self) -> str:
        """First sentence of the meaning."""
        return re.split(r"(?<=\.) ", self.meaning, maxsplit=1)[0]


def entries(model: type[BaseModel] = Settings, above: str = "", rule: str = "") -> Iterator[KeyReference]:
    """Reference of every key of ``model`` and of the mappings inside it, in the order of their declaration."""
    for name, field in model.model_fields.items():
        key = f"{above}.{name}" if above else name
        form = describe(field.annotation, field.metadata)
        meaning = " ".join((field.description or "").split())
        yield KeyReference(key, rule, form.type, _default(field), form.range, meaning)
        for inner, inner_rule in inner_sections(field):
            yield from entries(inner, key, inner_rule or rule)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        return "{}"
    return "none" if value is None else json.dumps(value, default=lambda rule: rule.rule_name)


def full_markdown() -> str:
    """Text of docs/reference/configuration.md."""
    return INTRODUCTION + "".join(_section(entry) for entry in entries())


def _section(entry: KeyReference) -> str:
    facts = ", ".join(filter(None, (entry.type, entry.range, f"default `{entry.default}`")))
    lines = (textwrap.fill(text, WIDE, break_on_hyphens=False) for text in (f"*{facts}*", entry.meaning))
    return "\n\n".join(("", f"## {_code(entry)}", *lines)).removeprefix("\n") + "\n"


def short_markdown() -> str:
    """Table of keys, with the first sentence of each meaning."""
    return _table(
        ("key", "type", "default", "meaning"), [(_code(e), e.type, f"`{e.default}`", e.short) for e in entries()]
    )


def _code(entry: KeyReference) -> str:
    return f"`{entry.key}`" + (f" of {entry.rule}" if entry.rule else "")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _plain(entry: KeyReference, short: bool) -> str:
    about = f"{entry.key}{f' of {entry.rule}' if entry.rule else ''}: {entry.type}"
    about += f" ({entry.range})" if entry.range else ""
    about += ", required" if entry.default == "required" else f", default {entry.default}"
    meaning = entry.short if short else entry.meaning
    return about + "\n" + textwrap.fill(meaning, WIDE, initial_indent="    ", subsequent_indent="    ")


@app.command()
def explain(
    key: Annotated[
        str, typer.Argument(help="A key such as eps or alert.rules.args.threshold, or its last part; none: all.")
    ] = "",
    markdown: Annotated[bool, typer.Option(help="Print docs/reference/configuration.md, or a table.")] = False,
    short: Annotated[bool, typer.Option(help="Only the first sentence of each meaning.")] = False,
) -> None:
    """Print the type, range, default and meaning of a key."""
    if markdown:
        typer.echo(short_markdown() if short else full_markdown(), nl=False)
        return
    wanted = re.sub(r"\[[^\]]*\]", "", key)  # as the errors print it: alert.rules[0].args
    known = list(entries())
    found = [entry for entry in known if not wanted or f"{entry.key}.".startswith(f"{wanted}.")]
    found = found or [entry for entry in known if entry.key.endswith(f".{wanted}")]
    if not found:
        close = nearest(wanted, [entry.key for entry in known])
        hint = message("; did you mean {name}?", name=close) if close else message("; `probe config explain` lists all")
        complain(message("no key {key}{hint}", key=key, hint=hint))
        raise typer.Exit(2)
    typer.echo("\n\n".join(_plain(entry, short) for entry in found))


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A JSON, YAML or Python file.")],
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the run, to estimate the number of its files.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the run.")] = 1,
) -> None:
    """List all mistakes in a configuration file, or, if there are none, print what it collects.

    Configurations of msprobe's Monitor V2, MindSpore Transformers and InternEvo are recognised by their keys.

    With --ranks and --steps there is a warning if the run would write more than a million files.

    Exit code 0 if it is correct, 1 if not, 2 for wrong use.
    """
    try:
        lines = _checked(file, ranks, steps)
    except UnreadableConfigError as error:
        complain(error.problems[0])
        raise typer.Exit(2) from None
    except ConfigError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    typer.echo(printable_lines("\n".join(lines)))


def _checked(file: Path, ranks: int, steps: int) -> list[str]:
    """Return the summary of a file, read by the reader of its monitor.

    Raises:
        ConfigError: with every problem at once.
    """
    text = text_of(name := str(file), content(name))
    monitor = monitor_of(parse(name, text).values, is_python(name, text))
    if monitor is not None and monitor in SUMMARIES:
        return [f"{file}: correct, a configuration of {monitor.title}", *_aligned(foreign_summary(monitor, file))]
    settings = load(file)
    for sentence in (*without_effect(settings), *many_files(settings, ranks, steps)):
        logger.warning("%s: %s", file, sentence)
    return [f"{file}: correct", *_aligned(summary(settings))]


def _aligned(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"  {heading:<14}{text}" for heading, text in pairs)
