"""Finding power beside other public tools: the same cases, judged by the same definition as ``finding.py`` has.

    python benchmarks/beside.py --cache FOLDER [--tools NAME ...] [--cases NAME ...] [--seeds 0] [--limit 120]
        [--over] [--steps N] [--recordings FOLDER] [--ours FINDING.json] [--again] [--json FILE]

Each tool gets a virtual environment of its own below ``--cache``, with its package from the index; with ``--over`` that
of the running interpreter lies under it, which saves a second PyTorch. Runs are kept in the same folder; ``--again``
judges them without training. ``--recordings`` is a folder of ``finding.py --mode full --keep`` (that below it with the
runs): the detector of trainscope, which sees the loss alone, and the z-scores judge the losses there.

A case is found by a tool with a seed if it reports something in the step in which the fault begins to act or at most
ten steps later, and nothing in the healthy twin with the same seed. The kind that ``finding.py`` asks for is waived:
these tools have no kinds, or others. ``--ours`` adds a column from a file of ``finding.py --json``, where the kind
counts. Without ``--seeds`` there is one, so that no majority is taken. Shares have 95 % bootstrap intervals over
families, as in ``finding.py``; cases that were not run are not found.

Exit code 1 if nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _beside_runs import TOOLS, Twin, environment, run_twins
from _beside_scores import alarms, z_scores
from _finding import LATEST, counted, most
from _finding_runs import cases
from _report import publish, share, shared, table
from case import LABELS, Case

Z_SCORES = {"z-score of the loss": "losses", "z-score of the gradient norm": "norms"}
"""Columns that are computed from the numbers that a program logs, by the name of the series."""
ONLINE = "trainscope, rises alone"
"""Column of the spikes of trainscope that are no fall: the loss of a healthy beginning falls."""

NANS = "msprobe, AnomalyNan alone"
"""Column of its rule about NaN, without the one about a distance from the running mean."""


class Vote(NamedTuple):
    """Result of a detector for a case and a seed."""

    in_time: bool
    """True if the faulty run has an alarm in time."""
    false_alarms: int
    """Alarms in the healthy twin."""
    reason: str
    """Reason for which it was not run; empty if it was."""

    @property
    def found(self) -> bool:
        """True if the fault is found, and the twin is silent."""
        return self.in_time and not self.false_alarms and not self.reason


def vote(case: Case, faulty: Sequence[int], healthy: Sequence[int], reason: str = "") -> Vote:
    """Judge the steps of the alarms of both twins."""
    in_time = any(case.start <= step <= case.start + LATEST for step in faulty)
    return Vote(in_time and not reason, len(healthy), reason)


def votes_of(case: Case, faulty: Twin, healthy: Twin, tool: str) -> dict[str, Vote]:
    """Return the votes of all detectors that a pair of runs with ``tool`` serves, by their columns."""
    reason = faulty.error or healthy.error
    steps = [[entry["step"] for entry in counted(twin.findings)] for twin in (faulty, healthy)]
    votes = {tool: vote(case, *steps, reason)}
    if tool == "msprobe":
        nans = [
            [entry["step"] for entry in twin.findings if entry["kind"] == "AnomalyNan"] for twin in (faulty, healthy)
        ]
        votes[NANS] = vote(case, *nans, reason)
    if tool == "trainscope":
        rises = [[entry["step"] for entry in twin.findings if entry.get("score", -1) > 0] for twin in (faulty, healthy)]
        votes[ONLINE] = vote(case, *rises, reason)
        for column, name in Z_SCORES.items():
            series = [
                sorted({step for row in twin.series(name) for step in alarms(z_scores(row))})
                for twin in (faulty, healthy)
            ]
            silent = "" if faulty.series(name) and healthy.series(name) else "the program logs no numbers"
            votes[column] = vote(case, *series, silent)
    return votes


def summary(known: Mapping[str, Case], results: Mapping[str, Mapping[str, Sequence[Vote]]]) -> str:
    """Table with a line for each detector: found by label, and the twins with an alarm."""
    labels = [
        label for label in LABELS if any(known[name].label == label for rows in results.values() for name in rows)
    ]
    rows = []
    for column, by_case in results.items():
        ran, hits = _ran(by_case), _found_by(by_case)
        late = {name for name, votes in ran.items() if most([each.in_time for each in votes])}
        alarmed = {name for name, votes in ran.items() if any(each.false_alarms for each in votes)}
        parts = [f"{_count(hits, known, label)} of {_count(by_case, known, label)}" for label in labels]
        rows.append(
            [
                column,
                shared(*_votes(hits, by_case, known)),
                *parts,
                shared(*_votes(late, by_case, known)),
                shared(*_votes(alarmed, ran, known)),
                str(len(by_case) - len(ran)),
            ]
        )
    head = ["tool", "found", *labels, "alarm in time", "twins with an alarm", "not run"]
    return table(head, rows)


def _ran(by_case: Mapping[str, Sequence[Vote]]) -> dict[str, Sequence[Vote]]:
    return {name: votes for name, votes in by_case.items() if not any(each.reason for each in votes)}


def _found_by(by_case: Mapping[str, Sequence[Vote]]) -> set[str]:
    return {name for name, votes in _ran(by_case).items() if most([each.found for each in votes])}


def _votes(names: Container[str], cases_of: Iterable[str], known: Mapping[str, Case]) -> tuple[list[bool], list[str]]:
    """Return for each case whether it is among some, and its family."""
    return [name in names for name in cases_of], [known[name].family for name in cases_of]


def exported(
    known: Mapping[str, Case], results: Mapping[str, Mapping[str, Sequence[Vote]]]
) -> dict[str, dict[str, object]]:
    """Return the votes of all detectors by their columns, and the share that each has found with its interval."""
    shares = {}
    for column, by_case in results.items():
        shares[column] = share(*_votes(_found_by(by_case), by_case, known))._asdict()
    return {"shares": shares, "votes": {column: dict(by_case) for column, by_case in results.items()}}


def _count(names: Any, known: Mapping[str, Case], label: str) -> int:
    return sum(known[name].label == label for name in names)


def list_table(results: Mapping[str, Mapping[str, Sequence[Vote]]]) -> str:
    """Table with a line for each case."""
    names = list(dict.fromkeys(name for by_case in results.values() for name in by_case))
    rows = [[name, *(_mark(by_case.get(name, ())) for by_case in results.values())] for name in names]
    return table(["case", *results], rows)


def _mark(votes: Sequence[Vote]) -> str:
    if not votes or any(each.reason for each in votes):
        return "not run"
    if most([each.found for each in votes]):
        return "yes"
    return "alarm in the twin" if any(each.false_alarms for each in votes) else "-"


def reasons(results: Mapping[str, Mapping[str, Sequence[Vote]]]) -> str:
    """Sentence for each tool and reason for which cases were not run."""
    lines: dict[tuple[str, str], list[str]] = {}
    for column, by_case in results.items():
        for name, votes in by_case.items():
            for reason in {each.reason for each in votes if each.reason}:
                lines.setdefault((column, reason), []).append(name)
    return "\n".join(f"- {column}, {', '.join(names)}: {reason}" for (column, reason), names in lines.items())


def of_ours(file: Path, names: Sequence[str]) -> dict[str, list[Vote]]:
    """Return the votes of a file of ``finding.py --json``."""
    entries = json.loads(file.read_text(encoding="utf-8"))["cases"]
    return {
        name: [Vote(seed["found"], seed["false_alarms"], "") for seed in entries[name]["seeds"]]
        for name in names
        if name in entries
    }


def parsed(known: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="folder for environments and runs")
    parser.add_argument("--tools", nargs="*", choices=list(TOOLS), default=list(TOOLS), metavar="NAME")
    parser.add_argument("--cases", nargs="*", choices=known, default=list(known), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a run may take")
    parser.add_argument("--steps", type=int, help="steps of the runs, so that faults that act later are left out")
    parser.add_argument("--over", action="store_true", help="put the running interpreter's packages under each tool's")
    parser.add_argument("--ours", type=Path, help="file of finding.py --json")
    parser.add_argument("--recordings", type=Path, help="folder with recorded runs, for what sees logged numbers alone")
    parser.add_argument("--again", action="store_true", help="judge the runs that there are, train nothing")
    parser.add_argument("--json", type=Path, help="file for all votes")
    parser.add_argument("--output", type=Path, help="file for the text, or a directory to put it in")
    return parser.parse_args()


def main() -> int:
    known = cases()
    args = parsed(list(known))
    if args.steps is not None:
        args.cases = [name for name in args.cases if known[name].start + LATEST < args.steps]
    cache = args.cache.resolve()
    results: dict[str, dict[str, list[Vote]]] = {}
    if args.ours:
        results[f"probe, mode {json.loads(args.ours.read_text(encoding='utf-8'))['mode']}"] = of_ours(
            args.ours, args.cases
        )
    versions = []
    for name in args.tools:
        place = environment(TOOLS[name], cache, args.over)
        versions.append(f"{TOOLS[name].requirement}: {place.problem or 'installed'}")
        twins = run_twins(TOOLS[name], place, cache, {case: known[case] for case in args.cases}, args)
        for case, seed in ((case, seed) for case in args.cases for seed in args.seeds):
            pair = twins.get(f"{case}-faulty-{seed}"), twins.get(f"{case}-healthy-{seed}")
            if pair[0] and pair[1]:
                for column, judged in votes_of(known[case], pair[0], pair[1], name).items():
                    results.setdefault(column, {}).setdefault(case, []).append(judged)
    if args.json:
        args.json.write_text(json.dumps(exported(known, results), indent=1), encoding="utf-8")
    parts = [f"Seeds {', '.join(map(str, args.seeds))}. {'; '.join(versions)}."]
    parts += [summary(known, results), list_table(results), reasons(results)]
    publish("Beside other tools", filter(None, parts), args.output)
    return int(not results)


if __name__ == "__main__":
    sys.exit(main())
