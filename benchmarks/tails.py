"""Tails of the largest residual of a step in healthy training, from which the limits of judging together follow.

    python benchmarks/finding.py --mode full --seeds 0 --healthy --steps 300 --keep RECORDINGS
    python benchmarks/tails.py RECORDINGS ... [--write] [--warnings 0.2]

All healthy programs and healthy twins among the recordings are judged again. For each kind of signal, with and without
a common movement, and for rises and falls apart, the tail of the largest residual of a step is estimated: the size that
a share of the steps exceeds; the scale of the exponential beyond, from the peaks of episodes, a standard error more
(the most careful of three shares); and how the share grows with the number of rows, from random halves of the rows.
``--write`` puts the result into ``probe/core/rules/tail_table.py``.

Then each program is judged by the tails of all others: the table has the episodes that healthy training would have had,
beside those that were wanted. Exit code 1 if nothing was judged; then no table is written.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from _report import publish, table

from probe.core.rules.family import FLOORS, Scores
from probe.core.rules.joint import QUIET, WINDOW, JointJudge
from probe.core.rules.skipped import is_evidence
from probe.core.rules.tails import KINDS, ROWS, WARNINGS, Limits, Tail, limit_of
from probe.core.storage.batches import steps
from probe.core.storage.directories import last_run, place
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.problems import Problems
from probe.core.storage.side_files import StepUpdates

Array = npt.NDArray[np.float64]
TARGET = Path(__file__).resolve().parent.parent / "probe" / "core" / "rules" / "tail_table.py"
SHARES = 0.02, 0.005, 0.001
"""Shares of steps whose sizes are of the tail."""
FEWEST_PEAKS = 4
"""Peaks of episodes that a scale is estimated from, at least."""
LEAST_GROWTH, LEAST_SCALE = 0.25, 1.0
NONE = Tail(20.0, 0.01, 5.0, 1.0)
"""Tail of which nothing is known."""
SIDES, MODES = Limits._fields, ("together", "alone")


class Sample(NamedTuple):
    """Largest residuals of one signal at one step, by side; and those of a random half of the rows."""

    program: str
    series: tuple[str, int]
    """Signal and rank."""
    step: int
    rows: int
    alone: bool
    sizes: tuple[float, float]
    halves: tuple[float, float]


def samples(folder: Path) -> list[Sample]:
    """Judge a recorded run again."""
    name = folder.name.rpartition("-")[0].removesuffix("-healthy")
    problems, random, taken = Problems(), np.random.default_rng(0), []
    run = last_run(place(folder / "files"), problems)
    with Rows(run.directories, problems) as rows:
        for rank in run.ranks:
            judge = JointJudge(WINDOW, WARNINGS)
            updates = StepUpdates(rows, rank)
            for stored in steps(rows, rank, signals=FLOORS):
                for batch in updates.put_into(stored).batches:
                    scores = judge.scores(batch) if is_evidence(batch) else None
                    if scores is not None:
                        half = random.random(len(batch)) < 0.5
                        sides, of_half = largest(scores, np.ones_like(half)), largest(scores, half)
                        series = batch.signal, rank
                        taken.append(Sample(name, series, batch.step, scores.rows, scores.is_alone, sides, of_half))
    return taken


def largest(scores: Scores, rows: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Return the sizes of the largest rise and the largest fall among some rows."""
    sizes = np.where(rows, scores.sizes, np.nan)
    above = np.fmax.reduce(np.where(scores.residuals > 0, sizes, np.nan), initial=0.0)
    below = np.fmax.reduce(np.where(scores.residuals < 0, sizes, np.nan), initial=0.0)
    return float(above), float(below)


Place = tuple[str, str, str]
"""Kind of signal; ``together`` or ``alone``; side."""


def by_place(taken: Iterable[Sample]) -> dict[tuple[str, str], list[Sample]]:
    """Group samples by kind of signal, and by whether a common movement was taken out."""
    groups = defaultdict(list)
    for sample in taken:
        groups[KINDS[sample.series[0]], MODES[sample.alone]].append(sample)
    return groups


def estimated(taken: Iterable[Sample]) -> dict[Place, Tail]:
    """Estimate all tails."""
    tails = {(kind, mode, side): NONE for kind in KINDS.values() for mode in MODES for side in SIDES}
    for (kind, mode), group in by_place(taken).items():
        for n, side in enumerate(SIDES):
            tails[kind, mode, side] = tail_of(group, n)
    return tails


def tail_of(group: Sequence[Sample], side: int) -> Tail:
    """Estimate one tail from several shares of the steps, and return the one with the largest limit."""
    tails = [tail for share in SHARES if (tail := _tail_of(group, side, share)) is not None]
    return max(tails, key=lambda tail: limit_of(tail, ROWS, WARNINGS), default=NONE)


def _tail_of(group: Sequence[Sample], side: int, share: float) -> Tail | None:
    """Estimate growth and scale in turns, as each needs the other; None if there are too few peaks."""
    sizes, rows = np.array([s.sizes[side] for s in group]), np.array([s.rows for s in group])
    halves = np.array([s.halves[side] for s in group])
    usual = np.quantile(sizes, 1 - SHARES[0])
    of_all, of_half = (sizes > usual).mean(), (halves > usual).mean()
    growth = float(np.clip(np.log2(of_all / max(of_half, of_all / 2)), LEAST_GROWTH, 1.0)) if of_all else 1.0
    scale = 1.0
    for _ in range(3):
        scaled = sizes - scale * growth * np.log(rows / ROWS)
        size = float(np.quantile(scaled, 1 - share))
        peaks = np.array([*peaks_of(group, scaled, size)])
        if len(peaks) < FEWEST_PEAKS:
            return None
        scale = max(float((peaks - size).mean()) * (1 + 1 / len(peaks) ** 0.5), LEAST_SCALE)
    return Tail(size, len(peaks) / len(group), scale, growth)


def peaks_of(group: Sequence[Sample], sizes: Array, size: float) -> Iterator[float]:
    """Yield the peak of each episode beyond ``size``: ten normal samples end one."""
    series: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for n in np.flatnonzero(sizes > size).tolist():
        series[group[n].program, group[n].series].append(n)
    for places in series.values():
        peak, last = sizes[places[0]], group[places[0]].step
        for n in places[1:]:
            if group[n].step > last + QUIET:
                yield peak
                peak = 0.0
            peak, last = max(peak, sizes[n]), group[n].step
        yield peak


def episodes(group: Iterable[Sample], tails: Mapping[Place, Tail], warnings: float) -> list[Sample]:
    """Return the samples with which an episode begins."""
    last: dict[tuple[object, ...], int] = {}
    begun = []
    for sample in sorted(group, key=lambda s: (s.program, s.series[1], s.step)):
        kind, mode = KINDS[sample.series[0]], MODES[sample.alone]
        limits = [limit_of(tails[kind, mode, side], sample.rows, warnings) for side in SIDES]
        if any(size > limit for size, limit in zip(sample.sizes, limits, strict=True)):
            key = sample.program, sample.series[1], kind
            if sample.step - last.get(key, -QUIET - 2) > QUIET:
                begun.append(sample)
            last[key] = sample.step
    return begun


def held_out(taken: Sequence[Sample], rates: Sequence[float]) -> list[list[Sample]]:
    """Return for each rate the episodes of each program, judged by the tails of all others."""
    begun: list[list[Sample]] = [[] for _ in rates]
    whole = estimated(taken)
    for program in sorted({sample.program for sample in taken}):
        samples_of = [sample for sample in taken if sample.program == program]
        kinds = {*by_place(samples_of)}
        others = [sample for place, some in by_place(taken).items() if place in kinds for sample in some]
        rest = estimated(sample for sample in others if sample.program != program)
        tails = whole | {place: tail for place, tail in rest.items() if place[0] in {kind for kind, _ in kinds}}
        for n, rate in enumerate(rates):
            begun[n] += episodes(samples_of, tails, rate)
    return begun


def source(tails: Mapping[Place, Tail], steps_judged: int, programs: int) -> str:
    """Return the text of the table's module."""
    lines = [
        f"    {key!r}: ({', '.join(f'{number:.4g}' for number in tail)}),".replace("'", '"')
        for key, tail in sorted(tails.items())
    ]
    head = (
        f'"""Tails of healthy training, as ``benchmarks/tails.py`` has estimated them: {steps_judged:,} steps of '
        f'{programs} programs."""\n\nTAILS: dict[tuple[str, str, str], tuple[float, float, float, float]] = {{\n'
    )
    return head + "\n".join(lines) + '\n}\n"""By kind of signal, whether a common movement is taken out, and side."""\n'


def recordings(folders: Iterable[Path]) -> list[Path]:
    """Return the folders of healthy recordings, those of faulty twins left out."""
    runs = {path.parent for folder in folders for path in folder.rglob("files") if path.is_dir()}
    return sorted(run for run in runs if "-faulty-" not in run.name)


def taken_from(runs: Sequence[Path], jobs: int, keep: Path | None) -> list[Sample]:
    """Return the samples of all runs, from the kept ones where there are any."""
    if keep is not None and keep.is_file():
        return [Sample(*cells) for cells in pickle.loads(keep.read_bytes())]
    with ProcessPoolExecutor(jobs) as pool:
        taken = [sample for some in pool.map(samples, runs) for sample in some]
    if keep is not None and taken:
        keep.write_bytes(pickle.dumps([tuple(sample) for sample in taken]))
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="recordings that finding.py has kept")
    parser.add_argument("--warnings", type=float, default=WARNINGS, help="warnings in 10,000 steps")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="file for the samples")
    parser.add_argument("--write", action="store_true", help="write the table into the package")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    taken = taken_from(recordings(args.folders), args.jobs, args.keep)
    if not taken:
        print("nothing to judge: no healthy recording of enough steps in these folders", file=sys.stderr)
        return 1
    tails = estimated(taken)
    judged = len({(s.program, s.series[1], s.step) for s in taken})
    programs = len({s.program for s in taken})
    if args.write:
        TARGET.write_text(source(tails, judged, programs), encoding="utf-8")
    rows = [
        [
            *(", ".join(key[:2]), key[2]),
            *(f"{number:.3g}" for number in tail),
            *(f"{limit_of(tail, n, args.warnings):.3g}" for n in (32, 1024)),
        ]
        for key, tail in sorted(tails.items())
    ]
    header = ["", "side", "size", "episodes a step", "scale", "growth", "limit, 32 rows", "1,024 rows"]
    wanted = sorted({0.05, args.warnings, 1.0, 5.0})
    rates = [
        [f"{rate:g}", f"{rate * judged / 1e4:.2g}", str(len(begun)), names(begun)]
        for rate, begun in zip(wanted, held_out(taken, wanted), strict=True)
    ]
    note = f"{judged:,} steps of {programs} programs, healthy."
    publish(
        "Tails",
        [note, table(header, rows), table(["warnings in 10,000 steps", "wanted", "held out", "in"], rates)],
        args.output,
    )
    return 0


def names(begun: Sequence[Sample]) -> str:
    """Return the programs of episodes, for a table."""
    found = [f"{s.program} {s.series[0]} {s.step} {max(s.sizes):.1f}" for s in begun]
    return ", ".join(found[:12])


if __name__ == "__main__":
    sys.exit(main())
