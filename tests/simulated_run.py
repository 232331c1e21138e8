"""Simulated output of a run of any number of ranks, with one planted fault; tests and benchmarks write it.

The values come from a seed, not from training: norms that drift, equal on replicas where training makes them equal.
The cause and everything that follows from it within its step are written where data would pass: along the forward,
to tensor-parallel peers, to later stages of the pipeline, back from them, and to replicas with reduced gradients.

    run = SimulatedRun(ParallelSizes(dp=125, tp=8, pp=10), fault="overflow", seed=1)
    run.write(Path("out"))
    run.expected  # rank, step, place and kind that `probe anomalies out` must name
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from math import prod
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.output.sinks.context import SinkContext
from probe.core.output.sinks.csv import CsvSink
from probe.core.output.sinks.parquet import ParquetSink
from probe.core.records import Batch, Key, Snapshot
from probe.core.storage.layout import CSV, PARQUET, TableName, cells_of, columns_of, group_label, span_of
from probe.core.storage.run_directory import write_manifest
from probe.core.storage.sql import literal, quoted

Array = npt.NDArray[np.float64]
Moments = dict[str, Array]
"""Moments by name, each of steps x rows."""

KINDS = {
    "nan weight": "NaN",
    "overflow": "overflow",
    "gradient": "exploding gradient",
    "dead": "dead layer",
    "frozen": "frozen parameter",
    "replica": "divergence of replicas",
    "all-reduce": "NaN",
    "bad batch": "bad batch",
}
"""Kinds of planted faults, with the kind that the diagnosis must give."""
SIGNALS = {
    "nan weight": ("param_origin", "actv"),
    "gradient": ("actv_grad", "grad_reduced"),
    "frozen": ("param_origin", "grad_reduced", "param_updated"),
    "replica": ("param_origin", "grad_reduced"),
    "all-reduce": ("actv", "other"),
}
"""Signals in which a fault shows; the others, and healthy runs, have actv and grad_reduced."""
USUAL_SIGNALS = ("actv", "grad_reduced")
SLOW = ("dead", "frozen")
"""Faults on all ranks of a stage, which are reported only after some steps."""
LASTING = (*SLOW, "nan weight", "replica")
"""Faults that stay once they have begun."""
OPS_WRITTEN = ("norm", "min", "max", "zeros")
MODULES = ("norm", "attention.query", "attention.out", "mlp.fc1", "mlp.fc2")
WEIGHT, BIAS = (64, 64), (64,)
WARM = 11
"""Steps before a fault can begin: rules need ten samples."""
REPORTED_AFTER = 4
"""Steps after which a slow fault is reported."""
FACTOR = 1e6
"""Factor by which an exploding gradient grows."""
BLOCK = 100
"""Ranks that one process writes at a time."""


class ParallelSizes(NamedTuple):
    """Sizes of the groups in which ranks train. Ranks are counted along tensor, then data, then pipeline parallel."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    """Ranks over which experts are spread; a divisor of ``dp``."""

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp

    def place(self, rank: int) -> RankPlace:
        return RankPlace(rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp))

    def rank(self, place: RankPlace) -> int:
        return place.t + self.tp * (place.d + self.dp * place.p)

    def groups(self, rank: int) -> dict[str, list[int]]:
        """Groups as manifests name them; those of one rank are left out."""
        t, d, p = self.place(rank)
        block = d // self.ep * self.ep
        found = {
            "tensor_parallel": [self.rank(RankPlace(n, d, p)) for n in range(self.tp)],
            "data_parallel": [self.rank(RankPlace(t, n, p)) for n in range(self.dp)],
            "pipeline_parallel": [self.rank(RankPlace(t, d, n)) for n in range(self.pp)],
            "expert_parallel": [self.rank(RankPlace(t, n, p)) for n in range(block, block + self.ep)],
        }
        return {name: ranks for name, ranks in found.items() if len(ranks) > 1}


class RankPlace(NamedTuple):
    """Coordinates of a rank: tensor parallel, data parallel, stage of the pipeline."""

    t: int
    d: int
    p: int


class ExpectedCause(NamedTuple):
    """Answer that the analysis must give."""

    kind: str
    place: str
    """Module or parameter."""
    ranks: tuple[int, ...]
    step: int


class _Directory(NamedTuple):
    """Directory of a rank: the steps that are written there, and from which on they were done again elsewhere."""

    name: str
    steps: range
    stale_from: int | None
    began: str
    ended: bool


@dataclass(frozen=True)
class SimulatedRun:
    """Run to be written. Equal fields write equal files."""

    sizes: ParallelSizes
    fault: str | None = None
    """One of ``KINDS``; None for a healthy run."""
    seed: int = 0
    steps: int = 20
    rows: int = 100
    """Rows of each signal at each step; an even number."""
    drift: float = 0.01
    """Relative change of norms a step."""
    resumed: float = 0.0
    """Fraction of the ranks that were killed and resumed two steps earlier, in a directory of their own."""
    dead: float = 0.0
    """Fraction of the ranks that end early."""
    aftermath: bool = False
    """True if every row of every rank is NaN from the step after the fault is found on."""
    format: str = PARQUET
    steps_per_file: int = 20
    alert: dict[str, Any] = field(default_factory=dict, hash=False)
    """Rules in the manifests; the default ones if empty."""

    def __post_init__(self) -> None:
        if self.fault is not None and (self.fault not in KINDS or self.steps < WARM + REPORTED_AFTER + 2):
            least = WARM + REPORTED_AFTER + 2
            raise ValueError(f"expected one of {', '.join(KINDS)}, and {least} steps or more; got {self.fault!r}")
        if self.aftermath and self.fault in (None, "replica"):
            raise ValueError("expected a fault that can make everything NaN, or no aftermath")
        if self.rows % 2 or self.rows < 2 * 4 or self.sizes.dp % self.sizes.ep:
            raise ValueError(f"expected an even number of 8 rows or more, ep a divisor of dp; got {self}")

    @property
    def signals(self) -> tuple[str, ...]:
        return SIGNALS.get(self.fault or "", USUAL_SIGNALS)

    @property
    def row_count(self) -> int:
        """Rows of all ranks, signals and steps, without what is missing or done twice."""
        return self.sizes.ranks * self.steps * self.rows * len(self.signals)

    @cached_property
    def _struck(self) -> tuple[int, int, int]:
        """Rank, step and module of the fault."""
        random = np.random.default_rng([self.seed, 0xFA])
        rank = int(random.integers(self.sizes.ranks))
        step = int(random.integers(WARM, max(WARM + 1, self.steps - REPORTED_AFTER - 1)))
        module = int(random.integers(1, self.rows // 2 - 1))
        if self.fault == "bad batch":  # the first stage reads the data
            rank, module = self.sizes.rank(self.sizes.place(rank)._replace(p=0)), 0
        if self.fault in ("replica", "frozen") and self.sizes.ep > 1:
            module -= (module % len(MODULES) > 2) * (module % len(MODULES) - 2)  # no expert
        return rank, step, module

    @property
    def expected(self) -> ExpectedCause | None:
        """Answer of a right analysis; None for a healthy run."""
        if self.fault is None:
            return None
        rank, step, module = self._struck
        stage = self.sizes.place(rank).p
        name = self.module(stage, module)
        place = f"{name}.weight" if self.fault in ("nan weight", "frozen", "replica") else name
        ranks: tuple[int, ...] = (rank,)
        if self.fault in SLOW:
            own = range(self.sizes.tp * self.sizes.dp * stage, self.sizes.tp * self.sizes.dp * (stage + 1))
            ranks = tuple(each for each in own if self.last_step(each) >= step + REPORTED_AFTER)
        return ExpectedCause(KINDS[self.fault], place, ranks, step)

    def module(self, stage: int, module: int) -> str:
        """Name of a module of a stage."""
        layers = -(-self.rows // 2 // len(MODULES))
        kind = MODULES[module % len(MODULES)]
        kind = kind.replace("mlp.", "mlp.experts.") if self.sizes.ep > 1 else kind
        return f"layers.{stage * layers + module // len(MODULES)}.{kind}"

    def last_step(self, rank: int) -> int:
        """Last step of a rank; earlier than the run's for a dead one."""
        if self._chance(rank, 0xDE) < self.dead and not self._is_struck(rank):
            return int(np.random.default_rng([self.seed, 0xDD, rank]).integers(self.steps // 2, self.steps - 1))
        return self.steps - 1

    def resumed_at(self, rank: int) -> int | None:
        """Step from which a resumed rank has written again; None for the others."""
        if self._chance(rank, 0x4E) < self.resumed and not self._is_struck(rank):
            return int(np.random.default_rng([self.seed, 0x4D, rank]).integers(3, self.steps // 2 - 2))
        return None

    def _is_struck(self, rank: int) -> bool:
        return self.fault is not None and rank == self._struck[0]

    def _chance(self, rank: int, what: int) -> float:
        return float(np.random.default_rng([self.seed, what, rank]).random())

    # Values.

    def keys(self, signal: str, rank: int) -> tuple[Key, ...]:
        """Keys of the rows of one step."""
        return _keys(self, signal, self._group(rank) if signal == "other" else (), self.sizes.place(rank).p)

    def _group(self, rank: int) -> tuple[int, ...]:
        """Ranks that sum up a part of the forward."""
        groups = self.sizes.groups(rank)
        return tuple(groups.get("tensor_parallel") or groups.get("data_parallel") or [rank])

    def moments(self, signal: str, rank: int, steps: range, stale_from: int | None = None) -> Moments:
        """Moments of a signal on a rank.

        Args:
            stale_from: step from which on other values are returned, as before the run was resumed there.
        """
        sizes = self._sizes(signal, rank)[steps.start : steps.stop]
        if stale_from is not None:
            sizes[np.arange(steps.start, steps.stop) >= stale_from] *= 1.5
        numels = np.array([prod(shape) for shape in self.shapes(signal)])
        below = np.broadcast_to(np.floor(numels / 16), sizes.shape).astype(np.float64)
        found = {"sumsq": sizes**2, "min": -sizes / 4, "max": sizes / 4, "below": below}
        self._strike(signal, rank, steps, found, numels)
        return found

    def shapes(self, signal: str) -> tuple[tuple[int, ...], ...]:
        """Shapes of the rows of a step."""
        if signal in ("actv", "actv_grad", "other"):
            return (WEIGHT,) * self.rows
        return (WEIGHT, BIAS) * (self.rows // 2)

    def _sizes(self, signal: str, rank: int) -> Array:
        """Healthy norms, steps x rows: equal on replicas for parameters and reduced gradients."""
        t, _, p = self.sizes.place(rank)
        if signal.startswith("param"):
            sizes = self._parameters(t, p, 0)
            return sizes[1:] if signal == "param_updated" else sizes[:-1]
        number = ("actv", "actv_grad", "grad_reduced", "other").index(signal)
        place = (t, p) if signal == "grad_reduced" else (rank,)
        random = np.random.default_rng([self.seed, number, *place])
        trend = (1 + self.drift) ** np.arange(self.steps)[:, None]
        typical = np.geomspace(0.1, 10, self.rows)
        sizes: Array = trend * typical * random.uniform(0.8, 1.25, (self.steps, self.rows))
        return sizes

    def _parameters(self, t: int, p: int, expert: int) -> Array:
        random = np.random.default_rng([self.seed, 0x9A, t, p, expert])
        pace = self.drift * random.uniform(0.1, 0.2, (self.steps + 1, self.rows))
        sizes: Array = random.uniform(1, 2, self.rows) * np.cumprod(1 + pace, axis=0)
        return sizes

    # The fault.

    def _strike(self, signal: str, rank: int, steps: range, found: Moments, numels: Array) -> None:
        """Put the fault, and what follows from it, into the moments of a rank."""
        if self.fault is None:
            return
        step = self._struck[1]
        later = max(step - steps.start, 0)
        at = slice(later, None if self.fault in LASTING else max(step + 1 - steps.start, 0))
        self._STRIKES[self.fault](self, signal, rank, at, found, numels)
        if self.aftermath:
            after = step + 1 + REPORTED_AFTER * (self.fault in SLOW)
            _set(found, slice(max(after - steps.start, 0), None), slice(None), np.nan)

    def _forward(self, rank: int, group: Sequence[int]) -> int | None:
        """First row of the activations that is NaN by what came forward; None if none is.

        Args:
            group: ranks that the bad value reaches within the stage.
        """
        source, _, module = self._struck
        (_, d0, p0), (_, d, p) = self.sizes.place(source), self.sizes.place(rank)
        if rank == source:
            return 2 * module if self.fault == "bad batch" else 2 * module + 1
        reached = {self.sizes.place(each).d for each in group} | {d0}
        if p < p0 or d not in reached:
            return None
        return 0 if p > p0 else 2 * (module + 1)

    def _non_finite(self, signal: str, rank: int, at: slice, found: Moments, _: Array) -> None:
        source, _, module = self._struck
        if signal == "grad_reduced":
            _set(found, at, slice(None), np.nan)
        elif signal == "param_origin":
            healthy = found["below"].copy()  # one element is NaN
            _set(found, at, slice(2 * module, 2 * module + 1) if rank == source else slice(0), np.nan)
            found["below"] = healthy
        elif (first := self._forward(rank, self.sizes.groups(source).get("tensor_parallel", ()))) is not None:
            _set(found, at, slice(first, None), np.nan)
            if rank == source and self.fault == "overflow":
                _set(found, at, slice(first, first + 1), np.inf)

    def _summed(self, signal: str, rank: int, at: slice, found: Moments, _: Array) -> None:
        """A sum over ranks within the forward: each module's output passes through one."""
        source, _, module = self._struck
        first = self._forward(rank, self._group(source))
        if first is None:
            return
        if signal == "other":  # the inputs (pre) of the ranks that have not received it yet are healthy
            first = 2 * module + (rank != source) if self.sizes.place(rank).p == self.sizes.place(source).p else 0
        _set(found, at, slice(first, None), np.nan)

    def _explode(self, signal: str, rank: int, at: slice, found: Moments, _: Array) -> None:
        source, _, module = self._struck
        (_, d0, p0), (_, d, p) = self.sizes.place(source), self.sizes.place(rank)
        own = self.sizes.place(rank).t == self.sizes.place(source).t
        if p > p0 or (signal == "actv_grad" and d != d0):
            return
        after = module + (own if signal == "grad_reduced" else rank == source)  # modules that it reaches
        within = slice(None, 2 * after) if signal == "grad_reduced" else slice(self.rows - 2 * after, None)
        _scale(found, at, within if p == p0 else slice(None), FACTOR)

    def _die(self, signal: str, rank: int, at: slice, found: Moments, numels: Array) -> None:
        source, _, module = self._struck
        if self.sizes.place(rank).p != self.sizes.place(source).p:
            return
        rows = slice(2 * module + (signal == "actv"), 2 * module + 2)  # the output; weight and bias
        _scale(found, at, rows, 0.0)
        found["below"][at, rows] = numels[rows]

    def _freeze(self, signal: str, rank: int, at: slice, found: Moments, _: Array) -> None:
        source, step, module = self._struck
        if signal == "grad_reduced" or self.sizes.place(rank).p != self.sizes.place(source).p:
            return
        held = float(self._sizes("param_origin", rank)[step, 2 * module])
        for name, value in (("sumsq", held**2), ("min", -held / 4), ("max", held / 4)):
            found[name][at, 2 * module] = value

    def _diverge(self, signal: str, rank: int, at: slice, found: Moments, _: Array) -> None:
        source, _, module = self._struck
        if signal == "param_origin" and rank == source:
            _scale(found, at, slice(2 * module, 2 * module + 1), 1.5)

    _STRIKES = {  # noqa: RUF012 - never changed
        "nan weight": _non_finite,
        "overflow": _non_finite,
        "bad batch": _non_finite,
        "gradient": _explode,
        "dead": _die,
        "frozen": _freeze,
        "replica": _diverge,
        "all-reduce": _summed,
    }

    # Files.

    def write(self, root: Path, through_sinks: Collection[int] = (), processes: int = 1) -> ExpectedCause | None:
        """Write all ranks; return the answer that the analysis must give.

        Args:
            through_sinks: ranks that the real sinks write; DuckDB writes the others, several times as fast.
        """
        blocks = [range(n, min(n + BLOCK, self.sizes.ranks)) for n in range(0, self.sizes.ranks, BLOCK)]
        if processes == 1:
            for block in blocks:
                self.write_ranks(root, block, through_sinks)
            return self.expected
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            for done in [pool.submit(self.write_ranks, root, block, through_sinks) for block in blocks]:
                done.result()
        return self.expected

    def write_ranks(self, root: Path, ranks: Iterable[int], through_sinks: Collection[int] = ()) -> None:
        """Write some of the ranks."""
        writer = _DuckDbWriter(self)
        for rank in ranks:
            for directory in self._directories(rank):
                path = root / directory.name
                path.mkdir(parents=True)
                if rank in through_sinks:
                    self._write_through_sink(path, rank, directory)
                else:
                    writer.write(path, rank, directory)
                write_manifest(path, self._manifest(rank, directory))
        writer.close()

    def _directories(self, rank: int) -> Iterator[_Directory]:
        again, end = self.resumed_at(rank), self.last_step(rank) + 1
        ended = end == self.steps
        name = f"Dec03_21-34-{rank % 60:02d}-rank{rank}-{rank:08x}"
        began = f"2026-12-03T21:34:{rank % 60:02d}+0800"
        if again is None:
            yield _Directory(name, range(end), None, began, ended)
            return
        yield _Directory(name, range(again + 2), again, began, False)
        name, began = name.replace("Dec03_21", "Dec03_22"), began.replace("T21", "T22")
        yield _Directory(name, range(again, end), None, began, ended)

    def _manifest(self, rank: int, directory: _Directory) -> dict[str, object]:
        config = {"format": self.format, "ops": list(OPS_WRITTEN), "step_count_per_record": self.steps_per_file}
        known: dict[str, object] = {
            "probe": "simulated",
            "framework": "pytorch",
            "rank": rank,
            "world_size": self.sizes.ranks,
            "groups": self.sizes.groups(rank),
            "run": 0,
            "first_step": directory.steps.start,
            "pp_stage": self.sizes.place(rank).p,
            "start_time": directory.began,
            "config": config | ({"alert": self.alert} if self.alert else {}),
        }
        return known | ({"end_time": directory.began.replace(":34:", ":59:"), "findings": 0} if directory.ended else {})

    def _write_through_sink(self, path: Path, rank: int, directory: _Directory) -> None:
        kind = {CSV: CsvSink, PARQUET: ParquetSink}[self.format]
        sink = kind(SinkContext(path, path.parent, rank, steps_per_file=self.steps_per_file))
        sink.open()
        held = {s: self.moments(s, rank, directory.steps, directory.stale_from) for s in self.signals}
        for n, step in enumerate(directory.steps):
            batches = [self.batch(s, rank, step, {k: v[n] for k, v in held[s].items()}) for s in self.signals]
            sink.write(Snapshot(step, rank, 1000.0 + step, batches, OPS_WRITTEN))
        sink.close()

    def batch(self, signal: str, rank: int, step: int, columns: Moments) -> Batch:
        """Rows of one step."""
        keys, shapes = self.keys(signal, rank), self.shapes(signal)
        dtypes, order = ("torch.float32",) * self.rows, np.arange(self.rows)
        return Batch(signal, step, keys, shapes, dtypes, order, columns, signal in ("actv", "actv_grad"))


def _set(found: Moments, at: slice, rows: slice, value: float) -> None:
    """Make rows NaN or infinite."""
    low = value if np.isnan(value) else -value
    for name, number in (("sumsq", value), ("min", low), ("max", value), ("below", 0.0)):
        found[name][at, rows] = number


def _scale(found: Moments, at: slice, rows: slice, factor: float) -> None:
    for name, power in (("sumsq", 2), ("min", 1), ("max", 1)):
        found[name][at, rows] *= factor**power


@lru_cache(maxsize=16)
def _keys(run: SimulatedRun, signal: str, group: tuple[int, ...], stage: int) -> tuple[Key, ...]:
    modules = [run.module(stage, n) for n in range(run.rows // 2)]
    if signal == "actv":
        return tuple(Key(module, part) for module in modules for part in ("input", "output"))
    if signal == "actv_grad":
        return tuple(Key(module, part) for module in modules[::-1] for part in ("output", "input"))
    if signal == "other":
        sites = [f"all_reduce.{group_label(group)}.model.py[{100 + n}]" for n in range(run.rows // 2)]
        return tuple(Key(site, part) for site in sites for part in ("pre", "post"))
    return tuple(Key(f"{module}.{part}") for module in modules for part in ("weight", "bias"))


class _DuckDbWriter:
    """Writer of the same files as the sinks', a file in one statement: what names a row is in a table of DuckDB."""

    def __init__(self, run: SimulatedRun) -> None:
        import duckdb

        self._run = run
        self._connection: Any = duckdb.connect(config={"threads": 1, "memory_limit": "256MiB"})
        self._held: dict[str, tuple[Key, ...]] = {}

    def close(self) -> None:
        self._connection.close()

    def write(self, path: Path, rank: int, directory: _Directory) -> None:
        run = self._run
        for signal in run.signals:
            self._hold(signal, rank)
            found = run.moments(signal, rank, directory.steps, directory.stale_from)
            for (first, last), group in groupby(directory.steps, lambda step: span_of(step, run.steps_per_file)):
                steps = list(group)
                begin = steps[0] - directory.steps.start
                own = {name: column[begin : begin + len(steps)] for name, column in found.items()}
                self._copy(path / str(TableName(signal, first, last, 0, run.format)), signal, rank, steps, own)

    def _hold(self, signal: str, rank: int) -> None:
        """Keep the cells that are the same at each step in a table, repeated for each step."""
        run, keys = self._run, self._run.keys(signal, rank)
        if self._held.get(signal) == keys:
            return
        batch = run.batch(signal, rank, 0, dict.fromkeys(("sumsq", "min", "max", "below"), np.zeros(run.rows)))
        cells = {
            name: np.tile(np.array(column, dtype=np.int32 if isinstance(column[0], int) else object), run.steps)
            for name, column in cells_of(batch).items()
        }
        with self._connection.cursor() as cursor:
            cursor.register("cells", cells)
            cursor.execute(f"CREATE OR REPLACE TABLE {quoted(f'keys {signal}')} AS SELECT * FROM cells")
        self._held[signal] = keys

    def _copy(self, path: Path, signal: str, rank: int, steps: list[int], found: Moments) -> None:
        run = self._run
        numels = np.array([prod(shape) for shape in run.shapes(signal)])
        numbers = {"norm": np.sqrt(found["sumsq"]), "zeros": found["below"] / numels}  # as OPS of core.moments
        numbers = {op: numbers.get(op, found.get(op)).ravel() for op in OPS_WRITTEN}
        values = {"step": np.repeat(np.array(steps, dtype=np.int64), run.rows), **numbers}
        batch = run.batch(signal, rank, steps[0], {})
        as_text = run.format == CSV
        columns = [*columns_of(batch, OPS_WRITTEN, False), *([] if as_text else ["call"])]
        finite = all(np.isfinite(column).all() for column in numbers.values())
        cells = {column: _chosen(column, as_text, finite) for column in numbers}
        chosen = ", ".join(cells.get(column) or quoted(column) for column in columns)
        held = f"(SELECT * FROM {quoted(f'keys {signal}')} LIMIT {len(steps) * run.rows})"
        how = "FORMAT csv, HEADER true" if as_text else "FORMAT parquet"
        with self._connection.cursor() as cursor:
            cursor.register("numbers", values)
            cursor.execute(
                f"COPY (SELECT {chosen} FROM {held} POSITIONAL JOIN numbers) TO {literal(str(path))} ({how})"
            )


def _chosen(column: str, as_text: bool, finite: bool) -> str:
    """SQL of a number; DuckDB reads NaN in arrays as a missing value."""
    number = quoted(column) if finite else f"coalesce({quoted(column)}, 'nan'::DOUBLE)"
    return number if not as_text and finite else f"{_text(number) if as_text else number} AS {quoted(column)}"


def _text(number: str) -> str:
    return f"format('{{:.6g}}', {number})"
