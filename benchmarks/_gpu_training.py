"""Parts of ``gpu.py`` about a watched training on a device: each function yields the rows of a table, header first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from _gpt import Training
from _gpu_kernels import tested
from _monitors import SENTINEL, SETTINGS, attach_probe, configuration

Row = list[Any]
STEPS = 4


def overhead(title: str) -> Iterator[Row]:
    """Run one case of ``overhead.py``; yield its figures."""
    yield ["fraction of the plain step", "figure", "from", "to"]
    steps = "20" if title.startswith(SENTINEL) else "3"
    sizes = ["--rounds", "6", "--block", steps, "--pairs", "60", "--threads", "8"]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(__file__).with_name("overhead.py")
        command = [sys.executable, str(script), "--device", "cuda", "--only", title, *sizes, "--output", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        result = json.loads(Path(folder, "overhead.json").read_text(encoding="utf-8"))
    for name, figure in result["figures"].items():
        yield [name, *figure]
    yield ["quartiles of the plain step apart by", result["spread"], "", ""]


def waits(_: str) -> Iterator[Row]:
    """Let torch raise where the host waits for the device in a sampled step; then count the waits of such a step."""
    yield ["", "raised in the step", "faults of the monitor", "waits until all is written"]
    for name in (None, SENTINEL, *SETTINGS):
        training = Training("cuda")
        with tempfile.TemporaryDirectory() as folder:
            monitor = attach_probe(training, configuration(name), Path(folder)) if name else None
            for _ in range(STEPS):
                training.step()
            torch.cuda.synchronize()
            raised = _raised(training)
            if monitor is not None:
                monitor.flush()
            counted = _waits(training, monitor)
            faults = dict(monitor.faults) if monitor is not None else {}
            if monitor is not None:
                monitor.stop()
            yield [name or "plain", raised or "nothing", json.dumps(faults) if faults else "none", counted]


def _raised(training: Training) -> str:
    torch.cuda.set_sync_debug_mode("error")
    try:
        training.step()
    except RuntimeError as error:
        return str(error).splitlines()[0][:120]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


def _waits(training: Training, monitor: Any) -> int:
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        training.step()
        if monitor is not None:
            monitor.flush()
    names = [event.name for event in seen.events()]
    return max(sum("Synchronize" in name for name in names) - 1, 0)  # the profiler waits once when it ends


def graphs(_: str) -> Iterator[Row]:
    """Capture a watched training step and replay it; compare the weights with those of an unwatched one."""
    yield ["", "captured", "faults of the monitor", "weights as unwatched"]
    with tempfile.TemporaryDirectory() as folder:
        plain, watched = _capturable(), _capturable()
        monitor = attach_probe(watched, configuration("everything", sentinel={"enable": True}), Path(folder))
        captured = {"plain": _replayed(plain), "everything": _replayed(watched)}
        torch.cuda.synchronize()
        monitor.flush()
        faults = dict(monitor.faults)
        monitor.stop()
    equal = all(map(torch.equal, plain.model.parameters(), watched.model.parameters()))
    yield ["plain", captured["plain"], "-", "-"]
    yield ["everything", captured["everything"], json.dumps(faults) if faults else "none", "yes" if equal else "NO"]


def _capturable() -> Training:
    training = Training("cuda")
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-4, capturable=True)
    return training


def _replayed(training: Training) -> str:
    """Capture a step after three others, on a stream of its own as capture asks for, and replay it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            training.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            training.step()
    except RuntimeError as error:
        return f"NO: {str(error).splitlines()[0][:120]}"
    for _ in range(STEPS):
        graph.replay()
    return "yes"


def compiled(_: str) -> Iterator[Row]:
    """Train a compiled model with CUDA graphs, unwatched and watched inside."""
    yield ["", "milliseconds a step", "files with rows", "faults of the monitor", "weights as unwatched"]
    plain, watched = Training("cuda", layers=2), Training("cuda", layers=2)
    yield ["plain", 1e3 * _compiled_step(plain), "-", "-", "-"]
    with tempfile.TemporaryDirectory() as folder:
        monitor = attach_probe(watched, configuration("everything", compiled="record"), Path(folder))
        seconds = _compiled_step(watched)
        monitor.flush()
        files = sum(len(files) for *_, files in os.walk(folder))
        faults = dict(monitor.faults)
        monitor.stop()
    close = all(
        torch.allclose(one, other, atol=1e-6)
        for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True)
    )
    yield ["everything", 1e3 * seconds, files, json.dumps(faults) if faults else "none", "yes" if close else "NO"]


def _compiled_step(training: Training) -> float:
    """Compile the model where it is; return the seconds a step after the first ones."""
    training.model.compile(mode="reduce-overhead")
    for _ in range(STEPS):
        training.step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        training.step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / STEPS


def faults(_: str) -> Iterator[Row]:
    """Train the cases of ``finding.py`` on the device, watched by ``probe run``."""
    yield ["case", "label", "found", "place right", "step right", "healthy twin with a warning"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "faults.json")
        options = ["--seeds", "0", "--jobs", str(os.cpu_count()), "--limit", "60", "--device", "cuda"]
        command = [sys.executable, str(Path(__file__).with_name("finding.py")), *options, "--json", str(file)]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        result = json.loads(file.read_text(encoding="utf-8"))
    for name, case in result["cases"].items():
        verdicts = ("yes" if case[key] else "-" for key in ("found", "place", "step", "false_alarms"))
        yield [name, case["expected"]["label"], *verdicts]


def tests(_: str) -> Iterator[Row]:
    """Run tests of the sentinel, with every tensor on the device."""
    files = [f"tests/pytorch/{name}.py" for name in ("test_on_device", "test_sentinel_numbers", "test_loop_findings")]
    yield from tested("numbers and findings of the sentinel", ["-n", "8", "-p", "tests.on_device", *files], {})
