"""``probe targets``: the structure of a model, as a ``targets`` block."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer

from probe.cli import refuse, refusing
from probe.cli.json_answer import AsJson, print_answer
from probe.core.config.errors import nearest
from probe.core.instrumentation.selection import PLACES
from probe.core.language import Message, invalid, message
from probe.core.messages import complain, plural, printable_json

MOST_NAMED = 8
"""Most modules that an error names."""
_CONTAINER = re.compile(r"(tuple|list|dict)\[(\d+)\]")


def targets(
    file: Annotated[Path, typer.Argument(help="A module_struct.json, as print_struct writes it.")],
    match: Annotated[str, typer.Option(help="Modules of these names only: a shell pattern such as '*.mlp'.")] = "*",
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print YAML instead of JSON.")] = False,
    as_machine: AsJson = False,
) -> None:
    """Print the targets block that watches the modules in a file: a configuration to begin with.

    A module with one tensor in each place gets element selectors; any other gets {}: all tensors in all places. Modules
    that did not run are left out. Exit code 1 if entries could not be read and were left out, 2 if nothing could be.
    """
    with refusing(OSError, ValueError):
        chosen = _matching(_read(file), match)
    wrong = [name for name, entry in chosen.items() if not _readable(entry)]
    block = {name: target(entry) for name, entry in chosen.items() if name not in wrong and _runs(entry)}
    idle = len(chosen) - len(wrong) - len(block)
    if as_machine:
        print_answer("targets", {"targets": block, "idle": idle, "left_out": wrong})
    elif block:
        lines = [
            f"{printable_json(json.dumps(name, ensure_ascii=False))}: {json.dumps(e)}" for name, e in block.items()
        ]
        indented = "".join(f"\n  {line}" for line in lines) if as_yaml else ",".join(f"\n    {line}" for line in lines)
        typer.echo(f"targets:{indented}" if as_yaml else f'{{\n  "targets": {{{indented}\n  }}\n}}')
    if not block and wrong:
        refuse(message("{file}: expected a module_struct.json, as print_struct writes it, got other JSON", file=file))
    if not block:  # an empty block would watch everything
        complain("{file}: no tensor was seen in any of {modules}; no targets", file=file, modules=_modules(len(chosen)))
    if idle:
        complain("{file}: left out {modules} in which no tensor was seen", "warning", file=file, modules=_modules(idle))
    for name in wrong:
        complain(
            "{file}: {name}: expected an object with input, output, ...; left out", "warning", file=file, name=name
        )
    raise typer.Exit(2 if not block else 1 if wrong else 0)


def _modules(number: int) -> Message:
    return message(plural(number, "{number} module"), number=number)


def target(entry: Mapping[str, Any]) -> dict[str, str]:
    """Entry of ``targets`` that watches exactly the tensors of a module."""
    selectors = {place: _selector(place, entry[place]) for place in PLACES if _tensors(entry.get(place))}
    return {} if None in selectors.values() else {place: str(selector) for place, selector in selectors.items()}


def _selector(place: str, tree: Mapping[str, Any]) -> str | None:
    """Selector of all tensors of ``tree``; None if they are not one element."""
    form = str(tree.get("config"))
    if form == "tensor":
        return form
    held = [name for name, inner in tree.items() if _tensors(inner)]
    found = _CONTAINER.fullmatch(form)
    if found is None or len(held) != 1 or not held[0].isdecimal() or int(held[0]) >= int(found[2]):
        return None
    positional = place.startswith("input")  # the existing tool calls them a list
    return f"{'tuple' if positional else found[1]}[{found[2]}]:{held[0]}"


def _tensors(tree: object) -> bool:
    """Return whether ``tree`` has any tensor."""
    if isinstance(tree, Mapping):
        return any(_tensors(inner) for inner in tree.values())
    return isinstance(tree, str) and tree.startswith("size=")


def _runs(entry: Mapping[str, Any]) -> bool:
    return any(_tensors(entry.get(place)) for place in PLACES)


def _readable(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(place, {}), dict) for place in PLACES)


def _read(file: Path) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise invalid(
            "{file}, line {lineno}: expected JSON as print_struct writes it, got other text ({msg}); give its "
            "module_struct.json",
            file=file,
            lineno=error.lineno,
            msg=error.msg,
        ) from None
    except RecursionError:
        raise invalid("{file}: expected JSON as print_struct writes it: nested too deep", file=file) from None
    if not isinstance(found, dict) or not any(
        _readable(entry) and (not entry or _runs(entry)) for entry in found.values()
    ):
        raise invalid(
            "{file}: expected names of modules, each with its input, output, ... as print_struct writes it, got "
            'other keys; run the program once with "print_struct": true, and give its module_struct.json',
            file=file,
        )
    return found


def _matching(structure: Mapping[str, Any], pattern: str) -> dict[str, Any]:
    chosen = {name: entry for name, entry in structure.items() if any(fnmatchcase(n, pattern) for n in _names(name))}
    if not chosen:
        close = nearest(pattern, [each for name in structure for each in _names(name)])
        names = ", ".join([*structure][:MOST_NAMED])
        hint = message("; did you mean {name}?", name=close) if close else message("; there are {names}", names=names)
        raise invalid("--match {pattern}: no such module{hint}", pattern=pattern, hint=hint)
    return chosen


def _names(name: str) -> Iterator[str]:
    """Name with and without its stage."""
    yield name
    if prefix := re.match(r"\d+:", name):
        yield name[prefix.end() :]
