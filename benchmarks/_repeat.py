"""Repeated runs of benchmarks on a quiet machine: ``python benchmarks/_repeat.py SCRIPT ... [-- ARGUMENTS]``.

A benchmark that publishes figures runs three times, each in a process of its own, and the median run is published with
its intervals; all runs are kept in ``history.jsonl``. Runs on a busy machine do not count. One that publishes no
figures runs once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from _history import HISTORY, Figure, Result, append, commit, median_run, processor
from _quiet import STAT, activity_since, disturbances
from _report import file_in

REFUSED = 2
"""Exit code where the machine is too busy."""


class Run(NamedTuple):
    """Run of a benchmark."""

    code: int
    text: str
    """Published text; empty if the process failed before."""
    result: Result
    """Published figures, as ``_report.publish`` writes them; empty if there are none."""
    busy: list[str]
    """Reasons why its figures would not repeat."""

    @property
    def figures(self) -> dict[str, Figure]:
        """Figures by name."""
        return {name: Figure(*ends) for name, ends in self.result["figures"].items()}


def parsed(argv: Sequence[str]) -> tuple[list[str], argparse.Namespace, list[str]]:
    """Return the scripts, the arguments of this program, and those of the scripts."""
    at = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--repeat", type=int, default=3, help="runs of a benchmark that count")
    parser.add_argument("--even-if-busy", action="store_true", help="count runs on a busy machine; the result has why")
    parser.add_argument("--window", type=float, default=3.0, help="seconds that the machine is observed before a run")
    parser.add_argument("--output", type=Path, help="file for the text, or a directory to put it in")
    parser.add_argument("--history", type=Path, default=HISTORY, help="file that keeps the results")
    parser.add_argument("--stat", type=Path, default=STAT, help=argparse.SUPPRESS)
    own, others = parser.parse_known_args(argv[at + 1 :])
    return list(argv[:at]), own, others


def run(script: str, arguments: Sequence[str], stat: Path) -> Run:
    """Run ``script`` in a process of its own and wait for it."""
    with tempfile.TemporaryDirectory() as folder:
        until_now = activity_since(stat)
        command = [sys.executable, script, *arguments, "--output", folder]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        activity = until_now()
        text = "".join(file.read_text(encoding="utf-8") for file in Path(folder).glob("*.md"))
        results = [json.loads(file.read_text(encoding="utf-8")) for file in Path(folder).glob("*.json")]
    if not text:
        print(done.stdout[-4000:])
    result = results[0] if results else {}
    return Run(done.returncode, text, result, disturbances(activity, result.get("spread", 0.0)))


def observed(args: argparse.Namespace) -> list[str]:
    """Return the reasons why the machine is too busy to begin."""
    if args.even_if_busy:
        return []
    until_now = activity_since(args.stat)
    time.sleep(args.window)
    return disturbances(until_now())


def runs_of(script: str, args: argparse.Namespace, arguments: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Run ``script`` until enough runs count, at most twice as often; return those that count, and the reasons why the
    others do not."""
    counted, busy = list[Run](), list[str]()
    for number in range(1, 2 * args.repeat + 1):
        if before := observed(args):
            busy += before
            continue
        began = time.monotonic()
        each = run(script, arguments, args.stat)
        print(f"{script}: run {number} took {time.monotonic() - began:.0f} s", *each.busy, sep="; ", file=sys.stderr)
        if not each.result:
            return [each], []
        if each.busy and not args.even_if_busy:
            busy += each.busy
        else:
            counted.append(each)
        if len(counted) == args.repeat:
            break
    return counted, busy


def lines(script: str, runs: Sequence[Run], published: int) -> list[Result]:
    """Return the lines of the history for ``runs``."""
    head, changed = commit()
    about = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": head,
        "changed": changed,
        "processor": processor(),
        "benchmark": Path(script).stem,
    }
    return [
        {**about, "published": number == published, "busy": each.busy, **each.result}
        for number, each in enumerate(runs)
    ]


def with_note(runs: Sequence[Run], published: int) -> str:
    """Return the text of the published run with a sentence about all runs."""
    title, rest = runs[published].text.split("\n\n", 1)
    note = f"The median of {len(runs)} runs." if len(runs) > 1 else "One run."
    if reasons := sorted({reason for each in runs for reason in each.busy}):
        note += f" **The machine was busy, so that these figures need not repeat:** {'; '.join(reasons)}."
    return f"{title}\n\n{note}\n\n{rest}"


def measure(script: str, args: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Measure one benchmark, publish and keep its result; return the exit code."""
    runs, busy = runs_of(script, args, arguments)
    counts = len(runs) == args.repeat or (len(runs) == 1 and not runs[0].result)
    if not counts:
        print(
            f"{script}: refused, the machine is busy: {'; '.join(dict.fromkeys(busy))}. {len(runs)} of {args.repeat} "
            "runs counted. Stop other programs and repeat it; with --even-if-busy the result has these reasons.",
            file=sys.stderr,
        )
        return REFUSED
    text = runs[0].text
    if runs[0].result:
        published = median_run([each.figures for each in runs])
        append(lines(script, runs, published), args.history)
        text = with_note(runs, published)
    print(text)
    if args.output is not None and text:
        file_in(args.output, Path(script).stem).write_text(text, encoding="utf-8")
    return max(abs(each.code) for each in runs)


def main() -> None:
    """Measure the benchmarks that are named; exit with the largest of their exit codes."""
    scripts, args, arguments = parsed(sys.argv[1:])
    codes = [0]
    for script in scripts:
        print(f"== {script}", flush=True)
        codes.append(measure(script, args, arguments))
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
