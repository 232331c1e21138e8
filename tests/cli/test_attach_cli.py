"""``probe attach``: processes that cannot be attached to, each refused with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from probe.launch.attach.exchange import exchange
from probe.launch.attach.processes import LEAST, Interpreter, UnattachableError, children
from probe.launch.attach.request import AttachRequest
from tests.quick_python import probe_command

ROOT = Path(__file__).parents[2]
WAITS = "import sys\nprint('begun', flush=True)\nsys.stdin.read()"


@contextmanager
def started(*command: str, begun: bool = True, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs until the block ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, **options) as process:  # type: ignore[call-overload]
        if begun:
            process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def attach(*words: object) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(probe_command("attach", *words), env=own, capture_output=True, text=True, check=False)


def refused(pid: int) -> str:
    """The reason why a process cannot be attached to."""
    with pytest.raises(UnattachableError) as reason:
        Interpreter.of(pid).check()
    return str(reason.value)


@pytest.mark.skipif(sys.version_info >= LEAST, reason="this Python can be attached to")
def test_an_older_python_is_refused_with_what_does_the_same(tmp_path: Path) -> None:
    """In a line, with exit code 2; a configuration with a mistake and a process that there is not likewise."""
    with started(sys.executable, "-c", WAITS) as process:
        done = attach(process.pid)
        (tmp_path / "wrong.json").write_text('{"wg_distributio": true}')
        wrong = attach(process.pid, "-c", tmp_path / "wrong.json")
    version = ".".join(map(str, sys.version_info[:2]))
    expected = f"{process.pid}: expected Python 3.14 or later; it runs Python {version}: start the training by"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"probe: error: {expected}")
    assert '"dynamic_on": false' in done.stderr
    assert "`probe control start DIR`" in done.stderr
    assert (wrong.returncode, "wg_distributio: unknown key; did you mean wg_distribution" in wrong.stderr) == (2, True)
    assert f"{process.pid}: there is no such process" in attach(process.pid).stderr


def test_other_programs_are_refused_with_the_processes_below_them() -> None:
    """A shell that waits for Python: its number is in the sentence."""
    shell = f'"{sys.executable}" -c "$0"; true'
    with started("/bin/sh", "-c", shell, WAITS) as process:
        (child,) = children(process.pid)
        reason = refused(process.pid)
        assert reason.startswith("expected a process that runs Python; its program is ")
        assert reason.endswith(f"; processes below it that do: {child}")
        process.stdin.close()
        process.wait()


def test_threads_and_processes_that_have_ended_are_refused() -> None:
    """A thread with the number of its process."""
    ready, end = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    assert refused(thread.native_id or 0) == f"it is a thread of the process {os.getpid()}: attach to that"
    end.set()
    thread.join()
    with started(sys.executable, "-c", "", begun=False) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie, until it is waited for
        assert refused(process.pid).startswith("there is no such process")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of another user")
def test_a_process_of_another_user_is_refused() -> None:
    """With that user's name."""
    with started("/bin/cat", begun=False, user=65534) as process:
        process.stdin.write("begun\n")
        process.stdin.flush()
        process.stdout.readline()
        assert refused(process.pid).startswith("it belongs to the user nobody: attach as that user")


@pytest.mark.parametrize(
    ("flags", "environment", "reason"),
    [
        ((), {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}, "by PYTHON_DISABLE_REMOTE_DEBUG in its environment"),
        (("-E",), {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}, ""),
        (("-X", "disable_remote_debug"), {}, "by -X disable_remote_debug"),
        (("-Xdisable-remote-debug",), {}, "by -X disable_remote_debug"),
        (("-X", "dev"), {"PYTHON_DISABLE_REMOTE_DEBUG": ""}, ""),
    ],
)
def test_a_process_that_allows_no_debugging_is_refused(
    flags: tuple[str, ...], environment: Mapping[str, str], reason: str
) -> None:
    """As its interpreter was started; `-E` ignores the environment."""
    own = {**os.environ, **environment}
    with started(sys.executable, *flags, "-c", WAITS, env=own) as process:
        found = Interpreter.of(process.pid)
    assert found.version == sys.version_info[:2]
    able = replace(found, version=LEAST, debugs=True)
    if not reason:
        able.check()
        return
    with pytest.raises(UnattachableError, match=reason):
        able.check()
    with pytest.raises(UnattachableError, match="its Python was built without remote debugging"):
        replace(able, debugs=False).check()


def test_a_script_that_is_run_too_late_removes_what_is_left() -> None:
    """Nobody waits for it any more, and it attaches to nothing."""
    with exchange(AttachRequest((os.getpid(), os.getppid()))) as made:
        made.places[os.getppid()].answer("refused", reason="")
        answers = dict(made.answers(0.0))
    assert "its main thread has run no Python code since" in answers[os.getpid()]["reason"]
    for place in made.places.values():
        exec(compile(place.script.read_text(), "script", "exec"), {"__name__": "script"})
    assert not made.folder.exists()


def test_a_process_that_lacks_what_is_needed_answers_the_reason(tmp_path: Path) -> None:
    """Without numpy the monitor cannot be imported; without torch there is nothing to watch."""
    answers = []
    for flags in (["-S"], []):
        with exchange(AttachRequest((1,))) as made:
            script = made.places[1].script
            environment = {**os.environ, "PYTHONPATH": ""}
            command = [sys.executable, *flags, str(script)]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
            answers.append(made.places[1].answered())
    assert [answer["state"] for answer in answers if answer] == ["refused", "refused"]
    assert str(answers[0]).count("probe cannot be imported in this process (No module named ") == 1
    assert "it has not imported torch" in str(answers[1])
