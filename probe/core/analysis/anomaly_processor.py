"""Findings of all ranks in order: ``python -m probe.core.anomaly_processor -d DIR``.

Reads the findings that runs have dumped in ``anomaly_detected/rank*/anomaly.json``, sorts them in causal order, and
writes the first ones of the latest run, or of the one asked for, to ``anomaly_analyse.json``.
:mod:`probe.core.analysis.diagnosis` does more: it judges the files of all ranks and separates the first cause from its
consequences.
"""

from __future__ import annotations

import argparse
import ast
import heapq
import json
import signal
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from probe.core.messages import complain, printable
from probe.core.rules.causal_order import position, stages
from probe.core.storage.anomaly_json import FOLDER, Entry
from probe.core.storage.anomaly_runs import Kept
from probe.core.storage.files import replacing
from probe.core.storage.location import located, on_disk
from probe.core.storage.problems import Problems

RESULT = "anomaly_analyse.json"


def order(entry: Entry) -> tuple[int, ...]:
    """Sort key for entries of all ranks: position within training, stages, call id, rank."""
    place = position(entry.step, entry.phase, entry.micro_step if entry.micro_stepped else None)
    return *place, *stages(entry.phase, entry.vpp_stage, entry.pp_stage), entry.call_id, entry.rank


def first(entries: Iterable[tuple[str, Entry]], most: int, steps: Collection[int] = ()) -> list[tuple[str, Entry]]:
    """Earliest ``most`` of ``entries`` in order; if ``steps`` has any, only findings of these."""
    matching = ((key, entry) for key, entry in entries if not steps or entry.step in steps)
    return heapq.nsmallest(most, matching, key=lambda pair: order(pair[1]))


def write(path: Path, named_entries: Iterable[tuple[str, dict[str, object]]]) -> Path:
    """Write ``named_entries`` to ``path`` or, if it is a folder or has no extension, to ``anomaly_analyse.json`` there;
    return it.

    Raises:
        ValueError: if it cannot be written.
    """
    target = path = path.expanduser()
    entries: dict[str, object] = {}
    for key, fields in named_entries:
        entries[_free(key, entries)] = fields
    try:
        target = path if path.suffix and not path.is_dir() else path / RESULT
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            json.dump(entries, file, indent=1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"{target}: cannot be written: {reason}; choose another file or folder") from None
    return target


def _free(key: str, used: Collection[str]) -> str:
    number, candidate = 1, key
    while key in used:
        number += 1
        key = f"{candidate}_{number}"
    return key


def step_list(text: str) -> list[int]:
    """Parse the argument of ``-s``, such as ``[1,2]``; an empty list stands for all steps.

    Raises:
        ValueError: if it is no list of steps.
    """
    try:
        steps = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        steps = None
    if not isinstance(steps, list) or not all(type(step) is int and step >= 0 for step in steps):
        raise ValueError(f'-s: expected a list of steps such as "[1,2]", or "[]" for all; got {text!r}')
    return steps


def _topk(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a number of findings, 1 or more; got {text!r}; leave it out for 8")
    return int(text)


def _steps(text: str) -> list[int]:
    try:
        return step_list(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("-s: ")) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anomaly_processor",
        description=f"Put the findings of all ranks in order and write the first ones to {RESULT}.",
        epilog="Exit code 0 if all was read, 1 if something was left out, 2 for wrong use.",
    )
    add = parser.add_argument
    add("-d", "--data_path", type=str, required=True, help=f"the folder {FOLDER}, or the one that holds it")
    add(
        "-o",
        "--out_path",
        type=Path,
        help=f"a file (a name with an extension) or a folder; else {RESULT} beside the findings",
    )
    add("-k", "--topk", type=_topk, default=8, help="number of findings that are kept (default 8)")
    add(
        "--run",
        default="",
        help="how a directory of one run begins, such as Dec03_21-34-40; all for every run (default the latest run)",
    )
    add("-s", "--step_list", "--step", type=_steps, default=[], help='steps to look at, such as "[1,2]" (default all)')
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = _parser().parse_args(arguments)
    problems = Problems()
    try:
        data = located(args.data_path).expanduser()
        inside = data / FOLDER if (data / FOLDER).is_dir() else data
        findings = Kept(data, problems, args.run)
        selected = first(findings, args.topk, set(args.step_list))
        target = write(args.out_path or on_disk(inside), [(key, entry.fields()) for key, entry in selected])
    except (ValueError, ImportError) as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("anomaly_processor: interrupted\n")
        return 128 + signal.SIGINT
    for number, (_, entry) in enumerate(selected):
        sys.stdout.write(f"{number}: {printable(entry.message)}\n")
    for line in [*findings.left_out(), *problems.lines()]:
        complain(line, "warning")
    where = f"{len(selected)} of {findings.number:,} finding{'s' * (findings.number != 1)} of {findings.of} in {target}"
    sys.stdout.write(printable(where) + "\n")
    return int(problems.skipped)


if __name__ == "__main__":
    sys.exit(main())
