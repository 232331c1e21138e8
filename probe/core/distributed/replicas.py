"""Comparison of the copies of a tensor on several ranks, while training runs.

Ranks exchange one number of 64 bits for each tensor, computed from its moments: in healthy data-parallel training the
copies are the same to the last bit, and so are the moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from probe.core.backend.protocols import Parallel
from probe.core.distributed.exchange import Table, TableExchange, identity_of, meet
from probe.core.moments import MOMENTS
from probe.core.records import Array, Batch, Coverage, Key
from probe.core.rules import about
from probe.core.rules.replica import AGREEING, CHANGES, COPIES, OTHER, replicated

Mask = npt.NDArray[np.bool_]
ROW = np.dtype([("identity", "u8"), ("digest", "u8")])
MIX = np.uint64(0x9E3779B97F4A7C15)
"""Odd number whose bits look random: 2**64 over the golden ratio (Knuth, "The Art of Computer Programming", volume 3,
section 6.4)."""


class Replicas:
    """Comparison of the copies that ``ranks`` hold; used on one thread.

    Args:
        assumed: whether nothing shows that the ranks are replicas; then rows count that have proved to be copies.
    """

    def __init__(
        self, parallel: Parallel, ranks: Sequence[int], where: str, alike: str, seconds: float, assumed: bool = False
    ) -> None:
        self.ranks = tuple(sorted(ranks))
        self._proofs = Proofs() if assumed else None
        self._parallel, self._where, self._alike, self._seconds = parallel, where, alike, seconds
        self._tables: TableExchange | None = None
        self._known: dict[str, tuple[tuple[Key, ...], tuple[Coverage | None, ...], npt.NDArray[np.uint64]]] = {}

    def add(self, step: int, batches: Sequence[Batch]) -> list[Batch]:
        """Add the columns of :mod:`probe.core.rules.replica` to those of ``batches`` in which any row differs from its
        copies: the files of healthy runs have none of them.

        Raises:
            Exception: if a rank did not come, or came with another step.
        """
        judged = [n for n, batch in enumerate(batches) if replicated(batch.signal) and len(batch)]
        parts = [self._table(batches[n]) for n in judged]
        mine = np.concatenate([*parts, np.empty(0, ROW)])
        if self._tables is None:
            exchange, rows = meet(self._parallel, self.ranks, self._where, self._alike, len(mine), self._seconds)
            self._tables = TableExchange(self.ranks, exchange, ROW, rows)
        theirs = self._tables.swap(step, mine)
        if all(np.array_equal(table, mine) for table in theirs):
            if self._proofs is not None:
                self._proofs.add(mine, np.ones(len(mine), bool), np.ones(len(mine), bool))
            return list(batches)
        columns, added, begin = self._counted(mine, theirs), list(batches), 0
        if self._proofs is not None:
            doubtful = ~self._proofs.add(mine, columns[AGREEING] == columns[COPIES], columns[COPIES] > 1)
            columns[AGREEING][doubtful], columns[OTHER][doubtful] = columns[COPIES][doubtful], np.nan
        for n in judged:
            more = {name: values[begin : begin + len(batches[n])] for name, values in columns.items()}
            if (more[AGREEING] < more[COPIES]).any():
                added[n] = replace(batches[n], columns={**batches[n].columns, **more})
            begin += len(batches[n])
        return added

    def close(self) -> None:
        """End the exchange."""
        if self._tables is not None:
            self._tables.close()

    def _table(self, batch: Batch) -> Table:
        table = np.empty(len(batch), ROW)
        table["identity"], table["digest"] = self._identities(batch), digests(batch)
        return table

    def _identities(self, batch: Batch) -> npt.NDArray[np.uint64]:
        keys, coverage, known = self._known.get(batch.signal, ((), (), None))
        if known is None or (keys, coverage) != (batch.keys, batch.coverage):
            known = np.array([*_identities(batch)], np.uint64)
            self._known[batch.signal] = batch.keys, batch.coverage, known
        return known

    def _counted(self, mine: Table, theirs: Sequence[Table]) -> dict[str, Array]:
        """Count, for each row of this rank, its copies and those that agree, and find the lowest rank that does not."""
        copies, agreeing, other = np.zeros(len(mine)), np.zeros(len(mine)), np.full(len(mine), np.nan)
        for rank, table in zip(self.ranks, theirs, strict=True):
            held = dict(zip(table["identity"].tolist(), table["digest"].tolist(), strict=True))
            digests_there = [held.get(identity) for identity in mine["identity"].tolist()]
            there = np.array([digest is not None for digest in digests_there], bool)
            same = np.array([a == b for a, b in zip(digests_there, mine["digest"].tolist(), strict=True)], bool)
            copies += there
            agreeing += same
            other = np.where(there & ~same & np.isnan(other), rank, other)
        return {COPIES: copies, AGREEING: agreeing, OTHER: other}


class Proofs:
    """Rows that have proved to be copies of one tensor. Parts of a tensor may look alike at first, all 0 or all 1, and
    after Adam's first update, each element of which has the size of the learning rate."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._identities: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._at = np.empty(0, np.int64)
        self._digest: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._changes = np.empty(0, np.int64)
        self._alike: Mask = np.empty(0, bool)

    def add(self, mine: Table, equal: Mask, received: Mask) -> Mask:
        """Note which rows of a step are equal on all ranks; return the mask of those that had proved to be copies
        before, or do so now.

        Args:
            received: mask of the rows of which another rank's numbers have come.
        """
        at = self._places(mine)
        proved = self._alike[at] & (self._changes[at] >= CHANGES)
        self._changes[at] += received & (self._digest[at] != mine["digest"])
        self._digest[at] = mine["digest"]
        self._alike[at] &= equal | proved
        mask: Mask = self._alike[at] & (self._changes[at] >= CHANGES)
        return mask

    def _places(self, mine: Table) -> npt.NDArray[np.int64]:
        if not np.array_equal(mine["identity"], self._identities):
            self._identities = mine["identity"].copy()
            new = [identity for identity in self._identities.tolist() if identity not in self._rows]
            self._rows |= {identity: len(self._rows) + n for n, identity in enumerate(new)}
            self._digest = np.append(self._digest, np.zeros(len(new), np.uint64))
            # the first numbers are no change
            self._changes = np.append(self._changes, np.full(len(new), -1, np.int64))
            self._alike = np.append(self._alike, np.ones(len(new), bool))
            self._at = np.array([self._rows[identity] for identity in self._identities.tolist()], np.int64)
        return self._at


def _identities(batch: Batch) -> Iterator[int]:
    """Identities that are equal for copies of one tensor, or of one part of it."""
    for row, key in enumerate(batch.keys):
        coverage = batch.coverage[row] if batch.coverage else None
        shape, part = (coverage.shape, coverage.part) if coverage else (batch.shapes[row], "")
        yield identity_of([batch.signal, key, shape, part])


def digests(batch: Batch) -> npt.NDArray[np.uint64]:
    """Digest of the moments of each row; all kinds of NaN count as equal, and so do both zeros."""
    mixed = np.zeros(len(batch), np.uint64)
    for name in MOMENTS:
        if name in batch.columns:
            values = batch.columns[name]
            bits = np.where(np.isnan(values), np.nan, values + 0.0).astype(np.float64).view(np.uint64)
            mixed = (mixed ^ bits) * MIX  # wraps around
            mixed ^= mixed >> np.uint64(32)
    return mixed


def compared(
    rules: Iterable[str], parallel: Parallel, group: Sequence[int], world_size: int
) -> tuple[Sequence[int], bool]:
    """Ranks that should hold the same parameters, none unless one of ``rules`` judges replicas; and whether that is an
    assumption, since neither the program nor an engine names them.

    Args:
        group: data-parallel group passed to ``set_monitor``, or that of the model's wrapper; empty if there is none.
    """
    if not any("replicas" in about(rule).collects for rule in rules):
        return (), False
    named = parallel.named()
    experts = "expert_data_parallel" if len(named.get("expert_parallel", ())) > 1 else "data_parallel"
    known = group or named.get(experts)
    return known or range(world_size), not known
