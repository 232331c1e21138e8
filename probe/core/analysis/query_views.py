"""Views of a run's signals for queries from outside, and their answers, also as CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from probe.core.analysis.select_statement import SelectStatement, chosen, parsed, restrict, unknown
from probe.core.errors import missing
from probe.core.messages import printable, printable_json
from probe.core.storage.duckdb_reader import AT_ONCE, Connection, Rows
from probe.core.storage.layout import CALL, FORM, MICRO_STEP, NAME, STAGE, STEP, csv_cell
from probe.core.storage.run_directory import plain
from probe.core.storage.sql import literal, quoted

if TYPE_CHECKING:
    import pyarrow

SCHEMA = "answers"
"""Schema of the views."""
RANK, DIRECTORY = "rank", "directory"
"""Columns about the origin of a row: the rank, and the name of its directory."""
FIXED = {
    RANK: "INTEGER",
    DIRECTORY: "VARCHAR",
    STAGE: "INTEGER",
    NAME: "VARCHAR",
    STEP: "BIGINT",
    MICRO_STEP: "INTEGER",
    CALL: "INTEGER",
    **dict.fromkeys(FORM, "VARCHAR"),
}
"""Columns that every view has, with their types; the others are DOUBLE."""
WIDE = {"HUGEINT": "DECIMAL(38,0)", "UHUGEINT": "DECIMAL(38,0)"}
"""Types that files and Arrow have no exact equal of, with those that they become."""

Columns = Mapping[str, tuple[str, ...]]
"""Columns of each signal."""


def columns_of(rows: Rows) -> dict[str, tuple[str, ...]]:
    """Return the columns of each signal of ``rows``."""
    return {signal: (*FIXED, *rows.numbers(signal)) for signal in rows.signals}


class SqlAnswer:
    """The rows that a query has found, which are read as they are needed; each method reads all of them.

    Args:
        query: a query that was checked.
        rows: rows that the query reads, for the record of lines that cannot be read.

    Raises:
        ValueError: if the query cannot be answered; also while rows are read.
    """

    def __init__(self, connection: Connection, query: str, rows: Rows | None = None) -> None:
        self._connection, self._rows = connection, rows
        with refused():
            connection.execute(f"SELECT * FROM ({query}\n) LIMIT 0")  # noqa: S608 - the query was checked
            kinds = {str(column[0]): str(column[1]) for column in connection.description}
        casts = [f"{quoted(n)}::{WIDE[kind]} AS {quoted(n)}" for n, kind in kinds.items() if kind in WIDE]
        self.columns = tuple(kinds)
        self.query = query
        """The query, with types that every format can hold."""
        if casts:
            self.query = f"SELECT * REPLACE ({', '.join(casts)}) FROM ({query}\n)"  # noqa: S608 - checked

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield rows of Python values: NULL is None, NaN stays NaN."""
        with refused():
            self._connection.execute(self.query)
            while batch := self._connection.fetchmany(AT_ONCE):
                yield from batch
        self._record()

    def arrow(self) -> pyarrow.Table:
        """Return all rows.

        Raises:
            ImportError: if pyarrow is missing, or does not fit the installed NumPy.
        """
        try:
            import pyarrow  # noqa: F401 - DuckDB imports it, and its error does not name the extra
        except ImportError as absent:
            raise ImportError(f"{missing('Arrow', 'pyarrow', 'arrow')} ({absent})") from absent
        with refused():
            relation = self._connection.sql(self.query)
            table = relation.to_arrow_table()
        self._record()
        return table

    def write_parquet(self, path: Path) -> None:
        """Write all rows to a file in a folder that the connection may open."""
        with refused():
            self._connection.execute(f"COPY ({self.query}\n) TO {literal(str(path))} (FORMAT parquet)")
        self._record()

    def limited(self, number: int) -> SqlAnswer:
        """Return the answer that has the first ``number`` rows of this one."""
        return SqlAnswer(self._connection, f"FROM ({self.query}\n) LIMIT {number}", self._rows)

    def _record(self) -> None:
        if self._rows is not None:
            self._rows.record_rejected()


class QueryViews:
    """Views of signals, on a connection that from then on opens nothing but their files.

    Args:
        columns: columns of each signal; those that ``rows`` lacks are NULL, and a signal may have no row at all.
        scratch: folder to which answers can be written.
    """

    def __init__(self, rows: Rows, columns: Columns, scratch: Path) -> None:
        self.rows, self.columns = rows, columns
        self._views = set[str]()
        connection = rows.connection
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        names = [directory.path.name for directory in rows.directories]
        connection.execute("SET VARIABLE directories = ?::VARCHAR[]", [names])
        connection.execute(f"SET schema = '{SCHEMA}'")
        restrict(connection, (file.path for files in rows.blocks.values() for _, file in files), [scratch])

    def signals_of(self, query: str) -> list[str]:
        """Return the signals that a query reads.

        Raises:
            ValueError: if it is no query that only reads, or names a signal that is not there.
        """
        return self._signals(parsed(self.rows.connection, query))

    def answer(self, query: str) -> SqlAnswer:
        """Return the answer to a query.

        Raises:
            ValueError: as :meth:`signals_of`, and if it names a column that is not there, or cannot be answered.
        """
        statement = parsed(self.rows.connection, query)
        signals = self._signals(statement)
        for signal in signals:
            self._make(signal)
        offered = dict.fromkeys(column for signal in signals for column in self.columns[signal])
        with spelled(statement, offered):
            return SqlAnswer(self.rows.connection, statement.text, self.rows)

    def _signals(self, statement: SelectStatement) -> list[str]:
        return list(dict.fromkeys(chosen(statement.tables, self.columns, "signal").values()))

    def _make(self, signal: str) -> None:
        """Make the view of a signal, unless it is there."""
        if signal in self._views:
            return
        is_there = signal in self.rows.signals
        columns = {*FIXED, *self.rows.numbers(signal)} if is_there else ()
        cells = ", ".join(_cell(column, columns) for column in self.columns[signal])
        read = self.rows.view(signal) if is_there else "range(0)"
        view = f"{SCHEMA}.{quoted(signal)}"
        self.rows.connection.execute(f"CREATE VIEW {view} AS SELECT {cells} FROM {read}")  # noqa: S608 - quoted
        self._views.add(signal)


def _cell(column: str, columns: Collection[str]) -> str:
    """Return the SQL of a column of a view, of the same type whatever files there are."""
    value = quoted(column) if column in columns else "NULL"
    if column == DIRECTORY and columns:
        value = f"getvariable('directories')[{DIRECTORY} + 1]"
    return f"CAST({value} AS {FIXED.get(column, 'DOUBLE')}) AS {quoted(column)}"


@contextmanager
def refused() -> Iterator[None]:
    """Raise what DuckDB raises in the block as ValueError, its first line alone."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the query cannot be answered: {reason}; correct it, `probe sql DIR` lists tables") from error


@contextmanager
def spelled(statement: SelectStatement, offered: Collection[str]) -> Iterator[None]:
    """If the block raises ValueError since the query names a column that is not there, name the nearest one instead."""
    try:
        yield
    except ValueError as error:
        names = {name.lower() for name in offered} | statement.made
        wrong = [name for name in statement.columns if name.lower() not in names]
        if not wrong:
            raise
        raise ValueError(unknown(wrong[0], list(offered), "column")) from error


def cell(value: Any) -> str:
    """Return a value as text: empty for NULL, JSON for lists and structures."""
    if value is None:
        return ""
    if isinstance(value, bool | list | tuple | Mapping):
        return json.dumps(_jsonable(value), ensure_ascii=False)
    return repr(value) if isinstance(value, float) else str(value)


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], file: TextIO, escaped: bool = False) -> None:
    """Write rows as CSV with a header (RFC 4180, lines that end with LF). An empty text is ``""``, NULL is nothing.

    Args:
        escaped: whether control characters are escaped, for a terminal.
    """

    def line(cells: Iterable[Any]) -> str:
        texts = ('""' if text == "" else csv_cell(printable(cell(text)) if escaped else cell(text)) for text in cells)
        return ",".join(texts) + "\n"

    file.write(line(columns))
    for row in rows:
        file.write(line(row))


def write_json(columns: Sequence[str], rows: Iterable[Sequence[Any]], file: TextIO) -> None:
    """Write rows as one JSON array of objects, an object a line, control characters escaped. NaN and the infinities,
    which JSON lacks, are texts, and so are decimal numbers with digits after the point."""
    before = "["
    for row in rows:
        cells = {name: _jsonable(value) for name, value in zip(columns, row, strict=True)}
        file.write(f"{before}\n{printable_json(json.dumps(cells))}")
        before = ","
    file.write("[]\n" if before == "[" else "\n]\n")


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _jsonable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    return plain(value)
