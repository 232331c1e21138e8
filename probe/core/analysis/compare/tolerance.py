"""By how much the numbers of two healthy runs may differ, and how a difference is measured.

A difference is relative to the size of what is compared: a norm to the larger of the two norms; a mean and a standard
deviation to the root mean square of the elements or, if that is larger, to the largest magnitude, as a minimum and a
maximum are; fractions of zeros to 1; anything else to itself. What is rounding noise in one row, such as the gradient
of a bias that a softmax cancels, is no less noise for being small: no row is taken to be smaller than ``FLOOR`` times
the largest root mean square of its signal, rank and step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe.core.storage.duckdb_reader import quoted

RELATIVE: dict[str, float] = {"float64": 1e-4, "float32": 1e-3, "float16": 0.1, "bfloat16": 0.25, "float8": 0.5}
"""The relative difference up to which two runs are the same, by the coarsest dtype that either of them computes in.

Some ten times what healthy pairs of a small GPT showed over 40 steps (docs/guides/compare.md has the figures); twice
with bfloat16, in whose rounding real differences drown anyway. That of float8 is a guess.
"""
FLOOR = 1e-3
"""Of the largest root mean square of a signal at a step: rows below it are measured as if they had it."""
EXACT = frozenset({"nans", "infs", "global_nans", "global_infs", "count", "bytes", "merged", "complete"})
"""Numbers that are counted, and must be equal."""
LEFT_OUT = frozenset({"seconds"})
"""Numbers that differ between runs that do the same."""
ZEROS = 0.5
"""By how much fractions of zeros may differ: what is noise in one run may be below eps in another. Where that is less
than two elements, by two."""

_UNKNOWN = "float32"


def coarsest(dtypes: Iterable[str]) -> str:
    """The dtype in ``dtypes`` with the largest rounding error, as :data:`RELATIVE` spells it; float32 if none is known.

    Args:
        dtypes: as frameworks spell them, such as ``torch.bfloat16`` and ``BFloat16``.
    """
    plain = {dtype.rpartition(".")[2].lower() for dtype in dtypes}
    found = [known for known in RELATIVE if any(dtype.startswith(known) for dtype in plain)]
    return max(found, key=lambda known: RELATIVE[known], default=_UNKNOWN)


def difference(op: str, a: float | None, b: float | None, excess: float, relative: float) -> float:
    """For people: relative, from the ``excess`` over the tolerance ``relative``; of fractions of zeros and of counts as
    it is."""
    if a is None or b is None:
        return 0.0
    return abs(a - b) if op == "zeros" or op in EXACT else excess * relative


class Measure:
    """SQL for the differences of the numbers ``ops`` of rows ``a`` and ``b``, in multiples of the tolerance.

    Args:
        ops: numbers to compare.
        have: numbers that both sides have, by which others are measured.
        relative: the relative tolerance.
        digits: the unit of the last decimal place, where values were rounded to so many; else 0.
    """

    def __init__(self, ops: Sequence[str], have: Sequence[str], relative: float, digits: float) -> None:
        self.ops = tuple(op for op in ops if op not in LEFT_OUT)
        self.relative = relative
        self._have = frozenset(have)
        self._digits = digits

    def excess(self, op: str) -> str:
        """The difference in multiples of the tolerance; infinite if just one is NaN or infinite, and for counts."""
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
        """What a difference of ``op`` is relative to: never 0, since the two values are not equal."""
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
        """The larger magnitude of the two sides; 0 if it is not finite."""
        larger = f"greatest(abs({self._side('a', op)}), abs({self._side('b', op)}))"
        return f"CASE WHEN isfinite({larger}) THEN {of.format(larger)} ELSE 0 END"

    def _side(self, side: str, op: str) -> str:
        return f"{side}.{quoted(op)}"
