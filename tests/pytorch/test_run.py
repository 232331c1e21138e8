"""``probe run``: programs of torch as they are, watched as by the three lines, and unharmed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests import user_scripts
from tests.forks import WHOLE_END, ForkServer
from tests.pytorch.run_scripts import ATTACH, CONFIG, LOOP, OWN, ROOT, SCRIPTS, SUM, Ended, ran
from tests.quick_python import probe_command, quick_python
from tests.required import require

require("torch")


@pytest.fixture(scope="module")
def forks() -> ForkServer:
    """A process that has imported torch and the monitor."""
    return user_scripts.forks(*user_scripts.TORCH)


Plain = Callable[[str], Ended]


@pytest.fixture(scope="module")
def without(forks: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """What a program leaves without a monitor, run once."""
    return cache(lambda text: ran(forks, tmp_path_factory.mktemp("plain") / "run", text, watch=False))


@pytest.mark.parametrize("name", SCRIPTS)
def test_rows_are_those_of_the_three_lines(forks: ForkServer, without: Plain, tmp_path: Path, name: str) -> None:
    """Names, steps and numbers, to the byte; the program's own output is that without the monitor."""
    script = SCRIPTS[name]
    lines = ATTACH.format(model=script.model, optimizer=script.optimizer, begun=script.begun)
    by_hand = ran(forks, tmp_path / "hand", script.text.replace("# here\n", lines), watch=False)
    alone = ran(forks, tmp_path / "alone", script.text, watch=True)
    plain = without(script.text)
    assert (alone.code, by_hand.code, plain.code) == (0, 0, 0), alone.errors + by_hand.errors
    assert alone.printed == plain.printed == by_hand.printed
    assert alone.rows == by_hand.rows
    assert len(alone.rows) > 8
    begun, ended = (line for line in alone.said if line.startswith("probe: info: "))
    assert begun.startswith("probe: info: watching ")
    assert ("from step 7 on" in begun) is (script.begun == 7)
    assert " steps watched, all of them recorded; " in ended
    assert "nothing found in " in ended  # not "0 findings": the line names what was looked at


def test_another_optimizer_begins_another_run(forks: ForkServer, tmp_path: Path) -> None:
    """A second stage over the same model: two runs, each of its own steps."""
    text = SCRIPTS["a loop"].text
    again = "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n" + LOOP.format(micro=1).replace(
        "range(5)", "range(3)"
    )
    done = ran(forks, tmp_path / "two", text + again, watch=True)
    assert done.code == 0, done.errors
    # each run ends with a line, also the first, which the optimizer of the second ends
    assert [line.split()[2] for line in done.said] == ["watching", "5", "watching", "3"], done.said
    steps = [len([*run.glob("grad_reduced_*.csv")]) for run in sorted((done.folder / "out").iterdir())]
    assert sorted(steps) == [3, 5]


def test_an_optimizer_that_is_made_anew_begins_no_run(forks: ForkServer, tmp_path: Path) -> None:
    """Neither for each update, with another rate, nor later with the same settings: all are steps of one run."""
    text = """
import torch
net = torch.nn.Linear(4, 2)
for step in range(10):
    if step < 4 or step == 7:
        optimizer = torch.optim.Adam(net.parameters(), 1e-3 * (1 + min(step, 3)))
    net(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
"""
    done = ran(forks, tmp_path / "run", text, watch=True)
    assert done.code == 0, done.errors
    assert [line.split()[2] for line in done.said] == ["watching", "10"], done.said
    assert len([*(done.folder / "out").glob("*/grad_reduced_*.csv")]) == 10


@pytest.mark.parametrize("late", [False, True])
def test_a_monitor_of_the_program_counts_alone(forks: ForkServer, tmp_path: Path, late: bool) -> None:
    """Whether it attaches first, or after the other: no step is in two runs."""
    script = SCRIPTS["a loop"]
    lines = ATTACH.format(model="net", optimizer="optimizer", begun=0)
    if late:
        indented = "".join(f"        {line}\n" for line in lines.strip().splitlines())
        text = script.text.replace("for step in range(5):\n", f"for step in range(5):\n    if step == 2:\n{indented}")
    else:
        text = script.text.replace("# here\n", lines)
    done = ran(forks, tmp_path / "own", text, watch=True)
    assert done.code == 0, done.errors
    steps = [len([*run.glob("grad_reduced_*.csv")]) for run in sorted((done.folder / "out").iterdir())]
    assert sorted(steps) == ([2, 3] if late else [5])
    # the program's monitor reports at its end, as every monitor does; that of `probe run` only where it began first
    assert any(" info: watching " in line for line in done.said) is late


@pytest.mark.parametrize("begun", [0, 2])
def test_a_callback_of_the_program_counts_alone(forks: ForkServer, tmp_path: Path, begun: int) -> None:
    """Whether its trainer begins before the first step or later: no step is in two runs."""
    lines = "from probe.launch.trainer_run import TrainerRun\nfrom probe.pytorch import TrainerMon\n"
    begin = (
        f"    if step == {begun}: (run := TrainerRun(TrainerMon, 'monitor.json')).begin([net], [optimizer], 1, step)\n"
    )
    text = SCRIPTS["a loop"].text.replace("for step in range(5):\n", f"{lines}for step in range(5):\n{begin}")
    done = ran(forks, tmp_path / "callback", text + "run.end()\n", watch=True)
    assert done.code == 0, done.errors
    steps = [len([*run.glob("grad_reduced_*.csv")]) for run in sorted((done.folder / "out").iterdir())]
    assert sorted(steps) == ([2, 3] if begun else [5])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\nw = torch.nn.Parameter(torch.ones(2))\no = torch.optim.SGD([w])\no.step()\n", "3 lines"),
        ("import torch\ntorch.nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()\n", ""),
        ("print(1)\n", ""),
    ],
    ids=["an optimizer without a model", "no optimizer", "no framework"],
)
def test_a_program_without_training_is_left_alone(forks: ForkServer, tmp_path: Path, text: str, said: str) -> None:
    """It writes nothing; if it has an optimizer, one message names the three lines to write."""
    done = ran(forks, tmp_path / "none", text, watch=True)
    assert done.code == 0, done.errors
    assert not (done.folder / "out").exists()
    if said:
        assert "nothing was watched: an optimizer was made, and no model" in done.said[0]
        assert "monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)" in done.errors
    else:
        assert done.said == []


def test_updates_without_an_optimizer_are_reported(forks: ForkServer, tmp_path: Path) -> None:
    """A loop that changes the parameters itself has no step: one line says so, and nothing is written."""
    text = """
import torch
torch.manual_seed(1)
torch.net = net = torch.nn.Linear(4, 1)  # as a global of a script: it lives until the process ends
for step in range(3):
    net.zero_grad()
    net(torch.randn(8, 4)).mean().backward()
    for each in net.parameters():
        each.data.add_(each.grad, alpha=-0.1)
"""
    done, plain = (
        ran(forks, tmp_path / name, text + SUM.format("net"), watch=name == "alone") for name in ("alone", "plain")
    )
    assert (done.code, done.printed) == (0, plain.printed), done.errors
    assert not (done.folder / "out").exists()
    assert len(done.said) == 1
    assert "nothing was watched: parameters have gradients, and no optimizer of torch was made" in done.said[0]


def test_a_model_that_trains_beside_its_optimizer_is_watched(forks: ForkServer, tmp_path: Path) -> None:
    """Loaded with assign=True after the optimizer was made: what it holds is in no model."""
    text = """
import torch
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters())
net.load_state_dict({name: each.clone() for name, each in net.state_dict().items()}, assign=True)
for step in range(8):
    net.zero_grad()
    torch.nn.MSELoss()(net(torch.randn(8, 4)), torch.zeros(8, 2)).backward()
    optimizer.step()
"""
    done = ran(forks, tmp_path / "run", text, watch=True, config=CONFIG | {"sentinel": {"enable": True}})
    assert done.code == 0, done.errors
    lines = [line for path in (done.folder / "out").glob("*/checks.jsonl") for line in path.read_text().splitlines()]
    found = {row["check"]: (row["step"], row["grade"]) for row in map(json.loads, lines)}
    assert found["nothing-to-apply"] == (3, "critical")
    assert found["parameters-replaced"] == (3, "critical")


@pytest.mark.parametrize(
    ("made", "level"),
    [("torch.zeros(1, requires_grad=True)", "info"), ("torch.nn.Parameter(torch.zeros(1))", "warning")],
)
def test_an_optimizer_of_no_model_beside_a_watched_one_is_named(
    forks: ForkServer, tmp_path: Path, made: str, level: str
) -> None:
    """A tensor, as the temperature of an actor, is in no model; a parameter may have been replaced."""
    text = f"""
import torch
net, lone = torch.nn.Linear(4, 2), {made}
both = torch.optim.SGD(net.parameters(), 0.1), torch.optim.Adam([lone])
for step in range(3):
    (net(torch.randn(8, 4)).pow(2).mean() * lone.exp()).sum().backward()
    [optimizer.step() for optimizer in both]
"""
    done = ran(forks, tmp_path / "run", text, watch=True)
    assert done.said[0] == f"probe: {level}: no model holds the parameters of an optimizer (Adam): it is not watched"


def test_what_cannot_be_watched_trains_all_the_same(forks: ForkServer, without: Plain, tmp_path: Path) -> None:
    """A target that the model lacks: one warning with the reason, and the program's own output."""
    config = {"xy_distribution": True, "targets": {"no such module": {}}}
    done = ran(forks, tmp_path / "wrong", SCRIPTS["a loop"].text, watch=True, config=config)
    plain = without(SCRIPTS["a loop"].text)
    assert (done.code, done.printed) == (0, plain.printed)
    assert len(done.said) == 1
    assert done.said[0].startswith("probe: warning: this program is not watched: ")
    assert "no such module" in done.said[0]


def test_the_switch_leaves_everything_alone(forks: ForkServer, tmp_path: Path) -> None:
    """PROBE_RUN=0: no line and no file."""
    done = ran(forks, tmp_path / "off", SCRIPTS["a loop"].text, watch=True, environment={"PROBE_RUN": "0"})
    assert (done.code, done.said, (done.folder / "out").exists()) == (0, [], False)


def test_what_is_pending_is_written_before_a_sudden_exit(forks: ForkServer, tmp_path: Path) -> None:
    """`os._exit` calls no function at exit; a child that was forked ends by it at once."""
    text = SCRIPTS["a loop"].text
    sudden = "import os\nif not (child := os.fork()): os._exit(4)\nprint(os.waitpid(child, 0)[1] >> 8, flush=True)\n"
    done = ran(forks, tmp_path / "sudden", text + sudden + "os._exit(3)\n", watch=True)
    plain = ran(forks, tmp_path / "plain", text, watch=True)
    assert done.code == 3, done.errors
    assert done.printed == plain.printed + "4\n"
    assert done.rows == plain.rows
    assert [line.split("; ")[0] for line in done.said] == [line.split("; ")[0] for line in plain.said]


def test_a_machine_that_fails_is_not_called_watched(forks: ForkServer, without: Plain, tmp_path: Path) -> None:
    """The current folder is gone when the monitor attaches: the program trains, and one line says that it is not
    watched."""
    gone = "import os, tempfile\ngone = tempfile.mkdtemp()\nos.chdir(gone)\nos.rmdir(gone)\n"
    text = SCRIPTS["a loop"].text
    plain = without(text)
    watched = ran(forks, tmp_path / "watched", gone + text, watch=True, environment={"MONITOR_OUTPUT_DIR": "out"})
    assert (watched.code, watched.printed) == (0, plain.printed), watched.errors
    assert "not watched: the machine failed while a monitor attached (set_monitor: FileNotFoundError)" in watched.errors
    assert " watching " not in watched.errors


UNWRITABLE = {
    "full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "none": "sys.stderr = None",
    "an object that raises": "class E:\n    def write(self, text): 1 / 0\n    def flush(self): pass\nsys.stderr = E()",
}


@pytest.mark.parametrize("how", UNWRITABLE)
@pytest.mark.parametrize("config", [CONFIG, {"no key": 1}], ids=["watched", "refused"])
def test_a_standard_error_that_cannot_be_written_leaves_training_alone(
    forks: ForkServer, without: Plain, tmp_path: Path, how: str, config: object
) -> None:
    """Neither what is reported when a run begins, nor a failure, nor the end of the process depends on it."""
    text = f"import os, sys\n{UNWRITABLE[how]}\n{SCRIPTS['a loop'].text}sys.stdout.flush()\nos._exit(7)\n"
    plain = without(text)
    watched = ran(forks, tmp_path / "watched", text, watch=True, config=config)
    assert plain.code == watched.code == 7
    assert plain.printed == watched.printed != ""
    assert bool(watched.rows) is (config is CONFIG)


def test_a_flush_that_is_interrupted_does_not_hold_up_a_sudden_exit(forks: ForkServer, tmp_path: Path) -> None:
    """``os._exit`` ends the process with the program's code, whatever a signal handler raises meanwhile."""
    text = (
        SCRIPTS["a loop"].text
        + """
from probe.core.monitor.trainer_mon import watcher_of
def interrupted(seconds):
    raise KeyboardInterrupt
watcher_of([net]).flush = interrupted
import os
os._exit(7)
"""
    )
    assert ran(forks, tmp_path / "interrupted", text, watch=True).code == 7


def test_the_command_runs_a_script_as_python_does(tmp_path: Path) -> None:
    """Arguments, path, name, exit code, traceback and a `sitecustomize` of the user's; then the run is watched, also if
    an engine that is being imported imports torch first."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins\nbuiltins.of_the_user = 3\n")
    (tmp_path / "own" / "deepspeed.py").write_text("import torch\ninitialize = print\n")
    text = """
import sys
print(sys.argv, sys.path[0], __name__, __file__, of_the_user, flush=True)
def f():
    raise KeyError("x")
if sys.argv[1] == "fail":
    f()
if sys.argv[1] == "train":
    import deepspeed
    exec(sys.argv[2])
raise SystemExit(5)
"""
    (tmp_path / "train.py").write_text(text)
    own = {**os.environ, **OWN, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path / 'own'}"}
    own.pop("MONITOR_OUTPUT_DIR", None)

    def done(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
        )

    words = ["train.py", "train", SCRIPTS["a loop"].text]
    plain, run = done("train.py", "end"), done("-m", "probe", "run", *words)
    assert (plain.returncode, run.returncode) == (5, 5), run.stderr
    assert run.stdout.splitlines()[0] == plain.stdout.strip().replace("['train.py', 'end']", str(words))
    assert "probe: info: watching Sequential with AdamW" in run.stderr
    assert "is not watched" not in run.stderr
    assert len([*tmp_path.glob("monitor_output/*/manifest.json")]) == 1
    plain, run = done("train.py", "fail"), done("-m", "probe.run", "train.py", "fail")
    traceback, _, ours = run.stderr.partition("probe: ")
    assert (run.returncode, traceback) == (plain.returncode, plain.stderr)
    assert "KeyError" in traceback
    assert "ended with exit code 1 before it made an optimizer" in ours


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ("", "nothing was watched: the program ended by KeyError before a model was trained"),
        ("net(torch.ones(1, 2)).sum().backward()", "no step was finished: the program ended with exit code 1"),
        ("net(torch.ones(1, 2) * float('nan')).sum().backward()", "critical: NaN, first seen in weight, step 0"),
    ],
    ids=["before the first forward", "before the first update", "with NaN"],
)
def test_a_program_that_fails_before_its_first_update_says_so(tmp_path: Path, calls: str, said: str) -> None:
    """No advice is given to write lines into it, and what is not finite is no less so."""
    made = "net = torch.nn.Linear(2, 1)\no = torch.optim.Adam(net.parameters())"
    (tmp_path / "train.py").write_text(f"import torch\n{made}\n{calls}\nraise KeyError\n")
    own = {**os.environ, **OWN, "MONITOR_OUTPUT_DIR": str(tmp_path / "out")}
    command = probe_command("run", "train.py", modules=user_scripts.TORCH)
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert "TrainerMon" not in done.stderr


def test_a_launcher_and_all_that_it_starts_are_watched(tmp_path: Path) -> None:
    """`probe run -- torchrun ...`: each rank has its rows, the launcher itself writes nothing."""
    text = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 1)))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(3):
    net(torch.randn(8, 4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
    (tmp_path / "train.py").write_text(text)
    torchrun = [quick_python(*user_scripts.TORCH), "-m", "torch.distributed.run", "--standalone"]
    command = probe_command("run", "--", *torchrun, "--nproc-per-node", "2", "train.py", modules=user_scripts.TORCH)
    own = {**os.environ, **OWN, "MONITOR_OUTPUT_DIR": str(tmp_path / "out"), WHOLE_END: "1"}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("out/*/manifest.json")]
    assert sorted(each["rank"] for each in manifests) == [0, 1]
    first = next((tmp_path / "out").glob("*rank0*/grad_reduced_0-99.csv")).read_text()
    assert "\n0,0.weight,0," in first
