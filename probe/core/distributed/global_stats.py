"""Numbers of whole tensors that are divided among ranks, by one small collective for each group of sharing ranks and
sampled step, in parallel with training and delivery (:mod:`probe.core.distributed.whole_tensors`).

Ranks exchange moments, which merge exactly. If one rank does not come in time, or comes with another step, no rank
waits for another again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from probe.core.backend.protocols import Exchange, Parallel
from probe.core.distributed.exchange import Table, TableExchange, identity_of, meet
from probe.core.distributed.replicas import Replicas
from probe.core.faults import Faults
from probe.core.histogram import HISTOGRAM, width
from probe.core.moments import MOMENTS, OPS, columns_for, derive, merge_columns, numels
from probe.core.records import Array, Batch, Coverage, Key

MERGED = (*MOMENTS, HISTOGRAM)
"""Columns that ranks exchange."""

_log = logging.getLogger("probe")


class Part(NamedTuple):
    """Row of a batch that is part of a whole tensor."""

    batch: int
    row: int
    identity: int
    """Identity of the whole, the same on all ranks."""
    part: int
    """Identity of the part that the row is about."""


class Group:
    """Ranks that hold the parts of the same tensors.

    Args:
        ranks: in ascending order.
        exchange: channel between them.
        columns: moments, in the same order on all of them.
        rows: largest number of rows on any of them when they met.
    """

    def __init__(self, ranks: tuple[int, ...], exchange: Exchange, columns: Sequence[str], rows: int) -> None:
        self._columns = tuple(columns)
        fields: list[Any] = [("identity", "u8"), ("part", "u8"), ("count", "f8")]
        fields += [(name, "f8", (width([name]),)) if name == HISTOGRAM else (name, "f8") for name in self._columns]
        self._row = np.dtype(fields)
        self._tables = TableExchange(ranks, exchange, self._row, rows)

    def merge(self, step: int, batches: Sequence[Batch], parts: Sequence[Part]) -> tuple[dict[str, Array], Array]:
        """Merge ``parts``: return the moments of each whole, and the number of its elements that were received.

        Raises:
            Exception: if a rank did not come, or came with another step.
        """
        mine = self._table(batches, parts)
        theirs = np.concatenate(self._tables.swap(step, mine))
        _, first = np.unique(theirs[["identity", "part"]], return_index=True)
        theirs = theirs[first]  # a part that two ranks hold counts once
        names, wholes = np.unique(theirs["identity"], return_inverse=True)
        counts = theirs["count"]
        merged = merge_columns({name: theirs[name] for name in self._columns}, counts, wholes, len(names))
        at = np.minimum(np.searchsorted(names, mine["identity"]), max(len(names) - 1, 0))
        known = names[at] == mine["identity"] if len(names) else np.zeros(len(mine), bool)
        received = (
            np.where(known, np.bincount(wholes, counts, len(names))[at], -1) if len(names) else -np.ones(len(mine))
        )
        return {name: values[at] for name, values in merged.items()}, received

    def close(self) -> None:
        """End the exchange."""
        self._tables.close()

    def _table(self, batches: Sequence[Batch], parts: Sequence[Part]) -> Table:
        table = np.zeros(len(parts), self._row)
        table["identity"], table["part"] = [p.identity for p in parts], [p.part for p in parts]
        rows = {id(batch): numels(batch.shapes) for batch in batches}
        table["count"] = [rows[id(batches[p.batch])][p.row] for p in parts]
        for name in self._columns:
            table[name] = [batches[p.batch].columns[name][p.row] for p in parts]
        return table


class GlobalStats:
    """Columns about whole tensors for batches. :meth:`add` and :meth:`close` are called on one thread.

    Args:
        run: name of the run, the same on all ranks.
        alike: text that must be the same on all ranks that exchange data: the signals, ops and steps that are
            collected.
        ops: ops that are written for each tensor.
        replicas: ranks whose copies of parameters are compared; none if empty.
        assumed: whether nothing shows that these ranks are replicas.
    """

    def __init__(
        self,
        parallel: Parallel,
        run: str,
        alike: str,
        ops: Sequence[str],
        seconds: float,
        faults: Faults,
        replicas: Sequence[int] = (),
        assumed: bool = False,
    ) -> None:
        self._parallel, self._run, self._alike = parallel, run, alike
        self._ops, self._seconds, self._faults = ops, seconds, faults
        self._met: dict[tuple[int, ...], Group] = {}
        self._identities: dict[tuple[str, Key, Coverage], tuple[int, int]] = {}
        self._off = False
        self._replicas: Replicas | None = None
        if len(replicas) > 1:
            where = f"{run}, replicas {tuple(sorted(replicas))}"
            self._replicas = Replicas(parallel, replicas, where, alike, seconds, assumed)

    def add(self, step: int, batches: Sequence[Batch]) -> list[Batch]:
        """Add the columns ``global_<op>`` and ``merged`` to ``batches`` with rows of parts; ``merged`` is 1 if all
        parts were received, else 0, and the numbers are NaN."""
        if self._off:
            return list(batches)
        whole = {i: self._own(batch) for i, batch in enumerate(batches) if batch.coverage}
        found = {ranks: list[Part]() for ranks in self._met} | self._parts(batches)
        for ranks, parts in sorted(found.items()):
            try:
                self._merge(step, batches, ranks, parts, whole)
            except Exception as error:  # noqa: BLE001 - a fault of another rank must not stop this one
                self._turn_off(error)
                break
        added = [self._with_columns(batch, *whole[i]) if i in whole else batch for i, batch in enumerate(batches)]
        return added if self._off or self._replicas is None else self._compared(step, added, self._replicas)

    def without(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return ``batches`` as :meth:`add` does if no other rank comes; on any thread."""
        if self._off:
            return list(batches)
        return [self._with_columns(batch, *self._own(batch)) if batch.coverage else batch for batch in batches]

    def give_up(self, error: Exception) -> None:
        """Stop exchanging because of ``error``; on any thread."""
        if not self._off:
            self._off = True
            self._faults.note("global statistics", error)
            _log.warning("global statistics end here: %s; training goes on", error)

    def end(self) -> None:
        """Stop exchanging, as the run is over; on any thread."""
        self._off = True

    def close(self) -> None:
        """End the exchanges."""
        for group in list(self._met.values()):
            group.close()
        self._met.clear()
        if self._replicas is not None:
            self._replicas.close()

    def _compared(self, step: int, batches: list[Batch], replicas: Replicas) -> list[Batch]:
        """Add the columns about copies on other ranks; always after all else, so that no two ranks wait for each other
        in two places."""
        try:
            return replicas.add(step, batches)
        except Exception as error:  # noqa: BLE001 - a fault of another rank must not stop this one
            self._turn_off(error)
            return batches

    def _own(self, batch: Batch) -> tuple[dict[str, Array], Array]:
        """Columns that need no other rank: the moments of whole tensors."""
        columns = {name: batch.columns[name].copy() for name in batch.columns if name in MERGED}
        return columns, np.array([coverage is None for coverage in batch.coverage], dtype=np.float64)

    def _parts(self, batches: Sequence[Batch]) -> dict[tuple[int, ...], list[Part]]:
        """Parts by the ranks that share them. Terms of sums are left out: they do not merge."""
        found: dict[tuple[int, ...], list[Part]] = {}
        for number, batch in enumerate(batches):
            for row, (key, coverage) in enumerate(zip(batch.keys, batch.coverage, strict=False)):
                if coverage is not None and not coverage.term:
                    about = (batch.signal, key, coverage)
                    if about not in self._identities:
                        whole = identity_of([batch.signal, key, coverage.shape])
                        self._identities[about] = whole, identity_of([coverage.part])
                    found.setdefault(coverage.ranks, []).append(Part(number, row, *self._identities[about]))
        return found

    def _merge(
        self,
        step: int,
        batches: Sequence[Batch],
        ranks: tuple[int, ...],
        parts: Sequence[Part],
        whole: dict[int, tuple[dict[str, Array], Array]],
    ) -> None:
        merged, counts = self._group(ranks, batches, len(parts)).merge(step, batches, parts)
        for i, part in enumerate(parts):
            coverage = batches[part.batch].coverage[part.row]
            columns, complete = whole[part.batch]
            if coverage is not None and counts[i] == numels([coverage.shape])[0]:
                complete[part.row] = 1.0
                for name in columns.keys() & merged.keys():
                    columns[name][part.row] = merged[name][i]

    def _group(self, ranks: tuple[int, ...], batches: Sequence[Batch], rows: int) -> Group:
        if ranks not in self._met:
            needed, covered = columns_for((*self._ops, "mean")), [b for b in batches if b.coverage]
            columns = [name for name in needed if all(name in batch.columns for batch in covered)]
            alike = json.dumps([self._alike, columns])
            where = f"{self._run}, ranks {ranks}"
            exchange, most = meet(self._parallel, ranks, where, alike, rows, self._seconds)
            self._met[ranks] = Group(ranks, exchange, columns, most)
        return self._met[ranks]

    def _with_columns(self, batch: Batch, columns: dict[str, Array], complete: Array) -> Batch:
        shapes = [c.shape if c else shape for c, shape in zip(batch.coverage, batch.shapes, strict=True)]
        unknown = complete == 0
        ops = [op for op in self._ops if op in OPS and OPS[op].moment in columns]
        added = {f"global_{op}": np.where(unknown, np.nan, derive(op, columns, shapes)) for op in ops}
        return replace(batch, columns={**batch.columns, **added, "merged": complete})

    def _turn_off(self, error: Exception) -> None:
        self.give_up(error)
        self.close()
