"""``probe attach``: trainings that run already, watched from their next step on and unharmed.

Before Python 3.14 nothing but the process itself can run the script: a handler of SIGUSR1 does, at whatever point the
main thread has reached, as ``sys.remote_exec`` has it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGUSR1
from typing import Any

import pytest

from probe.launch.attach.exchange import exchange
from probe.launch.attach.request import AttachRequest, ProcessPlace
from tests import user_scripts
from tests.cli.json_schema import answer_of
from tests.pytorch.run_scripts import CONFIG, OWN, ROOT
from tests.quick_python import probe_command
from tests.required import require
from tests.user_scripts import Running, running

require("torch")

SECONDS = 60.0
BEGINNING = """
import os, signal, sys, time, torch
asked = False
def handle(*_):
    global asked
    asked = True
    exec(compile(open("injected.py").read(), "injected.py", "exec"), {"__name__": "injected"})
    if "RANK" in os.environ:
        print("asked", flush=True)
signal.signal(signal.SIGUSR1, handle)
def here(place, *only):
    if place == os.environ.get("PLACE") and not asked and step == 3:
        print("here", flush=True)
        while not asked:
            time.sleep(0.001)
def lines(model, optimizer):
    if step == int(os.environ.get("BY_HAND", "-1")):
        from probe.pytorch import TrainerMon
        TrainerMon(os.environ["CONFIG"]).set_monitor(model, 1, optimizer, start_iteration=step)
def methods():
    own = vars(optimizer).get("step") if "optimizer" in globals() else None
    return torch.nn.Module.__call__, torch.optim.AdamW.step, own
step = 0
torch.manual_seed(1)
"""
END = """
from torch.optim import optimizer as base
print(float(sum(p.detach().double().sum() for p in net.parameters())))
print("methods" if methods() == before else "other methods", len(base._global_optimizer_post_hooks))
"""
"""Sum of the weights, and whether anything of ours is left. A monitor that is attached has a hook of steps."""
LOOP = (
    BEGINNING
    + """
class Part(torch.nn.Linear):
    def forward(self, x):
        here("forward")
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda _: here("backward"))
        return y
net = torch.nn.Sequential(torch.nn.Linear(4, 3), Part(3, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.AdamW(net.parameters())
optimizer.register_step_pre_hook(lambda *_: here("step"))
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=9)
before = methods()
for step in range(9):
    lines(net, optimizer)
    for _ in range(2):
        net(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    here("between")
"""
    + END
)
PAIR = (
    BEGINNING
    + """
net, critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
first, second = (torch.optim.KIND(each.parameters(), 0.01) for each in (net, critic))
other = torch.nn.Linear(2, 2)
idle = torch.optim.AdamW(other.parameters())
before = methods()
for step in range(18):
    lines({"net": net, "critic": critic}, [first, second])
    critic(net(torch.randn(8, 2)).detach()).mean().backward()
    second.step(); second.zero_grad()
    here("between")
    (-critic(net(torch.randn(8, 2))).mean()).backward()
    first.step(); first.zero_grad()
"""
    + END
)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of exchanges are made here, where a test sees what is left of them."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


@contextmanager
def started(folder: Path, text: str, **environment: str) -> Iterator[Running]:
    """A program in a folder of its own."""
    config = folder / "monitor.json"
    folder.mkdir()
    config.write_text(json.dumps(CONFIG))
    own = {"MONITOR_OUTPUT_DIR": str(folder / "out"), "CONFIG": str(config), **environment}
    with running(text, folder, modules=user_scripts.TORCH, **own) as process:
        yield process


def attach(*asked: tuple[Running, Path], seconds: float = SECONDS, **values: Any) -> dict[int, Mapping[str, Any]]:
    """Answers of programs that run in folders, by process."""
    request = AttachRequest(tuple(process.pid for process, _ in asked), **values)
    with exchange(request) as made:
        for process, folder in asked:
            ask(process, folder, made.places[process.pid])
        return dict(made.answers(seconds))


def ask(process: Running, folder: Path, place: ProcessPlace) -> None:
    """Let a program run the script."""
    (folder / "injected.py").symlink_to(place.script)
    process.send_signal(SIGUSR1)


def by_hand(folder: Path, text: str, step: int) -> tuple[str, dict[str, str]]:
    """Output and rows of a program that writes the three lines at a step; a negative one: never."""
    with started(folder, text, BY_HAND=str(step)) as process:
        return process.end(), rows(folder)


def rows(folder: Path) -> dict[str, str]:
    """Files of all runs, by name."""
    return {path.name: path.read_text() for path in sorted(folder.glob("out/*/*.csv"))}


@pytest.mark.parametrize(("place", "begun"), [("forward", 4), ("backward", 4), ("step", 4), ("between", 5)])
def test_rows_are_those_of_the_three_lines_at_that_step(tmp_path: Path, place: str, begun: int) -> None:
    """Wherever the program is when it is asked: from the next whole step on; its own numbers are those without."""
    folder = tmp_path / "attached"
    with started(folder, LOOP, PLACE=place) as process:
        process.wait_for("here")
        (answer,) = attach((process, folder), config=str(folder / "monitor.json")).values()
        fields = {"schema_version": 1, "command": "attach", "processes": [{"pid": process.pid, **answer}]}
        answer_of("attach", json.dumps(fields))
        printed = process.end()
    plain, _ = by_hand(tmp_path / "plain", LOOP, -1)
    _, expected = by_hand(tmp_path / "hand", LOOP, begun)
    assert (process.returncode, printed.split()[0]) == (0, plain.split()[0]), process.errors
    assert (plain.split()[1:], printed.split()[1:]) == (["methods", "0"], ["methods", "1"])
    assert (answer["state"], answer["step"], answer["counted"]) == ("attached", begun, True), answer
    assert (answer["models"], answer["optimizers"]) == ({"": "Sequential"}, ["AdamW"])
    assert rows(folder) == expected
    assert len(expected) > 20
    assert [*folder.glob("out/*")] == [Path(answer["directory"])]
    assert f"probe: info: watching Sequential with AdamW; from step {begun} on, by the optimizer's counter" in (
        process.errors
    )
    assert [*(tmp_path / "temporary").iterdir()] == []


@pytest.mark.parametrize(("kind", "begun"), [("AdamW", 13), ("SGD", 0)])
def test_steps_of_two_optimizers_begin_together(tmp_path: Path, kind: str, begun: int) -> None:
    """By their counters, if they have some. One that makes no step in ten of the others is left out."""
    text, folder = PAIR.replace("KIND", kind), tmp_path / "attached"
    with started(folder, text, PLACE="between") as process:
        process.wait_for("here")
        (answer,) = attach((process, folder), config=str(folder / "monitor.json")).values()
        printed = process.end()
    plain, _ = by_hand(tmp_path / "plain", text, -1)
    assert (process.returncode, printed.split()[0]) == (0, plain.split()[0]), process.errors
    assert (answer["state"], answer["step"], answer["counted"]) == ("attached", begun, kind == "AdamW"), answer
    assert answer["models"] == {"net": "Linear", "critic": "Linear"}
    if kind == "AdamW":
        assert rows(folder) == by_hand(tmp_path / "hand", text, begun)[1]
    else:
        assert "grad_reduced_0-0.csv" in rows(folder)


WAITING = BEGINNING + "net = torch.nn.Linear(2, 1)\nstep = 3\n# first\nbefore = methods()\nhere('here')\n# then\n" + END
MADE = "optimizer = torch.optim.AdamW(net.parameters())"
STEPPING = "for _ in range(3): net(torch.ones(1, 2)).sum().backward(); optimizer.step()"


def waiting(before: str, after: str) -> str:
    """Program that waits to be asked."""
    return WAITING.replace("# first", before).replace("# then", after)


OWN_MONITOR = f"""{MADE}
from probe.pytorch import TrainerMon
monitor = TrainerMon({{'wg_distribution': True}})
monitor.set_monitor(net, 1, optimizer)"""
WRONG = {"xy_distribution": True, "targets": {"no such module": {}}}


@pytest.mark.parametrize(
    ("before", "after", "values", "reason"),
    [
        ("", "", {}, "it has no optimizer yet: attach again once training has begun"),
        (
            "w = torch.nn.Parameter(torch.ones(2)); optimizer = torch.optim.AdamW([w])",
            "optimizer.step()",
            {},
            "no model holds the parameters of its optimizers (AdamW)",
        ),
        (
            OWN_MONITOR,
            f"{STEPPING}\nmonitor.stop()",
            {},
            "the model is watched already, by the program's own monitor; files in ",
        ),
        (MADE, STEPPING, {"version": "0.0.0"}, "attach by the command of its own environment"),
        (MADE, STEPPING, {"config": "wrong.json"}, "no such module"),
        (
            f"net = torch.compile(net, backend='eager')\n{MADE}\n{STEPPING}",
            STEPPING,
            {"config": "monitor.json"},
            "is compiled by torch.compile, and hooks do not run inside",
        ),
        (f"{MADE}\n{STEPPING}", STEPPING, {"at_step": 2}, "expected a later step than 2: step 4 is about to begin"),
        (
            "optimizer = torch.optim.SGD(net.parameters())",
            STEPPING,
            {"at_step": 2},
            "its optimizers count no steps, so that step 2 is unknown",
        ),
    ],
    ids=["no optimizer", "no model", "watched", "version", "target", "compiled", "step", "no counter"],
)
def test_refusals_name_the_reason_and_leave_the_training(
    tmp_path: Path, before: str, after: str, values: Mapping[str, Any], reason: str
) -> None:
    """What is refused inside the process is answered at the terminal; nothing of ours is left in the program."""
    folder = tmp_path / "refused"
    with started(folder, waiting(before, after), PLACE="here") as process:
        (folder / "wrong.json").write_text(json.dumps(WRONG))
        process.wait_for("here")
        (answer,) = attach((process, folder), **values).values()
        printed = process.end()
    assert (process.returncode, answer["state"]) == (0, "refused"), process.errors
    assert reason in answer["reason"]
    assert printed.splitlines()[-1] == "methods 0"
    assert "Traceback" not in process.errors
    assert len([*folder.glob("out/*")]) == ("already" in reason)


def test_a_request_that_is_not_answered_in_time_is_withdrawn(tmp_path: Path) -> None:
    """The reason is named, and training that goes on later is not watched."""
    folder = tmp_path / "late"
    after = f"while not os.path.exists('go'): time.sleep(0.001)\n{STEPPING}"
    with started(folder, waiting(MADE, after), PLACE="here") as process:
        process.wait_for("here")
        (answer,) = attach((process, folder), seconds=1.0).values()
        assert (answer["state"], answer["reason"]) == ("withdrawn", "no training step has ended and begun since")
        (folder / "go").touch()
        printed = process.end()
    assert (process.returncode, printed.splitlines()[-1]) == (0, "methods 0"), process.errors
    assert (process.errors, [*folder.glob("out/*")]) == ("", [])


def test_a_process_that_ends_meanwhile_is_named(tmp_path: Path) -> None:
    """There is no answer to wait for."""
    folder = tmp_path / "ended"
    with started(folder, waiting(MADE, ""), PLACE="here") as process:
        process.wait_for("here")
        request = AttachRequest((process.pid,))
        with exchange(request) as made:
            ask(process, folder, made.places[process.pid])
            (answer,) = dict(made.answers(SECONDS)).values()
    assert answer == {"state": "ended", "reason": "the process has ended"}


RANKS = (
    BEGINNING
    + """
import torch.distributed as dist
before = ()
dist.init_process_group("gloo", init_method="file://" + os.environ["MEET"], rank=int(os.environ["RANK"]), world_size=2)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 1)))
optimizer = torch.optim.AdamW(net.parameters())
def ended():
    found = torch.tensor(float(os.path.exists(os.environ["MEET"] + ".end")))
    dist.all_reduce(found)
    return bool(found)
while not ended():
    net(torch.randn(8, 4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step == 3:
        print("here", flush=True)
    if os.path.exists("ready") and not os.path.exists("later"):
        open("later", "w").close()
        print("later", flush=True)
dist.destroy_process_group()
"""
    + END
)


def test_all_ranks_begin_with_the_same_step(tmp_path: Path) -> None:
    """Although one is asked after the other, while both train."""
    folders, meet = [tmp_path / "0", tmp_path / "1"], tmp_path / "meet"
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(started(folder, RANKS, MEET=str(meet), RANK=str(rank)))
            for rank, folder in enumerate(folders)
        ]
        for each in ranks:
            each.wait_for("here")
        with exchange(AttachRequest(tuple(each.pid for each in ranks))) as made:
            places = [made.places[each.pid] for each in ranks]
            ask(ranks[0], folders[0], places[0])
            ranks[0].wait_for("asked")
            (folders[0] / "ready").touch()
            ranks[0].wait_for("later")  # it has made another step meanwhile
            ask(ranks[1], folders[1], places[1])
            answers = dict(made.answers(SECONDS))
        meet.with_suffix(".end").touch()
        for each in ranks:
            each.end()
    assert [each.returncode for each in ranks] == [0, 0], [each.errors for each in ranks]
    assert {answer["state"] for answer in answers.values()} == {"attached"}
    (begun,) = {answer["step"] for answer in answers.values()}
    assert begun > 3
    for rank, folder in enumerate(folders):
        (run,) = folder.glob("out/*")
        assert (json.loads((run / "manifest.json").read_text())["rank"], f"-rank{rank}-" in run.name) == (rank, True)


def _python314() -> str:
    """The interpreter, if it is installed with torch."""
    found = shutil.which("python3.14")
    if found is None:
        pytest.skip("there is no python3.14")
    if subprocess.run(
        [found, "-c", "import torch, numpy, pydantic, typer"], check=False, capture_output=True
    ).returncode:
        pytest.skip("python3.14 has no torch, or lacks what probe needs")
    return found


class Stepwise:
    """Training by Python 3.14, a step for each line that it reads."""

    def __init__(self, python: str, folder: Path, config: Path, by_hand: int = -1) -> None:
        folder.mkdir()
        text = LOOP.replace("range(9)", "range(1000000)")
        text = text.replace("    lines(net,", "    if sys.stdin.readline() == 'end\\n': break\n    lines(net,")
        text = text.replace("    optimizer.zero_grad()\n", "    optimizer.zero_grad()\n    print(step, flush=True)\n")
        (folder / "script.py").write_text(text)
        own = {**os.environ, **OWN, "MONITOR_OUTPUT_DIR": str(folder / "out"), "CONFIG": str(config)}
        self.process = subprocess.Popen(
            [python, "script.py"],
            cwd=folder,
            env={**own, "BY_HAND": str(by_hand)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self) -> int:
        """Train one step; its number."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self, steps: int = 0) -> str:
        """The sum of the weights after that many steps."""
        printed, _ = self.process.communicate("\n" * steps + "end\n")
        assert self.process.returncode == 0
        return printed.splitlines()[-2]


def test_the_command_attaches_to_python_3_14(tmp_path: Path) -> None:
    """By `sys.remote_exec`, from whatever Python: rows and weights as by the three lines at that step."""
    python, config = _python314(), tmp_path / "monitor.json"
    config.write_text(json.dumps(CONFIG))
    training = Stepwise(python, tmp_path / "attached", config)
    training.step()
    command = probe_command("attach", training.process.pid, "-c", config, modules=user_scripts.TORCH)
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    attaching = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while attaching.poll() is None:
        training.step()
    steps = 1 + max(training.step() for _ in range(5))
    printed = training.end()
    answer, errors = attaching.communicate()
    assert attaching.returncode == 0, errors
    assert answer.startswith(f"{training.process.pid}: watching Sequential with AdamW; from step ")
    begun = int(answer.partition("from step ")[2].split()[0])
    assert printed == Stepwise(python, tmp_path / "plain", config).end(steps)
    Stepwise(python, tmp_path / "hand", config, begun).end(steps)
    assert rows(tmp_path / "attached") == rows(tmp_path / "hand")
    assert len(rows(tmp_path / "attached")) > 20
