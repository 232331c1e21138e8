"""Run the demonstration with ten seeds of each fault and of none, and print how often the monitor was right.

    python benchmarks/demo_seeds.py [--framework pytorch] [--seeds 10] [--steps 70] [--kinds nan,overflow,gradient,none]

The kind ``any`` leaves the choice of the fault to the seed, as ``probe demo`` does.

Exit code 0 if every named place and step is the broken one and the healthy runs have no finding, else 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from probe.demo.diagnosis import FirstBad, name_first_bad
from probe.demo.faults import KINDS
from probe.demo.report import matches
from probe.demo.training import DemoPlan, run


def named(diagnosis: FirstBad | None) -> str:
    """Text of the diagnosis for a cell."""
    return f"{diagnosis.row}@{diagnosis.first.step}" if diagnosis else "nothing"


def one(framework: str, kind: str, seed: int, steps: int) -> bool:
    """Run once, print the line and return whether the monitor was right."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        plan = DemoPlan(framework, seed, None if kind == "any" else kind, steps, Path(folder), ["csv"])
        outcome = run(plan, lambda _: None)
    diagnosis, injection = name_first_bad(outcome.findings), outcome.injection
    right = matches(injection, diagnosis)
    broken = f"{injection.place}@{injection.step}" if injection else "nothing"
    seconds = time.perf_counter() - began
    verdict = "match" if right else "WRONG"
    print(f"{kind:<9} {seed:>4}  {verdict}  {broken:<36} {named(diagnosis):<44} {seconds:5.1f} s", flush=True)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=("pytorch", "mindspore"), default="pytorch")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--kinds", default=",".join((*KINDS, "none")))
    args = parser.parse_args()
    print(f"{'kind':<9} seed  right  {'broken':<36} {'named':<44} time")
    right = {
        kind: sum(one(args.framework, kind, seed, args.steps) for seed in range(args.seeds))
        for kind in args.kinds.split(",")
    }
    print("\n| fault | right | of |\n| --- | --- | --- |")
    for kind, number in right.items():
        print(f"| {kind} | {number} | {args.seeds} |")
    return 0 if set(right.values()) == {args.seeds} else 1


if __name__ == "__main__":
    sys.exit(main())
