"""False alarms: findings of every rule in healthy trainings of many kinds, and how far their values leap.

    python benchmarks/false_alarms.py [--rounds 2] [--first 0] [--text FOLDER ...] [--keep FOLDER [--again]]
        [--only NAME ...]

Each round runs every kind of training with another seed, the texts in turn (without ``--text``, Python's standard
library). With ``--keep``, the collected batches stay in a folder and are read from there next time; with ``--again``,
nothing is trained, and all recordings in the folder are judged: so other settings of the rules are tried in a minute.

Exit code 1 if a rule has more than one false alarm in 1,000 sampled steps, all rows together.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _healthy import texts
from _leaps import leaps
from _recording import OPS, Case, kept, kept_or_recorded, names
from _report import arguments, publish, table, verdict

from probe.core.config.schema import RULE_ARGS
from probe.core.rules import factory
from probe.core.rules.evaluate import explain
from probe.core.rules.spike import EXTREMES, LEAPING

JUDGED = ("AnomalyNan", "AnomalySpike", "AnomalyVanish", "AnomalyDead", "AnomalyFrozen")
"""Rules with limits of their own that can fire in one process. ``AnomalyReplica`` and ``AnomalyCommNan`` need several;
the limit of ``AnomalyThreshold`` and ``AnomalyTurbulence`` is the user's."""
ALLOWED = 1e-3
"""Most false alarms a sampled step."""
PRINTED = 5
"""Most findings of one training and rule that are printed."""


class Result(NamedTuple):
    """Result of one training."""

    case: Case
    steps: int
    values: int
    alarms: Mapping[str, int]
    leaps: Mapping[tuple[str, str], float]
    lines: list[str]


def arguments_of(rule: str) -> Any:
    """Default arguments of ``rule``."""
    return RULE_ARGS[rule]()


def judge(case: Case, text: bytes, folder: Path | None) -> Result:
    """Run one training and every rule over it."""
    steps = kept_or_recorded(case, text, folder)
    alarms, lines = {}, []
    for name in JUDGED:
        rule = factory(name)(arguments_of(name), 0, OPS)
        found = [finding for batches in steps for batch in batches for finding in rule.judge(batch)]
        alarms[name] = len(found)
        lines += [f"{case.name}, seed {case.seed}: {explain(finding)}" for finding in found[:PRINTED]]
    values = sum(len(batch) * len(OPS) for batches in steps for batch in batches)
    return Result(case, len(steps), values, alarms, leaps(steps, arguments_of("AnomalySpike")), lines)


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """Yield every training with every seed; or the kept recordings."""
    if args.again:
        yield from (case for case in kept(args.keep) if not args.only or case.name in args.only)
        return
    for seed in range(args.first, args.first + args.rounds):
        for framework, trainings in names().items():
            for name, steps in trainings.items():
                if not args.only or name in args.only:
                    yield Case(framework, name, seed, max(round(steps * args.length), 1))


def results(args: argparse.Namespace) -> Iterator[Result]:
    """Yield results in order, from several trainings at a time, each in a process of its own."""
    sources = texts(args.text)
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=fresh, max_tasks_per_child=1) as pool:
        begun = [pool.submit(judge, case, sources[case.seed % len(sources)], args.keep) for case in cases(args)]
        for each in begun:
            began = time.perf_counter()
            result = each.result()
            waited = time.perf_counter() - began
            print(f"{result.case.name:<22} seed {result.case.seed:<5} {result.steps} steps, {waited:.0f} s", flush=True)
            print("".join(f"    {line}\n" for line in result.lines), end="", flush=True)
            yield result


def alarm_table(found: list[Result]) -> tuple[str, bool]:
    """Table of the rules with their figures, and whether all are within the limit."""
    steps = sum(result.steps for result in found)
    alarms = Counter[str]()
    for result in found:
        alarms.update(result.alarms)
    rows = [
        [
            name,
            str(alarms[name]),
            f"{1e3 * alarms[name] / steps:.2g}: {verdict(ALLOWED, alarms[name] / steps)}",
            f"{1e3 * upper(alarms[name]) / steps:.2g}",
        ]
        for name in JUDGED
    ]
    text = table(["", "false alarms", f"in 1,000 steps (aim <= {1e3 * ALLOWED:g})", "95 % upper bound"], rows)
    return text, all(alarms[name] <= ALLOWED * steps for name in JUDGED)


def upper(count: int) -> float:
    """One-sided 95 % upper bound of the mean of a Poisson count: the mean with 5 % chance of counts up to it."""
    means = np.linspace(count, count + 10 + 4 * count**0.5, 20_000)
    terms = np.cumsum([means**k / np.prod(np.arange(1.0, k + 1)) for k in range(min(count, 150) + 1)], axis=0)[-1]
    return float(means[np.searchsorted(-np.exp(-means) * terms, -0.05)])


def leap_table(found: list[Result]) -> str:
    """Table of the largest leaps in each kind of signal and op, with the factor that the rule reports."""
    ratio = arguments_of("AnomalySpike").min_ratio
    largest: dict[tuple[str, str], tuple[float, str]] = {}
    for result in found:
        for (signal, op), leap in result.leaps.items():
            kind = "gradients" if signal in LEAPING else signal if signal == "actv" else _kind(signal)
            place = kind, "extremes" if op in EXTREMES else op
            largest[place] = max(largest.get(place, (0.0, "")), (leap, result.case.name))
    rows = []
    for (kind, ops), (leap, where) in sorted(largest.items()):
        limit = ratio if (kind, ops) not in {("gradients", "norm")} and ops == "norm" else ratio**2
        rows.append([f"{kind}, {ops}", f"{leap:.3g}", where, f"{limit:.3g}", f"{limit / leap:.2g}"])
    return table(["", "largest leap", "in", "reported from", "room"], rows)


def _kind(signal: str) -> str:
    return "parameters" if signal.startswith("param_") else "optimizer state"


def main() -> int:
    parser = arguments(__doc__, rounds=2)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--length", type=float, default=1.0, help="factor on the number of steps of each training")
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="folders of source files to train on")
    parser.add_argument("--keep", type=Path, help="folder for recordings")
    parser.add_argument("--again", action="store_true", help="judge the recordings in --keep, train nothing")
    parser.add_argument("--only", nargs="*", default=[], help="names of trainings")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    args = parser.parse_args()
    if args.again and args.keep is None:
        parser.error("--again needs --keep FOLDER")
    found = list(results(args))
    alarms, within = alarm_table(found)
    steps, values = sum(result.steps for result in found), sum(result.values for result in found)
    kinds = len({result.case.name for result in found})
    note = (
        f"{len(found)} healthy runs of {kinds} kinds ({steps:,} sampled steps, {values:,} values): everything "
        f"watched, default settings, every finding counted."
    )
    ratios = (
        "How far healthy values leap from the median of the 32 before them, if that is beyond five robust standard "
        "deviations: second moments by their roots."
    )
    publish("False alarms", [note, alarms, ratios, leap_table(found)], args.output)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
