"""``linear_hook``: the spectral norm and the stable rank of a weight.

``kernel_norm`` is the spectral norm, the largest singular value: the most by which the layer can lengthen its input.
``sr`` is the Frobenius norm divided by it, between 1 and the root of the rank, as users of this configuration know it;
the stable rank of Rudelson and Vershynin (Sampling from large matrices, 2007) is its square.

The largest singular value is the root of the largest eigenvalue of ``A^T A``. It is computed by the Lanczos method with
full reorthogonalisation (Golub and Van Loan, Matrix Computations, 10.1) from a start vector of our own generator.
Unlike the power method it needs no gap between the first and the second eigenvalue: after k steps the error is of the
order of (log n / k)^2 (Kuczynski and Wozniakowski, 1992).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from probe.core.backend.protocols import Arrays, Block, Numbers
from probe.core.records import Array

STEPS = 128
"""Largest number of steps; as many as the smaller dimension give the exact result."""
CHECK = 16
"""Steps between two checks of convergence, where numbers can be read without waiting."""
CONVERGED = 1e-6
"""Relative bound on the error of the largest eigenvalue."""
BROKEN = 1e-6
"""Part of the mean eigenvalue below which the remainder of a vector is rounding: the space is complete."""


def begin(ops: Arrays, weight: Numbers) -> Block:
    """Return rows: the largest magnitude; the squared Frobenius norm of the weight divided by it; then the diagonal of
    the tridiagonal matrix of Lanczos and, as many, the elements beside the diagonal."""
    a = ops.wide(weight)
    size, squares = _measured(ops, a)
    if a.shape[0] < a.shape[1]:
        a = ops.turned(a)
    diagonal, beside = _lanczos(ops, a, size, squares)
    return ops.column([size, squares, *diagonal, *beside])


def _measured(ops: Arrays, a: Numbers) -> tuple[Numbers, Numbers]:
    """Return the largest magnitude, or 1 if it is 0, and the sum of the squares of the elements divided by it. Read
    some rows at a time, so that no copy as large as the weight is made."""
    rows = max(1, ops.block(a) // a.shape[1])
    parts = [a[first : first + rows] for first in range(0, a.shape[0], rows)]
    sizes, sums = ops.zeros((len(parts),), a), ops.zeros((len(parts),), a)
    for place, part in enumerate(parts):
        sizes[place] = ops.largest(ops.magnitude(part).reshape(-1))[0]
    size = ops.largest(sizes)
    size = ops.where(size == 0, 1.0, size).reshape(())
    for place, part in enumerate(parts):
        scaled = part / size
        sums[place] = (scaled * scaled).sum(-1).sum(-1)
    return size, sums.sum(-1)


def _lanczos(ops: Arrays, a: Numbers, size: Numbers, squares: Numbers) -> tuple[list[Numbers], list[Numbers]]:
    """Return the tridiagonal matrix of ``(a / size)^T (a / size)``: its diagonal and the elements beside it."""
    width = a.shape[1]
    steps, turned = min(width, STEPS), ops.turned(a)
    basis = ops.zeros((steps, width), a)
    vector = ops.like(np.random.Generator(np.random.PCG64(width)).standard_normal(width), a)
    vector = vector / ops.root((vector * vector).sum(-1))
    half = ops.root(size)  # two divisions by it stay in range where one by the size of a subnormal number does not
    diagonal, beside = [], []
    for step in range(steps):
        basis[step] = vector
        image = (turned @ ((a @ (vector / half)) / half / half)) / half
        diagonal.append((image * vector).sum(-1))
        earlier = basis[: step + 1]
        for _ in range(2):  # once leaves the error of cancellation
            image = image - (earlier @ image) @ earlier
        length = ops.root((image * image).sum(-1))
        done = length <= BROKEN * squares / width
        beside.append(ops.where(done, 0.0, length))
        if (step + 1) % CHECK == 0 and ops.on_host(a) and _converged(diagonal, beside):
            break
        vector = ops.where(done, 0.0, image / ops.where(done, 1.0, length))
    return diagonal, beside


def _converged(diagonal: list[Numbers], beside: list[Numbers]) -> bool:
    """True if the residual of the largest Ritz value, which bounds its error, is small enough."""
    matrix = _tridiagonal(np.array([float(x) for x in diagonal]), np.array([float(x) for x in beside]))
    if not np.isfinite(matrix).all():
        return True
    values, vectors = np.linalg.eigh(matrix)
    return bool(float(beside[-1]) * abs(vectors[-1, -1]) <= CONVERGED * values[-1])


def _tridiagonal(diagonal: Array, beside: Array) -> Array:
    return np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)


def finish(rows: Array) -> Mapping[str, float]:
    """Return the two numbers, made from the rows of :func:`begin`; both are NaN for a weight with NaN or Inf, and
    ``sr`` for one of zeros."""
    size, squares, rest = float(rows[0]), float(rows[1]), rows[2:]
    matrix = _tridiagonal(rest[: len(rest) // 2], rest[len(rest) // 2 :])
    if not (math.isfinite(size) and np.isfinite(matrix).all()):
        return {"sr": math.nan, "kernel_norm": math.nan}
    spectral = math.sqrt(max(float(np.linalg.eigvalsh(matrix)[-1]), 0.0))
    return {"sr": math.sqrt(squares) / spectral if spectral > 0 else math.nan, "kernel_norm": size * spectral}
