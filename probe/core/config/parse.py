"""Parser of configuration files: JSON with comments, YAML, or literals in Python; every problem with its line.

A file may be read while training runs, on its thread: so only regular files are read, which never block, up to a size
whose parsing takes bounded time.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from probe.core.config.errors import ConfigError, UnreadableConfigError, path_text
from probe.core.config.json_text import braced, is_fragment, mistake, offsets, plain_json
from probe.core.config.python_text import PythonText, has_assignments
from probe.core.language import Message, message

YAML_ENDINGS = (".yaml", ".yml")
PYTHON_ENDING = ".py"
OTHERS = ("toml", "ini", "cfg", "xml", "csv", "sh")
"""Endings of files of other kinds."""
MOST_JSON, MOST_YAML = 1 << 20, 256 << 10
"""Sizes in bytes of the largest files that are read: seven thousand targets with selectors, a second or two of work."""
MOST_VALUES = 200_000
"""Most values in a YAML file, each counted as often as aliases repeat it."""

_log = logging.getLogger("probe.settings")


class _Mapping(dict[Hashable, Any]):
    """Mapping as read, with the keys that were written more than once."""

    repeated: list[str]


class _PythonConfigError(ConfigError):
    """Error of a file that is no Python."""

    advice = message("Correct these and start again; docs/guides/coming_from.md describes the keys.")


class LineNumbers:
    """Line of each key of a file, found when a problem needs it.

    Args:
        find: returns the line, from 1, of each key and each element, by its path.
    """

    def __init__(self, name: str, find: Callable[[], Mapping[tuple[str, ...], int]]) -> None:
        self._name, self._find = name, find

    @cached_property
    def _lines(self) -> Mapping[tuple[str, ...], int]:
        return self._find()

    def lead(self, path: Iterable[int | str]) -> str:
        """Text ``file:line: `` for the key at ``path`` or, if that is missing, for the nearest mapping around it."""
        parts = tuple(map(str, path))
        while parts and parts not in self._lines:
            parts = parts[:-1]
        return f"{self._name}:{self._lines.get(parts, 1)}: "


class ParsedConfig(NamedTuple):
    """Content of a configuration file."""

    values: dict[str, Any]
    repeated: list[str]
    """Problem of each key that is there twice; the last one counts."""
    lines: LineNumbers


def path_of(source: object) -> str:
    """Return the path of a configuration file.

    Raises:
        ConfigError: if ``source`` is no path.
    """
    if isinstance(source, str | PathLike):
        return fspath(source) or "."
    expected = message("expected the path of a file or a mapping")
    advice = message('give one, such as "monitor_config.json"')
    kind = type(source).__name__
    problem = message("{expected}, got {kind}; {advice}", expected=expected, kind=kind, advice=advice)
    raise ConfigError("config_file_path", [problem])


def read(source: str | PathLike[str]) -> ParsedConfig:
    """Read a configuration file.

    Raises:
        ConfigError: if there is no file, or no mapping in it.
    """
    name = path_of(source)
    text = text_of(name, content(name))
    found = parse(name, text)
    if _reader(name, text) is _json and is_fragment(text):
        _log.warning("%s: no braces around the keys; read as if there were: write braces around them", name)
    return found


def parse(name: str, text: str) -> ParsedConfig:
    """Parse ``text``, the content of a file called ``name``.

    Raises:
        ConfigError: if there is no mapping in it.
    """
    if not text.strip():
        raise ConfigError(
            name, [message("{name}: expected a mapping of keys, got an empty file; write at least {{}}", name=name)]
        )
    try:
        value, find = _reader(name, text)(name, text)
    except RecursionError:
        raise ConfigError(
            name, [message("{name}: nested too deeply; expected a mapping of documented keys", name=name)]
        ) from None
    if not isinstance(value, _Mapping):
        found = message("nothing") if value is None else f"a {type(value).__name__}"
        advice = message('write keys and values, such as {"wg_distribution": true}')
        if isinstance(value, str) and "：" in value:
            advice = message('write ":" in place of "："')
        elif isinstance(value, str):
            advice = message("write a colon behind each key, such as wg_distribution: true")
        raise ConfigError(
            name,
            [
                message(
                    "{name}:1: expected a mapping of keys at the top level, got {found}; {advice}",
                    name=name,
                    found=found,
                    advice=advice,
                )
            ],
        )
    lines = LineNumbers(name, find)
    repeated = [
        message("{key}: given more than once, expected once; keep one", key=f"{lines.lead(path)}{path_text(path)}")
        for path in _repetitions(value)
    ]
    return ParsedConfig(dict(value), repeated, lines)  # type: ignore[arg-type] # the schema refuses other keys


def _is_yaml(name: str) -> bool:
    return name.lower().endswith(YAML_ENDINGS)


def content(name: str) -> bytes:
    """Read the bytes of the regular file called ``name``. This waits for nothing but the disk.

    Raises:
        ConfigError: if it cannot be read, or is larger than a configuration may be.
    """
    most = MOST_YAML if _is_yaml(name) else MOST_JSON
    try:
        path = Path(name).expanduser()
        _check_regular(name, path.stat())
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            _check_regular(name, os.fstat(file.fileno()))  # another file may have taken its place
            raw = file.read(most + 1)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a NUL in the name; RuntimeError: no such ~user
        if isinstance(error, ConfigError):
            raise
        if name.lstrip()[:1] == "{":
            text = (
                "expected the path of a file or a mapping, got the text of one; write it to a file and give its path, "
                "or pass it through json.loads"
            )
            raise ConfigError("config_file_path", [message(text)]) from None
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        problem = message(
            "{name}: cannot be read: {reason}; expected a JSON or YAML file, give its path", name=name, reason=reason
        )
        raise UnreadableConfigError(name, [problem]) from None
    if len(raw) > most:
        problem = message(
            "{name}: expected at most {most} bytes, got more; name fewer targets, or modules around them{more}",
            name=name,
            most=most,
            more="" if most == MOST_JSON else message("; a JSON file may have {most}", most=MOST_JSON),
        )
        raise ConfigError(name, [problem])
    return raw


KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


def _check_regular(name: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = message(KINDS.get(stat.S_IFMT(found.st_mode), "device"))
        raise UnreadableConfigError(
            name,
            [
                message(
                    "{name}: expected a regular file, this is a {kind}; give the path of a file", name=name, kind=kind
                )
            ],
        )


def text_of(name: str, raw: bytes) -> str:
    """Decode ``raw``, without the byte order mark that some editors put at the beginning.

    Raises:
        ConfigError: if it is not UTF-8.
    """
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raw = error.object  # without the mark, as is the place
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        came = message("byte 0x{byte:02x}", byte=raw[error.start])
        if b"\0" in raw[: error.start]:
            text = "{name}: expected a configuration, got a binary file (a NUL among its first bytes); give its path"
            raise ConfigError(name, [message(text, name=name)]) from None
        problem = message(
            "{place}: not UTF-8 ({came}): expected UTF-8, got {came}; save the file as UTF-8",
            place=f"{name}:{line}:{column}",
            came=came,
        )
        raise ConfigError(name, [problem]) from None


_Find = Callable[[], Mapping[tuple[str, ...], int]]


def _reader(name: str, text: str) -> Callable[[str, str], tuple[Any, _Find]]:
    """Return the parser of the format that the ending of a name stands for; one of Python for assignments, too."""
    if _is_yaml(name):
        return _yaml
    if (ending := Path(name).suffix[1:].lower()) in OTHERS:
        text = "{name}: expected JSON, YAML or Python, got {kind}; write `ops: [norm]` and such in a .yaml file"
        raise ConfigError(name, [message(text, name=name, kind=ending.upper())])
    return _python if is_python(name, text) else _json


def is_python(name: str, text: str) -> bool:
    """Return whether a file is read as Python: by its name, or by an assignment in it."""
    return name.lower().endswith(PYTHON_ENDING) or (not _is_yaml(name) and has_assignments(text))


def _python(name: str, text: str) -> tuple[Any, _Find]:
    try:
        found = PythonText(text)
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL
        place = f"{name}:{getattr(error, 'lineno', None) or 1}:{getattr(error, 'offset', None) or 1}"
        problem = message("{place}: not valid Python: {problem}; correct it", place=place, problem=error.args[0])
        raise _PythonConfigError(name, [problem]) from None
    values = _Mapping(found.values)
    values.repeated = []
    return values, found.lines


def _json(name: str, text: str) -> tuple[Any, _Find]:
    def mapping(pairs: list[tuple[str, Any]]) -> _Mapping:
        result = _Mapping(pairs)
        result.repeated = _repeated([key for key, _ in pairs]) if len(result) < len(pairs) else []
        return result

    def integer(digits: str) -> int | float:  # Python refuses more than 4300; as a float, it is refused by its key
        return int(digits) if len(digits) < 400 else float(digits)

    whole, before, behind = braced(text)
    bare = plain_json(whole)
    try:
        value = json.loads(bare, object_pairs_hook=mapping, parse_int=integer)
    except json.JSONDecodeError as error:
        at, sentence = mistake(bare, error, len(bare) - behind)
        at = min(max(at - before, 0), len(text.rstrip()))
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        known = Path(name).suffix.lower() == ".json"
        advice = "" if known else message("; a YAML file must be named .yaml or .yml")
        raise ConfigError(
            name,
            [
                message(
                    "{name}:{line}:{column}: not valid JSON: {sentence}{advice}",
                    name=name,
                    line=line,
                    column=column,
                    sentence=sentence,
                    advice=advice,
                )
            ],
        ) from None
    return value, lambda: _lines_of(bare)


def _lines_of(bare: str) -> dict[tuple[str, ...], int]:
    ends = [found.start() for found in re.finditer("\n", bare)]
    return {path: bisect_left(ends, at) + 1 for path, at in offsets(bare).items()}


class _Loader(yaml.SafeLoader):
    """Safe loader of YAML that reads 1e-8, 0100 and 1:30 as YAML 1.2 does, and records repeated keys."""


def _yaml_mapping(loader: _Loader, node: yaml.MappingNode) -> Iterator[_Mapping]:
    result = _Mapping()
    result.repeated = _repeated(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
    yield result  # PyYAML fills a mapping after it is made, so that it may contain itself
    result.update(loader.construct_mapping(node))


def _yaml_number(loader: _Loader, node: yaml.ScalarNode) -> int | float | str:
    if ":" in node.value:  # to base 60, in YAML 1.1
        return str(node.value)
    if re.fullmatch(r"[-+]?[\d_]+", node.value):  # to base 8, if it begins with 0
        return int(node.value.replace("_", ""))
    return loader.construct_yaml_float(node) if node.tag.endswith("float") else loader.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:map", _yaml_mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _yaml_number)
_Loader.add_constructor("tag:yaml.org,2002:float", _yaml_number)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _yaml_problem(name: str, text: str, error: yaml.MarkedYAMLError) -> Message:
    """Return where a file is no YAML, what is wrong there, and what to do."""
    mark = error.problem_mark or error.context_mark
    place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    advice = message("correct it; texts with : or #, and those that begin with * or &, stand in quotes")
    problem = error.problem or error.context
    rest = text[mark.index :] if mark else ""
    if re.search(r"^\s*(//|/\*)", text, re.MULTILINE):
        problem, advice = message("expected # before a comment, got //"), message("write # in its place")
    elif error.context == "while scanning a quoted scalar" and error.context_mark is not None:
        place = f"{name}:{error.context_mark.line + 1}:{error.context_mark.column + 1}"
        problem, advice = message("expected a closing quote, got none"), message("close the text")
    elif rest.startswith("\t"):
        problem, advice = message("expected spaces before a key, got a tab"), message("write spaces in its place")
    elif isinstance(error, yaml.composer.ComposerError) and rest.startswith("---"):
        problem = message("expected one document, got a second one after ---")
        advice = message("a configuration has one; remove the other")
    elif isinstance(error, yaml.constructor.ConstructorError) and rest.startswith("!"):
        problem = message("expected plain values, got the tag {tag}", tag=rest.split(maxsplit=1)[0])
        advice = message("write the value without it")
    elif (error.problem or "").startswith("expected <block end>"):
        problem = message("expected as many spaces before this line as before the keys above it, got others")
        advice = message("indent lines that belong together alike")
    elif error.problem == "mapping values are not allowed here":
        problem = message("expected one key in a line, below the first letter of the one before, got another")
        advice = message("write it there; texts with : stand in quotes")
    return message("{place}: not valid YAML: {problem}; {advice}", place=place, problem=problem, advice=advice)


def _yaml(name: str, text: str) -> tuple[Any, _Find]:
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None, dict
        _check_aliases(name, root)
        return loader.construct_document(root), lambda: _lines_of_yaml(root)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(name, [_yaml_problem(name, text, error)]) from None
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # a control character; a date such as 2024-99-99
        raise ConfigError(
            name,
            [message("{name}: not valid YAML: {problem}; correct it", name=name, problem=" ".join(str(error).split()))],
        ) from None
    finally:
        if loader:
            loader.dispose()


def _inner(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _check_aliases(name: str, root: yaml.Node) -> None:
    """Refuse a file whose aliases expand to too many values.

    Raises:
        ConfigError: with the line of the first alias that makes too many.
    """
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if (known := sizes.get(id(node))) is not None:
            return known
        sizes[id(node)] = 1  # while it is not known: inside itself
        sizes[id(node)] = found = 1 + sum(map(size, _inner(node)))
        if found > MOST_VALUES:
            where = f"{name}:{node.start_mark.line + 1}"
            expected = message(
                "expected at most {most} values, each counted as often as an alias repeats it", most=MOST_VALUES
            )
            raise ConfigError(
                name, [message("{where}: {expected}, got more; write fewer aliases", where=where, expected=expected)]
            )
        return found

    size(root)


def _lines_of_yaml(root: yaml.Node) -> dict[tuple[str, ...], int]:
    """Lines of keys and elements; values behind an alias have the line of the alias's own key."""
    found: dict[tuple[str, ...], int] = {}
    waiting: list[tuple[tuple[str, ...], yaml.Node]] = [((), root)]
    seen: set[int] = set()
    while waiting:
        path, node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        pairs: list[tuple[str, yaml.Node, yaml.Node]]
        if isinstance(node, yaml.MappingNode):
            pairs = [(key.value, key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
        else:
            pairs = [(str(number), value, value) for number, value in enumerate(_inner(node))]
        for part, at, value in pairs:
            found[(*path, part)] = at.start_mark.line + 1
            waiting.append(((*path, part), value))
    return found


def _repeated(keys: Iterable[str]) -> list[str]:
    return [key for key, count in Counter(keys).items() if count > 1]


def _repetitions(root: _Mapping) -> Iterator[tuple[int | str, ...]]:
    """Yield the paths of keys that were written more than once."""
    waiting: list[tuple[tuple[int | str, ...], object]] = [((), root)]
    seen: set[int] = set()
    for path, value in waiting:
        if id(value) in seen:  # a YAML alias
            continue
        if isinstance(value, _Mapping):
            seen.add(id(value))
            yield from ((*path, key) for key in value.repeated)
            waiting += [((*path, str(key)), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            seen.add(id(value))
            waiting += [((*path, index), inner) for index, inner in enumerate(value)]
