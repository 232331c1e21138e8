"""Log parser on generated logs: megabytes a second on one core, and the largest memory.

The log is that of one long run: mostly lines of loaders, NCCL and caches without numbers of training, and among them
iteration lines, progress bars, warnings and a few failures. The shares are printed. The processor time of a process
that runs `probe logs parse` and writes to /dev/null counts, the start of Python included.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from _report import arguments, publish, table, verdict

ROOT = Path(__file__).parents[1]
AIM_RATE, AIM_MEMORY = 50.0, 64.0
"""Megabytes a second and core; MiB."""
PIECE = 8_000_000
"""Bytes that are made; a log repeats them."""
START = """
import atexit, sys
from probe.cli import main

def peak():
    lines = open("/proc/self/status").read().splitlines()
    print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))

atexit.register(peak)
sys.argv = ["probe", "logs", "parse", *sys.argv[1:]]
main()
"""
WITHOUT_RE2 = "import sys\nsys.modules['re2'] = None\n" + START

ITERATION = (
    " [{time}] iteration {n:8d}/  500000 | consumed samples: {n:12d} | elapsed time per iteration (ms): {r:.1f} | "
    "throughput per GPU (TFLOP/s/GPU): 23{r:.1f} | learning rate: {r:.6E} | global batch size:   128 | "
    "lm loss: {r:.6E} | loss scale: 1.0 | grad norm: {r:.3f} | num zeros: 0.0 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |"
)
MIX = {
    "loader": (
        0.4,
        "{time},123 INFO data.shards: prefetched /data/corpus/part-{n:05d}.tar in {r:.3f} s (queue depth {k})",
    ),
    "NCCL": (0.3, "node{k}:534:1791 [{k}] NCCL INFO Channel {k:02d}/0 : {k}[{k}] -> 1[1] via P2P/CUMEM/read"),
    "other": (0.24, "{time},456 DEBUG cache.blocks: block {n} of layer {k} moved to slot {n}; {k} free"),
    "iteration": (0.03, ITERATION),
    "progress bar": (0.015, "\r {k:2d}%|####      | {n}/500000 [11:49:53<88:41:03,  {r:.2f}s/it]"),
    "warning": (0.01, "{time},789 WARNING data.workers: worker {k} waited {r:.1f} s"),
    "dictionary": (
        0.0049,
        "{{'loss': '{r:.4g}', 'grad_norm': '{r:.4g}', 'learning_rate': '1e-05', 'epoch': '{r:.4g}'}}",
    ),
    "failure": (0.0001, "[rank{k}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
}
"""Shares of lines, and their forms."""
ALONE = {"iteration": (1.0, ITERATION)}
PLAIN = {name: MIX[name] for name in ("loader", "NCCL", "other")}


def lines(mix: dict[str, tuple[float, str]]) -> Iterator[str]:
    """Yield lines of a mix, the same at every call."""
    generator, number = random.Random(1), 0
    shares, forms = zip(*mix.values(), strict=True)
    while True:
        for form in generator.choices(forms, shares, k=1000):
            number += 1
            clock = f"{number // 36_000 % 24:02d}:{number // 600 % 60:02d}:{number // 10 % 60:02d}"
            yield form.format(time=f"2024-01-15 {clock}", n=number, r=1 + generator.random(), k=generator.randrange(8))


def write(path: Path, content_of: Iterator[str], size: int) -> None:
    """Write a log of about ``size`` bytes."""
    piece, length = [], 0
    for line in content_of:
        piece.append(line)
        length += len(line) + 1
        if length >= min(size, PIECE):
            break
    content = ("\n".join(piece) + "\n").encode()
    with path.open("wb") as file:
        for _ in range(max(1, size // len(content))):
            file.write(content)


def measured(code: str, path: Path, *options: str) -> tuple[float, float]:
    """Megabytes a second of processor time, and the largest memory in MiB."""
    command = [sys.executable, "-c", code, str(path), "--output", "/dev/null", "--no-summary", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    memory = int(process.stdout.read()) / 1024
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1)
    return path.stat().st_size / 1e6 / (used.ru_utime + used.ru_stime), memory


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--megabytes", type=int, default=500, help="size of the mixed log")
    args = parser.parse_args()
    rows, missed = [], False
    with tempfile.TemporaryDirectory() as folder:
        mix, part, steps, plain = (Path(folder) / f"{name}.log" for name in ("mix", "part", "steps", "plain"))
        write(mix, lines(MIX), args.megabytes * 1_000_000)
        write(part, lines(MIX), args.megabytes * 100_000)
        write(steps, lines(ALONE), args.megabytes * 100_000)
        write(plain, lines(PLAIN), args.megabytes * 100_000)
        cases = (
            (f"the mix, {args.megabytes} MB", START, mix, (), True),
            (f"the mix, {args.megabytes // 10} MB, every line written (--all)", START, part, ("--all",), False),
            (f"the mix, {args.megabytes // 10} MB, Python's expressions alone", WITHOUT_RE2, part, (), False),
            (f"lines without numbers of training alone, {args.megabytes // 10} MB", START, plain, (), False),
            (f"iteration lines alone, {args.megabytes // 10} MB", START, steps, (), False),
        )
        for name, code, path, options, judged in cases:
            found = np.array([measured(code, path, *options) for _ in range(args.rounds)])
            rate, memory = float(np.median(found[:, 0])), float(found[:, 1].max())
            verdicts = verdict(AIM_MEMORY, memory), verdict(1, AIM_RATE / rate) if judged else "not compared"
            missed |= "MISSED" in verdicts
            rows.append([name, f"{rate:.0f}: {verdicts[1]}", f"{memory:.0f}: {verdicts[0]}"])
    shares = ", ".join(f"{name} {100 * share:g} %" for name, (share, _) in MIX.items())
    note = f"Lines of the mix: {shares}. Median of {args.rounds} runs, processor time of the whole command."
    header = ["log", f"MB a second and core, aim >= {AIM_RATE:g}", f"largest memory in MiB, aim <= {AIM_MEMORY:g}"]
    publish("Log parser", [note, table(header, rows)], args.output)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
