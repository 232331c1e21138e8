"""SQL over the rows of a run: one table a signal, and nothing else that a query could open.

On one machine a query reads all rows. Over pieces there are two queries: the first is answered for each piece of whole
ranks, the second reads all these answers together, as the table ``mapped``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from probe.core.analysis.engines import PieceEngine, PieceObserver, engine_of, read_each
from probe.core.analysis.pieces import MOST_BYTES, Piece, by_ranks
from probe.core.analysis.query_views import Columns, QueryViews, SqlAnswer, columns_of, spelled
from probe.core.analysis.select_statement import chosen, parsed, restrict
from probe.core.language import invalid
from probe.core.storage.directories import last_run
from probe.core.storage.duckdb_reader import Rows, connect
from probe.core.storage.location import Place, located
from probe.core.storage.problems import Problems
from probe.core.storage.sql import listed, quoted

if TYPE_CHECKING:
    import pyarrow

MAPPED = "mapped"
"""Table of the answers of all pieces."""


class SignalView(NamedTuple):
    """The table of one signal."""

    signal: str
    columns: tuple[str, ...]
    rows: int
    ranks: int
    first_step: int | None
    """None if there is no row."""
    last_step: int | None


class OpenRun:
    """A run whose rows are read by SQL; use it as a context manager.

    Each signal is a table with the columns ``rank, directory`` (its name), ``vpp_stage, name, step, micro_step, call,
    shape, dtype, coverage``, and a DOUBLE column for each number, NULL where a file has none. Steps that were done
    again after a resume appear once. A query is one SELECT: it opens no other file, writes nothing and
    changes no setting.
    """

    def __init__(
        self, root: Place, engine: PieceEngine | str | None, processes: int | None, progress: PieceObserver | None
    ) -> None:
        self.problems = Problems()
        """Problems with files so far; if any of them ``skipped`` data, answers lack these rows."""
        self._engine, self._processes, self._progress = engine, processes, progress
        with ExitStack() as opening:
            self.scratch = Path(opening.enter_context(tempfile.TemporaryDirectory(prefix="probe-")))
            """Folder to which answers can be written; it is removed at the end."""
            self.run = last_run(root, self.problems)
            self._rows = opening.enter_context(Rows(self.run.directories, self.problems))
            self._views = QueryViews(self._rows, columns_of(self._rows), self.scratch)
            self._stack = opening.pop_all()

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Record the lines that were left out, and release all resources."""
        self._stack.close()

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals of the run, which are the tables of queries."""
        return self._rows.signals

    def views(self) -> Iterator[SignalView]:
        """Yield each signal with its columns, the number of its rows and ranks, and its first and last step."""
        for signal in self.signals:
            query = (
                f"SELECT count(*) AS n, count(DISTINCT rank) AS r, min(step) AS f, max(step) AS l FROM {quoted(signal)}"  # noqa: S608
            )
            for numbers in self.answer(query).rows():
                yield SignalView(signal, self._views.columns[signal], *numbers)

    def sql(self, query: str) -> pyarrow.Table:
        """Return the answer to a query of all rows.

        Raises:
            ValueError: if it is no query that only reads, names what is not there, or cannot be answered.
            ImportError: if pyarrow is missing.
        """
        return self.answer(query).arrow()

    def map_reduce(self, map_query: str, reduce_query: str) -> pyarrow.Table:
        """Return the answer of two queries: ``map_query`` reads one piece of the run after the other, each with all
        rows of its ranks; ``reduce_query`` reads the answers of all pieces, in order of rank, as the table ``mapped``.

        Raises:
            ValueError, ImportError: as :meth:`sql`.
        """
        with self.reduced(map_query, reduce_query) as answer:
            return answer.arrow()

    def answer(self, query: str) -> SqlAnswer:
        """Return the answer to a query of all rows, which is read as it is needed.

        Raises:
            ValueError: as :meth:`sql`.
        """
        return self._views.answer(query)

    @contextmanager
    def reduced(self, map_query: str, reduce_query: str, most_bytes: int = MOST_BYTES) -> Iterator[SqlAnswer]:
        """Return the answer of two queries, as of :meth:`map_reduce`, which is read as it is needed.

        Args:
            most_bytes: bytes of a piece.
        """
        with (
            tempfile.TemporaryDirectory(prefix="probe-", dir=self.scratch) as folder,
            closing(connect(threads=1)) as connection,
        ):
            path = Path(folder) / "answer"
            pieces = self.pieces(map_query, most_bytes)
            mapped = self.answer(map_query)
            mapped.limited(0).write_parquet(path)
            restrict(connection, [], [folder])
            connection.execute(f"CREATE TABLE {MAPPED} AS FROM read_parquet({listed([path])})")
            statement = parsed(connection, reduce_query)
            chosen(statement.tables, [MAPPED], "table of the reduce query")
            with spelled(statement, mapped.columns):
                answer = SqlAnswer(connection, statement.text)
            for part in self._mapped(map_query, pieces):
                path.write_bytes(part)
                connection.execute(f"INSERT INTO {MAPPED} FROM read_parquet({listed([path])})")
            yield answer

    def pieces(self, map_query: str, most_bytes: int = MOST_BYTES) -> list[Piece]:
        """Return the pieces that a query would read one after the other.

        Raises:
            ValueError: if it is no query that only reads, or reads no signal.
        """
        signals = self._views.signals_of(map_query)
        if not signals:
            raise invalid("the query of the pieces reads no signal: expected one after FROM")
        return by_ranks(self.run, self._rows, most_bytes, signals)

    def _mapped(self, query: str, pieces: list[Piece]) -> Iterator[bytes]:
        """Yield the answers of the pieces, in their order."""
        columns = {signal: self._views.columns[signal] for signal in self._views.signals_of(query)}
        with ExitStack() as stack:
            engine = self._engine
            if engine is None or isinstance(engine, str):
                engine = stack.enter_context(engine_of(engine, self._processes, self._progress))
            yield from read_each(engine, PieceQuery(query, columns), pieces, self.problems)


def open_run(
    root: str | Place,
    engine: PieceEngine | str | None = None,
    processes: int | None = None,
    progress: PieceObserver | None = None,
) -> OpenRun:
    """Open the run in ``root`` that began last, for SQL.

    Args:
        root: where the ranks have written, a packed run, or the URL of either.
        engine: where :meth:`OpenRun.map_reduce` reads pieces: ``local``, ``ray`` or the address of a cluster; None for
            Ray if ``RAY_ADDRESS`` is set, else for this machine.
        processes: pieces at a time.
        progress: called after each piece.

    Raises:
        ValueError: if there is no output of a run.
        ImportError: if DuckDB is missing.
    """
    return OpenRun(located(root).expanduser().absolute(), engine, processes, progress)  # DuckDB 1.5 needs it: r*n/x


@dataclass(frozen=True)
class PieceQuery:
    """A query as a function of a piece, whose result is a Parquet file."""

    query: str
    columns: Columns
    """Columns of the signals that it reads, in the whole run."""

    def __call__(self, rows: Rows, _: Piece) -> bytes:
        rows.connection.execute("SET threads = 1")  # sums of a piece are the same wherever it is read
        with tempfile.TemporaryDirectory(prefix="probe-") as folder:
            path = Path(folder) / "answer"
            QueryViews(rows, self.columns, Path(folder)).answer(self.query).write_parquet(path)
            return path.read_bytes()
