"""The planner, which alone decides the plan of each step."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.core.backend.protocols import FrameworkAdapter
from probe.core.config import parse
from probe.core.config.lint import without_effect
from probe.core.config.load import assigned, dynamic, load
from probe.core.config.schema import OnAnomaly, Settings
from probe.core.control.agreement import AgreedPace, LeadTime
from probe.core.control.armed_collection import STEPS, ArmedCollection
from probe.core.control.command_requests import Command, folder_of
from probe.core.control.commands import CommandInbox
from probe.core.control.config_follower import follow
from probe.core.control.on_anomaly import SUSPECTS, Arming, deeper, whole
from probe.core.distributed import announcements
from probe.core.distributed.announcements import FolderNotices, Notices
from probe.core.faults import Faults
from probe.core.instrumentation.plan import Plan
from probe.core.instrumentation.schedule import Pace, Schedule
from probe.core.instrumentation.selection import Lead, no_lead
from probe.core.instrumentation.signals.sources import collects_nothing
from probe.core.instrumentation.signals.structure import ending
from probe.core.launch import is_unnamed
from probe.core.records import Finding
from probe.core.storage.run_directory import output_root

_log = logging.getLogger("probe")
CONTROL, ARMING, PACE, COMMANDS = "control", "arming", "pace", "commands"
"""Kinds of announcements: the configuration, findings, the interval between sampled steps, commands to the program. If
ranks share a file system, the last three are names of folders in the output directory."""
COMPILED = "torch.compile has compiled a part of this program, and hooks would have it compiled again"
WHOLE_TENSORS = "with global_stats all ranks collect the same steps"
LASTING: dict[str, Callable[[Settings], object]] = {
    "run": lambda settings: settings.run,
    "sentinel.enable": lambda settings: settings.sentinel.enable,
    "output_dir": lambda settings: settings.output_dir,
    "append_output": lambda settings: settings.append_output,
    "dynamic_broadcast": lambda settings: settings.dynamic_broadcast,
    "queue_size": lambda settings: settings.queue_size,
    "when_queue_full": lambda settings: settings.when_queue_full,
}
"""Keys that are read at the beginning of training alone, and their values."""
KEPT = (
    "{} has no effect while training runs: expected the value with which it began, got another; undo the edit, or "
    "start training again"
)
EARLIER = (
    "start_step has no effect in dynamic mode: expected the default, got {}; collecting begins with the next step: to "
    "begin later, set apply_at_step"
)
NEVER = sys.maxsize
"""A step that no training reaches."""


class Configuration:
    """The configuration of one monitor, and its file.

    Args:
        source: JSON or YAML file, or a mapping with the same keys.

    Raises:
        ConfigError: naming every problem.
    """

    def __init__(self, source: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        self.path: Path | None = None
        self.content = b""
        """Content of the file; read before the settings, so that no change is missed."""
        if isinstance(source, str | os.PathLike):
            self.content = parse.content(os.fspath(source) or ".")
            self.path = Path(source).expanduser().absolute()
        self.settings = load(source)
        self.asked: dict[str, Any] = {}
        """Values that the program has assigned; they hold from the next step on."""

    def assign(self, key: str, value: Any) -> Any:
        """Return the value that ``key`` has once ``value`` is assigned to it.

        Raises:
            ConfigError: if ``value`` is not valid for ``key``.
        """
        return getattr(assigned(self.settings.model_copy(update=self.asked), key, value), key)


class Planner:
    """Sequence of plans: first that of the initial configuration, then those of its changes (dynamic mode), of findings
    (``on_anomaly``), of the sentinel and of the program.

    Args:
        configuration: configuration of the monitor; its settings follow the plans that take effect.
        number: number of the attachment, the same on all ranks.
        first: number of the first step.

    Raises:
        ConfigError: if the file is to be followed but can no longer be read.
    """

    def __init__(
        self, configuration: Configuration, framework: FrameworkAdapter, number: int, first: int, faults: Faults
    ) -> None:
        self._configuration, self._framework, self._faults = configuration, framework, faults
        self._warned = set[str]()
        groups, settings = framework.groups, configuration.settings
        with ExitStack() as undo:
            self._broadcast = broadcast = announcements.of_configuration(settings, number, framework, faults)
            if broadcast is not None:
                undo.callback(broadcast.close)
            self._lead_time = None if groups.world_size() == 1 else LeadTime(self._seen_within())
            """Measure of the steps that an announcement needs; None for one rank, for which a change holds at once."""
            control = broadcast.notices(CONTROL) if broadcast and dynamic(os.environ) else None
            path, content = configuration.path, configuration.content
            self._switch = follow(path, settings, content, first, groups, faults, self._lead_steps, control, number)
            self._commands = self._notices(COMMANDS) if path is not None else None
            self._inbox: CommandInbox | None = None
            self._warned_of_commands = False
            self._arming: Arming | None = None
            self._arm(None)
            self.armed: ArmedCollection | None = None
            """Collection around what the sentinel finds; None without one."""
            self._latest_pace: Pace | None = None
            """The latest pace, whose count the next one continues."""
            self.plan = self._first(first)
            """The plan in effect."""
            self._step = first
            """The step for which plans were asked last."""
            self._latest_pace = self.plan.schedule.pace
            undo.pop_all()

    @property
    def settings(self) -> Settings:
        """The configuration in effect."""
        return self._configuration.settings

    @property
    def follows(self) -> Path | None:
        """The configuration file, if it is followed."""
        return self._configuration.path if self._switch is not None else None

    @property
    def dynamic(self) -> bool:
        """True if collecting may be switched on and off."""
        return self._switch is not None

    @property
    def collecting(self) -> bool:
        """True if further rows will be collected."""
        return self._takes_part(self.settings) and not self.plan.schedule.finished and self._on

    @property
    def _on(self) -> bool:
        return self.plan.purpose != "rest"

    @property
    def lead(self) -> Lead:
        """The function that returns the beginning of a problem's sentence: file and line."""
        content = (self._switch.content if self._switch is not None else b"") or self._configuration.content
        if self._configuration.path is None or not content or self._broadcast is not None:  # sent: has other lines
            return no_lead
        name = str(self._configuration.path)
        return parse.parse(name, parse.text_of(name, content)).lines.lead

    def warn(self, sentences: Iterable[str]) -> None:
        """Log those of ``sentences`` that were not logged before: on the first rank, and on one that is beyond the
        number of ranks or of no known launch, as warnings, on others as info."""
        groups = self._framework.groups
        follows = 0 < groups.rank() < groups.world_size() and not is_unnamed(os.environ)
        level = logging.INFO if follows else logging.WARNING
        for sentence in sentences:
            if sentence not in self._warned:
                self._warned.add(sentence)
                _log.log(level, "%s", sentence)

    def plans(
        self, step: int, findings: Callable[[], list[Finding]] | None, account: Callable[[], float] = float
    ) -> Iterator[Plan]:
        """Yield the plans that take effect before ``step``, in order. The caller accepts each before it takes the next.

        Args:
            findings: returns the findings since its last call; None if this rank writes nothing.
            account: returns the seconds that the monitor has taken so far.

        Raises:
            TrainingStopped: if training is to be stopped before ``step``.
        """
        self._step = step
        yield from self.of_program(findings is not None)
        if self._lead_time is not None:
            self._lead_time.step_ended()
        if (pace := self.plan.schedule.pace) is not None:
            pace.between(step)
        yield from self._after_its_end(step)
        if self._switch is not None:
            yield from self._of_changes(step)
        if findings is not None and self._arming is not None:
            yield from self._of_findings(self._arming, findings(), step)
        if self.armed is not None:
            yield from self._of_sentinel(self.armed, step, findings is not None, account)

    @property
    def settled(self) -> bool:
        """True if no plan can take effect before the program assigns values: nothing is followed, and none ends."""
        waits = self._switch is not None or self._arming is not None or self._commands is not None
        return not (waits or self.plan.until is not None or isinstance(self.plan.schedule.pace, AgreedPace))

    def accept(self, plan: Plan) -> None:
        """Put ``plan`` into effect."""
        before, self.plan = self.settings, plan
        if self.armed is not None and plan.origin != "sentinel":
            self.armed.end(self._step)
        if plan.purpose == "rest":
            self._configuration.settings = before.model_copy(update={"dynamic_on": False})
        elif plan.purpose != "deeper":
            self._configuration.settings = plan.settings
            self._latest_pace = plan.schedule.pace or self._latest_pace
            if self._lead_time is not None:
                self._lead_time.seconds = self._seen_within()
            self._arm(before.on_anomaly)

    def close(self) -> None:
        """Stop following."""
        with ExitStack() as ending:
            if self._broadcast is not None:
                ending.callback(self._broadcast.close)
            if self._switch is not None:
                ending.callback(self._switch.close)
                self._configuration.content = self._switch.content

    # Commands to the program.

    def commands(self, step: int, accepts: Collection[type[Command]], first: int, began: float) -> list[Command]:
        """Return the commands that take effect before ``step``, which is about to begin.

        Args:
            first: number of the first step of training.
            began: time at which the run began.
        """
        if self._inbox is None:
            try:
                self._inbox = self._new_inbox(first, began)
            except RuntimeError as error:  # no thread can be started
                self._faults.note("commands", error)
                return []
        if self._inbox is None:
            if not self._warned_of_commands:
                self._warned_of_commands = True
                _log.warning(
                    "commands: none will come: expected a configuration in a file, beside which they lie, got a "
                    "mapping; pass the path of a file to TrainerMon"
                )
            return []
        return self._inbox.due(step, accepts)

    def close_commands(self) -> None:
        """Write the answers to commands so far."""
        if self._inbox is not None:
            self._inbox.close()

    def _new_inbox(self, first: int, began: float) -> CommandInbox | None:
        """Return the commands to the program; None if there is no configuration file beside which they could lie."""
        path, groups = self._configuration.path, self._framework.groups
        if path is None or self._commands is None:
            return None
        alone, rank = groups.world_size() == 1, groups.rank()
        begins = first if alone else first + 1
        folder = folder_of(path)
        return CommandInbox(folder, rank, rank == 0, self._lead_steps, self._commands, begins, began, self._faults)

    # Proposals.

    def of_program(self, writes: bool) -> Iterator[Plan]:
        """Yield the plan of the values that the program has assigned; it ends deeper collection.

        Args:
            writes: whether this rank writes anything.
        """
        configuration = self._configuration
        asked, configuration.asked = configuration.asked, {}
        if not asked:
            return
        settings = configuration.settings.model_copy(update=asked)
        if self.collecting and writes and self.plan.purpose != "structure":
            base = self.plan
            while base.base is not None:
                base = base.base
            yield Plan(settings, base.schedule, origin="program", restarts="ops" in asked)
        else:
            configuration.settings = settings

    def _after_its_end(self, step: int) -> Iterator[Plan]:
        while (plan := self.plan).until is not None and step >= plan.until:
            self.plan = replace(plan, until=None)  # raise once, even if training catches it and goes on
            if plan.base is None:
                raise ending(self.settings, self._faults, self._framework.groups.rank(), plan.takes_part)
            yield self._under(plan.base)

    def _under(self, base: Plan) -> Plan:
        """Return the plan that holds again after deeper collection."""
        return base if base.purpose == "deeper" else replace(base, settings=self.settings)

    def _of_changes(self, step: int) -> Iterator[Plan]:
        """Yield the plan of a changed configuration, or the plan at rest."""
        switch = self._switch
        assert switch is not None
        if self._on and self.plan.schedule.finished:
            switch.finish()
            yield self._rest(self.settings)
        settings = switch.poll(step, idle=not self._on)
        if settings is not None:
            self.warn(KEPT.format(key) for key, of in LASTING.items() if of(settings) != of(self.settings))
            if settings.dynamic_on:
                self.warn(collects_nothing(settings))
                self.warn(without_effect(settings, self._framework.groups.world_size()))
                if settings.start_step > step:
                    self.warn([EARLIER.format(settings.start_step)])
            yield self._changed(settings, step) if settings.dynamic_on else self._rest(self.settings)

    def _of_findings(self, arming: Arming, findings: list[Finding], step: int) -> Iterator[Plan]:
        """Yield the plan that collects more around the findings for some steps; while the sentinel has everything
        collected, it waits for the end of that."""
        whole_plan = self.plan if self.plan.origin == "sentinel" else None
        base, on_anomaly = (whole_plan and whole_plan.base) or self.plan, self.settings.on_anomaly
        if not self.collecting or base.purpose == "deeper" or (order := arming.poll(step, findings)) is None:
            return
        assert on_anomaly is not None
        end = order.step + on_anomaly.steps
        plan = Plan(
            deeper(self.settings),
            Schedule(step, 1, end - step),
            "deeper",
            "finding",
            suspects=order.suspects if on_anomaly.arm.targets == SUSPECTS else ("",),
            until=end,
            base=replace(base, origin="finding", restarts=False),
        )
        if whole_plan is None:
            yield plan
        else:
            self.plan = replace(whole_plan, base=plan)

    def _of_sentinel(
        self, armed: ArmedCollection, step: int, writes: bool, account: Callable[[], float]
    ) -> Iterator[Plan]:
        """Yield the plan that collects everything for some steps after what the sentinel has found, and the plan below
        it once a limit is reached."""
        reports, base = armed.take(), self.plan
        if base.origin == "sentinel":
            if armed.exhausted and base.base is not None:
                yield self._under(base.base)
            return
        if not reports or not self.settings.sentinel.collect:
            return
        if reason := self._refusal(writes) or armed.refusal():
            armed.refuse([kind for kind, _ in reports], reason)
            return
        begun = account()
        plan = Plan(
            whole(self.settings),
            Schedule(step, 1, STEPS),
            "deeper",
            "sentinel",
            suspects=("",),
            until=step + STEPS,
            base=replace(base, origin="finding", restarts=False),
        )
        yield plan
        if self.plan is plan:
            armed.begin(reports, step, begun)

    def _refusal(self, writes: bool) -> str:
        """Return why this rank collects nothing more around what the sentinel finds; empty if it does."""
        capturing = self._framework.capturing
        if not writes or not self.collecting or self.plan.purpose not in ("collect", "deeper"):
            return "nothing is collected on this rank, as configured"
        if self._framework.hooks.has_compiled():
            return COMPILED
        if self.settings.global_stats and self._framework.groups.world_size() > 1:
            return WHOLE_TENSORS
        return "a CUDA graph is captured" if capturing is not None and capturing() else ""

    def _first(self, step: int) -> Plan:
        settings, takes_part = self.settings, self._takes_part(self.settings)
        if self._switch is not None:
            return replace(self._rest(settings), settings=settings)
        if settings.print_struct:
            return Plan(settings, Schedule(step, 1, 1), "structure", takes_part=takes_part, until=step + 1)
        if settings.cc_distribution.enable and settings.cc_distribution.cc_log_only:
            schedule = Schedule(NEVER)  # counts steps on every rank, to stop on all in the same one
        else:
            schedule = self._paced(settings.start_step, settings, settings.collect_times if takes_part else 0)
        return Plan(settings, schedule, takes_part=takes_part)

    def _changed(self, settings: Settings, step: int) -> Plan:
        """Return the plan of changed ``settings`` from ``step`` on."""
        takes_part = self._takes_part(settings)
        if settings.print_struct:
            schedule = Schedule(step, 1, 1)
            return Plan(settings, schedule, "structure", takes_part=takes_part, until=step + 1, listens=False)
        if not takes_part:  # counts, since the first rank writes into the file when collecting has ended
            schedule = Schedule(step, settings.step_interval, settings.collect_times)
            return Plan(settings, schedule, "count", takes_part=False, listens=False)
        return Plan(settings, self._paced(step, settings, settings.collect_times), restarts=True)

    def _rest(self, settings: Settings) -> Plan:
        """Return the plan that collects nothing, without ``xy_distribution``: the model may be compiled meanwhile."""
        idle = settings.model_copy(update={"xy_distribution": False, "print_struct": False})
        return Plan(idle, Schedule(NEVER), "rest", takes_part=self._takes_part(settings), listens=False)

    # Parts of plans.

    def _takes_part(self, settings: Settings) -> bool:
        return not settings.module_ranks or self._framework.groups.rank() in settings.module_ranks

    def _paced(self, start: int, settings: Settings, times: int) -> Schedule:
        pace = self._pace(settings)
        if pace is not None and self._latest_pace is not None:
            pace.skipped = self._latest_pace.skipped
        return Schedule(start, settings.step_interval, times, pace)

    def _pace(self, settings: Settings) -> Pace | None:
        """Return the pace within the budget, or None. Ranks that exchange arrays in each sampled step share a pace."""
        budget, interval, groups = settings.max_overhead, settings.step_interval, self._framework.groups
        if budget is None:
            return None
        if not settings.global_stats or groups.world_size() == 1:
            return Pace(budget, interval)
        leads = groups.rank() == min(settings.module_ranks, default=0)
        return AgreedPace(budget, interval, self._notices(PACE), leads, self._lead_steps, self._faults)

    def _arm(self, before: OnAnomaly | None) -> None:
        """Rebuild the trigger of deeper collection if ``on_anomaly`` changed; otherwise keeps its pending order."""
        on_anomaly = self.settings.on_anomaly
        if on_anomaly is None:
            self._arming = None
        elif self._arming is None or on_anomaly != before:
            rank, notices = self._framework.groups.rank(), self._notices(ARMING)
            self._arming = Arming(notices, rank, on_anomaly.steps, on_anomaly.cool_down, self._lead_steps, self._faults)

    def _lead_steps(self) -> int:
        """Return the number of steps after which every rank has read an announcement that is written now."""
        return 0 if self._lead_time is None else self._lead_time.steps()

    def _seen_within(self) -> float:
        """Return the seconds after which all ranks see an announcement."""
        return max(self.settings.dynamic_seconds, self._broadcast.seen_seconds if self._broadcast else 0.0)

    def _notices(self, kind: str) -> Notices:
        """Return the announcements of ``kind``: in the broadcast if one is configured, else in files."""
        if self._broadcast is not None:
            return self._broadcast.notices(kind)
        root = output_root(os.environ, self.settings.output_dir).absolute()
        return FolderNotices(root / kind, self._framework.groups.rank())
