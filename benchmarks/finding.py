"""Finding power: which publicly reported faults of training are found, and which healthy programs get a warning.

    python benchmarks/finding.py [--mode run|full|check] [--cases NAME ...] [--healthy [NAME ...]] [--seeds 0 1 2]
        [--jobs 1] [--limit 120] [--device cpu] [--json FILE] [--keep FOLDER [--again]]
    python benchmarks/finding.py --compare EARLIER.json LATER.json

A case in ``benchmarks/faults`` has a faulty and a healthy twin. It is found with a seed if ``probe anomalies --json``
lists a critical finding or a warning of a right kind, in the step in which the fault begins to act or at most ten steps
later, and neither in the healthy twin with the same seed; it is found if it is with two of three seeds. Notes count
neither way, nor do findings about the speed of steps. Shares have 95 % bootstrap intervals over families: cases that
come from one report are drawn together.

``--mode run`` is ``probe run`` without a configuration; with ``full``, everything is switched on and each case writes
the three lines; with ``check``, ``probe check`` runs a few updates, and no fault that acts later is found.
``--healthy`` runs the programs in ``benchmarks/healthy`` too, 500 steps each; ``--steps`` chooses another number, and
``--long`` the programs whose steps take a few milliseconds. ``--keep`` keeps the recordings, which ``--again`` judges
without training.

Exit code 1 if a healthy program or twin got a warning, or a run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from _finding import Judgement, counted, judge, most
from _finding_runs import (
    Outcome,
    Program,
    cases,
    constant,
    healthy_program,
    healthy_programs,
    judged,
    missing_packages,
    programs_of_case,
    train,
)
from _report import publish, share, shared, table
from case import LABELS, Case

SHARES = "found", "place", "step"
"""Votes whose shares are published; those of place and step are of the cases that are found."""
SHOWN = 3
"""Most findings of a run that a line has."""


class CaseResult(NamedTuple):
    """Result of a case over its seeds."""

    name: str
    case: Case
    judgements: tuple[Judgement, ...]
    """Judgements of the seeds whose two runs did not fail."""
    failed: int
    """Seeds with a failed run."""

    @property
    def votes(self) -> dict[str, bool]:
        """Majorities over the seeds: found; and, of those that found it, place and step."""
        finders = [judgement for judgement in self.judgements if judgement.found]
        found = most([*(judgement.found for judgement in self.judgements), *[False] * self.failed])
        return {
            "found": found,
            "place": found and most([judgement.place for judgement in finders]),
            "step": found and most([judgement.step for judgement in finders]),
            "false_alarms": any(judgement.false_alarms for judgement in self.judgements),
            "failed": self.failed > 0,
        }


def programs(args: argparse.Namespace, known: Mapping[str, Case]) -> Iterator[Program]:
    """Yield all programs to run; print those that are left out."""
    scripts = healthy_programs()
    for name in args.cases if args.cases is not None else known:
        first = next(programs_of_case(name, known[name], 0))
        if not _is_left_out(name, first.script):
            for seed in args.seeds:
                yield from programs_of_case(name, known[name], seed)
    wanted = [] if args.healthy is None else args.healthy or list(scripts)
    for name in wanted:
        if (constant(scripts[name], "LONG", False) or not args.long) and not _is_left_out(name, scripts[name]):
            for seed in args.seeds:
                yield healthy_program(name, scripts[name], seed, args.steps)


def _is_left_out(name: str, script: Path) -> bool:
    packages = missing_packages(script)
    if packages:
        print(f"{name}: left out, not installed: {', '.join(packages)}", flush=True)
    return bool(packages)


def outcomes(args: argparse.Namespace, wanted: Sequence[Program], folder: Path) -> dict[str, Outcome]:
    """Run all programs, and print a line for each."""

    def run(program: Program) -> Outcome:
        place = folder / args.mode / program.key
        return judged(program, args.mode, place, 0.0) if args.again else train(program, args.mode, place, args.limit)

    with ThreadPoolExecutor(args.jobs) as pool:
        results = {}
        for program, outcome in zip(wanted, pool.map(run, wanted), strict=True):
            results[program.key] = outcome
            print(f"{program.key:36} {outcome.seconds:5.1f} s  {line(outcome)}", flush=True)
    return results


def line(outcome: Outcome) -> str:
    """Return a line about a run."""
    if outcome.error:
        return f"FAILED: {outcome.error}"
    if not outcome.judged:
        return "nothing was judged"
    entries = counted(outcome.findings)
    texts = [f"{e['kind']} {e['where']} rank {e['rank']} step {e['step']}" for e in entries[:SHOWN]]
    return "; ".join(texts) + (f"; {len(entries) - SHOWN} more" if len(entries) > SHOWN else "") or "-"


def results_of(known: Mapping[str, Case], seeds: Sequence[int], runs: Mapping[str, Outcome]) -> list[CaseResult]:
    """Judge the cases of which there are runs."""
    results = []
    for name, case in known.items():
        pairs = [(runs.get(f"{name}-faulty-{seed}"), runs.get(f"{name}-healthy-{seed}")) for seed in seeds]
        present = [(faulty, healthy) for faulty, healthy in pairs if faulty and healthy]
        whole = [(faulty, healthy) for faulty, healthy in present if not faulty.error and not healthy.error]
        if present:
            judgements = tuple(judge(case, faulty.findings, healthy.findings) for faulty, healthy in whole)
            results.append(CaseResult(name, case, judgements, len(present) - len(whole)))
    return results


def case_table(results: Sequence[CaseResult]) -> str:
    """Table with a line for each label, and one for all."""
    rows = []
    for label in (*LABELS, "all"):
        votes = [result.votes for result in results if label in (result.case.label, "all")]
        if votes:
            sums = {name: sum(vote[name] for vote in votes) for name in votes[0]}
            shares = [shared(*votes_on(name, results, label)) for name in SHARES]
            rows.append([label, str(len(votes)), *shares, str(sums["false_alarms"]), str(sums["failed"])])
    return table(["label", "cases", "found", "place right", "step right", "with a false alarm", "failed"], rows)


def votes_on(name: str, results: Sequence[CaseResult], label: str = "all") -> tuple[list[bool], list[str]]:
    """Return the votes on ``found``, ``place`` or ``step`` of the cases of a label, the latter two of those that are
    found, and the family of each."""
    chosen = [result for result in results if label in (result.case.label, "all")]
    chosen = [result for result in chosen if name == "found" or result.votes["found"]]
    return [result.votes[name] for result in chosen], [result.case.family for result in chosen]


def list_table(results: Sequence[CaseResult]) -> str:
    """Table with a line for each case."""
    rows = []
    for result in results:
        votes = result.votes
        word = "failed" if votes["failed"] else "false alarm" if votes["false_alarms"] else ""
        marks = ["yes" if votes[name] else "-" for name in ("found", "place", "step")]
        rows.append([result.name, result.case.label, *marks, word])
    return table(["case", "label", "found", "place", "step", ""], rows)


def healthy_table(runs: Mapping[str, Outcome]) -> str:
    """Table of the healthy programs that got a warning or failed."""
    bad = {key: outcome for key, outcome in runs.items() if outcome.error or counted(outcome.findings)}
    head = f"{len(runs)} healthy runs, {len(bad)} with a warning or failed."
    return head + ("\n\n" + table(["run", ""], [[key, line(outcome)] for key, outcome in bad.items()]) if bad else "")


def exported(mode: str, results: Sequence[CaseResult], runs: Mapping[str, Outcome]) -> dict[str, Any]:
    """Return everything that two states of the code are compared by."""
    entries = {
        result.name: {
            "expected": asdict(result.case),
            **result.votes,
            "seeds": [j._asdict() for j in result.judgements],
        }
        for result in results
    }
    shares = {
        label: {name: share(*votes)._asdict() for name in SHARES if (votes := votes_on(name, results, label))[0]}
        for label in (*LABELS, "all")
    }
    outcomes_of = {key: outcome._asdict() for key, outcome in runs.items()}
    return {"mode": mode, "shares": shares, "cases": entries, "runs": outcomes_of}


def compare(earlier: Path, later: Path) -> None:
    """Print the cases and healthy programs that differ between two files of ``--json``."""
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (earlier, later))
    for name in sorted({*old["cases"], *new["cases"]}):
        before, after = (
            {key: side["cases"].get(name, {}).get(key) for key in ("found", "place", "step", "false_alarms")}
            for side in (old, new)
        )
        if before != after:
            print(f"{name:28} {before} -> {after}")
    for key in sorted({*old["runs"]} & {*new["runs"]}):
        before, after = (line(Outcome(**side["runs"][key])) for side in (old, new))
        if before != after:
            print(f"{key:28} {before} -> {after}")


def parsed(known: Sequence[str], healthy: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("run", "full", "check"), default="run", help="manner of recording")
    parser.add_argument("--cases", nargs="*", choices=known, metavar="NAME", help="cases; all if left out")
    parser.add_argument("--healthy", nargs="*", choices=healthy, metavar="NAME", help="healthy programs, or all")
    parser.add_argument("--long", action="store_true", help="only healthy programs with steps of a few ms")
    parser.add_argument("--steps", type=int, default=500, help="steps of healthy programs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", help="device on which the cases make their tensors: cpu or cuda")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a run may take")
    parser.add_argument("--json", type=Path, help="file for everything that was found and expected")
    parser.add_argument("--keep", type=Path, help="folder for the recordings")
    parser.add_argument("--again", action="store_true", help="judge the recordings in --keep, train nothing")
    parser.add_argument("--compare", type=Path, nargs=2, metavar="FILE", help="two files of --json")
    parser.add_argument("--output", type=Path, help="file for the text, or a directory to put it in")
    args = parser.parse_args()
    if args.again and args.keep is None:
        parser.error("--again needs --keep FOLDER")
    if args.device:
        os.environ["FINDING_DEVICE"] = args.device
    return args


def main() -> int:
    known = cases()
    args = parsed(list(known), list(healthy_programs()))
    if args.compare:
        compare(*args.compare)
        return 0
    with ExitStack() as stack:
        folder = args.keep.resolve() if args.keep else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = outcomes(args, list(programs(args, known)), folder)
    results = results_of(known, args.seeds, runs)
    healthy = {key: outcome for key, outcome in runs.items() if key.rpartition("-")[0] in healthy_programs()}
    if args.json:
        args.json.write_text(json.dumps(exported(args.mode, results, runs), indent=1), encoding="utf-8")
    parts = [f"Mode `{args.mode}`, seeds {', '.join(map(str, args.seeds))}."]
    parts += [case_table(results), list_table(results)] if results else []
    parts += [healthy_table(healthy)] if healthy else []
    publish("Finding power", parts, args.output)
    bad = any(result.votes["false_alarms"] or result.votes["failed"] for result in results)
    return int(bad or any(outcome.error or counted(outcome.findings) for outcome in healthy.values()))


if __name__ == "__main__":
    sys.exit(main())
