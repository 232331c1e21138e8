"""Rules run again over the files of a rank, within bounded memory."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.diagnosis.looking_back import RecordedNorms
from probe.core.config.schema import AlertSettings
from probe.core.config.schema import RuleSettings as Configured
from probe.core.hindsight.onset import Onset
from probe.core.language import joined, message
from probe.core.messages import in_number
from probe.core.moments import OPS
from probe.core.records import Batch, Finding
from probe.core.rules import Rule, factory
from probe.core.rules.evaluate import find
from probe.core.rules.history import measures
from probe.core.rules.nan import AnomalyNan
from probe.core.rules.skipped import began
from probe.core.storage.batches import StoredStep, steps
from probe.core.storage.directories import RecordedRun
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import ranks_text
from probe.core.storage.location import Place
from probe.core.storage.manifest import FILE, Manifest
from probe.core.storage.problems import Problems
from probe.core.storage.side_files import StepUpdates

ALWAYS = AnomalyNan.__name__
JUDGING = ("rules", "warnings_per_10000_steps")
"""Settings of alerts that decide what is found."""
KEPT = 100
"""Most findings of a rank that are kept in one episode: the first of each rule and row."""
EPISODES = 10
"""Most episodes of a rank that are kept."""
SEARCHES = 5
"""Steps of a rank from which is looked back."""
QUIET = 12
"""Sampled steps without a finding after which the next finding begins another incident. Not less than the number of
samples for which rules are silent after a report."""


@dataclass
class Episode:
    """Findings of one rank without a longer pause between them."""

    first: int
    last: int
    until: int = 0
    """Last step that still belongs to it, quiet steps included."""
    kept: list[Located] = field(default_factory=list)
    """First finding of each rule and row, in causal order within each step."""
    number: int = 0
    """Number of all findings."""
    by_rule: Counter[str] = field(default_factory=Counter)

    @property
    def is_non_finite(self) -> bool:
        return any(located.is_non_finite for located in self.kept)


@dataclass
class EvaluatedRank:
    """Result of reading the files of one rank."""

    rank: int
    episodes: list[Episode] = field(default_factory=list)
    dropped: int = 0
    """Number of episodes that were not kept."""
    sampled: int = 0
    """Number of steps with rows."""
    counted: int = 0
    """Number of these steps whose findings count."""
    rows: int = 0
    """Number of rows in the steps that count."""
    signals: set[str] = field(default_factory=set)
    """Signals of these rows."""
    first_step: int = -1
    last_step: int = -1
    partial: bool = False
    """True if the last step lacks rows that the one before it had: the run ended within it."""
    before: dict[int, int] = field(default_factory=dict)
    """First step of each episode, with the sampled step before it, which was clean."""
    onsets: dict[int, Onset] = field(default_factory=dict)
    """Answers of the search for a cause in the steps before, by the step of what was found."""


def configured(manifest: Manifest, path: Place, problems: Problems) -> AlertSettings:
    """Settings of alerts of a run, with the default rules if its manifest names none; always with ``AnomalyNan``."""
    settings = manifest.config.get("alert")
    alert = AlertSettings()
    try:
        if isinstance(settings, Mapping) and settings.get("rules"):
            alert = AlertSettings.model_validate({name: settings[name] for name in JUDGING if name in settings})
    except ValidationError as error:
        trouble = message(
            "alert rules that cannot be used ({number} errors): the default ones are used", number=error.error_count()
        )
        problems.add(path / FILE, trouble, skipped=False)
    if any(rule.rule_name == ALWAYS for rule in alert.rules):
        return alert
    return alert.model_copy(update={"rules": (Configured(rule_name=ALWAYS, args={}), *alert.rules)})


def rules_of(alert: AlertSettings, rank: int, ops: Sequence[str]) -> tuple[list[Rule], dict[str, int]]:
    """Rules for a rank, and the number of samples in a row that each waits for."""
    made = [factory(rule.rule_name)(rule.args, rank, ops) for rule in alert.judging]
    waits = {rule.rule_name: int(getattr(rule.args, "steps", 1)) for rule in alert.rules}
    return made, waits


def ops_of(rows: Rows) -> list[str]:
    """Ops that any signal has, in the order of their columns, which is that of the run's configuration."""
    numbers = dict.fromkeys(number for signal in rows.signals for number in rows.numbers(signal))
    return [number for number in numbers if number in OPS]


class RankEvaluator:
    """Evaluation of one rank, step by step."""

    def __init__(self, rows: Rows, rank: int, alert: AlertSettings, ops: Sequence[str], pp_stage: int = 0) -> None:
        self._rows, self._pp_stage = rows, pp_stage
        self._rules, self._waits = rules_of(alert, rank, ops)
        self._latest: deque[int] = deque(maxlen=max([*self._waits.values(), 1]))
        self._sizes: Mapping[str, int] = {}
        self._seen: set[tuple[object, ...]] = set()
        self._counted: set[int] = set()
        self._quiet = 0
        self._norms = RecordedNorms(rank)
        self.judged = EvaluatedRank(rank)

    def run(self, wanted: Iterable[int] = (), sought: Iterable[int] = ()) -> EvaluatedRank:
        """Read and judge all steps.

        Args:
            wanted: steps whose findings count, all if empty; rules see earlier steps as well.
            sought: steps from which the cause of what was found otherwise is sought.
        """
        steps_sought = deque(sorted(set(sought)))
        requested = frozenset(wanted)
        last, updates = max(requested) if requested else None, StepUpdates(self._rows, self.judged.rank)
        for step in steps(self._rows, self.judged.rank, last=last):
            self._look_back(steps_sought, step.step)
            self._count(step)
            step = updates.put_into(step)  # noqa: PLW2901 - the same step
            findings, counts = find(self._rules, step.batches, self._failed), not requested or step.step in requested
            if counts:
                self._counted.add(step.step)
                self.judged.counted = len(self._counted)
                self.judged.rows += sum(map(len, step.batches))
                self.judged.signals.update(batch.signal for batch in step.batches)
            self._norms.add(step.step, step.batches, not findings)
            self._take(step, [f for f in findings if not requested or f.step in requested])
        self._look_back(steps_sought)
        return self.judged

    def _look_back(self, sought: deque[int], until: int | None = None) -> None:
        """Look back from the steps before ``until`` of what was found otherwise; from all if it is None."""
        while sought and (until is None or sought[0] < until):
            step = sought.popleft()
            self.judged.onsets.setdefault(step, self._norms.onset())

    def _failed(self, rule: Rule, error: Exception) -> None:
        name = type(rule).__name__
        reason = f"{type(error).__name__}: {error}"
        trouble = message("rule {name} failed ({reason}): its findings are missing", name=name, reason=reason)
        self._rows.problems.add(Path(f"rank {self.judged.rank}"), trouble)

    def _count(self, step: StoredStep) -> None:
        judged = self.judged
        judged.partial = any(step.rows.get(signal, 0) < size for signal, size in self._sizes.items())
        self._sizes = step.rows
        judged.first_step = step.step if judged.first_step < 0 else judged.first_step
        judged.last_step = step.step
        judged.sampled += 1

    def _take(self, step: StoredStep, findings: Sequence[Finding]) -> None:
        episode = self.judged.episodes[-1] if self.judged.episodes else None
        ended = episode is None or self._quiet >= QUIET
        if not findings:
            self._quiet += 1
            if episode is not None and not ended:
                episode.until = step.step
        else:
            is_new = episode is None or ended
            if episode is None or ended:
                episode = self._begin(step.step)
            self._quiet = 0
            self._keep(episode, step, findings)
            if is_new and len(self.judged.onsets) < SEARCHES:
                self.judged.onsets[step.step] = self._norms.onset(episode.kept[0])
        self._latest.append(step.step)

    def _begin(self, step: int) -> Episode:
        judged = self.judged
        if len(judged.episodes) >= EPISODES:
            place = next((n for n, episode in enumerate(judged.episodes) if not episode.is_non_finite), -1)
            judged.before.pop(judged.episodes.pop(place).first, None)
            judged.dropped += 1
        self._seen.clear()
        if self._latest:
            judged.before[step] = self._latest[-1]
        judged.episodes.append(Episode(step, step, step))
        return judged.episodes[-1]

    def _keep(self, episode: Episode, step: StoredStep, findings: Sequence[Finding]) -> None:
        episode.last = episode.until = step.step
        episode.number += len(findings)
        episode.by_rule.update(finding.rule for finding in findings)
        batches = {batch.signal: batch for batch in step.batches}
        micro = (batch for batch in step.batches if batch.micro_stepped)
        micro_steps = 1 + max((key.micro_step for batch in micro for key in batch.keys), default=0)
        for finding in findings:
            row = finding.rule, finding.signal, finding.key
            if row not in self._seen and len(episode.kept) < KEPT:
                self._seen.add(row)
                episode.kept.append(self._locate(finding, batches[finding.signal], micro_steps))

    def _locate(self, finding: Finding, batch: Batch, micro_steps: int) -> Located:
        wait = self._waits.get(finding.rule, 1)
        earlier = [*self._latest, finding.step][-wait:]
        at = batch.keys.index(finding.key)
        coverage = batch.coverage[at] if batch.coverage else None
        return Located(
            finding,
            began=began(batch, earlier[0]),
            pp_stage=self._pp_stage,
            head=batch.signal == "actv" and at == min(_peers(batch, finding), default=-1),
            micro_steps=micro_steps,
            ranks=coverage.ranks if coverage else (),
        )


def _peers(batch: Batch, finding: Finding) -> Iterator[int]:
    """Rows of the same micro step and virtual stage that are measurements, not ids or masks."""
    key, judged = finding.key, measures(batch.dtypes)
    return (n for n, k in enumerate(batch.keys) if judged[n] and (k.micro_step, k.stage) == (key.micro_step, key.stage))


READ = ("csv", "parquet", "sqlite")
"""Formats whose rows can be judged."""
LISTED = 8
"""Number of ranks whose findings are listed one by one."""


class Extent(NamedTuple):
    """Ranks, steps, rows and signals that were judged."""

    ranks: tuple[int, ...]
    """Ranks with rows."""
    steps: int
    """Number of steps of the rank that has most."""
    rows: int
    signals: tuple[str, ...]

    @property
    def text(self) -> str:
        """Text such as ``2 ranks, 24 sampled steps, 1,152 rows of actv, grad_reduced``."""
        return message(
            "{ranks}, {steps}, {rows}{signals}",
            ranks=in_number(len(self.ranks), "{number:,} rank", "{number:,} ranks"),
            steps=in_number(self.steps, "{number:,} sampled step", "{number:,} sampled steps"),
            rows=in_number(self.rows, "{number:,} row", "{number:,} rows"),
            signals=message(" of {signals}", signals=", ".join(self.signals)) if self.signals else "",
        )


def extent(judged: Sequence[EvaluatedRank]) -> Extent:
    """Extent over all ranks."""
    signals = sorted(set[str]().union(*(rank.signals for rank in judged)))
    ranks = tuple(rank.rank for rank in judged if rank.rows)
    return Extent(ranks, max((rank.counted for rank in judged), default=0), sum(r.rows for r in judged), tuple(signals))


def formats(run: RecordedRun) -> tuple[str, ...]:
    """Formats that the manifests of a run name."""
    names: dict[str, None] = {}
    for directory in run.directories:
        given = directory.manifest.config.get("format")
        named = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        names.update(dict.fromkeys(str(name) for name in named))
    return tuple(names)


def nothing_judged(run: RecordedRun) -> str:
    """Sentence that explains why nothing of a run could be judged."""
    named = formats(run)
    if not named:
        return message(
            "nothing could be judged: there is no row in csv, parquet or sqlite that can be read, and no manifest "
            "names a format; give the folder as the run has written it"
        )
    written = message("formats {formats}" if len(named) > 1 else "format {formats}", formats=", ".join(named))
    if set(named) & set(READ):
        return message("nothing could be judged: {formats}, and there is no row that can be read", formats=written)
    return message("nothing could be judged: {formats}; rows are in csv, parquet and sqlite", formats=written)


def counted(run: RecordedRun) -> dict[int, int | None]:
    """Number of findings that the run itself counted, by rank; None where the manifest has none."""
    return {directory.rank: directory.manifest.findings for directory in run.directories}


def run_found(run: RecordedRun) -> Iterator[str]:
    """Sentences about the findings that the run itself counted, by its manifests."""
    numbers = counted(run)
    some = {rank: n for rank, n in numbers.items() if n}
    if some:
        texts = (message("rank {rank}: {number:,}", rank=rank, number=n) for rank, n in list(some.items())[:LISTED])
        unlisted = in_number(len(some) - LISTED, ", and {number:,} more rank", ", and {number:,} more ranks")
        yield message(
            "While it ran, the run's rules reported {number:,} ({each}{more}).",
            number=sum(some.values()),
            each=joined(", ", texts),
            more=unlisted if len(some) > LISTED else "",
        )
    silent = [rank for rank, n in numbers.items() if n is None]
    if silent:
        yield message(
            "The manifest of {ranks} has no number of findings: the run has not ended, or was killed.",
            ranks=message("ranks {ranks}" if len(silent) > 1 else "rank {ranks}", ranks=ranks_text(silent)),
        )
    if not some and not silent:
        yield message("While it ran, the run's rules reported no finding.")
