"""Tolerances for the numbers of two healthy runs, and the measure of a difference.

A difference is relative to a size: that of a norm to the larger of the two norms; that of a mean or standard deviation
to the root mean square of the elements or, if that is larger, to the largest magnitude; that of a minimum or maximum to
the largest magnitude; that of a fraction of zeros to 1; any other to the larger value. Rows of pure rounding noise,
such as the gradient of a bias that a softmax cancels, are small but differ as much as they are large: so every row
counts as at least ``FLOOR`` times the largest root mean square of its signal, rank and step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe.core.storage.sql import quoted

RELATIVE: dict[str, float] = {"float64": 1e-4, "float32": 1e-3, "float16": 0.1, "bfloat16": 0.25, "float8": 0.5}
"""Relative difference up to which two runs are the same, by the coarsest dtype that either of them computes in.

Some ten times what healthy pairs of a small GPT showed over 40 steps (docs/guides/compare.md has the figures); twice
with bfloat16, in whose rounding real differences drown anyway. That of float8 is a guess.
"""
FLOOR = 1e-3
"""Fraction of the largest root mean square of a signal at a step: rows below it are measured as if they had it."""
EXACT = frozenset({"nans", "infs", "global_nans", "global_infs", "count", "bytes", "merged", "complete"})
"""Counts, which must be equal."""
LEFT_OUT = frozenset({"seconds"})
"""Columns that differ between equal runs."""
ZEROS = 0.5
"""Difference of fractions of zeros that is allowed, since noise in one run may be below eps in another; at least that
of two elements."""

_UNKNOWN = "float32"


def coarsest(dtypes: Iterable[str]) -> str:
    """Dtype in ``dtypes`` with the largest rounding error, as :data:`RELATIVE` spells it; float32 if none is known.

    Args:
        dtypes: as frameworks spell them, such as ``torch.bfloat16`` and ``BFloat16``.
    """
    plain = {dtype.rpartition(".")[2].lower() for dtype in dtypes}
    found = [known for known in RELATIVE if any(dtype.startswith(known) for dtype in plain)]
    return max(found, key=lambda known: RELATIVE[known], default=_UNKNOWN)


def difference(op: str, a: float | None, b: float | None, excess: float, relative: float) -> float:
    """Difference to show: relative, from the ``excess`` over the tolerance ``relative``; absolute for counts and
    fractions of zeros."""
    if a is None or b is None:
        return 0.0
    return abs(a - b) if op == "zeros" or op in EXACT else excess * relative


class Measure:
    """SQL for the differences of the numbers ``ops`` of rows ``a`` and ``b``, in multiples of the tolerance.

    Args:
        ops: ops to compare.
        have: ops that both sides have, by which others are measured.
        relative: the relative tolerance.
        digits: unit of the last decimal place, if values were rounded to a fixed number of places; else 0.
    """

    def __init__(self, ops: Sequence[str], have: Sequence[str], relative: float, digits: float) -> None:
        self.ops = tuple(op for op in ops if op not in LEFT_OUT)
        self.relative = relative
        self._have = frozenset(have)
        self._digits = digits

    def excess(self, op: str) -> str:
        """SQL of the difference in multiples of the tolerance; infinite if just one is NaN or infinite, and for
        counts."""
        a, b = self._side("a", op), self._side("b", op)
        apart = "'inf'::DOUBLE" if op in EXACT else f"least(abs({a} - {b}) / {self._allowed(op)}, 1e300)"
        return (
            f"CASE WHEN {a} IS NULL OR {b} IS NULL OR {a} = {b} THEN 0 "
            f"WHEN NOT isfinite({a}) OR NOT isfinite({b}) THEN 'inf'::DOUBLE "
            f"ELSE {apart} END"
        )

    def _allowed(self, op: str) -> str:
        if op == "zeros":
            return f"greatest({ZEROS}, 2 / greatest(a.elements, 1))"
        return f"greatest({self.relative} * {self._size(op)}, {self._digits})"

    def _size(self, op: str) -> str:
        """SQL of the size to which a difference of ``op`` is relative: never 0, since the two values are not equal."""
        sizes = [self._finite(op, "{0}")]
        if op == "norm":
            sizes.append(f"coalesce({FLOOR} * s.rms * sqrt(a.elements), 0)")
        if op in ("mean", "std") and "norm" in self._have:
            sizes.append(self._finite("norm", "{0} / sqrt(greatest(a.elements, 1))"))
        if op in ("mean", "std", "min", "max"):
            sizes += [self._finite(extreme, "{0}") for extreme in ("min", "max") if extreme in self._have]
            sizes.append(f"coalesce({FLOOR} * s.rms, 0)")
        if op.startswith("global_"):
            sizes += [self._finite(e, "{0}") for e in ("global_min", "global_max") if e in self._have and e != op]
        return f"greatest({', '.join(sizes)})"

    def _finite(self, op: str, of: str) -> str:
        """SQL of the larger magnitude of the two sides; 0 if it is not finite."""
        larger = f"greatest(abs({self._side('a', op)}), abs({self._side('b', op)}))"
        return f"CASE WHEN isfinite({larger}) THEN {of.format(larger)} ELSE 0 END"

    def _side(self, side: str, op: str) -> str:
        return f"{side}.{quoted(op)}"
