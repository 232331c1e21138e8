"""Shipping of logs by a real rsyslogd with the configuration as it stands; only its variables are those of a test."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import socket
import ssl
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.required import require, require_program
from tests.resources.bulk_receiver import PASSWORD, USER, BulkReceiver, WholeAnswer
from tests.waiting import PATIENCE, free_port, wait_for

RSYSLOGD = require_program("rsyslogd", "/usr/sbin/rsyslogd")
trustme = require("trustme")
FOLDER = Path(__file__).parents[2] / "resources" / "logging" / "rsyslog"


def listens(port: int) -> bool:
    """Whether something on this machine receives by TCP and by UDP at a port."""
    return all(f":{port:04X} " in Path(f"/proc/net/{kind}").read_text() for kind in ("tcp", "udp"))


class Node:
    """A node with training logs, and rsyslogd on it.

    Args:
        folder: of everything.
        port: of the endpoint, or of the relay.
        scheme: of the endpoint.
    """

    def __init__(self, folder: Path, port: int, scheme: str = "https") -> None:
        self.logs, self.state, self.socket = folder / "training", folder / "state", folder / "syslog"
        for made in (self.logs / "nccl", self.state, folder / "containers"):
            made.mkdir(parents=True)
        self.devices = free_port()
        self.containers = folder / "containers"
        self.environment = {
            **os.environ,
            "PROBE_LOGS_SERVER": f"{scheme}://127.0.0.1:{port}",
            "PROBE_LOGS_USER": USER,
            "PROBE_LOGS_PASSWORD": PASSWORD,
            "PROBE_LOGS_CA": str(folder / "ca.pem"),
            "PROBE_LOGS_STATE": str(self.state),
            "PROBE_LOGS_FILES": f"{self.logs}/*.log",
            "PROBE_LOGS_JSON_FILES": f"{self.logs}/*.jsonl",
            "PROBE_LOGS_NETWORK_FILES": f"{self.logs}/nccl/*",
            "PROBE_LOGS_CONTAINER_FILES": f"{self.containers}/*.log",
            "PROBE_LOGS_LISTEN": "127.0.0.1",
            "PROBE_LOGS_LISTEN_PORT": str(self.devices),
        }
        self.main = folder / "rsyslog.conf"
        # In place of the distribution's main file: the same input of system messages, at a socket of the test.
        self.main.write_text(
            f'global(workDirectory="{self.state}")\n'
            'module(load="imuxsock" SysSock.Use="off")\n'
            f'input(type="imuxsock" Socket="{self.socket}")\n'
            f'include(file="{FOLDER / "probe.conf"}")\n'
        )
        self.errors = folder / "errors"

    @contextmanager
    def running(self, ended: bool = True) -> Iterator[subprocess.Popen[bytes]]:
        """rsyslogd, which receives and reads; at the end it is asked to end, and does so in time."""
        self.socket.unlink(missing_ok=True)
        pid = self.main.with_suffix(".pid")
        command = [RSYSLOGD, "-n", "-f", str(self.main), "-i", str(pid)]
        with (
            self.errors.open("ab") as errors,
            subprocess.Popen(command, env=self.environment, stdout=errors, stderr=errors) as process,
        ):
            try:
                wait_for(lambda: self.socket.exists() and listens(self.devices), process)
                yield process
                process.terminate()
                assert process.wait(PATIENCE) == 0
            finally:
                process.kill()

    def log(self, message: bytes) -> None:
        """Send a message as a program of this node does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.connect(str(self.socket))
            client.send(message)
            wait_for(lambda: not any(fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4))))  # until it was received


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """The file of an authority, and the context of a server on loopback that it has signed."""
    authority, path = trustme.CA(), tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return path, context


@pytest.fixture
def receiver(certificates: tuple[Path, ssl.SSLContext], tmp_path: Path) -> BulkReceiver:
    """A receiver by TLS whose authority the node of the test trusts."""
    (tmp_path / "ca.pem").write_bytes(certificates[0].read_bytes())
    return BulkReceiver(free_port(), certificates[1])


def arrived(receiver: BulkReceiver, messages: set[str]) -> None:
    """Wait until all of ``messages`` are there; each is there once."""
    wait_for(lambda: messages <= set(receiver.messages()))
    found = [message for message in receiver.messages() if message in messages]
    assert sorted(found) == sorted(messages)


def test_logs_of_each_kind_arrive_as_documents(receiver: BulkReceiver, tmp_path: Path) -> None:
    """Training, NCCL, containers, system, kernel and devices: each in its data stream with its ECS fields, by TLS and
    with the password."""
    node = Node(tmp_path, receiver.port)
    (node.logs / "rank0.log").write_bytes(
        b"Step 100: loss=1.5\n  indented\n\n" + b"x" * 20_000 + b"end\n" + b"y" * 300_000 + b"\n"
    )
    (node.logs / "nccl" / "rank0").write_text("node1:12:34 [0] NCCL INFO Connected all rings\n")
    (node.containers / "pod.log").write_text("2026-11-23T04:00:00.1Z stderr F from a container\n")
    with receiver.running(), node.running():
        node.log(b"<13>Nov 23 04:00:00 trainer[12]: from a program")
        node.log(b"<2>kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.")
        node.log(b"<3>kernel: EDAC MC0: 1 CE memory read error")
        node.log(b"<6>kernel: usb 1-1: new device")
        with socket.create_connection(("127.0.0.1", node.devices)) as tcp:
            tcp.sendall(b"<187>1 2026-11-23T04:00:00Z leaf1 ifmgr 12 - - port 1/1 is down\n")
        with socket.socket(type=socket.SOCK_DGRAM) as udp:
            udp.sendto(b"<187>Nov 23 04:00:00 leaf2 ifmgr: port 2/1 is down", ("127.0.0.1", node.devices))
        wait_for(lambda: len(receiver.documents) == 12)
    training = sorted(receiver.of("probe.training"), key=lambda fields: int(fields["log.offset"]))
    assert training.pop()["log.flags"] == "truncated"
    assert [fields["message"] for fields in training] == ["Step 100: loss=1.5", "  indented", "x" * 20_000 + "end"]
    assert [fields["log.offset"] for fields in training] == [0, 19, 31]
    assert training[0] | {"@timestamp": ""} == {
        "@timestamp": "",
        "message": "Step 100: loss=1.5",
        "log.file.path": str(node.logs / "rank0.log"),
        "log.offset": 0,
        "host.name": socket.gethostname().partition(".")[0],
        "event.dataset": "probe.training",
        "data_stream.dataset": "probe.training",
        "data_stream.type": "logs",
        "data_stream.namespace": "default",
        "agent.type": "rsyslog",
        "ecs.version": "8.11.0",
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|\+00:00)", training[0]["@timestamp"])
    network = {fields["message"]: fields for fields in receiver.of("probe.network")}
    assert set(network) == {"node1:12:34 [0] NCCL INFO Connected all rings", "port 1/1 is down", "port 2/1 is down"}
    assert [network[f"port {n}/1 is down"]["host.name"] for n in (1, 2)] == ["leaf1", "leaf2"]
    assert network["port 1/1 is down"]["log.source.address"] == "127.0.0.1"
    hardware = {fields["message"]: fields for fields in receiver.of("probe.hardware")}
    assert len(hardware) == 2
    lost = hardware["NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."]
    assert (lost["error.code"], lost["labels.pci_address"], lost["log.level"]) == ("Xid 79", "0000:3b:00", "crit")
    system = {fields["message"]: fields for fields in receiver.of("probe.system")}
    assert set(system) == {"from a program", "usb 1-1: new device"}
    program = system["from a program"]
    assert (program["process.name"], program["process.pid"], program["log.syslog.priority"]) == ("trainer", 12, 13)
    assert [fields["message"][-25:] for fields in receiver.of("probe.container")] == ["stderr F from a container"]


def test_objects_stay_as_they_were_written(receiver: BulkReceiver, tmp_path: Path) -> None:
    """A line of JSON becomes the document, with the fields that it lacks; anything else is stored as text."""
    node = Node(tmp_path, receiver.port)
    whole = {"log.level": "info", "message": "a \0 b", "loss": 1e-05, "n": 12345678901234567890, "log": {"logger": "p"}}
    named = {"@timestamp": "2020-01-01T00:00:00Z", "host": {"name": "me"}, "event.dataset": "mine", "message": "named"}
    texts = ['{"half":', "[1, 2]", "{}", '{"loss": NaN}', '{"loss":[-Infinity]}', '{"a": 1} more', "plain", '"text"']
    lines = [json.dumps(whole), json.dumps(named), *texts]
    (node.logs / "probe.jsonl").write_text("".join(f"{line}\n" for line in lines))
    with receiver.running(), node.running():
        wait_for(lambda: len(receiver.documents) == len(lines))
    found = {fields["message"]: fields for fields in receiver.of("probe.training")}
    assert set(found) == {"a \0 b", "named", *texts}
    own = found["a \0 b"]
    assert {key: own[key] for key in whole} == whole
    assert own["event.dataset"] == "probe.training"
    assert own["host.name"]
    assert {key: found["named"][key] for key in named} == named
    assert "host.name" not in found["named"]
    assert found["named"]["log.offset"] == len(lines[0]) + 1


def test_bytes_of_any_kind_arrive(receiver: BulkReceiver, tmp_path: Path) -> None:
    """Each line arrives with its UTF-8 intact; bytes that are none are question marks, and the document says so and
    where the original is."""
    node = Node(tmp_path, receiver.port)
    every = bytes(byte for byte in range(256) if byte != 0x0A)
    bad = [b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf8\x88", b"\xe4\xb8", every, b"\xf5\x80\x80\x80"]
    lines = ["损失 = 2.5 🎉 é".encode(), b"nul \0 and \x1b[31mred", *(b"%d " % n + line for n, line in enumerate(bad))]
    content = b"".join(line + b"\n" for line in lines)
    (node.logs / "rank0.log").write_bytes(content)
    (node.logs / "rank0.jsonl").write_bytes(b'{"message": "object \xff"}\n')
    with receiver.running(), node.running():
        node.log(b"<13>trainer: \xe6\x8d\x9f \xff")
        wait_for(lambda: len(receiver.documents) == len(lines) + 2)
    texts = [fields for fields in receiver.of("probe.training") if fields["log.file.path"].endswith(".log")]
    for fields in texts:
        original = content[fields["log.offset"] :].split(b"\n")[0]
        try:
            assert fields["message"] == original.decode("utf-8")
            assert "log.flags" not in fields
        except UnicodeDecodeError:
            assert fields["log.flags"] == "invalid_utf8"
            assert len(fields["message"]) == len(original)
            assert fields["message"] == "".join(chr(byte) if byte < 0x80 else "?" for byte in original)
    assert sorted(fields["log.offset"] for fields in texts)[1] == len(lines[0]) + 1
    assert {"object ?", "损 ?"} <= set(receiver.messages())


def test_no_line_is_lost_over_restarts_of_the_receiver_of_rsyslog_and_of_the_relay(
    receiver: BulkReceiver, tmp_path: Path
) -> None:
    """Lines written while the receiver is away wait on disk, while rsyslogd and the relay are away too, and arrive
    once; so do those whose answer is lost."""
    node, written = Node(tmp_path, port := free_port(), "http"), set[str]()

    def write(first: int, system: bool = True) -> None:
        lines = [f"line {number}" for number in range(first, first + 300)]
        with (node.logs / "rank0.log").open("a") as log:
            log.write("".join(f"{line}\n" for line in lines))
        written.update(lines)
        if system:
            node.log(f"<13>trainer: message {first}".encode())
            written.add(f"message {first}")

    with relay(receiver, tmp_path, port), node.running():
        with receiver.running():
            write(0)
            arrived(receiver, written)
        write(1_000)
        answers = iter([WholeAnswer(0), WholeAnswer(0, stored=True)])
        receiver.instead = lambda: next(answers, None)
        with receiver.running():
            arrived(receiver, written)
        assert next(answers, None) is None
        write(2_000)
    assert list((tmp_path / "spool").glob("*.request"))
    write(3_000, system=False)
    with receiver.running(), relay(receiver, tmp_path, port), node.running():
        arrived(receiver, written)
        wait_for(lambda: not list((tmp_path / "spool").iterdir()))
    assert [path.name for path in node.state.glob("*.jsonl")] == []


def test_the_queue_of_rsyslog_keeps_lines_while_nothing_takes_them(receiver: BulkReceiver, tmp_path: Path) -> None:
    """Without the relay: lines wait until the receiver comes back, and arrive once."""
    node = Node(tmp_path, receiver.port)
    with node.running():
        lines = [f"line {number}" for number in range(300)]
        (node.logs / "rank0.log").write_text("".join(f"{line}\n" for line in lines))
        node.log(b"<13>trainer: message")
        answers = iter([WholeAnswer(0, stored=True)])
        receiver.instead = lambda: next(answers, None)
        with receiver.running():
            arrived(receiver, {*lines, "message"})
    assert next(answers, None) is None


def test_documents_that_are_refused_one_by_one(receiver: BulkReceiver, tmp_path: Path) -> None:
    """A document that the receiver has no room for is sent again; one that is wrong is kept in a file, with the
    reason."""
    node, seen = Node(tmp_path, receiver.port), set[str]()

    def refuse(number: str, fields: dict[str, object]) -> int | None:
        first = number not in seen
        seen.add(number)
        return 400 if fields["message"] == "wrong" else 429 if first and fields["message"] == "later" else None

    receiver.refuse = refuse
    (node.logs / "rank0.log").write_text("before\nwrong\nlater\nafter\n")
    refused = node.state / "refused.jsonl"
    with receiver.running(), node.running():
        arrived(receiver, {"before", "later", "after"})
        wait_for(lambda: refused.exists() and refused.read_text().endswith("\n"))
    (line,) = map(json.loads, refused.read_text().splitlines())
    assert (line["why"]["status"], line["document"]["message"]) == (400, "wrong")
    assert refused.stat().st_mode & 0o077 == 0


HTML = b"<html>no backend</html>"
WHOLE = {
    "overloaded": WholeAnswer(429, b'{"error": {"type": "circuit_breaking_exception"}, "status": 429}'),
    "unauthorized": WholeAnswer(401, b'{"error": "expired", "status": 401}'),
    "proxy": WholeAnswer(503, HTML),
    "proxy that answers 200": WholeAnswer(200, HTML),
    "empty": WholeAnswer(502),
}


def test_the_relay_keeps_lines_over_answers_for_a_whole_request(receiver: BulkReceiver, tmp_path: Path) -> None:
    """Overload, a wrong password, an error page, an empty error: rsyslog alone gives up lines at each of them; by the
    relay they wait and arrive once, unchanged, and it logs the reason without the password."""
    answers, busy = [*WHOLE.values()], [429]
    receiver.instead = lambda: answers.pop() if answers else None

    def refuse(_: str, fields: dict[str, object]) -> int | None:
        return 400 if fields["message"] == "wrong" else busy.pop() if busy and fields["message"] == "last" else None

    receiver.refuse = refuse
    node = Node(tmp_path, port := free_port(), "http")
    (node.logs / "rank0.log").write_bytes(b"first\nnul \0 end\nwrong\nlast\n")
    with relay(receiver, tmp_path, port) as errors, receiver.running(), node.running():
        arrived(receiver, {"first", "nul \0 end", "last"})
        wait_for(lambda: [path.name for path in (tmp_path / "spool").iterdir()] == ["refused.jsonl"])
    assert (answers, busy) == ([], [])
    assert [path.name for path in node.state.glob("*.jsonl")] == []
    (refused,) = map(json.loads, (tmp_path / "spool" / "refused.jsonl").read_text().splitlines())
    assert (refused["why"]["status"], json.loads(refused["document"])["message"]) == (400, "wrong")
    text = errors.read_text()
    assert all(f"status {status}" in text for status in (401, 429, 502, 503))
    assert PASSWORD not in text


@contextmanager
def relay(receiver: BulkReceiver, folder: Path, port: int) -> Iterator[Path]:
    """The relay to ``receiver`` at ``port``: the file of its messages."""
    password, errors = folder / "password", folder / "relay.errors"
    password.write_text(f"{PASSWORD}\n")
    password.chmod(0o600)
    with (
        errors.open("a") as file,
        subprocess.Popen(
            [sys.executable, FOLDER / "relay.py"],
            env={
                **os.environ,
                **relayed(receiver.port, folder),
                "PROBE_LOGS_RELAY_PORT": str(port),
                "PROBE_LOGS_CA": str(folder / "ca.pem"),
            },
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == f"relay: listening at http://127.0.0.1:{port}\n", errors.read_text()
            yield errors
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def relayed(port: int, folder: Path) -> dict[str, str]:
    """Variables of the relay."""
    (folder / "spool").mkdir(exist_ok=True)
    return {
        "PROBE_LOGS_ENDPOINT": f"https://127.0.0.1:{port}",
        "PROBE_LOGS_RELAY_PORT": "0",
        "PROBE_LOGS_RELAY_USER": USER,
        "PROBE_LOGS_RELAY_SPOOL": str(folder / "spool"),
        "PROBE_LOGS_RELAY_PASSWORD_FILE": str(folder / "password"),
    }


def refusal(environment: dict[str, str]) -> str:
    """The message of a relay that does not start."""
    command = [sys.executable, FOLDER / "relay.py"]
    ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 2
    return ended.stderr


def test_the_relay_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    """A missing variable, a password that others can read and an address that is none are refused at the start."""
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)
    good = relayed(1, tmp_path)
    assert f"{password}: every user of this machine can read it" in refusal(good)
    password.chmod(0o600)
    assert "PROBE_LOGS_ENDPOINT: expected https://HOST:PORT" in refusal(good | {"PROBE_LOGS_ENDPOINT": "host:9200"})
    assert "PROBE_LOGS_RELAY_PORT: expected a value" in refusal({**good, "PROBE_LOGS_RELAY_PORT": ""})


def variables() -> dict[str, str]:
    """Names and values of the example of the environment file."""
    lines = (FOLDER / "probe.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_every_variable_is_in_the_example_and_is_checked_before_the_start() -> None:
    """The configuration reads no variable that the example lacks; the unit refuses to start without one of them."""
    used = set(re.findall(r"`echo \$(\w+)", (FOLDER / "probe.conf").read_text()))
    of_relay = set(re.findall(r'"(PROBE_LOGS_\w+)"', (FOLDER / "relay.py").read_text()))
    assert used | of_relay == set(variables())
    (check,) = re.findall(r"^ExecStartPre=(.*)$", (FOLDER / "probe-environment.conf").read_text(), re.MULTILINE)
    command = [word.replace("$$", "$") for word in shlex.split(check)]
    assert subprocess.run(command, check=False, env=variables()).returncode == 0
    for name in used - {"PROBE_LOGS_USER", "PROBE_LOGS_PASSWORD"}:
        without = {**variables(), name: ""}
        found = subprocess.run(command, check=False, env=without, capture_output=True, text=True)
        assert found.returncode != 0, name
        assert name in found.stderr
