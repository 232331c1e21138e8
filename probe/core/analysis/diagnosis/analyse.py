"""Analysis of a directory with the output of many ranks, in memory that does not grow with steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import nan

from probe.core.analysis.diagnosis.causality import Cause, Incident, exchanged, incidents_of, senders
from probe.core.analysis.diagnosis.check_findings import (
    RankCheckFinding,
    check_findings,
    sought_steps,
    spoilt_steps,
    with_onsets,
)
from probe.core.analysis.diagnosis.evaluate import EvaluatedRank, Extent, counted, extent
from probe.core.analysis.diagnosis.evidence import Evidence, evidence
from probe.core.analysis.diagnosis.explain import Kind, kind_of, on_ranks, origins, paragraph, rivals, spoilt_text
from probe.core.analysis.diagnosis.judge import judge, slim
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.diagnosis.nodes import CausalPaths
from probe.core.analysis.diagnosis.passes import Passes
from probe.core.analysis.diagnosis.peers import peer_findings
from probe.core.analysis.diagnosis.replicas import RULE as REPLICAS
from probe.core.analysis.diagnosis.replicas import compare
from probe.core.analysis.diagnosis.run_findings import RankRunFinding, run_findings
from probe.core.analysis.diagnosis.topology import Topology, topology
from probe.core.analysis.engines import PieceEngine
from probe.core.hindsight.onset import Onset, rarer
from probe.core.language import invalid, message
from probe.core.messages import in_number
from probe.core.naming import RUN
from probe.core.records import Finding
from probe.core.storage.anomaly_json import Entry, rank_folders, read
from probe.core.storage.anomaly_runs import belongs
from probe.core.storage.directories import RecordedRun, find, last_run, listed, place
from probe.core.storage.duckdb_reader import Connection, Rows
from probe.core.storage.layout import cell_name, key_of, ranks_text
from probe.core.storage.location import Place
from probe.core.storage.plans import plan_differences
from probe.core.storage.problems import Problems

MOST_SPANS = 10
"""Stretches of steps that a note names."""


@dataclass(frozen=True)
class IncidentDiagnosis:
    """First cause of one incident."""

    incident: Incident
    kind: Kind
    first: Located
    ranks: tuple[int, ...]
    """Ranks on which it began, at the same place."""
    rivals: tuple[Located, ...]
    """Findings that may have begun the incident as well as ``first``."""
    evidence: Evidence
    text: str
    """A paragraph for people."""
    onset: Onset | None = None
    """Answer of the search for its cause in the rows before."""
    spoilt: int | None = None
    """Step whose update had spoilt the weights before the first of its rows was collected: they name no place; None if
    none is known."""


@dataclass(frozen=True)
class Analysis:
    """Findings and diagnoses of a run."""

    run: RecordedRun
    judged: tuple[EvaluatedRank, ...]
    diagnosis: IncidentDiagnosis | None
    """Diagnosis of the main incident: the first with NaN or Inf, else the first; None if nothing was found. An incident
    that only the end of the run explains is the main one if there is no other."""
    others: tuple[IncidentDiagnosis, ...]
    """Diagnoses of the other incidents, in order of time."""
    notes: tuple[str, ...]
    """Data that were not judged, with the reasons."""
    problems: Problems
    topology: Topology
    all_steps: bool = True
    """True if the findings of all steps count."""
    of_run: tuple[RankRunFinding, ...] = ()
    """Findings about numbers of the run, such as the loss."""
    of_checks: tuple[RankCheckFinding, ...] = ()
    """Findings of the checks of the training loop, and departures of ranks from their peers."""

    @property
    def extent(self) -> Extent:
        """Ranks, steps and rows that were judged."""
        return extent(self.judged)

    @property
    def unexplained(self) -> bool:
        """True if the run itself counted findings, but neither its files nor its dump have any."""
        return self.all_steps and not self.diagnosis and any(counted(self.run).values())

    @property
    def diagnoses(self) -> tuple[IncidentDiagnosis, ...]:
        """All diagnoses in order of time."""
        main = [self.diagnosis] if self.diagnosis else []
        return tuple(sorted([*main, *self.others], key=lambda diagnosis: diagnosis.incident.first))

    def findings(self) -> list[tuple[Located, Cause]]:
        """All findings that are kept, in order."""
        return [pair for diagnosis in self.diagnoses for pair in diagnosis.incident.findings]

    @property
    def number(self) -> int:
        """Number of all findings, including those that are not kept."""
        return sum(diagnosis.incident.number for diagnosis in self.diagnoses)


def analyse(
    root: Place,
    steps: Iterable[int] = (),
    progress: Callable[[str], None] = lambda _: None,
    connection: Connection | None = None,
    engine: PieceEngine | None = None,
    least: int = 1,
    directory: str = "",
) -> Analysis:
    """Analyse the run in ``root`` that began last.

    Args:
        steps: steps whose findings count; all if empty.
        progress: called with a line about each task as it begins.
        connection: database to read with.
        engine: engine that reads the run in pieces; None to read it here as a whole. The result is the same.
        least: number of pieces at least.
        directory: name of a directory of the run that is analysed instead.

    Raises:
        ValueError: if there is no output of a run, or nothing of it at any of ``steps``.
        ImportError: if DuckDB is missing.
    """
    problems, requested = Problems(), sorted(set(steps))
    run = last_run(root, problems, directory)
    topo = topology(run.directories)
    with Rows(run.directories, problems, connection) as rows:
        passes = Passes(run, rows, engine, least, slim)
        of_checks = check_findings(rows, run)
        judged, rules, shared = judge(passes, requested, progress, sought_steps(of_checks))
        of_checks = with_onsets(of_checks, judged)
        if requested:
            _require_steps(root, rows, judged)
        of_rank = {rank.rank: rank for rank in judged}
        live = live_findings(root, run, of_rank, rules, topo, requested, problems)
        live.number_calls(judged)
        topo = topology(run.directories, live.mates, shared)
        progress("comparing replicas")
        differing, aliens = compare(passes, topo, requested)
        beyond = [*differing, *live.live]
        paths = _causal_paths(passes, topo, judged, beyond)
        incidents = [incident for incident in incidents_of(judged, paths, beyond) if incident.findings]
        progress("comparing ranks with their peers")
        of_peers = peer_findings(passes, topo, requested)
        progress("writing the diagnosis")
        main = _main(incidents)
        diagnoses = [(incident, _diagnose(rows, incident, of_rank, of_checks)) for incident in incidents]
        notes = (*_notes(rows, aliens, judged), *_plan_notes(run))
        of_run = tuple(run_findings(passes))
    every_check = _without_repeats(of_checks, of_peers)
    return Analysis(
        run,
        tuple(judged),
        next((diagnosis for incident, diagnosis in diagnoses if incident is main), None),
        tuple(diagnosis for incident, diagnosis in diagnoses if incident is not main),
        notes,
        problems,
        topo,
        not requested,
        tuple(case for case in of_run if not requested or case.finding.step in requested),
        tuple(case for case in every_check if not requested or {case.finding.step, case.finding.since} & {*requested}),
    )


def _require_steps(root: Place, rows: Rows, judged: Sequence[EvaluatedRank]) -> None:
    """Raise ValueError if steps were asked for of which no rank has any."""
    if any(rank.sampled for rank in judged) and not any(rank.counted for rank in judged):
        text = "{root}: expected steps of this run{span}; it has none of those asked for"
        raise invalid(text, root=root, span=_span(rows))


def _without_repeats(
    of_checks: Sequence[RankCheckFinding], of_peers: Sequence[RankCheckFinding]
) -> list[RankCheckFinding]:
    """Return both in the order in which they began, without what a comparison of ranks says again of the same ranks."""
    checks = {(case.finding.check, case.ranks) for case in of_checks}
    new = [case for case in of_peers if case.finding.where or (case.finding.check, case.ranks) not in checks]
    return sorted([*of_checks, *new], key=lambda case: case.finding.since)


def _span(rows: Rows) -> str:
    """Text of the first and the last step; empty if there is none."""
    queries = " UNION ALL ".join(f"SELECT step FROM {rows.view(signal)}" for signal in rows.signals if signal != RUN)  # noqa: S608
    if not queries:
        return ""
    first, last = rows.connection.execute(f"SELECT min(step), max(step) FROM ({queries})").fetchone()  # noqa: S608
    return "" if first is None else f", {first} to {last}"


def _main(incidents: Sequence[Incident]) -> Incident | None:
    begun = [incident for incident in incidents if incident.of(Cause.initiating)] or incidents
    return next((incident for incident in begun if incident.is_non_finite), begun[0] if begun else None)


def _causal_paths(
    passes: Passes, topo: Topology, judged: Sequence[EvaluatedRank], beyond: Sequence[Located]
) -> CausalPaths:
    findings = [located for rank in judged for episode in rank.episodes for located in episode.kept]
    firsts = {episode.first for rank in judged for episode in rank.episodes}
    return CausalPaths(topo, exchanged(passes, firsts), senders([*findings, *beyond]))


def _diagnose(
    rows: Rows, incident: Incident, judged: dict[int, EvaluatedRank], of_checks: Sequence[RankCheckFinding]
) -> IncidentDiagnosis:
    """Return the diagnosis of an incident."""
    begun = origins(incident) or [incident.findings[0][0]]
    first = begun[0]
    spoilt = _spoilt_before(incident, first, judged, spoilt_steps(of_checks))
    ranks = tuple(sorted({located.rank for located in begun if located.place == first.place}))
    kind, proof = kind_of(incident, first, ranks), evidence(rows, first)
    facts = list(_facts(incident, first, judged))
    onset = _onset(incident, judged, of_checks)
    if onset is not None and onset.looked:
        facts.append(message("Looking back: {answer}.", answer=onset.text()))
    text = paragraph(kind, incident, begun, proof, facts) if spoilt is None else spoilt_text(kind, incident, spoilt)
    return IncidentDiagnosis(incident, kind, first, ranks, tuple(rivals(begun)), proof, text, onset, spoilt)


def _onset(
    incident: Incident, judged: Mapping[int, EvaluatedRank], of_checks: Sequence[RankCheckFinding]
) -> Onset | None:
    """Return the answer of the ranks of an incident; where too few steps were recorded, that of the run itself."""
    ranks = [rank for number in incident.by_rank if (rank := judged.get(number)) is not None]
    answer: Onset | None = reduce(rarer, (_first_answer(rank, incident) for rank in ranks), None)
    if answer is not None and answer.looked:
        return answer
    steps = range(incident.first, incident.last + 1)
    checks = (check.finding.onset for check in of_checks if check.finding.since in steps)
    return next((onset for onset in checks if onset is not None and onset.looked), answer)


def _first_answer(rank: EvaluatedRank, incident: Incident) -> Onset | None:
    """Return the answer of a rank for the first of its steps that belong to an incident."""
    steps = [step for step in rank.onsets if incident.first <= step <= incident.last]
    return rank.onsets[min(steps)] if steps else None


def _spoilt_before(
    incident: Incident, first: Located, judged: dict[int, EvaluatedRank], updates: Sequence[int]
) -> int | None:
    """Return the step after the last clean sampled one whose update has spoilt the weights before ``first``."""
    rank = judged.get(first.rank)
    before = None if rank is None else rank.before.get(incident.first)
    since = -1 if before is None else before
    return next((step for step in updates if since <= step < first.began), None) if first.is_non_finite else None


def _facts(incident: Incident, first: Located, judged: dict[int, EvaluatedRank]) -> Iterable[str]:
    of_rank = judged.get(first.rank)
    before = of_rank.before.get(incident.first) if of_rank else None
    if before is not None and before < first.began - 1:
        yield message("The sampled step before, {step}, was clean; the steps between were not sampled.", step=before)
    ended = [rank.rank for rank in judged.values() if rank.partial]
    if ended and incident.last >= min(judged[rank].last_step for rank in ended):
        yield message("The last step of {ranks} is unfinished: the run ended within it.", ranks=on_ranks(ended))
    replicas = [located for located, _ in incident.findings if located.finding.rule == REPLICAS]
    if replicas:
        last, until = max(rank.last_step for rank in judged.values()), max(located.until for located in replicas)
        if until >= 0:  # a difference is reported only as it begins
            yield message(
                "The last step at which replicas differ is {step}; the run's last is {last}.", step=until, last=last
            )
        return
    recovered = [rank for rank in judged.values() if rank.last_step > incident.last]
    if recovered and incident.last - incident.first <= 1 and len(recovered) == len(judged):
        yield message("From step {step} on there are no more findings.", step=incident.last + 1)


def _notes(rows: Rows, aliens: Sequence[tuple[int, ...]], judged: Sequence[EvaluatedRank]) -> Iterable[str]:
    for group in aliens:
        yield message(
            "ranks {ranks} were compared as replicas only in tensors that were equal while they changed in the first "
            "steps: most differ from the first step on, and the run does not name its replicas",
            ranks=ranks_text(group),
        )
    dropped = sum(rank.dropped for rank in judged)
    if dropped:
        yield message(
            "{number} more group of findings not kept" if dropped == 1 else "{number} more groups of findings not kept",
            number=dropped,
        )
    if "actv" in rows.signals and "zeros" not in rows.numbers("actv"):
        yield message("dead layers cannot be recognised: the op zeros was not collected")
    ends = _ends(rows, judged)
    last = max(ends.values(), default=-1)
    for rank, step in ends.items():
        if 0 <= step < last:
            yield message(
                "rank {rank} ends at step {step}, others go on to step {last}", rank=rank, step=step, last=last
            )


def _ends(rows: Rows, judged: Sequence[EvaluatedRank]) -> dict[int, int]:
    """Return the last step of each rank. Ranks may record tensors in other steps, but count them all."""
    ends = {rank.rank: rank.last_step for rank in judged}
    if len({*ends.values()}) > 1 and RUN in rows.signals:
        query = f"SELECT rank, max(step) FROM {rows.view(RUN)} GROUP BY rank"  # noqa: S608 - no word is a user's
        for rank, step in rows.connection.execute(query).fetchall():
            ends[rank] = max(step, ends.get(rank, step))
    return ends


def _plan_notes(run: RecordedRun) -> Iterable[str]:
    """Name the steps in which an edit of the configuration held on some ranks alone."""
    differences = plan_differences(run)
    spans = [str(span.first) if span.first == span.last else f"{span.first}-{span.last}" for span in differences]
    if spans:
        yield message(
            "ranks {ranks} collected by another configuration than the others at steps {steps}: changes reached them "
            "at another time; rows of these steps cannot be compared between ranks",
            ranks=listed(sorted({rank for difference in differences for rank in difference.ranks})),
            steps=", ".join(spans[:MOST_SPANS]) + ", ..." * (len(spans) > MOST_SPANS),
        )


Row = tuple[int, int, str, str, int]
"""Row of a file: rank, step, signal, name and micro step."""
MOST = 100
"""Most findings of one rank that are kept although its files do not have them."""


@dataclass
class LiveFindings:
    """Additions of the files of findings to those that the rows give."""

    calls: dict[Row, int] = field(default_factory=dict)
    """Positions in the order of execution, for rows with a finding in the files too."""
    mates: dict[int, list[int]] = field(default_factory=dict)
    """Pipeline groups by rank."""
    live: list[Located] = field(default_factory=list)
    """Findings of this run that its files do not have: of rules that cannot judge files, or of steps missing there."""

    def number_calls(self, judged: Sequence[EvaluatedRank]) -> None:
        """Give the findings of the rows their positions in the order of execution."""
        for episode in (episode for rank in judged for episode in rank.episodes):
            episode.kept = [
                located._replace(call=self.calls.get(_row(located.finding), -1)) for located in episode.kept
            ]


def live_findings(
    root: Place,
    run: RecordedRun,
    judged: Mapping[int, EvaluatedRank],
    rules: Collection[str],
    topo: Topology,
    steps: Collection[int],
    problems: Problems,
) -> LiveFindings:
    """Read the findings that ``run`` has dumped.

    Those of earlier runs lie in the same files: if there are several runs, a finding that does not name its run, as in
    files of older versions, is taken only if the files of this run confirm it.

    Args:
        rules: names of the rules that have judged the files; only their findings there count.
        steps: those that count; all if empty.
    """
    inside, result, doubtful = place(root), LiveFindings(), list[Located]()
    dump = inside.parent if inside in [directory.path for directory in run.directories] else inside
    if not rank_folders(dump):
        return result
    episodes = (episode for rank in judged.values() for episode in rank.episodes)
    rows = {_row(located.finding) for episode in episodes for located in episode.kept}
    is_own, numbers = belongs(run), Counter[int]()
    for _, entry in read(dump, problems):
        if (is_of_run := is_own(entry)) is False:
            continue
        if len(entry.group_mates) > 1:
            result.mates.setdefault(entry.rank, entry.group_mates)
        rank = judged.get(entry.rank)
        if rank is None or (steps and entry.step not in steps):
            continue
        row = entry.rank, entry.step, entry.signal, entry.row, entry.micro_step
        if row in rows:
            result.calls[row] = entry.call_id
        within, rule = rank.first_step <= entry.step <= rank.last_step, entry.judgement.rule
        is_new = rule not in rules if within else is_of_run or not rank.sampled
        if is_new and (rule or row not in rows) and numbers[entry.rank] < MOST:
            numbers[entry.rank] += 1
            (result.live if is_of_run else doubtful).append(_located(entry, topo.stage(entry.rank)))
    if len(find(dump, Problems())) == len(run.directories):
        result.live += doubtful
    elif doubtful:
        problems.add(root, _left_out(len(doubtful)), skipped=False)
    return result


def _left_out(number: int) -> str:
    return in_number(
        number,
        "{number} finding that its rules made while it ran may belong to another run: left out",
        "{number} findings that its rules made while it ran may belong to another run: left out",
    )


def _row(finding: Finding) -> Row:
    """Return the row of a file that a finding is about."""
    return finding.rank, finding.step, finding.signal, cell_name(finding.key), finding.key.micro_step


def _located(entry: Entry, pp_stage: int) -> Located:
    rule, op, value, expected = entry.judgement
    key = key_of(entry.signal, entry.row, entry.micro_step, entry.call, entry.vpp_stage)
    finding = Finding(
        rule=rule or "unknown",
        signal=entry.signal,
        key=key,
        op=op,
        value=nan if value is None else value,
        expected=nan if expected is None else expected,
        step=entry.step,
        rank=entry.rank,
        order=entry.call_id,
        message=entry.message,
        micro_stepped=entry.micro_stepped,
    )
    return Located(finding, entry.step, pp_stage, live=True, call=entry.call_id)
