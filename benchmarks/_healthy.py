"""Interface of healthy trainings, and the text that they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probe.demo.recipe import LIMIT, standard_library


class Training(NamedTuple):
    """Training at its beginning."""

    model: Any
    optimizer: Any
    step: Callable[[], object]
    """Function that takes one training step, of any number of micro batches."""
    micro_batches: int = 1


def pieces(text: bytes, length: int, seed: int, batch: int) -> Iterator[tuple[Any, Any]]:
    """Yield bytes at random places of the text and the byte after each, as :func:`probe.demo.recipe.batches` does."""
    values = np.frombuffer(text, dtype=np.uint8)
    random = np.random.default_rng([seed, 0x7E])
    within = np.arange(length + 1)
    while True:
        found = values[random.integers(len(values) - length, size=(batch, 1)) + within].astype(np.int64)
        yield found[:, :-1].copy(), found[:, 1:].copy()


def texts(folders: list[Path]) -> list[bytes]:
    """Source files of each folder, one text a folder; those of the standard library if there is no folder.

    Raises:
        FileNotFoundError: if a folder has no source files.
    """
    return [_text(folder) for folder in folders] or [standard_library()]


def _text(folder: Path) -> bytes:
    files = sorted(folder.glob("*.py"))
    if not files:
        raise FileNotFoundError(f"{folder}: expected source files (*.py) to train on")
    return b"".join(path.read_bytes() for path in files)[:LIMIT]
