"""The readings of one step: reduced where the tensors are, copied to the host at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from probe.core.backend.fused_reduce import Slab
from probe.core.backend.protocols import Block, Described, HostPlace, Shard, Tensor, Tensors
from probe.core.histogram import BINS, HISTOGRAM, shifted, width
from probe.core.moments import nothing
from probe.core.records import Array, Batch, Key

BLOCK, SLAB, HELD, NOTHING, MISSING = range(5)
"""Kinds of references: a row of the blocks, a row of the slab, a held tensor that is reduced at the end of the step, a
tensor without elements, and a tensor that could not be reduced, whose row is left out."""
Reference = tuple[int, int]
"""Kind and number by which a row finds its values before they are on the host."""
Row = tuple[Described, int, Reference, Reference | None]
"""Description (shape, dtype, coverage), order, reference of the values, and reference of the factor in them (a gradient
scaler's) if there is one."""
ROW, NUMBER = 512, 8
"""Bytes of a row without its numbers, about, and of a number."""
SHARED = 4096
"""Elements up to which a tensor is read again instead of being looked up."""
Reading = tuple[Described, Reference]
"""Description of a tensor, and the reference of its values."""
UNKNOWN: Described = ((), None, None)
"""Description of a tensor that could not be described."""
Failed = Callable[[str, Exception], None]
"""Function that receives the signal and the name of a row that is left out, and the error."""
Finish = Callable[[Array], Mapping[str, float] | None]
"""Function that makes the columns of a row, on the host, from numbers computed where the tensors are; None: no row."""


@dataclass
class Readings:
    """The rows of one signal; a repeated key replaces its row."""

    micro_stepped: bool
    rows: dict[Key, Row] = field(default_factory=dict)
    forgotten: set[Key] = field(default_factory=set)
    """Keys of rows whose value is out of date, with no new one yet."""
    computed: list[tuple[int, Finish]] = field(default_factory=list)
    """For rows that are not moments: the number of values each has in the blocks, and the function for its columns."""

    def put(self, key: Key, row: Row) -> None:
        """Add a row, or replace that of the same key."""
        self.rows[key] = row
        if self.forgotten:
            self.forgotten.discard(key)


@dataclass(frozen=True)
class Pending:
    """The readings of a step while they are copied to the host."""

    readings: dict[str, Readings]
    columns: tuple[str, ...]
    wait: Callable[[], Array]
    block_rows: int
    held_rows: list[Reference]
    """The rows of the held tensors."""
    slab: Array
    """The rows of the slab."""
    nothing: Array
    """The row of a tensor without elements."""
    distribution: bool = False
    """True if histograms are written though no op needs them."""

    @property
    def size(self) -> int:
        """Bytes of the rows, about."""
        return sum(len(readings.rows) for readings in self.readings.values()) * (ROW + NUMBER * width(self.columns))

    def batches(self, step: int) -> list[Batch]:
        """Return the batches of all signals; wait for the device, once."""
        blocks = [self.wait()] if self.block_rows else []
        rows = np.concatenate([*blocks, self.slab, self.nothing])
        made = (
            (_computed if readings.computed else self._batch)(signal, readings, rows, step)
            for signal, readings in self.readings.items()
        )
        return [batch for batch in made if batch is not None]

    def _batch(self, signal: str, readings: Readings, rows: Array, step: int) -> Batch:
        described, order, references, factors = (
            zip(*readings.rows.values(), strict=True) if readings.rows else ((),) * 4
        )
        shapes, kinds, coverage = zip(*described, strict=True) if described else ((),) * 3
        resolved = [self.held_rows[number] if kind == HELD else (kind, number) for kind, number in references]
        at = self._indices(resolved)
        columns = {name: rows[at, i] for i, name in enumerate(self.columns) if name != HISTOGRAM}
        if HISTOGRAM in self.columns:
            columns[HISTOGRAM] = rows[at, -BINS:]
        if scaled := [place for place, factor in enumerate(factors) if factor is not None]:
            scale = np.ones(len(factors))
            scale[scaled] = rows[self._indices([factors[place] for place in scaled]), 0]
            columns = _unscaled(columns, scale)
        dtypes = {dtype: str(dtype) for dtype in set(kinds)}
        batch = Batch(
            signal=signal,
            step=step,
            keys=tuple(readings.rows),
            shapes=shapes,
            dtypes=tuple(dtypes[dtype] for dtype in kinds),
            order=np.array(order, dtype=np.int64),
            columns=columns,
            micro_stepped=readings.micro_stepped,
            coverage=coverage if any(coverage) else (),
            distribution=self.distribution,
        )
        remaining = [
            row
            for row, (key, (kind, _)) in enumerate(zip(readings.rows, resolved, strict=True))
            if kind != MISSING and key not in readings.forgotten
        ]
        return batch if len(remaining) == len(resolved) else _only(batch, remaining)

    def _indices(self, references: Iterable[Reference]) -> npt.NDArray[np.int64]:
        """Return where the referenced values are among the rows of the blocks, those of the slab and, last, the one of
        a tensor without elements."""
        last = self.block_rows + len(self.slab)
        first = {BLOCK: 0, SLAB: self.block_rows}
        indices = [first[kind] + number if kind in first else last for kind, number in references]
        return np.array(indices, dtype=np.int64)


def _no_rows() -> Array:
    """Return the rows of no blocks."""
    return np.empty((0, 0))


def _computed(signal: str, readings: Readings, rows: Array, step: int) -> Batch | None:
    """Return a batch of rows that are not moments; None if none of them has columns."""
    made: dict[Key, tuple[Row, Mapping[str, float]]] = {}
    for (key, row), (length, finish) in zip(readings.rows.items(), readings.computed, strict=True):
        _, start = row[2]
        if (columns := finish(rows[start : start + length, 0])) is not None:
            made[key] = row, columns
    if not made:
        return None
    values = [columns for _, columns in made.values()]
    return Batch(
        signal=signal,
        step=step,
        keys=tuple(made),
        shapes=tuple(described[0] for (described, *_), _ in made.values()),
        dtypes=tuple(str(described[1]) for (described, *_), _ in made.values()),
        order=np.array([row[1] for row, _ in made.values()], dtype=np.int64),
        columns={name: np.array([row[name] for row in values], dtype=np.float64) for name in values[0]},
        micro_stepped=readings.micro_stepped,
    )


def _only(batch: Batch, remaining: Sequence[int]) -> Batch:
    """Return ``batch`` with the rows ``remaining`` alone."""
    return replace(
        batch,
        keys=tuple(batch.keys[row] for row in remaining),
        shapes=tuple(batch.shapes[row] for row in remaining),
        dtypes=tuple(batch.dtypes[row] for row in remaining),
        order=batch.order[remaining],
        columns={name: values[remaining] for name, values in batch.columns.items()},
        coverage=tuple(batch.coverage[row] for row in remaining) if batch.coverage else (),
    )


def _unscaled(columns: dict[str, Array], scale: Array) -> dict[str, Array]:
    """Moments of ``x / scale`` from those of ``x``."""
    power = {"min": 1, "max": 1, "sum": 1, "sumsq": 2, "m2": 2}
    return {
        name: shifted(values, scale) if name == HISTOGRAM else values / scale ** power.get(name, 0)
        for name, values in columns.items()
    }


class Recorder:
    """Collector of one step's readings. Used on the training thread alone; never waits for the device.

    Args:
        failed: receives each row that is left out because its tensor cannot be reduced; other rows are kept.
        before: returns the length of the main recorder, so that both share one sequence of call ids.
        distribution: whether histograms are written though no op needs them.
    """

    def __init__(
        self,
        tensors: Tensors,
        columns: Sequence[str],
        eps: float,
        failed: Failed,
        before: Callable[[], int] | None = None,
        distribution: bool = False,
    ) -> None:
        self._tensors, self.columns, self._eps, self._before = tensors, tuple(columns), eps, before
        self._failed, self._distribution = failed, distribution
        self._slab, self._nothing = Slab(self.columns, eps), nothing(self.columns)[np.newaxis]
        self.clear()

    def clear(self) -> None:
        """Drop the step."""
        self._slab.clear()
        self._begin()

    def _begin(self) -> None:
        """Begin another step."""
        self._readings: dict[str, Readings] = {}
        self._blocks: list[Block] = []
        self._block_rows = 0
        self._held_tensors: list[Tensor] = []
        self._held_rows: list[Reference] = []
        self._seen: dict[object, tuple[Callable[[], object], Reading]] = {}
        """Tensors that may be recorded again, each with a function that returns None once it is gone."""
        self._scales: dict[object, tuple[Tensor, Reference]] = {}
        self._calls = 0

    def __len__(self) -> int:
        return self._calls

    @property
    def _order(self) -> int:
        return self._calls if self._before is None else self._before() + self._calls

    def record(
        self,
        signal: str,
        key: Key,
        tensor: Tensor | Shard,
        *,
        micro_stepped: bool = False,
        scale: Tensor | None = None,
        shared: bool = False,
    ) -> None:
        """Reduce a tensor that may be freed or changed immediately afterwards.

        Args:
            micro_stepped: whether rows of this signal are distinguished by their micro step.
            scale: a factor in the values, divided out on the host.
            shared: whether the same object may be recorded again in this step, and is then reduced only once.
        """
        try:
            described, reference = self._read(tensor, scale, shared)
            row = described, self._order, reference, None if scale is None else self._scale(scale)
        except Exception as error:  # noqa: BLE001 - other tensors can still be reduced
            row = UNKNOWN, self._order, self._leave_out(signal, key, error), None
        self._put(signal, micro_stepped).put(key, row)
        self._calls += 1

    def _host_place(self, tensor: Tensor | Shard, scale: Tensor | None) -> HostPlace | None:
        """Return where the compiled pass can read ``tensor``, and only its values are ``scale`` times too large; else
        None."""
        if not self._slab.writes or (scale is not None and "below" in self.columns):
            return None
        try:
            if type(tensor) is not Shard:
                return self._tensors.host_place(tensor)
            place = self._tensors.host_place(tensor.tensor)
            return place and (*place[:3], (*place[3][:2], tensor.coverage))
        except Exception:  # noqa: BLE001 - the general path reduces it, or reports the error
            return None

    def _read(self, tensor: Tensor | Shard, scale: Tensor | None, shared: bool) -> Reading:
        """Return the reading of one tensor; of one that was recorded in this step as it is, the same again."""
        place = self._host_place(tensor, scale)
        if not shared or (place is not None and place[1] <= SHARED):
            return self._reduce(tensor, place, scale)
        identity, alive = self._tensors.identity(tensor.tensor if type(tensor) is Shard else tensor)
        seen = self._seen.get(identity)
        if seen is None or seen[0]() is None:
            seen = self._seen[identity] = alive, self._reduce(tensor, place, scale)
        return seen[1]

    def _reduce(self, value: Tensor | Shard, place: HostPlace | None, scale: Tensor | None) -> Reading:
        """Return the reading of a tensor: by the compiled pass where it lies (the short path from a hook), if that is
        possible, else by the framework."""
        if place is not None:
            address, size, kind, described = place
            if (number := self._slab.read(address, size, kind)) is not None:
                return described, (SLAB, number)
        tensor, described = self._describe(value)
        if 0 in described[0]:
            return described, (NOTHING, 0)
        copy = self._tensors.hold(tensor) if scale is None else None
        if copy is None:
            return described, self._add(self._moments([tensor], scale), 1)
        self._held_tensors.append(copy)
        return described, (HELD, len(self._held_rows) + len(self._held_tensors) - 1)

    def record_all(
        self, signal: str, keys: Iterable[Key], tensors: Sequence[Tensor | Shard], *, scale: Tensor | None = None
    ) -> None:
        """Reduce a list of tensors in few kernel launches."""
        if not tensors:
            return
        readings, keys = self._put(signal, False), [*keys]
        factor = None if scale is None else self._scale(scale)
        rows = self._read_all(tensors, scale)
        others = [place for place, row in enumerate(rows) if row is None]
        reduced = iter(
            self._reduce_all(signal, [keys[place] for place in others], [tensors[place] for place in others], scale)
        )
        for order, (key, row) in enumerate(zip(keys, rows, strict=True), self._order):
            described, reference = next(reduced) if row is None else row
            readings.put(key, (described, order, reference, factor))
        self._calls += len(keys)

    def _read_all(self, tensors: Sequence[Tensor | Shard], scale: Tensor | None) -> list[Reading | None]:
        """Return the readings of the tensors that the compiled pass reads where they lie; None for others."""
        places = [self._host_place(tensor, scale) for tensor in tensors]
        readable = [place for place in places if place is not None]
        where = [place[0] for place in readable], [place[1] for place in readable], [place[2] for place in readable]
        numbers = iter(self._slab.read_each(*where) if readable else ())
        return [
            None if place is None or (number := next(numbers)) is None else (place[3], (SLAB, number))
            for place in places
        ]

    def _reduce_all(
        self, signal: str, keys: Sequence[Key], values: Sequence[Tensor | Shard], scale: Tensor | None
    ) -> list[Reading]:
        """Return the readings of tensors that the framework reduces together."""
        rows: list[Reading] = []
        full: list[tuple[int, Tensor]] = []
        for place, value in enumerate(values):
            try:
                tensor, described = self._describe(value)
                rows.append((described, (NOTHING, 0)))
                if 0 not in described[0]:
                    full.append((place, tensor))
            except Exception as error:  # noqa: BLE001 - other tensors can still be reduced
                rows.append((UNKNOWN, self._leave_out(signal, keys[place], error)))
        if full:
            lost = lambda i, error: self._leave_out(signal, keys[full[i][0]], error)  # noqa: E731
            references = self._reduced([tensor for _, tensor in full], scale, lost)
            for (place, _), reference in zip(full, references, strict=True):
                rows[place] = rows[place][0], reference
        return rows

    def compute(
        self, signal: str, key: Key, tensor: Tensor, block: Block, finish: Finish, *, micro_stepped: bool = False
    ) -> None:
        """Add a row about ``tensor`` that ``finish`` makes from ``block``, whose rows have one number each. Count a
        repeated key as another call. Use for it a recorder with one column and no other rows."""
        shape, dtype, _ = self._tensors.describe(tensor)
        readings = self._put(signal, micro_stepped)
        start = self._add(block, len(block))
        readings.put(self.next_call(signal, key), ((shape, dtype, None), self._order, start, None))
        readings.computed.append((len(block), finish))
        self._calls += 1

    def _describe(self, value: Tensor | Shard) -> tuple[Tensor, Described]:
        if type(value) is not Shard:
            return value, self._tensors.describe(value)
        shape, dtype, _ = self._tensors.describe(value.tensor)
        return value.tensor, (shape, dtype, value.coverage)

    def forget(self, signal: str, key: Key) -> None:
        """Leave out a row, whose value is out of date, until it is recorded again."""
        readings = self._readings.get(signal)
        if readings is not None and key in readings.rows:
            readings.forgotten.add(key)

    def next_call(self, signal: str, key: Key) -> Key:
        """Return ``key`` or, if it was recorded before, its next repetition."""
        readings = self._readings.get(signal)
        while readings is not None and key in readings.rows:
            key = key._replace(call=key.call + 1)
        return key

    def drain(self) -> Pending:
        """Return the step and begin another; start the one copy to the host."""
        pending = self._pending(self._readings, self._slab.drain)
        self._begin()
        return pending

    def peek(self, signals: Iterable[str] | None) -> Pending:
        """Return the rows of ``signals`` (all if None) so far, and keep collecting."""
        readings = self._readings if signals is None else {s: r for s, r in self._readings.items() if s in set(signals)}
        return self._pending(dict(readings), self._slab.rows)

    def _pending(self, readings: dict[str, Readings], rows: Callable[[], Array]) -> Pending:
        """Return ``readings``, with the ``rows`` of the slab, after the held tensors have been reduced together."""
        if self._held_tensors:
            first = len(self._held_rows)
            self._held_rows += self._reduced(
                self._held_tensors, None, lambda i, error: self._leave_out_held(first + i, error)
            )
            self._held_tensors = []
        wait = self._tensors.to_host(self._blocks) if self._blocks else _no_rows
        held_rows = list(self._held_rows)
        return Pending(
            readings, self.columns, wait, self._block_rows, held_rows, rows(), self._nothing, self._distribution
        )

    def _reduced(
        self, tensors: Sequence[Tensor], scale: Tensor | None, lost: Callable[[int, Exception], object], first: int = 0
    ) -> Sequence[Reference]:
        """Return the references of the values. Reduce all together or, if that fails, in ever smaller parts, and call
        ``lost`` with the number of each tensor that cannot be reduced, and the error."""
        try:
            kind, start = self._add(self._moments(tensors, scale), len(tensors))
        except Exception as error:  # noqa: BLE001 - other tensors can still be reduced
            if len(tensors) == 1:
                lost(first, error)
                return [(MISSING, 0)]
        else:
            return [(kind, start + i) for i in range(len(tensors))]
        half = len(tensors) // 2
        before = self._reduced(tensors[:half], scale, lost, first)
        return [*before, *self._reduced(tensors[half:], scale, lost, first + half)]

    def _leave_out(self, signal: str, key: Key, error: Exception) -> Reference:
        """Count a row whose tensor could not be reduced."""
        self._failed(f"{signal} of {'.'.join(filter(None, (key.name, key.part)))}", error)
        return MISSING, 0

    def _leave_out_held(self, number: int, error: Exception) -> None:
        """Count every row of a held tensor that could not be reduced."""
        for signal, readings in self._readings.items():
            for key, row in readings.rows.items():
                if row[2] == (HELD, number):
                    self._leave_out(signal, key, error)

    def _put(self, signal: str, micro_stepped: bool) -> Readings:
        readings = self._readings.get(signal)
        if readings is None:
            readings = self._readings[signal] = Readings(micro_stepped)
        readings.micro_stepped |= micro_stepped
        return readings

    def _scale(self, scale: Tensor) -> Reference:
        """Return the reference of a copy of ``scale``: a scaler changes it in place after the step."""
        identity, _ = self._tensors.identity(scale)
        if identity not in self._scales:
            block = self._tensors.moments([scale], ("sum",) * width(self.columns), 0.0, None)
            self._scales[identity] = (scale, self._add(block, 1))
        return self._scales[identity][1]

    def _moments(self, tensors: Sequence[Tensor], scale: Tensor | None) -> Block:
        return self._tensors.moments(tensors, self.columns, self._eps, scale)

    def _add(self, block: Block, rows: int) -> Reference:
        self._blocks.append(block)
        self._block_rows += rows
        return BLOCK, self._block_rows - rows
