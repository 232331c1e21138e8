"""Model sizes, initial weights and batches of the demonstration: the same numbers on every framework."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

BYTES = 256
BATCH = 16
LEARNING_RATE = 1e-3
WARM_UP = 20
"""Steps in which the learning rate rises to its value; no fault strikes before their end."""
LONGEST_GRADIENT = 1.0
"""Norm of all gradients together to which they are clipped."""
DEVIATION = 0.02
"""Standard deviation of the matrices that training starts from."""

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.int64]


class Size(NamedTuple):
    """Size of the model."""

    layers: int = 4
    width: int = 192
    heads: int = 4
    context: int = 128
    """Number of bytes in a sequence."""


def warm_up(step: int) -> float:
    """Factor on the learning rate."""
    return min(1.0, (step + 1) / WARM_UP)


def initial_weights(shapes: Mapping[str, Sequence[int]], layers: int, seed: int) -> dict[str, Floats]:
    """Initial values of each parameter: normal matrices, zero biases, norms that change nothing.

    The projections that each layer adds to the residual stream are scaled by 1 / sqrt(number of additions), as in GPT-2
    (Radford et al., 2019, section 2.3).

    Args:
        shapes: shape of every parameter by name, in the model's order.
    """
    random = np.random.default_rng([seed, 0x6E])
    residual = (2 * layers) ** -0.5
    return {
        name: _initial(name, shape, residual if name.endswith(("projection.weight", "fc2.weight")) else 1.0, random)
        for name, shape in shapes.items()
    }


def _initial(name: str, shape: Sequence[int], scale: float, random: np.random.Generator) -> Floats:
    if len(shape) > 1:
        return (random.standard_normal(tuple(shape)) * DEVIATION * scale).astype(np.float32)
    return np.full(shape, name.endswith(("weight", "gamma")), dtype=np.float32)


def batches(steps: int, context: int, seed: int) -> Iterator[tuple[Bytes, Bytes]]:
    """Yield, for each step, bytes at random places of the text and the byte after each: ``(BATCH, context)`` both."""
    text: npt.NDArray[Any] = np.frombuffer(standard_library(), dtype=np.uint8)
    random = np.random.default_rng([seed, 0x7E])
    within = np.arange(context + 1)
    for _ in range(steps):
        starts = random.integers(len(text) - context, size=(BATCH, 1))
        pieces = text[starts + within].astype(np.int64)
        yield pieces[:, :-1].copy(), pieces[:, 1:].copy()


LIMIT = 2_000_000
"""Most bytes to read."""


def standard_library(limit: int = LIMIT) -> bytes:
    """Source of the top-level modules of the standard library, one after the other by name; at most ``limit`` bytes.

    Raises:
        FileNotFoundError: if this Python comes without its sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    text = b""
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    if not text:
        raise FileNotFoundError(f"{folder}: no source files (*.py) of the standard library to train on")
    return text[:limit]
