"""Runs of a small made-up model, written as monitored ranks write them, for the tests of ``probe compare``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.backend.numpy_moments import moments
from probe.core.moments import columns_for
from probe.core.output.sinks.context import SinkContext
from probe.core.output.sinks.csv import CsvSink
from probe.core.records import Batch, Key, Snapshot
from probe.core.storage.run_directory import write_manifest

Array = npt.NDArray[np.float64]
OPS = ("min", "max", "mean", "norm", "zeros", "nans", "infs", "std")
MODULES = ("embedding", "layers.0.fc1", "layers.0.fc2", "layers.1.fc1", "layers.1.fc2", "head")
MICRO_STEPS = 2
STATE = "exp_avg"
WEIGHT, BIAS = (6, 4), (6,)


class Where(NamedTuple):
    """Key of a tensor of a run."""

    signal: str
    name: str
    step: int
    micro_step: int
    rank: int


Change = Callable[[Where, Array], Array | None]
"""Changed tensor; None to leave its row out."""


def same(_: Where, tensor: Array) -> Array:
    return tensor


def rounding(seed: int, unit: float = 1e-6) -> Change:
    """Each element off by up to ``unit`` of itself, as in a run on another machine."""

    def change(where: Where, tensor: Array) -> Array:
        random = np.random.default_rng([seed, *where.signal.encode(), *where.name.encode(), *where[2:]])
        return tensor * (1 + unit * random.uniform(-1, 1, tensor.shape))

    return change


def write_run(
    root: Path,
    change: Change = same,
    *,
    steps: Iterable[int] = range(6),
    ranks: Iterable[int] = (0,),
    rename: Mapping[str, str] | None = None,
    signals: Mapping[str, str] | None = None,
    dtype: str = "torch.float32",
    number: Callable[[int], int] = lambda step: step,
    steps_per_file: int = 4,
    ops: tuple[str, ...] = OPS,
    state: bool = False,
    **manifest: Any,
) -> Path:
    """Writes a run whose tensors follow from their names and steps alone, changed by ``change``.

    Args:
        rename: what modules are called instead.
        signals: what signals are called instead.
        number: what a step is called.
        state: whether there is that of the optimizer, too; each signal makes a comparison longer.
    """
    ranks = list(ranks)
    for rank in ranks:
        directory = root / f"Dec03_21-34-40-rank{rank}-0000000{rank}"
        about = {
            "rank": rank,
            "world_size": len(ranks),
            "framework": "pytorch",
            "start_time": "2025-12-03T21:34:40+0800",
        }
        directory.mkdir(parents=True)
        write_manifest(directory, {**about, "run": 0, "first_step": 0, **manifest})
        sink = CsvSink(SinkContext(directory, root, rank, steps_per_file=steps_per_file))
        sink.open()
        for step in steps:
            kept = {s: made for s, made in tensors(step, rank).items() if state or s != STATE}
            found = {s: _changed(s, step, rank, change, made) for s, made in kept.items()}
            batches = [_batch(s, step, made, rename or {}, dtype, ops) for s, made in found.items()]
            named = [_called(batch, signals or {}, number(step)) for batch in batches]
            sink.write(Snapshot(number(step), rank, 0.0, named, ops))
        sink.close()
    return root


@functools.cache
def tensors(step: int, rank: int) -> dict[str, dict[Key, Array]]:
    """Every tensor of a step, by signal, in the order of execution: made once for all runs, which leave it as it is."""

    def draw(signal: str, name: str, shape: tuple[int, ...], *more: int) -> Array:
        return np.random.default_rng([*signal.encode(), *name.encode(), step, *more]).normal(0.1, 1, shape)

    parameters = {
        f"{module}.{kind}": shape for module in MODULES for kind, shape in (("weight", WEIGHT), ("bias", BIAS))
    }
    forward = [(module, micro) for micro in range(MICRO_STEPS) for module in MODULES]
    backward = [(module, micro) for micro in range(MICRO_STEPS) for module in reversed(MODULES)]
    return {
        "param_origin": {Key(name): draw("param", name, shape) for name, shape in parameters.items()},
        "actv": {Key(m, "output", micro): draw("actv", m, (3, 6), micro, rank) for m, micro in forward},
        "actv_grad": {Key(m, "output", micro): draw("grad", m, (3, 6), micro, rank) for m, micro in backward},
        "grad_reduced": {Key(name): draw("reduced", name, shape) for name, shape in parameters.items()},
        STATE: {Key(name): draw(STATE, name, shape) for name, shape in parameters.items()},
    }


def _changed(signal: str, step: int, rank: int, change: Change, tensors: Mapping[Key, Array]) -> dict[Key, Array]:
    changed = {key: change(Where(signal, key.name, step, key.micro_step, rank), x) for key, x in tensors.items()}
    return {key: tensor for key, tensor in changed.items() if tensor is not None}


def _batch(
    signal: str, step: int, changed: Mapping[Key, Array], rename: Mapping[str, str], dtype: str, ops: tuple[str, ...]
) -> Batch:
    columns = columns_for(ops)
    block = moments([*changed.values()], columns, 1e-8).reshape(-1, len(columns))
    return Batch(
        signal=signal,
        step=step,
        keys=tuple(key._replace(name=_renamed(key.name, rename)) for key in changed),
        shapes=tuple(tensor.shape for tensor in changed.values()),
        dtypes=(dtype,) * len(changed),
        order=np.arange(len(changed)),
        columns={name: block[:, n] for n, name in enumerate(columns)},
        micro_stepped=signal.startswith("actv"),
    )


def _called(batch: Batch, signals: Mapping[str, str], step: int) -> Batch:
    return Batch(**{**vars(batch), "signal": signals.get(batch.signal, batch.signal), "step": step})


def _renamed(name: str, rename: Mapping[str, str]) -> str:
    for module, other in rename.items():
        if name == module or name.startswith(f"{module}."):
            return other + name.removeprefix(module)
    return name
