"""Actions on training: commands that its ranks get before a step, and their acknowledgements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import annotated_types as ranges
from pydantic import AfterValidator, Field

from probe.core.alerting.redaction import redact
from probe.core.control.command_requests import (
    COMMANDS,
    Acknowledgement,
    Command,
    acknowledgements,
    command_of,
    folder_of,
    request,
)
from probe.core.errors import missing
from probe.core.fields import Names, Number, Section, Text, Variants, args_of, not_empty
from probe.core.messages import plural, printable
from probe.core.storage.layout import ranks_text
from probe.services.remediation.label_fields import Label, label_of, one_of
from probe.services.remediation.planned_action import (
    ActionArgsError,
    Execution,
    FailedActionError,
    FiringAlert,
    InterruptedActionError,
    Job,
    PlannedAction,
    RefusedAlertError,
    Surroundings,
)

LOOK_SECONDS = 0.2
"""Seconds between two looks at the acknowledgements."""
SETTLE_SECONDS = 5.0
"""Time in seconds after the last acknowledgement at which no further rank is waited for, if their number is not
known."""
MEASURE_SECONDS = 0.5
"""Seconds over which the load of the CPU is measured."""
LAST = ("refused", "done", "failed")
"""States after which no other one follows."""
MOST_TEXT = 200
"""Most characters of a rank's text that are kept."""


class CommandSettings(Section):
    """Command to a training."""

    command: Annotated[Text, Names(tuple(COMMANDS))]
    """Name of the command."""
    args: Annotated[Any, args_of("command", COMMANDS), Variants(COMMANDS)] = Field({}, validate_default=True)
    """Arguments of the command."""

    @property
    def made(self) -> Command:
        """Command with its arguments."""
        return command_of(self.command, self.args.model_dump() if isinstance(self.args, Section) else self.args)


class JobArgs(Section):
    """Choice of the job that an action is about."""

    label: Label | None = None
    """Label with the name of the job, which has to be one of jobs; missing: job_name if the alert has it, else job."""
    job: Label | None = None
    """Name of the job, whatever the alert's labels are."""


class TrainingArgs(JobArgs):
    """Arguments of command_training."""

    commands: Annotated[tuple[CommandSettings, ...], AfterValidator(not_empty)]
    """Commands, which are requested in this order."""


class CommandTraining:
    """Request commands of a training, and follow the acknowledgements of its ranks."""

    Args: ClassVar[type[Section]] = TrainingArgs
    by_host: ClassVar[bool] = False

    def __init__(self, args: TrainingArgs, surroundings: Surroundings, live: bool) -> None:  # noqa: ARG002
        self._choice = JobChoice(args, surroundings.jobs)
        self._commands = [command.made for command in args.commands]

    def plan(self, alert: FiringAlert) -> PlannedAction:
        """Return the action for the job that the alert names."""
        name, job = self._choice.of(alert)
        commands = ", ".join(map(described, self._commands))
        return PlannedAction(
            f"job {name}",
            f"{commands} to job {name}",
            lambda: _would_request(job, self._commands),
            lambda execution: command_ranks(job, self._commands, sender_of(alert), execution),
        )


class HostLoadArgs(JobArgs):
    """Arguments of relieve_host."""

    cpu_percent: Annotated[Number, ranges.Ge(0), ranges.Le(100)] = 80.0
    """Load of all CPUs of this machine above which reduce_dataloader_workers is requested."""
    memory_percent: Annotated[Number, ranges.Ge(0), ranges.Le(100)] = 85.0
    """Part of the memory of this machine in use above which enable_gradient_accumulation is requested."""
    factor: Annotated[Number, ranges.Gt(0), ranges.Lt(1)] = 0.5
    """Factor of reduce_dataloader_workers."""
    steps: Annotated[int, ranges.Ge(2)] = 2
    """Micro batches of enable_gradient_accumulation for each one of before."""


class HostLoad(NamedTuple):
    """Load of this machine in percent."""

    cpu: float
    memory: float


class RelieveHost:
    """Request commands of a training by the load of this machine: fewer workers of the data loader, more micro
    batches."""

    Args: ClassVar[type[Section]] = HostLoadArgs
    by_host: ClassVar[bool] = True

    def __init__(self, args: HostLoadArgs, surroundings: Surroundings, live: bool) -> None:  # noqa: ARG002
        try:
            import psutil  # type: ignore[import-untyped, unused-ignore]  # noqa: F401 - so that a missing package is an error now
        except ImportError:
            raise ActionArgsError([((), missing("relieve_host", "psutil", "services"))]) from None
        self._choice, self._args = JobChoice(args, surroundings.jobs), args

    def plan(self, alert: FiringAlert) -> PlannedAction:
        """Return the action for the job that the alert names."""
        name, job = self._choice.of(alert)

        def rehearse() -> str:
            load = _measured()
            commands = self._commands(load)
            return f"{_load_text(load)}: {_would_request(job, commands) if commands else 'nothing would be requested'}"

        def perform(execution: Execution) -> str:
            load = _measured()
            commands = self._commands(load)
            if not commands:
                return f"{_load_text(load)}: nothing requested"
            return f"{_load_text(load)}: {command_ranks(job, commands, sender_of(alert), execution)}"

        return PlannedAction(f"job {name}", f"commands by the load of this machine to job {name}", rehearse, perform)

    def _commands(self, load: HostLoad) -> list[Command]:
        args, commands = self._args, list[Command]()
        if load.cpu > args.cpu_percent:
            commands.append(command_of("reduce_dataloader_workers", {"factor": args.factor}))
        if load.memory > args.memory_percent:
            commands.append(command_of("enable_gradient_accumulation", {"steps": args.steps}))
        return commands


class JobChoice:
    """Choice of a job by the label of an alert, out of those that the configuration names.

    Raises:
        ActionArgsError: if it names no such job.
    """

    def __init__(self, args: JobArgs, jobs: Mapping[str, Job]) -> None:
        self._args, self._jobs = args, jobs
        if args.job is not None and args.job not in jobs:
            names = ", ".join(jobs) or "none"
            raise ActionArgsError([(("job",), f"expected one of jobs ({names}), got {args.job}; add it to jobs")])

    def of(self, alert: FiringAlert) -> tuple[str, Job]:
        """Return name and job.

        Raises:
            RefusedAlertError: if the alert's label names none.
        """
        if self._args.job is not None:
            return self._args.job, self._jobs[self._args.job]
        # of an alert over a foreign exporter's series, job is the name of the scrape
        label = self._args.label or ("job_name" if alert.labels.get("job_name") else "job")
        if not self._jobs:
            label_of(alert, label)
            raise RefusedAlertError("jobs: empty; name the configuration file of each job there")
        try:
            name = one_of(alert, label, self._jobs)
        except RefusedAlertError as error:
            raise RefusedAlertError(f"{error}; args.job of the action names a job for every alert") from None
        return name, self._jobs[name]


def described(command: Command) -> str:
    """Return name and arguments of a command."""
    args = ", ".join(f"{name}={value}" for name, value in command.model_dump().items() if value is not None)
    return f"{command.name}({args})"


def sender_of(alert: FiringAlert) -> str:
    """Return the sender that ranks record with a request."""
    return printable(redact(f"probe remediate: {alert.name}"))[:MOST_TEXT]


def command_ranks(job: Job, commands: Sequence[Command], sender: str, execution: Execution) -> str:
    """Request ``commands`` and follow the acknowledgements until each rank's is a last one; return them.

    Raises:
        FailedActionError: if a rank refuses or fails, or has not answered at the deadline.
        InterruptedActionError: if the service ends before.
    """
    _check_configuration(job.configuration)
    requested: dict[str, Command] = {}
    for command in commands:
        try:
            requested[request(job.configuration, command, sender)] = command
        except OSError as error:  # one of them is BlockingIOError: too many wait
            raise FailedActionError(f"{described(command)}: cannot be requested: {error}") from None
        requests = ", ".join(f"{described(command)} as {name}" for name, command in requested.items())
        execution.record(f"requested {requests}", "")
    finished = _followed(job, list(requested), execution)
    answers = {name: acknowledgements(folder_of(job.configuration), name) for name in requested}
    text = "; ".join(_answers_text(name, command, answers[name]) for name, command in requested.items())
    if execution.ending.is_set() and not finished:
        raise InterruptedActionError(f"the service has ended, and the answers are not followed further: {text}")
    if not finished:
        raise FailedActionError(f"not every rank was done within {execution.seconds:g} s: {text}")
    if any(answer.state != "done" for rank_answers in answers.values() for answer in rank_answers):
        raise FailedActionError(text)
    return text


def _followed(job: Job, names: Sequence[str], execution: Execution) -> bool:
    """Wait until no answer is missing; return false at the deadline and at the end of the service."""
    folder, before, since = folder_of(job.configuration), list[Acknowledgement](), execution.left
    while execution.left and not execution.ending.is_set():
        by_name = [acknowledgements(folder, name) for name in names]
        answers = [answer for rank_answers in by_name for answer in rank_answers]
        if answers != before:
            before, since = answers, execution.left
        last = all(rank_answers and all(answer.state in LAST for answer in rank_answers) for rank_answers in by_name)
        complete = job.ranks is not None and all(len(rank_answers) >= job.ranks for rank_answers in by_name)
        settled = job.ranks is None and since - execution.left >= SETTLE_SECONDS
        if last and (complete or settled):
            return True
        execution.ending.wait(min(LOOK_SECONDS, execution.left))
    return False


def _check_configuration(path: Path) -> None:
    if not path.is_file():
        raise FailedActionError(f"{path}: expected the configuration file that the run follows; it is not there")


def _would_request(job: Job, commands: Sequence[Command]) -> str:
    _check_configuration(job.configuration)
    return f"would request {', '.join(map(described, commands))} in {folder_of(job.configuration)}"


def _answers_text(name: str, command: Command, answers: Sequence[Acknowledgement]) -> str:
    lead = f"{described(command)} as {name}"
    if not answers:
        return f"{lead}: no rank has answered"
    parts = []
    for state in ("done", "accepted", "refused", "failed"):
        of_state = [answer for answer in answers if answer.state == state]
        if of_state:
            why = (
                next((answer.text for answer in of_state if answer.text), "") if state in ("refused", "failed") else ""
            )
            text = printable(redact(why))[:MOST_TEXT]
            steps = sorted({answer.step for answer in of_state})
            at = f" before step {steps[0]}" if len(steps) == 1 else f" before steps {steps[0]} to {steps[-1]}"
            ranks = f"{plural(len(of_state), 'rank')} {ranks_text([answer.rank for answer in of_state])}"
            parts.append(f"{state} by {ranks}{at}{': ' if text else ''}{text}")
    return f"{lead}: {', '.join(parts)}"


def _measured() -> HostLoad:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    return HostLoad(psutil.cpu_percent(MEASURE_SECONDS), psutil.virtual_memory().percent)


def _load_text(load: HostLoad) -> str:
    return f"CPU {load.cpu:.0f} %, memory {load.memory:.0f} %"
