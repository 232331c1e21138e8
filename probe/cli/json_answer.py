"""Answers of commands for machines: ``--json``, in the schema of :mod:`probe.agents.schema`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TextIO

import typer

from probe.agents.schema import SCHEMA_VERSION
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import plain

AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")]


def head(command: str) -> dict[str, Any]:
    """Return the fields with which each answer begins."""
    return {"schema_version": SCHEMA_VERSION, "command": command}


def print_answer(command: str, fields: Mapping[str, Any], out: TextIO | None = None) -> None:
    """Print an answer on ``out``: standard output if None. NaN and the infinities, which JSON lacks, are texts."""
    typer.echo(json.dumps({**head(command), **plain(fields)}, indent=1, allow_nan=False), out)


def problem_fields(problems: Problems) -> dict[str, Any]:
    """Return the fields about data that could not be read."""
    return {"problems": [str(problem) for problem in problems.kept], "skipped": problems.skipped}
