"""Readings of devices and of the machine: right in their units, left out where they are missing, never waited for."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from probe.services.exporter import reading_process
from probe.services.exporter.reading_process import ReadingProcess, parsed
from probe.services.exporter.readings.ascend import parsed as npus
from probe.services.exporter.readings.host import HostReader, disks
from tests.required import require, require_program
from tests.services.exporter_process import Exported, exporting
from tests.services.metrics_rank import rank
from tests.waiting import wait_for

require("starlette")
require("uvicorn")
psutil = require("psutil")
require("prometheus_client")

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
QUICK = ("--interval", "0.1", "--deadline", "1")
FIRST = {"gpu_id": "0", "gpu_name": 'Test "GPU"', "gpu_uuid": "GPU-0"}
SECOND = {"gpu_id": "1", "gpu_name": "vGPU", "gpu_uuid": "GPU-1"}
TABLE = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.1                   Version: 24.1.1                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 178.5       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 83          0    / 0          3416 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | Alarm         | -           41                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          26838/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       1                 | 4711          | python                   | 3000                    |
+===========================+===============+====================================================+
"""


def library(name: str, folder: Path, *options: str) -> Path:
    """A library that is compiled from the file ``name``."""
    compiler = require_program("cc", "gcc", "clang")
    source = HERE / f"{name}.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", folder / f"{name}.so", source, *options],
                   check=True)  # fmt: skip
    return folder / f"{name}.so"


def is_over(process: Any) -> bool:
    """Whether a process has ended, even if nobody has asked for its exit code."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Machine(NamedTuple):
    """A machine with two GPUs, an NPU of two chips and a file system that does not answer, and its exporter."""

    exporter: Exported
    folder: Path
    """Folder of ranks."""
    mode: Path
    """File that controls the driver of the GPUs."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    require("pynvml")
    folder = tmp_path_factory.mktemp("machine")
    library("fake_nvml", folder).rename(folder / "libnvidia-ml.so.1")
    program = folder / "npu-smi"
    program.write_text(f"#!/bin/sh\n[ \"$1\" = info ] || exit 1\ncat <<'END'\n{TABLE}END\n")
    program.chmod(0o755)
    mode = folder / "mode"
    mode.write_text("o")
    environment = {
        "LD_LIBRARY_PATH": str(folder),
        "FAKE_NVML": str(mode),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "LD_PRELOAD": str(library("stuck_disk", folder, "-ldl")),
        "STUCK_DISK": "/dev/shm",
    }
    with exporting(folder / "errors", *QUICK, "--progress", str(folder), **environment) as started:
        yield Machine(started, folder, mode)
        assert started.process.poll() is None


def test_gpus_are_read_in_the_units_of_the_names(machine: Machine) -> None:
    """Watts of milliwatts; what a GPU does not measure is left out, and everything else is there."""
    page = machine.exporter.wait_for("gpu_power_usage_watts")
    names = {name for name, more in page if set(FIRST.items()) == more}
    assert {name: page.one(name, **FIRST) for name in names} == {
        "gpu_utilization_percent": 87,
        "gpu_memory_used_bytes": 2**30,
        "gpu_memory_total_bytes": 80 * 2**30,
        "gpu_temperature_celsius": 65,
        "gpu_power_usage_watts": 350.5,
        "gpu_power_limit_watts": 700,
        "gpu_xid_last_code": 0,
    }
    assert page.one("gpu_ecc_errors_total", **FIRST, kind="corrected") == 12
    assert page.one("gpu_ecc_errors_total", **FIRST, kind="uncorrected") == 3
    reasons = page.labels("gpu_throttle_active", **FIRST)
    active = {each["reason"] for each in reasons if page.one("gpu_throttle_active", **each)}
    assert (active, len(reasons)) == ({"sw_power_cap", "hw_thermal_slowdown"}, 7)
    names = {name for name, more in page if set(SECOND.items()) <= more}
    assert names == {"gpu_memory_used_bytes", "gpu_memory_total_bytes"}
    assert page.one("gpu_memory_used_bytes", **SECOND) == 2 * 2**30


def test_npus_are_read_by_their_program(machine: Machine) -> None:
    """A real process stands for npu-smi; its table is read in the units of the names."""
    page = machine.exporter.wait_for("npu_utilization_percent")
    one = {"npu_id": "0", "npu_name": "Ascend910", "npu_uuid": "0000:9D:00.0"}
    two = {"npu_id": "1", "npu_name": "Ascend910", "npu_uuid": "0000:9F:00.0"}
    assert {name: page.one(name, **one) for name, more in page if set(one.items()) <= more} == {
        "npu_healthy": 1,
        "npu_power_usage_watts": 178.5,
        "npu_temperature_celsius": 36,
        "npu_utilization_percent": 83,
        "npu_memory_used_bytes": 3416 * 2**20,
        "npu_memory_total_bytes": 65536 * 2**20,
    }
    assert page.of("npu_power_usage_watts", **two) == []
    assert page.one("npu_healthy", **two) == 0
    assert page.one("npu_memory_used_bytes", **two) == 26838 * 2**20
    assert machine.exporter.wait_for("probe_exporter_devices", 4)


def test_a_file_system_that_does_not_answer_is_reported(machine: Machine) -> None:
    """The others are measured, again and again."""
    if not any(each.mountpoint == "/dev/shm" for each in psutil.disk_partitions(all=True)):
        pytest.skip("nothing is mounted at /dev/shm")
    exporter = machine.exporter
    page = exporter.wait_for("probe_host_disk_hung", 1, mountpoint="/dev/shm")
    for _ in range(2):
        assert page.of("probe_host_disk_total_bytes", mountpoint="/dev/shm") == []
        assert page.one("probe_host_disk_hung", mountpoint="/") == 0
        assert page.one("probe_host_disk_total_bytes", mountpoint="/") > 0
        assert page.one("probe_exporter_probe_hung", probe="host") == 0
        page = exporter.wait_for("probe_host_cpu_utilization_ratio")


def test_the_page_of_a_machine_passes_the_checks_of_prometheus(machine: Machine) -> None:
    """Names, types and help texts of devices and of the machine."""
    machine.exporter.wait_for("gpu_power_usage_watts")
    checked = subprocess.run(
        [require_program("promtool"), "check", "metrics"],
        input=machine.exporter.request()[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_gpu_of_a_rank_is_known_by_its_process(machine: Machine) -> None:
    """The driver lists the processes of each GPU."""
    with rank(machine.folder, "job") as running:
        machine.mode.write_text(f"o {running.pid}")
        page = machine.exporter.wait_for("probe_rank_info", gpu_uuid="GPU-0")
        assert len(page.of("probe_rank_info")) == 1
        machine.mode.write_text("o")
        running.do("end")


def test_a_driver_that_hangs_is_reported_and_delays_nothing(machine: Machine) -> None:
    """The page has everything else at once; readings come again when the driver answers again."""
    exporter = machine.exporter
    exporter.wait_for("gpu_power_usage_watts")
    machine.mode.write_text("h")
    with rank(machine.folder, "job") as running:
        exporter.wait_for("probe_exporter_probe_hung", 1, probe="nvml")
        running.do("store", ["probe_training_loss", [], 2.5])
        began = time.monotonic()
        page = exporter.scrape()
        assert time.monotonic() - began < 60  # the driver never answers
        assert page.one("probe_training_loss", job="job") == 2.5
        assert page.one("probe_exporter_probe_hung", probe="npu") == 0
        assert page.of("gpu_power_usage_watts") == []
        assert page.one("probe_exporter_reading_age_seconds", source="nvml") > 0.4
        running.do("end")
    assert "a driver does not answer" in exporter.errors.read_text()
    machine.mode.write_text("o")
    page = exporter.wait_for("gpu_power_usage_watts")
    assert page.one("probe_exporter_probe_hung", probe="nvml") == 0
    assert page.one("probe_exporter_probe_starts_total", probe="nvml") >= 2


def test_an_error_of_a_gpu_and_a_lost_gpu_are_shown(machine: Machine) -> None:
    """The code of the last Xid event; a GPU that has fallen off the bus is counted and its series end."""
    exporter = machine.exporter
    exporter.wait_for("gpu_xid_last_code", 0)
    machine.mode.write_text("x")
    assert exporter.wait_for("gpu_xid_last_code", 79).one("gpu_xid_last_code", **FIRST) == 79
    machine.mode.write_text("l")
    page = exporter.wait_for("probe_exporter_unreadable_devices", 1)
    assert page.labels("gpu_memory_used_bytes") == [SECOND]


def test_without_a_gpu_the_rest_is_served(tmp_path: Path) -> None:
    """One line in the log, no device on the page, and the machine's own numbers. No process of readings outlives it."""
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "PATH": str(tmp_path)}
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    with exporting(tmp_path / "errors", "--interval", "0.1", "--deadline", "60", **environment) as exporter:
        wait_for(lambda: "source=nvml" in exporter.errors.read_text())
        page = exporter.wait_for("probe_host_cpu_utilization_ratio")
        assert page.one("probe_exporter_devices") == 0
        assert [name for name, _ in page if name.startswith(("gpu_", "npu_"))] == []
        assert 0 <= page.one("probe_host_cpu_utilization_ratio") <= 1
        assert page.one("probe_host_memory_total_bytes") == psutil.virtual_memory().total
        disk = shutil.disk_usage("/")
        assert page.one("probe_host_disk_total_bytes", mountpoint="/") == disk.total
        assert page.one("probe_host_disk_free_bytes", mountpoint="/") == pytest.approx(disk.free, rel=0.1)
        assert page.one("probe_exporter_scrapes_total") >= 1
        exporter.wait_for("probe_exporter_reading_age_seconds", source="nvml")
        assert exporter.errors.read_text().count("source=nvml") == 1
        process = psutil.Process(exporter.process.pid)
        wait_for(lambda: len(process.children()) == 2)  # one more where a late one is being replaced
        children = process.children()
        exporter.end(signal.SIGKILL)
        wait_for(lambda: all(map(is_over, children)))


COMMAND = """\
import itertools, json, os, sys, time
mode = open(sys.argv[1]).read()
gpu = {"gpu_id": "7", "gpu_name": "x", "gpu_uuid": "u"}
line = {"series": [["gpu_utilization_percent", gpu, 50], ["probe_host_cpus", {}, 1]], "devices": 1}
while sys.stdin and mode:
    mode = open(sys.argv[1]).read()
    if mode == "garbage":
        os.write(1, b"\\xff\\0{\\n[]\\n" + b"[" * 100_000 + b"\\n")
        os.write(1, json.dumps({"series": [["gpu_what", {}, 1]]}).encode() + b"\\n")
    elif mode == "endless":
        os.write(1, b"x" * 65536)
        continue
    elif mode == "die":
        os._exit(3)
    else:
        print(json.dumps(line), flush=True)
    time.sleep(0.05)
"""


def put(file: Path, text: str) -> None:
    """Write ``text`` in one go: who reads ``file`` meanwhile never finds it empty."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.replace(file)


def test_a_command_takes_the_place_of_the_readings(tmp_path: Path) -> None:
    """Garbage, a line without an end and its death are counted, and it is started again; a series that the machine has
    too stands once on the page."""
    (tmp_path / "command.py").write_text(COMMAND)
    mode = tmp_path / "mode"
    put(mode, "good")
    command = shlex.join([sys.executable, str(tmp_path / "command.py"), str(mode)])
    with exporting(tmp_path / "errors", *QUICK, "--device-command", command) as exporter:
        assert exporter.wait_for("gpu_utilization_percent", 50).labels("gpu_utilization_percent") == [
            {"gpu_id": "7", "gpu_name": "x", "gpu_uuid": "u"}
        ]
        assert exporter.wait_for("probe_host_memory_total_bytes").one("probe_host_cpus") in (1, os.cpu_count())
        put(mode, "garbage")
        wait_for(lambda: exporter.scrape().one("probe_exporter_malformed_readings_total", probe="command") >= 4)
        put(mode, "endless")
        wait_for(lambda: exporter.scrape().one("probe_exporter_probe_starts_total", probe="command") >= 2)
        put(mode, "die")
        wait_for(lambda: "has ended by itself" in exporter.errors.read_text())
        assert exporter.scrape().of("gpu_utilization_percent") == []
        put(mode, "good")
        exporter.wait_for("gpu_utilization_percent", 50)
        process = psutil.Process(exporter.process.pid)
        wait_for(lambda: len(process.children()) == 2)  # those that have ended are waited for by and by
        children = process.children()
        assert exporter.end() == 0
        wait_for(lambda: all(map(is_over, children)))


def test_a_line_without_an_end_is_not_kept() -> None:
    """Beyond its limit the process is ended, long before its reading is late."""
    endless = "import os\nwhile True: os.write(1, bytes(65536))"
    process = ReadingProcess("command", 1.0, 2.0, [sys.executable, "-c", endless])
    process._follow()
    assert (process.malformed, process.hung) == (1, False)


def test_processes_that_cannot_be_killed_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside two that hang in a driver no further one is started, until one of them has ended."""
    with monkeypatch.context() as driver:
        driver.setattr(reading_process, "_kill", lambda _: None)
        process = ReadingProcess("nvml", 0.01, 0.01, ["sleep", "1000"])
        for _ in range(5):
            process._look()
    assert process.starts == len(process._left) == reading_process.MOST_LEFT
    for left in process._left:
        left.kill()
        left.wait()
    process._look()
    assert process.starts == reading_process.MOST_LEFT + 1


def test_a_table_of_npus_names_their_processes() -> None:
    """By the bus of the chip that a process uses; other output is no device."""
    assert npus(TABLE).processes == {"4711": ["0000:9F:00.0"]}
    assert npus("dcmi module initialize failed. ret is -8005\n").devices == 0


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"null", b"1", b"{}", b'{"series": 1}', b'{"series": [], "devices": -1}', b"[" * 100_000, b"\xff",
     b'{"series": [], "devices": "1"}', b'{"series": [], "processes": {"x": []}}', b'{"series": [], "processes": []}'],
)  # fmt: skip
def test_a_line_that_is_no_reading_is_refused(line: bytes) -> None:
    """Its process goes on."""
    with pytest.raises((ValueError, TypeError, AttributeError, RecursionError)):
        parsed(line)


@pytest.mark.parametrize(
    "row",
    [b"1", b"[]", b'["gpu_what", {}, 1]', b'["probe_host_cpus", {}, "1"]', b'["probe_host_cpus", {"a": "b"}, 1]',
     b'["probe_host_cpus", {}, true]', b'["probe_host_cpus", {}, NaN]', b'["probe_host_cpus", {}, 1e999]',
     b'["probe_host_cpus", {}, ' + b"9" * 400 + b"]", b'[["probe_host_cpus"], {}, 1]', b'["probe_host_cpus", [], 1]'],
)  # fmt: skip
def test_a_series_that_is_none_of_the_catalogue_is_left_out(row: bytes) -> None:
    """The others of the line are kept."""
    reading, malformed = parsed(b'{"series": [' + row + b', ["probe_host_load1", {}, 2]]}')
    assert [(each.metric, each.value) for each in reading.samples] == [("probe_host_load1", 2.0)]
    assert malformed == 1


def test_a_file_system_that_hangs_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it answers: each question that gets no answer holds a thread."""
    answers, asked, real = threading.Event(), list[str](), os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        asked.append(path)
        if path == "/":
            answers.wait(60)
        return real(path)

    monkeypatch.setattr("probe.services.exporter.readings.host.os.statvfs", statvfs)
    reader = HostReader(0.02)
    for _ in range(3):
        found = {(name, labels.get("mountpoint")): value for name, labels, value in reader.read().series}
        assert found["probe_host_disk_hung", "/"] == 1
        assert ("probe_host_disk_total_bytes", "/") not in found
    assert asked.count("/") == 1
    answers.set()
    wait_for(
        lambda: (
            ("probe_host_disk_hung", {"mountpoint": "/"}, 0)
            in [(name, {"mountpoint": labels.get("mountpoint")}, value) for name, labels, value in reader.read().series]
        )
    )


def test_each_file_system_with_data_is_taken_once() -> None:
    """By its shortest path; network file systems are, images and the kernel's own are not."""
    partition = type(psutil.disk_partitions(all=True)[0])
    real = [partition("/dev/sda1", "/var/lib/x", "ext4", ""), partition("/dev/sda1", "/", "ext4", "")]
    other = [
        partition("server:/home", "/home", "nfs4", ""),
        partition("server:/home", "/mnt/again", "nfs4", ""),
        partition("proc", "/proc", "proc", ""),
        partition("tmpfs", "/run", "tmpfs", ""),
        partition("tmpfs", "/dev/shm", "tmpfs", ""),
        partition("/dev/loop0", "/snap", "squashfs", ""),
        partition("overlay", "/var/lib/docker/a", "overlay", ""),
        partition("s3", "/bucket", "fuse.s3fs", ""),
    ]
    found = [each.mountpoint for each in disks([*real, other[5]], [*real, *other])]
    assert found == ["/", "/home", "/bucket", "/dev/shm"]
