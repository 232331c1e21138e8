"""Limits, deadlines, interruptions and restarts of the remediation service, and its work with Alertmanager."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from probe.services.remediation.child_process import identity_of, kill_left_over
from tests.required import require, require_program
from tests.services.remediation_process import Remediating, alert, configured, lines_of, program, remediating
from tests.waiting import free_port, wait_for

require("starlette")
require("uvicorn")
require("prometheus_client")
pytestmark = pytest.mark.slow

GPU = {"gpu": {"label": "gpu_id", "type": "integer", "least": 0, "most": 15}}


def gated(folder: Path) -> Path:
    """A program that writes its argument and process, and ends when the file `go_ARGUMENT` is there."""
    return program(
        folder / "gated",
        f'echo "begin $1 $$" >> {folder}/calls',
        "sleep 1000 &",  # a process of its own, which has to end with it
        f'echo "child $1 $!" >> {folder}/calls',
        f'while [ ! -e {folder}/go_"$1" ]; do sleep 0.02; done',
        'kill $!; echo "end $1" >> ' + f"{folder}/calls",
    )


def runs(path: Path, *alerts: str, **more: Any) -> dict[str, Any]:
    args = {"argv": [str(path), "{gpu}"], "target": "gpu {gpu}", "fields": GPU}
    return {"alerts": list(alerts), "do": "run_program", "args": args, **more}


def begun(folder: Path, gpu: int) -> list[int]:
    """Processes that the program has begun for a GPU: itself and its child."""
    found = [line.split() for line in lines_of(folder / "calls")]
    return [int(words[2]) for words in found if words[0] in ("begin", "child") and words[1] == str(gpu)]


def runs_still(process: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_action_at_a_time_for_a_target(tmp_path: Path) -> None:
    """Others go on meanwhile; what waits in a full queue is sent again by Alertmanager, and acts once."""
    path = gated(tmp_path)
    actions = {"first": runs(path, "First"), "second": runs(path, "Second")}
    limits = {"per_hour": 1_000, "workers": 3, "waiting": 3}
    with remediating(configured(tmp_path, actions, programs=[str(path)], limits=limits)) as service:
        (one,) = service.send(alert("First", gpu_id="1"))[1]["actions"]
        wait_for(lambda: service.entry(one["id"])["state"] == "started")
        body = service.send(alert("Second", gpu_id="1"), alert("First", gpu_id="2"))[1]
        two, other = (each["id"] for each in body["actions"])
        wait_for(lambda: begun(tmp_path, 2))
        assert service.entry(two)["state"] == "planned"
        assert service.entry(other)["state"] == "started"
        many = [alert("First", gpu_id="1", number=str(number)) for number in range(3)]
        status, body = service.send(*many)
        assert (status, len(body["actions"])) == (503, 2)
        (tmp_path / "go_1").touch()
        (tmp_path / "go_2").touch()
        assert service.ended(two)["state"] == "done"
        wait_for(lambda: service.metric("probe_remediation_waiting ") == 0)
        status, body = service.send(*many)
        assert (status, len(body["actions"]), body["known"]) == (202, 1, 2)
        assert service.ended(body["actions"][0]["id"])["state"] == "done"
    words = [line.split()[0] for line in lines_of(tmp_path / "calls") if line.split()[1] == "1" and "child" not in line]
    assert words == ["begin", "end"] * 5


def test_limits_hold_over_a_restart(tmp_path: Path) -> None:
    """By target, by action and for all together; rehearsals count apart, and refusals do not count."""
    path = program(tmp_path / "nothing")
    actions = {
        "one": runs(path, "One", per_target_per_hour=2, per_hour=3),
        "two": runs(path, "Two"),
        "dry": runs(path, "Dry", per_target_per_hour=1, dry_run=True),
    }
    configuration = configured(tmp_path, actions, programs=[str(path)], limits={"per_hour": 5})

    def states(service: Remediating, name: str, *gpus: int) -> list[str]:
        numbers = range(len(gpus))
        return [
            service.outcome(alert(name, gpu_id=str(gpus[n]), number=f"{n} {service.address}"))["state"] for n in numbers
        ]

    with remediating(configuration) as service:
        assert states(service, "One", 1, 1, 1, 2, 3) == ["done", "done", "refused", "done", "refused"]
        assert states(service, "Dry", 1, 1, 2) == ["done", "refused", "done"]
        service.end()
    with remediating(configuration) as service:
        assert states(service, "One", 4) == ["refused"]
        assert states(service, "Two", 1, 2, 3) == ["done", "done", "refused"]
        assert "limits.per_hour is 5" in service.get("/history")[-1]["message"]


def test_a_program_is_killed_at_its_deadline(tmp_path: Path) -> None:
    """With the processes that it has begun."""
    path = gated(tmp_path)
    configuration = configured(tmp_path, {"slow": runs(path, "Slow", seconds=0.3)}, programs=[str(path)])
    with remediating(configuration) as service:
        entry = service.outcome(alert("Slow", gpu_id="1"))
        assert (entry["state"], "not finished within 0.3 s" in entry["message"]) == ("failed", True)
        wait_for(lambda: not any(map(runs_still, begun(tmp_path, 1))))


def test_a_killed_service_interrupts_and_repeats_nothing(tmp_path: Path) -> None:
    """After the restart the history says so, the program is ended, and only what had not begun may begin."""
    path = gated(tmp_path)
    configuration = configured(tmp_path, {"slow": runs(path, "Slow")}, programs=[str(path)])
    began, waiting = alert("Slow", gpu_id="1"), alert("Slow", gpu_id="1", number="2")
    with remediating(configuration) as service:
        (first,) = service.send(began)[1]["actions"]
        (second,) = service.send(waiting)[1]["actions"]
        wait_for(lambda: len(begun(tmp_path, 1)) == 2)
        wait_for(lambda: "process" in service.entry(first["id"])["message"])
        service.end(signal.SIGKILL)
        assert all(map(runs_still, begun(tmp_path, 1)))
    with remediating(configuration) as service:
        one, two = (service.entry(each["id"]) for each in (first, second))
        assert (one["state"], one["success"]) == ("interrupted", False)
        assert "it is not repeated: process" in one["message"]
        assert one["message"].endswith("its program ran on, and was killed now")
        wait_for(lambda: not any(map(runs_still, begun(tmp_path, 1))))
        assert (two["state"], "before it began" in two["message"]) == ("interrupted", True)
        assert 'state="interrupted"' in service.errors.read_text()
        assert service.send(began) == (200, {"actions": [], "known": 1})
        (tmp_path / "go_1").touch()
        assert service.outcome(waiting)["state"] == "done"
    assert [line for line in lines_of(tmp_path / "calls") if "begin" in line][1:] == [
        f"begin 1 {begun(tmp_path, 1)[2]}"
    ]


def test_a_later_process_with_the_number_of_a_program_is_not_killed() -> None:
    """Nor one of another boot: numbers are used again."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as other:
        try:
            number, boot, began = identity_of(other.pid).split()
            for wrong in (f"{number} {boot} {int(began) - 1}", f"{number} another-boot {began}", number, "", "x y z"):
                assert not kill_left_over(wrong)
            assert other.poll() is None
            assert kill_left_over(f"{number} {boot} {began}")
            assert other.wait(60) == -signal.SIGKILL
        finally:
            other.kill()


def test_an_end_in_order_waits_for_a_program(tmp_path: Path) -> None:
    """For a moment; what waits is recorded as interrupted. A second service cannot use the same database."""
    path = gated(tmp_path)
    configuration = configured(tmp_path, {"slow": runs(path, "Slow")}, programs=[str(path)])
    with remediating(configuration) as service:
        (first,) = service.send(alert("Slow", gpu_id="1"))[1]["actions"]
        (second,) = service.send(alert("Slow", gpu_id="1", number="2"))[1]["actions"]
        wait_for(lambda: begun(tmp_path, 1))
        with pytest.raises(AssertionError, match="another service uses it"), remediating(configuration):
            pass
        service.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "before it began" in service.errors.read_text())
        (tmp_path / "go_1").touch()
        assert service.process.wait(30) == 0
    with remediating(configuration) as service:
        assert service.entry(first["id"])["state"] == "done"
        assert service.entry(second["id"])["state"] == "interrupted"


@contextmanager
def alertmanager(folder: Path, service: Remediating) -> Iterator[str]:
    """The address of an Alertmanager that sends everything to the service."""
    folder.mkdir()
    (folder / "token").write_text(str(service.token))
    receiver = f"""
route: {{receiver: remediation, group_by: [alertname], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}}
receivers:
  - name: remediation
    webhook_configs:
      - url: {service.address}/webhook
        send_resolved: true
        http_config: {{authorization: {{credentials_file: {folder}/token}}}}
"""
    (folder / "alertmanager.yml").write_text(receiver)
    address = f"127.0.0.1:{free_port()}"
    command = [
        require_program("prometheus-alertmanager", "alertmanager"),
        f"--config.file={folder}/alertmanager.yml",
        f"--storage.path={folder}/data",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://{address}"
        finally:
            process.kill()


def ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/-/ready", timeout=20) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def post(address: str, body: object) -> None:
    request = urllib.request.Request(
        f"{address}/api/v2/alerts", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def test_two_alertmanagers_act_once(tmp_path: Path) -> None:
    """Both send the alert, one action follows, and the notice that it is over undoes nothing."""
    require_program("prometheus-alertmanager", "alertmanager")
    path = program(tmp_path / "called", f'echo "$1" >> {tmp_path}/calls')
    token = tmp_path / "token"
    token.write_text("a-token-of-24-characters")
    token.chmod(0o600)
    configuration = configured(tmp_path, {"act": runs(path, "Hot")}, programs=[str(path)], token_file=str(token))
    starts = datetime.now(timezone.utc) - timedelta(minutes=1)
    labels = {"alertname": "Hot", "instance": "node1:9100", "gpu_id": "3"}
    fires = {"labels": labels, "startsAt": starts.isoformat(), "annotations": {"summary": "Hot."}}
    with ExitStack() as stack:
        service = stack.enter_context(remediating(configuration, token=token.read_text()))
        addresses = [stack.enter_context(alertmanager(tmp_path / f"alertmanager{n}", service)) for n in range(2)]
        for address in addresses:
            wait_for(lambda address=address: ready(address))  # type: ignore[misc]
            post(address, [fires])
        wait_for(lambda: service.metric('probe_remediation_alerts_total{result="known"}') == 1)
        (entry,) = service.get("/history")
        assert service.ended(entry["id"])["state"] == "done"
        assert entry["alert_labels"] == labels
        for address in addresses:
            post(address, [{**fires, "endsAt": (starts + timedelta(seconds=30)).isoformat()}])
        wait_for(lambda: service.metric('probe_remediation_alerts_total{result="resolved"}') == 2)
        assert [each["id"] for each in service.get("/history")] == [entry["id"]]
    assert lines_of(tmp_path / "calls") == ["3"]


def test_the_history_is_bounded(tmp_path: Path) -> None:
    """In the database, those without an action first; what was done stays known."""
    path = program(tmp_path / "nothing")
    configuration = configured(
        tmp_path, {"act": runs(path, "Act")}, programs=[str(path)], limits={"history": 100, "per_hour": 1_000}
    )
    with remediating(configuration) as service:
        acted = alert("Act", gpu_id="1")
        number = service.outcome(acted)["id"]
        service.send(*(alert("Nothing", number=str(each)) for each in range(300)))
        entries = service.get("/history")
        assert (len(entries), entries[0]["id"]) == (100, number)
        assert service.send(acted) == (200, {"actions": [], "known": 1})
        assert (tmp_path / "history.sqlite").stat().st_size < 1 << 20


def test_what_the_limits_count_is_not_removed_from_the_history(tmp_path: Path) -> None:
    """However many refused alerts come within the hour, an action beyond the limit stays refused."""
    path = program(tmp_path / "nothing", f'echo "$1" >> {tmp_path}/calls')
    configuration = configured(
        tmp_path, {"act": runs(path, "Act", per_hour=1)}, programs=[str(path)], limits={"history": 100}
    )
    with remediating(configuration) as service:
        assert service.outcome(alert("Act", gpu_id="1"))["state"] == "done"
        service.send(*(alert("Act", gpu_id="2", instance="elsewhere", number=str(number)) for number in range(150)))
        assert len(service.get("/history")) == 100
        assert service.outcome(alert("Act", gpu_id="3"))["state"] == "refused"
    assert lines_of(tmp_path / "calls") == ["1"]


def test_the_history_has_every_time_that_an_alert_can_have(tmp_path: Path) -> None:
    """At either end of the calendar the offset leads out of it; also after a restart."""
    path = program(tmp_path / "nothing")
    configuration = configured(tmp_path, {"act": runs(path, "Act")}, programs=[str(path)])
    texts = ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.9Z"]
    with remediating(configuration) as service:
        assert service.send(*({**alert("Nothing", n=text), "startsAt": text} for text in texts))[0] in (200, 202)
        assert len(service.get("/history")) == 4
    with remediating(configuration) as service:
        assert {entry["starts_at"][:10] for entry in service.get("/history")} == {"0001-01-01", "9999-12-31"}


def test_a_gpu_is_one_target_by_index_and_by_uuid(tmp_path: Path) -> None:
    """The limits of a target count both names together, in both kinds of actions; other GPUs are other targets."""
    gpus = tmp_path / "gpus"
    excluded, *used = (f"GPU-{n:08x}-0000-0000-0000-000000000000" for n in range(3))
    places = {"0000:19:00.0": excluded, "0000:3b:00.0": used[0], "0001:00:00.0": used[1]}
    for place, uuid in places.items():
        answer = "Yes" if uuid == excluded else "No"
        (gpus / place).mkdir(parents=True)
        text = (
            f"Model: \t\t NVIDIA\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\nDevice Minor: \t 0\nGPU Excluded:\t {answer}\n"
        )
        (gpus / place / "information").write_text(text)
    smi = program(tmp_path / "nvidia-smi", "echo 350.00")
    own = {"argv": [str(smi), "{gpu}"], "fields": {"gpu": {"label": "gpu", "type": "gpu"}}}
    actions = {
        "cool": {"alerts": ["Hot"], "do": "lower_power_limit", "args": {"watts": 200, "program": str(smi)}},
        "own": {"alerts": ["Own"], "do": "run_program", "args": own},
    }
    path = configured(tmp_path, {name: {**action, "per_target_per_hour": 1} for name, action in actions.items()},
                      programs=[str(smi)])  # fmt: skip
    prelude = (
        "import pathlib, probe.services.remediation.program_actions as actions\n"
        f"actions.FOLDER = pathlib.Path({str(gpus)!r})"
    )
    with remediating(path, prelude=prelude) as service:
        for alertname, by_index, by_uuid in (("Hot", "gpu_id", "gpu_uuid"), ("Own", "gpu", "gpu")):
            assert service.outcome(alert(alertname, **{by_index: "0"}))["state"] == "done"
            again = service.outcome(alert(alertname, **{by_uuid: used[0]}))
            assert (again["state"], used[0] in again["message"]) == ("refused", True)
            assert service.outcome(alert(alertname, **{by_uuid: used[1]}))["state"] == "done"
            assert service.outcome(alert(alertname, **{by_index: "1"}))["state"] == "refused"
            assert service.outcome(alert(alertname, **{by_index: "7"}))["state"] == "done"
