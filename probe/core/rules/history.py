"""History of values by (signal, key, op): plain arrays, and the row that each key has in them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.moments import OPS
from probe.core.records import Array, Batch, Key

Indices = npt.NDArray[np.int64]
log = logging.getLogger(__name__)

LIMIT = 1_000_000
"""Most (signal, key, op) that one rule remembers."""
FORGET_AFTER = 10_000
"""Steps after which a key without new values may lose its row to another, if there is no room."""
VARYING = frozenset({"actv", "actv_grad", "other", "attention_hook", "moe_router_logit_hook"})
"""Signals of tensors whose shapes vary with the batch."""
NEVER = np.iinfo(np.int64).max
"""Last step of a row that is wiped when it is next used: every step lies before it."""


class Field(NamedTuple):
    """Number, or a vector of them, that is remembered for each (signal, key, op)."""

    initial: float
    dtype: type[np.generic]
    shape: tuple[int, ...] = ()


class HistoryReadings(NamedTuple):
    """Values of several ops of one batch, concatenated; four columns of equal length."""

    values: Array
    slots: Indices
    """Index of each value's memory in :meth:`History.of`."""
    op: Indices
    """Index of each value's op."""
    at: Indices
    """Row of each value in the batch."""

    def where(self, mask: npt.NDArray[np.bool_] | Indices) -> HistoryReadings:
        return HistoryReadings(self.values[mask], self.slots[mask], self.op[mask], self.at[mask])


class History:
    """Memory for ``ops`` of every key seen, bounded, and wiped for a key whose step goes back (a rollback), and for one
    that names a tensor of another shape now, where shapes do not vary with the batch."""

    def __init__(self, ops: Sequence[str], fields: Mapping[str, Field], limit: int = LIMIT) -> None:
        self.dropped = 0
        """Number of values that were not judged because there was no room to remember them."""
        self._ops = tuple(ops)
        self._fields = dict(fields)
        self._arrays = {name: _rows(field, 0, len(self._ops)) for name, field in fields.items()}
        self._last_step = np.empty(0, dtype=np.int64)
        """Last step of each row."""
        self._shape = np.empty(0, dtype=np.int64)
        """Hash of the shape of each row; 0 where no shape was seen."""
        self._shapes: dict[str, Sequence[tuple[int, ...]]] = {}
        self._limit = limit // max(len(self._ops), 1)
        self._index: dict[str, dict[Key, int]] = {}
        self._free: list[int] = []
        self._latest: dict[str, tuple[tuple[Key, ...], Indices]] = {}
        self._newest: dict[str, int] = {}
        """Last step of any row of a signal."""

    def of(self, name: str) -> npt.NDArray[Any]:
        """Array of a field, by slot, to read and to write. Fetch it again after each :meth:`read`."""
        return self._arrays[name].reshape(-1, *self._fields[name].shape)

    def index(self, signal: str) -> Mapping[Key, int]:
        """Return the rows of the keys of a signal that are held."""
        return self._index.get(signal, {})

    def read(self, batch: Batch, with_nan: bool = False) -> HistoryReadings:
        """Read these ops from ``batch``, without NaN unless it is asked for, and without keys for which there is no
        room."""
        ops = [n for n, op in enumerate(self._ops) if op in OPS and OPS[op].moment in batch.columns]
        if not ops or not len(batch):
            return HistoryReadings(np.empty(0), *(np.empty(0, dtype=np.int64) for _ in range(3)))
        rows = self.rows(batch)
        values = np.stack([batch.op(self._ops[n]) for n in ops])
        usable = (with_nan | ~np.isnan(values)) & (rows >= 0)
        if usable.all():  # mostly, and quicker
            kinds, at = _grid(tuple(ops), len(rows))
            return HistoryReadings(values.ravel(), rows[at] * len(self._ops) + kinds, kinds, at)
        op, at = np.nonzero(usable)
        kinds = np.array(ops, dtype=np.int64)[op]
        return HistoryReadings(values[op, at], rows[at] * len(self._ops) + kinds, kinds, at)

    def rows(self, batch: Batch) -> Indices:
        """Return the row of each key, which is its slot if there is one op; -1 if there is no room."""
        keys, rows = self._latest.get(batch.signal, ((), None))
        newest = self._newest.get(batch.signal, batch.step)
        if rows is None or keys != batch.keys:
            rows = self._look_up(batch)
        elif newest <= batch.step:  # mostly, and quicker: each key has a row, and none was seen at a later step
            self._last_step[rows] = self._newest[batch.signal] = batch.step
            return self._of_the_same_shape(batch, rows)
        used_rows = rows[rows >= 0]
        self._wipe(used_rows[self._last_step[used_rows] > batch.step])
        self._last_step[used_rows] = batch.step
        self._newest[batch.signal] = max(newest, batch.step)
        return self._of_the_same_shape(batch, rows)

    def _of_the_same_shape(self, batch: Batch, rows: Indices) -> Indices:
        """Return the rows, of which those are wiped whose keys name a tensor of another shape now."""
        if batch.signal not in VARYING and self._shapes.get(batch.signal) != batch.shapes:
            self._shapes[batch.signal] = batch.shapes
            shapes = np.fromiter(map(hash, batch.shapes), dtype=np.int64, count=len(batch))
            at = np.flatnonzero(rows >= 0)
            used_rows, shapes = rows[at], shapes[at]
            self._wipe(used_rows[(self._shape[used_rows] != 0) & (self._shape[used_rows] != shapes)])
            self._shape[used_rows] = shapes
        return rows

    def _look_up(self, batch: Batch) -> Indices:
        index = self._index.setdefault(batch.signal, {})
        self._admit(index, [key for key in batch.keys if key not in index], batch.step)
        rows = np.fromiter((index.get(key, -1) for key in batch.keys), dtype=np.int64, count=len(batch))
        missing = int((rows < 0).sum())
        if missing:
            self._count_dropped(missing)
        else:
            self._latest[batch.signal] = (batch.keys, rows)
        return rows

    def _admit(self, index: dict[Key, int], keys: Sequence[Key], step: int) -> None:
        if len(keys) > len(self._free):
            self._grow(len(self._last_step) + len(keys) - len(self._free))
        if len(keys) > len(self._free):
            self._forget_before(step - FORGET_AFTER)
        for key in keys[: len(self._free)]:
            index[key] = self._free.pop()

    def _grow(self, number: int) -> None:
        """Make room for ``number`` rows or more, by doubling, up to the limit."""
        old = len(self._last_step)
        added = min(max(number, 2 * old, 64), self._limit) - old
        self._last_step = np.append(self._last_step, np.full(added, NEVER))
        self._shape = np.append(self._shape, np.zeros(added, dtype=np.int64))
        for name, field in self._fields.items():
            self._arrays[name] = np.concatenate([self._arrays[name], _rows(field, added, len(self._ops))])
        self._free += range(old + added - 1, old - 1, -1)

    def _forget_before(self, step: int) -> None:
        gone = set(np.flatnonzero(self._last_step < step).tolist())
        if not gone:
            return
        for signal, index in self._index.items():
            self._index[signal] = {key: row for key, row in index.items() if row not in gone}
        self._last_step[list(gone)], self._shape[list(gone)] = NEVER, 0
        self._free += gone
        self._latest.clear()

    def _wipe(self, rows: Indices) -> None:
        if len(rows):
            for name, field in self._fields.items():
                self._arrays[name][rows] = field.initial

    def _count_dropped(self, keys: int) -> None:
        if not self.dropped:
            log.warning("alert rule has no room for more keys: limit=%d; further ones are not judged", self._limit)
        self.dropped += keys * len(self._ops)


@lru_cache(maxsize=64)
def _grid(ops: tuple[int, ...], rows: int) -> tuple[Indices, Indices]:
    """Op and row of each number of a table of ops x rows, not to be written."""
    kinds, at = np.repeat(np.array(ops, dtype=np.int64), rows), np.tile(np.arange(rows), len(ops))
    kinds.flags.writeable = at.flags.writeable = False
    return kinds, at


def _rows(field: Field, count: int, ops: int) -> npt.NDArray[Any]:
    return np.full((count, ops, *field.shape), field.initial, dtype=field.dtype)


class Alignment:
    """Places of the keys of one batch in another, kept because they rarely change from step to step."""

    def __init__(self) -> None:
        self._keys: tuple[Key, ...] = ()
        self._others: tuple[Key, ...] = ()
        self._at: Indices = np.empty(0, dtype=np.int64)

    def of(self, keys: tuple[Key, ...], others: tuple[Key, ...]) -> Indices:
        """Place of each of ``keys`` among ``others``; -1 if it is not there."""
        if (keys, others) != (self._keys, self._others):
            index = {key: place for place, key in enumerate(others)}
            self._at = np.fromiter((index.get(key, -1) for key in keys), dtype=np.int64, count=len(keys))
            self._keys, self._others = keys, others
        return self._at


@lru_cache(maxsize=64)
def measures(dtypes: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Return the mask of measurements by dtype, in any framework's spelling: ids and masks have no typical size."""
    return np.array([not ("int" in name.lower() or "bool" in name.lower()) for name in dtypes], dtype=bool)
