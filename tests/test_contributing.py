"""CONTRIBUTING.md is true: one of each thing is added in a copy of the package, by exactly the edits that it names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutations import MUTATIONS, Mutation, broken, files_of, place
from tests.quick_python import quick_python
from tests.required import require

ROOT = Path(__file__).resolve().parent.parent
TABLE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


class Addition(NamedTuple):
    """Addition: the file that is written, and the lines that are inserted in another one, each after a line."""

    row: str
    """Beginning of its row in CONTRIBUTING.md."""
    file: str
    source: str
    touched: str
    lines: tuple[tuple[str, str], ...]


OP = Addition(
    "an op",
    "",
    "",
    "probe/core/moments.py",
    (
        (
            r"OPS: dict\[str, Op\] = \{",
            '    "rms": Op("sumsq", lambda x, shapes: np.sqrt(_mean(x, shapes)), "root mean square"),',
        ),
    ),
)
RULE = Addition(
    "a rule",
    "probe/core/rules/present.py",
    '''
from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from probe.core.fields import Integer, Section
from probe.core.records import Batch, Finding
from probe.core.rules.about import About
from probe.core.rules.reporter import Reporter


class PresentArgs(Section):
    """A step that is reported."""

    step: Integer
    """The step in which every row is reported."""


class AnomalyPresent(About):
    """Reports every row of a step."""

    Args = PresentArgs
    title = "Present row"
    why = "It is there."
    source = "https://example.org"
    sees = "rows"
    kind = "limit"
    finds = "finds rows of one step"

    def __init__(self, args: PresentArgs, rank: int, ops: Sequence[str]) -> None:
        self._step, self._op, self._reporter = args.step, ops[0], Reporter("AnomalyPresent", rank, "")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        if batch.step == self._step:
            values = batch.op(self._op)
            yield from self._reporter.findings(
                batch, self._op, np.arange(len(batch)), values, np.full(len(batch), np.nan)
            )
''',
    "probe/core/rules/__init__.py",
    (
        (r"from probe.core.rules.nan import AnomalyNan", "from probe.core.rules.present import AnomalyPresent"),
        (r"RULES: dict\[.*\] = \{", '    "AnomalyPresent": AnomalyPresent,'),
    ),
)
CHECK = Addition(
    "a check of the training loop",
    "probe/core/checks/second_update.py",
    '''
from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import UnusualCheck


class SecondUpdate(UnusualCheck):
    """Note the second update."""

    name = "second-update"
    title = "Second update"
    why = "The first was enough."
    source = "https://example.org"
    sees = "steps"
    remedy = "Stop after the first."

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        if update.facts.step == 1:
            yield self.finding(update.facts, 1, "there is a second update", {})
''',
    "probe/core/checks/__init__.py",
    (
        (
            r"from probe.core.checks.scaling_fails import ScalingFails",
            "from probe.core.checks.second_update import SecondUpdate",
        ),
        (r"CHECKS: dict\[.*\] = \{", '    "second-update": SecondUpdate,'),
    ),
)
SINK = Addition(
    "a writer",
    "probe/core/output/sinks/lines.py",
    '''
from __future__ import annotations

from probe.core.output.sinks.context import SinkContext
from probe.core.records import Snapshot


class LineSink:
    """One line a signal and step."""

    def __init__(self, context: SinkContext) -> None:
        self._path = context.directory / "lines.txt"

    def open(self) -> None:
        """Nothing is open between two steps."""

    def write(self, snapshot: Snapshot) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            for batch in snapshot.batches:
                file.write(f"{batch.signal} {batch.step} {batch.op('rms').tolist()}\\n")

    def close(self) -> None:
        """Nothing is open."""
''',
    "probe/core/output/sinks/__init__.py",
    ((r"SINKS: dict\[.*\] = \{", '    "lines": BuiltIn("probe.core.output.sinks.lines:LineSink"),'),),
)
SIGNAL = Addition(
    "a signal",
    "probe/core/instrumentation/signals/ones.py",
    '''
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from probe.core.instrumentation.context import Run


@contextmanager
def ones(run: Run) -> Iterator[None]:
    """``ones``: every parameter before the update, under another name."""

    def before(optimizer: Any, owned: list[Any], _: Any) -> None:
        run.recorder.record_all("ones", [each.key for each in owned], [each.thing for each in owned])

    with run.before_update.added(before):
        yield
''',
    "probe/core/instrumentation/signals/sources.py",
    (
        (
            r"from probe.core.instrumentation.signals.features.source import .*",
            "from probe.core.instrumentation.signals.ones import ones",
        ),
        (r"SOURCES: dict\[.*\] = \{", '    "ones": (lambda settings: settings.param_distribution, ones),'),
    ),
)
ENGINE = Addition(
    "a way of training in parallel",
    "probe/pytorch/engines/wrapping.py",
    """
from __future__ import annotations

from probe.pytorch.engines.engine import Engine

ENGINE = Engine(wraps={"__main__.Wrapper": "inside"})
""",
    "probe/pytorch/engines/table.py",
    ((r"ENGINES: dict\[str, Engine\] = \{", '    "wrapping": wrapping.ENGINE,'),),
)
KIND = Addition(
    "a kind of MindSpore optimizer",
    "probe/mindspore/optimizers/plain.py",
    """
from __future__ import annotations

from probe.core.door import replace


def knows(optimizer):
    return hasattr(optimizer, "update")


def owned(optimizer):
    return optimizer.held


def state(optimizer, parameter):
    return {}


def state_names(optimizer):
    return {}


def adam(optimizer):
    return lambda parameter: None


def on_step(optimizer, listener):
    original = optimizer.update

    def update():
        listener.before(optimizer, None)
        original()
        listener.after(optimizer, "applied")

    return replace(optimizer, "update", update)
""",
    "probe/mindspore/optimizers/table.py",
    ((r"OPTIMIZERS: dict\[str, Optimizers\] = \{", '    "plain": plain,'),),
)
CHANNEL = Addition(
    "a channel of alerts",
    "probe/core/alerting/channels/titles.py",
    '''
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from probe.core.alerting.channels.address import Name
from probe.core.fields import Section
from probe.core.records import Alert


class TitlesArgs(Section):
    """Titles."""

    path: Name
    """File that they are written to."""


class Titles:
    """The title of each alert in a file."""

    Args: ClassVar[type[Section]] = TitlesArgs
    sends: ClassVar[str] = "writes titles to the file path"

    def __init__(self, args: TitlesArgs) -> None:
        self._path = Path(args.path)

    def check(self, timeout: float) -> None:
        """The file is made by the first alert."""

    def send(self, alerts: Sequence[Alert], timeout: float) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(f"{alert.title}\\n" for alert in alerts)
''',
    "probe/core/alerting/channels/__init__.py",
    (
        (
            "from probe.core.alerting.channels.http import Http",
            "from probe.core.alerting.channels.titles import Titles",
        ),
        (r"CHANNELS: dict\[.*\] = \{", '    "titles": Titles,'),
    ),
)
TRACKER = Addition(
    "a tracker of experiments",
    "probe/core/trackers/names.py",
    '''
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from probe.core.trackers import Cell, Notice, TrackedRow, TrackedTable, TrackerTarget


class NamesTracker:
    """Names of series in a file."""

    def __init__(self, target: TrackerTarget) -> None:
        self._path, self._names = Path("names.txt"), set[str]()

    def begin(self) -> None:
        """Nothing is begun."""

    def log(self, rows: Sequence[TrackedRow]) -> None:
        self._names.update(name for row in rows for name in row.values)

    def alert(self, notice: Notice) -> None:
        self._names.add(notice.title)

    def table(self, table: TrackedTable) -> None:
        self._names.add(table.name)

    def summary(self, texts: Mapping[str, Cell]) -> None:
        self._names.update(texts)

    def artifact(self, path: Path) -> None:
        """There is no place for files."""

    def end(self) -> None:
        self._path.write_text(" ".join(sorted(self._names)), encoding="utf-8")
''',
    "probe/core/trackers/__init__.py",
    (
        (
            r"TRACKERS: dict\[.*\] = \{",
            '    "names": TrackerPlace("probe.core.trackers.names:NamesTracker", "numpy"),',
        ),
    ),
)
ADDITIONS = (OP, RULE, CHECK, SINK, TRACKER, SIGNAL, CHANNEL, ENGINE, KIND)
IMPORTS = {
    ENGINE.touched: ("from probe.pytorch.engines import .*pipelining", "wrapping"),
    KIND.touched: ("from probe.mindspore.optimizers import .*torch_style", "plain"),
}
"""The lines of imports that get a name, each with the name."""

TRAINING = """
import sys
from pathlib import Path
from tests.matrix.numpy_framework import SGD, TrainerMon
from tests.matrix.numpy_harness import linear, tensor

model = linear([[3.0, 4.0]])
optimizer = SGD([model.members["weight"]], 0.1, 0.0)
monitor = TrainerMon({
    "param_distribution": True,
    "ops": ["rms"],
    "format": ["lines", "names"],
    "alert": {
        "rules": [{"rule_name": "AnomalyPresent", "args": {"step": 1}}],
        "channels": [{"channel": "titles", "args": {"path": "titles.txt"}}],
    },
    "run": {"job": "toy"},
})
monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
for _ in range(3):
    model(tensor([[1.0, 1.0]])).backward()
    optimizer.step()
monitor.stop()
print(Path(monitor.output_directory, "lines.txt").read_text())
print(sorted({(finding.rule, finding.step) for finding in monitor.findings}))
print(Path("titles.txt").read_text())
print(Path("names.txt").read_text())
"""
JUDGING = """
from probe.core.checks.panel import CheckPanel
from probe.core.faults import Faults
from tests.core.checks.updates import Training

panel, training = CheckPanel(Faults()), Training()
found = [finding for _ in range(4) for finding in panel.judge(training.update())]
print([finding.step for finding in found if finding.check == "second-update"])
"""
WRAPPING = """
import torch
from probe.pytorch import TrainerMon

class Wrapper(torch.nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside
    def forward(self, x):
        return self.inside(x)

model = Wrapper(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = TrainerMon({"wg_distribution": True, "format": "csv"})
monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
monitor.stop()
from pathlib import Path
print(next(Path(monitor.output_directory).glob("grad_reduced*.csv")).read_text())
"""
UPDATING = """
from pathlib import Path
import mindspore
from probe.mindspore import TrainerMon

class Halving:
    def __init__(self, held):
        self.held = held
    def update(self):
        for parameter in self.held:
            parameter.set_data(parameter / 2)

model = mindspore.nn.Dense(2, 1, weight_init="ones")
optimizer = Halving(model.trainable_params())
monitor = TrainerMon({"param_distribution": True, "ops": ["max"], "format": "csv"})
monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
model(mindspore.ops.ones((1, 2)))
optimizer.update()
monitor.stop()
for file in sorted(Path(monitor.output_directory).glob("param_*.csv")):
    print(file.name, file.read_text())
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with one addition of each kind."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "probe", root / "probe", ignore=shutil.ignore_patterns("__pycache__"))
    for addition in ADDITIONS:
        if addition.file:
            (root / addition.file).write_text(addition.source, encoding="utf-8")
        path = root / addition.touched
        text = path.read_text(encoding="utf-8")
        for after, line in addition.lines:
            text, count = re.subn(rf"^{after}$", lambda found, line=line: f"{found[0]}\n{line}", text, flags=re.M)
            assert count == 1, (addition.touched, after)
        if addition.touched in IMPORTS:
            line, name = IMPORTS[addition.touched]
            text, count = re.subn(f"({line})", rf"\1, {name}", text)
            assert count == 1
        path.write_text(text, encoding="utf-8")
    return root


def printed(copy: Path, script: str, output: Path) -> str:
    """Output of a script that runs with the copy."""
    path = os.pathsep.join([str(copy), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "MONITOR_OUTPUT_DIR": str(output)}
    done = subprocess.run(
        [quick_python("torch", "numpy"), "-c", script],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda addition: addition.row)
def test_the_table_names_the_edits(addition: Addition) -> None:
    """Its row names the folder of the file that is written, the table that gets a line, and that table's file."""
    (row,) = re.findall(rf"^\| {addition.row}.*$", TABLE, re.MULTILINE)
    assert f"`{addition.touched}`" in row
    assert not addition.file or f"`{Path(addition.file).parent}/<name>.py`" in row
    assert re.search(rf"`{addition.lines[-1][0].split(':')[0]}`", row)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[f"{number}" for number, _ in enumerate(MUTATIONS)])
def test_each_deliberate_break_can_be_made(mutation: Mutation) -> None:
    """Its text is there once, and its test files are there: the list moves with the package."""
    text = place(ROOT, mutation.file).read_text("utf-8")
    assert broken(text, mutation) != text
    assert files_of(ROOT / "tests", mutation)


def test_what_any_framework_uses_is_added_by_these_edits(copy: Path, tmp_path: Path) -> None:
    """A run with all of it: rows of the new signal, in the new op, in the new file; findings of the new rule, and an
    alert about them by the new channel."""
    out = printed(copy, TRAINING + JUDGING, tmp_path)
    assert "ones 0 [3.5355339059327378]" in out
    assert "[('AnomalyPresent', 1)]" in out
    assert "Present row in weight, step 1" in out
    assert "probe/findings" in out
    assert "probe/ones/weight/rms" in out
    assert out.endswith("\n[1]\n")  # the new check judges the updates of a run among the others


@pytest.mark.torch
def test_an_engine_is_added_by_these_edits(copy: Path, tmp_path: Path) -> None:
    """Names are those of what the new engine wraps."""
    require("torch")
    out = printed(copy, WRAPPING, tmp_path)
    assert ",weight," in out
    assert "inside" not in out


@pytest.mark.mindspore
def test_a_kind_of_mindspore_optimizer_is_added_by_these_edits(copy: Path, tmp_path: Path) -> None:
    """Its parameters are recorded before and after its update."""
    require("mindspore")
    out = printed(copy, UPDATING, tmp_path)
    assert [line.split(",")[3] for line in out.splitlines() if ",weight," in line] == ["1", "0.5"]
