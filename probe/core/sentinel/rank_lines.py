"""Lines of a rank: the norm and the sum of each gradient at every update, and of the parameters that were read, in a
mapped file that the parent process of the node reads.

The file has a header (:class:`LinesHeader`, written once) and a ring of the latest lines, each a part of
:mod:`probe.core.storage.mapped_parts`.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.launch import launch_names, local_size
from probe.core.messages import writable
from probe.core.storage.files import FileView
from probe.core.storage.mapped_parts import PART, TRIES, mapped, part, put

MAGIC = b"probe-lines-2\n"
"""First bytes of a file: its kind and the version of its layout."""
SUFFIX, OF = ".lines", "-of"
"""Ends of the name of a file; the second comes before the number of the ranks."""
PLACES = struct.Struct("<QQQ")
"""Bytes of the header's text, number of lines in the ring, bytes of a line."""
TEXT_AT = len(MAGIC) + PLACES.size
LINE = struct.Struct("<qqdq")
"""Step, number of the optimizer, loss, sum of the bits of the tables that follow the first."""
UNREDUCED, VALUES, MEAN, TALKS, REDUCES = 1, 2, 4, 8, 16
"""Bits of the tables of unreduced gradients and of parameters, of a loss that is a mean, of ranks that talk, and of
gradients that they reduce. The first table is that of reduced gradients."""
LABELS, MASKS, DIGEST = 8, 32, (1 << 24) - 1
"""Places of the bits of the digests of labels and of masks, and the bits of one."""
MOST_TABLES = 3
MOST_LINES = 4096
MOST_BYTES = 4 << 20
"""Bytes of a ring."""
FEWEST_LINES = 4
"""Lines of a ring that there are for any number of parameters: ranks are rarely at the same step."""
NUMBERS = 2
"""Numbers of a gradient or parameter: its norm and its sum."""
MOST_PARAMETERS = (MOST_BYTES // FEWEST_LINES - PART.size - LINE.size) // (MOST_TABLES * NUMBERS * 8)
"""Parameters of a line; of more, the first."""

Array = npt.NDArray[np.float64]
_numbers = count()


class LinesHeader(NamedTuple):
    """Facts about the lines of one file."""

    pid: int
    rank: int
    number: int
    """Number of the file among those of its process; the same on ranks that train together."""
    launch: str
    """Names of the launch, equal on its ranks alone."""
    began: float
    """Seconds since the epoch."""
    root: str
    """Output root of the process."""
    names: tuple[str, ...]
    """Names of the parameters, a row of a table each."""
    replicas: tuple[int, ...]
    """Ranks that hold the same reduced gradients; empty if unknown, or if gradients are sharded over them."""
    tensor_parallel: tuple[int, ...]
    """Ranks of the tensor-parallel group; empty if unknown."""
    split: tuple[bool, ...]
    """For each parameter whether each tensor-parallel rank has another part; empty if nothing marks it."""
    left_out: int = 0
    """Parameters for which there was no room."""
    sharded: bool = False
    """True if ranks hold parts of parameters, so that nothing need be equal on them."""
    world: int = 1
    """Number of the ranks, on all nodes."""
    here: int = 0
    """Number of them on this node; 0 if unknown."""

    @property
    def has_other_nodes(self) -> bool:
        """True if ranks on other nodes may be compared with this one."""
        return bool(self.launch) and self.world > self.here > 0 and not self.sharded


class RankLine(NamedTuple):
    """Numbers of one update on one rank."""

    step: int
    optimizer: int
    loss: float
    """NaN if it is not known."""
    reduced: Array
    """``parameters x 2``: norm and sum of each gradient that the update applies, after clipping where its factor is
    known; NaN in both where there is no gradient."""
    unreduced: Array | None = None
    """Norm and sum of each of this rank's own gradients before any reduction; NaN for a gradient that was not read,
    None if none was."""
    values: Array | None = None
    """Norm and sum of each parameter before the update; NaN for a parameter that was not read, None if none was."""
    mean: bool = False
    """True if the root of the only backward was the mean loss of this rank's samples, and the size of the gradient
    decides on that of the update."""
    labels: int = 0
    """Digest of the labels of the latest graph of a loss that was looked at; 0 if none shows them."""
    talks: bool = False
    """True if collectives of all ranks have run between two of the first losses."""
    reduces: bool = False
    """True if as many collectives of all ranks as there are gradients have run between the backward and the update."""
    masks: int = 0
    """Digest of the mask of a dropout in the latest graph of a loss that was looked at; 0 if there is none."""


class RankLines:
    """Writer of the lines of one rank and one optimizer. Its methods are meant for the training thread; in a forked
    child they do nothing.

    Args:
        folder: of the board.
        names: names of the parameters, in the order of the rows.
        replicas: ranks that hold the same reduced gradients; empty if unknown, or if each has another shard of them.
        tensor_parallel: ranks of the tensor-parallel group; empty if unknown.
        split: for each parameter whether each tensor-parallel rank has another part of it; empty if nothing marks them.
        root: output root of the process.
        sharded: whether ranks hold parts of parameters.
        world: number of the ranks.

    Raises:
        OSError: if the file cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        names: Sequence[str],
        replicas: Sequence[int] = (),
        tensor_parallel: Sequence[int] = (),
        split: Sequence[bool] = (),
        root: str = "",
        sharded: bool = False,
        world: int = 1,
    ) -> None:
        number = next(_numbers)
        self.path = folder / f"rank{rank}-{os.getpid()}-{number}{OF}{world}{SUFFIX}"
        self._process, self._rows, self._generation = os.getpid(), min(len(names), MOST_PARAMETERS), 0
        header = LinesHeader(
            pid=os.getpid(),
            rank=rank,
            number=number,
            launch="\n".join(launch_names(os.environ, restarts=True).values()),
            began=time.time(),
            root=root,
            names=tuple(map(writable, names[: self._rows])),
            replicas=tuple(replicas),
            tensor_parallel=tuple(tensor_parallel),
            split=tuple(map(bool, split[: self._rows])),
            left_out=len(names) - self._rows,
            sharded=sharded,
            world=world,
            here=local_size(os.environ),
        )
        text = json.dumps(header._asdict(), ensure_ascii=False).encode("utf-8", "replace")
        self._bytes = PART.size + LINE.size + MOST_TABLES * NUMBERS * 8 * self._rows
        self._lines = max(FEWEST_LINES, min(MOST_LINES, MOST_BYTES // self._bytes))
        self._at = TEXT_AT + len(text)
        hidden = self.path.with_name(f".{self.path.name}")  # readers see the file whole or not at all
        places = PLACES.pack(len(text), self._lines, self._bytes)
        self._map: mmap.mmap = mapped(hidden, self._at + self._lines * self._bytes, MAGIC + places + text)
        hidden.rename(self.path)

    def write(self, line: RankLine) -> None:
        """Write the numbers of an update, in place of the oldest line if there is no room. Take some microseconds."""
        if os.getpid() != self._process:
            return
        at = self._at + self._generation % self._lines * self._bytes
        self._generation += 1
        put(self._map, at, self._generation, packed(line, self._rows))


class LinesReader:
    """Reader of the lines of one file.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it has another layout.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = FileView(path)
        if self._file.read(0, len(MAGIC)) != MAGIC or self._file.size < TEXT_AT:
            self.close()
            raise ValueError(f"{path}: expected a file of lines, version {MAGIC.decode().strip()}")
        size, self._lines, self._bytes = PLACES.unpack(self._file.read(len(MAGIC), PLACES.size))
        self._at = TEXT_AT + size
        try:
            self.header = header_of(json.loads(self._file.read(TEXT_AT, size)))
        except (TypeError, ValueError, KeyError) as error:
            self.close()
            raise ValueError(f"{path}: the header cannot be read: {error}") from None
        self._generation = 0
        self.missed = 0
        """Lines that were overwritten before they were read."""

    def news(self) -> list[RankLine]:
        """Return the lines since the last call, in their order; those that were overwritten meanwhile are counted."""
        lines: dict[int, RankLine] = {}
        for place in range(self._lines):
            at = self._at + place * self._bytes
            generation = self._generation_at(at)
            if generation > self._generation and (line := self._line(at)) is not None:
                lines[line[0]] = line[1]
        if lines:
            self.missed += max(lines) - self._generation - len(lines)
            self._generation = max(lines)
        return [lines[generation] for generation in sorted(lines)]

    def _generation_at(self, at: int) -> int:
        head = self._file.read(at, PART.size)
        generation: int = PART.unpack(head)[0] if len(head) == PART.size else 0
        return generation

    def _line(self, at: int) -> tuple[int, RankLine] | None:
        for _ in range(TRIES):
            if (read := part(self._file, at)) is not None:
                return read[0], parsed(read[1])
        return None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def packed(line: RankLine, rows: int) -> bytes:
    """Return the bytes of a line with the first ``rows`` parameters."""
    bits = (0 if line.unreduced is None else UNREDUCED) | (0 if line.values is None else VALUES)
    flags = (MEAN, line.mean), (TALKS, line.talks), (REDUCES, line.reduces)
    bits |= sum(bit for bit, is_set in flags if is_set) | line.labels << LABELS | line.masks << MASKS
    tables = [table for table in (line.reduced, line.unreduced, line.values) if table is not None]
    numbers = [np.ascontiguousarray(table[:rows], np.float64).tobytes() for table in tables]
    return LINE.pack(line.step, line.optimizer, line.loss, bits) + b"".join(numbers)


def parsed(data: bytes) -> RankLine:
    """Return the line of the bytes that :func:`packed` has returned.

    Raises:
        ValueError: if they are others.
    """
    try:
        step, optimizer, loss, bits = LINE.unpack_from(data)
    except struct.error as error:
        raise ValueError(f"expected a line of a rank: {error}") from None
    number = 1 + sum(bool(bits & bit) for bit in (UNREDUCED, VALUES))
    tables = [*np.frombuffer(data, np.float64, offset=LINE.size).reshape(number, -1, NUMBERS)]
    reduced = tables.pop(0)
    unreduced = tables.pop(0) if bits & UNREDUCED else None
    values = tables.pop(0) if bits & VALUES else None
    digests = bits >> LABELS & DIGEST, bits >> MASKS & DIGEST
    flags = bool(bits & MEAN), digests[0], bool(bits & TALKS), bool(bits & REDUCES), digests[1]
    return RankLine(step, optimizer, loss, reduced, unreduced, values, *flags)


def header_of(fields: dict[str, Any]) -> LinesHeader:
    """Return a header from its fields.

    Raises:
        TypeError, KeyError: if they are others.
    """
    sequences = {name: tuple(fields[name]) for name in ("names", "replicas", "tensor_parallel", "split")}
    return LinesHeader(**{**fields, **sequences})
