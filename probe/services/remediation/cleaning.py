"""Action that removes old files of folders that the configuration names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import annotated_types as ranges
from pydantic import AfterValidator

from probe.core.fields import Integer, Number, Section, not_empty
from probe.core.messages import plural, printable
from probe.services.remediation.label_fields import Label, label_of
from probe.services.remediation.planned_action import (
    ActionArgsError,
    Execution,
    FailedActionError,
    FiringAlert,
    InterruptedActionError,
    Key,
    PlannedAction,
    RefusedAlertError,
    Surroundings,
    shown,
)
from probe.services.remediation.stale_files import Removal, StaleFileRemover, StaleFiles, may_be_checkpoint

SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/root",
)
"""Folders in which nothing is removed."""
WHOLE = ("/", "/home", "/opt", "/srv", "/var", "/var/lib", "/mnt", "/media", "/data")
"""Folders that are too much: one in them has to be named."""


class FolderSettings(Section):
    """Folder in which files are removed."""

    path: Label
    """Absolute path."""
    patterns: Annotated[tuple[Label, ...], AfterValidator(not_empty)]
    """Patterns of the names of files that are removed, such as `*.tmp`; folders stay."""
    older_than_hours: Annotated[Number, ranges.Ge(0)] = 168.0
    """Least time in hours since a file was last read or written."""


class CleaningArgs(Section):
    """Arguments of clean_folders."""

    folders: Annotated[tuple[FolderSettings, ...], AfterValidator(not_empty)]
    """Folders, with all folders in them on the same file system."""
    keep: tuple[Label, ...] = ()
    """Patterns of names of further files that stay. Checkpoints, open files and files with several names stay in any
    case."""
    mount_label: Label | None = None
    """Label with a mount point: only the folders on it are cleaned, and without any the alert is refused. Missing:
    all folders are."""
    most_files: Annotated[Integer, ranges.Ge(1)] = 10_000
    """Most files that are removed at one time."""


class CleanFolders:
    """Remove old files of the folders that the configuration names."""

    Args: ClassVar[type[Section]] = CleaningArgs
    by_host: ClassVar[bool] = True

    def __init__(self, args: CleaningArgs, surroundings: Surroundings, live: bool) -> None:  # noqa: ARG002
        self._args = args
        problems: list[tuple[Key, str]] = []
        self._rules: list[StaleFiles] = []
        for number, folder in enumerate(args.folders):
            path = Path(folder.path).expanduser()
            problem = _problem(path, live)
            if problem:
                problems.append((("folders", number, "path"), problem))
            seconds = folder.older_than_hours * 3600
            self._rules.append(StaleFiles(Path(os.path.realpath(path)), folder.patterns, args.keep, seconds))
        if problems:
            raise ActionArgsError(problems)

    def plan(self, alert: FiringAlert) -> PlannedAction:
        """Return the action for the folders on the mount point that the alert names."""
        rules = self._rules
        if self._args.mount_label is not None:
            mount = label_of(alert, self._args.mount_label)
            rules = [rule for rule in rules if mount_of(rule.folder) == mount]
            if not rules:
                raise RefusedAlertError(f"label {self._args.mount_label}: no folder lies on {shown(mount)}")
        names = ", ".join(str(rule.folder) for rule in rules)
        return PlannedAction(
            "folders",  # one cleaning at a time, since folders may lie in each other
            f"remove old files in {names}",
            lambda: self._cleaned(rules, False, None),
            lambda execution: self._cleaned(rules, True, execution),
        )

    def _cleaned(self, rules: Sequence[StaleFiles], live: bool, execution: Execution | None) -> str:
        try:
            remover = StaleFileRemover(live, self._args.most_files, execution.check if execution else lambda: None)
        except OSError:
            raise FailedActionError("expected /proc, which shows open files; nothing is removed without it") from None
        problems = []
        try:
            for rule in rules:
                try:
                    remover.clean(rule)
                except OSError as error:
                    problems.append(f"{rule.folder}: {error.strerror or error}")
        except (FailedActionError, InterruptedActionError) as error:
            raise type(error)(f"{error}; until then {_summary(remover.result, live)}") from None
        text = "; ".join([*problems, _summary(remover.result, live)])
        if problems:
            raise FailedActionError(text)
        return text


def mount_of(path: Path) -> str:
    """Return the mount point of the file system that ``path`` lies on."""
    while not path.is_mount() and path != path.parent:
        path = path.parent
    return str(path)


def _problem(path: Path, live: bool) -> str:
    """Return the reason why nothing may be removed in ``path``; empty if there is none."""
    if not path.is_absolute():
        return f"expected an absolute path, got {path}"
    real = Path(os.path.realpath(path))
    if str(real) in WHOLE or real == Path.home() or real in Path.home().parents:
        return f"expected a folder for files that may be removed, got {path}; name one in it"
    if any(real == Path(folder) or Path(folder) in real.parents for folder in SYSTEM):
        return f"expected no folder of the system, got {path}"
    if any(may_be_checkpoint(part) for part in real.parts[1:]):
        return f"expected no folder of checkpoints by its name, got {path}"
    if live and not real.is_dir():
        return f"expected a folder, got {path}; make it, or set dry_run: true"
    return ""


def _summary(result: Removal, live: bool) -> str:
    verb = "removed" if live else "would remove"
    size = f"{result.size / (1 << 20):.1f} MiB"
    text = f"{verb} {result.files} {plural(result.files, 'file')}, {size}"
    if result.listed:
        more = result.files - len(result.listed)
        text += f": {', '.join(map(printable, result.listed))}{f' and {more} more' if more else ''}"
    if result.spared:
        text += f"; spared {', '.join(f'{count} {reason}' for reason, count in sorted(result.spared.items()))}"
    if result.full:
        text += "; the limit of files is reached"
    if result.unseen:
        text += f"; {result.unseen} {plural(result.unseen, 'process', 'processes')} did not show open files"
    return text
