"""Loading of the configuration, and everything that is made of it before the service starts: all problems at once."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import ssl
import stat
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from probe.core.config.errors import MOST_SHOWN, ConfigError, path_text, problems
from probe.core.config.parse import read
from probe.core.language import message
from probe.services.remediation.planned_action import Action, ActionArgsError, FiringAlert, Job, Key, Surroundings
from probe.services.remediation.schema import (
    ACTIONS,
    ActionSettings,
    HostSettings,
    RemediationSettings,
    TlsSettings,
    parsed_address,
)
from probe.services.web.listening import ServerError, is_loopback
from probe.services.web.tokens import check_private, token_in

_log = logging.getLogger("probe.remediation")

SHELLS = frozenset(
    {"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "busybox", "pwsh", "xonsh", "nu"}
)
"""Programs that take commands as texts."""
PASSED_ON = ("PATH", "HOME", "LANG")
"""Environment variables that programs always get."""
Complain = Callable[[Key, str], None]


class RemediationConfigError(ConfigError):
    """Error of a configuration of ``probe remediate`` that cannot be used."""

    advice = message("Correct these and start again; docs/guides/remediation.md describes the keys.")


class ConfiguredAction(NamedTuple):
    """Action that is ready to be planned."""

    name: str
    settings: ActionSettings
    action: Action
    dry_run: bool

    def concerns(self, alert: FiringAlert) -> bool:
        """Return whether ``alert`` begins it."""
        return alert.name in self.settings.alerts and all(
            alert.labels.get(label) == value for label, value in self.settings.labels.items()
        )

    @property
    def by_host(self) -> bool:
        """True if the alert has to be about this machine."""
        return self.action.by_host and not self.settings.any_host


class ServiceOptions(NamedTuple):
    """Everything that the service needs."""

    settings: RemediationSettings
    host: str
    port: int
    database: Path
    token: str | None
    tls: ssl.SSLContext | None
    host_names: frozenset[str]
    actions: tuple[ConfiguredAction, ...]


def load(file: Path, listen: str | None = None, database: Path | None = None) -> ServiceOptions:
    """Load the configuration ``file`` and prepare all that it names; ``listen`` and ``database`` replace its own.

    Raises:
        RemediationConfigError: with every problem at once.
    """
    values, complaints, lines = read(file)
    if listen is not None:
        values = {**values, "listen": listen}
    try:
        settings = RemediationSettings.model_validate(values)
    except ValidationError as error:
        count = len(complaints) + error.error_count()
        complaints += islice(problems(error, RemediationSettings, lines.lead), max(MOST_SHOWN - len(complaints), 0))
        raise RemediationConfigError(str(file), complaints[:MOST_SHOWN], max(count - MOST_SHOWN, 0)) from None

    def complain(key: Key, sentence: str) -> None:
        complaints.append(f"{lines.lead(key)}{path_text(key)}: {sentence}")

    if file.stat().st_mode & stat.S_IWOTH:
        complaints.append(
            f"{file}: every user of this machine can write it, and so choose what is run; run: chmod o-w {file}"
        )
    options = _prepared(settings, Path(settings.database) if database is None else database, complain)
    if complaints:
        raise RemediationConfigError(str(file), complaints[:MOST_SHOWN], len(complaints[MOST_SHOWN:]))
    return options


def _prepared(settings: RemediationSettings, database: Path, complain: Complain) -> ServiceOptions:
    host, port = parsed_address(settings.listen)
    token = _token(settings.token_file, complain)
    tls = None if settings.tls is None else _tls(settings.tls, complain)
    open_to_all = settings.token_file is None and (settings.tls is None or settings.tls.client_ca is None)
    if open_to_all and not is_loopback(host):
        complain(
            ("listen",),
            f"expected token_file or tls.client_ca, since other machines can connect to {host}; write a token to a "
            "file: openssl rand -hex 32",
        )
    surroundings = Surroundings(
        _programs(settings, complain),
        {name: Job(Path(job.configuration).expanduser().absolute(), job.ranks) for name, job in settings.jobs.items()},
        _environment(settings, complain),
    )
    actions = tuple(_actions(settings, surroundings, complain))
    return ServiceOptions(settings, host, port, database, token, tls, host_names(settings.host), actions)


def host_names(host: HostSettings) -> frozenset[str]:
    """Return the names of this machine, in lower case."""
    name = socket.gethostname()
    return frozenset(name.lower() for name in host.names or (name, name.partition(".")[0]))


def _token(file: str | None, complain: Complain) -> str | None:
    if file is None:
        return None
    try:
        return token_in(Path(file).expanduser(), "token_file")
    except ServerError as error:
        complain(("token_file",), str(error).removeprefix(f"token_file {file}: ").removeprefix("token: "))
        return None


def _tls(tls: TlsSettings, complain: Complain) -> ssl.SSLContext | None:
    """Read certificates and key; a key with a password is refused, for which OpenSSL would wait at the terminal."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    key = Path(tls.key).expanduser()
    try:
        check_private(key, "tls.key")
    except ServerError as error:
        complain(("tls", "key"), str(error).removeprefix(f"tls.key {key}: "))
    except OSError as error:
        complain(("tls", "key"), f'expected a file that can be read, got "{key}": {error.strerror}')
        return None
    try:
        context.load_cert_chain(Path(tls.certificate).expanduser(), key, password=_no_password)
    except (OSError, ValueError) as error:  # an error of SSL is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        complain(("tls", "certificate"), f"expected a certificate and its key in PEM without a password: {reason}")
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(Path(tls.client_ca).expanduser())
            context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:
            sentence = f'expected a file with certificates (PEM), got "{tls.client_ca}": {error.strerror or error}'
            complain(("tls", "client_ca"), sentence)
    return context


def _no_password() -> str:
    raise ValueError("the key has a password")


def _programs(settings: RemediationSettings, complain: Complain) -> Mapping[str, Path | None]:
    """Find each program once, so that no later change of PATH or of a folder in it matters."""
    paths: dict[str, Path | None] = {}
    for number, name in enumerate(settings.programs):
        key = ("programs", number)
        paths[name] = path = _program(name)
        if "/" in name and not name.startswith("/"):
            complain(key, f"expected an absolute path or a name without /, got {name}")
        elif path is None:
            _log.warning("programs: %s is not installed; actions that run it can only be rehearsed", name)
        elif SHELLS & {Path(name).name, path.name, Path(os.path.realpath(path)).name}:
            complain(key, f"{name} is a shell, which would take labels for commands; name the program itself")
        elif path.stat().st_mode & stat.S_IWOTH:
            complain(key, f"every user of this machine can write {path}; run: chmod o-w {path}")
    return paths


def _program(name: str) -> Path | None:
    program = shutil.which(name)
    return None if program is None else Path(program).absolute()


def _environment(settings: RemediationSettings, complain: Complain) -> Mapping[str, str]:
    for number, name in enumerate(settings.environment):
        if name not in os.environ:
            complain(("environment", number), f"the environment variable {name} is not set; export it")
    names = (*PASSED_ON, *settings.environment)
    return {"PATH": os.defpath, **{name: os.environ[name] for name in names if name in os.environ}}


def _actions(settings: RemediationSettings, surroundings: Surroundings, complain: Complain) -> Any:
    for name, section in settings.actions.items():
        dry_run = settings.dry_run if section.dry_run is None else section.dry_run
        try:
            yield ConfiguredAction(name, section, ACTIONS[section.do](section.args, surroundings, not dry_run), dry_run)
        except ActionArgsError as error:
            for key, sentence in error.problems:
                complain(("actions", name, "args", *key), sentence)
