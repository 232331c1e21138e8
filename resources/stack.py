"""Everything beside training on one machine: Prometheus, Alertmanager, the node exporter, `probe exporter`, `probe
remediate`, and a training on two ranks whose weights are spoilt once.

    make stack                            or: python resources/stack.py --folder stack

It prints the addresses, follows what happens, and ends at Ctrl-C, or when the training has ended. The configurations
are those of this folder; only addresses, and receivers that need accounts, are replaced. Prometheus, Alertmanager and
the node exporter come from Debian's packages.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import yaml

RESOURCES = Path(__file__).resolve().parent
TRAINING = RESOURCES.parent / "examples" / "train_with_commands.py"
START_SECONDS = 60.0
"""Longest time for a program to be ready."""
END_SECONDS = 10.0
JOB = "stack"
MONITOR = {
    "format": ["csv", "prometheus"],
    "wg_distribution": True,
    "step_interval": 10,
    "dynamic_seconds": 1.0,
    "run": {"job": JOB},
}
ACTIONS = {
    "undo": {
        "alerts": ["TrainingLossNaN", "TrainingLossSpike", "GradientExplosion"],
        "do": "command_training",
        "seconds": 60,
        "per_target_per_hour": 5,
        "args": {
            "commands": [
                {"command": "rollback_checkpoint"},
                {"command": "reduce_learning_rate", "args": {"factor": 0.5}},
            ]
        },
    }
}


SAME_ALERT_SECONDS = 5.0
"""Time after an action in which the next fault does not have it: few, so that several can be tried in a row."""


class StackError(Exception):
    """Error of a part that cannot be started, for the person who starts it."""


def free_port() -> int:
    """Return a port of the loopback address that nobody uses now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def answer_of(address: str, seconds: float = 2.0, body: bytes | None = None) -> Any:
    """Return the answer of ``address``: JSON if it is, else text.

    Raises:
        OSError: if there is none.
    """
    request = Request(address, body, {"Content-Type": "application/json"})  # noqa: S310 - an address of this script
    with urlopen(request, timeout=seconds) as answer:  # noqa: S310
        text = answer.read().decode("utf-8", "replace")
    with suppress(ValueError):
        return json.loads(text)
    return text


class Part:
    """One program of the stack.

    Args:
        command: program and arguments.
        ready: address that answers once the program is ready; None: it need not be waited for.
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, ready: str | None, environment: Mapping[str, str]
    ) -> None:
        self.name, self._command, self._ready = name, list(command), ready
        self.log = folder / f"{name}.log"
        self._folder, self._environment = folder, {**os.environ, **environment}
        self.process: subprocess.Popen[bytes] | None = None
        self._asked = False
        """Whether the program has been asked to end."""

    def start(self) -> None:
        """Start the program."""
        self._asked = False
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - commands of this script
                self._command,
                cwd=self._folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until the program is ready.

        Raises:
            StackError: if it ends, or is not ready in time.
        """
        assert self.process is not None, "it has been started"
        deadline = time.monotonic() + START_SECONDS
        while self._ready is not None and not _answers(self._ready):
            if self.process.poll() is not None or time.monotonic() > deadline:
                last = "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-15:])
                raise StackError(f"{self.name} is not ready; the end of {self.log}:\n{last}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End the program without notice."""
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def end(self) -> None:
        """Ask the program to end, once."""
        if self.process is not None and self.process.poll() is None and not self._asked:
            self._asked = True
            self._signal(signal.SIGTERM)

    def stop(self) -> int | None:
        """End the program; return its exit status."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.end()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)
        self._signal(signal.SIGKILL)  # what it has started, too
        return self.process.wait()

    def _signal(self, number: int) -> None:
        if self.process is not None:
            with suppress(OSError):
                os.killpg(self.process.pid, number)


class Stack:
    """The programs, their files and their addresses.

    Args:
        folder: gets all files; made if missing.
        steps: steps of the training.
        step_seconds: least duration of a step.
        fault_at: step before which the weights are spoilt; None: never.
        fault: ``nan`` or ``spike``.
        webhook: address that gets every notice of Alertmanager, too.
    """

    def __init__(
        self,
        folder: Path,
        steps: int = 100_000,
        step_seconds: float = 0.05,
        fault_at: int | None = 400,
        fault: str = "nan",
        webhook: str | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        names = ("prometheus", "alertmanager", "node-exporter", "exporter", "remediation")
        self.ports = {name: free_port() for name in names}
        self.addresses = {name: f"http://127.0.0.1:{port}" for name, port in self.ports.items()}
        self.configuration = self.folder / "monitor.json"
        self._webhook = webhook
        self._training = ["--steps", str(steps), "--step-seconds", str(step_seconds), "--fault", fault]
        self.fault = self.folder / "fault"
        """File that spoils the weights once it is there."""
        self._training += ["--fault-file", str(self.fault)]
        self._training += [] if fault_at is None else ["--fault-at", str(fault_at)]
        self.parts = {part.name: part for part in self._made()}

    def _made(self) -> Iterator[Part]:
        self._write()
        probe = [sys.executable, "-c", "from probe.cli import main; main()"]
        own = {"PROBE_PROGRESS_DIR": str(self.folder / "progress"), "PYTHONPATH": str(RESOURCES.parent)}
        training = own | {"MONITOR_OUTPUT_DIR": str(self.folder / "output"), "OMP_NUM_THREADS": "1"}
        at = self.ports
        yield Part(
            "exporter",
            [*probe, "exporter", "--listen", f"127.0.0.1:{at['exporter']}", "--interval", "2"],
            self.folder,
            f"{self.addresses['exporter']}/health",
            own,
        )
        yield Part(
            "remediation",
            [*probe, "remediate", "--config", str(self.folder / "remediation.yaml")],
            self.folder,
            f"{self.addresses['remediation']}/health",
            own,
        )
        yield Part(
            "node-exporter",
            [
                program("prometheus-node-exporter", "node_exporter"),
                f"--web.listen-address=127.0.0.1:{at['node-exporter']}",
            ],
            self.folder,
            self.addresses["node-exporter"],
            {},
        )
        yield Part(
            "alertmanager",
            [
                program("prometheus-alertmanager", "alertmanager"),
                f"--config.file={self.folder}/alertmanager/alertmanager.yml",
                f"--storage.path={self.folder}/alertmanager/data",
                f"--web.listen-address=127.0.0.1:{at['alertmanager']}",
                "--cluster.listen-address=",
            ],
            self.folder,
            f"{self.addresses['alertmanager']}/-/ready",
            {},
        )
        yield Part(
            "prometheus",
            [
                program("prometheus"),
                f"--config.file={self.folder}/prometheus/prometheus.yml",
                f"--storage.tsdb.path={self.folder}/prometheus/data",
                "--storage.tsdb.retention.time=1d",
                "--web.enable-lifecycle",
                f"--web.listen-address=127.0.0.1:{at['prometheus']}",
            ],
            self.folder,
            f"{self.addresses['prometheus']}/-/ready",
            {},
        )
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
        launch += ["--rdzv-endpoint=127.0.0.1:0", str(TRAINING), "--config", str(self.configuration)]
        yield Part("training", [*launch, *self._training], self.folder, None, training)

    def _write(self) -> None:
        """Write the configurations: those of this folder with other addresses."""
        folder = self.folder
        self.configuration.write_text(json.dumps(MONITOR))
        shutil.copytree(RESOURCES / "prometheus", folder / "prometheus", dirs_exist_ok=True)
        for path in (folder / "prometheus" / "targets").iterdir():
            name = {"probe-exporter": "exporter"}.get(path.stem, path.stem)
            targets = [{"targets": [f"127.0.0.1:{self.ports[name]}"]}] if name in self.ports else []
            path.write_text(yaml.safe_dump(targets))
        (folder / "alertmanager").mkdir(exist_ok=True)
        shutil.copytree(RESOURCES / "alertmanager", folder / "alertmanager", dirs_exist_ok=True)
        path = folder / "alertmanager" / "alertmanager.yml"
        path.write_text(yaml.safe_dump(self._without_accounts(yaml.safe_load(path.read_text("utf-8")))))
        (folder / "remediation.yaml").write_text(
            yaml.safe_dump(
                {
                    "listen": f"127.0.0.1:{self.ports['remediation']}",
                    "database": str(folder / "remediation.sqlite"),
                    "dry_run": False,
                    "jobs": {JOB: {"configuration": str(self.configuration), "ranks": 2}},
                    "actions": ACTIONS,
                    "limits": {"same_alert_seconds": SAME_ALERT_SECONDS},
                }
            )
        )
        (folder / "remediation.yaml").chmod(0o600)

    def _without_accounts(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return Alertmanager's configuration with webhooks alone: to remediation, and to the address of the stack."""
        config.pop("global", None)
        webhooks = [{"url": f"{self.addresses['remediation']}/webhook", "send_resolved": True}]
        if self._webhook is not None:
            webhooks.append({"url": self._webhook, "send_resolved": True})
        config["receivers"] = [{"name": each["name"], "webhook_configs": webhooks} for each in config["receivers"]]
        return config

    @contextmanager
    def running(self, started: Callable[[Part], None] = lambda _: None) -> Iterator[Stack]:
        """Start all parts at one time, wait for each, and stop them all at the end.

        Raises:
            StackError: if a part cannot be started.
        """
        with ExitStack() as stack:
            for part in self.parts.values():
                stack.callback(part.stop)
                part.start()
            for part in self.parts.values():
                stack.callback(part.end)  # all of them before the first wait
                part.wait_until_ready()
                started(part)
            yield self

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """Return the labels and values that Prometheus has for ``expression`` now."""
        body = f"query={_quoted(expression)}".encode()
        request = Request(f"{self.addresses['prometheus']}/api/v1/query", body)  # noqa: S310
        with urlopen(request, timeout=5) as answer:  # noqa: S310
            found = json.load(answer)["data"]["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def history(self) -> list[dict[str, Any]]:
        """Return what remediation has done, the newest first."""
        found: Any = answer_of(f"{self.addresses['remediation']}/history")
        entries: list[dict[str, Any]] = found["history"] if isinstance(found, dict) else found
        return entries


def program(*names: str) -> str:
    """Return the path of the first of ``names`` that is installed.

    Raises:
        StackError: if none is.
    """
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise StackError(
            f"{names[0]} is not installed. On Debian: apt-get install prometheus "
            "prometheus-alertmanager prometheus-node-exporter"
        )
    return found


def _answers(address: str) -> bool:
    try:
        answer_of(address)
    except (URLError, OSError, ValueError):
        return False
    return True


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text)


def follow(stack: Stack, seconds: float) -> None:
    """Print what happens until the training ends or ``seconds`` have passed."""
    training, seen, deadline = stack.parts["training"], 0, time.monotonic() + seconds
    while time.monotonic() < deadline and training.process is not None and training.process.poll() is None:
        with suppress(OSError, ValueError, KeyError):
            entries = list(reversed(stack.history()))
            for entry in entries[seen:]:
                print("remediation:", json.dumps(entry)[:400], flush=True)
            seen = len(entries)
        time.sleep(1.0)
    for line in training.log.read_text("utf-8", "replace").splitlines():
        if line.startswith("rank "):
            print("training:", line)


def main() -> None:
    """Start everything, print the addresses, and follow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("stack"), help="folder for all files")
    parser.add_argument("--steps", type=int, default=100_000, help="steps of the training")
    parser.add_argument("--fault-at", type=int, default=400, help="step before which the weights are spoilt")
    parser.add_argument("--fault", choices=("nan", "spike"), default="nan")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        stack = Stack(args.folder, args.steps, fault_at=args.fault_at, fault=args.fault)
        with stack.running(
            lambda part: print(f"{part.name:<14}{stack.addresses.get(part.name, part.log)}", flush=True)
        ):
            print(
                f"files         {stack.folder}\nThe weights are spoilt at step {args.fault_at}. Ctrl-C ends it.",
                flush=True,
            )
            follow(stack, args.seconds)
    except StackError as error:
        sys.exit(f"stack: {error}")
    except KeyboardInterrupt:
        pass
    print("stopped")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
