"""Attachment to a training from inside its process: optimizers that there are, the end of a training step, then the
watch of ``probe run``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from probe.core.backend.protocols import Remove
from probe.core.control.agreement import LeadTime, ScheduledChange
from probe.core.distributed.announcements import FolderNotices
from probe.core.faults import Faults
from probe.core.language import MessageError
from probe.core.monitor.trainer_mon import watcher_of
from probe.launch.attach.request import AttachRequest, ProcessPlace
from probe.launch.environment import DEFAULTS
from probe.launch.found_run import ENOUGH, FoundRun
from probe.launch.made_objects import FINDERS, note_optimizers
from probe.launch.model_search import Finder, ModelSearch, distinct
from probe.launch.trainer_run import watched_by
from probe.launch.watch import ScriptWatch

SEEN_SECONDS = 1.0
"""Time after which every process of the request has seen an announcement: each looks after each step."""


class FindingModule(Protocol):
    """The module of an adapter that finds models and optimizers."""

    FINDER: Finder
    WATCH: ScriptWatch

    def optimizers(self) -> list[Any]:
        """Return all optimizers of the process."""

    def can_listen(self) -> bool:
        """Return whether :meth:`on_every_step` may be called now, at any point of the program."""

    def on_every_step(self, ended: Callable[[Any], None]) -> Remove:
        """Call ``ended`` after each step of every optimizer."""


class RefusalError(MessageError):
    """Reason why nothing is attached, with what to do."""


def join(place: str) -> None:
    """Attach as a request asks for, between two training steps to come; the answer is written then, or at once if that
    is impossible.

    Args:
        place: folder of this process in the exchange.
    """
    mine = ProcessPlace(Path(place))
    try:
        finding = _finding()
        if finding.can_listen():
            Joining(mine, mine.request, finding).begin()
        else:
            mine.answer("busy")
    except RefusalError as refusal:
        mine.answer("refused", reason=str(refusal))


def _finding() -> FindingModule:
    if "torch" not in sys.modules:
        if "mindspore" in sys.modules:
            raise RefusalError("it trains with MindSpore, which cannot be attached to: start it by `probe run`")
        raise RefusalError("it has not imported torch: a process that trains is expected, once training has begun")
    module: Any = import_module(FINDERS["torch"])
    return module  # type: ignore[no-any-return]


class Joining:
    """One process's part of a request, until a monitor has attached.

    Raises:
        RefusalError: if nothing in this process can be watched.
    """

    def __init__(self, place: ProcessPlace, request: AttachRequest, finding: FindingModule) -> None:
        self._place, self._request, self._finding = place, request, finding
        self._watch = finding.WATCH
        self._optimizers = _trained(finding)
        self._round = Round(self._optimizers, finding.FINDER.made_steps)
        self._start = AgreedStart(place, request)
        self._remove: Remove | None = None

    def begin(self) -> None:
        """Wait for the end of a training step."""
        self._place.ready()
        self._remove = self._finding.on_every_step(self._stepped)

    def _stepped(self, optimizer: Any) -> None:
        """Look, after each step of an optimizer, whether it is time. Nothing is raised into it."""
        if self._remove is None or not any(optimizer is candidate for candidate in self._optimizers):
            return
        try:
            if self._place.is_decided():
                self._watch.at_next_call(self._leave)  # hooks of steps cannot be removed inside one
                self._optimizers = []
            elif self._round.ended(optimizer) and self._start.is_due(self._round.step):
                self._hand_over()
        except Exception as error:  # noqa: BLE001 - training goes on
            self._optimizers = []
            self._watch.at_next_call(self._leave)
            kind = "" if isinstance(error, RefusalError) else f"{type(error).__name__}: "
            self._place.answer("refused", reason=" ".join(f"{kind}{error}".split()))

    def _hand_over(self) -> None:
        """Let the watch attach at the next call of a model."""
        stepping, self._optimizers = self._round.stepping, []
        self._watch.source, self._watch.listen = self._configuration, self._answer
        self._watch.way = "`probe attach`"
        self._watch.found(stepping)

    def _configuration(self) -> Path | Mapping[str, object]:
        self._watch.source = self._later_configuration
        if not self._place.decide():
            raise RefusalError("the request to attach has been withdrawn")
        return self._later_configuration()

    def _later_configuration(self) -> Path | Mapping[str, object]:
        config = self._request.config
        return DEFAULTS if config is None else Path(config)

    def _answer(self, outcome: FoundRun | str) -> None:
        self._watch.listen = lambda _: None
        self._leave()
        if isinstance(outcome, str):
            self._place.answer("refused", reason=outcome)
        else:
            note_optimizers(sys.modules["torch"])  # a second stage is a run of its own
            self._attached(outcome)

    def _attached(self, outcome: FoundRun) -> None:
        directory = outcome.monitor.output_directory
        self._place.answer(
            "attached",
            models={name: type(model).__name__ for name, model in outcome.models.items()},
            optimizers=[type(optimizer).__name__ for optimizer in outcome.optimizers],
            directory=str(Path(directory).absolute()) if directory else None,
            step=outcome.begun,
            counted=any(map(self._finding.FINDER.made_steps, outcome.optimizers)),
        )

    def _leave(self) -> None:
        if self._remove is not None:
            self._remove()
            self._remove = None


def _trained(finding: FindingModule) -> list[Any]:
    """Return the optimizers of which a model holds the parameters.

    Raises:
        RefusalError: if there is none, or if a model is watched already.
    """
    finder = finding.FINDER
    optimizers = finding.optimizers()
    if not optimizers:
        raise RefusalError("it has no optimizer yet: attach again once training has begun, or start it by `probe run`")
    search = ModelSearch(finder, None)
    models = {id(optimizer): search.of(optimizer) for optimizer in optimizers}
    trained = [optimizer for optimizer in distinct(optimizers, finder.owned) if models[id(optimizer)]]
    if not trained:
        kinds = ", ".join(sorted({type(optimizer).__name__ for optimizer in optimizers}))
        raise RefusalError(
            f"no model holds the parameters of its optimizers ({kinds}), as where DeepSpeed or Megatron-Core copies "
            "them: start it by `probe run`, or write the three lines in the program"
        )
    if (watcher := watcher_of([model for optimizer in trained for model in models[id(optimizer)]])) is not None:
        raise RefusalError(watched_by(watcher))
    return trained


class Round:
    """Recognition of the end of a training step, in which several optimizers may step.

    Optimizers that have made no step when all others have, or after ten of one, are left out. A training step has ended
    when all have made the same number of steps. If they count none, or never the same number, it ends with the step of
    the optimizer that was the last to make its first.

    Args:
        made_steps: returns the number of steps that an optimizer counts; 0 for none.
    """

    def __init__(self, optimizers: Sequence[Any], made_steps: Callable[[Any], int]) -> None:
        self._all, self._made_steps = optimizers, made_steps
        self._steps: dict[int, int] = {}
        """Steps of each optimizer, in the order of their first ones."""
        self._uneven = 0

    @property
    def stepping(self) -> list[Any]:
        """The optimizers that step, in the order in which they were made."""
        return [optimizer for optimizer in self._all if id(optimizer) in self._steps]

    @property
    def step(self) -> int:
        """Number of the step that is about to begin; 0 if it is not counted."""
        return max(map(self._made_steps, self.stepping), default=0)

    def ended(self, optimizer: Any) -> bool:
        """Note a step of an optimizer; return whether a training step has ended."""
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        if len(self._steps) < len(self._all) and max(self._steps.values()) < ENOUGH:
            return False
        counts = {self._made_steps(optimizer) for optimizer in self.stepping}
        if len(counts) == 1 and 0 not in counts:
            return True
        self._uneven += 1
        is_last = id(optimizer) == [*self._steps][-1]
        return is_last and (0 in counts or self._uneven > ENOUGH)


class AgreedStart:
    """Step at which the processes of a request begin: the first of them announces it when all are ready, far enough
    ahead. Those whose optimizers count no steps cannot agree, and begin at once."""

    def __init__(self, place: ProcessPlace, request: AttachRequest) -> None:
        self._place, self._at = place, request.at_step
        self._alone = len(request.pids) == 1
        index = request.pids.index(int(place.folder.name))
        self._leads, self._announced = index == 0, False
        self._lead_time = LeadTime(SEEN_SECONDS)
        notices = FolderNotices(place.notices, index)
        self._changes = ScheduledChange("attach", notices, lambda notice: int(notice["step"]), Faults())

    def is_due(self, step: int) -> bool:
        """Return whether this process begins with ``step``, which is about to begin."""
        self._lead_time.step_ended()
        if self._at is not None:
            return self._is_reached(self._at, step)
        if self._alone or not step:
            return True
        with self._changes.counted():
            self._changes.next_step()
            if self._leads and not self._announced and self._place.all_ready():
                self._announced = True
                self._changes.announce(step + self._lead_time.steps())
        return self._changes.poll(step) is not None

    def _is_reached(self, at: int, step: int) -> bool:
        if not step:
            raise RefusalError(
                "its optimizers count no steps, so that step {at} is unknown: attach without --at-step", at=at
            )
        if step > at:
            raise RefusalError("expected a later step than {at}: step {step} is about to begin", at=at, step=step)
        return step == at
