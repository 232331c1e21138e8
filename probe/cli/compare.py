"""``probe compare``: the first row in which two runs differ."""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.cli import refusing
from probe.cli.engines import EngineName, Explain, Jobs, chosen_engine
from probe.cli.json_answer import AsJson, print_answer
from probe.cli.places import run_argument
from probe.core.errors import advice_of
from probe.core.language import invalid
from probe.core.messages import complain, echo

if TYPE_CHECKING:
    from probe.core.analysis.compare.compare import Comparison
    from probe.core.analysis.compare.pairing import Options

RUN_A = "Where the ranks of one run have written (or its URL, such as s3://bucket/run), or a folder of `probe merge`."


def compare(
    a: Annotated[Any, run_argument(RUN_A, "A")],
    b: Annotated[Any, run_argument("Where the ranks of the second run have written.", "B")],
    mapping: Annotated[
        Path | None, typer.Option("--map", help="JSON or YAML: names of A with those of B; see docs/guides/compare.md.")
    ] = None,
    steps: Annotated[str, typer.Option(help="Steps of A, both included: 0-99, 100- or 7.")] = "",
    step_offset: Annotated[int, typer.Option(help="Number that is added to a step of A to get that of B.")] = 0,
    rank: Annotated[
        str, typer.Option(help="One rank of both, or one of A and one of B: 0:3. Else all in common.")
    ] = "",
    signals: Annotated[str, typer.Option(help="Signals, separated by commas: actv,grad_reduced. Else all.")] = "",
    ops: Annotated[str, typer.Option(help="Numbers, separated by commas: norm,mean. Else all.")] = "",
    rtol: Annotated[float | None, typer.Option(min=0, help="Relative tolerance; else by the coarsest dtype.")] = None,
    common: Annotated[bool, typer.Option("--common", help="Ignore data that only one run has.")] = False,
    most: Annotated[int, typer.Option("--top", "-k", min=1, help="How many rows to show.")] = 20,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write a page, such as compare.html.")] = None,
    as_machine: AsJson = False,
    engine: EngineName = None,
    jobs: Jobs = None,
    explain_only: Explain = False,
) -> None:
    """Compare two runs: print the first row that differs by more than rounding, in causal order.

    The runs may differ in machine, framework, version and precision. Exit code 0 if the runs agree within the
    tolerance; 1 if they differ, if a module parts them, or if data had to be left out; 2 for wrong use.
    """
    from probe.core.analysis.compare.compare import compare as compared
    from probe.core.analysis.compare.compare import planned
    from probe.core.analysis.pieces import reading_cost
    from probe.core.storage.files import PAGES, check_target

    with refusing(ValueError, ImportError, OSError):
        if out:
            check_target(out, *PAGES)
        options = _options(mapping, steps, step_offset, rank, signals, ops, rtol, common)
        if explain_only:
            pieces = planned(a, b, options)
            cost = reading_cost(each for piece in pieces for each in (piece, piece.of_b()))
            cost = cost._replace(pieces=len(pieces))
            if as_machine:
                print_answer("compare --explain", {"costs": [cost]})
            else:
                echo(cost.text)
            return
        # Ray prints to standard output, for instance that a machine is lost.
        with redirect_stdout(sys.stderr), chosen_engine(engine, jobs, "comparing") as chosen:
            found = compared(a, b, options, most, chosen)
        if a.resolve() == b.resolve():
            text = "{a}: A and B are one folder, which is compared with itself; give two runs"
            complain(text, "warning", a=a)
        if out:
            _write(out, found)
    from probe.core.analysis.compare import explain

    if as_machine:
        print_answer("compare", explain.as_json(found))
    else:
        explain.show(found, out)
    raise typer.Exit(0 if found.agrees and not found.skipped else 1)


def _write(out: Path, found: Comparison) -> None:
    from probe.core.analysis.compare.explain import page
    from probe.core.storage.files import replacing

    text = page(found)
    try:
        with replacing(out) as file:
            file.write(text)
    except OSError as error:
        raise invalid(
            "{out}: expected a file that can be written, such as compare.html; {reason}",
            out=out,
            reason=advice_of(error),
        ) from None


def _options(
    mapping: Path | None, steps: str, offset: int, rank: str, signals: str, ops: str, rtol: float | None, common: bool
) -> Options:
    from probe.core.analysis.compare.name_map import NameMap, read
    from probe.core.analysis.compare.pairing import Options

    first, last = _span(steps)
    if rtol is not None and not isfinite(rtol):
        raise invalid("--rtol: expected a finite number, got {number}; leave it out for one by the dtype", number=rtol)
    names = read(mapping) if mapping else NameMap()
    return Options(
        first, last, offset, _ranks(rank), _listed("--signals", signals), _listed("--ops", ops), rtol, common, names
    )


def _span(text: str) -> tuple[int | None, int | None]:
    found = re.fullmatch(r"(\d*)(-?)(\d*)", text)
    if found is None or text == "-":
        raise invalid("--steps: expected 0-99, 100-, -99 or 7; got {text!r}", text=text)
    first, to, last = found.groups()
    span = (int(first) if first else None), (int(last) if last else None) if to else (int(first) if first else None)
    if span[0] is not None and span[1] is not None and span[0] > span[1]:
        raise invalid(
            "--steps: expected the smaller first, {last}-{first}; got {text!r}", first=first, last=last, text=text
        )
    return span


def _ranks(text: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if text and found is None:
        raise invalid("--rank: expected 3, or 0:3 for A's rank 0 and B's rank 3; got {text!r}", text=text)
    return (int(found[1]), int(found[2] or found[1])) if found else None


def _listed(option: str, text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if text and not words:
        raise invalid(
            "{option}: expected names, such as a,b; got {text!r}; leave it out for all", option=option, text=text
        )
    return words
