"""Real servers of objects on loopback: SeaweedFS, and moto's server for what differs between implementations.

Faults between a server and its client are those of :mod:`tests.faulty_proxy`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.quick_python import quick_python
from tests.required import require, require_program
from tests.waiting import free_port, wait_for

KEY, SECRET = "probe-reader", "a/secret+that%is never=shown"
BUCKET = "runs"
REGION = "us-east-1"


class ObjectServer(NamedTuple):
    """Server of objects with one pair of keys."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which every client finds the server."""
        return environment(self.url)

    def client(self) -> Any:
        """Client of the test's own, to put objects there and take them away."""
        from botocore.config import Config

        return require("boto3").client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name=REGION,
            config=Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"}),
        )

    def put(self, folder: Path, prefix: str) -> str:
        """Copy the files in ``folder`` into the bucket; return the URL of the copy."""
        client = self.client()
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                key = f"{prefix}/{path.relative_to(folder)}"
                client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())
        return f"s3://{BUCKET}/{prefix}"


def environment(url: str) -> dict[str, str]:
    """Variables of a client of the server, or the proxy, at ``url``."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": url,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1",
    }


@contextmanager
def seaweedfs(folder: Path, port: int = 0) -> Iterator[ObjectServer]:
    """SeaweedFS in one process, with its data in ``folder``; a folder that has data is gone on with."""
    program = _program("weed")
    keys = {"name": KEY, "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
    folder.mkdir(exist_ok=True)
    (folder / "s3.json").write_text(
        json.dumps({"identities": [{**keys, "actions": ["Admin", "Read", "List", "Tagging", "Write"]}]})
    )
    port = port or free_port()
    command = [program, "server", f"-dir={folder}", "-ip=127.0.0.1", "-s3", f"-s3.port={port}", "-s3.iam=false"]
    command += [f"-s3.config={folder / 's3.json'}", "-volume.max=20", "-master.volumeSizeLimitMB=64"]
    for part in ("master", "volume", "filer"):
        first = free_port()
        command += [f"-{part}.port={first}", f"-{part}.port.grpc={free_port()}"]
    command += [f"-s3.port.grpc={free_port()}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += ["-master.telemetry=false"]  # it would report statistics of the cluster to its makers
    with _running(command, folder / "weed.log", f"http://127.0.0.1:{port}") as server:
        yield server


@contextmanager
def moto(folder: Path, port: int = 0) -> Iterator[ObjectServer]:
    """moto's server, which keeps objects in memory and checks no signature."""
    require("moto.server")
    port = port or free_port()
    command = [quick_python("moto.server"), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    folder.mkdir(exist_ok=True)
    with _running(command, folder / "moto.log", f"http://127.0.0.1:{port}") as server:
        yield server


def _program(name: str) -> str:
    """The program beside this Python, else the one on the path."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else require_program(name)


@contextmanager
def _running(command: list[str], log: Path, url: str) -> Iterator[ObjectServer]:
    server = ObjectServer(url)
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            wait_for(
                lambda: _answers(server, process, log), about=f"no answer from {command[0]}: {log.read_text()[-2000:]}"
            )
            yield server
        finally:
            process.kill()  # asked to end, SeaweedFS (4.48) takes 25 s


def _answers(server: ObjectServer, process: subprocess.Popen[bytes], log: Path) -> bool:
    """Whether the bucket is there; it is made as soon as the server can."""
    from botocore.exceptions import BotoCoreError, ClientError

    assert process.poll() is None, log.read_text()[-2000:]
    try:
        client = server.client()
        if BUCKET not in [each["Name"] for each in client.list_buckets()["Buckets"]]:
            client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key=".ready", Body=b"1")  # a volume has been found for it
        client.delete_object(Bucket=BUCKET, Key=".ready")
    except (BotoCoreError, ClientError):
        return False
    return True


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """SeaweedFS for the tests of a module."""
    require("s3fs")
    with seaweedfs(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="module", params=["seaweedfs", "moto"])
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """Each implementation in turn."""
    require("s3fs")
    if request.param == "seaweedfs":
        yield request.getfixturevalue("seaweed")
        return
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server
