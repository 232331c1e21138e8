"""Search backwards from an incident: planted onsets that are named, and incidents invented in healthy runs.

    python benchmarks/hindsight.py [--recordings FOLDER [FOLDER ...]] [--planted FOLDER [--record]] [--seeds 0 1 2]
        [--plants NAME ...]

``FOLDER`` of ``--recordings`` is what ``benchmarks/finding.py --mode full --keep`` has kept, of which the healthy twins
and programs are taken. In each, twenty incidents are invented at random steps: nothing may have stood out before. A
family is a program; the shares of healthy recordings that ship with probe are made anew without the family that is
judged. The shares of all families, as they ship, are printed as a table.

``--record`` trains the programs of ``benchmarks/_planted.py``, of which a layer begins to go wrong some steps before
the loss is not finite, into the folder of ``--planted``; without it, what lies there is judged. Where a rule has found
the row before the loss was not finite, and nothing stood out before that, the row of the rule is the answer.

Exit code 1 if there is nothing to judge.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from _planted import PLANTS, incident_of, onset_of
from _report import publish, table

from probe.core.analysis.diagnosis.looking_back import RecordedNorms
from probe.core.hindsight.look_back import FIRST, Search
from probe.core.hindsight.shipped_chances import STRENGTHS, chances_from
from probe.core.storage.batches import steps
from probe.core.storage.directories import last_run
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.problems import Problems

HERE = Path(__file__).resolve().parent
FAULTY = "-faulty-"
INVENTED = 20
"""Incidents that are invented in a run of a rank."""
FEWEST = 2 * FIRST
"""Sampled steps of a run below which nothing is invented in it."""
CONFIG = {
    "wg_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "param_distribution": True,
    "ops": ["norm", "nans"],
    "step_count_per_record": 20,
    "sentinel": {"enable": True},
}
"""Configuration of the planted trainings."""
Shares = Callable[[np.ndarray, int], np.ndarray]


class HealthyRank(NamedTuple):
    """Recording of a rank of a healthy run."""

    family: str
    search: Search
    rows: int


class PlantedAnswer(NamedTuple):
    """Answer about a planted training."""

    name: str
    seed: int
    planted: int
    where: str
    step: int
    chance: float
    """NaN if a rule has found the row."""

    @property
    def is_placed(self) -> bool:
        """True if a row of the layer is named."""
        return any(fnmatchcase(self.where, pattern) for pattern in PLANTS[self.name].where)


def norms_of(folder: Path) -> Iterator[RecordedNorms]:
    """Yield the norms of each rank of a recorded run."""
    problems = Problems()
    run = last_run(folder, problems)
    with Rows(run.directories, problems) as rows:
        for rank in run.ranks:
            norms = RecordedNorms(rank)
            for step in steps(rows, rank):
                norms.add(step.step, step.batches, True)
            yield norms


def healthy_ranks(folders: Sequence[Path]) -> Iterator[HealthyRank]:
    """Yield the healthy recordings with enough steps; twins of a case are of its family."""
    for folder in sorted(path for root in folders for path in root.glob("*/*/files")):
        name = folder.parent.name
        if FAULTY not in name:
            family = name.rpartition("-")[0].removesuffix("-healthy")
            for norms in norms_of(folder):
                search = norms.search()
                rows = search.table.logs.shape[1]
                if len(search.table.logs) >= FEWEST and rows:
                    yield HealthyRank(family, search, rows)


def shares_of(ranks: Sequence[HealthyRank], without: str = "") -> list[float]:
    """Return the mean share over families of steps before which something stands out, by strength."""
    families: dict[str, list[np.ndarray]] = {}
    for rank in ranks:
        if rank.family != without:
            families.setdefault(rank.family, []).append(rank.search.usual[FIRST:])
    return [
        float(np.mean([(np.concatenate(usual) >= strength).mean() for usual in families.values()]))
        for strength in STRENGTHS
    ]


def invented(ranks: Sequence[HealthyRank]) -> dict[str, float]:
    """Return by family the share of invented incidents before which something is said to have stood out."""
    random, answers = np.random.default_rng(0), dict[str, list[bool]]()
    rows = float(np.mean([rank.rows for rank in ranks]))
    for rank in ranks:
        search = replace(rank.search, shipped=chances_from(shares_of(ranks, rank.family), rows))
        ends = random.choice(np.arange(FIRST, len(search.table.logs)), INVENTED, replace=False)
        answers.setdefault(rank.family, []).extend(search.standout(int(end)) is not None for end in ends)
    return {family: float(np.mean(some)) for family, some in answers.items()}


def record(name: str, seed: int, folder: Path) -> None:
    """Train a planted program."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    variables = os.environ | {"MONITOR_OUTPUT_DIR": str(folder / "files"), "OMP_NUM_THREADS": "1"}
    watched = [str(HERE / "_planted.py"), name, "--seed", str(seed)]
    command = [sys.executable, "-m", "probe", "run", "--config", str(folder / "config.json"), *watched]
    subprocess.run(command, check=True, env=variables, capture_output=True)


def planted_answers(root: Path, seeds: Sequence[int], plants: Sequence[str]) -> Iterator[PlantedAnswer]:
    """Yield what ``probe anomalies`` answers about each planted training that was recorded."""
    for seed in seeds:
        for name in plants:
            files = root / f"{name}-{seed}" / "files"
            if files.is_dir():
                command = [sys.executable, "-m", "probe", "anomalies", str(files), "--json"]
                printed = subprocess.run(command, check=False, capture_output=True, text=True).stdout
                yield answer_of(name, seed, json.loads(printed))


def answer_of(name: str, seed: int, analysis: Mapping[str, Any]) -> PlantedAnswer:
    """Return the answer about the main incident of an analysis."""
    diagnosis: Any = analysis["diagnosis"]
    onset, first = diagnosis["onset"], diagnosis["first"]
    if not onset["where"] and first["began"] < incident_of(seed):
        return PlantedAnswer(name, seed, onset_of(seed), first["name"], first["began"], math.nan)
    return PlantedAnswer(name, seed, onset_of(seed), onset["where"], onset["step"], onset["chance"])


def planted_parts(answers: Sequence[PlantedAnswer]) -> list[str]:
    """Return what is published about the planted trainings."""
    named = [answer for answer in answers if answer.where]
    off = median(abs(answer.step - answer.planted) for answer in named) if named else float("nan")
    placed = sum(answer.is_placed for answer in named)
    head = (
        f"{len(answers)} planted onsets: a row named in {len(named)} "
        f"({sum(math.isnan(answer.chance) for answer in named)} by a rule), "
        f"of these the layer right in {placed}, median distance {off:g} steps."
    )
    lines = [
        [
            answer.name,
            str(answer.seed),
            str(answer.planted),
            answer.where or "nothing stood out before",
            *_found(answer),
        ]
        for answer in answers
    ]
    return [head, table(["plant", "seed", "begins", "named", "step", "chance", "layer right"], lines)]


def _found(answer: PlantedAnswer) -> list[str]:
    """Return the last cells of the line of an answer."""
    if not answer.where:
        return ["", "", ""]
    chance = "by a rule" if math.isnan(answer.chance) else f"{100 * answer.chance:.1f} %"
    return [str(answer.step), chance, "yes" if answer.is_placed else "no"]


def healthy_parts(ranks: Sequence[HealthyRank]) -> list[str]:
    """Return what is published about the healthy recordings."""
    wrong = invented(ranks)
    right = 1 - float(np.mean([*wrong.values()]))
    head = f"Incidents invented in {len(wrong)} healthy families: nothing stood out before in {100 * right:.1f} %."
    listed = [[family, f"{100 * share:.0f} %"] for family, share in sorted(wrong.items()) if share]
    shares = [[f"{strength:g}", f"{share:.5f}"] for strength, share in zip(STRENGTHS, shares_of(ranks), strict=True)]
    rows = f"Mean number of rows: {np.mean([rank.rows for rank in ranks]):.0f}."
    return [
        head,
        *([table(["family", "something named"], listed)] if listed else []),
        f"Share of healthy steps before which a row stands out. {rows}",
        table(["distance", "share"], shares),
    ]


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, nargs="*", default=[], help="folders of finding.py --keep")
    parser.add_argument("--planted", type=Path, help="folder of the planted trainings")
    parser.add_argument("--record", action="store_true", help="train them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--plants", nargs="+", choices=list(PLANTS), default=list(PLANTS), metavar="NAME")
    parser.add_argument("--output", type=Path, help="file for the text, or a directory to put it in")
    args = parser.parse_args()
    if args.record and not args.planted:
        parser.error("--record needs --planted FOLDER")
    return args


def main() -> int:
    args = parsed()
    if args.record:
        for seed in args.seeds:
            for name in args.plants:
                record(name, seed, args.planted / f"{name}-{seed}")
    answers = list(planted_answers(args.planted, args.seeds, args.plants)) if args.planted else []
    ranks = list(healthy_ranks(args.recordings))
    if not answers and not ranks:
        print("nothing to judge: no planted training and no healthy recording of enough steps", file=sys.stderr)
        return 1
    parts = [*(planted_parts(answers) if answers else []), *(healthy_parts(ranks) if ranks else [])]
    publish("Looking back from incidents", parts, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
