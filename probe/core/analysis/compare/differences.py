"""Differences of every pair of rows, by step and by name."""

from __future__ import annotations

from probe.core.analysis.compare.pairing import KEY, Sides
from probe.core.analysis.compare.tolerance import Measure
from probe.core.storage.sql import quoted

COLUMNS = 200
"""Most ranges of steps for which differences are kept, for each name."""


class DifferenceTables:
    """Results of comparing: the tables ``by_step`` (signal, step and micro step) and ``by_name`` (signal, name as A has
    it, and ``bin``, a range of steps).

    Both have the number of ``rows`` compared, of those ``beyond`` the tolerance and of rows in one run alone, and the
    largest difference, ``excess``, in multiples of the tolerance.
    """

    def __init__(self, sides: Sides, relative: float) -> None:
        self.sides, self.relative = sides, relative
        self.connection = sides.connection
        self.duplicated: list[str] = []
        """Signals with duplicate rows."""
        first, last = self.connection.execute("SELECT min(step), max(step) FROM steps").fetchall()[0]
        self.first_step = int(first)
        self.bin_width = (int(last) - int(first)) // COLUMNS + 1
        """Number of steps in a range."""
        self.connection.execute(_TABLES)
        for signal in sides.signals:
            self._compare(signal)

    def pairs(self, signal: str, first: int, last: int, *more: str) -> str:
        """Query for the paired rows of A and B, with their ``excess`` and the columns ``more`` of both.

        The table ``scales`` must have been made for the signal.
        """
        a, b = self.sides.selected(signal, first, last)
        if signal in self.duplicated:
            a, b = (f"SELECT DISTINCT ON ({', '.join(KEY)}) * FROM ({side})" for side in (a, b))  # noqa: S608
        measure = self.measure(signal)
        excesses = [measure.excess(op) for op in measure.ops]
        sizes = [f"regexp_extract_all({side}.shape, '[0-9]+')" for side in "ab"]  # (3, 2) is [3, 2]
        differ = f"a.shape <> b.shape AND {sizes[0]} <> {sizes[1]}"
        shapes = f"CASE WHEN {differ} THEN 'inf'::DOUBLE ELSE 0 END"
        keys = ", ".join(f"coalesce(a.{key}, b.{key}) AS {key}" for key in KEY)
        on = " AND ".join(f"a.{key} = b.{key}" for key in KEY)
        chosen = "".join(f", {each}" for each in more)
        return (
            f"SELECT {keys}, coalesce(a.own, b.own) AS own, a.name IS NOT NULL AS in_a, b.name IS NOT NULL AS in_b, "  # noqa: S608
            "coalesce(a.idle, b.idle) AS idle, "
            f"CASE WHEN in_a AND in_b THEN greatest({', '.join([shapes, *excesses])}) END AS excess{chosen} "
            f"FROM ({a}) AS a FULL JOIN ({b}) AS b ON {on} "
            "LEFT JOIN scales AS s ON s.rank = a.rank AND s.step = a.step"
        )

    def measure(self, signal: str) -> Measure:
        decimals = max(self.sides.a.decimals, self.sides.b.decimals)
        return Measure(self.sides.chosen(signal), self.sides.ops(signal), self.relative, decimals)

    def scale(self, signal: str) -> None:
        """Create the table ``scales``: the largest root mean square in A for each rank and step."""
        self.connection.execute(
            "CREATE OR REPLACE TEMP TABLE scales AS SELECT rank, step, rms FROM seen "
            "WHERE side = 'a' AND signal = ? AND step IS NOT NULL",
            [signal],
        )

    def _compare(self, signal: str) -> None:
        self.scale(signal)
        for first, last in self.sides.windows(signal):
            self._measure(signal, first, last)
        if signal not in self.duplicated and self._has_duplicates(signal):
            self.duplicated.append(signal)
            for table in ("by_step", "by_name"):
                self.connection.execute(f"DELETE FROM {table} WHERE signal = ?", [signal])  # noqa: S608 - our own words
            self._compare(signal)

    def _measure(self, signal: str, first: int, last: int) -> None:
        query = _MEASURE.format(pairs=self.pairs(signal, first, last), first=self.first_step, width=self.bin_width)
        self.connection.execute("CREATE OR REPLACE TEMP TABLE measured AS " + query)
        for table, columns, where in (
            ("by_step", "step, micro_step", "step IS NOT NULL"),
            ("by_name", "own, bin", "step IS NULL"),
        ):
            self.connection.execute(
                f"INSERT INTO {table} SELECT ?, {columns}, rows, beyond, only_a, only_b, excess "  # noqa: S608
                f"FROM measured WHERE {where}",
                [signal],
            )

    def _has_duplicates(self, signal: str) -> bool:
        """Return whether more rows have been paired than there are."""
        return bool(self.connection.execute(_MORE_THAN_SEEN, {"signal": signal}).fetchall()[0][0])


def selected_numbers(ops: tuple[str, ...], measure: Measure) -> tuple[str, ...]:
    """Columns of both values and the excess of each op, in the order ``a, b, excess``."""
    return tuple(
        cell
        for n, op in enumerate(ops)
        for cell in (f"a.{quoted(op)} AS a{n}", f"b.{quoted(op)} AS b{n}", f"{measure.excess(op)} AS e{n}")
    )


_TABLES = """
CREATE TEMP TABLE by_step (signal VARCHAR, step BIGINT, micro_step INTEGER,
    rows BIGINT, beyond BIGINT, only_a BIGINT, only_b BIGINT, excess DOUBLE);
CREATE TEMP TABLE by_name (signal VARCHAR, name VARCHAR, bin BIGINT,
    rows BIGINT, beyond BIGINT, only_a BIGINT, only_b BIGINT, excess DOUBLE);
"""
_MEASURE = """
SELECT step, micro_step, own, bin, count(*) FILTER (in_a AND in_b) AS rows, count(*) FILTER (excess > 1) AS beyond,
    count(*) FILTER (in_a AND NOT in_b AND NOT idle) AS only_a,
    count(*) FILTER (in_b AND NOT in_a AND NOT idle) AS only_b, max(excess) AS excess
FROM (SELECT *, (step - {first}) // {width} AS bin FROM ({pairs}))
GROUP BY GROUPING SETS ((step, micro_step), (own, bin))
"""
_MORE_THAN_SEEN = """
WITH paired AS (SELECT step, sum(rows) AS rows FROM by_step WHERE signal = $signal GROUP BY step),
have AS (SELECT side, step, sum(rows) AS rows FROM seen WHERE signal = $signal AND step IS NOT NULL GROUP BY side, step)
SELECT count(*) FROM paired JOIN have USING (step) WHERE paired.rows > have.rows
"""
