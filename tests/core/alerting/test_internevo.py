"""InternEvo's monitor: its names and arguments, its lines with the import changed, and the messages they send."""

from __future__ import annotations

import base64
import hmac
import inspect
import json
import logging
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.core import alert, monitor_manager
from probe.core.alert import (
    InternEvoConfigError,
    initialize_light_monitor,
    read_monitor_config,
    send_feishu_msg_with_webhook,
)
from probe.core.internevo.recipients import LossRatio
from probe.core.launch import RESTARTS, VARIABLES, WORLDS
from probe.core.monitor_manager import MonitorManager, MonitorTracker, initialize_monitor_manager
from tests.core.alerting.receivers import Receiver, black_hole, raw_server, serving, text_of
from tests.quick_python import quick_python
from tests.required import require
from tests.services.server_process import serving as serving_heartbeats
from tests.user_scripts import COMMANDS
from tests.waiting import free_port, wait_for

require("httpx")
ROOT = Path(__file__).parents[3]
SECRET_PATH = "/open-apis/bot/v2/hook/0a1b2c3d-4e5f"
REFUSED: tuple[int, dict[str, str], bytes] = (200, {}, b'{"code": 9499, "msg": "Bad Request"}')


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for unsent alerts, no launcher, and no monitor that outlives its test."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "output"))
    for name in ("MONITOR_SERVER", "RANK", "SLURM_PROCID", "RANK_ID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield
    MonitorManager().stop_monitor()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A webhook of Feishu."""
    with serving(Receiver()) as found:
        yield found
        MonitorManager().stop_monitor()


def messages(receiver: Receiver) -> str:
    """All that a receiver has got."""
    return "\n".join(text_of(request) for request in receiver.requests)


def number(receiver: Receiver, words: str) -> int:
    """How often ``words`` stand in the heading of an alert."""
    headings = re.findall(r"^(?!.*\d alerts: ).*(\[\w+\] .*)", messages(receiver), re.MULTILINE)
    return sum(words in heading for heading in headings)


def script(text: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A process with a program of a user."""
    command = [quick_python(*COMMANDS), "-c", text, *arguments]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, text=True, stdout=-1, stderr=-1
    )


def shape(function: Any) -> dict[str, Any]:
    """Arguments with their defaults."""
    return {name: each.default for name, each in inspect.signature(function).parameters.items() if name != "self"}


def test_names_arguments_and_defaults_are_those_of_internevo() -> None:
    """A call that InternEvo accepts is accepted."""
    needed = inspect.Parameter.empty
    assert shape(initialize_monitor_manager) == {"job_name": None, "alert_address": None}
    kinds = [each.kind.name for each in inspect.signature(MonitorManager).parameters.values()]
    assert kinds == ["VAR_POSITIONAL", "VAR_KEYWORD"]
    assert shape(MonitorManager.monitor_loss_spike) == {"alert_address": None, "step_count": 0, "cur_step_loss": 0.0}
    assert shape(MonitorManager.monitor_exception) == {"alert_address": None, "excp_info": None}
    assert shape(MonitorManager.handle_sigterm) == {"alert_address": None}
    assert shape(MonitorManager.start_monitor) == {
        "job_name": needed, "alert_address": needed, "monitor_interval_seconds": 300, "loss_spike_limit": 1.5
    }  # fmt: skip
    assert shape(MonitorManager.stop_monitor) == {}
    assert shape(MonitorTracker) == {"alert_address": needed, "check_interval": 300, "loss_spike_limit": 1.5}
    assert shape(MonitorTracker.run) == shape(MonitorTracker.stop) == {}
    assert shape(send_feishu_msg_with_webhook) == {"webhook": needed, "title": needed, "message": needed}
    assert shape(initialize_light_monitor) == {"monitor_address": None}
    assert shape(alert.send_heartbeat) == {"msg_type": needed, "msg": needed}
    assert MonitorManager() is MonitorManager()
    with pytest.raises(TypeError, match="expected loss_spike_limit at most, got job"):
        MonitorManager(job="a")


LINES = """
import sys
from probe.core.alert import initialize_light_monitor, send_heartbeat, send_feishu_msg_with_webhook
from probe.core.monitor_manager import MonitorManager, initialize_monitor_manager

monitor = dict(
    alert=dict(
        enable_feishu_alert=True,
        feishu_alert_address=sys.argv[1],
        light_monitor_address=sys.argv[2],
    ),
)
from probe.core.alert import read_monitor_config
config = read_monitor_config(monitor)
with initialize_monitor_manager(job_name="pretraining", alert_address=config.alert_address):
    initialize_light_monitor(config.light_monitor_address)
    send_heartbeat("init_time", {"init": {"model": 1.5}})
    for step, loss in enumerate([2.0, 1.0, 9.0, float("nan")]):
        MonitorManager().monitor_loss_spike(alert_address=config.alert_address, step_count=step, cur_step_loss=loss)
        send_heartbeat("train_metrics", {"step": step, "loss": loss, "grad_norm": {"0_default": 0.5}})
    send_heartbeat("stage_time", {"fwd": 0.1, "bwd": 0.2})
    response = send_feishu_msg_with_webhook(config.alert_address, "title", "text")
    assert response.status_code == 200 and response.json()["code"] == 0, response
"""


def test_lines_of_internevo_run_with_the_import_changed(receiver: Receiver, tmp_path: Path) -> None:
    """Begin, end, losses, a message of one's own and all kinds of heartbeats arrive."""
    with serving_heartbeats(tmp_path / "beats.sqlite", token="a-token-of-the-server") as server:
        process = script(LINES, receiver.url(), server.address, PROBE_SERVER_TOKEN="a-token-of-the-server")
        output = process.communicate(timeout=120)
        assert process.returncode == 0, output
        stored = wait_for(lambda: len(found := server.stored("pretraining")) >= 8 and found)
        page = server.request("GET", "/metrics")[1].decode()
    stages = re.findall(r'^probe_job_stage_seconds\{.*stage="(\w+)"\} (\S+)$', page, re.MULTILINE)
    assert {name: float(value) for name, value in stages} == {"init_model": 1.5, "fwd": 0.1, "bwd": 0.2}
    for words in ("training has begun", "loss spike: 9 at step 2", "loss nan at step 3", "training has ended after"):
        assert number(receiver, words) == 1, messages(receiver)
    assert "title\ntext" in messages(receiver)
    assert "the last one before: 1, the limit: 1.5 times that" in messages(receiver)
    assert "job pretraining, rank 0, host" in messages(receiver)
    found = [(each["kind"], each["values"]) for each in stored]
    assert ("init_time", {"init_model": 1.5}) in found
    assert ("stage_time", {"fwd": 0.1, "bwd": 0.2}) in found
    metrics = [values for kind, values in found if kind == "train_metrics"]
    assert [values["grad_norm_0_default"] for values in metrics] == [0.5] * 4
    assert math.isnan(float(metrics[3]["loss"]))
    assert found[-1] == ("progress", {"state": "ended"})
    assert [each["promise"] for each in stored if each["kind"] == "train_metrics"] == [1800.0, *[300.0] * 3]


def test_an_exception_is_sent_and_raised_again(receiver: Receiver) -> None:
    """Once, with the last lines of its traceback; the process fails as without the monitor, and no end is sent."""
    program = """
import sys
from probe.core.monitor_manager import MonitorManager, initialize_monitor_manager
with initialize_monitor_manager("job", sys.argv[1]):
    MonitorManager().monitor_loss_spike(step_count=7, cur_step_loss=1.0)
    try:
        raise RuntimeError(f"shape of {sys.argv[1]}")
    except RuntimeError:
        MonitorManager().monitor_exception()
        raise
"""
    process = script(program, receiver.url(SECRET_PATH))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "RuntimeError: shape of" in errors
    assert number(receiver, "RuntimeError at step 7 on rank 0") == 1
    assert "line 7, in <module>" in messages(receiver)
    assert "RuntimeError: shape of ***" in messages(receiver)
    assert "0a1b2c3d" not in messages(receiver)
    assert "training has ended" not in messages(receiver)


def test_an_exception_without_a_block_is_sent_at_the_end_of_the_process(receiver: Receiver) -> None:
    """A program that only starts the monitor is watched to its end."""
    program = """
import sys
from probe.core.monitor_manager import MonitorManager
MonitorManager().start_monitor("job", sys.argv[1])
raise ValueError("a")
"""
    process = script(program, receiver.url())
    process.communicate(timeout=120)
    assert process.returncode == 1
    assert number(receiver, "ValueError before the first step") == 1


SIGTERM = """
import signal, sys, time
from probe.core.monitor_manager import MonitorManager
if sys.argv[2] == "handler":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
MonitorManager().handle_sigterm(sys.argv[1])
MonitorManager().monitor_loss_spike(sys.argv[1], 3, 1.0)
print("ready", flush=True)
while True:  # one long sleep would not end if the signal came just before it
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("before", "code"), [("nothing", -signal.SIGTERM), ("handler", 9)])
def test_sigterm_is_sent_and_goes_on(receiver: Receiver, before: str, code: int) -> None:
    """The process ends as without the monitor: by the signal, or by the handler before ours."""
    process = script(SIGTERM, receiver.url(), before)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == code
    assert number(receiver, "SIGTERM at step 3") == 1


def test_sigterm_waits_five_seconds_at_most_for_a_receiver_that_does_not_answer(tmp_path: Path) -> None:
    """What was not delivered is on the disk."""
    with raw_server(black_hole) as address:
        process = script(SIGTERM, address, "nothing")
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    assert time.monotonic() - began < 25
    kept = "".join(path.read_text() for path in (tmp_path / "output" / "alerts").rglob("*.json*"))
    assert "SIGTERM at step 3" in kept


def test_a_critical_alert_that_is_not_delivered_is_named_on_the_terminal(tmp_path: Path) -> None:
    """With the folder that keeps it, also where the program's log goes elsewhere; one that is delivered is not."""
    program = """
import logging, sys
from probe.core.monitor_manager import initialize_monitor_manager
logging.basicConfig(filename=sys.argv[2])
with initialize_monitor_manager("job", sys.argv[1]):
    raise RuntimeError("a")
"""
    with raw_server(black_hole) as address, serving(Receiver()) as receiver:
        lost = script(program, address, str(tmp_path / "log")).communicate(timeout=120)[1]
        sent = script(program, receiver.url(), str(tmp_path / "log")).communicate(timeout=120)[1]
    kept = f"not delivered; the next run with this output directory sends what is kept in {tmp_path}/output/alerts:"
    assert f"probe: error: {kept}\nprobe:   [critical] RuntimeError before the first step on rank 0\n" in lost
    assert "not delivered" not in sent


def test_messages_are_signed_with_the_secret_of_the_environment(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a run and those of one's own, by the formula of Feishu; without the variable they have no signature."""
    assert send_feishu_msg_with_webhook(receiver.url(), "title", "text") is not None
    monkeypatch.setenv("PROBE_FEISHU_SECRET", secret := "a-secret-of-the-bot")
    assert send_feishu_msg_with_webhook(receiver.url(), "title", "text") is not None
    with initialize_monitor_manager("job", receiver.url()):
        pass
    first, *others = (request.body for request in receiver.requests if request.body)
    assert "sign" not in first
    assert len(others) >= 2
    for body in others:
        key = f"{body['timestamp']}\n{secret}".encode()
        assert body["sign"] == base64.b64encode(hmac.new(key, digestmod="sha256").digest()).decode()


ELSEWHERE = """
import sys, threading
from probe.core.monitor_manager import MonitorManager
thread = threading.Thread(target=MonitorManager().start_monitor, args=("job", sys.argv[1]))
thread.start()
thread.join()
MonitorManager().stop_monitor()
"""


def test_on_another_thread_than_the_main_one_sigterm_is_a_warning(receiver: Receiver) -> None:
    """Python sets no handlers there."""
    _, told = script(ELSEWHERE, receiver.url()).communicate(timeout=120)
    assert "SIGTERM is not caught: call handle_sigterm or start_monitor on the main thread" in told
    assert number(receiver, "training has begun") == 1


def test_training_that_is_stuck_is_sent_once_and_so_is_its_recovery(receiver: Receiver) -> None:
    """Also before the first step; a second time it is a new matter. Steps in time are none."""
    manager = MonitorManager()
    manager.start_monitor("job", receiver.url(), monitor_interval_seconds=0.3)  # type: ignore[arg-type]
    wait_for(lambda: number(receiver, "[critical] training may be stuck before the first step"))
    manager.monitor_loss_spike(step_count=1, cur_step_loss=1.0)
    wait_for(lambda: number(receiver, "[resolved] training may be stuck before the first step"))
    assert "training goes on at step 1" in messages(receiver)
    wait_for(lambda: number(receiver, "[critical] training may be stuck after step 1"))
    assert number(receiver, "[critical] training may be stuck") == 2


def test_a_second_run_of_a_process_has_an_interval_of_its_own(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the steps of the first one took."""
    real, later = time.monotonic_ns, 0
    manager = MonitorManager()
    with monkeypatch.context() as clocks:
        for clock in ("time.monotonic_ns", "probe.core.run_state.progress.monotonic_ns"):
            clocks.setattr(clock, lambda: real() + later)
        manager.start_monitor("first", receiver.url())
        manager.monitor_loss_spike(step_count=1, cur_step_loss=1.0)
        later = 3600 * 10**9
        manager.monitor_loss_spike(step_count=2, cur_step_loss=1.0)
        manager.start_monitor("second", receiver.url(), monitor_interval_seconds=0.3)  # type: ignore[arg-type]
        wait_for(lambda: number(receiver, "[critical] training may be stuck before the first step"))
    manager.start_monitor(None, None)  # what it has noted lies in the future now


def test_a_thread_ends_at_once(receiver: Receiver) -> None:
    """Whatever its interval; it is a daemon, and no environment variable is set."""
    before = dict(os.environ)
    tracker = MonitorTracker(receiver.url())
    tracker.run()
    (thread,) = [each for each in threading.enumerate() if each.name == "probe tracker"]
    tracker.run()
    assert thread.daemon
    MonitorManager().monitor_loss_spike(step_count=1, cur_step_loss=1.0)
    assert dict(os.environ) == before
    began = time.monotonic()
    tracker.stop()
    assert not thread.is_alive()
    assert time.monotonic() - began < 20


def test_a_monitor_without_its_block_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing would be monitored, and a method of the manager is not there; a loss that is none is named, too."""
    caplog.set_level(logging.WARNING, "probe.alerts")
    with pytest.raises(
        AttributeError, match=r"monitor_loss_spike: .* write `with initialize_monitor_manager\(\.\.\.\) as"
    ):
        initialize_monitor_manager("job").monitor_loss_spike()  # type: ignore[attr-defined]
    assert "nothing is monitored without a block" in caplog.text
    with caplog.at_level(logging.WARNING, "probe"):
        MonitorManager().monitor_loss_spike(cur_step_loss="2.5 or so")  # type: ignore[arg-type]
    assert "monitor_loss_spike: cur_step_loss: expected a number, got '2.5 or so'" in caplog.text


def test_a_tracker_judges_losses_by_its_limit(receiver: Receiver) -> None:
    """Without an address of the call, and without a monitor that was started."""
    tracker = MonitorTracker(receiver.url(), loss_spike_limit=3)
    tracker.run()
    for step, loss in enumerate([1.0, 2.9, 8.8]):
        MonitorManager().monitor_loss_spike(step_count=step, cur_step_loss=loss)
    tracker.stop()
    MonitorManager().stop_monitor()
    assert number(receiver, "loss spike") == 1
    assert "loss spike: 8.8 at step 2" in messages(receiver)


def judged(limit: float, *losses: float) -> list[tuple[int, str, bool]]:
    """Steps with the matters that begin or end there."""
    rule = LossRatio(limit)
    return [(step, each.name, each.resolved) for step, loss in enumerate(losses) for each in rule.judge(step, loss)]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([2.0, 3.0, 4.5], []),
        ([2.0, 3.1], [(1, "loss spike", False)]),
        ([0.0, 0.0, 0.1], [(2, "loss spike", False)]),
        ([2.0, 0.0, 0.0], []),
        ([-2.0, -1.1], []),
        ([-2.0, -0.9], [(1, "loss spike", False)]),
        ([math.nan, 1.0], [(0, "loss nan", False), (1, "loss nan", True)]),
        ([1.0, math.nan, math.nan, 1.2], [(1, "loss nan", False), (3, "loss nan", True)]),
        ([1.0, math.inf, 1.6], [(1, "loss nan", False), (2, "loss nan", True), (2, "loss spike", False)]),
        ([1.0, 2.0, 1.0, 2.0, *[2.0] * 12], [(1, "loss spike", False), (15, "loss spike", True)]),
    ],
)
def test_a_loss_is_judged_by_the_one_before(losses: list[float], expected: list[tuple[int, str, bool]]) -> None:
    """NaN, infinity, zero and negative losses too; matters that are open are not repeated."""
    assert judged(1.5, *losses) == expected


def test_nothing_is_sent_where_nothing_is_configured(tmp_path: Path) -> None:
    """No thread, no file, no signal handler."""
    before, before_faults = signal.getsignal(signal.SIGTERM), MonitorManager().faults
    threads = threading.active_count()
    with initialize_monitor_manager(job_name="job") as manager:
        manager.start_monitor("job", None)  # type: ignore[arg-type]
        manager.monitor_loss_spike(step_count=1, cur_step_loss=math.nan)
        manager.monitor_exception(excp_info="error")
        manager.handle_sigterm()
        MonitorTracker("").run()
        initialize_light_monitor()
        alert.send_heartbeat("train_metrics", {"loss": 1.0})
        assert send_feishu_msg_with_webhook("", "title", "text") is None
        assert threading.active_count() == threads
        assert signal.getsignal(signal.SIGTERM) is before
    assert not (tmp_path / "output").exists()
    assert MonitorManager().faults == before_faults


def test_a_message_that_is_not_accepted_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With its reason and without the address; nothing is raised."""
    caplog.set_level(logging.WARNING, "probe.alerts")
    with serving(Receiver(REFUSED, (500, {}, b"broken"))) as receiver:
        assert send_feishu_msg_with_webhook(receiver.url(SECRET_PATH), "title", "text") is None
        assert send_feishu_msg_with_webhook(receiver.url(SECRET_PATH), "title", "text") is None
    assert send_feishu_msg_with_webhook(f"http://localhost:{free_port()}{SECRET_PATH}", "title", "text") is None
    assert send_feishu_msg_with_webhook("feishu.cn/0a1b2c3d", "title", "text") is None
    for reason in ("code 9499: Bad Request", "HTTP status 500: broken", "ConnectError", "expected an address"):
        assert reason in caplog.text
    assert "0a1b2c3d" not in caplog.text


def test_a_message_is_cut_and_masked(receiver: Receiver) -> None:
    """Feishu refuses more than 20 KB."""
    response = send_feishu_msg_with_webhook(receiver.url(), "a\nb", f"{receiver.url()}\n" + "损" * 30_000)
    assert response is not None
    assert response.ok
    (request,) = receiver.requests
    assert request.size <= 20_000
    assert text_of(request).startswith("a b\n")
    assert "0123456789abcdef" not in text_of(request)


@pytest.mark.parametrize("address", ["feishu.cn/hook/0a1b2c3d", 5])
def test_a_wrong_address_is_an_error_before_training(address: Any, receiver: Receiver) -> None:
    """It is not shown; in training it is counted."""
    with pytest.raises(ValueError, match="alert_address: expected an address that begins with") as caught:
        MonitorManager().start_monitor("job", address)
    assert "0a1b2c3d" not in str(caught.value)
    with pytest.raises(ValueError, match="alert_address"), initialize_monitor_manager("job", address):
        raise AssertionError
    with pytest.raises(ValueError, match="alert_address"):
        MonitorTracker(address)
    with pytest.raises(ValueError, match="loss_spike_limit: expected a positive number, got nan"):
        MonitorManager().start_monitor("job", receiver.url(), loss_spike_limit=math.nan)
    before = MonitorManager().faults.get("monitor_manager: ValueError", 0)
    MonitorManager().monitor_loss_spike(address, 1, 1.0)
    MonitorManager().monitor_exception(address, "error")
    assert MonitorManager().faults["monitor_manager: ValueError"] == before + 2


def test_a_server_that_is_no_address_is_an_error_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable counts where no address is passed."""
    monkeypatch.setenv("MONITOR_SERVER", "ftp://10.0.0.1")
    with pytest.raises(ValueError, match="address of the heartbeat server"):
        initialize_light_monitor()


def test_the_server_gets_the_exception_that_ends_a_process(tmp_path: Path) -> None:
    """The address stands in the variable; a later heartbeat changes nothing."""
    program = """
from probe.core.alert import initialize_light_monitor, send_heartbeat
initialize_light_monitor()
send_heartbeat("train_metrics", {"loss": 1.0})
raise RuntimeError("lost a device")
"""
    for attempt in range(5):  # the end of a process waits for two seconds, in which a busy machine may do nothing
        with serving_heartbeats(tmp_path / f"beats{attempt}.sqlite") as server:
            process = script(program, MONITOR_SERVER=server.address.removeprefix("http://"))
            process.communicate(timeout=120)
            assert process.returncode == 1
            stored = server.stored()
        if len(stored) >= 4:
            break
    (error,) = [each["values"] for each in stored if each["kind"] == "exception"]
    assert error["type"] == "RuntimeError"
    assert error["text"].endswith("RuntimeError: lost a device")


BLOCK = {"enable_feishu_alert": True, "feishu_alert_address": "https://a.cn/hook/0a1b2c3d4e5f"}


@pytest.mark.parametrize("form", ["whole", "block", "json", "yaml"])
def test_the_configuration_is_read(form: str, tmp_path: Path) -> None:
    """From a mapping, the block alone, JSON and YAML; an address counts if alerts are enabled."""
    whole = {"model": {"layers": 2}, "monitor": {"alert": {**BLOCK, "light_monitor_address": "10.0.0.1:80"}}}
    (tmp_path / "train.json").write_text(json.dumps(whole))
    (tmp_path / "train.yaml").write_text(json.dumps(whole))
    source = {
        "whole": whole, "block": whole["monitor"], "json": tmp_path / "train.json", "yaml": str(tmp_path / "train.yaml")
    }[form]  # fmt: skip
    config = read_monitor_config(source)  # type: ignore[arg-type] # the types of the mapping's values
    assert config.alert_address == BLOCK["feishu_alert_address"]
    assert config.light_monitor_address == "10.0.0.1:80"


def test_missing_keys_of_the_configuration_have_their_defaults() -> None:
    """Off, without addresses."""
    for source in ({}, {"monitor": {}}, {"model": {}}, {"monitor": {"alert": {}}}):
        config = read_monitor_config(source)
        assert config.model_dump() == dict.fromkeys(config.model_fields_set | {*type(config).model_fields}) | {
            "enable_feishu_alert": False
        }
    assert read_monitor_config({"alert": {**BLOCK, "enable_feishu_alert": False}}).alert_address is None


def test_a_wrong_configuration_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All problems at once, with the nearest name and without the address."""
    path = tmp_path / "train.yaml"
    path.write_text('monitor:\n  alert:\n    enable_feishu: 1\n    feishu_alert_address: "a.cn/0a1b2c3d4e"\n')
    with pytest.raises(InternEvoConfigError) as caught:
        read_monitor_config(path)
    text = str(caught.value)
    assert "train.yaml:3: monitor.alert.enable_feishu: unknown key; did you mean enable_feishu_alert?" in text
    assert "train.yaml:4: monitor.alert.feishu_alert_address: expected an address that begins with" in text
    assert "0a1b2c3d4e" not in text
    with pytest.raises(InternEvoConfigError, match="moniter: unknown key; did you mean monitor"):
        read_monitor_config({"moniter": {}})
    read_monitor_config({"monitor": {"alert": {"alert_file_path": "a.log"}, "tensorboard": {"queue_max_length": 10}}})
    assert "mapping: monitor.alert.alert_file_path is not supported; here, all ranks send an alert once" in caplog.text
    assert "monitor.tensorboard is not supported" in caplog.text


@pytest.mark.parametrize("launcher", [{"MASTER_PORT": "1"}, {}], ids=["named launch", "ranks alone"])
def test_ranks_send_one_message(launcher: dict[str, str], receiver: Receiver) -> None:
    """Begin and end come from the first rank; an exception from the first rank that has it."""
    program = """
import sys
from probe.core.monitor_manager import initialize_monitor_manager
with initialize_monitor_manager("job", sys.argv[1]):
    print("ready", flush=True)
    sys.stdin.read()
    raise RuntimeError("a")
"""
    command = [quick_python(*COMMANDS), "-c", program, receiver.url()]
    named = {*VARIABLES, *RESTARTS, *WORLDS}
    environment = {name: value for name, value in os.environ.items() if name not in named}
    environment |= {"PYTHONPATH": str(ROOT), **launcher}
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}, **piped) for rank in range(3)]
    for each in ranks:  # one that begins after the exception would take it for an earlier run's
        assert each.stdout is not None
        assert each.stdout.readline() == b"ready\n"
    wait_for(lambda: number(receiver, "training has begun"))
    for each in ranks:
        each.communicate(timeout=120)
    assert [each.returncode for each in ranks] == [1, 1, 1]
    assert number(receiver, "training has begun") == 1
    assert number(receiver, "RuntimeError before the first step") == 1


def test_the_documented_modules_export_the_documented_names() -> None:
    """The others are parts of it."""
    assert set(monitor_manager.__all__) == {"initialize_monitor_manager", "MonitorManager", "MonitorTracker"}
    assert {"send_feishu_msg_with_webhook", "initialize_light_monitor", "send_heartbeat"} <= set(alert.__all__)
