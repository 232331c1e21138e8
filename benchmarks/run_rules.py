"""Rules about numbers of the run: false alarms in healthy trainings, and planted faults that are found.

    python benchmarks/run_rules.py [--rounds 3] [--first 0] [--length 1] [--keep FOLDER] [--jobs 2]

Each round runs every kind of training with another seed, and the default rules over the loss, the gradient norm, the
skipped updates and the step times of each step. Then 20 faults of each kind are planted: in the training itself, but
for slow steps, which are recorded times multiplied. With ``--keep``, recordings stay in a folder and are read from
there next time.

Other processes make steps slower, which is no false alarm. So the healthy time of a step is the least of all rounds, in
seconds of the processor, and is stretched to one second in the median.

Exit code 1 if there is a false alarm or a fault is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _healthy import texts
from _report import arguments, publish, table, verdict
from _run_recording import STEPS, USUAL, Broken, Recording, RunCase, kept_or_recorded, steps_of
from _straggler_recording import BROKEN_AT, Episode, record_episodes

from probe.core.config.schema import RUN_RULE_ARGS, RunSettings
from probe.core.run_state.rules import RUN_RULES, RunFinding, RunRule, RunStep

PLANTED = 20
LANGUAGE = ("lstm", "gru", "mlp", "experts", "float16", "fine-tuning", "lstm, warm restarts", "mlp, warm restarts")
"""Trainings on bytes."""
IMAGES = ("convolutions", "noise curriculum")
"""Trainings whose outputs lie along samples in the same way."""
ANY = ("encoder", "words", "regression", "adapters", "batch ramp", "length curriculum", "label noise", "batches of two")
"""Other trainings whose gradients are made too large; and those below."""
MORE = ("variational", "contrasts", "denoising")
ENDLESS = tuple(name for name in (*LANGUAGE, *IMAGES) if name != "float16")
"""Trainings whose gradients can be made too large without an overflow."""
SWINGING = ("noise curriculum",)
"""Trainings whose gradient norms swing a hundredfold by themselves."""


class Outcome(NamedTuple):
    """Findings of the rules in one run, and the fault that was planted."""

    case: str
    steps: int
    found: list[RunFinding]
    at: int | None = None
    rule: str = ""
    name: str = ""
    size: float = float("nan")
    """Factor by which the number rose."""

    @property
    def delay(self) -> int | None:
        """Steps from the fault to its finding; None if there is none."""
        hits = [each.step - self.at for each in self.found if self.at is not None and self._is_hit(each)]
        return min(hits, default=None)

    def _is_hit(self, found: RunFinding) -> bool:
        return found.rule == self.rule and found.name.startswith(self.name) and found.step >= (self.at or 0)

    @property
    def false_alarms(self) -> list[RunFinding]:
        """Findings before the fault, or at all in a healthy run."""
        return [each for each in self.found if self.at is None or each.step < self.at]


def default_rules() -> list[RunRule]:
    """Rules of a configuration that names none."""
    names = [each.rule_name for each in RunSettings().rules]
    return [RUN_RULES[name](RUN_RULE_ARGS[name]()) for name in names]


def judged(steps: Iterable[RunStep]) -> list[RunFinding]:
    """Findings of the default rules, the ends of matters left out."""
    rules = default_rules()
    return [found for step in steps for rule in rules for found in rule.judge(step) if not found.resolved]


def healthy_cases(args: argparse.Namespace) -> list[RunCase]:
    from _healthy_runs import RUNS

    seeds = range(args.first, args.first + args.rounds)
    return [RunCase(name, seed, round(STEPS.get(name, USUAL) * args.length)) for seed in seeds for name in RUNS]


def planted_cases(first: int) -> dict[str, list[RunCase]]:
    """Trainings with a fault that begins at one step, by the kind of number that it should raise."""
    wide = [*LANGUAGE, *IMAGES]
    at = {name: 180 if name in ("gru", "encoder", "words") else 250 for name in (*LANGUAGE, *IMAGES, *ANY, *MORE)}
    rates = [(name, Broken("rate", at[name] + 7, 1e4 if name == "fine-tuning" else 300.0)) for name in wide]
    gradients = [
        (name, Broken("gradients", at[name] + 3, 1e4 if name in SWINGING else 100.0))
        for name in (*ENDLESS, *ANY, *MORE)
    ]
    bursts = [
        RunCase("float16", first + 50 + n, 250, Broken("gradients", 150 + n, float("inf"), 5 + n % 8))
        for n in range(PLANTED)
    ]
    return {
        "loss": [_until(name, seed, broken) for seed in (first + 20, first + 22) for name, broken in rates],
        "grad_norm": [_until(name, first + 21, broken) for name, broken in gradients],
        "skipped_updates": bursts,
    }


def _until(name: str, seed: int, broken: Broken) -> RunCase:
    return RunCase(name, seed, broken.at + 40, broken)


def recordings(args: argparse.Namespace, cases: list[RunCase]) -> Iterator[Recording]:
    """Yield recordings in order, several made at a time, each in a process of its own."""
    text = texts([])[0]
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=fresh) as pool:
        yield from pool.map(kept_or_recorded, cases, [text] * len(cases), [args.keep] * len(cases))


def healthy(args: argparse.Namespace) -> tuple[list[Outcome], dict[str, Recording]]:
    """Judge every healthy run; return the results, and a recording of each kind with its healthy times."""
    cases = healthy_cases(args)
    made = dict(zip(cases, recordings(args, cases), strict=True))
    kinds = {}
    for case in cases:
        least = np.minimum.reduce([each["own"] for other, each in made.items() if other.name == case.name])
        kinds[case.name] = {**made[case], "own": least / np.median(least)}
    found = [
        Outcome(f"{case.name}, seed {case.seed}", case.steps, judged(steps_of(made[case], kinds[case.name]["own"])))
        for case in cases
    ]
    return found, kinds


def planted(args: argparse.Namespace) -> Iterator[Outcome]:
    """Judge every training with a fault in it."""
    for name, cases in planted_cases(args.first).items():
        for case, recording in zip(cases, recordings(args, cases), strict=True):
            at = case.broken.at if case.broken is not None else 0
            rule = "RunOverflow" if name == "skipped_updates" else "RunSpike"
            size = rise(recording.get(name), at)
            found = judged(steps_of(recording, np.ones(case.steps)))
            kind = "" if case.broken is None else case.broken.kind
            yield Outcome(f"{case.name}, seed {case.seed}, {kind}", case.steps, found, at, rule, name, size)


def rise(column: np.ndarray | None, at: int) -> float:
    """Factor between the highest of the five values from the fault on and the median of the 20 before."""
    if column is None:
        return float("nan")
    return float(np.nanmax(column[at : at + 5]) / np.nanmedian(column[at - 20 : at]))


def slow(kinds: dict[str, Recording]) -> Iterator[Outcome]:
    """Multiply the times of the second half: at once in every other run, else by and by; where steps are alike."""
    alike = {name: each for name, each in kinds.items() if not {"tokens", "batch_size"} & set(each)}
    long = [name for name, each in alike.items() if len(each["own"]) >= USUAL // 2][:PLANTED]
    for n, name in enumerate(long):
        recording, size = kinds[name], 1.8 + 0.1 * n
        count = len(recording["own"])
        at = count // 2
        ramp = np.clip((np.arange(count) - at) / (0.3 * count), 0, 1) if n % 2 else np.arange(count) >= at
        found = judged(steps_of(recording, recording["own"] * (1 + (size - 1) * ramp)))
        label = f"{name}, {'by and by' if n % 2 else 'at once'}"
        yield Outcome(label, count, found, at, "RunSlow", "step_seconds", size)


def kept_episodes(args: argparse.Namespace, episodes: list[Episode]) -> np.ndarray:
    """Load the seconds of all episodes from the folder of recordings; else record them."""
    path = None if args.keep is None else args.keep / f"episodes-{args.first}-{len(episodes)}.npy"
    if path is not None and path.exists():
        return np.load(path)
    seconds = record_episodes(episodes)
    if path is not None:
        np.save(path, seconds)
    return seconds


def straggling(args: argparse.Namespace) -> tuple[list[Outcome], list[Outcome]]:
    """Judge data-parallel training of four processes, healthy and with a rank that has more work."""
    well = [Episode(args.first + n, None, 1.0) for n in range(PLANTED // 2)]
    ill = [Episode(args.first + n, n % 4, 1.8 + 0.1 * n) for n in range(PLANTED)]
    seconds = kept_episodes(args, [*well, *ill])
    results = []
    for episode, rows in zip([*well, *ill], seconds, strict=True):
        steps = (
            RunStep(n, n, max(row), "applied", {f"rank/{rank}/outside_seconds": row[rank] for rank in range(len(row))})
            for n, row in enumerate(rows.tolist())
        )
        at = None if episode.slow is None else BROKEN_AT
        name = f"rank/{episode.slow}/"
        label = f"four processes, seed {episode.seed}"
        results.append(Outcome(label, len(rows), judged(steps), at, "RunStraggler", name, episode.factor))
    return results[: len(well)], results[len(well) :]


def planted_table(outcomes: list[Outcome]) -> tuple[str, bool]:
    """Table of the faults by kind, and whether all were found."""
    kinds = {(each.rule, each.name.split("/")[0]): [] for each in outcomes}
    for each in outcomes:
        kinds[each.rule, each.name.split("/")[0]].append(each)
    titles = {"rank": "stragglers", "loss": "spikes of the loss", "grad_norm": "spikes of the gradient norm"}
    titles |= {"skipped_updates": "bursts of skipped updates"}
    grouped: dict[str, list[Outcome]] = {}
    for (_, name), group in kinds.items():
        grouped.setdefault(titles.get(name, "slow steps"), []).extend(group)
    rows = []
    for title, group in grouped.items():
        delays = [each.delay for each in group if each.delay is not None]
        sizes = [each.size for each in group if np.isfinite(each.size)]
        rows.append(
            [
                f"{title} ({group[0].rule})",
                f"{len(delays)} of {len(group)}: {'met' if len(delays) == len(group) else 'MISSED'}",
                f"{np.median(delays):.0f} (at most {max(delays)})" if delays else "-",
                f"{min(sizes):.2g} to {max(sizes):.2g}" if sizes else "-",
            ]
        )
    text = table(["planted", "found, aim all", "steps until then", "factor"], rows)
    return text, all(each.delay is not None for each in outcomes)


def alarm_table(outcomes: list[Outcome]) -> tuple[str, bool]:
    """Table of the false alarms by rule, and whether there is none."""
    counts = Counter(found.rule for each in outcomes for found in each.false_alarms)
    rows = [
        [name, f"{counts[name]}: {verdict(0, counts[name])}"] for name, rule in RUN_RULES.items() if rule.by_default
    ]
    return table(["", "false alarms, aim 0"], rows), not counts


def report(outcomes: list[Outcome]) -> None:
    """Print each false alarm and each fault that was missed."""
    for each in outcomes:
        for found in each.false_alarms:
            print(f"FALSE ALARM {each.case}: {found.message}")
        if each.at is not None:
            missed = each.delay is None
            print(f"{'MISSED' if missed else 'found'} {each.case}: {each.name} x {each.size:.3g}, delay {each.delay}")


def main() -> int:
    parser = arguments(__doc__, rounds=3)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--length", type=float, default=1.0, help="factor on the number of steps of a healthy run")
    parser.add_argument("--keep", type=Path, help="folder for recordings")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    args = parser.parse_args()
    well, kinds = healthy(args)
    even, straggled = straggling(args)
    ill = [*planted(args), *slow(kinds), *straggled]
    well += even
    report([*well, *ill])
    alarms, silent = alarm_table([*well, *ill])
    faults, complete = planted_table(ill)
    note = (
        f"{len(well)} healthy runs of {len(kinds) + 1} kinds ({sum(each.steps for each in well):,} steps), and the "
        f"steps before the fault of {len(ill)} others; default rules and settings, every finding counted."
    )
    publish("Rules about numbers of the run", [note, alarms, faults], args.output)
    return 0 if silent and complete else 1


if __name__ == "__main__":
    sys.exit(main())
