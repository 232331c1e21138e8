"""Queries from outside: parsed, and refused if they could do anything but read the tables that are offered.

Two walls stand between a query and the machine. The query's syntax tree may have no other statement than one SELECT, no
table but those offered and no function that reads a file or a setting. And the connection opens the files of the run
alone, whatever the query is (:func:`restrict`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from typing import Any, NamedTuple

from probe.core.language import invalid, message
from probe.core.storage.duckdb_reader import Connection
from probe.core.storage.sql import folder_of, pattern_of

NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""Kinds of queries that read."""
REFERENCES = frozenset(
    {"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "EMPTY_FROM", "PIVOT"}
)
"""Kinds of tables after FROM."""
DESCRIPTIONS = frozenset({"DESCRIBE", "SUMMARY"})
"""Kinds of SHOW that are about a query."""
TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest", "repeat"})
"""Functions after FROM that make rows of their arguments alone."""
NOT_CALLED = frozenset(
    {
        *("current_setting", "getenv", "getvariable", "write_log", "nextval", "currval", "setval", "setseed"),
        *("sleep_ms", "pg_sleep", "json_execute_serialized_sql", "query", "query_table", "read_text", "read_blob"),
        *("glob", "parse_duckdb_log_message", "icu_sort_key", "in_search_path", "current_connection_id", "index_key"),
    }
)
"""Functions that read settings, write, wait, or run text as a query."""
OFF = (
    *("autoinstall_known_extensions", "autoload_known_extensions", "allow_community_extensions"),
    *("allow_unsigned_extensions", "allow_persistent_secrets"),
    *("python_enable_replacements", "python_scan_all_frames"),
)
"""Settings that are switched off where a version of DuckDB has them."""
MOST_NAMED = 60
"""Names that a message lists."""


class SelectStatement(NamedTuple):
    """One query that only reads."""

    text: str
    tables: tuple[str, ...]
    """Tables that it reads, as it spells them, without those that it defines itself."""
    columns: tuple[str, ...]
    """Columns that it names, in its order."""
    made: frozenset[str]
    """Names that it gives to columns, tables and parameters, in lower case."""


def parsed(connection: Connection, text: str) -> SelectStatement:
    """Parse a query.

    Raises:
        ValueError: if it is not one query that only reads.
    """
    tree = _tree(connection, text)
    if tree["error"]:
        if tree["error_type"] == "parser":
            raise invalid(
                "the query cannot be parsed: {reason}; write one such as SELECT name, norm FROM grad_reduced; "
                "`probe sql DIR` lists tables and columns",
                reason=tree["error_message"],
            )
        raise invalid(
            "expected one query that only reads; got {shortened}; write one such as SELECT name, norm FROM actv",
            shortened=_shortened(text),
        )
    if len(tree["statements"]) != 1:
        raise invalid(
            "expected one query; got {number} in {shortened}; ask them one after the other",
            number=len(tree["statements"]),
            shortened=_shortened(text),
        )
    nodes = list(_nodes(tree["statements"][0]))
    for node in nodes:
        _check(node)
    defined = {entry["key"].lower() for node in nodes if "cte_map" in node for entry in node["cte_map"]["map"]}
    named = [node["table_name"] for node in nodes if _is_reference(node) and node["type"] == "BASE_TABLE"]
    columns = [node["column_names"][-1] for node in nodes if node.get("class") == "COLUMN_REF"]
    return SelectStatement(
        _without_end(connection, text, tree),
        tuple(dict.fromkeys(name for name in named if name.lower() not in defined)),
        tuple(dict.fromkeys(columns)),
        frozenset(name.lower() for node in nodes for name in _made(node)) | frozenset(defined),
    )


def _tree(connection: Connection, text: str) -> dict[str, Any]:
    """Return the syntax tree of ``text``, or the error that there is in it, as DuckDB describes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # of bytes on the command line that are no UTF-8
        return {"error": True, "error_type": "parser", "error_message": str(error)}
    tree: dict[str, Any] = json.loads(connection.execute("SELECT json_serialize_sql(?)", [text]).fetchone()[0])
    return tree


def _without_end(connection: Connection, text: str, tree: dict[str, Any]) -> str:
    """Return a query without a semicolon at its end, and what follows it, so that it can be put into another."""
    query = text.rpartition(";")[0]
    return query if query and _tree(connection, query) == tree else text


def chosen(names: Iterable[str], offered: Collection[str], what: str) -> dict[str, str]:
    """Return the offered name of each of ``names``, which may differ in case.

    Raises:
        ValueError: if one is not offered; the message has the nearest one.
    """
    columns = {}
    lower = {name.lower(): name for name in offered}
    for name in names:
        column = name if name in offered else lower.get(name.lower())
        if column is None:
            raise ValueError(unknown(name, offered, what))
        columns[name] = column
    return columns


def unknown(name: str, offered: Collection[str], what: str) -> str:
    """Return the message about a name that is not offered."""
    if not offered:
        return f"there is no {what} {name!r}, nor another: expected rows, got none that can be read; name another run"
    lower = {other_name.lower(): other_name for other_name in offered}
    near = get_close_matches(name[:MOST_NAMED].lower(), list(lower), n=1)
    meant = f"; did you mean {lower[near[0]]}? There" if near else "; there"
    more = len(offered) - MOST_NAMED
    listed = ", ".join(list(offered)[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    quotes = "; a text stands in single quotes" if what == "column" and not near else ""
    return f"there is no {what} {name!r}{meant} is {listed or 'none'}{quotes or '; name one that is there'}"


def restrict(connection: Connection, files: Iterable[object], folders: Iterable[object]) -> None:
    """Let ``connection`` open nothing but what is beside ``files`` and in ``folders``, load no extension, and keep its
    settings.

    Raises:
        ImportError: if DuckDB is too old to be restricted.
    """
    settings = {row[0] for row in connection.execute("SELECT name FROM duckdb_settings()").fetchall()}
    if "allowed_directories" not in settings:
        raise ImportError(message("queries need DuckDB 1.2 or later, which can be kept from opening other files"))
    allowed = {folder_of(str(file)) or "." for file in files} | {str(folder) for folder in folders}
    allowed |= {pattern_of(folder) for folder in allowed}  # DuckDB checks these too, before the files that they match
    connection.execute("SET allowed_directories = ?", [sorted(allowed)])
    for name in OFF:
        if name in settings:
            connection.execute(f"SET {name} = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a syntax tree, in the order of the query."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(reversed(list(node.values())))
        elif isinstance(node, list):
            waiting.extend(reversed(node))


def _is_reference(node: dict[str, Any]) -> bool:
    return "sample" in node and "alias" in node and "class" not in node


def _check(node: dict[str, Any]) -> None:
    if "cte_map" in node and node["type"] not in NODES:
        raise invalid(
            "expected a query that only reads; a part of it is {words}: leave it out", words=_words(node["type"])
        )
    if _is_reference(node):
        _check_reference(node)
    if node.get("class") in {"FUNCTION", "WINDOW"}:
        name = str(node.get("function_name", "")).lower()
        if name in NOT_CALLED or name.startswith(("pg_", "read_", "duckdb_")):
            raise invalid(
                "the function {name} cannot be called: a query reads the rows of the run alone; leave it out", name=name
            )


def _check_reference(node: dict[str, Any]) -> None:
    kind = node["type"]
    if kind == "SHOW_REF" and node.get("show_type") in DESCRIPTIONS and node.get("query"):
        return
    if kind not in REFERENCES:
        text = "expected a query of the run's rows; a part of it is {words}; `probe sql DIR` lists tables and columns"
        raise invalid(text, words=_words(kind))
    if kind == "BASE_TABLE":
        place = [part for part in (node.get("catalog_name"), node.get("schema_name")) if part]
        if place:
            name = ".".join([*place, node["table_name"]])
            raise invalid("expected a signal after FROM, without a schema; got {name}", name=name)
    if kind == "TABLE_FUNCTION":
        function = str(node["function"].get("function_name", ""))
        if function.lower() not in TABLE_FUNCTIONS:
            expected = ", ".join(sorted(TABLE_FUNCTIONS))
            raise invalid(
                "the function {function} cannot be read from: expected a signal, or one of {expected}",
                function=function,
                expected=expected,
            )


def _made(node: dict[str, Any]) -> Iterator[str]:
    """Yield the names that a node gives."""
    if isinstance(node.get("alias"), str):
        yield node["alias"]
    for key in ("column_name_alias", "aliases", "expected_names", "unpivot_names"):
        if isinstance(node.get(key), list):
            yield from (name for name in node[key] if isinstance(name, str))
    if node.get("class") == "LAMBDA":
        yield from (target["column_names"][-1] for target in _nodes(node.get("lhs")) if "column_names" in target)
        yield from (name for name in node.get("named_parameters") or [] if isinstance(name, str))


def _words(kind: str) -> str:
    return kind.removesuffix("_NODE").removesuffix("_REF").replace("_", " ")


def _shortened(text: str) -> str:
    return repr(text[:MOST_NAMED] + "..." * (len(text) > MOST_NAMED))
