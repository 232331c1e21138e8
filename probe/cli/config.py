"""``probe config``: check a configuration file, and explain every key."""

from __future__ import annotations

import json
import logging
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from probe.core.config.errors import ConfigError, nearest
from probe.core.config.lint import many_files, without_effect
from probe.core.config.load import load
from probe.core.config.schema import Settings
from probe.core.fields import describe, inner_sections
from probe.core.language import message
from probe.core.messages import complain, plural, printable_lines

WIDE = 110
"""Characters of a line of text."""
MOST_NAMED = 20
"""Most targets that a summary names."""

logger = logging.getLogger("probe.settings")
app = typer.Typer(no_args_is_help=True, help="Check a configuration file, or read what its keys mean.")

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
    file: Annotated[Path, typer.Argument(help="A JSON or YAML file.")],
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the run, to estimate the number of its files.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the run.")] = 1,
) -> None:
    """List all mistakes in a configuration file, or, if there are none, print what it collects.

    With --ranks and --steps there is a warning if the run would write more than a million files.

    Exit code 0 if it is correct, 1 if not, 2 for wrong use.
    """
    try:
        settings = load(file)
    except ConfigError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    for sentence in (*without_effect(settings), *many_files(settings, ranks, steps)):
        logger.warning("%s: %s", file, sentence)
    lines = [f"{file}: correct", *(f"  {what:<14}{text}" for what, text in summary(settings))]
    typer.echo(printable_lines("\n".join(lines)))


def summary(settings: Settings) -> Iterator[tuple[str, str]]:
    """Summary of a configuration, in pairs of a heading and a text."""
    collected = list(_collected(settings))
    yield "collects", ", ".join(collected) or "nothing: switch on xy_, wg_, param_ or mv_distribution"
    yield "of", _named(settings)
    yield "numbers", ", ".join((*settings.statistics, "shape", "dtype"))
    last = f", at most {settings.collect_times} of them" if settings.collect_times != 100_000_000 else ""
    budget = "" if settings.max_overhead is None else f", or less often, within {settings.max_overhead:g} of the time"
    yield "steps", f"from {settings.start_step}, every {settings.step_interval}{last}{budget}"
    yield "ranks", ", ".join(map(str, settings.module_ranks)) or "all"
    yield "writes", _written(settings)
    yield "alerts", ", ".join(rule.rule_name for rule in settings.alert.rules) or "none"
    if settings.alert.channels:
        yield "sends to", ", ".join(f"{each.channel} (from {each.severity} on)" for each in settings.alert.channels)


def _named(settings: Settings) -> str:
    names, more = [*settings.targets][:MOST_NAMED], len(settings.targets) - MOST_NAMED
    named = (", ".join(names) or "every module and parameter") + (f" and {more} more" if more > 0 else "")
    every = names and settings.all_xy and settings.xy_distribution and not settings.print_struct
    return f"{named}; inputs and outputs of every module (all_xy)" if every else named


def _collected(settings: Settings) -> Iterator[str]:
    collectives = settings.cc_distribution
    if settings.print_struct:
        yield "the structure of the model, once; training is then stopped"
        return
    if collectives.enable and collectives.cc_log_only:
        yield "the calls of collective communication, which are logged once; training is then stopped"
        return
    values = settings.xy_distribution and not settings.backward_only
    gradients = settings.xy_distribution and not settings.forward_only
    signals = {
        "parameters before and after the update": settings.param_distribution,
        "module inputs and outputs": values,
        "gradients of module inputs and outputs": gradients,
        f"weight gradients{' of each micro batch' if settings.monitor_mbs_grad else ''}": settings.wg_distribution,
        "optimizer state": settings.mv_distribution,
        "updates and ratios of Adam": settings.ur_distribution,
        "agreement of gradients and momentum": settings.mg_direction,
        "relative size of updates": settings.relative_update,
        f"features ({', '.join(_features(settings))})": settings.recording_l2_features and any(_features(settings)),
        "collective communication": collectives.enable,
        "call stacks of modules": settings.stack_info and "csv" in settings.formats,
    }
    yield from (what for what, switched_on in signals.items() if switched_on)


def _features(settings: Settings) -> Iterator[str]:
    """Features with modules: an empty list means every module to linear_hook, and none to the others."""
    return (hook for hook, names in settings.l2_targets if names or (hook == "linear_hook" and names is not None))


def _written(settings: Settings) -> str:
    digits = "6 significant digits" if settings.ndigits is None else f"{settings.ndigits} decimal places"
    steps = settings.step_count_per_record
    csv = f"csv ({steps} {plural(steps, 'step')} a file, {digits})"
    incidents = (
        f"; only around findings, {settings.history} {plural(settings.history, 'step')} before and after"
        if settings.history
        else ""
    )
    return ", ".join(csv if name == "csv" else name for name in settings.formats) + incidents
