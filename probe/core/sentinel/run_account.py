"""Account of one run on one rank: its steps, its loss, what was found and what was not looked at."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from probe.core.checks import CHECKS, CheckFinding
from probe.core.config.load import dynamic
from probe.core.config.schema import Settings
from probe.core.control.armed_collection import CollectedSteps
from probe.core.faults import SINK
from probe.core.hindsight.onset import Onset
from probe.core.instrumentation.context import CAPTURED
from probe.core.judged_findings import is_located, of_check, of_number
from probe.core.language import Message, message
from probe.core.launch import launch_names
from probe.core.naming import SIGNALS, row_name, signal_of
from probe.core.records import Finding, Snapshot
from probe.core.rules.causal_order import causal_order
from probe.core.rules.evaluate import judged, kind_and_grade, module_of
from probe.core.rules.nan import AnomalyNan, NanArgs
from probe.core.rules.skipped import is_evidence
from probe.core.run_state.rules import RunFinding, RunStep
from probe.core.sentinel.watch_summary import LOSS, LossSpan, WatchSummary
from probe.core.verdict import NON_FINITE, UPDATED, DeepSteps, JudgedFinding, Looked

MOST_FINDINGS = 200
"""Findings that are remembered, the first ones of each kind."""
MOST_OF_KIND = 10
SIGNALS_OF = {
    "wg_distribution": "gradients",
    "xy_distribution": "activations",
    "param_distribution": "parameters",
    "mv_distribution": "optimizer state",
}
"""Rows, by the switch of the configuration that records them."""
IN_GRAPHS = "anything in a CUDA graph, nor the replays of one"
WEIGHTS_PHASE, FORWARD_PHASE = SIGNALS["param_origin"].phase, SIGNALS["actv"].phase


class ShownRow(NamedTuple):
    """Row with a number that is not finite."""

    step: int
    module: str
    name: str
    phase: int


class RunAccount:
    """Account of a run. Its methods may be called on any thread.

    Args:
        number: number of the run among those of this process.
        first: number of the first step.
    """

    def __init__(self, settings: Settings, rank: int, number: int, first: int) -> None:
        self._settings, self._rank, self._number, self.first = settings, rank, number, first
        self._began, self._launch = time.time(), "\n".join(launch_names(os.environ, restarts=True).values())
        self._loss = LossSpan()
        self._own_loss = False
        self._findings: list[JudgedFinding] = []
        self._of_kind: dict[tuple[str, str], int] = {}
        self._recorded, self._last_recorded = 0, None  # type: int, int | None
        self._looked: list[str] = []
        self.stretches: Sequence[CollectedSteps] = ()
        """Steps in which everything is collected around what was found."""
        self._shown: dict[int, ShownRow] = {}
        """First row that is not finite of these, by their first step."""
        self._placed: set[int] = set()
        """First steps of those whose place was returned."""
        self._spoilt: list[int] = []
        """Steps whose updates have applied gradients that are not finite."""
        self.preflight: Callable[[], str] = str
        """Function that returns a line about the checks."""
        self.look_back: Callable[[int], Onset | None] = lambda _: None
        """Function that seeks what stood out before a step in the gradients of the updates before."""
        self.changed: Callable[[bool], object] = lambda _: None
        """Function that is called when more is known, with whether it is the first finding of its kind."""

    def loss(self, step: int, value: float) -> None:
        """Take the loss of a step, seen where the backward begins: from then on what is logged as ``loss`` is left
        out."""
        self._loss = (self._loss if self._own_loss else LossSpan()).at(step, value)
        self._own_loss = True

    def run_step(self, step: RunStep) -> None:
        """Take the numbers of a step."""
        if not self._own_loss and LOSS in step.values:
            self._loss = self._loss.at(step.step, step.values[LOSS])
        self.changed(False)

    def look(self, subject: str) -> None:
        """Note what else was looked at, as a noun phrase: ``the loss at every step``."""
        if subject not in self._looked:
            self._looked.append(subject)

    def rows(self, snapshot: Snapshot) -> None:
        """Take a sampled step with its findings, in causal order."""
        after, self._last_recorded, self._recorded = self._last_recorded, snapshot.step, self._recorded + 1
        if self.stretches:
            self._show(snapshot)
        if snapshot.findings:
            switches = {"actv": self._settings.xy_distribution, "param_origin": self._settings.param_distribution}
            signals = {batch.signal for batch in snapshot.batches} | {name for name in switches if switches[name]}
            every = snapshot.findings
            self._add((*kind_and_grade(finding), partial(_of_row, finding, after, signals)) for finding in every)
        self.changed(False)

    def _show(self, snapshot: Snapshot) -> None:
        """Note the first row that is not finite, if everything was collected in the step; also in a forward whose
        update a scaler has skipped."""
        stretch = next((stretch for stretch in [*self.stretches] if stretch.covers(snapshot.step)), None)
        if stretch is None or stretch.first in self._shown:
            return
        batches = [
            batch
            for batch in snapshot.batches
            if is_evidence(batch) or signal_of(batch.signal).phase in (WEIGHTS_PHASE, FORWARD_PHASE)
        ]
        rule = AnomalyNan(NanArgs(), self._rank, snapshot.ops)
        first = min((finding for batch in batches for finding in rule.judge(batch)), key=causal_order, default=None)
        if first is not None:
            phase = signal_of(first.signal).phase
            name = row_name(first.key).lstrip(".")  # of the root module
            self._shown[stretch.first] = ShownRow(snapshot.step, module_of(first), name, phase)

    def run_found(self, findings: Sequence[RunFinding]) -> None:
        """Take the findings of rules about numbers of the run; those of checks come by :meth:`checked`."""
        others = [of_number(finding) for finding in findings if not finding.resolved and finding.rule not in CHECKS]
        self._add(map(_made, others))

    def checked(self, findings: Iterable[CheckFinding]) -> None:
        """Take the findings of checks."""
        judged = [of_check(finding) for finding in findings]
        spoilt = [finding.step for finding in judged if finding.kind == UPDATED and finding.grade == "critical"]
        self._spoilt += spoilt[: MOST_FINDINGS - len(self._spoilt)]
        self._add(map(_made, judged))

    def _add(self, findings: Iterable[tuple[str, str, Callable[[], JudgedFinding]]]) -> None:
        """Count findings by kind and grade, and keep the first ones. Where everything is NaN there are thousands a
        step: their sentences are not made."""
        kinds = len(self._of_kind)
        for kind, grade, make in findings:
            number = self._of_kind[kind, grade] = self._of_kind.get((kind, grade), 0) + 1
            if number <= MOST_OF_KIND and len(self._findings) < MOST_FINDINGS:
                finding = make()
                sought = finding.onset is None and finding.grade != "note" and finding.is_non_finite
                self._findings.append(finding._replace(onset=self.look_back(finding.since)) if sought else finding)
        if len(self._of_kind) > kinds:
            self.changed(True)

    @property
    def is_grave(self) -> bool:
        """True if a critical or a warning was found."""
        return any(finding.grade != "note" for finding in [*self._findings])

    def summary(
        self,
        step: int,
        directory: str | None,
        faults: Mapping[str, int],
        ended: bool,
        cost: tuple[float, float] = (math.nan, math.nan),
    ) -> WatchSummary:
        """Return the summary at this moment.

        Args:
            step: number of the step in progress.
            directory: directory of the files; None if nothing is written.
            faults: number of failures and losses inside probe, by place.
            ended: whether the run has ended.
            cost: seconds of probe, and of the steps without it.
        """
        steps = max(0, step - self.first)
        recorded = min(self._recorded, steps)
        return WatchSummary(
            rank=self._rank,
            pid=os.getpid(),
            number=self._number,
            began=self._began,
            launch=self._launch,
            step=step,
            steps=steps,
            recorded=recorded,
            why=self._why(step) if recorded < steps else _unwritten(faults),
            loss=self._loss,
            findings=tuple(self._findings),
            looked=self._looked_at(steps, recorded, CAPTURED in faults),
            preflight=self.preflight(),
            directory=directory or "",
            faults=sum(number for place, number in faults.items() if place != CAPTURED),
            ended=ended,
            deep=tuple(self._deep(stretch, step) for stretch in [*self.stretches] if stretch.first < step),
            cost=cost,
        )

    def _deep(self, stretch: CollectedSteps, step: int) -> DeepSteps:
        """Return the steps of an incident with what their rows show, as of the beginning of ``step``."""
        last = step - 1 if stretch.last is None else stretch.last
        row = self._shown.get(stretch.first, ShownRow(-1, "", "", FORWARD_PHASE))
        until = stretch.first if row.step < 0 else row.step
        spoilt = next((at for at in [*self._spoilt] if stretch.first_finding <= at < until), None)
        if spoilt is None and row.phase == WEIGHTS_PHASE:
            spoilt = row.step - 1
        forward = row.phase <= FORWARD_PHASE
        return DeepSteps(
            stretch.kinds, stretch.first_finding, stretch.first, last, row.step, row.module, row.name, forward, spoilt
        )

    def placed(self, step: int) -> list[CheckFinding]:
        """Return, once, what rows that were collected around a finding say about its place, as findings of ``step``.

        Args:
            step: step that has ended: its update and those before it were judged.
        """
        placed: list[CheckFinding] = []
        for steps in (self._deep(stretch, step + 1) for stretch in [*self.stretches]):
            if steps.first in self._placed or not 0 <= steps.step <= step:
                continue
            self._placed.add(steps.first)
            finding = next((candidate for candidate in [*self._findings] if steps.concern(candidate)), None)
            if finding is not None and (named := steps.explain(finding)).where != finding.where:
                text = _added(named.text, finding.text)
                kind, grade, since = finding.kind, finding.grade, finding.since
                placed.append(CheckFinding(kind, grade, named.where, steps.step, since, text, {}))
        return placed

    def _looked_at(self, steps: int, recorded: int, captured: bool) -> Looked:
        rows = {name for switch, name in SIGNALS_OF.items() if recorded and getattr(self._settings, switch)}
        judged = rows if self._settings.alert.rules else set()
        at = [message(name) for name in SIGNALS_OF.values() if name in judged]
        if recorded < steps:
            span = "{what} in {number} of {all} steps"
            at = [message(span, what=name, number=recorded, all=steps) for name in at]
        not_at = [_unjudged(name, name in rows) for name in SIGNALS_OF.values() if name not in judged]
        logged = bool(self._loss.steps) and not self._own_loss
        if self._own_loss or (logged and self._settings.run.rules):
            at.append(message("the logged loss" if logged else "the loss"))
        else:
            not_at.append(_unjudged("the loss", logged))
        return Looked((*at, *map(message, self._looked)), (*not_at, *([message(IN_GRAPHS)] if captured else ())))

    def _why(self, step: int) -> str:  # noqa: PLR0911 - one reason each
        """Return the reason for which some steps before ``step`` were not recorded."""
        settings = self._settings
        if not any(getattr(settings, switch) for switch in SIGNALS_OF):
            return message("the configuration records no rows")
        if not (self._recorded or settings.dynamic_on) and dynamic(os.environ):
            return message("dynamic_on is false: set it to true in the configuration file")
        if settings.module_ranks and self._rank not in settings.module_ranks:
            return message("this rank is not in module_ranks")
        if settings.max_overhead is not None:
            return message("max_overhead allows {part:g} % of the time", part=settings.max_overhead * 100)
        if settings.start_step >= step:
            text = "start_step is {number}: choose a smaller one for a run of this length"
            return message(text, number=settings.start_step)
        if settings.step_interval > 1:
            return message("step_interval is {number}", number=settings.step_interval)
        if settings.start_step > self.first:
            return message("start_step is {number}", number=settings.start_step)
        return message("as configured, or as there was room")


def _added(text: str, before: str) -> str:
    """Return what a longer text of a finding has beyond ``before``."""
    parts = [*text.values.values()] if isinstance(text, Message) else [text.removeprefix(f"{before}; ")]
    return str(parts[-1])


def _unwritten(faults: Mapping[str, int]) -> str:
    """Return a clause about rows that could not be written, if there are any."""
    lost = any(place.startswith(SINK) for place in faults)
    return message("not all of them written: warnings above name what failed") if lost else ""


def _unjudged(name: str, is_recorded: bool) -> Message:
    """Return the name of what was not looked at."""
    return message("{what} (recorded, and judged by no rule)", what=message(name)) if is_recorded else message(name)


def _made(finding: JudgedFinding) -> tuple[str, str, Callable[[], JudgedFinding]]:
    """Return a finding as :meth:`RunAccount._add` takes it."""
    return finding.kind, finding.grade, lambda: finding


def _of_row(finding: Finding, after: int | None, signals: Collection[str]) -> JudgedFinding:
    alone, gap = judged(finding), after is not None and after < finding.step - 1
    located = alone.kind not in NON_FINITE or is_located(signal_of(finding.signal).phase, gap, signals)
    return alone._replace(located=located, after=after)
