"""The configuration of the remediation service: every problem at once, before anything starts."""

from __future__ import annotations

import json
import re
import shutil
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from probe.cli import app
from probe.core.fields import Section
from probe.services.remediation.cleaning import FolderSettings
from probe.services.remediation.label_fields import FieldSettings
from probe.services.remediation.schema import (
    ACTIONS,
    ActionSettings,
    HostSettings,
    JobSettings,
    LimitSettings,
    RemediationSettings,
    TlsSettings,
)
from probe.services.remediation.service import host_in
from probe.services.remediation.settings import RemediationConfigError, load
from tests.required import require
from tests.services.remediation_process import HOST, alert, configured, program, remediating
from tests.services.server_process import ROOT

require("starlette")
require("uvicorn")
require("prometheus_client")
require("psutil")

EXAMPLE = ROOT / "resources" / "remediation.yaml"
GUIDE = ROOT / "docs" / "guides" / "remediation.md"
COMMAND = {"alerts": ["A"], "do": "command_training", "args": {"commands": [{"command": "rollback_checkpoint"}]}}


def runs(*argv: str, **more: Any) -> dict[str, Any]:
    return {"alerts": ["A"], "do": "run_program", "args": {"argv": list(argv), **more}}


def problems(folder: Path, actions: dict[str, Any], **more: Any) -> str:
    """The message of a configuration that is refused, of which the file's name is left out."""
    path = folder / "config.json"
    path.write_text(json.dumps({"dry_run": False, "actions": actions, **more}))
    with pytest.raises(RemediationConfigError) as refused:
        load(path)
    return str(refused.value).replace(f"{path}:1: ", "")


def test_the_example_is_served(tmp_path: Path) -> None:
    """As it lies there, but for the port and the database: each of its actions is rehearsed. The label job_name, which
    alerts over the series of other exporters have, stands before job."""
    assert (load(EXAMPLE).host, load(EXAMPLE).port) == ("127.0.0.1", 9095)
    copy = tmp_path / "remediation.yaml"
    shutil.copy(EXAMPLE, copy)
    options = ("--listen", "127.0.0.1:0", "--database", str(tmp_path / "history.sqlite"))
    with remediating(copy, *options) as service:
        entry = service.outcome(alert("GPUTemperatureHigh", instance=socket.gethostname(), gpu_id="0"))
        assert re.fullmatch(r"dry run: would run \S*nvidia-smi -i 0 -pl 200.*", entry["message"])
        entry = service.outcome(alert("TrainingLossSpike", job="another"))
        assert entry["message"] == (
            'label job: expected one of pretrain, got "another"; args.job of the action names a job for every alert'
        )
        entry = service.outcome(alert("TrainingLossSpike", job="probe-exporter", job_name="pretrain"))
        assert entry["target"] == "job pretrain"
        entry = service.outcome(alert("DiskSpaceLow", instance=f"{socket.gethostname()}:9100", mountpoint="/boot"))
        assert entry["message"] == 'label mountpoint: no folder lies on "/boot"'
        assert service.outcome(alert("GPUUtilizationLow"))["state"] == "ignored"


def test_the_example_has_an_action_for_each_usual_alert() -> None:
    """Five of them, rehearsed only."""
    actions = load(EXAMPLE).actions
    alerts = {name: action.settings.do for action in actions for name in action.settings.alerts}
    assert alerts.items() >= {
        ("GPUTemperatureHigh", "lower_power_limit"),
        ("GPUMemoryUsageHigh", "command_training"),
        ("TrainingLossSpike", "command_training"),
        ("DiskSpaceLow", "clean_folders"),
        ("TrainingThroughputDrop", "relieve_host"),
    }
    assert all(action.dry_run for action in actions)


def test_actions_are_rehearsed_unless_the_configuration_has_it_otherwise(tmp_path: Path) -> None:
    """For all, or for one."""

    def dry(**more: Any) -> list[bool]:
        path = tmp_path / "config.yaml"
        actions = {"one": COMMAND, "two": {**COMMAND, "dry_run": False}, "three": {**COMMAND, "dry_run": True}}
        path.write_text(yaml.safe_dump({"actions": actions, **more}, sort_keys=False))
        return [action.dry_run for action in load(path).actions]

    assert dry() == [True, False, True]
    assert dry(dry_run=False) == [False, False, True]


@pytest.mark.parametrize(
    ("actions", "more", "problem"),
    [
        ({}, {}, "actions: expected at least one action, got {}"),
        ({"a": COMMAND}, {"tokenfile": "x"}, "tokenfile: unknown key; did you mean token_file?"),
        ({"a": {**COMMAND, "per_hours": 1}}, {}, "actions.a.per_hours: unknown key; did you mean per_hour?"),
        (
            {"A b": COMMAND},
            {},
            "actions: expected names of at most 50 lower-case letters, digits and _, such as cool_gpu, got A b",
        ),
        ({"a": {**COMMAND, "do": "command_trainig"}}, {}, "did you mean command_training?"),
        ({"a": {**COMMAND, "alerts": []}}, {}, "actions.a.alerts: expected a list of strings, got []"),
        ({"a": {**COMMAND, "seconds": 0}}, {}, "actions.a.seconds: expected a number > 0 and <= 86400, got 0"),
        ({"a": {**COMMAND, "args": {"commands": []}}}, {}, "actions.a.args.commands: expected a list"),
        (
            {"a": {**COMMAND, "args": {"commands": [{"command": "reduce_learning_rate", "args": {"factor": 2}}]}}},
            {},
            "actions.a.args.commands[0].args.factor: expected a number",
        ),
        (
            {"a": {**COMMAND, "args": {**COMMAND["args"], "job": "x"}}},
            {"jobs": {"pretrain": "/runs/m.json"}},
            "actions.a.args.job: expected one of jobs (pretrain), got x",
        ),
        ({"a": COMMAND}, {"jobs": {"x": 3}}, "jobs.x: expected the path of a configuration file"),
        ({"a": COMMAND}, {"jobs": {"x": {"ranks": 3}}}, "jobs.x.configuration: missing; expected a string"),
        ({"a": COMMAND}, {"listen": "localhost"}, 'listen: expected a host and a port such as "127.0.0.1:9095"'),
        ({"a": COMMAND}, {"listen": "localhost:65536"}, "listen: expected a host and a port"),
        ({"a": COMMAND}, {"listen": "0.0.0.0:9095"}, "listen: expected token_file or tls.client_ca"),
        (
            {"a": COMMAND},
            {"environment": ["NOT_SET_X"]},
            "environment[0]: the environment variable NOT_SET_X is not set",
        ),
        ({"a": runs("/bin/true")}, {}, "actions.a.args.argv[0]: expected one of programs (none), got /bin/true"),
        ({"a": runs("not-there")}, {"programs": ["not-there"]}, "not-there is not installed; install it"),
        ({"a": runs("bin/true")}, {"programs": ["bin/true"]}, "programs[0]: expected an absolute path or a name"),
        ({"a": runs("sh")}, {"programs": ["sh"]}, "programs[0]: sh is a shell"),
        ({"a": runs("/usr/bin/env", "{x}")}, {"programs": ["/usr/bin/env"]}, "expected {x} to be one of fields"),
        (
            {"a": runs("/usr/bin/env", fields={"x": {"label": "l", "type": "host"}})},
            {"programs": ["/usr/bin/env"]},
            "actions.a.args.fields.x: expected {x} in argv; it is not used",
        ),
        (
            {"a": runs("/usr/bin/env", "{x}", fields={"x": {"label": "l", "type": "integer", "least": 2, "most": 1}})},
            {},
            "actions.a.args.fields.x: expected least and most",
        ),
        (
            {"a": runs("/usr/bin/env", "{x}", fields={"x": {"label": "l", "type": "name", "names": ["-rf"]}})},
            {},
            "none begins with -",
        ),
        (
            {"a": runs("/usr/bin/env", "{x}", fields={"x": {"label": "l", "type": "text"}})},
            {},
            "expected one of integer, name, gpu, host",
        ),
    ],
)
def test_a_wrong_configuration_is_refused(tmp_path: Path, actions: Any, more: Any, problem: str) -> None:
    """With the key, the expected and the found value."""
    assert problem in problems(tmp_path, actions, **more)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("relative/folder", "expected an absolute path"),
        ("/", "name one in it"),
        ("/home", "name one in it"),
        ("~", "name one in it"),
        ("/etc", "expected no folder of the system"),
        ("/usr/share/doc", "expected no folder of the system"),
        ("/tmp/../etc/ssl", "expected no folder of the system"),
        ("/runs/checkpoints/tmp", "expected no folder of checkpoints"),
        ("/runs/global_step100", "expected no folder of checkpoints"),
        ("/not/there", "expected a folder, got /not/there"),
    ],
)
def test_folders_that_matter_are_never_cleaned(tmp_path: Path, path: str, problem: str) -> None:
    """Those of the system, all of a user's, and those of checkpoints."""
    folders = [{"path": path, "patterns": ["*"]}]
    action = {"alerts": ["A"], "do": "clean_folders", "args": {"folders": folders}}
    found = problems(tmp_path, {"a": action})
    assert f"actions.a.args.folders[0].path: {problem}" in found or problem in found


def test_a_link_to_a_folder_of_the_system_is_refused(tmp_path: Path) -> None:
    """Where it leads counts."""
    (tmp_path / "link").symlink_to("/etc")
    folders = [{"path": str(tmp_path / "link"), "patterns": ["*"]}]
    action = {"alerts": ["A"], "do": "clean_folders", "args": {"folders": folders}}
    assert "expected no folder of the system" in problems(tmp_path, {"a": action})


@pytest.mark.parametrize(
    ("mode", "text", "problem"),
    [
        (0o600, "short", "expected at least 16 printable ASCII characters"),
        (0o600, "two\nlines of a token", "expected one line"),
        (0o600, "", "expected one line"),
        (None, "", "cannot be read: No such file or directory"),
    ],
)
def test_a_token_that_cannot_be_used_is_refused(tmp_path: Path, mode: int | None, text: str, problem: str) -> None:
    """Missing, empty, too short, of two lines; the message has none of it."""
    token = tmp_path / "token"
    if mode is not None:
        token.write_text(text)
        token.chmod(mode)
    found = problems(tmp_path, {"a": COMMAND}, token_file=str(token))
    assert f"token_file: {problem}" in found
    assert not text or text not in found


def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    """Missing, no PEM, a key that all can read."""
    key = tmp_path / "key.pem"
    tls = {"certificate": str(tmp_path / "c.pem"), "key": str(key), "client_ca": str(tmp_path / "ca.pem")}
    assert "tls.key: expected a file that can be read" in problems(tmp_path, {"a": COMMAND}, tls=tls)
    key.write_text("no key")
    key.chmod(0o644)
    found = problems(tmp_path, {"a": COMMAND}, tls=tls)
    assert "tls.key: every user of this machine can read it" in found
    assert "tls.certificate: expected a certificate and its key in PEM" in found
    assert "tls.client_ca: expected a file with certificates (PEM)" in found


def test_a_program_or_a_configuration_that_anyone_can_write_is_refused(tmp_path: Path) -> None:
    """Else any user of the machine would choose what is run."""
    path = program(tmp_path / "tool")
    path.chmod(0o777)
    assert "programs[0]: every user of this machine can write" in problems(
        tmp_path, {"a": runs(str(path))}, programs=[str(path)]
    )
    (tmp_path / "config.json").chmod(0o666)
    assert "and so choose what is run" in problems(tmp_path, {"a": COMMAND}, token_file=str(tmp_path / "x"))
    assert stat.S_IMODE((tmp_path / "config.json").stat().st_mode) == 0o666


def test_all_problems_are_listed_with_their_lines(tmp_path: Path) -> None:
    """Of a YAML file, in one message."""
    path = tmp_path / "config.yaml"
    path.write_text("listen: 1.2.3.4:1\ndatabase: ''\nactions:\n  a:\n    alerts: [A]\n    do: nothing\n")
    with pytest.raises(RemediationConfigError) as refused:
        load(path)
    assert [problem.partition(": ")[0] for problem in refused.value.problems] == [f"{path}:2", f"{path}:6"]


def test_the_command_ends_with_code_2(tmp_path: Path) -> None:
    """For a wrong configuration, a port that is taken and a database of another program; nothing is made."""

    def refused(path: Path) -> str:
        run = CliRunner().invoke(app, ["remediate", "--config", str(path)])
        assert run.exit_code == 2, run.output
        return run.stderr

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused(configured(tmp_path, {"a": COMMAND}, listen=f"127.0.0.1:{port}"))
        assert f"{port}: cannot listen: another program listens there" in message
    assert not (tmp_path / "history.sqlite").exists()
    assert "missing; expected" in refused(configured(tmp_path, {"a": {"alerts": ["A"]}}))
    (tmp_path / "history.sqlite").write_text("no database at all, but a text of some length")
    assert "expected a database that can be written" in refused(configured(tmp_path, {"a": COMMAND}))


@pytest.mark.parametrize(
    ("value", "host"),
    [("node1:9100", "node1"), ("NODE1", "node1"), ("10.0.0.1:1", "10.0.0.1"), ("[::1]:9100", "::1"), ("::1", "::1")],
)
def test_a_port_is_no_part_of_a_host(value: str, host: str) -> None:
    """Names in any case, addresses of both kinds."""
    assert host_in(value) == host
    assert host_in(HOST) == HOST


def test_the_guide_describes_every_key() -> None:
    """In tables, by name, with the default of the whole configuration."""
    text = GUIDE.read_text("utf-8")
    seen = set[str]()
    models: list[type[Section]] = [
        RemediationSettings,
        ActionSettings,
        HostSettings,
        JobSettings,
        LimitSettings,
        TlsSettings,
        FieldSettings,
        FolderSettings,
    ]
    models += [action.Args for action in ACTIONS.values()]
    for model in models:
        seen |= set(model.model_fields)
    assert sorted(name for name in seen if f"`{name}`" not in text) == []
    assert sorted(name for name in ACTIONS if f"`{name}`" not in text) == []
