"""Speed of the fused reduction, against the sum of each tensor alone and against one op at a time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from _gpt import GPT
from _history import Figure
from _quiet import spread
from _report import Part, Rows, arguments, interval, merged, milliseconds, publish_parts, table, verdict

from probe.core.moments import columns_for
from probe.pytorch import tensors as reduction

OPS = ("min", "max", "mean", "norm", "nans")
EPS = 1e-8
ONE_BY_ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "min": torch.min,
    "max": torch.max,
    "mean": torch.mean,
    "norm": torch.norm,
    "nans": lambda x: torch.isnan(x).sum(),
}
FUSED = " ".join(OPS)
ZEROS, STD = "the same and zeros", "the same and std"
AIMS, AIM_ON_DEVICE = {FUSED: 1.1, ZEROS: 1.2, STD: 1.5}, 1.5
"""Largest ratios of the time of these ops to the reference: on the host for 149 tensors of float32."""
Measured = dict[str, Callable[[], object]]


def many(number: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Weight-like tensors: those of the benchmarks' GPT, or of a deep and narrow one with ``number`` tensors."""
    size = {} if number == 149 else {"layers": -(-number // 12), "width": 64}
    with torch.device("meta"):
        shapes = [tuple(parameter.shape) for parameter in GPT(**size).parameters()][:number]
    assert len(shapes) == number, f"expected {number} tensors, the model has {len(shapes)}"
    torch.manual_seed(0)
    return [(0.02 * torch.randn(shape)).to(device, dtype) for shape in shapes]


def contestants(tensors: list[torch.Tensor]) -> Measured:
    """Contestants, the reference first; each returns when it is computed on the host, or launched on a device."""

    def fused(*ops: str) -> Callable[[], object]:
        return lambda: reduction.moments(tensors, columns_for(ops), EPS)

    return {
        "sum of each tensor": lambda: [x.sum() for x in tensors],
        FUSED: fused(*OPS),
        ZEROS: fused(*OPS, "zeros"),
        STD: fused(*OPS, "std"),
        "one op at a time": lambda: [op(x) for x in tensors for op in ONE_BY_ONE.values()],
    }


def turns(
    measured: Measured, rounds: int, seconds_of: Callable[[Callable[[], object]], float]
) -> dict[str, list[float]]:
    """Measure the seconds of each, round by round, so that all run on the same machine state; each round has another
    order, since each finds what the one before has left in the caches and threads that still wait for work."""
    for run in measured.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in measured}
    order = np.random.default_rng(0)
    for _ in range(rounds):
        for name in order.permutation(list(measured)):
            seconds[name].append(seconds_of(measured[name]))
    return seconds


def on_host(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def on_device(run: Callable[[], object]) -> float:
    """Measure the seconds between two events on the device, around all that ``run`` launches."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def against(seconds: dict[str, list[float]], name: str, other: str) -> float:
    """Median over rounds of the ratio of the times of ``name`` and ``other``."""
    return float(np.median(np.array(seconds[name]) / np.array(seconds[other])))


def host_rows(number: int, dtype: torch.dtype, rounds: int) -> Rows:
    """Lines of the contestants on the CPU, and the fused ones as figures."""
    measured = contestants(many(number, dtype, "cpu"))
    seconds = turns(measured, rounds, on_host)
    reference = next(iter(measured))
    of = f"{number} x {str(dtype).removeprefix('torch.')}"
    rows = [
        [f"{of}: {name}", milliseconds(float(np.median(seconds[name]))), f"{against(seconds, name, reference):.2f}"]
        for name in measured
    ]
    fused = list(measured)[1:-1]
    figures = {f"{of}: {name}, times the sum": ratio(seconds[name], seconds[reference]) for name in fused}
    return Rows(rows, figures, spread(np.array(seconds[reference])))


def ratio(seconds: list[float], reference: list[float]) -> Figure:
    """Median over rounds of a ratio of times, with its interval."""
    return interval(lambda s: np.median(s[..., 0] / s[..., 1], axis=-1), np.array([seconds, reference]).T)


def device_rows(number: int, dtype: torch.dtype, rounds: int) -> list[list[str]]:
    """Lines of the contestants on the GPU; the reference is one pass over as many bytes in one piece."""
    tensors = many(number, dtype, "cuda")
    flat = torch.cat([x.flatten() for x in tensors])
    measured = {"reading the bytes once": flat.sum, **contestants(tensors)}
    seconds = turns(measured, rounds, on_device)
    return [
        [
            f"{number} x {str(dtype).removeprefix('torch.')}: {name}",
            milliseconds(float(np.median(seconds[name]))),
            f"{against(seconds, name, 'reading the bytes once'):.2f}",
            *map(str, launches(run)),
        ]
        for name, run in measured.items()
    ]


def launches(run: Callable[[], object]) -> tuple[int, int]:
    """Kernels that ``run`` launches, and times that it waits for the device."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        run()
    names = [event.name for event in profile.events()]
    torch.cuda.synchronize()
    kernels = sum("LaunchKernel" in name for name in names)
    # The profiler itself waits once when it ends.
    return kernels, max(sum("Synchronize" in name for name in names) - 1, 0)


def fused(row: list[str]) -> bool:
    """Return whether a row of a table is about the fused reduction, to which the aim applies."""
    return row[0].endswith(f": {FUSED}")


def aims(figures: Mapping[str, Figure]) -> str:
    """Sentence that judges the aims of 149 tensors of float32."""
    judged = []
    for name, aim in AIMS.items():
        found, low, high = figures[f"149 x float32: {name}, times the sum"]
        judged.append(
            f"{name}: {found:.2f} times the sum ({low:.2f} to {high:.2f}), aim <= {aim:g}: {verdict(aim, low, high)}"
        )
    return f"149 x float32: {'; '.join(judged)}."


def largest(rows: list[list[str]]) -> float:
    """Largest ratio of the times of the fused reduction and the reference."""
    return max(float(row[2]) for row in rows if fused(row))


def launch_counts(rows: list[list[str]]) -> int:
    """Largest number of different launch counts of the fused reduction for tensors of one dtype."""
    counts: dict[str, set[str]] = {}
    for row in filter(fused, rows):
        counts.setdefault(row[0].split(" x ")[1], set()).add(row[3])
    return max(map(len, counts.values()))


def report(args: argparse.Namespace, numbers: Sequence[int]) -> Part:
    """Report for this machine."""
    cases = [(number, dtype) for dtype in (torch.float32, torch.bfloat16) for number in numbers]
    host = merged([host_rows(*case, args.rounds) for case in cases])
    paragraphs = [
        (
            f"Medians of {args.rounds} rounds on {args.threads} CPU threads: 149 tensors of a GPT of width 256, "
            "2,000 of one of width 64."
        ),
        table(["CPU", "time", "times the sum"], host.rows),
        aims(host.figures),
    ]
    if torch.cuda.is_available():
        rows = [row for case in cases for row in device_rows(*case, args.rounds)]
        header = [torch.cuda.get_device_name(), "time", "times reading once", "launches", "waits"]
        paragraphs += [
            table(header, rows),
            (
                f"Aim: within 1.5 times reading once: {verdict(AIM_ON_DEVICE, largest(rows))}; "
                f"launches independent of the tensors' number: {verdict(1, launch_counts(rows))}."
            ),
        ]
    return Part(paragraphs, host.figures, host.spread)


def main() -> None:
    args = arguments(__doc__, rounds=30).parse_args()
    torch.set_num_threads(args.threads)
    publish_parts("The reduction alone", [report(args, (149, 2000))], args.output)


if __name__ == "__main__":
    main()
