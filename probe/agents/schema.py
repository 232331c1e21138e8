"""Schema of answers in JSON: of every command with ``--json``; programs may import it.

``ANSWERS["anomalies"].model_validate_json(text)`` parses an answer, ``json_schema()`` is all of it as JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from probe.core.checks.check import Grade
from probe.core.verdict import Certainty

SCHEMA_VERSION = 1
"""Version of the schema; increased when a reader of the older one would be wrong. Fields may be added without."""
Real = float | str
"""Number, or a text for NaN and the infinities, which JSON lacks."""


class AnswerPart(BaseModel):
    """Object in an answer. Fields that are not described here may be added in any version."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class CommandAnswer(AnswerPart):
    """Answer of a command."""

    schema_version: Literal[1]
    """Version of this schema."""
    command: str
    """Command without ``probe``."""


class FilesAnswer(CommandAnswer):
    """Answer about files."""

    problems: list[str]
    """Sentences about data that could not be read."""
    skipped: bool
    """True if data were left out because of these."""


class OnsetAnswer(AnswerPart):
    """Answer of the search for a cause in the steps before."""

    looked: int
    """Steps that were looked at."""
    where: str
    """Row in which it began; empty if nothing stood out."""
    signal: str
    step: int
    samples: int
    factor: Real
    """Change relative to what is usual."""
    chance: Real
    """Chance of as much before other steps."""
    ranks: list[int]


class LookedAnswer(AnswerPart):
    """Parts of a run that were looked at, and those that were not."""

    at: list[str]
    not_at: list[str]


class VerdictAnswer(AnswerPart):
    """First cause of what was found."""

    kind: str
    """Empty if nothing was found."""
    grade: Grade | None
    where: list[str]
    """Rows, layers or numbers of the run."""
    ranks: list[int]
    """Empty for a run of one rank."""
    step: int | None
    """Step in which it was found."""
    since: int | None
    """Step in which it began."""
    certainty: Certainty | None
    text: str
    evidence: dict[str, Real]
    looked: LookedAnswer
    before: list[str]
    """Sentences about what came before."""
    after: int | None
    """Last recorded step before ``since``, if steps between were not recorded."""
    next_steps: list[str]
    command: str
    more: int
    """Further criticals and warnings."""
    notes: int
    onset: OnsetAnswer | None
    signal: str
    """Signal of the row; empty for anything else."""
    noted: list[str]
    """Sentences of the first notes, where nothing else was found."""


class PrintedVerdict(VerdictAnswer):
    """Verdict with its lines in a terminal."""

    lines: list[str]


class GradedAnswer(AnswerPart):
    """Finding of a rule or of a check."""

    grade: Grade
    kind: str
    where: str
    rank: int | list[int]
    step: int
    """Step in which it began."""
    found: int | None = None
    """Step in which a check has found it."""
    text: str | None = None
    """Sentence of a check."""
    onset: OnsetAnswer | dict[str, Any] | None = None


class RowFinding(AnswerPart):
    """Finding of a rule about a row, with the fields of ``anomaly.json``."""

    rank: int
    step: int
    micro_step: int
    pp_stage: int
    vpp_stage: int
    call_id: int
    tag_name: str
    message: str
    group_mates: list[int]
    cause: str
    began: int
    """Step in which it began."""
    rule: str
    signal: str
    name: str
    """Name of the row."""
    op: str
    value: Real
    expected: Real
    live: bool
    """True if the run itself has reported it."""


class EvidenceAnswer(AnswerPart):
    """Numbers of the first bad row in the steps around."""

    file: str | None
    op: str
    values: list[tuple[int, Real | None]]
    """Pairs of a step and a number."""


class IncidentAnswer(AnswerPart):
    """Findings that have one cause."""

    kind: str
    text: str
    first: RowFinding
    ranks: list[int]
    ambiguous_with: list[RowFinding]
    evidence: EvidenceAnswer
    spoilt: int | None
    """Step whose update has spoilt the weights."""
    onset: OnsetAnswer | dict[str, Any] | None
    first_step: int
    last_step: int
    findings: int
    by_rank: dict[str, int]
    by_rule: dict[str, int]


class NumberAnswer(AnswerPart):
    """Finding of a rule about a number of the run."""

    rank: int
    rule: str
    name: str
    step: int
    value: Real
    expected: Real
    severity: str
    message: str


class JudgedExtent(AnswerPart):
    """Rows that were judged."""

    ranks: list[int]
    steps: int
    rows: int
    signals: list[str]


class AnomaliesAnswer(FilesAnswer):
    """First cause of what went wrong in a run, and everything that was found."""

    run: str
    ranks: list[int]
    missing_ranks: list[int]
    judged: JudgedExtent
    run_found: dict[str, int | None]
    """Number of findings that each rank itself has counted."""
    number: int
    """Number of findings about rows."""
    verdict: PrintedVerdict
    findings: list[GradedAnswer]
    """Everything that was found, in the order of steps."""
    diagnosis: IncidentAnswer | None
    others: list[IncidentAnswer]
    kept: list[RowFinding]
    """First findings of each incident."""
    run_numbers: list[NumberAnswer]
    notes: list[str]


class TrialAnswer(AnswerPart):
    """Finding of a trial."""

    grade: Grade
    kind: str
    where: str
    rank: int | list[int]
    step: int
    text: str
    evidence: dict[str, Real]
    remedy: str


class TrialExtent(AnswerPart):
    """Updates that were judged."""

    ranks: int
    steps: int
    rows: int


class CheckAnswer(CommandAnswer):
    """Faults of a program, from its first updates."""

    findings: list[TrialAnswer]
    judged: TrialExtent
    preflight: list[str]
    """Sentences about checks that hold, and those that could not see what they judge."""
    exit_code: int
    """Exit code of the program."""


class NumbersAnswer(AnswerPart):
    """Number of two runs in one row."""

    op: str
    a: Real | None
    b: Real | None
    difference: Real
    """Relative difference."""
    beyond: bool
    """True if it is beyond the tolerance."""


class DifferingAnswer(AnswerPart):
    """Row that differs."""

    rank: int
    step: int
    micro_step: int
    micro_stepped: bool
    signal: str
    stage: int
    name: str
    name_b: str
    call: int
    numbers: list[NumbersAnswer]
    shape: str
    shape_b: str
    dtype: str
    dtype_b: str
    dtypes_differ: bool
    excess: Real
    """Largest difference of its numbers, in multiples of the tolerance."""


class OnlyAnswer(AnswerPart):
    """Data of one run alone."""

    a: list[str]
    b: list[str]


class CompareAnswer(CommandAnswer):
    """Comparison of two runs, A and B."""

    verdict: str
    same: bool
    """True if all numbers are equal to the digits that were written."""
    agrees: bool
    """True if all rows are within the tolerance, and no module parts the runs."""
    a: str
    b: str
    tolerance: float
    dtype: str
    rows: int
    """Pairs of rows compared."""
    beyond: int
    """Pairs that differ by more than the tolerance."""
    first: list[DifferingAnswer]
    """First of these, in the order of cause."""
    before: Real
    steps: tuple[int, int]
    ranks: list[tuple[int, int]]
    signals: dict[str, str]
    renamed: int
    by_framework: int
    common: bool
    only_rows: tuple[int, int]
    only_names: OnlyAnswer
    only_steps: OnlyAnswer
    only_ranks: OnlyAnswer
    only_signals: OnlyAnswer
    counts: list[tuple[str, int, int, Real]]
    """Signal, pairs of rows, pairs beyond the tolerance, largest relative difference."""
    growth: list[dict[str, Any]]
    layers: list[dict[str, Any]]
    largest: Real
    paced: bool
    """True if a run chose its steps by their cost; those of one run alone are left out."""
    jumps: list[dict[str, Any]]
    """First modules whose outputs differ by much more than what goes into them."""
    precision: list[str]
    problems: list[str]
    skipped: bool


class PerformanceAnswer(FilesAnswer):
    """Performance of a run; null for numbers that are unknown."""

    schema_: int = Field(alias="schema")
    """Older name of the version of the schema."""
    run: str
    hours: float | None
    ranks: int
    missing_ranks: list[int]
    steps: dict[str, Any]
    step_seconds: dict[str, Any]
    throughput: dict[str, Any]
    phases: list[Any] | dict[str, Any]
    communication: list[Any] | dict[str, Any] | None
    stragglers: list[Any]
    learning_rate: list[Any]
    devices: dict[str, Any]
    efficiency: dict[str, Any]
    own_cost: list[Any] | dict[str, Any] | None
    found: list[str]
    """Kinds of what was found: a drop, a slow rank, a rating below Fair."""


class CostAnswer(AnswerPart):
    """Estimate of the work that reading takes."""

    pieces: int
    ranks: int
    files: int
    bytes: int
    rows: int
    requests: int


class ExplainAnswer(CommandAnswer):
    """Work that a command takes."""

    costs: list[CostAnswer]


class ChannelAnswer(AnswerPart):
    """Result of a channel of alerts."""

    channel: str
    accepted: bool
    error: str | None


class AlertTestAnswer(CommandAnswer):
    """Results of a test alert."""

    channels: list[ChannelAnswer]


class SenderAnswer(AnswerPart):
    """Alerts that a run could not send."""

    alerts: int
    complete: bool
    channels: list[ChannelAnswer]


class AlertFlushAnswer(CommandAnswer):
    """Alerts that were sent."""

    complete: bool
    """True if nothing is left to send."""
    senders_left: int
    senders: list[SenderAnswer]


class AttachedProcess(AnswerPart):
    """Process that was to be watched."""

    pid: int
    state: str
    """``attached``, else the state with ``reason``."""
    reason: str | None = None
    step: int | None = None
    counted: bool | None = None
    models: dict[str, str] | None = None
    optimizers: list[str] | None = None
    directory: str | None = None


class AttachAnswer(CommandAnswer):
    """Processes that are watched."""

    processes: list[AttachedProcess]


class ConfigCheckAnswer(CommandAnswer):
    """Mistakes of a configuration file."""

    file: str
    correct: bool
    problems: list[str] = []
    """Mistakes, each with its place and what was expected."""
    monitor: str = ""
    """Monitor of another project that the file is for."""
    summary: dict[str, str] = {}
    warnings: list[str] = []
    """Keys without an effect."""


class KeyAnswer(AnswerPart):
    """Key of the configuration."""

    key: str
    rule: str
    type: str
    default: str
    range: str
    meaning: str


class JudgeAnswer(AnswerPart):
    """Rule or check."""

    name: str
    kind: str
    title: str
    meaning: str
    why: str
    sees: str
    remedy: str
    source: str


class ConfigExplainAnswer(CommandAnswer):
    """Meaning of a name."""

    keys: list[KeyAnswer]
    judges: list[JudgeAnswer]


class RankAnswer(AnswerPart):
    """State of a rank."""

    rank: int
    directory: str
    state: str
    step: int
    changes: int


class ControlStatusAnswer(CommandAnswer):
    """States of all ranks."""

    ranks: list[RankAnswer]


class ControlChangeAnswer(ControlStatusAnswer):
    """Change of a configuration while a run trains."""

    file: str
    values: dict[str, Any]
    changed: bool
    """False if it was the configuration already."""
    applied: bool
    """True if every rank has applied it."""


class CommandedRank(AnswerPart):
    """Answer of a rank to a command."""

    request: str
    rank: int
    state: str
    step: int
    text: str
    time: float


class ControlCommandAnswer(CommandAnswer):
    """Answers of all ranks to a command."""

    request: str
    ranks: int
    """Ranks that have not ended."""
    answers: list[CommandedRank]


class ConversionAnswer(FilesAnswer):
    """Result of a conversion."""

    summary: str


class InjectedFault(AnswerPart):
    """Fault of the demonstration."""

    kind: str
    place: str
    step: int
    detail: str
    strength: float
    element: int


class DemoAnswer(CommandAnswer):
    """Fault that was planted, and the place that was named."""

    matched: bool
    seed: int
    directory: str
    injected: InjectedFault | None
    found: dict[str, Any] | None
    """First finding, with its ``layer`` and ``step``."""


class LogAnomaly(AnswerPart):
    """First anomaly of a kind on a rank, in logs."""

    rank: int | None
    kind: str
    severity: str
    time: str | None
    file: str
    line: int
    message: str
    anomaly: dict[str, Any]
    number: int


class LogsAnswer(CommandAnswer):
    """Summary of logs."""

    lines: int
    records: int
    cut: int
    unread: int
    """Files that could not be read."""
    anomalies: int
    first: list[LogAnomaly]


class MergeAnswer(CommandAnswer):
    """Files of whole tensors."""

    out: str
    files: list[str]
    rows: int
    incomplete: int
    differing: list[str]
    problems: list[str]
    notes: list[str]


class PackAnswer(FilesAnswer):
    """Packed run."""

    out: str
    ranks: int
    files: int
    blocks: int
    rows: int
    bytes: int
    before: int
    complete: bool
    damaged: list[str]


class RemediateAnswer(CommandAnswer):
    """Actions of a configuration."""

    live: list[str]
    rehearsed: list[str]


class ReportAnswer(FilesAnswer):
    """Report that was written."""

    path: str
    bytes: int
    ranks: int
    rows: int
    text: str
    """First cause."""


class TableAnswer(AnswerPart):
    """Table of a signal."""

    signal: str
    columns: list[str]
    rows: int
    ranks: int
    first_step: int | None
    last_step: int | None


class SqlQueryAnswer(CommandAnswer):
    """Tables of a run, or the answer to a query."""

    run: str | None = None
    tables: list[TableAnswer] | None = None
    columns: list[str] | None = None
    rows: list[dict[str, Any]] | None = None


class TargetsAnswer(CommandAnswer):
    """Targets block of a configuration."""

    targets: dict[str, dict[str, str]]
    idle: int
    """Modules in which no tensor was seen."""
    left_out: list[str]
    """Modules whose entries could not be read."""


class TrackAnswer(FilesAnswer):
    """Run that was sent to a tracker."""

    run: str
    tracker: str
    steps: int


class ToolAnswer(AnswerPart):
    """Answer of a tool of ``probe mcp``."""

    schema_version: Literal[1]
    tool: str
    error: dict[str, Any] | None = None
    """Reason for which a call was refused, with the values that it takes."""


class RowPlace(AnswerPart):
    """Row in a step."""

    signal: str
    row: str
    op: str
    rank: int
    step: int


class VerdictToolAnswer(ToolAnswer):
    """Verdict about a run; without it the analysis goes on, or has failed."""

    state: str = ""
    health: str = ""
    verdict: VerdictAnswer | None = None
    first_row: RowPlace | None = None
    findings: int = 0
    judged: JudgedExtent | None = None
    missing_ranks: list[int] = []


ANSWERS: Mapping[str, type[CommandAnswer]] = {
    "alert test": AlertTestAnswer,
    "alert flush": AlertFlushAnswer,
    "anomalies": AnomaliesAnswer,
    "anomalies --explain": ExplainAnswer,
    "attach": AttachAnswer,
    "check": CheckAnswer,
    "compare": CompareAnswer,
    "compare --explain": ExplainAnswer,
    "config check": ConfigCheckAnswer,
    "config explain": ConfigExplainAnswer,
    "control status": ControlStatusAnswer,
    "control start": ControlChangeAnswer,
    "control stop": ControlChangeAnswer,
    "control set": ControlChangeAnswer,
    "control command": ControlCommandAnswer,
    "csv2db": ConversionAnswer,
    "csv2tb": ConversionAnswer,
    "demo": DemoAnswer,
    "logs parse": LogsAnswer,
    "merge": MergeAnswer,
    "pack": PackAnswer,
    "performance": PerformanceAnswer,
    "remediate": RemediateAnswer,
    "report": ReportAnswer,
    "report --explain": ExplainAnswer,
    "sql": SqlQueryAnswer,
    "sql --explain": ExplainAnswer,
    "targets": TargetsAnswer,
    "track": TrackAnswer,
}
"""Models of the answers by their ``command``."""


def json_schema() -> dict[str, Any]:
    """Return the schema of every answer as JSON Schema (draft 2020-12)."""
    every: Any = None
    for model in dict.fromkeys(ANSWERS.values()):
        every = model if every is None else every | model
    return TypeAdapter(every).json_schema()
