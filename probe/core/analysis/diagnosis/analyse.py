"""From a directory of many ranks' output to the first cause, within memory that does not grow with steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from probe.core.analysis.diagnosis.causality import Cause, Reach, Story, tell
from probe.core.analysis.diagnosis.collectives import exchanged, givers
from probe.core.analysis.diagnosis.evaluate import Judged, Judging, configured, ops_of
from probe.core.analysis.diagnosis.evidence import Evidence, evidence
from probe.core.analysis.diagnosis.explain import Kind, kind_of, on_ranks, origins, paragraph, rivals
from probe.core.analysis.diagnosis.extent import Extent, counted, extent
from probe.core.analysis.diagnosis.live_findings import Dumped, call_of, dumped
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.diagnosis.replicas import RULE as REPLICAS
from probe.core.analysis.diagnosis.replicas import compare
from probe.core.analysis.diagnosis.topology import Topology, sharers, topology
from probe.core.messages import plural
from probe.core.storage.directories import RecordedRun, find, last_run, place
from probe.core.storage.duckdb_reader import Connection, Rows
from probe.core.storage.layout import ranks_text
from probe.core.storage.problems import Problems


@dataclass(frozen=True)
class StoryDiagnosis:
    """The first cause of one story."""

    story: Story
    kind: Kind
    first: Located
    ranks: tuple[int, ...]
    """On which it was first, at the same place."""
    rivals: tuple[Located, ...]
    """What may have begun it just as well."""
    evidence: Evidence
    text: str
    """A paragraph for people."""


@dataclass(frozen=True)
class Analysis:
    """What was found in a run."""

    run: RecordedRun
    judged: tuple[Judged, ...]
    diagnosis: StoryDiagnosis | None
    """The main story's: the first in which anything became NaN or Inf, else the first; None if nothing was found. What
    only the end of the run has left behind is the main story if there is no other."""
    others: tuple[StoryDiagnosis, ...]
    """Of what has no connection in time with it, in order."""
    notes: tuple[str, ...]
    """What was not judged, and why."""
    problems: Problems
    topology: Topology
    all_steps: bool = True
    """Whether the findings of all steps count."""

    @property
    def extent(self) -> Extent:
        """How much was judged."""
        return extent(self.judged)

    @property
    def unexplained(self) -> bool:
        """Whether the run itself counted findings of which neither its files nor its dump have any."""
        return self.all_steps and not self.diagnosis and any(counted(self.run).values())

    @property
    def diagnoses(self) -> tuple[StoryDiagnosis, ...]:
        """All of them in order of time."""
        main = [self.diagnosis] if self.diagnosis else []
        return tuple(sorted([*main, *self.others], key=lambda each: each.story.first))

    def findings(self) -> list[tuple[Located, Cause]]:
        """All that are kept, in order."""
        return [pair for diagnosis in self.diagnoses for pair in diagnosis.story.findings]

    @property
    def number(self) -> int:
        """All findings, those that are not kept too."""
        return sum(diagnosis.story.number for diagnosis in self.diagnoses)


def analyse(
    root: Path,
    steps: Iterable[int] = (),
    told: Callable[[str], None] = lambda _: None,
    connection: Connection | None = None,
) -> Analysis:
    """The run in ``root`` that began last.

    Args:
        steps: those whose findings count; all if there are none.
        told: gets what is being done.
        connection: a database to read with.

    Raises:
        ValueError: if there is no output of a run, or nothing of it at any of ``steps``.
        ImportError: if DuckDB is missing.
    """
    problems, wanted = Problems(), sorted(set(steps))
    run = last_run(root, problems)
    inside = place(root)
    dump = inside.parent if inside in [directory.path for directory in run.directories] else inside
    topo = topology(run.directories)
    with Rows(run.directories, problems, connection) as rows:
        judged, rules = _judge(rows, run, topo, wanted, told)
        if wanted and any(rank.sampled for rank in judged) and not any(rank.counted for rank in judged):
            raise ValueError(f"{root}: expected steps of this run{_span(rows)}; it has none of those asked for")
        of_rank = {each.rank: each for each in judged}
        extra = _dump(root, dump, run, of_rank, rules, topo, wanted, problems)
        topo = topology(run.directories, extra.mates, sharers(rows))
        told("comparing replicas")
        differing, aliens = compare(rows, topo, wanted)
        _place(judged, extra)
        found = [*differing, *extra.live]
        reach = _reach(rows, topo, judged, found)
        stories = [story for story in tell(judged, reach, found) if story.findings]
        told("putting it into words")
        main = _main(stories)
        diagnoses = [(story, _diagnose(rows, story, of_rank)) for story in stories]
        notes = tuple(_notes(rows, aliens, judged))
    return Analysis(
        run,
        tuple(judged),
        next((diagnosis for story, diagnosis in diagnoses if story is main), None),
        tuple(diagnosis for story, diagnosis in diagnoses if story is not main),
        notes,
        problems,
        topo,
        not wanted,
    )


def _span(rows: Rows) -> str:
    """The first and the last step, if there is any."""
    found = " UNION ALL ".join(f"SELECT step FROM {rows.view(signal)}" for signal in rows.signals)  # noqa: S608
    if not found:
        return ""
    first, last = rows.connection.execute(f"SELECT min(step), max(step) FROM ({found})").fetchone()  # noqa: S608
    return "" if first is None else f", {first} to {last}"


def _main(stories: Sequence[Story]) -> Story | None:
    begun = [story for story in stories if story.of(Cause.initiating)] or stories
    return next((story for story in begun if story.is_non_finite), begun[0] if begun else None)


def _judge(
    rows: Rows, run: RecordedRun, topo: Topology, wanted: Sequence[int], told: Callable[[str], None]
) -> tuple[list[Judged], set[str]]:
    judged, rules, ops = [], set[str](), ops_of(rows)
    for rank in run.ranks:
        told(f"judging rank {rank}")
        directory = run.of(rank)[-1]
        alert = configured(directory.manifest, directory.path, rows.problems)
        rules |= {rule.rule_name for rule in alert.rules}
        judged.append(Judging(rows, rank, alert, ops, topo.stage(rank)).run(wanted))
    return judged, rules


def _dump(
    root: Path,
    dump: Path,
    run: RecordedRun,
    judged: dict[int, Judged],
    rules: set[str],
    topo: Topology,
    wanted: Collection[int],
    problems: Problems,
) -> Dumped:
    """Findings of earlier runs lie in the same files: where there are several runs, of those that do not say of which
    they are only the ones that the files of this run confirm are taken."""
    extra = dumped(dump, run, judged, rules, topo.stage, wanted, problems)
    only = len(find(dump, Problems())) == len(run.directories)
    if extra.doubtful and not only:
        made = plural(len(extra.doubtful), "finding")
        what = f"{len(extra.doubtful)} {made} that its own rules made while it ran may be another run's: left out"
        problems.add(root, what, skipped=False)
    elif extra.doubtful:
        extra.live += extra.doubtful
    return extra


def _place(judged: Iterable[Judged], extra: Dumped) -> None:
    for rank in judged:
        for episode in rank.episodes:
            episode.kept = [located._replace(call=call_of(located, extra.calls)) for located in episode.kept]


def _reach(rows: Rows, topo: Topology, judged: Sequence[Judged], found: Sequence[Located]) -> Reach:
    kept = [located for each in judged for episode in each.episodes for located in episode.kept]
    firsts = {episode.first for each in judged for episode in each.episodes}
    return Reach(topo, exchanged(rows, firsts), givers([*kept, *found]))


def _diagnose(rows: Rows, story: Story, judged: dict[int, Judged]) -> StoryDiagnosis:
    begun = origins(story) or [story.findings[0][0]]
    first = begun[0]
    ranks = tuple(sorted({located.rank for located in begun if located.place == first.place}))
    kind, shown = kind_of(story, first, ranks), evidence(rows, first)
    text = paragraph(kind, story, begun, shown, list(_facts(story, first, judged)))
    return StoryDiagnosis(story, kind, first, ranks, tuple(rivals(begun)), shown, text)


def _facts(story: Story, first: Located, judged: dict[int, Judged]) -> Iterable[str]:
    own = judged.get(first.rank)
    before = own.before.get(story.first) if own else None
    if before is not None and before < first.began - 1:
        yield f"The sampled step before, {before}, was clean; the steps between were not sampled."
    ended = [rank.rank for rank in judged.values() if rank.partial]
    if ended and story.last >= min(judged[rank].last_step for rank in ended):
        yield f"The last step of {on_ranks(ended)} is unfinished: the run ended within it."
    replicas = [located for located, _ in story.findings if located.finding.rule == REPLICAS]
    if replicas:
        yield from _how_long(replicas, max(rank.last_step for rank in judged.values()))
        return
    recovered = [rank for rank in judged.values() if rank.last_step > story.last]
    if recovered and story.last - story.first <= 1 and len(recovered) == len(judged):
        yield f"From step {story.last + 1} on nothing is found any more."


def _how_long(replicas: Sequence[Located], last: int) -> Iterable[str]:
    """A difference is told as it begins: that nothing is found afterwards does not say that it is over."""
    until = max(located.until for located in replicas)
    if until >= 0:
        yield f"The last step at which replicas differ is {until}; the run's last is {last}."


def _notes(rows: Rows, aliens: Sequence[tuple[int, ...]], judged: Sequence[Judged]) -> Iterable[str]:
    for group in aliens:
        yield (
            f"ranks {ranks_text(group)} were not compared as replicas: most of what they hold differs from the first "
            "step on, and the run does not say which ranks are replicas"
        )
    dropped = sum(rank.dropped for rank in judged)
    if dropped:
        yield f"{dropped} more {plural(dropped, 'time')} something was found for a while; not kept"
    if "actv" in rows.signals and "zeros" not in rows.numbers("actv"):
        yield "dead layers cannot be told: the op zeros was not collected"
    last = max((rank.last_step for rank in judged), default=-1)
    for rank in judged:
        if 0 <= rank.last_step < last:
            yield f"rank {rank.rank} ends at step {rank.last_step}, others go on to step {last}"
