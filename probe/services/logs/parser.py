"""Parser of single log lines of training programs, launchers, communication libraries and kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

from probe.services.logs.anomalies import Judged, anomalies_of, component_of, judge
from probe.services.logs.metrics import Metrics, metrics_of, put_entry
from probe.services.logs.normal import with_plain_numbers, without_escapes
from probe.services.logs.structure import exception_of, json_of, level_of, pairs_of, rank_of, text_of
from probe.services.logs.texts import LANGUAGES
from probe.services.logs.timestamps import iso_of, now, time_of

LIMIT = 64 * 1024
"""Length in bytes to which a line is cut."""
OF_CONTAINER = "log"
TEXTS = (OF_CONTAINER, "message", "msg", "text")
"""Fields of a line of JSON that have the program's own line: that of a container's log, and those of loggers."""
Record = dict[str, Any]
LEVELS = {
    **dict.fromkeys(("trace", "debug"), "DEBUG"),
    **dict.fromkeys(("info", "notice"), "INFO"),
    **dict.fromkeys(("warn", "warning"), "WARNING"),
    **dict.fromkeys(("error", "critical", "fatal"), "ERROR"),
}
SOURCES = (
    *((literal, "communication") for literal in (b"nccl", b"hccl", b"gloo", b"processgroup")),
    *((literal, "launcher") for literal in (b"torch/distributed/elastic", b"torchelastic", b"launch.py", b"slurm")),
    *((literal, "kernel") for literal in (b"kernel:", b"nvrm:")),
)
"""Literals by which the origin of a line is known."""
TRAINING = frozenset(
    {"loss", "step", "epoch", "learning_rate", "gradient_norm", "step_time", "validation_loss", "eval_loss", "batch"}
    | {"throughput", "overflow", "skipped_steps", "throughput_per_device", "parameter_norm", "epoch_time"}
)
"""Metrics that training alone has."""


class TrainingLogParser:
    """Parser of log lines; each line by itself, without memory of those before.

    Args:
        language: Language of descriptions, causes and advice: ``en`` or ``zh``.

    Raises:
        ValueError: if there are no texts in that language.
    """

    def __init__(self, language: str = "en") -> None:
        if language not in LANGUAGES:
            raise ValueError(f"language: expected one of {', '.join(LANGUAGES)}; got {language!r}")
        self.language = language

    def parse_log_line(self, log_line: str, timestamp: str | None = None) -> Record:
        """Parse a line; any text is accepted, and nothing is raised.

        Args:
            log_line: The line. Beyond 64 KiB it is cut.
            timestamp: The time of the line; if None, the time that the line states, or else now.

        Returns:
            ``timestamp``, ``raw_message`` (without colours), ``level`` (DEBUG, INFO, WARNING, ERROR), ``component``,
            ``metrics``, ``anomalies`` (a list of ``type``, ``severity``, ``description``, ``cause``, ``advice``),
            ``structured_data`` (JSON and key=value in the line), ``rank``, ``timestamp_source`` (argument, line or
            clock); where there are any: ``local_rank``, ``exception`` (``type``, ``message``), ``cut`` (bytes left
            out).
        """
        if not isinstance(log_line, str):
            raise TypeError(
                f"parse_log_line: expected a line of text, got {type(log_line).__name__}; decode bytes first"
            )
        content = log_line.encode("utf-8", "backslashreplace")
        record = self.record(content[:LIMIT], cut=max(0, len(content) - LIMIT))
        if timestamp is not None:
            record |= {"timestamp": timestamp, "timestamp_source": "argument"}
        elif record["timestamp"] is None:
            record |= {"timestamp": now(), "timestamp_source": "clock"}
        return record

    def batch_parse_logs(self, log_lines: Iterable[str]) -> list[Record]:
        """Parse lines; blank ones are left out, and those of a block are judged together."""
        if isinstance(log_lines, str | bytes):
            raise TypeError("batch_parse_logs: expected lines, got one text; pass text.splitlines()")
        records, judged = [], Judged()
        for line in log_lines:
            if line.strip():
                records.append(self.parse_log_line(line))
                judge(records[-1], judged, line[0] in " \t|", self.language)
        return records

    def record(self, line: bytes, *, searched: bool = True, cut: int = 0) -> Record:
        """Parse the bytes of a line of at most :data:`LIMIT` bytes, as :meth:`parse_log_line` does.

        Args:
            line: The line.
            searched: False if the line is known to have none of the needles of anomalies.
            cut: Bytes that were cut from its end.

        Returns:
            The same record, but ``timestamp`` is None if the line states no time.
        """
        inner: Record = {}
        if line.startswith(b"{") and (text := _text_in(outer := json_of(line))):
            inner = self.record(text.strip().encode("utf-8", "backslashreplace"), searched=searched, cut=cut)
            if OF_CONTAINER in outer:
                time = inner["timestamp"] or _time_in(outer)
                return inner | {"timestamp": time, "timestamp_source": "line" if time else None}
        raw = without_escapes(line)
        line = with_plain_numbers(raw)
        low = line.lower()
        data: dict[str, Any] = json_of(line) if b"{" in line else {}
        metrics = inner["metrics"] if inner else metrics_of(line, low)
        if data:
            _add_metrics(data, metrics)
        error = searched and _level(line, low, data, metrics, []) == "ERROR"
        anomalies = (inner and inner["anomalies"]) or anomalies_of(low, metrics, searched, self.language, error)
        time = (_time_in(data) if data else None) or time_of(line)
        rank, local = rank_of(line)
        record: Record = {
            "timestamp": time,
            "raw_message": text_of(raw).strip(),
            "level": _level(line, low, data, metrics, anomalies),
            "component": _component(data, low, metrics, anomalies),
            "metrics": metrics,
            "anomalies": anomalies,
            "structured_data": data | pairs_of(line) if b"=" in line else data,
            "rank": _rank_in(data) if data and rank is None else rank,
            "timestamp_source": "line" if time else None,
        }
        if local is not None:
            record["local_rank"] = local
        if record["level"] != "INFO" and (exception := exception_of(line)):
            record["exception"] = exception
        if cut:
            record["cut"] = cut
        return record


def _text_in(data: dict[str, Any]) -> str:
    """Return the program's own line within a line of JSON; empty if there is none."""
    return next((text for name in TEXTS if isinstance(text := data.get(name), str)), "")


def _component(data: dict[str, Any], low: bytes, metrics: Metrics, anomalies: list[dict[str, Any]]) -> str:
    if data and isinstance(stated := data.get("component"), str) and stated:
        return stated
    if anomalies and (of_anomaly := component_of(anomalies)) != "unknown":
        return of_anomaly
    if "memory_total_gb" in metrics:
        return "gpu"
    if not TRAINING.isdisjoint(metrics) or any(name.endswith("loss") for name in metrics):
        return "training"
    for literal, name in SOURCES:
        if literal in low:
            return name
    return "progress" if "percent" in metrics else "unknown"


def _level(line: bytes, low: bytes, data: dict[str, Any], metrics: Metrics, anomalies: list[dict[str, Any]]) -> str:
    if anomalies:
        return "ERROR"
    if data and (stated := _level_in(data)):
        return stated
    if metrics and (
        low.startswith(b"{'") or "consumed_samples" in metrics or ("percent" in metrics and low.endswith(b"]"))
    ):
        return "INFO"  # lines of Hugging Face Trainer, Megatron-LM and progress bars state none
    return level_of(line, low)


def _level_in(data: dict[str, Any]) -> str:
    for key in ("level", "log.level", "severity", "levelname"):
        if isinstance(stated := data.get(key), str):
            return LEVELS.get(stated.lower(), "")
    return ""


def _time_in(data: dict[str, Any]) -> str | None:
    for key in ("@timestamp", "timestamp", "time", "ts", "asctime"):
        stated = data.get(key)
        if isinstance(stated, str) and (time := time_of(stated.encode("utf-8", "backslashreplace"))):
            return time
        if _is_number(stated) and (time := iso_of(stated)):
            return time
    return None


def _rank_in(data: dict[str, Any]) -> int | None:
    labels = data.get("labels")
    for value in (data.get("rank"), data.get("labels.rank"), labels.get("rank") if isinstance(labels, dict) else None):
        if isinstance(value, int | str) and str(value).isdecimal() and len(str(value)) < 8:
            return int(value)
    return None


def _add_metrics(data: dict[str, Any], metrics: Metrics) -> None:
    """Add the numbers of a JSON object, of its ``metrics`` first."""
    inner = data.get("metrics")
    for source, known_alone in ((inner if isinstance(inner, dict) else {}, False), (data, True)):
        for name, value in list(source.items())[:128]:
            if isinstance(value, str) or _is_number(value):
                text, _, second = str(value).encode("utf-8", "replace").partition(b"/")
                put_entry(metrics, name, text, second, "" if known_alone else name)
    if isinstance(name := data.get("key", data.get("name")), str) and _is_number(value := data.get("value")):
        put_entry(metrics, name, str(value).encode(), b"", "")


def _is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value of JSON is a number within the range of floats."""
    return isinstance(value, float) or (type(value) is int and value.bit_length() < 1024)
