"""``probe check``: a few updates of a training program, and what is wrong with it before it is trained in earnest."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from probe.cli import refuse
from probe.cli.json_answer import AsJson, print_answer
from probe.cli.run import command_of, hint_at_late, unwatched_by
from probe.core.analysis.diagnosis.analyse import Analysis, analyse
from probe.core.analysis.trial_report import TrialFinding, trial_findings
from probe.core.language import joined, message, translated
from probe.core.messages import complain, counted, printable
from probe.core.prechecks.judgement import compared, preflight
from probe.core.storage.layout import ranks_text
from probe.launch.parent.trial_program import TIMED_OUT, TrialRecord, read_records, run_program

CONTEXT = {"allow_interspersed_args": False}
"""Settings of the command: options after the script are the script's."""
LOG, TAIL = "program.log", 20
"""File of what the program prints, and its last lines that are shown where it fails."""
WIDTH = 120
UPDATES = 6
"""Updates of a trial: some checks of the loop need five in a row, and cannot judge the first."""


class TrialResult(NamedTuple):
    """Result of a trial."""

    findings: list[TrialFinding]
    updates: int
    ranks: tuple[int, ...]
    lines: list[str]
    """Lines about what was looked at and what was not."""
    code: int
    """Exit code of the program."""

    @property
    def is_grave(self) -> bool:
        """True if something but notes was found."""
        return any(finding.grade != "note" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the result as values that JSON can hold."""
        return {
            "findings": [finding.as_json() for finding in self.findings],
            "judged": {"ranks": len(self.ranks), "steps": self.updates, "rows": self.updates},
            "preflight": self.lines,
            "exit_code": self.code,
        }


def check(
    program: Annotated[
        list[str] | None, typer.Argument(help="A script and its arguments; after --, any command and its arguments.")
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", "-n", min=1, help="Updates after which the program is ended.")
    ] = UPDATES,
    module: Annotated[
        bool, typer.Option("--module", "-m", help="Run a module in place of a script, as python -m does.")
    ] = False,
    as_machine: AsJson = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Empty folder for the files of the trial; none: they are removed."),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show what the program prints, on standard error.")] = False,
    limit: Annotated[float, typer.Option("--limit", min=1, help="Seconds that the program may take.")] = 1800.0,
) -> None:
    """Run a training program for a few updates, and name what is wrong with it before it is trained in earnest.

    `probe check train.py --lr 0.1`, `probe check -m package.train`,
    `probe check -- torchrun --nproc-per-node 2 train.py`. The program runs as it is, in a process of its own that ends
    after the updates, before it can write a checkpoint at its end. It finds the variable PROBE_CHECK=1.

    Exit code 0 without a warning, 1 with one, 2 for wrong use, or if the program failed or made no update.
    """
    arguments = list(program or [])
    if not arguments:
        refuse("expected a script, -m and a module or, after --, a command; `probe check --help` has examples")
    command = command_of("check", module, arguments, sys.argv)
    hint_at_late("--steps", "-n", "--output", "-o", "--show", "--limit", "--json", command=command)
    if flag := unwatched_by(command):
        refuse("nothing can be checked: with {flag} Python ignores PYTHONPATH: leave it out", flag=flag)
    with ExitStack() as stack:
        folder = _folder(output, stack)
        code = run_program(command, steps, folder, limit, None if show else folder / LOG)
        result = _result(folder, code)
        _print(result, as_machine)
        if failed := _failure(result, limit):
            complain(failed)
            if not show:
                _print_tail(folder / LOG)
    raise typer.Exit(1 if result.is_grave else 2 if failed else 0)


def _folder(output: Path | None, stack: ExitStack) -> Path:
    """Return the folder of a trial, which is removed at the end unless the user has named it."""
    if output is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="probe-check-", ignore_cleanup_errors=True)))
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        refuse("--output: {path}: expected a new or empty folder, got one with files: name another", path=output)
    output.mkdir(parents=True, exist_ok=True)
    return output.resolve()


def _result(folder: Path, code: int) -> TrialResult:
    records, lines = _records(folder), list[str]()
    trials = [record.trial for record in records]
    between = compared(trials)
    of_ranks = {record.trial.rank: record.findings for record in records}
    analysis = _analysed(folder / "files", lines)
    findings = trial_findings(of_ranks, between, analysis)
    if trials:
        lines.append(preflight(trials, [*between, *(one for found in of_ranks.values() for one in found)]))
    lines += dict.fromkeys(record.preflight for record in records if record.preflight)
    if faults := sum(sum(record.faults.values()) for record in records):
        kinds = ", ".join(sorted({kind for record in records for kind in record.faults}))
        lines.append(message("{failures} inside probe ({kinds})", failures=counted(faults, "failure"), kinds=kinds))
    updates = min((trial.updates for trial in trials), default=0)
    return TrialResult(findings, updates, tuple(sorted(of_ranks)), lines, code)


def _records(folder: Path) -> list[TrialRecord]:
    try:
        return read_records(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        complain("what the program has left cannot be read: {error}", "warning", error=error)
        return []


def _analysed(files: Path, lines: list[str]) -> Analysis | None:
    """Return the analysis of the files of a trial; None, with a line about it, if there is none."""
    try:
        return analyse(files)
    except (ValueError, ImportError, OSError) as error:
        if not files.exists():  # no update, which is the message
            return None
        lines.append(message("the checks of the loop left nothing: {error}", error=error))
        return None


def _failure(result: TrialResult, limit: float) -> str:
    """Return why a trial shows nothing, or less than it should; an empty text if it is whole."""
    if result.code == TIMED_OUT:
        return message(
            "the program took more than {limit:g} s, with {updates} updates: set a longer --limit, or fewer --steps",
            limit=limit,
            updates=result.updates,
        )
    if result.code:
        return message(
            "the program failed with exit code {code}, after {updates} updates: correct what its last lines say",
            code=result.code,
            updates=result.updates,
        )
    return (
        ""
        if result.updates
        else message(
            "the program made no update that could be seen: nothing was checked; give a script in "
            "which an optimizer of torch or MindSpore steps"
        )
    )


def _print(result: TrialResult, as_machine: bool) -> None:
    if as_machine:
        print_answer("check", result.as_json())
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    grave = sum(finding.grade != "note" for finding in result.findings)
    notes = len(result.findings) - grave
    head = message(
        "updates: {updates}, ranks: {ranks}; warnings: {grave}, notes: {notes}",
        updates=result.updates,
        ranks=len(result.ranks),
        grave=grave,
        notes=notes,
    )
    for line in [head, *_lines(result.findings), *result.lines]:
        console.print(printable(translated(line)), highlight=False, markup=False, soft_wrap=True)


def _lines(findings: Sequence[TrialFinding]) -> list[str]:
    lines: list[str] = []
    for finding in findings:
        several = len(finding.ranks) > 1
        who = message(", ranks {ranks}", ranks=ranks_text(finding.ranks)) if several else ""
        place = message(" in {place}", place=finding.where) if finding.where else ""
        lines.append(joined(": ", [message(finding.grade), joined("", [message(finding.kind), place, who])]))
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in finding.evidence.items())
        lines += [joined("", ["    ", part]) for part in (finding.text, numbers, message(finding.remedy)) if part]
    return lines


def _print_tail(log: Path) -> None:
    """Print the last lines of what the program has printed."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    for line in lines[-TAIL:]:
        typer.echo(printable(line), err=True)
