"""Made-up output of several ranks: a program of two modules, healthy but for the changes of a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from probe.core.output.sinks.csv import CsvSink
from probe.core.records import Batch, Key
from tests.core.output.sink_data import context, snapshot

OPS = ("norm", "min", "max")
WEIGHTS = (Key("a.weight"), Key("b.weight"))
FORWARD = tuple(Key(module, part) for module in ("a", "b") for part in ("input", "output"))
Change = Callable[[str, int, int, Key], float | None]
"""For signal, rank, step and key the number that stands there in place of a healthy one; None to leave it."""


def micro(keys: Iterable[Key], number: int) -> tuple[Key, ...]:
    return tuple(key._replace(micro_step=step) for step in range(number) for key in keys)


def nothing(*_: object) -> None:
    """Nothing is bad."""


def bad(*places: tuple[str, int, int, str], value: float = float("nan")) -> Change:
    """Signals, ranks, steps and rows (``b.output``, ``b.output:1`` for micro step 1, ``*`` for all) with ``value``."""

    def change(signal: str, rank: int, step: int, key: Key) -> float | None:
        name = f"{key.name}.{key.part}" if key.part else key.name
        rows = ("*", name, f"{name}:{key.micro_step}")
        return value if any((signal, rank, step, row) in places for row in rows) else None

    return change


def everything_after(step: int, ranks: Iterable[int], first: Change) -> Change:
    """``first`` at its step, and from the next step on NaN in all rows of ``ranks``."""
    spoilt = frozenset(ranks)

    def change(signal: str, rank: int, at: int, key: Key) -> float | None:
        return float("nan") if at > step and rank in spoilt else first(signal, rank, at, key)

    return change


def batches(rank: int, step: int, micro_steps: int, change: Change, ids: bool = False) -> list[Batch]:
    """One step of one rank: what all ranks hold alike depends on the step alone; ``a`` is given ``ids``, or numbers."""
    backward = tuple(reversed(micro(FORWARD, micro_steps)))
    layout = {
        "actv": (micro(FORWARD, micro_steps), True, False),
        "actv_grad": (tuple(sorted(backward, key=lambda key: key.micro_step)), True, False),
        "grad_unreduced": (WEIGHTS, False, False),
        "grad_reduced": (WEIGHTS, False, True),
        "param_origin": (WEIGHTS, False, True),
        "param_updated": (WEIGHTS, False, True),
    }
    made = []
    for number, (signal, (keys, micro_stepped, alike)) in enumerate(layout.items()):
        random = np.random.default_rng([number, step, 0 if alike else rank + 1])
        norms = random.uniform(1, 2, len(keys))
        columns = {"sumsq": norms**2, "min": -norms / 4, "max": norms / 4}
        for row, key in enumerate(keys):
            other = change(signal, rank, step, key)
            if other is not None:
                columns["sumsq"][row], columns["min"][row], columns["max"][row] = other**2, -other / 4, other / 4
        shapes = ((4, 4),) * len(keys)
        dtypes = tuple(f"torch.{'int64' if ids and (k.name, k.part) == ('a', 'input') else 'float32'}" for k in keys)
        made.append(Batch(signal, step, keys, shapes, dtypes, np.arange(len(keys)), columns, micro_stepped))
    return made


def write_rank(
    root: Path,
    rank: int,
    steps: Iterable[int],
    change: Change = nothing,
    micro_steps: int = 1,
    ids: bool = False,
    time: str = "Dec03_21-34-40",
    leave_out: Callable[[str, int], bool] = lambda signal, step: False,
    extra: Callable[[int, int], Iterable[Batch]] = lambda rank, step: (),
    **manifest: Any,
) -> Path:
    """The directory of one rank, as a run writes it.

    Args:
        leave_out: for a signal and step, whether the rank did not come to write it.
        extra: more batches of a rank and step.
    """
    directory = root / f"{time}-rank{rank}-0000000{rank}"
    sink = CsvSink(context(root, directory=directory, rank=rank, steps_per_file=5))
    sink.open()
    for step in steps:
        kept = [b for b in batches(rank, step, micro_steps, change, ids) if not leave_out(b.signal, step)]
        sink.write(snapshot(step, *kept, *extra(rank, step), ops=OPS))
    sink.close()
    start = {"schema": 1, "rank": rank, "start_time": f"2026-12-03T21:34:{40 + rank % 10}+0800"}
    fields: Mapping[str, Any] = {**start, "config": {}, **manifest}
    (directory / "manifest.json").write_text(json.dumps(fields))
    return directory


def write_run(root: Path, ranks: int, steps: int, change: Change = nothing, **more: Any) -> None:
    """Directories of several ranks; fields of manifests may be functions of the rank."""
    for rank in range(ranks):
        fields = {name: value(rank) if name in ("groups", "pp_stage") else value for name, value in more.items()}
        write_rank(root, rank, range(steps), change, world_size=ranks, **fields)
