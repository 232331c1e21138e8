"""``probe run``: programs of torch as they are, watched as by the three lines, and unharmed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from probe.launch.environment import watched
from tests import user_scripts
from tests.forks import ForkServer
from tests.required import require

require("torch")

ROOT = Path(__file__).parents[2]
OWN = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
CONFIG = {
    "wg_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm", "nans"],
}
ATTACH = """
import os
from probe.pytorch import TrainerMon
monitor = TrainerMon(os.environ["CONFIG"])
monitor.set_monitor({model}, 1, {optimizer}, start_iteration={begun})
"""
"""The three lines."""
SUM = "print(sum(float(p.detach().double().sum()) for p in {}.parameters()))\n"


class Script(NamedTuple):
    """Program, in which ``# here`` stands where a user would write the three lines."""

    text: str
    model: str = "net"
    optimizer: str = "optimizer"
    begun: int = 0


LOOP = """
for step in range(5):
    for _ in range({micro}):
        net(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SCRIPTS = {
    "a loop": Script(
        "import torch\ntorch.manual_seed(1)\nnet = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))\n"
        "optimizer = torch.optim.AdamW(net.parameters())\n# here\n" + LOOP.format(micro=1) + SUM.format("net")
    ),
    "accumulation": Script(
        "import torch\ntorch.manual_seed(2)\nnet = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n# here\n" + LOOP.format(micro=3) + SUM.format("net")
    ),
    "tied weights": Script(
        """
import torch
torch.manual_seed(3)
class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.fc = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.fc(self.embedding(x))
class Language(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer, self.head = Inner(), torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.transformer.embedding.weight
    def forward(self, x):
        return self.head(self.transformer(x))
net = Language()
optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad])
# here
for step in range(4):
    net(torch.randint(7, (2, 5))).logsumexp(-1).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
        + SUM.format("net")
    ),
    "part of the parameters": Script(
        """
import torch
torch.manual_seed(4)
backbone, head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)
class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = backbone.requires_grad_(False), head
    def forward(self, x):
        return self.head(self.backbone(x))
net = Both()
optimizer = torch.optim.SGD(head.parameters(), 0.1)
# here
"""
        + LOOP.format(micro=1)
        + SUM.format("net")
    ),
    "two models": Script(
        """
import torch
torch.manual_seed(5)
class Adversaries:
    def __init__(self):
        self.generator, self.critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        self.first = torch.optim.Adam(self.generator.parameters())
        self.second = torch.optim.Adam(self.critic.parameters())
    def fit(self):
        for step in range(4):
            self.critic(self.generator(torch.randn(8, 2)).detach()).mean().backward()
            self.second.step(); self.second.zero_grad()
            (-self.critic(self.generator(torch.randn(8, 2))).mean()).backward()
            self.first.step(); self.first.zero_grad()
both = Adversaries()
# here
both.fit()
"""
        + SUM.format("both.generator"),
        "{'generator': both.generator, 'critic': both.critic}",
        "[both.first, both.second]",
    ),
    "evaluation before, and a resumed run": Script(
        """
import torch
torch.manual_seed(6)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters())
one = {"step": torch.tensor(7.0), "exp_avg": torch.zeros(1), "exp_avg_sq": torch.zeros(1)}
other = {"step": torch.tensor(7.0), "exp_avg": torch.zeros(1, 4), "exp_avg_sq": torch.zeros(1, 4)}
optimizer.load_state_dict({"state": {0: other, 1: one}, "param_groups": optimizer.state_dict()["param_groups"]})
# here
net.eval()
with torch.no_grad():
    net(torch.ones(1, 4))
net.train()
"""
        + LOOP.format(micro=1)
        + SUM.format("net"),
        begun=7,
    ),
    "a compiled model": Script(
        "import torch\ntorch.manual_seed(7)\n"
        "plain = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))\n"
        "optimizer = torch.optim.SGD(plain.parameters(), 0.1)\nnet = plain\n# here\n"
        "net = torch.compile(plain, backend='eager')\n" + LOOP.format(micro=1) + SUM.format("plain")
    ),
}


@pytest.fixture(scope="module")
def forks() -> ForkServer:
    """A process that has imported torch and the monitor."""
    return user_scripts.forks(*user_scripts.TORCH)


class Ended(NamedTuple):
    """What a program has left."""

    code: int
    printed: str
    errors: str
    folder: Path

    @property
    def rows(self) -> dict[str, str]:
        """Files of all runs, by name."""
        return {path.name: path.read_text() for path in sorted(self.folder.glob("out/*/*.csv"))}

    @property
    def said(self) -> list[str]:
        """Lines of the monitor."""
        return [line for line in self.errors.splitlines() if line.startswith("probe: ")]


def ran(
    forks: ForkServer,
    folder: Path,
    text: str,
    watch: bool,
    environment: Mapping[str, str] = {},
    config: object = CONFIG,
) -> Ended:
    """Run a program in a folder of its own."""
    folder.mkdir()
    script, settings = folder / "train.py", folder / "monitor.json"
    script.write_text(text)
    settings.write_text(json.dumps(config))
    own = {**os.environ, **OWN, "MONITOR_OUTPUT_DIR": str(folder / "out"), "CONFIG": str(settings), **environment}
    own = watched(own, settings) if watch else own
    arguments = ["-m", "tests.watched_script"] if watch else []
    return Ended(*user_scripts.ran(forks, [*arguments, str(script)], folder, own), folder)


@pytest.mark.parametrize("name", SCRIPTS)
def test_rows_are_those_of_the_three_lines(forks: ForkServer, tmp_path: Path, name: str) -> None:
    """Names, steps and numbers, to the byte; the program's own output is that without the monitor."""
    script = SCRIPTS[name]
    lines = ATTACH.format(model=script.model, optimizer=script.optimizer, begun=script.begun)
    by_hand = ran(forks, tmp_path / "hand", script.text.replace("# here\n", lines), watch=False)
    alone = ran(forks, tmp_path / "alone", script.text, watch=True)
    plain = ran(forks, tmp_path / "plain", script.text, watch=False)
    assert (alone.code, by_hand.code, plain.code) == (0, 0, 0), alone.errors + by_hand.errors
    assert alone.printed == plain.printed == by_hand.printed
    assert alone.rows == by_hand.rows
    assert len(alone.rows) > 8
    begun, ended = (line for line in alone.said if line.startswith("probe: info: "))
    assert begun.startswith("probe: info: watching ")
    assert ("from step 7 on" in begun) is (script.begun == 7)
    assert " watched, 0 findings; files in " in ended


def test_another_optimizer_begins_another_run(forks: ForkServer, tmp_path: Path) -> None:
    """A second stage over the same model: two runs, each of its own steps."""
    text = SCRIPTS["a loop"].text
    again = "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n" + LOOP.format(micro=1).replace(
        "range(5)", "range(3)"
    )
    done = ran(forks, tmp_path / "two", text + again, watch=True)
    assert done.code == 0, done.errors
    assert [line.split()[2] for line in done.said] == ["watching", "watching", "3"], done.said
    steps = [len([*run.glob("grad_reduced_*.csv")]) for run in sorted((done.folder / "out").iterdir())]
    assert sorted(steps) == [3, 5]


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
    assert bool(done.said) is late


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


def test_what_cannot_be_watched_trains_all_the_same(forks: ForkServer, tmp_path: Path) -> None:
    """A target that the model lacks: one warning with the reason, and the program's own output."""
    config = {"xy_distribution": True, "targets": {"no such module": {}}}
    done = ran(forks, tmp_path / "wrong", SCRIPTS["a loop"].text, watch=True, config=config)
    plain = ran(forks, tmp_path / "plain", SCRIPTS["a loop"].text, watch=False)
    assert (done.code, done.printed) == (0, plain.printed)
    assert len(done.said) == 1
    assert done.said[0].startswith("probe: warning: this program is not watched: ")
    assert "no such module" in done.said[0]


def test_the_switch_leaves_everything_alone(forks: ForkServer, tmp_path: Path) -> None:
    """PROBE_RUN=0: no line and no file."""
    done = ran(forks, tmp_path / "off", SCRIPTS["a loop"].text, watch=True, environment={"PROBE_RUN": "0"})
    assert (done.code, done.said, (done.folder / "out").exists()) == (0, [], False)


def test_the_command_runs_a_script_as_python_does(tmp_path: Path) -> None:
    """Arguments, path, name, exit code, traceback and a `sitecustomize` of the user's; then the run is watched."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins\nbuiltins.of_the_user = 3\n")
    text = "import sys\nprint(sys.argv, sys.path[0], __name__, __file__, of_the_user)\n" + SCRIPTS["a loop"].text
    (tmp_path / "train.py").write_text(text + "raise SystemExit(int(sys.argv[2]))\n")
    (tmp_path / "broken.py").write_text("def f():\n    raise KeyError('x')\nf()\n")
    own = {**os.environ, **OWN, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path / 'own'}"}
    own.pop("MONITOR_OUTPUT_DIR", None)

    def done(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
        )

    plain, run = done("train.py", "--a", "5"), done("-m", "probe", "run", "train.py", "--a", "5")
    assert (plain.returncode, run.returncode) == (5, 5), run.stderr
    assert run.stdout == plain.stdout
    assert "probe: info: watching Sequential with AdamW" in run.stderr
    assert len([*tmp_path.glob("monitor_output/*/manifest.json")]) == 1
    plain, run = done("broken.py"), done("-m", "probe.run", "broken.py")
    assert (run.returncode, run.stderr) == (plain.returncode, plain.stderr)
    assert "KeyError" in run.stderr


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
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    command = [sys.executable, "-m", "probe", "run", "--", *torchrun]
    own = {**os.environ, **OWN, "MONITOR_OUTPUT_DIR": str(tmp_path / "out")}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("out/*/manifest.json")]
    assert sorted(each["rank"] for each in manifests) == [0, 1]
    first = next((tmp_path / "out").glob("*rank0*/grad_reduced_0-0.csv")).read_text()
    assert "\n0,0.weight,0," in first
