"""Every key of InternEvo's block changes what the webhook and the heartbeat server receive, by the dialect's table."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.core.alert import InternEvoConfigError, read_monitor_config
from probe.core.internevo.configuration import INTERNEVO
from tests.core.alerting.receivers import Receiver, serving
from tests.quick_python import quick_python
from tests.required import require
from tests.services.server_process import serving as serving_heartbeats
from tests.user_scripts import COMMANDS

require("httpx")
ROOT = Path(__file__).parents[3]
Block = dict[str, Any]
SAMPLE: Block = {
    "monitor": {"alert": {"enable_feishu_alert": False, "feishu_alert_address": None, "light_monitor_address": None}}
}
"""The page's sample."""
PROGRAM = """
import json, sys
from probe.core.alert import initialize_light_monitor, read_monitor_config, send_heartbeat
from probe.core.monitor_manager import initialize_monitor_manager
config = read_monitor_config(json.loads(sys.argv[1]))
with initialize_monitor_manager(job_name="a", alert_address=config.alert_address):
    initialize_light_monitor(config.light_monitor_address)
    send_heartbeat("train_metrics", {"loss": 1.0})
"""
PAIRS: dict[str, tuple[Block, Block]] = {
    "monitor": ({}, {"feishu_alert_address": "HOOK", "enable_feishu_alert": True}),
    "monitor.alert": ({}, {"feishu_alert_address": "HOOK", "enable_feishu_alert": True}),
    "monitor.alert.enable_feishu_alert": (
        {"feishu_alert_address": "HOOK", "enable_feishu_alert": False},
        {"feishu_alert_address": "HOOK", "enable_feishu_alert": True},
    ),
    "monitor.alert.feishu_alert_address": (
        {"enable_feishu_alert": True},
        {"feishu_alert_address": "HOOK", "enable_feishu_alert": True},
    ),
    "monitor.alert.light_monitor_address": ({}, {"light_monitor_address": "SERVER"}),
}
"""Sections ``alert`` that differ in one key, by its path; the addresses are those of real servers."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A webhook."""
    with serving(Receiver()) as server:
        yield server


@pytest.mark.parametrize("path", [key.path for key in INTERNEVO.keys if key.supported])
def test_a_key_changes_what_is_received(path: str, receiver: Receiver, tmp_path: Path) -> None:
    """Of two runs that differ in the key alone, the second one reaches the webhook or the server, the first does
    not."""
    received = []
    with serving_heartbeats(tmp_path / "beats.sqlite") as server:
        for number, alert in enumerate(PAIRS[path]):
            text = json.dumps({"monitor": {"alert": alert}}).replace("HOOK", receiver.url())
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "MONITOR_OUTPUT_DIR": str(tmp_path / str(number))}
            command = [quick_python(*COMMANDS), "-c", PROGRAM, text.replace("SERVER", server.address)]
            subprocess.run(command, env=environment, check=True, timeout=120)
            received.append((len(receiver.requests), len(server.stored("a"))))
    assert received[0] == (0, 0)
    assert sum(received[1]) > 0


def test_every_key_of_the_documented_sample_is_in_the_table() -> None:
    """And the sample is read as it stands."""
    assert {f"monitor.alert.{name}" for name in SAMPLE["monitor"]["alert"]} <= {key.path for key in INTERNEVO.keys}
    assert read_monitor_config(SAMPLE).alert_address is None


SECRET = "https://open.feishu.cn/open-apis/bot/v2/hook/0a1b2c3d"


@pytest.mark.parametrize("values", [{}, {"monitor": {"alert": {}}}, {"alert": {}, "monitor": {}}])
@pytest.mark.parametrize("key", ["enable_feishu_alert", "feishu_alert_address", "light_monitor_address"])
@pytest.mark.parametrize("section", ["", "train", "alert"])
def test_a_key_in_another_section_is_named(
    key: str, section: str, values: Block, caplog: pytest.LogCaptureFixture
) -> None:
    """With its place and the section where it belongs; never passed over, and without an address."""
    if section == "alert" and "monitor" not in values:
        pytest.skip("the mapping is the block itself")
    placed = {**values, section: {key: SECRET}} if section else {**values, key: SECRET}
    read_monitor_config(placed)
    where = f"{section}.{key}" if section else key
    assert f"{where} has no effect: it belongs in the section monitor.alert; move it there" in caplog.text
    assert "0a1b2c3d" not in caplog.text


def test_a_key_beside_its_section_is_an_error_with_its_place() -> None:
    """In the block every unknown key is an error; that of a known key says where it belongs."""
    with pytest.raises(
        InternEvoConfigError, match=r"monitor\.feishu_alert_address: unknown key; it belongs in the sec"
    ):
        read_monitor_config({"monitor": {"feishu_alert_address": SECRET}})


def test_an_address_that_is_switched_off_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """No alert goes to it."""
    read_monitor_config({"monitor": {"alert": {"feishu_alert_address": SECRET}}})
    assert "monitor.alert.feishu_alert_address has no effect: enable_feishu_alert is false" in caplog.text


@pytest.mark.parametrize("key", [key for key in INTERNEVO.keys if not key.supported], ids=lambda key: key.path)
def test_a_key_without_an_effect_is_named(key: Any, caplog: pytest.LogCaptureFixture) -> None:
    """With what does the same here."""
    values: Any = {"a": 1}
    for part in reversed(key.path.split(".")):
        values = {part: values}
    read_monitor_config(values)
    assert f"{key.path} is not supported; here, {key.effect}" in caplog.text
