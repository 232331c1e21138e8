"""The parent process of ``probe run``: the program runs and ends as without it."""

from __future__ import annotations

import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from probe.core.sentinel.board import Board
from probe.launch.parent.following import BoardFolder
from probe.launch.parent.program import RELAYED
from probe.launch.parent.vigil import ENDED, NOTHING
from tests.forks import ROOT
from tests.quick_python import probe_command

PROBE = [sys.executable, "-m", "probe", "run"]
"""In a process of its own, which this one starts; :func:`run` forks it, where that makes no difference."""
NOTES_SIGNALS = """
import os, select, signal
numbers = []
woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)  # else a signal just before a read is noted after it
def note(number, frame):
    numbers.append(int(number))
    print("got", int(number), flush=True)
for number in (1, 2, 3, 10, 12, 15):
    signal.signal(number, note)
print("ready", os.getpid(), os.getppid(), os.getpgrp(), flush=True)
while 0 not in select.select([0, woken], [], [])[0]:
    os.read(woken, 100)
print("end", numbers, flush=True)
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def run(*words: str, command: Sequence[str] = (), **options: object) -> subprocess.CompletedProcess[str]:
    settings = {"capture_output": True, "text": True, "env": environment(), **options}
    return subprocess.run([*(command or probe_command("run")), *words], check=False, **settings)  # type: ignore[call-overload, no-any-return]


def unignored() -> None:
    """Undo what ``nohup``, or a shell for what runs in the background, has had this process inherit."""
    for number in RELAYED:
        signal.signal(number, signal.SIG_DFL)


class Noting:
    """A program under the parent that prints each signal it gets, and ends by a line of input."""

    def __init__(self, folder: Path, **options: object) -> None:
        (folder / "train.py").write_text(NOTES_SIGNALS)
        self.process = subprocess.Popen(
            [*PROBE, str(folder / "train.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
            start_new_session=True,
            preexec_fn=unignored,  # noqa: PLW1509 - nothing else runs in this process between fork and exec
            **options,  # type: ignore[call-overload]
        )
        _, program, parent, group = self.line().split()
        self.program = int(program)
        assert (int(parent), int(group)) == (self.process.pid, self.process.pid)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> str:
        """Let it end; return what it printed until then."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.close()
        return self.process.stdout.read().strip()


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_the_programs(code: int) -> None:
    """Any of them, and its output."""
    done = run("--", "sh", "-c", f"echo out; echo err >&2; exit {code}")
    assert (done.returncode, done.stdout) == (code, "out\n")
    text = ENDED.template.format(status=f"exit code {code}") if code else NOTHING
    assert done.stderr == f"err\nprobe: info: {text}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE])
def test_the_parent_dies_of_the_programs_signal(tmp_path: Path, number: signal.Signals) -> None:
    """So that a shell sees what it would see without it; it leaves no core dump of its own."""
    no_core = lambda: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)  # noqa: E731
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    options = {"preexec_fn": no_core} if hard == resource.RLIM_INFINITY else {}
    done = run("--", "sh", "-c", f"ulimit -c 0; kill -{number.value} $$", command=PROBE, cwd=tmp_path, **options)
    assert done.returncode == -number
    assert [*tmp_path.iterdir()] == []


def test_each_signal_to_the_parent_alone_reaches_the_program(tmp_path: Path) -> None:
    """Once."""
    noting = Noting(tmp_path)
    for number in RELAYED:
        noting.process.send_signal(number)
        assert noting.line() == f"got {number.value}"
    assert noting.end() == f"end {[number.value for number in RELAYED]}"
    assert noting.process.wait() == 0


def test_a_signal_to_the_whole_group_comes_once(tmp_path: Path) -> None:
    """As ``timeout`` and ``torchrun`` send it: a second SIGTERM would end a program that saves a checkpoint."""
    noting = Noting(tmp_path)
    os.killpg(noting.process.pid, signal.SIGTERM)
    assert noting.line() == "got 15"
    noting.process.send_signal(signal.SIGUSR1)  # passed on later than a second SIGTERM would be
    assert noting.line() == "got 10"
    assert noting.end() == "end [15, 10]"
    assert noting.process.wait() == 0


def test_signals_that_were_ignored_stay_so(tmp_path: Path) -> None:
    """``nohup``: the program is not hung up."""
    script = "grep SigIgn /proc/self/status; grep SigIgn /proc/$PPID/status"
    ignored = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    done = run("--", "sh", "-c", script, command=PROBE, preexec_fn=ignored)
    masks = [int(line.split()[1], 16) for line in done.stdout.splitlines()]
    assert [mask & 1 for mask in masks] == [1, 1]
    assert not masks[0] >> signal.SIGPIPE - 1 & 1  # Python's own


def test_the_program_goes_on_when_the_parent_is_killed(tmp_path: Path) -> None:
    """With SIGKILL, which it cannot pass on; the process beside it ends, too."""
    noting = Noting(tmp_path)
    noting.process.kill()
    noting.process.wait()
    os.kill(noting.program, signal.SIGUSR1)
    assert noting.line() == "got 10"
    assert noting.end() == "end [10]"  # read to the end: no other process holds the output


def at_terminal(folder: Path) -> tuple[int, int]:
    """Start the program at a terminal of its own; return its process id and the terminal, once it is ready."""
    (folder / "train.py").write_text(NOTES_SIGNALS)
    pid, terminal = pty.fork()
    if not pid:
        os.execve(sys.executable, [*PROBE, str(folder / "train.py")], environment())
    until(terminal, b"ready")
    return pid, terminal


def until(terminal: int, text: bytes) -> bytes:
    """Read from a terminal until ``text`` comes, or the end."""
    read = b""
    while text not in read:
        try:
            if not (more := os.read(terminal, 4096)):
                break
        except OSError:  # the other side is closed
            break
        read += more
    return read


def test_the_keys_of_a_terminal_reach_the_program_once(tmp_path: Path) -> None:
    """Ctrl-C and Ctrl-\\ through a pseudo terminal; the parent lives on."""
    pid, terminal = at_terminal(tmp_path)
    os.write(terminal, b"\x03")
    until(terminal, b"got 2\r\n")
    os.write(terminal, b"\x1c")
    until(terminal, b"got 3\r\n")
    os.write(terminal, b"\n")
    assert b"end [2, 3]" in until(terminal, b"end [2, 3]")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)


def test_a_job_is_stopped_and_continued(tmp_path: Path) -> None:
    """Ctrl-Z stops both, and the shell sees it; SIGCONT to the group lets both go on."""
    (tmp_path / "train.py").write_text(NOTES_SIGNALS)
    pid, terminal = pty.fork()
    if not pid:  # a shell with job control: a group that is alone in its session ignores Ctrl-Z
        job = os.fork()
        if not job:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(0, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.execve(sys.executable, [*PROBE, str(tmp_path / "train.py")], environment())
        _, status = os.waitpid(job, os.WUNTRACED)
        os.write(1, b"stopped\n" if os.WIFSTOPPED(status) else b"no\n")
        os.killpg(job, signal.SIGCONT)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]))
    until(terminal, b"ready")
    os.write(terminal, b"\x1a")
    assert b"stopped" in until(terminal, b"stopped\r\n")
    os.write(terminal, b"\n")
    assert b"end []" in until(terminal, b"end []")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def test_a_program_that_stops_itself_stops_the_job(tmp_path: Path) -> None:
    """As editors do; it goes on with the job."""
    script = "import os, signal; os.kill(os.getpid(), signal.SIGTSTP); print('on', flush=True)"
    job = os.fork()
    if not job:
        os.setpgid(0, 0)
        out = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.execve(sys.executable, [*PROBE, "--", sys.executable, "-c", script], environment())
    _, status = os.waitpid(job, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(job, signal.SIGCONT)  # the parent alone
    assert os.waitpid(job, 0)[1] == 0
    assert (tmp_path / "out").read_text() == "on\n"


def test_the_program_reads_standard_input_and_descriptors_as_without(tmp_path: Path) -> None:
    """Through a pipe; others are passed on, and the parent keeps none of them open."""
    done = run("--", "cat", input="from a pipe\n")
    assert done.stdout == "from a pipe\n"
    read, write = os.pipe()
    script = f"import os; os.write({write}, b'through'); os.close({write}); input()"
    command = [*PROBE, "--", sys.executable, "-c", script]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment(), pass_fds=[write])
    os.close(write)
    assert os.read(read, 100) == b"through"
    assert os.read(read, 100) == b""  # the end, though the program and its parent live
    process.communicate(b"\n")
    assert process.returncode == 0


@pytest.mark.parametrize("redirection", ["2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_a_program_that_dies_of_a_signal_without_streams(tmp_path: Path, redirection: str) -> None:
    """Whatever is closed or full, the exit code is its own."""
    command = f"{' '.join(PROBE)} -- sh -c 'touch ran; kill -9 $$' {redirection}; echo $? > code"
    subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment(), check=False)
    assert (tmp_path / "ran").exists()
    assert (tmp_path / "code").read_text() == "137\n"


def test_a_daemon_of_the_program_holds_up_nothing(tmp_path: Path) -> None:
    """The end of the program is the end; what it has forked goes on."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    done = run("--", "sh", "-c", f"(setsid sh -c 'cat {fifo} > {tmp_path}/out' >&- 2>&- &) ; exit 5")
    assert done.returncode == 5
    fifo.write_text("later\n")
    reader = os.open(fifo, os.O_RDWR)  # waits for nothing
    os.close(reader)


def test_the_board_is_removed_and_named_to_the_program() -> None:
    """In a folder that is the user's alone."""
    done = run("--", "sh", "-c", 'echo "$PROBE_BOARD"; stat -c %a "$PROBE_BOARD"; ls "$PROBE_BOARD"')
    folder, mode, file = done.stdout.splitlines()
    assert (mode, file) == ("700", "parent.lock")
    assert not Path(folder).exists()


def test_probe_run_within_probe_run_reports_to_the_outer_one(tmp_path: Path) -> None:
    """One parent a node; the inner one replaces itself by the program."""
    script = "echo $PPID $PROBE_BOARD"
    inner = " ".join(PROBE)
    done = run("--", "sh", "-c", f"echo $$ $PROBE_BOARD; {inner} -- sh -c '{script}'; exit 0")
    outer, nested = (line.split() for line in done.stdout.splitlines())
    assert outer == nested


def test_without_watching_there_is_no_parent() -> None:
    """PROBE_RUN=0: the program takes the place of this process."""
    process = subprocess.Popen(
        [*PROBE, "--", "sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True, env=environment(PROBE_RUN="0")
    )
    assert process.communicate()[0] == f"{process.pid}\n"


@pytest.fixture
def small() -> list[str]:
    """Command that runs another in a namespace of its own, with a full /dev/shm; skipped where none can be made."""
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = "mount -t tmpfs -o size=4k none /dev/shm && (yes > /dev/shm/full 2>/dev/null || true) && "
    if shutil.which("unshare") is None or subprocess.run([*prefix, mount + "true"], check=False).returncode:
        pytest.skip("no namespace of mounts can be made")
    return [*prefix, mount]


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder that is not in /dev/shm, as those of other tests are."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("temporary", ["writable", "unusable"])
def test_a_full_shared_memory_costs_the_board_at_most(small: list[str], on_disk: Path, temporary: str) -> None:
    """It lies in the folder of temporary files; where it cannot, the program takes the place of the parent."""
    if temporary == "unusable":
        (on_disk / "probe-0").touch()
    words = " ".join([*PROBE, "--", "sh", "-c", "'echo \"$$:$PROBE_BOARD\"; exit 3'"])
    command = [*small[:-1], f"{small[-1]} TMPDIR={on_disk} exec {words}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    pid, _, board = (process.communicate()[0].strip()).partition(":")
    assert process.returncode == 3
    if temporary == "unusable":
        assert (int(pid), board) == (process.pid, "")
    else:
        assert board.startswith(str(on_disk))
        assert not Path(board).exists()


FAILURES = {
    "no process at all": "os.posix_spawnp",
    "no process beside the program": "os.fork",
    "no descriptor": "os.pipe",
    "no signal handler": "signal.set_wakeup_fd",
    "no look": "select.select",
}


@pytest.mark.parametrize("failing", FAILURES.values(), ids=FAILURES)
def test_whatever_fails_in_the_parent_the_program_runs(tmp_path: Path, failing: str) -> None:
    """And ends with its own exit code. Where it has a parent, SIGTERM still reaches it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, select, signal, sys\ndef fail(*_, **__): raise OSError(11, 'no more')\n"
        f"if not os.environ.get('PROBE_CONFIG'): {failing} = fail\n"
    )
    own = environment(PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert run("--", "sh", "-c", "exit 4", env=own).returncode == 4
    process = subprocess.Popen(
        probe_command("run", "--", "sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"),
        stdout=subprocess.PIPE,
        text=True,
        env=own,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait() == 5


def test_the_parent_imports_neither_a_framework_nor_pydantic() -> None:
    """Nor NumPy, while one process or none trains; it takes little memory."""
    script = (
        "import sys\nfrom probe.launch.parent import following\nimport probe.cli.run\n"
        "print(sorted({'torch', 'mindspore', 'pydantic', 'numpy'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    done = run("--", "sh", "-c", "grep RssAnon /proc/$PPID/status", command=PROBE)
    assert int(done.stdout.split()[1]) < 40_000


def test_a_board_is_read_as_long_as_its_parent_lives() -> None:
    """Its lock shows that, also after SIGKILL."""
    folder = BoardFolder(f"board-test-{os.getpid()}")
    try:
        script = "import os\nfrom probe.core.sentinel.board import Board\nprint(Board.of(os.environ) is not None)"
        own = environment(PROBE_BOARD=str(folder.path))
        assert subprocess.check_output([sys.executable, "-c", script], env=own, text=True) == "True\n"
    finally:
        folder.remove()
    assert not Board(folder.path).is_read
    assert Board.of({"PROBE_BOARD": str(folder.path)}) is None


def test_only_one_parent_has_a_board() -> None:
    """The second is refused."""
    folder = BoardFolder(f"board-twice-{os.getpid()}")
    try:
        with pytest.raises(BlockingIOError):
            BoardFolder(folder.path.name)
    finally:
        folder.remove()
