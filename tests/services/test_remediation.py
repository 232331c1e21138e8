"""Each kind of action, rehearsed and live, by webhooks to a running service."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import yaml

from probe.core.control.command_requests import (
    Acknowledgement,
    CommandRequest,
    acknowledge,
    folder_of,
    read_request,
)
from probe.services.remediation.store import ActionRow, ActionStore
from tests.required import require
from tests.services.remediation_process import (
    HOST,
    UUID,
    Remediating,
    alert,
    configured,
    lines_of,
    program,
    remediating,
)
from tests.services.server_process import ROOT
from tests.waiting import wait_for

require("starlette")
require("uvicorn")
require("prometheus_client")
require("psutil")
pytestmark = pytest.mark.slow

TOKEN = "a-token-of-24-characters"
SECRET = "password=hunter2-and-more"


class Stage(NamedTuple):
    """A service with live and rehearsed actions, and the things that they act on."""

    service: Remediating
    calls: Path
    """Arguments with which nvidia-smi was called."""
    configuration: Path
    """File that a training would follow."""
    scratch: Path


def action(do: str, *alerts: str, **more: Any) -> dict[str, Any]:
    return {"alerts": list(alerts), "do": do, **more}


def of_guide(folder: Path, *names: str) -> dict[str, Any]:
    """Actions that the guide has for a full disk, with programs in ``folder`` that write their arguments."""
    text = (ROOT / "docs" / "guides" / "remediation.md").read_text("utf-8")
    (block,) = (block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "prune" in block)
    for name in names:
        called = program(folder / name, f'echo "{name} $*" >> {folder}/full_disk')
        block = re.sub(rf"/usr/s?bin/{name}", str(called), block)
    actions: dict[str, Any] = yaml.safe_load(block.replace("DiskSpaceLow", "FullDisk"))["actions"]
    return actions


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that is not in /dev, where those of tests may be: the service cleans none of the system's."""
    with TemporaryDirectory() as made:
        yield Path(made).resolve()


@pytest.fixture(scope="module")
def stage(folder: Path) -> Iterator[Stage]:
    calls, configuration, scratch = folder / "calls", folder / "monitor.json", folder / "scratch"
    configuration.write_text("{}")
    scratch.mkdir()
    smi = program(
        folder / "nvidia-smi",
        f'echo "$*" >> {calls}',
        f'case "$*" in *query-gpu*) cat {folder}/limit;; *" 7 "*) echo {SECRET}; exit 4;; esac',
    )
    (folder / "limit").write_text("350.00\n")
    arguments = program(
        folder / "arguments", f"""'{sys.executable}' -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" """
    )
    talker = program(folder / "talker", "yes 1234567890 | head -c 3000000", f"echo; echo {SECRET}", "exit 3")
    halves = {"commands": [{"command": "rollback_checkpoint"}, {"command": "reduce_learning_rate"}]}
    old_files = {"folders": [{"path": str(scratch), "patterns": ["*.tmp"], "older_than_hours": 24}]}
    fields = {"name": {"label": "job", "type": "name", "names": ["pretrain", "sft"]}}
    actions = {
        "cool": action("lower_power_limit", "GPUTemperatureHigh", args={"watts": 200, "program": str(smi)}),
        "cool_dry": action("lower_power_limit", "DryGPU", args={"watts": 200, "program": str(smi)}, dry_run=True),
        "undo": action("command_training", "TrainingLossSpike", args=halves, seconds=20),
        "undo_dry": action("command_training", "DrySpike", args=halves, dry_run=True),
        "smaller": action(
            "command_training", "GPUMemoryUsageHigh", args={"commands": [{"command": "reduce_batch_size"}]}
        ),
        "late": action("command_training", "Late", args=halves, seconds=0.3),
        "latest": action("command_training", "Latest", args=halves, seconds=20),
        "busy_cpu": action("relieve_host", "BusyCPU", args={"cpu_percent": 0, "memory_percent": 100}, dry_run=True),
        "full_memory": action("relieve_host", "FullMemory", args={"cpu_percent": 100, "memory_percent": 0}),
        "idle": action("relieve_host", "Idle", args={"cpu_percent": 100, "memory_percent": 100}),
        "clean": action("clean_folders", "DiskSpaceLow", args=old_files),
        "clean_dry": action("clean_folders", "DryDisk", args=old_files, dry_run=True),
        "own": action(
            "run_program", "Own", args={"argv": [str(arguments), "--job={name}", "a b;$HOME"], "fields": fields}
        ),
        "talk": action("run_program", "Talk", args={"argv": [str(talker)]}),
        "secret": action("run_program", "Secret", args={"argv": [str(arguments), SECRET]}),
        "secret_dry": action("run_program", "DrySecret", args={"argv": [str(arguments), SECRET]}, dry_run=True),
        "labelled": action("run_program", "Labelled", args={"argv": [str(arguments)]}, labels={"severity": "critical"}),
    } | of_guide(folder, "docker", "logrotate")
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    path = configured(
        folder,
        actions,
        token_file=str(token),
        programs=[*map(str, (smi, arguments, talker)), *(str(folder / name) for name in ("docker", "logrotate"))],
        jobs={"pretrain": {"configuration": str(configuration), "ranks": 2}, "gone": str(folder / "gone.json")},
    )
    prelude = "import probe.services.remediation.training_actions as actions\nactions.MEASURE_SECONDS = 0.1"
    with remediating(path, token=TOKEN, prelude=prelude) as service:
        yield Stage(service, calls, configuration, scratch)
        assert service.end() == 0


def requested(stage: Stage, *names: str) -> list[CommandRequest]:
    """The requests that no rank has answered yet, once they are those of ``names``."""
    folder = folder_of(stage.configuration)

    def unanswered() -> list[CommandRequest]:
        found = [read_request(folder, path.stem) for path in sorted(folder.glob("[0-9]*.json"))]
        return [each for each in found if not list(folder.glob(f"{each.id}.rank*"))]

    wait_for(lambda: [each.command.name for each in unanswered()] == list(names))
    return unanswered()


def answer(stage: Stage, request: CommandRequest, *states: str, text: str = "") -> None:
    """Acknowledgements of ranks, from 0 on."""
    for rank, state in enumerate(states):
        acknowledge(folder_of(stage.configuration), Acknowledgement(request.id, rank, state, 12, text, 1.0))  # type: ignore[arg-type]


def test_a_hot_gpu_gets_a_lower_power_limit(stage: Stage) -> None:
    """By the UUID if the alert has one, else by the index; nvidia-smi is run without a shell, after one query."""
    entry = stage.service.outcome(alert("GPUTemperatureHigh", gpu_uuid=UUID, gpu_id="3"))
    assert (entry["state"], entry["success"], entry["dry_run"]) == ("done", True, False)
    assert entry["message"] == f"GPU {UUID}: power limit lowered from 350 W to 200 W"
    assert (entry["target"], entry["action"]) == (f"gpu {UUID}", "cool")
    assert lines_of(stage.calls)[-2:] == [
        f"-i {UUID} --query-gpu=power.limit --format=csv,noheader,nounits",
        f"-i {UUID} -pl 200",
    ]
    assert stage.service.outcome(alert("GPUTemperatureHigh", gpu_id="3"))["target"] == "gpu 3"
    assert lines_of(stage.calls)[-1] == "-i 3 -pl 200"
    assert 0 < entry["duration_seconds"] < 20


def test_a_power_limit_is_never_raised(stage: Stage) -> None:
    """One that is lower already stays, and so does one that cannot be read."""
    limit = stage.calls.parent / "limit"
    for text, state in (("150.00", "done"), ("[N/A]", "failed"), ("nan", "failed")):
        limit.write_text(text)
        entry = stage.service.outcome(alert("GPUTemperatureHigh", gpu_id="5", was=text))
        assert (entry["state"], lines_of(stage.calls)[-1].count("-pl")) == (state, 0), entry
    limit.write_text("350.00\n")


def test_a_program_that_fails_is_recorded_without_secrets(stage: Stage) -> None:
    """With its exit code and the end of its output."""
    entry = stage.service.outcome(alert("GPUTemperatureHigh", gpu_id="7", token=SECRET))
    assert (entry["state"], entry["success"]) == ("failed", False)
    assert "exit code 4: password=***" in entry["message"]
    assert entry["alert_labels"]["token"] == "password=***"


def test_a_rehearsal_runs_nothing(stage: Stage) -> None:
    """The history has the command that would be run, and no success."""
    before = lines_of(stage.calls)
    entry = stage.service.outcome(alert("DryGPU", gpu_id="2"))
    smi = stage.calls.parent / "nvidia-smi"
    assert entry["message"] == f"dry run: would run {smi} -i 2 -pl 200"
    assert (entry["dry_run"], entry["state"], entry["success"]) == (True, "done", None)
    assert lines_of(stage.calls) == before


def test_commands_to_training_arrive_in_their_order(stage: Stage) -> None:
    """Both, and the history says which ranks did them before which step."""
    status, body = stage.service.send(alert("TrainingLossSpike", job="pretrain"))
    assert status == 202
    first, second = requested(stage, "rollback_checkpoint", "reduce_learning_rate")
    assert (first.sender, second.command.model_dump()) == ("probe remediate: TrainingLossSpike", {"factor": 0.5})
    answer(stage, first, "accepted", "accepted")
    answer(stage, second, "done", "done")
    number = body["actions"][0]["id"]
    assert stage.service.entry(number)["state"] == "started"
    answer(stage, first, "done", "done")
    entry = stage.service.ended(number)
    assert (entry["state"], entry["target"]) == ("done", "job pretrain")
    assert entry["message"] == (
        f"rollback_checkpoint() as {first.id}: done by ranks 0-1 before step 12; "
        f"reduce_learning_rate(factor=0.5) as {second.id}: done by ranks 0-1 before step 12"
    )


def test_a_rank_that_refuses_is_recorded(stage: Stage) -> None:
    """With its reason; the action has failed then."""
    _, body = stage.service.send(alert("GPUMemoryUsageHigh", job="pretrain"))
    (request,) = requested(stage, "reduce_batch_size")
    answer(stage, request, "done", "refused", text=f"not accepted; {SECRET}")
    entry = stage.service.ended(body["actions"][0]["id"])
    assert entry["state"] == "failed"
    assert (
        "done by rank 0 before step 12, refused by rank 1 before step 12: not accepted; password=***"
        in entry["message"]
    )


def unfinished(stage: Stage, name: str, answers: Sequence[str]) -> tuple[CommandRequest, CommandRequest, Any]:
    """Two commands of an alert, of which one rank answers the first with "done" and the second with ``answers``; and
    the entry once the action has ended."""
    _, body = stage.service.send(alert(name, job="pretrain", answers=str(len(answers))))
    first, second = requested(stage, "rollback_checkpoint", "reduce_learning_rate")
    answer(stage, first, "done")
    answer(stage, second, *answers)
    entry = stage.service.ended(body["actions"][0]["id"])
    answer(stage, second, "failed")
    return first, second, entry


def test_ranks_that_do_not_answer_are_waited_for_until_the_deadline(stage: Stage) -> None:
    """Then the action has failed, and the history says which have answered; one rank does not stand for all. On a
    machine that leaves no time for an answer within 0.3 s the deadline is 20 s."""
    for answers, expected in (((), "no rank has answered"), (("done",), "done by rank 0 before")):
        first, second, entry = unfinished(stage, "Late", answers)
        silent = [each.id for each, sent in ((first, True), (second, answers)) if sent]
        if any(f"{each}: no rank has answered" in entry["message"] for each in silent):
            first, second, entry = unfinished(stage, "Latest", answers)
        assert entry["state"] == "failed"
        _, _, answered = entry["message"].removeprefix("not every rank was done within ").partition(" s: ")
        one, _, other = answered.partition("; ")
        assert one == f"rollback_checkpoint() as {first.id}: done by rank 0 before step 12"
        assert other.startswith(f"reduce_learning_rate(factor=0.5) as {second.id}: {expected}")


def test_a_rehearsed_command_is_not_requested(stage: Stage) -> None:
    """No file appears; a job without its configuration file fails in the rehearsal already."""
    before = sorted(folder_of(stage.configuration).glob("*"))
    entry = stage.service.outcome(alert("DrySpike", job="pretrain"))
    assert "would request rollback_checkpoint(), reduce_learning_rate(factor=0.5) in" in entry["message"]
    assert sorted(folder_of(stage.configuration).glob("*")) == before
    entry = stage.service.outcome(alert("DrySpike", job="gone"))
    assert (entry["state"], "it is not there" in entry["message"]) == ("failed", True)


def test_the_load_of_the_machine_chooses_the_command(stage: Stage) -> None:
    """Workers by the CPU, accumulation by the memory, and nothing where neither is loaded."""
    entry = stage.service.outcome(alert("BusyCPU", job="pretrain"))
    assert "would request reduce_dataloader_workers(factor=0.5) in" in entry["message"]
    _, body = stage.service.send(alert("FullMemory", job="pretrain"))
    (request,) = requested(stage, "enable_gradient_accumulation")
    answer(stage, request, "done", "done")
    assert stage.service.ended(body["actions"][0]["id"])["message"].startswith("CPU ")
    assert stage.service.outcome(alert("Idle", job="pretrain"))["message"].endswith("nothing requested")


def test_a_full_disk_is_cleaned(stage: Stage) -> None:
    """Of old files by the pattern; the rehearsal names them and removes none."""
    for name, age in (("old.tmp", 48), ("young.tmp", 1), ("old.log", 48), ("old.pt.tmp", 48)):
        path = stage.scratch / name
        path.write_bytes(b"x" * 8_192)
        os.utime(path, (path.stat().st_atime - age * 3600,) * 2)
    dry = stage.service.outcome(alert("DryDisk"))["message"]
    assert dry == (
        f"dry run: would remove 1 file, 0.0 MiB: {stage.scratch}/old.tmp; spared 1 checkpoint, 1 young"
        + dry.partition("1 young")[2]
    )
    assert (stage.scratch / "old.tmp").exists()
    assert stage.service.outcome(alert("DiskSpaceLow"))["message"].startswith("removed 1 file")
    assert sorted(path.name for path in stage.scratch.iterdir()) == ["old.log", "old.pt.tmp", "young.tmp"]


def test_a_full_disk_has_containers_pruned_and_logs_rotated(stage: Stage) -> None:
    """By the commands of the guide, both for one alert."""
    status, body = stage.service.send(alert("FullDisk"))
    assert status == 202
    assert [stage.service.ended(row["id"])["state"] for row in body["actions"]] == ["done", "done"]
    assert sorted(lines_of(stage.scratch.parent / "full_disk")) == [
        "docker system prune --force",
        "logrotate --force /etc/logrotate.d/training",
    ]


def test_an_alert_that_is_written_by_hand_is_acted_on(stage: Stage) -> None:
    """Status and labels are enough, without a version and a time; sent again it is the same alert."""
    labels = {"alertname": "GPUTemperatureHigh", "gpu_id": "5", "instance": HOST}
    body = json.dumps({"alerts": [{"status": "firing", "labels": labels}]})
    status, answered = stage.service.request("POST", "/webhook", body.encode())
    assert status == 202, answered
    assert stage.service.ended(json.loads(answered)["actions"][0]["id"])["state"] == "done"
    assert stage.service.request("POST", "/webhook", body.encode())[0] == 200
    assert lines_of(stage.calls).count("-i 5 -pl 200") == 1


def test_an_own_command_gets_each_argument_as_it_is(stage: Stage) -> None:
    """No shell splits or expands anything."""
    entry = stage.service.outcome(alert("Own", job="sft"))
    assert entry["state"] == "done"
    assert json.loads(entry["message"].partition("exit code 0: ")[2]) == ["--job=sft", "a b;$HOME"]


def test_the_output_of_a_program_is_bounded(stage: Stage) -> None:
    """Its end is kept, without secrets, and the program does not block."""
    entry = stage.service.outcome(alert("Talk"))
    assert entry["state"] == "failed"
    assert len(entry["message"]) < 2_000
    assert entry["message"].endswith("password=***")


def test_a_secret_of_the_configuration_is_an_argument_alone(stage: Stage) -> None:
    """Neither the history nor the log has it, while the program runs, at its end, or in a rehearsal."""
    for name in ("Secret", "DrySecret"):
        entry = stage.service.outcome(alert(name))
        assert entry["state"] == "done"
        assert "password=***" in entry["message"]
    assert "hunter2" not in json.dumps(stage.service.get("/history")) + stage.service.errors.read_text()


def test_an_alert_without_an_action_is_recorded(stage: Stage) -> None:
    """Also one that lacks a label which the action demands."""
    for each in (alert("Nothing"), alert("Labelled", severity="warning")):
        entry = stage.service.outcome(each)
        assert (entry["state"], entry["action"], entry["alert_name"]) == ("ignored", None, each["labels"]["alertname"])
    assert stage.service.outcome(alert("Labelled"))["state"] == "done"


def test_the_same_alert_acts_once(stage: Stage) -> None:
    """Sent again, in one request or by another Alertmanager a moment apart; one that fires anew acts anew."""
    again = alert("GPUTemperatureHigh", gpu_id="9")
    status, body = stage.service.send(again, again)
    assert (status, len(body["actions"]), body["known"]) == (202, 1, 1)
    stage.service.ended(body["actions"][0]["id"])
    assert stage.service.send(again) == (200, {"actions": [], "known": 1})
    assert stage.service.send({**again, "startsAt": "2026-11-20T04:01:00Z"}) == (200, {"actions": [], "known": 1})
    assert lines_of(stage.calls).count("-i 9 -pl 200") == 1
    assert stage.service.outcome(alert("GPUTemperatureHigh", start=1, gpu_id="9"))["state"] == "done"
    assert lines_of(stage.calls).count("-i 9 -pl 200") == 2


def test_an_alert_that_fires_anew_and_goes_on_is_not_known_for_ever(tmp_path: Path) -> None:
    """Within the limit after an action a new beginning is taken for the same alert, later not; the same beginning is
    known however old the action is."""
    store = ActionStore(tmp_path / "history.sqlite")
    now, begin = time.time(), 1_000.0
    with store.admission() as admission:
        for fingerprint, age in (("old", 301.0), ("new", 1.0)):
            row = ActionRow(0, now - age, "Alert", {}, fingerprint, begin, "act", "target", False, "done", "")
            admission.insert(row)
            assert admission.known(fingerprint, "act", begin, 300.0)
            assert not admission.known(fingerprint, "act", begin + 301.0, 300.0)
        assert admission.known("new", "act", begin + 60.0, 300.0)
        assert not admission.known("old", "act", begin + 60.0, 300.0)
        assert not admission.known("new", "other", begin, 300.0)
    store.close()


def test_a_resolved_alert_does_nothing(stage: Stage) -> None:
    """It is counted; nothing is undone and nothing enters the history."""
    before = stage.service.get("/history"), lines_of(stage.calls)
    count = stage.service.metric('probe_remediation_alerts_total{result="resolved"}')
    assert stage.service.send(alert("GPUTemperatureHigh", status="resolved", gpu_id="9"))[0] == 200
    assert (stage.service.get("/history"), lines_of(stage.calls)) == before
    assert stage.service.metric('probe_remediation_alerts_total{result="resolved"}') == count + 1


def test_alerts_about_other_machines_do_nothing_here(stage: Stage) -> None:
    """GPU 0 of another node is not this one's."""
    for instance in ("node2:9100", "", "localhost:9100", f"{HOST}.evil:9100", f"x{HOST}"):
        entry = stage.service.outcome(alert("GPUTemperatureHigh", gpu_id="11", instance=instance))
        assert (entry["state"], entry["message"][:15]) == ("refused", "label instance:")
    assert not any(line.startswith("-i 11") for line in lines_of(stage.calls))
    assert stage.service.outcome(alert("GPUTemperatureHigh", gpu_id="11", instance=f"[{HOST}]:1"))["state"] == "done"


def test_health_and_metrics(stage: Stage) -> None:
    """Health needs no token; metrics count what was done and name no label of an alert."""
    assert stage.service.request("GET", "/health", headers={"Authorization": ""}) == (200, b'{"status":"ok"}')
    stage.service.outcome(alert("GPUTemperatureHigh", gpu_id="12"))
    assert stage.service.metric('probe_remediation_actions_total{action="cool",dry_run="false",state="done"}') > 0
    assert stage.service.metric('probe_remediation_action_live{action="cool_dry"}') == 0
    assert stage.service.metric("probe_remediation_last_webhook_timestamp_seconds") > 1e9
    text = stage.service.request("GET", "/metrics")[1].decode()
    assert "gpu_id" not in text
    assert UUID not in text


def test_everything_is_in_the_database_and_in_the_log(stage: Stage) -> None:
    """One line for each change of state; neither has the token."""
    entry = stage.service.outcome(alert("GPUTemperatureHigh", gpu_id="13"))
    connection = sqlite3.connect(f"file:{stage.calls.parent}/history.sqlite?mode=ro", uri=True)
    state, message = connection.execute("SELECT state, message FROM actions WHERE id = ?", (entry["id"],)).fetchone()
    assert (state, message) == ("done", entry["message"])
    (count,) = connection.execute("SELECT count(*) FROM actions").fetchone()
    assert len(stage.service.get("/history")) == min(count, 100)
    connection.close()
    text = stage.service.errors.read_text()
    lines = [line for line in text.splitlines() if f" id={entry['id']} " in line]
    assert [line.partition("state=")[2].split()[0] for line in lines] == ['"planned"', '"started"', '"done"']
    assert TOKEN not in text
    assert "hunter2" not in text
