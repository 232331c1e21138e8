"""Time and memory of the last step of a first cause: the classes of the findings of many ranks.

    python benchmarks/causes.py [--ranks 100000] [--kept 8]

Ranks form a grid of data, pipeline, tensor and expert parallel groups. Cases: every rank finds NaN at the same place at
once; every rank from a step on, after one rank alone; each rank something else in the same step; each rank at a step of
its own. Nothing is read from files.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from probe.core.analysis.diagnosis.causality import Cause, incidents_of
from probe.core.analysis.diagnosis.evaluate import Episode, EvaluatedRank
from probe.core.analysis.diagnosis.evidence import Evidence
from probe.core.analysis.diagnosis.explain import kind_of, origins, paragraph
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.diagnosis.nodes import CausalPaths
from probe.core.analysis.diagnosis.topology import Place, Topology
from probe.core.records import Finding, Key

SIGNALS = ("param_origin", "actv", "actv_grad", "grad_unreduced", "grad_reduced", "exp_avg", "param_updated")
PIPELINE, TENSOR, EXPERTS = 8, 8, 8
SECONDS, MEBIBYTES = 60.0, 2048.0
"""Goals for 100,000 ranks."""


def places(ranks: int, named: bool) -> list[Place]:
    """Places of a grid; its groups if ``named``, else stages alone."""
    inside, found = PIPELINE * TENSOR, []
    width = -(-ranks // inside)
    groups: dict[tuple[int, ...], tuple[int, ...]] = {}
    for rank in range(ranks):
        d, p, t = rank // inside, rank // TENSOR % PIPELINE, rank % TENSOR
        if not named:
            found.append(Place(rank, p))
            continue
        replicas = groups.setdefault((p, t), tuple(o * inside + p * TENSOR + t for o in range(width)))
        pipeline = tuple(d * inside + o * TENSOR + t for o in range(PIPELINE))
        peers = {d * inside + p * TENSOR + o for o in range(TENSOR)}
        peers |= {(d // EXPERTS * EXPERTS + o) * inside + p * TENSOR + t for o in range(EXPERTS)}
        found.append(Place(rank, p, pipeline, replicas, tuple(sorted(peers)), experts=True))
    return found


def finding(rank: int, step: int, signal: str, row: int, micro_step: int = 0) -> Located:
    """NaN in a row."""
    in_micro_step = signal.startswith("actv")
    part = "output" if in_micro_step else ""
    key = Key(f"layers.{row}.weight", part, micro_step if in_micro_step else 0)
    message = f"Rule AnomalyNan reports anomaly signal in ('layers.{row}/rank{rank}/{signal}', 'norm') at step {step}"
    found = Finding("AnomalyNan", signal, key, "norm", math.nan, math.nan, step, rank, row, message, in_micro_step)
    return Located(found, step, rank // TENSOR % PIPELINE, micro_steps=8)


def at_once(rank: int, kept: int, _: random.Random) -> list[Located]:
    """Everything of every rank is bad in one step."""
    return [finding(rank, 20, SIGNALS[1 + n % (len(SIGNALS) - 1)], n) for n in range(kept)]


def after_one(rank: int, kept: int, _: random.Random) -> list[Located]:
    """One rank begins; all follow in the next step."""
    found = [finding(rank, 21, SIGNALS[n % len(SIGNALS)], n) for n in range(kept)]
    return [finding(rank, 20, "actv", 3), *found[1:]] if rank == 4711 else found


def anywhere(rank: int, kept: int, r: random.Random) -> list[Located]:
    """Each rank has another bad row, of another micro step, in the same step."""
    return [finding(rank, 20, r.choice(SIGNALS[1:4]), r.randrange(1000), r.randrange(8)) for _ in range(kept)]


def whenever(rank: int, kept: int, r: random.Random) -> list[Located]:
    """Each rank has another bad row at another step."""
    step = r.randrange(1000)
    return [finding(rank, step + n // 3, r.choice(SIGNALS), r.randrange(1000), r.randrange(8)) for n in range(kept)]


CASES: tuple[Callable[[int, int, random.Random], list[Located]], ...] = (at_once, after_one, anywhere, whenever)


def measure(ranks: int, kept: int, case: Callable[[int, int, random.Random], list[Located]], named: bool) -> float:
    """Print and return the seconds from findings to paragraphs."""
    r = random.Random(0)
    judged = []
    for rank in range(ranks):
        own = case(rank, kept, r)
        first, last = own[0].finding.step, own[-1].finding.step
        episode = Episode(first, last, last + 12, own, len(own), Counter(AnomalyNan=len(own)))
        judged.append(EvaluatedRank(rank, [episode], sampled=1000, first_step=0, last_step=1013))
    groups = places(ranks, named)
    start, busy = time.monotonic(), time.process_time()
    incidents = incidents_of(judged, CausalPaths(Topology(groups)))
    classes: Counter[str] = Counter()
    for incident in incidents:
        begun = origins(incident)
        same = [located.rank for located in begun if located.place == begun[0].place]
        text = paragraph(kind_of(incident, begun[0], same), incident, begun, Evidence("", "norm", ()), [])
        classes.update(cause.value for _, cause in incident.findings)
    seconds, busy = time.monotonic() - start, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    groups_text = "groups" if named else "stages"
    print(
        f"{case.__name__:10} {groups_text:7} {seconds:6.1f} s ({busy:.1f} s of CPU)  peak {peak:5.0f} MiB  "
        f"{classes[Cause.initiating.value]:,} initiating of {sum(classes.values()):,}, {len(text):,} characters",
        flush=True,
    )
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=100_000)
    parser.add_argument("--kept", type=int, default=8, help="findings of a rank")
    parser.add_argument("--case", choices=[case.__name__ for case in CASES])
    parser.add_argument("--stages", action="store_true", help="only stages are known, no groups")
    arguments = parser.parse_args()
    chosen = [case for case in CASES if arguments.case in (None, case.__name__)]
    seconds = max(measure(arguments.ranks, arguments.kept, case, not arguments.stages) for case in chosen)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"goals for 100,000 ranks: {SECONDS:.0f} s, {MEBIBYTES:.0f} MiB; here at most {seconds:.1f} s, {peak:.0f} MiB"
    )


if __name__ == "__main__":
    main()
