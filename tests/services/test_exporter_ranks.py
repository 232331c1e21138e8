"""Ranks that the exporter of a node shows, from the files of processes that live, end, or were killed."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from probe.core.output.metrics.catalogue import LAST_STEP, METRICS, NUMBERS, STEP, Series
from probe.core.output.metrics.mapped_file import HEADER_BYTES, MAGIC, MetricsFile
from probe.core.run_state.progress import Progress, progress_folder
from probe.services.exporter.node_page import RankText
from probe.services.exporter.rank_files import UsualFolders
from probe.services.exporter.ranks import GONE_SECONDS, NodeRanks
from tests.quick_python import quick_python
from tests.required import require, require_program
from tests.services.exporter_process import OPENMETRICS, Exported, exporting, parsed
from tests.services.metrics_rank import header, rank, written
from tests.user_scripts import COMMANDS
from tests.waiting import PATIENCE, wait_for

require("starlette")
require("uvicorn")
require("psutil")
client = require("prometheus_client.core")
plain_text = require("prometheus_client.exposition")
openmetrics_text = require("prometheus_client.openmetrics.exposition")
openmetrics_parser = require("prometheus_client.openmetrics.parser")

pytestmark = pytest.mark.slow
GONE_PID, BEGUN = 2**22 + 7, 5
"""Process that no machine has: ids end at 2^22."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("progress")


@pytest.fixture(scope="module")
def exporter(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    errors = tmp_path_factory.mktemp("exporter") / "errors"
    with exporting(errors, "--progress", str(folder), "--no-gpu") as started:
        yield started
        assert started.process.poll() is None
        assert started.end() == 0


def place(folder: Path, name: str) -> Path:
    """A folder for one launch."""
    (folder / name).mkdir()
    return folder / name


def test_series_of_a_rank_are_served_with_its_job_and_number(exporter: Exported, folder: Path) -> None:
    """As the rank stored them last, NaN and infinities too, with its process and its phase."""
    with rank(place(folder, "a"), "first", 3, "progress") as running:
        values = {"probe_training_loss": 2.5, "probe_training_gradient_norm": math.inf, "probe_training_step": 7.0}
        series = [[name, [], value] for name, value in values.items()]
        running.do("store", *series, ["probe_tensor_norm", ["grad_reduced", "model.0"], math.nan],
                   ["probe_training_phase_seconds_total", ["step"], 12.5])  # fmt: skip
        page = exporter.scrape()
        own = {"job": "first", "rank": "3"}
        assert {name: page.one(name, **own) for name in values} == values
        assert math.isnan(page.one("probe_tensor_norm", **own, signal="grad_reduced", layer="model.0"))
        assert page.one("probe_training_phase_seconds_total", **own, phase="step") == 12.5
        assert page.labels("probe_rank_info", **own) == [
            {**own, "host": os.uname().nodename, "pid": str(running.pid), "ranks": "8", "gpu_uuid": ""}
        ]
        assert page.one("probe_rank_up", **own) == 1
        assert page.labels("probe_training_phase", **own) == [{**own, "phase": "start"}]
        assert page.one("probe_training_step_budget_seconds", **own) == 1800
        assert 0 <= page.one("probe_training_progress_age_seconds", **own) < PATIENCE
        running.do("store", ["probe_training_loss", [], 1.25])
        page = exporter.scrape()
        assert page.one("probe_training_loss", **own) == 1.25
        assert page.of("probe_training_step", **own) == []


def test_the_budget_follows_phase_promise_and_the_settings_of_the_watcher(exporter: Exported, folder: Path) -> None:
    """The floor after the first steps, a promise in place of it, and other settings where a watcher has them."""
    launch = place(folder, "budget")
    with rank(launch, "budget", 0, "progress") as running:
        for step in range(30):
            running.do("step", step)
        page = exporter.scrape()
        assert page.labels("probe_training_phase", job="budget") == [{"job": "budget", "rank": "0", "phase": "step"}]
        assert page.one("probe_training_step_budget_seconds", job="budget") == 60
        running.do("promise", 500)
        assert exporter.scrape().one("probe_training_step_budget_seconds", job="budget") == pytest.approx(500, abs=5)
        running.do("step", 30)
        (launch / "watcher.json").write_text(json.dumps({"floor_seconds": 7.5, "startup_seconds": 900}))
        assert exporter.scrape().one("probe_training_step_budget_seconds", job="budget") == 7.5
        running.do("enter", "evaluation")
        page = exporter.scrape()
        assert page.of("probe_training_phase", job="budget", phase="evaluation") == [1]
        assert page.one("probe_training_step_budget_seconds", job="budget") == 900


def test_a_killed_rank_is_down_and_has_no_numbers(exporter: Exported, folder: Path) -> None:
    """Also after the watcher has removed its progress; its last values are no values of now."""
    launch = place(folder, "killed")
    with rank(launch, "killed", 1, "progress") as running:
        running.do("store", ["probe_training_loss", [], 2.5])
        assert exporter.scrape().one("probe_rank_up", job="killed") == 1
        running.kill()
        for removed in (None, ".progress"):
            if removed:
                next(launch.glob(f"*{removed}")).unlink()
            page = exporter.scrape()
            assert page.one("probe_rank_up", job="killed") == 0
            assert len(page.of("probe_rank_info", job="killed")) == 1
            assert page.of("probe_training_loss", job="killed") == []
            assert page.of("probe_training_phase", job="killed") == []


def test_a_rank_that_has_ended_is_left_out(exporter: Exported, folder: Path) -> None:
    """While its process goes on, and after that."""
    with rank(place(folder, "ended"), "ended", 0, "progress") as running:
        assert exporter.scrape().one("probe_rank_up", job="ended") == 1
        running.do("end")
        page = exporter.scrape()
        assert [each for each in page if ("job", "ended") in each[1]] == []
    assert [each for each in exporter.scrape() if ("job", "ended") in each[1]] == []


def test_of_two_processes_with_one_number_the_newer_is_shown(exporter: Exported, folder: Path) -> None:
    """A page never has a series twice; the other process is counted, and shown when the newer one has ended."""
    own = {"job": "twice", "rank": "0"}
    with rank(place(folder, "old"), "twice") as old, rank(place(folder, "new"), "twice") as new:
        old.do("store", ["probe_training_loss", [], 1])
        new.do("store", ["probe_training_loss", [], 2])
        page = exporter.scrape()
        newer = {"pid": str(new.pid)} if _ticks(new.pid) > _ticks(old.pid) else {}
        assert page.one("probe_training_loss", **own) == 2 or not newer
        assert page.one("probe_exporter_hidden_ranks") == 1
        new.do("end")
        page = exporter.scrape()
        assert page.one("probe_training_loss", **own) == 1
        assert page.one("probe_exporter_hidden_ranks") == 0


def _ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_files_that_are_none_of_a_rank_are_counted(exporter: Exported, folder: Path) -> None:
    """Garbage, a FIFO, links, halves, hostile headers: the page has everything else."""
    launch = place(folder, "garbage")
    good = written(launch, "garbage", 0, {("probe_training_loss",): 2.5})
    whole = good.path.read_bytes()
    facts = header("garbage", 1)._asdict()
    contents = {
        "empty": b"",
        "noise": os.urandom(len(whole)),
        "half": whole[: len(whole) // 2],
        "head": MAGIC,
        "zeros": bytes(len(whole)),
        "deep": (MAGIC + b"[" * (HEADER_BYTES - len(MAGIC))).ljust(len(whole), b"\0"),
        "list": (MAGIC + b"[1, 2]").ljust(len(whole), b"\0"),
        "text": (MAGIC + json.dumps({**facts, "pid": "1"}).encode()).ljust(len(whole), b"\0"),
        "negative": (MAGIC + json.dumps({**facts, "rank": -5}).encode()).ljust(len(whole), b"\0"),
        "large": (MAGIC + json.dumps({**facts, "pid": 1 << 80}).encode()).ljust(len(whole), b"\0"),
        "more": (MAGIC + json.dumps({**facts, "extra": 1}).encode()).ljust(len(whole), b"\0"),
    }
    before = exporter.scrape().one("probe_exporter_unreadable_files")
    for name, content in contents.items():
        (launch / f"{name}.metrics").write_bytes(content)
        (launch / f"{name}.progress").write_bytes(content)
    os.mkfifo(launch / "fifo.metrics")
    (launch / "link.metrics").symlink_to(good.path)
    (launch / "loop.progress").symlink_to(launch)
    (launch / "folder.metrics").mkdir()
    (launch / "socket.txt").write_text("none of these")
    page = exporter.scrape()
    assert page.one("probe_exporter_unreadable_files") == before + 2 * len(contents) + 4
    assert page.one("probe_training_loss", job="garbage", rank="0") == 2.5
    shutil.rmtree(launch)
    page = exporter.scrape()
    assert page.one("probe_exporter_unreadable_files") == before
    good.close()


def test_a_file_that_is_cut_short_or_replaced_while_it_is_served_is_no_error(exporter: Exported, folder: Path) -> None:
    """A mapping of it would end the exporter."""
    launch = place(folder, "cut")
    file = written(launch, "cut", 0, {("probe_training_loss",): 2.5})
    marks = Progress(launch, 0, 8, "cut")
    assert exporter.scrape().one("probe_training_loss", job="cut") == 2.5
    os.truncate(file.path, 100)
    os.truncate(marks.path, 100)
    page = exporter.scrape()
    assert page.of("probe_training_loss", job="cut") == []
    assert page.one("probe_exporter_unreadable_files") == 2
    again = written(launch, "cut", 0, {("probe_training_loss",): 3.5})
    page = exporter.scrape()
    assert page.one("probe_training_loss", job="cut") == 3.5
    assert page.one("probe_exporter_unreadable_files") == 1
    again.close()
    shutil.rmtree(launch)


def test_hostile_names_stay_values_of_labels(exporter: Exported, folder: Path) -> None:
    """Quotes, line breaks, control characters and lone surrogates cannot make a line of their own."""
    job = 'a"} 1\nprobe_rank_up{job="b"} 0\n\\\x1b[2J\ud800'
    layers = ["x\\", 'y"', "z\n", "\u202e", "l" * 5000]
    launch = place(folder, "hostile")
    file = written(
        launch, job, 0, {("probe_tensor_norm", "grad", layer): n for n, layer in enumerate(layers)}
        | {("probe_unheard_of",): 1.0, ("probe_training_loss", "too many"): 1.0}
    )  # fmt: skip
    page = exporter.scrape()
    found = page.labels("probe_tensor_norm", signal="grad")
    assert len({each["job"] for each in found}) == 1
    name = found[0]["job"]
    assert name.startswith('a"} 1\\nprobe_rank_up')
    assert all(character.isprintable() for character in name)
    assert {each["layer"] for each in found} == {"x\\", 'y"', "z\\n", "\\u202e", "l" * 200}
    assert page.of("probe_rank_up", job="b") == []
    assert page.one("probe_exporter_unknown_series") == 2
    file.close()
    launch.rmdir()


def test_both_formats_have_the_same_series_and_pass_the_checks_of_prometheus(exporter: Exported, folder: Path) -> None:
    """Plain text by promtool, OpenMetrics by the client's strict parser."""
    values = {(name, *("x" for _ in metric.labels)): 1.5 for name, metric in METRICS.items()}
    file = written(place(folder, "formats"), "formats", 0, values)
    status, kind, text = exporter.request(headers={"Accept": OPENMETRICS})
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    families = list(openmetrics_parser.text_string_to_metric_families(text))
    for accept in ("application/openmetrics-text; version=2.0.0", "application/openmetrics-text; version=x;;=,"):
        assert exporter.request(headers={"Accept": accept})[0] == 200
    strict = {(sample.name, *sorted(sample.labels.items())) for family in families for sample in family.samples}
    plain = exporter.scrape()
    assert {name for name, *_ in strict} == {name for name, _ in plain}
    assert {each[0] for each in strict if ("job", "formats") in each} >= set(METRICS)
    _, _, page = exporter.request()
    file.close()
    checked = subprocess.run(
        [require_program("promtool"), "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_part_of_a_row_is_left_out_until_it_is_whole(tmp_path: Path) -> None:
    """A process that ends while it writes leaves a row that nobody takes for numbers."""
    file = written(tmp_path, "torn", 0, {("probe_training_loss",): 2.5})
    ranks = NodeRanks(lambda: [tmp_path])
    assert ranks.look()[0].values.tolist() == [2.5]
    with file.path.open("r+b") as raw:
        raw.seek(-8 * 200, os.SEEK_END)
        raw.write(b"\1")
    assert ranks.look()[0].values.tolist() == []
    file.store([Series("probe_training_loss")], np.array([4.5]))
    assert ranks.look()[0].values.tolist() == [4.5]


@pytest.mark.parametrize(("ago", "ups"), [(60, [False]), (GONE_SECONDS + 60, [])])
def test_a_rank_that_was_gone_before_the_exporter_began(tmp_path: Path, ago: float, ups: list[bool]) -> None:
    """It is shown as down for 15 minutes after its last step, and not for 15 minutes after each start."""
    values = {(LAST_STEP.name,): time.time() - ago}
    file = written(tmp_path, "gone", 0, values, pid=GONE_PID, started=BEGUN)
    os.utime(file.path, (time.time() - 10 * GONE_SECONDS,) * 2)
    assert [each.up for each in NodeRanks(lambda: [tmp_path]).look()] == ups


def test_of_a_rank_that_lives_and_one_that_is_gone_the_first_is_shown(tmp_path: Path) -> None:
    """Whichever of them began later: a launch that was tried and has failed does not stand for the one that runs."""
    process = {"pid": os.getpid(), "started": _ticks(os.getpid())}
    for name, facts in (("a", process), ("b", {"pid": GONE_PID, "started": process["started"] + 1})):
        written(place(tmp_path, name), "twice", 0, {(LAST_STEP.name,): time.time()}, **facts)
    ranks = NodeRanks(lambda: [tmp_path])
    assert [(each.up, each.pid) for each in ranks.look()] == [(True, os.getpid())]
    assert ranks.hidden == 1


def test_more_files_than_a_node_has_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs the exporter memory and a descriptor, and anybody may put files there."""
    monkeypatch.setattr("probe.services.exporter.rank_files.MOST_FILES", 3)
    for number in range(5):
        written(tmp_path, "many", number, {(STEP.name,): 1.0})
    assert len(NodeRanks(lambda: [tmp_path]).look()) == 3


def test_the_id_of_a_process_that_came_later_is_no_sign_of_life(tmp_path: Path) -> None:
    """The start of the process counts."""
    written(tmp_path, "reused", 0, {(STEP.name,): 1.0}, pid=os.getpid(), started=BEGUN)
    assert [each.up for each in NodeRanks(lambda: [tmp_path]).look()] == [False]


def test_a_process_that_nobody_has_waited_for_is_down(tmp_path: Path) -> None:
    """A launcher that hangs leaves ranks that were killed in the list of processes."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        file = written(tmp_path, "zombie", 0, {(STEP.name,): 1.0}, pid=process.pid, started=_ticks(process.pid))
        ranks = NodeRanks(lambda: [tmp_path])
        assert [each.up for each in ranks.look()] == [True]
        process.kill()
        wait_for(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        assert [each.up for each in ranks.look()] == [False]
    file.close()


def test_a_rank_of_a_container_that_cannot_be_seen_is_neither_up_nor_down(tmp_path: Path) -> None:
    """Its numbers are served; of its process nothing is known."""
    written(tmp_path, "pod", 0, {(STEP.name,): 1.0}, pid=GONE_PID, started=BEGUN, host="another")
    (found,) = NodeRanks(lambda: [tmp_path]).look()
    assert (found.up, found.host, found.values.tolist()) == (None, "another", [1.0])


def test_a_rank_of_a_container_is_shown_for_15_minutes_after_its_last_sign(tmp_path: Path) -> None:
    """It has perhaps been killed, and then nobody removes its files."""
    for number, ago in enumerate((GONE_SECONDS - 60, GONE_SECONDS + 60)):
        values, facts = {(LAST_STEP.name,): time.time() - ago}, {"pid": GONE_PID + number, "host": "another"}
        file = written(tmp_path, "pod", number, values, started=BEGUN, **facts)
        os.utime(file.path, (time.time() - ago,) * 2)
    assert [(each.rank, each.up) for each in NodeRanks(lambda: [tmp_path]).look()] == [(0, None)]


def test_a_rank_in_a_container_is_found_by_the_id_that_it_has_there(tmp_path: Path) -> None:
    """It is up as long as its process lives, though that has another id here."""
    before = (require_program("unshare"), "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no process make a namespace")
    ranks = NodeRanks(lambda: [tmp_path])
    with rank(tmp_path, "inside", before=before) as running:
        (found,) = ranks.look()
        assert found.pid == running.pid < 10
        assert found.up
        inside = Path(f"/proc/{found.pid_here}/status").read_text()
        assert inside.partition("NSpid:")[2].partition("\n")[0].split()[-1] == str(running.pid)
        os.kill(found.pid_here, 9)
        wait_for(lambda: [each.up for each in ranks.look()] == [False])


def test_folders_of_other_users_are_counted(tmp_path: Path) -> None:
    """A user without their rights sees that something is missing."""
    (tmp_path / "locked").mkdir(mode=0)
    program = (
        "import os, sys; from pathlib import Path; from probe.services.exporter.ranks import NodeRanks;"
        "os.geteuid() or os.setuid(65534); ranks = NodeRanks(lambda: [Path(sys.argv[1])]);"
        "print(ranks.look(), ranks.files.unreadable_folders)"
    )
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    done = subprocess.run(
        [quick_python(*COMMANDS), "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[] 1\n"


def test_the_usual_folders_are_those_of_every_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory and among temporary files, unless the environment names one; there a rank is found."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("probe-0", "probe-1000", "probe-x", "other"):
        (tmp_path / name).mkdir()
    found = UsualFolders({})()
    assert {each for each in found if each.parent == tmp_path} == {tmp_path / "probe-0", tmp_path / "probe-1000"}
    assert UsualFolders({"PROBE_PROGRESS_DIR": "/mine"})() == [Path("/mine")]
    environ = {"PROBE_PROGRESS_DIR": str(tmp_path / "mine")}
    file = written(progress_folder("usual", tmp_path, 1, environ), "usual", 0, {(STEP.name,): 1.0})
    assert [each.job for each in NodeRanks(UsualFolders(environ)).look()] == ["usual"]
    file.close()


def test_text_of_ranks_is_as_prometheus_client_makes_it(tmp_path: Path) -> None:
    """The kept beginnings of lines and the client's own families parse to the same series, in both formats."""
    generator = np.random.default_rng(0)
    values = {
        ("probe_tensor_norm", "grad", f'layer.{n}\\"\t'): value
        for n, value in enumerate([*generator.lognormal(0, 50, 50), math.nan, math.inf, -math.inf, 0.0, -1e-300])
    } | {("probe_findings_total", "AnomalyNan"): 3.0, (NUMBERS["loss"].name,): 0.1}
    files = [written(tmp_path, 'job "x"', number, values) for number in range(2)]
    views = [each._replace(up=None) for each in NodeRanks(lambda: [tmp_path]).look()]
    norms = client.GaugeMetricFamily("probe_tensor_norm", "x", labels=("job", "rank", "signal", "layer"))
    found = client.CounterMetricFamily("probe_findings", "x", labels=("job", "rank", "rule"))
    losses = client.GaugeMetricFamily("probe_training_loss", "x", labels=("job", "rank"))
    info = client.GaugeMetricFamily("probe_rank_info", "x", labels=("job", "rank", "host", "pid", "ranks", "gpu_uuid"))
    for number in "01":
        for (name, *labels), value in values.items():
            own = ['job "x"', number, *(label.replace("\t", "\\t") for label in labels)]
            {"probe_tensor_norm": norms, "probe_findings_total": found}.get(name, losses).add_metric(own, value)
        info.add_metric(['job "x"', number, os.uname().nodename, str(os.getpid()), "8", ""], 1)

    class Families:
        def collect(self) -> list:
            return [norms, found, losses, info]

    text = RankText()
    for _ in range(2):
        made = parsed(text.text(views, {}, openmetrics=False))
        theirs = parsed(plain_text.generate_latest(Families()).decode())
        assert {place: repr(float(value)) for place, value in made.items()} == {
            place: repr(value) for place, value in theirs.items()
        }
    strict = [text.text(views, {}, openmetrics=True) + "# EOF\n", openmetrics_text.generate_latest(Families()).decode()]
    ours, theirs = (
        {
            (family.name, family.type, sample.name, *sorted(sample.labels.items()), repr(float(sample.value)))
            for family in openmetrics_parser.text_string_to_metric_families(page)
            for sample in family.samples
        }
        for page in strict
    )
    assert ours == theirs
    for file in files:
        MetricsFile.close(file)
