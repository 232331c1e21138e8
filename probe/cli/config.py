"""``probe config``: check a configuration file, and explain every key."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import typer

from probe.cli import VerbGroup, refuse, refusing
from probe.cli.config_summary import SUMMARIES, foreign_summary, summary
from probe.cli.json_answer import AsJson, print_answer
from probe.core.config.errors import ConfigError, UnreadableConfigError
from probe.core.config.foreign import monitor_of
from probe.core.config.lint import many_files, without_effect
from probe.core.config.load import load
from probe.core.config.parse import content, is_python, parse, text_of
from probe.core.config.reference import JudgeReference, KeyReference, entries, form_of, references
from probe.core.config.schema import Settings
from probe.core.language import joined, looked_up, message, translated
from probe.core.messages import complain, printable_lines, wrapped

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
    """Return the text about a key, in the language of the command line."""
    local = entry._replace(meaning=looked_up(entry.meaning))
    name = message("{key} of {rule}", key=entry.key, rule=entry.rule) if entry.rule else entry.key
    form = message(form_of(entry), range=looked_up(entry.range))
    about = "{name}: {form}, required" if entry.default == "required" else "{name}: {form}, default {default}"
    default = message("none") if entry.default == "none" else entry.default
    head = translated(message(about, name=name, form=form, default=default))
    return f"{head}\n{_indented(local.short if short else local.meaning)}"


def _judge(judge: JudgeReference, short: bool) -> str:
    """Return the text about a rule or check: its finding, and where it is not shortened, its reasons and remedy."""
    local = JudgeReference(judge.name, *map(looked_up, judge[1:]))
    sees = translated(message("It sees {sees}.", sees=local.sees))
    texts = [local.meaning, *([] if short else filter(None, (sees, local.why, local.remedy, local.source)))]
    head = translated(joined(": ", (judge.name, local.kind, local.title)))
    return "\n".join([head, *map(_indented, texts)])


def _indented(text: str) -> str:
    return wrapped(f"    {text}", WIDE, 4)


@app.command()
def explain(
    key: Annotated[
        str,
        typer.Argument(
            help="A key such as eps or alert.rules.args.threshold, its last part, or a rule or check; none: all keys."
        ),
    ] = "",
    markdown: Annotated[bool, typer.Option(help="Print docs/reference/configuration.md, or a table.")] = False,
    short: Annotated[bool, typer.Option(help="Only the first sentence of each meaning.")] = False,
    as_machine: AsJson = False,
) -> None:
    """Print the type, range, default and meaning of a key; what a rule or check finds, why, and what to do."""
    if markdown:
        typer.echo(short_markdown() if short else full_markdown(), nl=False)
        return
    with refusing(ValueError):
        found = references(key)
    if as_machine:
        print_answer("config explain", found._asdict())
        return
    texts = [*(_plain(entry, short) for entry in found.keys), *(_judge(judge, short) for judge in found.judges)]
    typer.echo("\n\n".join(texts))


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A JSON, YAML or Python file.")],
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the run, to estimate the number of its files.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the run.")] = 1,
    as_machine: AsJson = False,
) -> None:
    """List all mistakes in a configuration file, or, if there are none, print what it collects.

    Configurations of msprobe's Monitor V2, MindSpore Transformers and InternEvo are recognised by their keys.

    With --ranks and --steps there is a warning if the run would write more than a million files.

    Exit code 0 if it is correct, 1 if not, 2 for wrong use.
    """
    try:
        found = _checked(file, ranks, steps)
    except UnreadableConfigError as error:
        refuse(error.problems[0])
    except ConfigError as error:
        if as_machine:
            print_answer("config check", {"file": file, "correct": False, "problems": error.problems})
        complain(str(error))
        raise typer.Exit(1) from None
    if as_machine:
        print_answer("config check", {"file": file, "correct": True, **found._asdict()})
        return
    correct = "{file}: correct, a configuration of {monitor}" if found.monitor else "{file}: correct"
    lines = [message(correct, file=file, monitor=found.monitor), *_aligned(found.summary.items())]
    typer.echo(printable_lines("\n".join(map(translated, lines))))


class CheckedConfig(NamedTuple):
    """Configuration without a mistake."""

    monitor: str
    """Monitor of another project that it is for; empty if it is for this one."""
    summary: dict[str, str]
    """Texts by heading."""
    warnings: list[str]


def _checked(file: Path, ranks: int, steps: int) -> CheckedConfig:
    """Return the summary of a file, read by the reader of its monitor.

    Raises:
        ConfigError: with every problem at once.
    """
    text = text_of(name := str(file), content(name))
    monitor = monitor_of(parse(name, text).values, is_python(name, text))
    if monitor is not None and monitor in SUMMARIES:
        shown = dict(foreign_summary(monitor, file))
        warnings = [*_unusable(shown.get("events in", ".")), *_unusable(shown.get("directory", "."))]
        name = monitor.title
    else:
        settings, name = load(file), ""
        shown, warnings = dict(summary(settings)), [*without_effect(settings), *many_files(settings, ranks, steps)]
        warnings += _unreachable(settings)
    for sentence in warnings:
        logger.warning("%s: %s", file, sentence)
    return CheckedConfig(name, shown, warnings)


def _unreachable(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each channel whose address cannot be read on this machine."""
    from probe.core.alerting.outlet import opened

    try:
        opened(settings.alert)
    except ConfigError as error:
        for problem in error.problems:
            yield f"{problem}; or check the file where it trains"


def _unusable(folder: str) -> Iterator[str]:
    """Yield a sentence if files cannot be written to a folder on this machine."""
    whole = Path(str.__str__(folder)).expanduser().absolute()  # that of a text to be translated, too
    try:
        with TemporaryDirectory(dir=next(above for above in (whole, *whole.parents) if above.exists())):
            pass
    except OSError as error:
        yield (
            f"expected a folder for files that can be made and written to, got {folder}: {error.strerror} on this "
            "machine; name another, or check the file where it trains"
        )


def _aligned(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    from rich.cells import cell_len

    for heading, text in pairs:
        shown = translated(message(heading))
        yield f"  {shown}{' ' * max(1, 14 - cell_len(shown))}{translated(text)}"
