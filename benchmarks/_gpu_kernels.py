"""Parts of ``gpu.py`` about the kernels: each function yields the rows of a table, the header first.

Without a device the kernels run by Triton's interpreter on small tensors: then rows have no times, only agreement with
the host's reductions.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _gpt import GPT

from probe.core.moments import MOMENTS, columns_for

Row = list[Any]
ROOT = Path(__file__).parents[1]
HERE = torch.cuda.is_available()
DEVICE = "cuda" if HERE else "cpu"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = 1e-8
OPS = {
    "min max mean norm nans": ("min", "max", "mean", "norm", "nans"),
    "the same and zeros": ("min", "max", "mean", "norm", "nans", "zeros"),
    "the same and std": ("min", "max", "mean", "norm", "nans", "std"),
}
FUSED = columns_for(OPS["min max mean norm nans"])
REPEATS = 20
"""Calls between two events on the device."""
WITHOUT = "-"


def versions(_: str) -> Iterator[Row]:
    """Yield the versions of everything that figures depend on, and the device."""
    yield ["", "version"]
    yield ["Python", platform.python_version()]
    for name in ("torch", "triton", "numpy"):
        try:
            yield [name, importlib.metadata.version(name)]
        except importlib.metadata.PackageNotFoundError:
            yield [name, "not installed"]
    yield ["CUDA of torch", torch.version.cuda or "none"]
    yield ["kernels run by", "the device" if HERE else "Triton's interpreter"]
    if HERE:
        about = torch.cuda.get_device_properties(0)
        yield ["device", about.name]
        yield ["compute capability", f"{about.major}.{about.minor}"]
        yield ["multiprocessors", about.multi_processor_count]
        yield ["memory in GiB", round(about.total_memory / 2**30, 1)]
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            yield ["driver", subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()]
        except (OSError, subprocess.CalledProcessError) as error:
            yield ["driver", str(error)]


def code(_: str) -> Iterator[Row]:
    """Compile the kernels, for compute capability 9.0 if there is no device; yield registers and the widest load."""
    import triton
    from triton.backends.compiler import GPUTarget

    from probe.pytorch import triton_moments as kernels

    major, minor = torch.cuda.get_device_capability() if HERE else (9, 0)
    target = GPUTarget("cuda", 10 * major + minor, 32)
    yield [f"compute capability {major}.{minor}", "registers", "bytes spilled", "widest load in bits"]
    for title, kernel, signature, constants, warps in _kernels(kernels):
        types = {name: "constexpr" if name in constants else signature[name] for name in kernel.arg_names}
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        whole = [["tt.divisibility", 16]]
        attributes = {(kernel.arg_names.index(name),): whole for name in ("start", "chunk") if name in types}
        source = triton.compiler.ASTSource(kernel, types, places, attributes)
        compiled = triton.compile(source, target=target, options={"num_warps": warps})
        yield [title, *_resources(compiled.asm["cubin"]), _widest_load(compiled.asm["ptx"])]


def _kernels(kernels: Any) -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], int]]:
    import triton.language as tl

    from probe.pytorch import triton_kernels

    flags = sum(1 << place for place, name in enumerate(MOMENTS) if name in FUSED)
    everything = (1 << len(MOMENTS)) - 1
    table = {"table": "*i64", "eps_at": "*fp64", "partial": "*fp64", "result": "*fp64", "out": "*fp64"}
    shared = {**table, "count": "i64", "chunk": "i32", "chunks": "i32"}
    for title, wanted, wide in (("five moments", flags, False), ("all moments", everything, True)):
        for dtype, name in ((tl.float32, "fp32"), (tl.bfloat16, "bf16")):
            constants = {"wanted": wanted, "wide": wide, "block": kernels.BLOCK}
            one = {**constants, "alone": False}
            several = {**constants, "dtype": dtype, "aligned": True}
            yield (
                f"{title} of {name}, one tensor",
                triton_kernels.reduce_one,
                {**shared, "start": f"*{name}"},
                one,
                kernels.WARPS,
            )
            yield f"{title} of {name}, several", triton_kernels.reduce, shared, several, kernels.WARPS
    merged = {"wanted": flags, "block": 128}
    yield "chunks of one tensor", triton_kernels.merge_one, shared, merged, 4
    yield "chunks of several", triton_kernels.merge, shared, {**merged, "width": len(FUSED)}, 4


def _resources(cubin: bytes) -> Row:
    """Registers of a thread and spilled bytes, by the tool that Triton includes."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(program), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return [found["REG"], found["STACK"] + found["LOCAL"]]


def _widest_load(ptx: str) -> int:
    loads = re.findall(r"ld\.global\S*?(?:\.v(\d))?\.b(\d+)", ptx)
    return max((int(lanes or 1) * int(bits) for lanes, bits in loads), default=0)


def tests(_: str) -> Iterator[Row]:
    """Run the contract of moments on the kernels; without a device a part of it."""
    chosen = [] if HERE else ["-k", "below or limits or list or shards"]
    arguments = ["-n", "0", "tests/contract/test_moments.py", *chosen]
    yield from tested("the contract of moments", arguments, {"CONTRACT_OF": "kernels"})


def tested(title: str, arguments: Sequence[str], variables: Mapping[str, str]) -> Iterator[Row]:
    """Run tests of this repository; yield the closing line, and a line for each test that has failed."""
    yield ["", "result"]
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    environment = os.environ | {"PYTHONPATH": importable(ROOT), **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
    yield [title, lines[-1]]
    for line in [line for line in lines if line.startswith(("FAILED", "ERROR"))][:20]:
        yield ["", line]
    if done.returncode:
        raise SystemExit(lines[-1])


def importable(*folders: Path) -> str:
    """Return the path of modules with ``folders`` before those that it has."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH", "")]))


def reading(_: str) -> Iterator[Row]:
    """Yield the bandwidth of torch's own sum and of a copy."""
    yield ["bytes", "sum, GB/s", "copy, GB/s read and written"]
    for exponent in (22, 25, 28, 30):
        numbers = torch.ones(1 << (exponent - 2), device=DEVICE)
        copy = torch.empty_like(numbers)
        size = float(1 << exponent)
        copied = 2 * size / seconds_of(lambda numbers=numbers, copy=copy: copy.copy_(numbers)) / 1e9
        yield [f"2^{exponent}", size / seconds_of(numbers.sum) / 1e9, copied]


def seconds_of(run: Callable[[], Any]) -> float:
    """Measure the seconds on the device for one of several calls; median of five measurements."""
    run()
    found = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(REPEATS):
            run()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / 1e3 / REPEATS)
    return float(np.median(found))


def reduced(tensors: Sequence[torch.Tensor], columns: Sequence[str]) -> torch.Tensor:
    """Return the moments by the kernels, wherever they run."""
    from probe.pytorch import device_moments, triton_moments

    return device_moments.by_kernels(triton_moments, tensors, columns, EPS)


def agrees(tensors: Sequence[torch.Tensor], columns: Sequence[str]) -> str:
    """Compare with the host: extremes and counts exactly, norm and std to 1e-5, mean to 1e-5 of the RMS."""
    from probe.pytorch import host_moments

    got = reduced(tensors, columns).cpu().numpy()
    names = tuple(dict.fromkeys((*columns, "sumsq")))
    want = host_moments.moments([tensor.cpu() for tensor in tensors], names, EPS)
    counts = np.array([tensor.numel() for tensor in tensors])
    for place, name in enumerate(columns):
        room = np.zeros(len(counts))
        if name == "sum":
            room = 1e-5 * np.sqrt(want[:, names.index("sumsq")] * counts)
        if name in ("sumsq", "m2"):
            room = 2e-5 * np.abs(want[:, place])
        if not (np.abs(got[:, place] - want[:, place]) <= room).all():
            return f"no: {name}"
    return "yes"


def mixed() -> list[torch.Tensor]:
    """Make the 149 parameter tensors of the benchmarks' model, in three dtypes; a smaller model without a device."""
    model = GPT() if HERE else GPT(layers=1, width=16)
    return [
        parameter.detach().to(DEVICE, DTYPES[number % len(DTYPES)])
        for number, parameter in enumerate(model.parameters())
    ]


def moments(_: str) -> Iterator[Row]:
    """Yield times of the reduction and their ratio to torch's sum of as many bytes in one piece."""
    yield ["", "microseconds", "times the sum of the bytes", "agrees with the host"]
    torch.manual_seed(0)
    exponents = (12, 17, 20, 24, 27) if HERE else (5, 14)
    cases = {
        f"2^{exponent} x {_name(dtype)}": [torch.randn(1 << exponent, device=DEVICE).to(dtype)]
        for exponent in exponents
        for dtype in DTYPES
    }
    several = mixed()
    cases[f"{len(several)} tensors of three dtypes"] = several
    for case, tensors in cases.items():
        for title, ops in OPS.items():
            columns = columns_for(ops)
            yield [f"{case}: {title}", *times(tensors, columns), agrees(tensors, columns)]


def times(tensors: Sequence[torch.Tensor], columns: Sequence[str]) -> Row:
    """Microseconds of the reduction, and times those of reading; none without a device."""
    if not HERE:
        return [WITHOUT, WITHOUT]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    once = torch.ones(size // 4, device=DEVICE)
    took, read = seconds_of(lambda: reduced(tensors, columns)), seconds_of(once.sum)
    return [1e6 * took, took / read]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def calls(_: str) -> Iterator[Row]:
    """Yield the microseconds that a call takes the host, which does not wait, and what it launches."""
    from torch.profiler import ProfilerActivity, profile

    yield ["", "microseconds of the host", "launches", "copies", "waits"]
    cases = {
        "one tensor of 2^12": [torch.randn(1 << 12, device=DEVICE)],
        "one tensor of 2^17": [torch.randn(1 << 17, device=DEVICE)],
        "one tensor of 2^24": [torch.randn(1 << 24, device=DEVICE)],
        "149 tensors of float32": [each.float() for each in mixed()],
        "149 tensors of three dtypes": mixed(),
    }
    for case, tensors in cases.items():
        for _ in range(10):
            reduced(tensors, FUSED)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(200):
            reduced(tensors, FUSED)
        took = (time.perf_counter() - began) / 200
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            reduced(tensors, FUSED)
        names = [event.name for event in seen.events()]
        launches = sum("LaunchKernel" in name for name in names)
        copies, waits = sum("cudaMemcpy" in name for name in names), sum("Synchronize" in name for name in names)
        yield [case, 1e6 * took, launches, copies, max(waits - 1, 0)]  # the profiler waits once when it ends


def sweep(_: str) -> Iterator[Row]:
    """Yield the times for chunks, lanes and warps; those of the package come first."""
    from probe.pytorch import triton_moments as kernels

    yield ["largest chunk, lanes, warps", "one tensor, us", "many tensors, us", "agrees with the host"]
    one = [torch.randn(1 << 26 if HERE else 20_000, device=DEVICE)]
    several = [each.float() for each in mixed()]
    chosen = (kernels.LARGEST, kernels.BLOCK, kernels.WARPS)
    others = [(c, b, w) for c in (1 << 14, 1 << 15, 1 << 16) for b in (1 << 10, 1 << 11, 1 << 12) for w in (4, 8, 16)]
    for chunk, lanes, warps in [chosen, *others] if HERE else [chosen, *others[::9]]:
        if chunk > 64 * lanes:
            continue
        kernels.LARGEST, kernels.BLOCK, kernels.WARPS = chunk, lanes, warps
        took = [times(tensors, FUSED)[0] for tensors in (one, several)]
        answers = {agrees(tensors, FUSED) for tensors in (one, several)}
        yield [f"{chunk}, {lanes}, {warps}", *took, "yes" if answers == {"yes"} else ", ".join(sorted(answers))]
