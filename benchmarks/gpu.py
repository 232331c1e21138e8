"""Measurements and checks on a GPU in less than fifteen minutes: ``python benchmarks/gpu.py``.

Each part runs in a process of its own within a time limit, and its rows are written at once to
``benchmarks/gpu/{device}.json`` and, as tables, to ``benchmarks/gpu/{device}.md``: what was measured before a limit or
a failure is kept. Without a device the kernels run by Triton's interpreter at small sizes, and parts that need a device
state why they did not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from _history import commit, processor

TOTAL = 840.0
"""Seconds for all parts together."""
HERE = Path(__file__).parent
INTERPRETER = "TRITON_INTERPRET"
Row = list[Any]
"""Texts and numbers of one line of a table."""


class Section(NamedTuple):
    """Part of the measurements."""

    title: str
    limit: float
    """Seconds."""
    module: str
    function: str
    """Generator of the rows, the header first; it takes the title."""
    device: bool = True
    """Whether it needs a device."""
    compiles: bool = False
    """Whether it compiles the kernels, which their interpreter prevents."""


KERNELS, TRAINING = "_gpu_kernels", "_gpu_training"
SETTINGS = ("weight gradients", "parameters", "optimizer state", "activations", "everything")
LARGE = tuple(f"{setting}, large model" for setting in ("sentinel", *SETTINGS[:2]))
SECTIONS = {
    "versions": Section("Versions", 10, KERNELS, "versions", device=False),
    "code": Section("The kernels as machine code", 40, KERNELS, "code", device=False, compiles=True),
    "tests": Section("Tests of the kernels", 60, KERNELS, "tests", device=False),
    "reading": Section("Bandwidth of a plain read", 15, KERNELS, "reading"),
    "moments": Section("Moments against reading the bytes once", 90, KERNELS, "moments", device=False),
    "calls": Section("The host's time for a call, and launches", 15, KERNELS, "calls"),
    "sweep": Section("Chunks, lanes and warps", 45, KERNELS, "sweep", device=False),
    "waits": Section("Waits for the device in a sampled step", 60, TRAINING, "waits"),
    "graphs": Section("Training steps in a CUDA graph", 30, TRAINING, "graphs"),
    "compiled": Section('`compiled: "record"` with `reduce-overhead`', 45, TRAINING, "compiled"),
    **{setting.replace(" ", "-"): Section(setting, 20, TRAINING, "overhead") for setting in SETTINGS},
    "unsampled": Section("unsampled", 25, TRAINING, "overhead"),
    "sentinel": Section("sentinel", 40, TRAINING, "overhead"),
    "sentinel-tiny": Section("sentinel, tiny model", 40, TRAINING, "overhead"),
    "faults": Section("Public faults, trained on the device", 100, TRAINING, "faults"),
    "training": Section("Tests of training, on the device", 60, TRAINING, "tests"),
    **{f"large-{n}": Section(setting, 20, TRAINING, "overhead") for n, setting in enumerate(LARGE)},
}
assert sum(section.limit for section in SECTIONS.values()) <= TOTAL


# In the processes that measure.


def run_part(section: Section, file: Path) -> None:
    """Write the rows of one part to ``file``, each as soon as it is there."""
    rows = list[Row]()
    for row in getattr(import_module(section.module), section.function)(section.title):
        rows.append(row)
        whole = file.with_suffix(".part")
        whole.write_text(json.dumps(rows), encoding="utf-8")
        whole.replace(file)


# In the process that asks.


def absence() -> str:
    """Reason why there is no device; empty if there is one."""
    try:
        torch = import_module("torch")
    except ImportError as error:
        return f"{error} (make venv)"
    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "torch.cuda.is_available() is False: no device, or no driver for it"


def measured(name: str, absent: str, seconds: float) -> dict[str, Any]:
    """Run one part for at most ``seconds``; return its status and its rows."""
    section = SECTIONS[name]
    about: dict[str, Any] = {"title": section.title, "limit": section.limit, "rows": []}
    if absent and section.device:
        return {**about, "status": "no device", "reason": absent, "seconds": 0.0}
    environment = dict(os.environ)
    environment.pop(INTERPRETER, None)
    if absent and not section.compiles:
        environment[INTERPRETER] = "1"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder, "rows.json"), Path(folder, "log")
        command = [sys.executable, __file__, "--part", name, "--rows", str(file)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=hasattr(os, "setsid")
            )
            status = ended(process, seconds)
        if file.exists():
            about["rows"] = json.loads(file.read_text(encoding="utf-8"))
        reason = "" if status == "done" else log.read_text(encoding="utf-8", errors="replace").strip()[-1500:]
    return {**about, "status": status, "reason": reason, "seconds": round(time.monotonic() - began, 1)}


def ended(process: subprocess.Popen[bytes], seconds: float) -> str:
    """Wait for a part and end it, with the processes that it started, at its limit; return its status."""
    try:
        code = process.wait(timeout=seconds)
        return "done" if code == 0 else f"failed with {code}"
    except subprocess.TimeoutExpired:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, 9)  # it is the leader of its group
        process.kill()
        process.wait()
        return f"stopped after {seconds:.0f} s"


def tables(result: Mapping[str, Any]) -> str:
    """Return the whole result in Markdown."""
    lines = [f"### {result['device']}", f"{result['time']}, commit {result['commit']}, {result['processor']}."]
    for part in result["parts"].values():
        reason = f": {' '.join(part['reason'].split())[-300:]}" if part["reason"] else ""
        lines.append(f"**{part['title']}** ({part['seconds']:g} s): {part['status']}{reason}")
        if part["rows"]:
            header, *rows = [[_cell(value) for value in row] for row in part["rows"]]
            rule = ["---", *["---:"] * (len(header) - 1)]
            lines.append("\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows]))
    return "\n\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/")


def device_name(absent: str) -> str:
    """Return the name of the device."""
    return "no device (Triton's interpreter)" if absent else str(import_module("torch").cuda.get_device_name())


def measure(names: list[str], folder: Path, total: float) -> dict[str, Any]:
    """Measure the parts one after the other, and write the result after each."""
    absent = absence()
    device = device_name(absent)
    head, changed = commit()
    result: dict[str, Any] = {
        "device": device,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": head + " with changes" * changed,
        "processor": processor(),
        "parts": {},
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{re.sub(r'[^a-z0-9]+', '-', device.lower()).strip('-')}.json"
    began = time.monotonic()
    for name in names:
        left = total - (time.monotonic() - began)
        if left < 1:
            part = {"title": SECTIONS[name].title, "limit": SECTIONS[name].limit, "rows": [], "seconds": 0.0}
            result["parts"][name] = {**part, "status": "not begun", "reason": f"all parts together take {total:g} s"}
        else:
            result["parts"][name] = measured(name, absent, min(left, SECTIONS[name].limit))
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        file.with_suffix(".md").write_text(tables(result), encoding="utf-8")
        print(f"{name}: {result['parts'][name]['status']}", file=sys.stderr, flush=True)
    return result


def main() -> None:
    """Measure, print the tables, and exit with 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=list(SECTIONS), help="parts to run")
    parser.add_argument("--output", type=Path, default=HERE / "gpu", help="directory of the results")
    parser.add_argument("--seconds", type=float, default=TOTAL, help="time for all parts together")
    parser.add_argument("--part", choices=SECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        return run_part(SECTIONS[args.part], args.rows)
    result = measure(args.only, args.output, args.seconds)
    print(tables(result))
    return sys.exit(any(part["status"] not in ("done", "no device") for part in result["parts"].values()))


if __name__ == "__main__":
    main()
