"""Log parser on generated logs: megabytes a second on one core, and the largest memory.

The log is that of one long run: mostly lines of loaders, NCCL and schedulers without numbers of training, and among them
iteration lines, progress bars, warnings and a few failures. The shares are printed. Processor time counts, of a process
that runs `probe logs parse` and writes to /dev/null; starting Python is included.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from _report import arguments, publish, table, verdict

ROOT = Path(__file__).parents[1]
AIM_RATE, AIM_MEMORY = 50.0, 64.0
"""Megabytes a second and core; MiB."""
PIECE = 8_000_000
"""Bytes that are made; a log repeats them."""
START = "from probe.cli import main\nimport sys\nsys.argv = ['probe', 'logs', 'parse', *sys.argv[1:]]\nmain()"
WITHOUT_RE2 = "import sys\nsys.modules['re2'] = None\n" + START

Make = Callable[[int, random.Random], str]


def time_at(number: int) -> str:
    """Time of a line."""
    return f"2024-01-{1 + number // 864_000 % 28:02d} {number // 36_000 % 24:02d}:{number // 600 % 60:02d}:{number // 10 % 60:02d}"


def iteration(n: int, r: random.Random) -> str:
    """Line of Megatron-LM."""
    return (
        f" [{time_at(n)}] iteration {n:8d}/  500000 | consumed samples: {128 * n:12d} | elapsed time per iteration (ms): "
        f"{5000 + r.random() * 900:.1f} | throughput per GPU (TFLOP/s/GPU): {230 + r.random() * 9:.1f} | learning rate: "
        f"{r.random() / 1e5:.6E} | global batch size:   128 | lm loss: {2 + r.random():.6E} | loss scale: 1.0 | grad norm: "
        f"{1 + r.random():.3f} | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


MIX: tuple[tuple[float, str, Make], ...] = (
    (0.400, "loader", lambda n, r: f"{time_at(n)},123 INFO data.shards: prefetched shard {n:05d} of 04096 from "
     f"/data/corpus/part-{n:05d}.tar in {r.random():.3f} s (queue depth {r.randrange(16)})"),
    (0.300, "NCCL", lambda n, r: f"node{n % 8}:534:17{n % 100:02d} [{n % 8}] NCCL INFO Channel {n % 16:02d}/0 : {n % 8}[{n % 8}] -> "
     f"{(n + 1) % 8}[{(n + 1) % 8}] via P2P/CUMEM/read"),
    (0.240, "other", lambda n, r: f"{time_at(n)},456 DEBUG cache.blocks: block {n} of layer {n % 80} moved to slot "
     f"{r.randrange(9999)}; {r.randrange(999)} free"),
    (0.030, "iteration", iteration),
    (0.015, "progress bar", lambda n, r: f"\r {n % 100:2d}%|####      | {n}/500000 [11:49:53<88:41:03,  {1 + r.random():.2f}s/it]"),
    (0.010, "warning", lambda n, r: f"{time_at(n)},789 WARNING data.workers: worker {n % 8} waited {r.random():.1f} s"),
    (0.0049, "dictionary", lambda n, r: f"{{'loss': '{2 + r.random():.4g}', 'grad_norm': '1.2', 'learning_rate': '1e-05', 'epoch': '0.1'}}"),
    (0.0001, "failure", lambda n, r: f"[rank{n % 8}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
)  # fmt: skip
"""Shares of lines, names and makers."""


def mixed(generator: random.Random) -> Iterator[str]:
    """Yield lines of the mix."""
    makers, shares = [make for _, _, make in MIX], [share for share, _, _ in MIX]
    number = 0
    while True:
        for make in generator.choices(makers, shares, k=1000):
            number += 1
            yield make(number, generator)


def iterations(generator: random.Random) -> Iterator[str]:
    """Yield iteration lines alone."""
    number = 0
    while True:
        number += 1
        yield iteration(number, generator)


def write(path: Path, lines: Iterator[str], size: int) -> None:
    """Write a log of about ``size`` bytes."""
    piece, length = [], 0
    for line in lines:
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
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1)
    memory = used.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    return path.stat().st_size / 1e6 / (used.ru_utime + used.ru_stime), memory


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--megabytes", type=int, default=500, help="size of the mixed log")
    args = parser.parse_args()
    assert resource.getrlimit(resource.RLIMIT_CPU)[0] == resource.RLIM_INFINITY
    rows, missed = [], False
    with tempfile.TemporaryDirectory() as folder:
        mix, part, steps = (Path(folder) / name for name in ("mix.log", "part.log", "steps.log"))
        write(mix, mixed(random.Random(1)), args.megabytes * 1_000_000)
        write(part, mixed(random.Random(1)), args.megabytes * 100_000)
        write(steps, iterations(random.Random(1)), args.megabytes * 100_000)
        cases = (
            (f"the mix, {args.megabytes} MB", START, mix, (), True),
            (f"the mix, {args.megabytes // 10} MB, every line written (--all)", START, part, ("--all",), False),
            (f"the mix, {args.megabytes // 10} MB, Python's expressions alone", WITHOUT_RE2, part, (), False),
            (f"iteration lines alone, {args.megabytes // 10} MB", START, steps, (), False),
        )
        for name, code, path, options, judged in cases:
            found = np.array([measured(code, path, *options) for _ in range(args.rounds)])
            rate, memory = float(np.median(found[:, 0])), float(found[:, 1].max())
            verdicts = verdict(AIM_MEMORY, memory), verdict(1, AIM_RATE / rate) if judged else "not compared"
            missed |= "MISSED" in verdicts
            rows.append([name, f"{rate:.0f}: {verdicts[1]}", f"{memory:.0f}: {verdicts[0]}"])
    shares = ", ".join(f"{name} {100 * share:g} %" for share, name, _ in MIX)
    note = f"Lines of the mix: {shares}. Median of {args.rounds} runs, processor time of the whole command."
    header = ["log", f"MB a second and core, aim >= {AIM_RATE:g}", f"largest memory in MiB, aim <= {AIM_MEMORY:g}"]
    publish("Log parser", [note, table(header, rows)], args.output)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
