"""Reading a configuration file: JSON with comments, or YAML; every syntax error with its line and column."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import yaml

from probe.core.settings_problems import ConfigError, path_text

YAML_ENDINGS = (".yaml", ".yml")


class _Mapping(dict[Hashable, Any]):
    """A mapping as read, with the keys that were written more than once."""

    repeated: list[str]


def read(source: str | PathLike[str]) -> tuple[dict[str, Any], list[str]]:
    """The mapping in a file, and a line for each key that it gives twice (the last one counts).

    Raises:
        ConfigError: if there is no file, or no mapping in it.
    """
    name = fspath(source) or "."
    return parse(name, text_of(name, content(name)))


def parse(name: str, text: str) -> tuple[dict[str, Any], list[str]]:
    """What :func:`read` gives for a file called ``name`` that holds ``text``.

    Raises:
        ConfigError: if there is no mapping in it.
    """
    if not text.strip():
        raise ConfigError(name, [f"{name}: the file is empty; expected a mapping of keys, at least {{}}"])
    try:
        value = _yaml(name, text) if name.lower().endswith(YAML_ENDINGS) else _json(name, text)
    except RecursionError:
        raise ConfigError(name, [f"{name}: nested too deeply"]) from None
    if not isinstance(value, _Mapping):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise ConfigError(name, [f"{name}: expected a mapping of keys at the top level, got {found}"])
    return dict(value), list(_repetitions(value))  # type: ignore[arg-type] # other keys are told by the settings


def content(name: str) -> bytes:
    """What is in the file called ``name``.

    Raises:
        ConfigError: if it cannot be read.
    """
    try:
        return Path(name).expanduser().read_bytes()
    except IsADirectoryError:
        raise ConfigError(name, [f"{name}: this is a directory; give the file in it"]) from None
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a NUL in the name; RuntimeError: no such ~user
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise ConfigError(name, [f"{name}: cannot be read: {reason}; give the path of a JSON or YAML file"]) from error


def text_of(name: str, raw: bytes) -> str:
    """``raw`` as text, without the mark that some editors put at the beginning.

    Raises:
        ConfigError: if it is no UTF-8.
    """
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        problem = f"{name}:{line}:{column}: not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8"
        raise ConfigError(name, [problem]) from None


_STRING = r'"(?:\\.|[^"\\\n])*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)


def plain_json(text: str) -> str:
    """``text`` with blanks for comments and for the comma after a last element; every position stays."""

    def blank_comment(found: re.Match[str]) -> str:
        return found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0])

    bare = _COMMENT.sub(blank_comment, text)

    def blank_comma(found: re.Match[str]) -> str:
        follows_value = bare[: found.start()].rstrip()[-1:] not in tuple("[{,:")
        return " " if found[0] == "," and follows_value else found[0]

    return _LAST_COMMA.sub(blank_comma, bare)


def _json(name: str, text: str) -> Any:
    def mapping(pairs: list[tuple[str, Any]]) -> _Mapping:
        result = _Mapping(pairs)
        result.repeated = _repeated(key for key, _ in pairs)
        return result

    try:
        return json.loads(plain_json(text), object_pairs_hook=mapping)
    except json.JSONDecodeError as error:
        known = Path(name).suffix.lower() == ".json"
        advice = "" if known else f"; a YAML file must be named {' or '.join(YAML_ENDINGS)}"
        problem = f"{name}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}{advice}"
        raise ConfigError(name, [problem]) from None
    except ValueError as error:  # an integer of more than 4300 digits
        raise ConfigError(name, [f"{name}: not usable JSON: {error}"]) from None


class _Loader(yaml.SafeLoader):
    """YAML's safe loader that takes 1e-8 for a number, as YAML 1.2 does, and notes keys given twice."""


def _yaml_mapping(loader: _Loader, node: yaml.MappingNode) -> Iterator[_Mapping]:
    result = _Mapping()
    result.repeated = _repeated(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
    yield result  # PyYAML fills a mapping after it is made, so that it may hold itself
    result.update(loader.construct_mapping(node))


_Loader.add_constructor("tag:yaml.org,2002:map", _yaml_mapping)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _yaml(name: str, text: str) -> Any:
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise ConfigError(name, [f"{place}: not valid YAML: {error.problem or error.context}"]) from None
    except (yaml.YAMLError, ValueError) as error:  # a control character; a date such as 2024-99-99
        raise ConfigError(name, [f"{name}: not valid YAML: {' '.join(str(error).split())}"]) from None
    finally:
        if loader:
            loader.dispose()


def _repeated(keys: Iterable[str]) -> list[str]:
    return [key for key, count in Counter(keys).items() if count > 1]


def _repetitions(root: _Mapping) -> Iterator[str]:
    waiting: list[tuple[tuple[int | str, ...], object]] = [((), root)]
    seen: set[int] = set()
    while waiting:
        path, value = waiting.pop(0)
        if id(value) in seen:  # a YAML alias
            continue
        if isinstance(value, _Mapping):
            seen.add(id(value))
            yield from (f"{path_text((*path, key))}: given more than once; keep one" for key in value.repeated)
            waiting += [((*path, str(key)), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            seen.add(id(value))
            waiting += [((*path, index), inner) for index, inner in enumerate(value)]
