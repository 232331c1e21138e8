"""Processes that can be attached to, and the request that the interpreter of one runs a script."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from probe.core.language import MessageError, joined, message
from probe.launch.environment import flags

LEAST = (3, 14)
"""The first version of Python that runs a script on request (PEP 768)."""
SECONDS = 30.0
"""Longest time that an interpreter may take to start."""
LISTED = message("`ps -u $USER -o pid,args` lists those there are")
SAME = message(
    'start the training by `DYNAMIC_MONITOR=True probe run -c FILE ...` with "dynamic_on": false in FILE, then collect '
    "by `probe control start DIR`"
)
"""Commands that do the same for a process that cannot be attached to."""
_PROC = Path("/proc")
_PYTHON = re.compile(r"python[\d.]*[td]*")
_ASK = """import sys
debug = getattr(sys, "is_remote_debug_enabled", lambda: False)()
print(*sys.version_info[:2], sys.implementation.name, debug)"""
_RUN = """import sys
try:
    sys.remote_exec(int(sys.argv[1]), sys.argv[2])
except Exception as error:
    print(type(error).__name__, error)
    sys.exit(1)"""


class UnattachableError(MessageError):
    """Reason why a process cannot be attached to, with what to do."""


@dataclass(frozen=True)
class Interpreter:
    """Interpreter of a process, as it was started."""

    pid: int
    path: str
    version: tuple[int, ...]
    debugs: bool
    """True if it was built with remote debugging."""
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Check that a script can be run in the process.

        Raises:
            UnattachableError: if its Python is too old, or does not allow it.
        """
        if self.version < LEAST:
            version, least = (".".join(map(str, numbers)) for numbers in (self.version, LEAST))
            raise UnattachableError(
                "expected Python {least} or later; it runs Python {version}: {advice}",
                least=least,
                version=version,
                advice=SAME,
            )
        if not self.debugs:
            raise UnattachableError("its Python was built without remote debugging: {advice}", advice=SAME)
        if reason := self._forbidden():
            raise UnattachableError(
                "remote debugging is switched off in it, by {reason}: start it without, or {advice}",
                reason=reason,
                advice=SAME,
            )

    def run(self, script: Path) -> None:
        """Ask the process to run a script, at the next moment at which its main thread runs Python code.

        Raises:
            UnattachableError: if the system or the interpreter refuses.
        """
        done = self._start(_RUN, str(self.pid), str(script))
        if done.returncode:
            raise UnattachableError(_refused(done.stdout or done.stderr))

    @classmethod
    def of(cls, pid: int) -> Interpreter:
        """Return the interpreter of a process.

        Raises:
            UnattachableError: if there is no such process, if it is another user's or in another container, or if it
                does not run Python.
        """
        _check_owner(pid)
        try:
            path = str((_PROC / str(pid) / "exe").readlink())
            arguments, environment = (_strings(pid, name) for name in ("cmdline", "environ"))
        except OSError as error:
            raise UnattachableError(
                "it cannot be looked at: {error}; attach as root, or as its user", error=error.strerror
            ) from None
        if not _PYTHON.fullmatch(Path(path).name.removesuffix(" (deleted)")):
            name = Path(path).name or "none"
            raise UnattachableError(
                "expected a process that runs Python; its program is {name}{children}",
                name=name,
                children=_children_of(pid) or joined("", [": ", LISTED]),
            )
        if not Path(path).exists():
            raise UnattachableError(
                "its interpreter has been replaced since it began: expected {path}; {advice}", path=path, advice=SAME
            )
        pairs = (variable.partition("=") for variable in environment)
        interpreter = cls(pid, path, (), False, arguments, {name: value for name, _, value in pairs})
        done = interpreter._start(_ASK)
        words = done.stdout.split()
        if done.returncode or words[2:3] != ["cpython"]:
            kind = words[2] if len(words) > 2 else message("another")
            raise UnattachableError(
                "expected CPython; its interpreter, {path}, is {shown}: {advice}", path=path, shown=kind, advice=SAME
            )
        return cls(pid, path, tuple(map(int, words[:2])), words[3] == "True", arguments, interpreter.environment)

    def _forbidden(self) -> str:
        given = flags(self.arguments)
        ignores = any(re.fullmatch(r"-[a-zA-Z]*[EI][a-zA-Z]*", flag) for flag in given)
        if self.environment.get("PYTHON_DISABLE_REMOTE_DEBUG") and not ignores:
            return message("PYTHON_DISABLE_REMOTE_DEBUG in its environment")
        option = any(flag.removeprefix("-X").replace("-", "_") == "disable_remote_debug" for flag in given)
        return "-X disable_remote_debug" if option else ""

    def _start(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self.path, "-I", "-S", "-c", code, *arguments]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603 - the interpreter of the process
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnattachableError(
                "its interpreter, {path}, cannot be run: {error}", path=self.path, error=error
            ) from None


def is_running(pid: int) -> bool:
    """Return whether there is such a process, and it has not ended."""
    return not _status(pid).get("State", "X").startswith(("Z", "X"))


def children(pid: int) -> list[int]:
    """Return the descendants of a process that run Python."""
    parents: dict[int, int] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdecimal() and (fields := _status(int(folder.name))):
            parents[int(folder.name)] = int(fields["PPid"])
    processes = [pid]
    for process in processes:
        processes += [child for child, parent in parents.items() if parent == process]
    return [process for process in processes[1:] if _PYTHON.fullmatch(_program(process))]


def _children_of(pid: int) -> str:
    below = " ".join(map(str, children(pid)))
    return message("; processes below it that do: {below}", below=below) if below else ""


def _program(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "exe").readlink().name
    except OSError:
        return ""


def _check_owner(pid: int) -> None:
    if not (_PROC / "self" / "status").exists():
        raise UnattachableError("expected Linux, whose /proc shows processes: {advice}", advice=SAME)
    fields = _status(pid)
    if not fields or not is_running(pid):
        raise UnattachableError("there is no such process: {advice}", advice=LISTED)
    if fields["Tgid"] != str(pid):
        raise UnattachableError("it is a thread of the process {process}: attach to that", process=fields["Tgid"])
    user = int(fields["Uid"].split()[1])
    if user != os.geteuid():
        raise UnattachableError("it belongs to the user {user}: attach as that user", user=_name(user))
    try:
        same = (_PROC / str(pid) / "ns" / "mnt").readlink() == (_PROC / "self" / "ns" / "mnt").readlink()
    except OSError:
        same = True
    if not same:
        raise UnattachableError("it runs in another container: attach from inside that")


def _status(pid: int) -> dict[str, str]:
    """Return the fields of a process's status; none if there is no such process."""
    try:
        text = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _strings(pid: int, name: str) -> list[str]:
    text = (_PROC / str(pid) / name).read_bytes().decode(errors="replace")
    return text.removesuffix("\0").split("\0") if text else []


def _refused(output: str) -> str:
    """Return the sentence for what ``sys.remote_exec`` has raised."""
    kind, _, text = output.strip().partition(" ")
    if kind == "PermissionError":
        return message(
            "the system does not allow to trace it: attach as root, set kernel.yama.ptrace_scope to 0, or give the "
            "container the capability SYS_PTRACE"
        )
    return message("its interpreter refuses: {reason}", reason=" ".join(f"{kind} {text}".split()))
