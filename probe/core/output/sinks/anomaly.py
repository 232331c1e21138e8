"""Findings for people: warnings in the log and, if asked for, ``anomaly.json``."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import Lock

from probe.core.language import joined, message
from probe.core.messages import in_number, plural
from probe.core.naming import signal_of, tag
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Finding, Key, Snapshot
from probe.core.rules.causal_order import WEIGHTS
from probe.core.rules.evaluate import explain, word
from probe.core.storage.anomaly_json import entry_key, fields_of, file_of, is_from, run_fields
from probe.core.storage.files import open_for_append, replacing, write_all
from probe.core.verdict import NON_FINITE

logger = logging.getLogger("probe.anomaly")

LINES_A_STEP = 8
"""Findings logged one by one; the others of a step are counted in one line."""


SPOILT = message(" Weights were spoilt before this step: what else is not finite in it may follow from that.")


class AnomalySink:
    """Writer of findings, first causes first, to the log and to their dump.

    A finding of the step before is counted, not logged again: a NaN stays for the rest of the run. Once a weight is not
    finite, further numbers that are not follow from it, and are counted. If any finding is new, the step's last line
    explains the first one in words.
    """

    def __init__(self, context: SinkContext) -> None:
        self._file = AnomalyFile(context) if context.dump else None
        self._most_lines = 0 if context.is_summed_up else LINES_A_STEP
        self._before: set[tuple[str, str, Key, str]] = set()
        self._is_spoilt = False
        """True if a weight was not finite in the steps before, without a break."""
        self._repeated = RepeatedFindings()

    def open(self) -> None:
        """Do nothing: files are made with the first finding, so a run without findings leaves none."""

    def write(self, snapshot: Snapshot) -> None:
        self._print(snapshot.findings, snapshot.step)
        if self._file is not None and snapshot.findings:
            self._file.write(snapshot.findings)

    def close(self) -> None:
        self._repeated.end()
        if self._file is not None:
            self._file.close()

    def _print(self, findings: Sequence[Finding], step: int) -> None:
        new = [finding for finding in findings if _identity(finding) not in self._before]
        if self._is_spoilt:
            new = [finding for finding in new if not _is_non_finite(finding)]
        rows = {(finding.rule, finding.signal, finding.key): finding for finding in reversed(new)}
        printed = [*reversed(rows.values())][: self._most_lines]
        if new:
            self._repeated.end()
        for finding in printed:
            logger.warning("%s", " ".join(finding.message.splitlines()))
        rest = Counter(finding.rule for finding in findings)
        rest.subtract(finding.rule for finding in printed)
        if new:
            if printed:
                _count(rest, step, step)
            text = message(
                "New beside what was bad before on rank {rank}: {text}"
                if self._before
                else "First bad on rank {rank}: {text}",
                rank=new[0].rank,
                text=_on_one_line(explain(new[0])),
            )
            number = plural(len(findings), " ({number} finding at this step)", " ({number} findings at this step)")
            more = "" if printed else message(number, number=len(findings))
            logger.warning("%s", joined("", (text, SPOILT if _is_spoilt_weight(new[0]) else "", more)))
        elif findings:
            self._repeated.add(rest, step)
        self._before = {_identity(finding) for finding in findings}
        self._is_spoilt = any(map(_is_spoilt_weight, findings)) or (self._is_spoilt and bool(findings))


class RepeatedFindings:
    """Findings of steps without a new one: a line for the first of these steps, for the next two, four, eight, ..."""

    def __init__(self) -> None:
        self._rules = Counter[str]()
        self._first = self._last = -1
        self._steps, self._most = 0, 1

    def add(self, rules: Counter[str], step: int) -> None:
        """Take the number of findings of a step by rule."""
        self._first = step if not self._steps else self._first
        self._rules += rules
        self._steps += 1
        if self._steps == self._most:
            self._log(step)
            self._most *= 2
        self._last = step

    def end(self) -> None:
        """Log what was taken and not logged yet."""
        if self._steps:
            self._log(self._last)
        self._most = 1

    def _log(self, last: int) -> None:
        _count(self._rules, self._first, last)
        self._rules.clear()
        self._steps = 0


def _count(rules: Counter[str], first: int, last: int) -> None:
    """Log a number of findings, if there are any, by rule."""
    if total := rules.total():
        names = ", ".join(f"{rule} {number}" for rule, number in sorted(rules.items()) if number)
        at = message("step {first}" if first == last else "steps {first} to {last}", first=first, last=last)
        singular, plural = "and {number} more finding at {at} ({names})", "and {number} more findings at {at} ({names})"
        logger.warning("%s", in_number(total, singular, plural, at=at, names=names))


def _on_one_line(text: str) -> str:
    """Return a message; only one that has line breaks, of a name, loses its template."""
    line = " ".join(text.splitlines())
    return text if line == text else line


def _is_non_finite(finding: Finding) -> bool:
    """Return whether a finding is about a number that is not finite."""
    return word(finding.rule, finding.op, finding.value) in NON_FINITE


def _is_spoilt_weight(finding: Finding) -> bool:
    """Return whether a parameter was not finite before the forward of its step."""
    return signal_of(finding.signal).phase == WEIGHTS and _is_non_finite(finding)


def _identity(finding: Finding) -> tuple[str, str, Key, str]:
    return finding.rule, finding.signal, finding.key, finding.op


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
        first = findings[: MOST_ENTRIES - self._written]
        dropped = len(findings) - len(first)
        if dropped and not self._dropped:
            logger.warning("%s has %d entries of this run; further findings are only counted", self._path, MOST_ENTRIES)
        self._dropped += dropped
        if not first:
            return
        with _LOCK:
            if not self._path.exists() or self._path.stat().st_size != self._size:
                self._keys = _adopt(self._path)
            entries = self._entries(first)
            self._size = _splice(self._path, json.dumps(entries, indent=1)[len("{\n") : -len(END)])
        self._keys.update(entries)
        self._written += len(entries)

    def close(self) -> None:
        """Log the number of findings that were not written."""
        if self._dropped:
            were = plural(self._dropped, "finding was", "findings were")
            logger.warning("%d %s not written to %s", self._dropped, were, self._path)

    def _entries(self, findings: Sequence[Finding]) -> dict[str, Mapping[str, object]]:
        """Return the fields of each finding, by a key that the file does not have yet."""
        entries: dict[str, Mapping[str, object]] = {}
        for finding in findings:
            name = tag(finding.signal, finding.key, finding.rank, finding.micro_stepped)
            bare = entry_key(name, finding.step, finding.order, finding.op)
            repeated = (f"{bare}_{number}" for number in count(2))
            key = bare
            while key in self._keys or key in entries:
                key = next(repeated)
            entries[key] = fields_of(finding, name, self._context.pp_stage, self._context.group_mates, self._run)
        return entries


def take_out(path: Path, run: str, first: int) -> dict[str, object]:
    """Remove the findings of a run from step ``first`` on from ``path``, and return them; none from a file that cannot
    be continued.

    Raises:
        OSError: if the file cannot be read or written; it then stays as it was.
    """
    with _LOCK:
        entries = _entries_of(path) if path.exists() else None
        removed = {key: entry for key, entry in (entries or {}).items() if is_from(entry, run, first)}
        if entries and len(removed) == len(entries):
            path.unlink()
        elif entries and removed:
            with replacing(path) as file:
                json.dump({key: entry for key, entry in entries.items() if key not in removed}, file, indent=1)
    return removed


def _adopt(path: Path) -> set[str]:
    """Make the file at ``path`` continuable, or put it aside if it cannot be; return its keys."""
    if not path.exists() or not path.stat().st_size:
        return set()
    entries = _entries_of(path)
    if entries is None:
        _put_aside(path)
        return set()
    with path.open("rb") as file:
        file.seek(-len(END), os.SEEK_END)
        ends_as_ours = file.read() == END.encode()
    if not ends_as_ours or not entries:
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
