"""What a monitor collects, and how that changes while training runs."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from probe.core.config import parse
from probe.core.config.lint import without_effect
from probe.core.config.load import dynamic, load
from probe.core.config.schema import OnAnomaly, Settings
from probe.core.control.agreed_interval import AgreedPace
from probe.core.control.agreement import Ahead
from probe.core.control.config_follower import Switch, follow
from probe.core.control.on_anomaly import SUSPECTS, Arming, around, deeper
from probe.core.distributed import announcements
from probe.core.distributed.announcements import Broadcast, FolderNotices, Notices
from probe.core.faults import Faults
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.pace import Pace
from probe.core.instrumentation.schedule import Schedule
from probe.core.instrumentation.selection import Lead, no_lead
from probe.core.instrumentation.session import Session
from probe.core.instrumentation.signals import collectives
from probe.core.instrumentation.signals.sources import chosen
from probe.core.instrumentation.signals.structure import ending
from probe.core.monitor import attachment
from probe.core.monitor.attach_checks import doubts
from probe.core.monitor.watching import Watching
from probe.core.output.run_output import Output
from probe.core.output.text_files import StructureOutput
from probe.core.storage.run_directory import output_root

_log = logging.getLogger("probe")
CONTROL, ARMING, PACE = "control", "arming", "pace"
"""What ranks tell each other notices of: the configuration, what was found, and which steps are sampled. Of the last
two, where ranks share a file system, the names of folders in the output directory."""
_runs = count()
"""Attachments in this process: ranks that train together have as many."""
NEVER = sys.maxsize
"""A step that no training comes to."""


class Collecting(Watching):
    """The part of a monitor that makes of its settings what is collected: when it attaches, and between steps where the
    configuration changes (dynamic mode) or something was found (``on_anomaly``)."""

    def __init__(
        self, config_file_path: str | os.PathLike[str] | Mapping[str, Any], process_group: Any, main_grad: bool
    ) -> None:
        self._path, self._content = None, b""
        """The configuration file, and what was in it; read before the settings, so that no change is missed."""
        if isinstance(config_file_path, str | os.PathLike):
            self._content = parse.content(os.fspath(config_file_path) or ".")
            self._path = Path(config_file_path).expanduser().absolute()
        self.settings = load(config_file_path)
        self._process_group, self._main_grad = process_group, main_grad
        self._ranks("process_group", process_group)
        self._faults = Faults()
        self._collectives = collectives.of_configuration(self.settings, self.framework, self._faults)
        if self._collectives is not None:
            weakref.finalize(self, self._collectives.stop)  # a monitor that is dropped without stop() listens no more
        self._run: Run | None = None
        self._session: Session | None = None
        self._output: Output | None = None
        self._broadcast: Broadcast | None = None
        self._switch: Switch | None = None
        self._arming: Arming | None = None
        self._deeper: tuple[int, Schedule] | None = None
        """While more is collected: until which step, and which steps are sampled then."""
        self._on = False
        """In dynamic mode: whether anything is collected."""
        self._stops: int | None = None
        """Before which step training is stopped, because the structure of the model is written (``print_struct``)."""

    @property
    def monitoring(self) -> bool:
        """Whether anything will still be collected."""
        if self._session is None or not self._takes_part() or self._session.finished:
            return False
        return self._switch is None or self._on

    def _lead(self) -> Lead:
        content = (self._switch.content if self._switch is not None else b"") or self._content
        if self._path is None or not content or self._broadcast is not None:  # what was sent has other lines
            return no_lead
        name = str(self._path)
        return parse.parse(name, parse.text_of(name, content)).lines.lead

    def _begin(self, given: attachment.Attachment) -> None:
        """Attaches; nothing stays behind if that fails."""
        self._doubted = set[str]()
        self._doubt(doubts(self.settings, self.framework.groups.world_size(), os.environ))
        self._given, self._number = given, next(_runs)
        self._faults, self._output = Faults(), None
        run = self._new_run(given, given.start_iteration)
        self._check_armed(given)
        with ExitStack() as undo:
            undo.callback(self._say_no_more)
            self._agree(given.start_iteration)
            collects = self._takes_part() and self._switch is None
            follows = self._path if self._switch else None
            if self._writes():
                self._output = Output(run, self._number, self._process_group, given.start_iteration, follows)
                undo.callback(self._discard_output)
            schedule = Schedule(NEVER) if self._switch else self._schedule()
            output = StructureOutput(self._faults) if self.settings.print_struct else self._output
            session = Session(run, schedule, given.start_iteration, output, self._between)
            undo.callback(session.detach)
            session.attach(chosen(self.settings) if collects else [])
            self._check_targets(run)
            undo.pop_all()
        if self._switch is None:
            self._listen(run)
        else:
            self._stop_listening()
        self._run, self._session, self._on = run, session, False
        self._stops = given.start_iteration + 1 if self.settings.print_struct and self._switch is None else None

    def _doubt(self, sentences: Iterable[str]) -> None:
        """Logs those of ``sentences`` that were not logged before: by one rank as warnings."""
        for sentence in sentences:
            if sentence not in self._doubted:
                self._doubted.add(sentence)
                _log.log(logging.WARNING if self.framework.groups.rank() == 0 else logging.INFO, "%s", sentence)

    def _agree(self, first: int) -> None:
        """On the way by which ranks will know from which step on something holds."""
        groups, settings = self.framework.groups, self.settings
        self._broadcast = way = announcements.of_configuration(settings, self._number, self.framework, self._faults)
        self._ahead = Ahead(groups.world_size() == 1, self._seen_within())
        said = way.notices(CONTROL) if way and dynamic(os.environ) else None
        if self._switch is not None:
            self._content = self._switch.content
        self._switch = follow(self._path, settings, self._content, first, groups, self._faults, self._ahead, said)
        self._arming = self._deeper = None
        self._arm(None)

    def _seen_within(self) -> float:
        """Seconds after which all ranks see what one of them says."""
        return max(self.settings.dynamic_seconds, self._broadcast.seen_seconds if self._broadcast else 0.0)

    def _arm(self, before: OnAnomaly | None) -> None:
        """Rebuilds the trigger of deeper collection if ``on_anomaly`` changed; otherwise keeps its pending order."""
        about = self.settings.on_anomaly
        if about is None:
            self._arming = None
        elif self._arming is None or about != before:
            rank, notices = self.framework.groups.rank(), self._notices(ARMING)
            self._arming = Arming(notices, rank, about.steps, about.cool_down, self._ahead, self._faults)

    def _notices(self, name: str) -> Notices:
        """Of the kind called ``name``, by the way on which ranks here tell each other something."""
        if self._broadcast is not None:
            return self._broadcast.notices(name)
        return FolderNotices(output_root(os.environ).absolute() / name, self.framework.groups.rank())

    def _say_no_more(self) -> None:
        if self._broadcast is not None:
            self._broadcast.close()
            self._broadcast = None

    def _discard_output(self) -> None:
        output, self._output = self._output, None
        if output is not None:
            output.discard()

    def _between(self, step: int) -> None:
        """Before ``step`` begins. What is collected changes here and nowhere else."""
        session, output = self._session, self._output
        if session is None:
            return
        self._ahead.ended()
        if (pace := session.schedule.pace) is not None:
            pace.between(step)
        if self._stops is not None and step >= self._stops:
            self._stops = None  # once, should training catch it and go on
            raise ending(self._faults, self.framework.groups.rank(), self._takes_part())
        if output is not None and self._deeper is not None and step >= self._deeper[0]:
            (_, schedule), self._deeper = self._deeper, None
            self._run = self._new_run(self._given, step)
            session.change(self._run, schedule, output, chosen(self.settings))
            self._listen(self._run)
            output.deepen(self._run, [])
        if self._switch is not None:
            self._obey(session, self._switch, step)
        if output is not None and self._arming is not None:
            self._look_deeper(session, self._arming, output, step)

    def _look_deeper(self, session: Session, arming: Arming, output: Output, step: int) -> None:
        """Around what was found, for some steps."""
        news = [output.writer.news.popleft() for _ in range(len(output.writer.news))]
        if not self.monitoring or self._deeper is not None:
            return
        if (order := arming.poll(step, news)) is not None:
            about = self.settings.on_anomaly
            assert about is not None
            armed, end = deeper(self.settings), order.step + about.steps
            run = self._new_run(self._given, step, armed)
            names = order.suspects if about.arm.targets == SUSPECTS else [""]
            run = replace(run, selection=around(run.selection, names, self.settings))
            self._run, self._deeper = run, (end, session.schedule)
            session.change(run, Schedule(step, 1, end - step), output, chosen(armed))
            self._listen(run)
            output.deepen(self._run, names)

    def _obey(self, session: Session, switch: Switch, step: int) -> None:
        """In dynamic mode: collecting is switched on and off."""
        if self._on and session.finished:
            switch.finish()
            self._turn_off(session, step)
        settings = switch.poll(step, idle=not self._on)
        if settings is not None and settings.dynamic_on:
            self._turn_on(session, settings, step)
        elif settings is not None:
            self._turn_off(session, step)

    def _turn_off(self, session: Session, step: int) -> None:
        self._on, self._deeper = False, None
        self.settings = self.settings.model_copy(update={"dynamic_on": False})
        self._stop_listening()
        idle = self.settings.model_copy(update={"xy_distribution": False, "print_struct": False})
        self._run = self._new_run(self._given, step, idle)  # a model that was compiled meanwhile can be left alone
        session.change(self._run, Schedule(NEVER), self._output, [])
        if self._output is not None:
            self._output.rest(step)

    def _count_only(self, session: Session, step: int) -> None:
        """This rank takes no part; it counts steps, since the first one tells when collecting has come to its end."""
        settings = self.settings
        self._turn_off(session, step)
        schedule = Schedule(step, settings.step_interval, settings.collect_times)
        if self._run is not None:
            session.change(self._run, schedule, None, [])
        self.settings, self._on = settings, True

    def _turn_on(self, session: Session, settings: Settings, step: int) -> None:
        """From ``step`` on, collects what ``settings`` say; what they name wrongly is told, and nothing changes."""
        before, self.settings = self.settings, settings
        self._doubt(without_effect(settings))
        try:
            run = self._new_run(self._given, step)
            self._check_armed(self._given)
            self._check_targets(run)
            if self._writes() and self._output is None:  # module_ranks has changed
                self._output = Output(run, self._number, self._process_group, step, self._path)
            elif self._writes() and self._output is not None:
                self._output.change(run)
        except BaseException:
            self.settings = before
            raise
        self._ahead.seconds = self._seen_within()
        self._arm(before.on_anomaly)
        if settings.print_struct:
            return self._look_at_structure(session, run)
        if not self._takes_part() or self._output is None:
            return self._count_only(session, step)
        self._stop_listening()
        self._run, self._deeper = run, None
        session.change(run, self._paced(step, settings, settings.collect_times), self._output, chosen(settings))
        self._listen(run)
        self._on = True
        return None

    def _look_at_structure(self, session: Session, run: Run) -> None:
        """In the step about to begin; training is then stopped on every rank."""
        step = run.clock.step
        self._stop_listening()
        self._run, self._deeper, self._on, self._stops = run, None, True, step + 1
        sources = chosen(self.settings) if self._takes_part() else []
        session.change(run, Schedule(step, 1, 1), StructureOutput(self._faults), sources)

    def _schedule(self) -> Schedule:
        settings = self.settings
        if settings.print_struct:
            return Schedule(self._given.start_iteration, 1, 1)
        if settings.cc_distribution.enable and settings.cc_distribution.cc_log_only:
            return Schedule(NEVER)  # counts steps on every rank, to stop on all in the same one
        times = settings.collect_times if self._takes_part() else 0
        return self._paced(settings.start_step, settings, times)

    def _paced(self, start: int, settings: Settings, times: int) -> Schedule:
        pace = self._pace(settings)
        if self._output is not None and pace is not None:
            pace.skipped = self._output.pace.skipped if self._output.pace is not None else 0
            self._output.pace = pace
        return Schedule(start, settings.step_interval, times, pace)

    def _pace(self, settings: Settings) -> Pace | None:
        """Ranks that exchange something in each sampled step have to sample the same ones."""
        budget, interval, groups = settings.max_overhead, settings.step_interval, self.framework.groups
        if budget is None:
            return None
        if not settings.global_stats or groups.world_size() == 1:
            return Pace(budget, interval)
        leads = groups.rank() == min(settings.module_ranks, default=0)
        return AgreedPace(budget, interval, self._notices(PACE), leads, self._ahead, self._faults)

    def _listen(self, run: Run) -> None:
        """Gives ``run`` the collectives heard so far and those to come."""
        if self._collectives is None:  # stopped, and attached again
            self._collectives = collectives.of_configuration(self.settings, self.framework, self._faults)
        if self._collectives is not None:
            self._collectives.attach(run, self._takes_part())

    def _stop_listening(self) -> None:
        listening, self._collectives = self._collectives, None
        if listening is not None:
            listening.stop()
