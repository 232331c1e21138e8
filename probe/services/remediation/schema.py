"""Schema of the configuration of ``probe remediate``: every key, its type, range, default and meaning."""

from __future__ import annotations

import re
from typing import Annotated, Any

import annotated_types as ranges
from pydantic import AfterValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from probe.core.fields import (
    Flag,
    Form,
    Integer,
    Names,
    Number,
    Section,
    Text,
    Variants,
    args_of,
    host_and_port,
    not_empty,
    section_within,
    wrong,
)
from probe.services.remediation.cleaning import CleanFolders
from probe.services.remediation.label_fields import Label
from probe.services.remediation.planned_action import Action, shown
from probe.services.remediation.program_actions import LowerPowerLimit, RunProgram
from probe.services.remediation.training_actions import CommandTraining, RelieveHost

ACTIONS: dict[str, type[Action]] = {
    "clean_folders": CleanFolders,
    "command_training": CommandTraining,
    "lower_power_limit": LowerPowerLimit,
    "relieve_host": RelieveHost,
    "run_program": RunProgram,
}
"""Kinds of action by name. To add one, write its class and a line here."""
PORT = 9095
"""Port if the configuration names none."""
_LISTEN_FORM = Form("address", "", 'a host and a port such as "127.0.0.1:9095"')
_JOB_FORM = Form("job", "", "the path of a configuration file, or a mapping with configuration and ranks")


def parsed_address(text: str) -> tuple[str, int]:
    """Parse host and port; port 0 is any that is free.

    Raises:
        ValueError: if ``text`` is no address.
    """
    if (address := host_and_port(text)) is None:
        raise wrong(_LISTEN_FORM.expected)
    return address


def _address(text: str) -> str:
    parsed_address(text)
    return text


def _named_actions(actions: dict[str, Any]) -> dict[str, Any]:
    if not actions:
        raise wrong("at least one action")
    for name in actions:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,49}", name):
            expected = "names of at most 50 lower-case letters, digits and _, such as cool_gpu"
            raise PydanticCustomError("expected", "expected", {"expected": expected, "shown": shown(name)[1:-1]})
    return actions


class TlsSettings(Section):
    """Files of TLS (PEM)."""

    certificate: Label
    """File with the certificate chain of this server: its own certificate, then the intermediate ones."""
    key: Label
    """File with the private key, without a password; not readable by all users."""
    client_ca: Label | None = None
    """File with the certificates of the authorities whose clients are admitted, all others being refused. Missing: any
    client may connect, so that a token is needed."""


class HostSettings(Section):
    """Way to recognize alerts about this machine."""

    label: Label = "instance"
    """Label with the name of the machine; a port behind it does not count."""
    names: tuple[Label, ...] = ()
    """Names and addresses of this machine in that label. Missing: its host name, with and without the domain."""


class JobSettings(Section):
    """Training that takes commands."""

    configuration: Label
    """Configuration file that the run follows: requests are written to the folder beside it."""
    ranks: Annotated[Integer, ranges.Ge(1)] | None = None
    """Number of ranks, each of which acknowledges each command. Missing: no further one is waited for 5 s after the
    last."""


def _job(value: object) -> Any:
    """Validate a job; a text is the path of its configuration file."""
    if isinstance(value, str):
        value = {"configuration": value}
    if not isinstance(value, dict | Section):
        raise wrong(_JOB_FORM.expected)
    return section_within(JobSettings, value)


class LimitSettings(Section):
    """Limits of all actions together."""

    per_hour: Annotated[Integer, ranges.Ge(1)] = 20
    """Most actions within an hour; rehearsed ones count apart."""
    workers: Annotated[Integer, ranges.Ge(1), ranges.Le(64)] = 8
    """Most actions at one time, never two for one target."""
    waiting: Annotated[Integer, ranges.Ge(1), ranges.Le(10_000)] = 100
    """Most actions that wait; the answer to further alerts is status 503, after which Alertmanager sends them again."""
    history: Annotated[Integer, ranges.Ge(100), ranges.Le(10_000_000)] = 100_000
    """Most entries of the history; beyond that the oldest are removed, those without an action and refused ones first.
    Those that the limits of the last hour count stay."""
    same_alert_seconds: Annotated[Number, ranges.Ge(0)] = 300.0
    """Time after an action in which the same alert does not start it again, also with another beginning: two
    Alertmanagers, fed by two Prometheus, differ in it. An alert that fires for longer starts the action again when
    Alertmanager repeats it."""


ACTION_ARGS: dict[str, type[Section]] = {name: action.Args for name, action in ACTIONS.items()}
"""Kinds of action, and the models of their arguments."""


class ActionSettings(Section):
    """Action, and the alerts that begin it."""

    alerts: Annotated[tuple[Label, ...], AfterValidator(not_empty)]
    """Names of alerts."""
    labels: dict[str, Text] = Field(default_factory=dict)
    """Labels that the alert has to have, with their values."""
    do: Annotated[Text, Names(tuple(ACTIONS))]
    """Kind of action."""
    args: Annotated[Any, args_of("do", ACTION_ARGS), Variants(ACTION_ARGS)] = Field({}, validate_default=True)
    """Arguments of the action."""
    dry_run: Flag | None = None
    """true: rehearse the action only. false: do it. Missing: as dry_run of the whole configuration has it."""
    any_host: Flag = False
    """Act on alerts about other machines too. Has no effect on command_training, which does not depend on a machine."""
    seconds: Annotated[Number, ranges.Gt(0), ranges.Le(86_400)] = 60.0
    """Longest time in seconds that the action takes; a program is killed then with all processes of its group."""
    per_hour: Annotated[Integer, ranges.Ge(1)] = 10
    """Most times within an hour."""
    per_target_per_hour: Annotated[Integer, ranges.Ge(1)] = 2
    """Most times within an hour for one target, such as one GPU or one job."""


class RemediationSettings(Section):
    """Configuration of ``probe remediate``."""

    listen: Annotated[Text, AfterValidator(_address), _LISTEN_FORM] = f"127.0.0.1:{PORT}"
    """Address. Anything but this machine's own needs a token or certificates of clients."""
    token_file: Label | None = None
    """File that holds the token which requests carry as `Authorization: Bearer ...`; not readable by all users."""
    tls: TlsSettings | None = None
    """TLS. Missing: plain HTTP."""
    database: Label = "remediation.sqlite"
    """SQLite file with the history; made if missing."""
    dry_run: Flag = True
    """Rehearse all actions that have no dry_run of their own."""
    host: HostSettings = HostSettings()
    """Way to recognize alerts about this machine: actions on this machine are refused for all others."""
    programs: tuple[Label, ...] = ()
    """Programs that actions may run, by path, or by a name that is searched once at the start. No shell is admitted."""
    environment: tuple[Label, ...] = ()
    """Names of environment variables that programs get besides PATH, HOME and LANG."""
    jobs: dict[str, Annotated[Any, PlainValidator(_job), _JOB_FORM]] = Field(default_factory=dict)
    """Training jobs by name: the configuration file that the run follows, or a mapping of it and the number of
    ranks."""
    limits: LimitSettings = LimitSettings()
    """Limits of all actions together."""
    actions: Annotated[dict[str, ActionSettings], AfterValidator(_named_actions)]
    """Actions by name."""
