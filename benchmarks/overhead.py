"""Cost of watching a training step, for probe and for the existing tool.

Plain, probe and the existing tool take turns in one process, each on a model of its own with the same weights, and the
result is the median of the paired differences: load on the machine slows all three down. Each turn is a block of
several steps and ends when every file is written, so that nothing is hidden on a thread. Each setting has a process of
its own, because the existing tool leaves hooks behind.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _quiet import spread, take_turns
from _report import (
    Array,
    Part,
    arguments,
    difference,
    interval,
    milliseconds,
    of_the_step,
    publish_parts,
    table,
    verdict,
)
from _sentinel_cost import sentinel_aim, sentinel_case, verdict_alone

WARM_UP = 3
UNSAMPLED_TURNS = {1000: 10, 10: 4}
"""Number of times that the two models of the unsampled comparison change places, by ``step_interval``."""
UNSAMPLED = {1000: 0.002, 10: 0.004}
"""Largest fractions of a plain step that one that is not sampled may take longer, by ``step_interval``."""
MEMORY_AIM = 0.007
"""Largest fraction of a plain process's peak memory that weight gradients may add."""
RECORD_STEPS = 50
RECORD_AIM = 15
"""Largest cost of a record in microseconds, all told, of the small model."""
MEMORY_STEPS = 6
MEMORY_VARIANTS = ("plain", "probe imported", "probe", "existing tool")


# In the processes that measure.


def settings_case(args: argparse.Namespace, setting: str, scratch: Path) -> dict[str, Any]:
    """Measure seconds a step for each round and variant under one setting."""
    from _monitors import ATTACH, SENTINEL_AIMS, TARGETS, configuration, has_existing_tool, size_of, training_module

    if setting in SENTINEL_AIMS:
        return sentinel_case(args, setting, scratch, block)
    compared = setting in TARGETS and args.framework == "pytorch" and has_existing_tool()
    variants = ["plain", "probe", *["existing tool"] * compared]
    size = size_of(setting)
    trainings = {name: training_module(args.framework).Training(args.device, **size) for name in variants}
    blocks = {name: block(training, args) for name, training in trainings.items()}
    unwatched = take_turns(blocks, WARM_UP + args.rounds).seconds[WARM_UP:]
    places = {name: scratch / name.replace(" ", "_") for name in variants[1:]}  # the existing tool takes no spaces
    monitors = {name: ATTACH[name](trainings[name], configuration(setting), places[name]) for name in places}
    for name, monitor in monitors.items():
        blocks[name] = block(trainings[name], args, getattr(monitor, "flush", None))
    warm_up(blocks)
    measured = take_turns(blocks, args.rounds)
    must_have_worked(monitors["probe"])
    record = seconds_a_record(trainings["probe"], monitors["probe"], setting)
    return {"variants": variants, "unwatched": unwatched, "record": record, **measured._asdict()}


def seconds_a_record(training: Any, monitor: Any, setting: str) -> float:
    """Measure what a record costs inside probe, all told; 0 where the setting is not about it."""
    if not setting.endswith("small model"):
        return 0.0
    rows: list[int] = []
    monitor.on_snapshot(lambda snapshot: rows.append(sum(map(len, snapshot.batches))))
    before = spent(monitor)
    for _ in range(RECORD_STEPS):
        training.step()
    monitor.flush()
    return (spent(monitor) - before) / sum(rows)


def spent(monitor: Any) -> float:
    """Seconds in hooks, at the end of steps and on the delivery thread so far."""
    cost = monitor.cost
    return sum(cost[name] for name in ("hooks", "drain", "delivery"))


def must_have_worked(monitor: Any) -> None:
    """Refuse the figures of a monitor with faults, since failed work costs nothing.

    Raises:
        RuntimeError: with the faults.
    """
    if monitor.faults:
        raise RuntimeError(f"probe failed inside, so its cost means nothing: {monitor.faults}")


def warm_up(blocks: dict[str, Callable[[], float]]) -> None:
    """Take the steps that differ from all later ones: state is made, the first step is sampled."""
    for run in [*blocks.values()] * WARM_UP:
        run()


def block(
    training: Any,
    args: argparse.Namespace,
    flush: Callable[[], Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Callable[[], float]:
    """Function that takes several steps, waits until all is done and written, and returns the seconds a step."""
    from _monitors import training_module

    wait = training_module(args.framework).wait

    def run() -> float:
        begin = clock()
        for _ in range(args.block):
            training.step()
        wait(args.device)
        if flush is not None:
            flush()
        return (clock() - begin) / args.block

    return run


def unsampled_case(args: argparse.Namespace, interval: str, scratch: Path) -> dict[str, Any]:
    """Measure the seconds of a plain step and of an unsampled one with probe attached, pair by pair.

    The two models change places from time to time: the location of their memory makes a difference of its own.
    """
    from _monitors import attach_probe, configuration, training_module

    trainings = [training_module(args.framework).Training(args.device) for _ in range(2)]
    seconds, disturbed = [], 0
    turns = UNSAMPLED_TURNS[int(interval)]
    for turn in range(turns):
        plain, watched = trainings[turn % 2], trainings[1 - turn % 2]
        monitor = attach_probe(watched, configuration("everything", step_interval=int(interval)), scratch / "probe")
        blocks, rounds = unsampled_blocks(args, int(interval), plain, watched, monitor.flush)
        warm_up(blocks)
        monitor.flush()
        measured = take_turns(blocks, -(-rounds // turns))
        seconds, disturbed = seconds + measured.seconds, disturbed + measured.disturbed
        monitor.stop()
        must_have_worked(monitor)
    return {"seconds": seconds, "disturbed": disturbed}


def unsampled_blocks(
    args: argparse.Namespace, interval: int, plain: Any, watched: Any, flush: Callable[[], Any]
) -> tuple[dict[str, Callable[[], float]], int]:
    """Functions that return the seconds of a step that is not sampled, and the number of pairs of them: of one step,
    or, if the interval is short, of all between two sampled ones, on average."""
    if interval > args.pairs:
        args.block = 1
        return {"plain": block(plain, args), "unsampled": block(watched, args)}, args.pairs
    args.block = interval - 1
    blocks = {"plain": block(plain, args), "unsampled": block(watched, args)}

    def after_a_sampled_step(training: Any, unsampled: Callable[[], float]) -> Callable[[], float]:
        def run() -> float:
            training.step()
            flush()
            return unsampled()

        return run

    trainings = {"plain": plain, "unsampled": watched}
    return {name: after_a_sampled_step(trainings[name], run) for name, run in blocks.items()}, args.pairs // interval


def memory_case(args: argparse.Namespace, variant: str, scratch: Path) -> dict[str, Any]:
    """Measure the peak bytes of a process that trains a few steps, and of its device."""
    from _monitors import ATTACH, configuration, training_module

    if variant == "probe imported":
        importlib.import_module(f"probe.{args.framework}")
    training = training_module(args.framework).Training(args.device)
    if variant in ATTACH:
        monitor = ATTACH[variant](training, configuration("weight gradients"), scratch / "output")
    for _ in range(MEMORY_STEPS):
        training.step()
    if variant == "probe":
        monitor.flush()
        must_have_worked(monitor)
    device = sys.modules["torch"].cuda.max_memory_allocated() if args.device.startswith("cuda") else 0
    return {"host": peak_resident(), "device": device}


def peak_resident() -> int:
    """Peak memory of this process in bytes."""
    try:  # ru_maxrss would include what the parent held when it forked
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


# In the process that asks.


def measure(args: argparse.Namespace, *case: str) -> dict[str, Any]:
    """Run one case in a process of its own; its output is shown only if it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        options = {name: value for name, value in vars(args).items() if name not in ("output", "case", "only")}
        command = [sys.executable, __file__, "--case", json.dumps({**options, "case": case, "scratch": scratch})]
        environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
        ran = subprocess.run(
            command, check=False, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if ran.returncode:
            sys.exit(f"{' '.join(case)}: the measuring process ended with {ran.returncode}\n{ran.stdout[-4000:]}")
        return dict(json.loads(result.read_text()))


def run_case(text: str) -> None:
    """Run a case in a measuring process."""
    args = argparse.Namespace(**json.loads(text))
    if args.framework == "pytorch":
        importlib.import_module("torch").set_num_threads(args.threads)
    scratch, (kind, *names) = Path(args.scratch), args.case
    cases = {"setting": settings_case, "unsampled": unsampled_case, "memory": memory_case}
    result = cases[kind](args, *names, scratch)
    (scratch / "result.json").write_text(json.dumps(result))
    os._exit(0)  # the existing tool's output at exit is not measured


def settings_report(args: argparse.Namespace, settings: Sequence[str]) -> Part:
    """Report of the time that each setting adds to a step."""
    measured = {setting: measure(args, "setting", setting) for setting in settings}
    header = ["collected", "plain step", "probe adds", "of the step", "existing tool adds", "probe / existing", "aim"]
    rows = [setting_row(setting, result, args.framework) for setting, result in measured.items()]
    offset = float(np.median([abs(difference(np.array(result["unwatched"]), 1)) for result in measured.values()]))
    notes = [
        (
            f"Added to each step; medians of {args.rounds} paired differences, in brackets the {interval_name()}. "
            f"Plain, probe and the existing tool took turns in blocks of {args.block} steps, each ending when "
            f"its files were written. Before anything was attached two models differed by {milliseconds(offset)}; "
            "each setting's own difference is subtracted."
            f"{disturbance(measured.values())}"
        )
    ]
    notes += without_comparison(args.framework)
    notes += [record_note(result["record"]) for result in measured.values() if result["record"]]
    figures = {f"{setting}, of the step": of_the_step(without_offsets(result)) for setting, result in measured.items()}
    return Part([table(header, rows), *notes], figures, max(map(spread_of, measured.values())))


def record_note(seconds: float) -> str:
    """Sentence about the cost of a record."""
    microseconds = 1e6 * seconds
    return (
        f"A record of the small model costs {microseconds:.1f} us all told, in hooks, at the end of the step and on "
        f"the delivery thread (mean of {RECORD_STEPS} steps); aim <= {RECORD_AIM} us: "
        f"{verdict(RECORD_AIM, microseconds)}."
    )


def without_comparison(framework: str) -> list[str]:
    """Reason why no figure has the existing tool beside it, if there is one."""
    from _monitors import EXISTING_TOOL, has_existing_tool

    if framework == "mindspore":
        return [NO_COMPARISON]
    return [] if has_existing_tool() else [f"The existing tool ({EXISTING_TOOL}) is not installed here: no comparison."]


def spread_of(result: dict[str, Any]) -> float:
    """Spread of the plain step."""
    return spread(np.array(result["seconds"])[:, 0])


def without_offsets(result: dict[str, Any]) -> Array:
    """Seconds of each round and variant, less the difference between the variant's model and the plain one before
    anything was attached, which the location of a model's memory makes."""
    unwatched = np.array(result["unwatched"])
    offsets: Array = np.median(unwatched - unwatched[:, :1], axis=0)
    return np.array(result["seconds"]) - offsets


def setting_row(setting: str, result: dict[str, Any], framework: str) -> list[str]:
    """Row of the table of settings."""
    from _monitors import SENTINEL_AIMS, TARGETS, TARGETS_ALONE

    seconds = without_offsets(result)
    plain, added = float(np.median(seconds[:, 0])), difference(seconds, 1)
    row = [setting, milliseconds(plain), milliseconds(added), f"{added / plain:.1%}"]
    if setting in SENTINEL_AIMS:
        return [*row, "-", "-", sentinel_aim(seconds, SENTINEL_AIMS[setting])]
    if setting not in TARGETS:
        return [*row, "-", "-", "-"]
    if framework == "mindspore":
        aim = TARGETS_ALONE.get(setting)
        return [*row, "-", "-", f"<= {aim:.0%} of the step: {verdict_alone(seconds, aim)}" if aim else "-"]
    if len(result["variants"]) < 3:
        return [*row, "-", "-", f"<= {TARGETS[setting]:.3f}: not compared"]
    ratio, low, high = interval(lambda s: difference(s, 1) / difference(s, 2), seconds)
    compared, aim = f"{ratio:.3f} ({low:.3f} to {high:.3f})", TARGETS[setting]
    return [*row, milliseconds(difference(seconds, 2)), compared, f"<= {aim:.3f}: {verdict(aim, low, high)}"]


def disturbance(results: Iterable[dict[str, Any]]) -> str:
    """Sentence about rounds that count although other processes were busy; empty if there are none."""
    disturbed, number = np.sum([[result["disturbed"], len(result["seconds"])] for result in results], axis=0)
    return f" In {disturbed} of {number} rounds other processes were busy." if disturbed else ""


def unsampled_report(args: argparse.Namespace) -> Part:
    """Report of the cost of a step that is not sampled."""
    results = {interval: measure(args, "unsampled", str(interval)) for interval in UNSAMPLED}
    figures = {
        f"a step that is not sampled, interval {interval}, longer by": of_the_step(np.array(result["seconds"]))
        for interval, result in results.items()
    }
    sentences = [
        (
            f"With `step_interval` {interval}, {added:+.2%} ({low:+.2%} to {high:+.2%}), aim <= {100 * aim:g} %: "
            f"{verdict(aim, low, high)}."
        )
        for (interval, aim), (added, low, high) in zip(UNSAMPLED.items(), figures.values(), strict=True)
    ]
    plain = float(np.median(np.array(results[1000]["seconds"])[:, 0]))
    pairs = " and ".join(str(len(result["seconds"])) for result in results.values())
    note = (
        f"A step that is not sampled (everything switched on) takes longer than a plain step of {milliseconds(plain)} "
        f"by a part of it. {' '.join(sentences)} Medians of {pairs} pairs alternated in one process, the second "
        f"of nine steps each, with their {interval_name()}s.{disturbance(results.values())}"
    )
    return Part([note], figures, max(map(spread_of, results.values())))


def memory_report(args: argparse.Namespace) -> Part:
    """Report of the memory that weight gradients add to the peak."""
    from _monitors import has_existing_tool

    variants = MEMORY_VARIANTS[: 3 + (has_existing_tool() and args.framework == "pytorch")]
    runs = [{v: measure(args, "memory", v) for v in variants} for _ in range(args.memory_runs)]
    places = ["host", *["device"] * args.device.startswith("cuda")]
    peaks = {(v, place): float(np.median([run[v][place] for run in runs])) for v in variants for place in places}
    rows = [
        [f"{variant} ({place})", f"{peaks[variant, place] / 2**20:.1f} MiB", _more(peaks, variant, place)]
        for place in places
        for variant in variants
    ]
    hosts = np.array([[run["probe"]["host"], run["probe imported"]["host"]] for run in runs])
    more = interval(lambda s: np.median(s[..., 0], axis=-1) / np.median(s[..., 1], axis=-1) - 1, hosts)
    added, low, high = more
    note = (
        f"Peak memory of a process that trains {MEMORY_STEPS} steps; medians of {args.memory_runs} processes each. "
        f"Weight gradients add {added:+.2%} ({low:+.2%} to {high:+.2%}) on the host to a process that has imported "
        f"probe; aim <= {100 * MEMORY_AIM:g} %: {verdict(MEMORY_AIM, low, high)}."
    )
    paragraphs = [table(["weight gradients", "peak", "against plain"], rows), note]
    return Part(paragraphs, {"memory of weight gradients": more})


def _more(peaks: dict[tuple[str, str], float], variant: str, place: str) -> str:
    return f"{peaks[variant, place] / peaks['plain', place] - 1:+.2%}"


def interval_name() -> str:
    """Name of the figures in brackets."""
    from _report import CONFIDENCE

    return f"{CONFIDENCE} % bootstrap interval"


def main() -> None:
    parser = arguments(__doc__, rounds=30)
    parser.add_argument("--block", type=int, default=3, help="steps in one turn")
    parser.add_argument("--pairs", type=int, default=300, help="pairs for the step that is not sampled")
    parser.add_argument("--memory-runs", type=int, default=5, help="processes for each figure of memory")
    parser.add_argument("--framework", choices=["pytorch", "mindspore"], default="pytorch", help="framework")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--only", nargs="*", help="settings, or unsampled, or memory; if left out, all but those of the large model"
    )
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        return run_case(args.case)
    from _monitors import EXTRAS, LARGE, SETTINGS

    only = args.only or [*SETTINGS, *EXTRAS, "unsampled", "memory"]
    if unknown := set(only) - {*SETTINGS, *EXTRAS, *LARGE, "unsampled", "memory"}:
        parser.error(f"--only: unknown: {', '.join(sorted(unknown))}")
    settings = [setting for setting in (*SETTINGS, *EXTRAS, *LARGE) if setting in only]
    parts = [settings_report(args, settings)] if settings else []
    parts += [unsampled_report(args)] if "unsampled" in only else []
    parts += [memory_report(args)] if "memory" in only else []
    title = "What watching costs a step" + " on MindSpore" * (args.framework == "mindspore")
    framework = {"pytorch": "torch"}.get(args.framework, args.framework)
    return publish_parts(title, [Part([WHAT], {}), *parts], args.output, framework)


WHAT = (
    "A GPT of 12 layers and width 256 with 149 parameter tensors (the small model: 4 layers of width 128; the tiny "
    "one: 2 of width 48 on one thread, in turns of 50 steps, processor time of all threads), batch 4 x 128 tokens, "
    "AdamW, 2 CPU threads; ops min, max, mean, norm and nans, CSV files, no alerts, unless a row names something else."
)
NO_COMPARISON = (
    "No comparison: in this setting the existing tool (mindstudio-probe 26.2.0) ends training. It cannot listen to an "
    "optimizer that MindSpore compiles, such as `nn.AdamWeightDecay`; with `experimental.optim.AdamW` weight gradients "
    "and optimizer state stop at an operator that the CPU lacks, and activations run, but with values in wrong columns."
)

if __name__ == "__main__":
    main()
