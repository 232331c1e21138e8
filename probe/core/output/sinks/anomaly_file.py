"""``anomaly.json``: the findings of a rank, over all its runs, in the documented form."""

from __future__ import annotations

import json
import logging
import os
import textwrap
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from threading import Lock

from probe.core.messages import plural
from probe.core.naming import tag
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Finding
from probe.core.storage.anomaly_json import entry_key, fields_of, file_of, is_from, run_fields
from probe.core.storage.atomic_files import open_for_append, replacing, write_all

logger = logging.getLogger("probe.anomaly")

MOST_ENTRIES = 10_000
"""Entries that one run adds at most; more are counted."""
MOST_BYTES = 64 << 20
"""Size from which an earlier file is put aside rather than continued."""
END = "\n}"
_LOCK = Lock()
"""Lock of all changes of files: the monitors of a process share the file of their rank."""


class AnomalyFile:
    """Writer of ``{root}/anomaly_detected/rank{r}/anomaly.json``, which is a valid JSON object after every write.

    New entries overwrite the closing brace, so the cost of a write does not grow with the file.
    """

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._run = run_fields(context.run, context.start, context.first_step)
        self._path = file_of(context.root, context.rank)
        self._size = -1
        """Size of the file after the last write; another size shows that something else has changed it."""
        self._keys: set[str] = set()
        self._written = 0
        self._dropped = 0

    def write(self, findings: Sequence[Finding]) -> None:
        """Add ``findings`` in one write."""
        taken = findings[: MOST_ENTRIES - self._written]
        self._drop(len(findings) - len(taken))
        if not taken:
            return
        with _LOCK:
            if not self._path.exists() or self._path.stat().st_size != self._size:
                self._keys = _adopt(self._path)
            entries = self._entries(taken)
            self._size = _splice(self._path, ",\n".join(entries.values()))
        self._keys.update(entries)
        self._written += len(entries)

    def close(self) -> None:
        """Log the number of findings that were not written."""
        if self._dropped:
            were = plural(self._dropped, "finding was", "findings were")
            logger.warning("%d %s not written to %s", self._dropped, were, self._path)

    def _drop(self, number: int) -> None:
        if number and not self._dropped:
            logger.warning("%s has %d entries of this run; further findings are only counted", self._path, MOST_ENTRIES)
        self._dropped += number

    def _entries(self, findings: Sequence[Finding]) -> dict[str, str]:
        """Return each finding as an indented JSON member, by a key that the file does not have yet."""
        entries: dict[str, str] = {}
        for finding in findings:
            name = tag(finding.signal, finding.key, finding.rank, finding.micro_stepped)
            wanted = entry_key(name, finding.step, finding.order, finding.op)
            repeated = (f"{wanted}_{number}" for number in count(2))
            key = wanted
            while key in self._keys or key in entries:
                key = next(repeated)
            body = json.dumps(
                fields_of(finding, name, self._context.pp_stage, self._context.group_mates, self._run), indent=1
            )
            entries[key] = textwrap.indent(f"{json.dumps(key)}: {body}", " ")
        return entries


def take_out(path: Path, run: str, first: int) -> dict[str, object]:
    """Remove the findings of a run from step ``first`` on from ``path``, and return them; none from a file that cannot
    be continued.

    Raises:
        OSError: if the file cannot be read or written; it then stays as it was.
    """
    with _LOCK:
        entries = _entries_of(path) if path.exists() else None
        taken = {key: entry for key, entry in (entries or {}).items() if is_from(entry, run, first)}
        if entries and len(taken) == len(entries):
            path.unlink()
        elif entries and taken:
            with replacing(path) as file:
                json.dump({key: entry for key, entry in entries.items() if key not in taken}, file, indent=1)
    return taken


def _adopt(path: Path) -> set[str]:
    """Make the file at ``path`` continuable, or put it aside if it cannot be; return its keys."""
    if not path.exists() or not path.stat().st_size:
        return set()
    entries = _entries_of(path)
    if entries is None:
        _put_aside(path)
        return set()
    if not _ends_as_ours(path) or not entries:
        with replacing(path) as file:
            json.dump(entries, file, indent=1)
    return set(entries)


def _entries_of(path: Path) -> dict[str, object] | None:
    """Return the object in ``path``; None if it cannot be continued."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size <= MOST_BYTES else None
    except (ValueError, RecursionError):
        return None
    return entries if isinstance(entries, dict) else None


def _ends_as_ours(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-len(END), os.SEEK_END)
        return file.read() == END.encode()


def _put_aside(path: Path) -> None:
    names = (path.with_name(f"{path.stem}_aside_{number}{path.suffix}") for number in count(1))
    aside = next(name for name in names if not name.exists())
    path.rename(aside)
    logger.warning("%s cannot be continued (too large, torn, or not ours): kept as %s", path, aside.name)


def _splice(path: Path, members: str) -> int:
    """Add ``members`` to the object in ``path``, made if missing; return the size of the file.

    Raises:
        OSError: if they do not fit; the file then ends as it did.
    """
    open_for_append(path).close()
    with path.open("r+b", buffering=0) as file:
        size = len(file.read())
        position = max(0, size - len(END))
        file.seek(position)
        data = (("," if position else "{") + "\n" + members + END).encode()
        try:
            write_all(file, data)
        except OSError as error:
            error.filename = error.filename or str(path)
            file.truncate(position)
            file.seek(position)
            write_all(file, END.encode() if position else b"")
            if not position:
                path.unlink()
            raise
    return position + len(data)
