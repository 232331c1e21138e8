"""Pairs of rows of two runs, each found in its directory, in one database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from probe.core.analysis.compare.name_map import NameMap, Pairs, nearest, pair
from probe.core.naming import CLOCKS, PHASE, RUN, STATE_PHASE, signal_of
from probe.core.storage.directories import RankDirectory, RecordedRun, last_run
from probe.core.storage.duckdb_reader import Rows, connect, fill
from probe.core.storage.layout import CALL, MICRO_STEP, NAME, STEP
from probe.core.storage.location import Place
from probe.core.storage.manifest import FILE, Manifest
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import directories_of
from probe.core.storage.sql import literal, quoted
from probe.core.storage.table_files import first_step, has_tables, size_and_time

KEY = ("rank", "stage", NAME, STEP, MICRO_STEP, CALL)
"""Columns that pair rows of the two runs."""
WINDOW = 1 << 25
"""Size in bytes of the files of one signal of one run that are read at a time."""


class Options(NamedTuple):
    """Options of a comparison."""

    first_step: int | None = None
    last_step: int | None = None
    """Last step of A; ``first_step`` is the first. Both are included."""
    step_offset: int = 0
    """Number that is added to a step of A to get that of B."""
    ranks: tuple[int, int] | None = None
    """Rank of A and rank of B; else all ranks that both have."""
    signals: tuple[str, ...] = ()
    """Signals by their names in A; else all."""
    ops: tuple[str, ...] = ()
    """Ops to compare; else all that both have."""
    relative: float | None = None
    """Relative tolerance; else by dtype."""
    common: bool = False
    """True if data of one run alone are no difference."""
    mapping: NameMap = NameMap()


class OnlyIn(NamedTuple):
    """Data of one run alone."""

    a: list[str]
    b: list[str]


class Sides:
    """Both runs, open, with the tables ``ranks``, ``names``, ``steps`` and ``seen`` for queries.

    Raises:
        ValueError: if a run cannot be read, if the two have nothing in common, or if the mapping names data they lack.
    """

    def __init__(self, a: Side, b: Side, options: Options) -> None:
        self.a, self.b, self.options = a, b, options
        self.connection = a.rows.connection
        self.ranks = self._pair_ranks()
        self.signals = self._pair_signals()
        """Signals of A that B has too, with B's names; in causal order."""
        self.only_signals = self._only_signals()
        self.only_ranks = OnlyIn(
            [] if options.ranks else [str(rank) for rank in a.run.ranks if rank not in b.run.ranks],
            [] if options.ranks else [str(rank) for rank in b.run.ranks if rank not in a.run.ranks],
        )
        self._see()
        self.pairs = self._pair_names()
        self.only_steps = self._pair_steps()

    def dtypes(self) -> list[str]:
        """Dtypes that are compared."""
        found = self.connection.execute("SELECT DISTINCT dtype FROM seen WHERE dtype IS NOT NULL ORDER BY 1").fetchall()
        return [row[0] for row in found]

    def ops(self, signal: str) -> tuple[str, ...]:
        """Ops of a signal that both runs have."""
        of_b = self.b.rows.numbers(self.signals[signal])
        return tuple(op for op in self.a.rows.numbers(signal) if op in of_b)

    def chosen(self, signal: str) -> tuple[str, ...]:
        """Ops of a signal that are to be compared."""
        return tuple(op for op in self.ops(signal) if not self.options.ops or op in self.options.ops)

    def windows(self, signal: str) -> Iterator[tuple[int, int]]:
        """Ranges of A's steps, first and last, that are compared one at a time."""
        begin, last = self.connection.execute("SELECT min(step), max(step) FROM steps").fetchall()[0]
        held = 0
        for first, size in sorted((file.first, size_and_time(file)[0]) for _, file in self.a.rows.blocks[signal]):
            if held >= WINDOW and begin < first <= last:
                yield begin, first - 1
                begin, held = first, 0
            held += size
        yield begin, last

    def selected(self, signal: str, first: int, last: int) -> tuple[str, str]:
        """Queries for the rows of A and B of a signal in a range of A's steps; keys are A's, except ``name``, B's."""
        ops = self.ops(signal)
        offset = self.options.step_offset
        idle = _idle(ops) if signal_of(signal).phase == STATE_PHASE else "false"
        cells = f"shape, dtype, elements(shape) AS elements, {idle} AS idle" + "".join(f", {quoted(op)}" for op in ops)
        a = (
            "SELECT r.a AS rank, vpp_stage AS stage, coalesce(n.b, f.name, '') AS name, f.name AS own, f.step, "  # noqa: S608
            f"micro_step, call, {cells} FROM {self.a.rows.between(signal, first, last)} AS f "
            "JOIN ranks AS r ON r.a = f.rank LEFT JOIN names AS n ON n.a = f.name JOIN steps AS t ON t.step = f.step"
        )
        of_b = self.b.rows.between(self.signals[signal], first + offset, last + offset)
        b = (
            "SELECT r.a AS rank, vpp_stage AS stage, coalesce(f.name, '') AS name, f.name AS own, t.step, "  # noqa: S608
            f"micro_step, call, {cells} FROM {of_b} AS f "
            f"JOIN ranks AS r ON r.b = f.rank JOIN steps AS t ON t.step = f.step - {offset}"
        )
        return a, b

    def _pair_ranks(self) -> list[tuple[int, int]]:
        a, b = self.a.run.ranks, self.b.run.ranks
        chosen = self.options.ranks
        if chosen:
            for rank, side in zip(chosen, (self.a, self.b), strict=True):
                if rank not in side.run.ranks:
                    raise ValueError(
                        f"{side.root}: expected rank {rank}; there are {', '.join(map(str, side.run.ranks))}"
                    )
        ranks = [chosen] if chosen else [(rank, rank) for rank in a if rank in b]
        if not ranks:
            raise ValueError(f"the runs have no rank in common: A has {list(a)}, B {list(b)}; choose with --rank A:B")
        fill(self.connection, "ranks", {"a": "INTEGER", "b": "INTEGER"}, ranks)
        return ranks

    def _named_in_b(self) -> dict[str, str]:
        """Signals of A, with B's name of each."""
        return {signal: self.options.mapping.signals.get(signal, signal) for signal in self.a.rows.signals}

    def _wanted(self, signals: Sequence[str]) -> set[str]:
        return set(self.options.signals or signals)

    def _pair_signals(self) -> dict[str, str]:
        mapping, a, b = self.options.mapping, self.a.rows.signals, self.b.rows.signals
        problems = [f"--signals: {s!r} is no signal of A{nearest(s, a)}" for s in self.options.signals if s not in a]
        for of_a, of_b in mapping.signals.items():
            problems += [f"{mapping.source}: signals: {of_a!r} is no signal of A{nearest(of_a, a)}"] * (of_a not in a)
            problems += [f"{mapping.source}: signals: {of_b!r} is no signal of B{nearest(of_b, b)}"] * (of_b not in b)
        if problems:
            raise ValueError("\n".join(problems))
        wanted = self._wanted(a)
        shared = {s: name for s, name in self._named_in_b().items() if s in wanted and name in b}
        common = {s: b for s, b in shared.items() if _alike(_micro_stepped(self.a, s), _micro_stepped(self.b, b))}
        if not common:
            raise ValueError(
                f"the runs have no signal in common: A has {', '.join(a) or 'none'}; B {', '.join(b) or 'none'}"
            )
        known = {op for signal in common for op in self.a.rows.numbers(signal)}
        unknown = [f"--ops: {op!r} is no number of A{nearest(op, known)}" for op in self.options.ops if op not in known]
        if unknown:
            raise ValueError("\n".join(unknown))
        return dict(sorted(common.items(), key=lambda pair: (signal_of(pair[0]).phase, pair[0])))

    def _only_signals(self) -> OnlyIn:
        """Signals of one run alone. A signal with rows for each micro step in one run and for each step in the other is
        one of them."""
        of_a = [s for s in self.a.rows.signals if s in self._wanted(self.a.rows.signals) and s not in self.signals]
        paired = {name for s, name in self._named_in_b().items() if s in self.signals}
        of_b = [s for s in self.b.rows.signals if s not in paired and not self.options.signals]
        return OnlyIn(
            [_described(self.a, s) if self._named_in_b()[s] in self.b.rows.files else s for s in sorted(of_a)],
            [_described(self.b, s) if s in self._named_in_b().values() else s for s in sorted(of_b)],
        )

    def _see(self) -> None:
        """Read all rows once for names, steps, dtypes, and the size of elements."""
        self.connection.execute(_ELEMENTS)
        self.connection.execute(_SEEN)
        for of_a, of_b in self.signals.items():
            for side, signal, offset in ((self.a, of_a, 0), (self.b, of_b, self.options.step_offset)):
                norm = "norm" in side.rows.numbers(signal)
                rms = "norm / sqrt(greatest(elements(shape), 1))" if norm else "NULL::DOUBLE"
                first = "-9223372036854775808" if self.options.first_step is None else self.options.first_step
                query = _SEE.format(
                    view=side.rows.view(signal),
                    rms=rms,
                    letter=side.letter,
                    offset=offset,
                    first=first,
                    last=(1 << 62) if self.options.last_step is None else self.options.last_step,
                )
                self.connection.execute(query, {"side": side.letter, "signal": of_a})

    def _names(self, letter: str) -> list[str]:
        query = "SELECT DISTINCT name FROM seen WHERE name IS NOT NULL AND side = ? ORDER BY name"
        return [row[0] for row in self.connection.execute(query, [letter]).fetchall()]

    def _pair_names(self) -> Pairs:
        frameworks = {side.framework or self._by_dtypes(side.letter) for side in (self.a, self.b)} - {""}
        pairs = pair(self.options.mapping, self._names("a"), self._names("b"), len(frameworks) > 1)
        fill(self.connection, "names", {"a": "VARCHAR", "b": "VARCHAR"}, pairs.renamed.items())
        return pairs

    def _by_dtypes(self, letter: str) -> str:
        """Framework by its spelling of dtypes, for a run whose manifest names none; empty if it is unknown."""
        query = "SELECT DISTINCT dtype FROM seen WHERE dtype <> '' AND side = ?"
        dtypes = [row[0] for row in self.connection.execute(query, [letter]).fetchall()]
        if any(dtype.startswith("torch.") for dtype in dtypes):
            return "pytorch"
        return "mindspore" if any(dtype[0].isupper() for dtype in dtypes) else ""

    def _pair_steps(self) -> OnlyIn:
        self.connection.execute(
            "CREATE TEMP TABLE steps AS SELECT step FROM seen WHERE step IS NOT NULL GROUP BY step "
            "HAVING count(DISTINCT side) = 2 ORDER BY step"
        )
        only = [
            self.connection.execute(_ONLY_STEPS, {"side": side, "offset": offset}).fetchall()
            for side, offset in (("a", 0), ("b", self.options.step_offset))
        ]
        texts = [[f"{first}-{last}" if first < last else str(first) for first, last in spans] for spans in only]
        if not self.connection.execute("SELECT count(*) FROM steps").fetchall()[0][0]:
            spans = [", ".join(each[:5]) or "none" for each in texts]
            raise ValueError(
                f"the runs have no step in common: A has {spans[0]}; B {spans[1]} (see --steps, --step-offset)"
            )
        return OnlyIn(texts[0], texts[1])


def _micro_stepped(side: Side, signal: str) -> bool | None:
    """Return whether the signal's files have a column for micro steps; None if unknown, as for Parquet files."""
    columns = [file.columns for _, file in side.rows.files[signal] if file.columns]
    return any(MICRO_STEP in each for each in columns) if columns else None


def _alike(one: bool | None, other: bool | None) -> bool:
    return one is None or other is None or one == other


def _described(side: Side, signal: str) -> str:
    return f"{signal} ({'each micro step' if _micro_stepped(side, signal) else 'once a step'})"


def _idle(ops: Sequence[str]) -> str:
    """Condition for rows of zeros alone, such as optimizer state before the first update, which not every tool
    writes."""
    if "norm" in ops:
        return "coalesce(norm = 0, false)"
    if "min" in ops and "max" in ops:
        return 'coalesce("min" = 0 AND "max" = 0, false)'
    return "false"


_ELEMENTS = """
CREATE OR REPLACE TEMP MACRO elements(shape) AS
    coalesce(list_product(list_transform(string_split(trim(shape, '[]()'), ','), lambda x: TRY_CAST(x AS DOUBLE))), 1)
"""
_SEEN = """
CREATE TEMP TABLE seen
    (side VARCHAR, signal VARCHAR, name VARCHAR, rank INTEGER, step BIGINT, dtype VARCHAR, rows BIGINT, rms DOUBLE)
"""
"""Aggregates by name, by rank and step (of A), and by dtype: the other columns are NULL."""
_SEE = """
INSERT INTO seen
SELECT $side, $signal, name, rank, step, dtype, count(*), max(rms) FILTER (isfinite(rms))
FROM (SELECT name, r.a AS rank, step - {offset} AS step, dtype, {rms} AS rms
      FROM {view} AS f JOIN ranks AS r ON r.{letter} = f.rank
      WHERE step - {offset} BETWEEN {first} AND {last})
GROUP BY GROUPING SETS ((name), (rank, step), (dtype))
"""
_ONLY_STEPS = """
WITH own AS (SELECT DISTINCT step + $offset AS step FROM seen
             WHERE side = $side AND step IS NOT NULL AND step NOT IN (SELECT step FROM steps)),
spans AS (SELECT step, step - row_number() OVER (ORDER BY step) AS span FROM own)
SELECT min(step), max(step) FROM spans GROUP BY span ORDER BY 1
"""


CLOCK_ROWS = {RUN: f"name IN ({', '.join(map(literal, CLOCKS))}) OR starts_with(name, {literal(PHASE)})"}
"""Rows that differ between any two runs."""


class Side(NamedTuple):
    """One of the two runs."""

    letter: str
    root: Place
    run: RecordedRun
    rows: Rows
    problems: Problems

    @property
    def framework(self) -> str:
        return self.run.directories[0].manifest.framework

    @property
    def decimals(self) -> float:
        """The unit of the last decimal place that was written, where their number is fixed; else 0."""
        given = self.run.directories[0].manifest.config.get("ndigits")
        return 10.0**-given if isinstance(given, int) else 0.0


@contextmanager
def opened(a: Place, b: Place) -> Iterator[tuple[Side, Side]]:
    """Open the last run in each of two directories, in one database.

    Raises:
        ValueError: if one of them cannot be read.
        ImportError: if DuckDB is missing.
    """
    with ExitStack() as stack:
        connection = connect()
        stack.callback(connection.close)
        sides = []
        for letter, root in (("a", a), ("b", b)):
            problems = Problems()
            run = _run(root.expanduser(), problems)
            rows = stack.enter_context(Rows(run.directories, problems, connection, letter, CLOCK_ROWS))
            if not rows.files:
                raise ValueError(
                    "\n".join([f"{root}: expected files of the monitor; none can be read", *problems.lines()])
                )
            sides.append(Side(letter, root, run, rows, problems))
        yield sides[0], sides[1]


def _run(root: Place, problems: Problems) -> RecordedRun:
    """The last run in ``root``, or what ``probe merge`` has written there, as of rank 0."""
    merged = root.is_dir() and has_tables(root) and not (root / FILE).exists()
    if merged and not any(root.glob(directories_of())):
        return RecordedRun((RankDirectory(root, 0, "", 0.0, Manifest(), first_step(root)),), ())
    return last_run(root, problems)
