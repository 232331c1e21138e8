"""Readings of the machine: processors, memory, load, network, and file systems, which may never answer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from probe.core.faults import Faults
from probe.core.worker import Worker
from probe.services.exporter.readings.catalogue import ReadingLine

NETWORK = frozenset(
    {"9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs",
     "panfs", "pvfs2", "smb3", "virtiofs", "wekafs"}
)  # fmt: skip
"""Kinds of file systems without a device of this machine that hold data nevertheless; of FUSE's every one does."""
FULL = frozenset({"cramfs", "erofs", "iso9660", "squashfs", "udf"})
"""Kinds that cannot be written: they are always full."""
MEMORY = "/dev/shm"  # noqa: S108 - its size is read
"""File system in memory by which processes of a data loader pass batches."""
VIRTUAL = ("br-", "cali", "cni", "docker", "dummy", "flannel", "ifb", "lo", "lxc", "tunl", "veth", "virbr")
"""Beginnings of the names of network devices that no cable ends at: a node of Kubernetes has hundreds of them."""


class MountedDisk(NamedTuple):
    """Mounted file system."""

    device: str
    fstype: str
    mountpoint: str


class HostReader:
    """Reader of the machine.

    Args:
        seconds: longest wait for the file systems.
    """

    def __init__(self, seconds: float) -> None:
        import psutil  # type: ignore[import-untyped, unused-ignore]

        self._psutil: Any = psutil
        self._seconds = seconds
        self._asked: dict[MountedDisk, _Answer] = {}
        self._is_first = True
        psutil.cpu_percent()

    def read(self) -> ReadingLine:
        """Return a reading of the machine."""
        line, psutil = ReadingLine(), self._psutil
        utilization = psutil.cpu_percent() / 100
        if not self._is_first:  # a ratio needs two looks
            line.add("probe_host_cpu_utilization_ratio", {}, utilization)
        self._is_first = False
        line.add("probe_host_cpus", {}, os.cpu_count() or 1)
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        line.add("probe_host_memory_total_bytes", {}, memory.total)
        line.add("probe_host_memory_available_bytes", {}, memory.available)
        line.add("probe_host_swap_total_bytes", {}, swap.total)
        line.add("probe_host_swap_used_bytes", {}, swap.used)
        for minutes, load in zip((1, 5, 15), os.getloadavg(), strict=True):
            line.add(f"probe_host_load{minutes}", {}, load)
        for name, count in (psutil.net_io_counters(pernic=True, nowrap=True) or {}).items():
            if name.startswith(VIRTUAL):
                continue
            line.add("probe_host_network_receive_bytes_total", {"device": name}, count.bytes_recv)
            line.add("probe_host_network_transmit_bytes_total", {"device": name}, count.bytes_sent)
        self._add_disks(line)
        return line

    def _add_disks(self, line: ReadingLine) -> None:
        """Ask every file system at once. One that has not answered the last question is not asked again."""
        mounted = list(disks(self._psutil.disk_partitions(all=False), self._psutil.disk_partitions(all=True)))
        self._asked = {disk: self._asked.get(disk) or _Answer(disk.mountpoint) for disk in mounted}
        end = time.monotonic() + self._seconds
        for disk, answer in list(self._asked.items()):
            answer.wait(end - time.monotonic())
            labels = disk._asdict()
            line.add("probe_host_disk_hung", labels, int(answer.is_missing))
            if answer.size is not None:
                line.add("probe_host_disk_total_bytes", labels, answer.size[0])
                line.add("probe_host_disk_free_bytes", labels, answer.size[1])
            if not answer.is_missing:
                del self._asked[disk]


class _Answer:
    """Size of a file system and free space in it, asked on a thread of its own."""

    def __init__(self, mountpoint: str) -> None:
        self.size: tuple[int, int] | None = None
        self._mountpoint, self._worker = mountpoint, Worker("probe-disk", "disks", Faults("the readings go on"))
        self._worker.end(self._ask)

    def wait(self, seconds: float) -> None:
        self._worker.join(seconds)

    @property
    def is_missing(self) -> bool:
        return not self._worker.join(0.0)

    def _ask(self) -> None:
        try:
            status = os.statvfs(self._mountpoint)
        except OSError:  # a stale handle, no rights
            return
        if status.f_blocks:
            self.size = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def disks(physical: list[Any], every: list[Any]) -> Iterator[MountedDisk]:
    """Yield the file systems that hold data, each once, by the shortest path at which it is mounted.

    Args:
        physical: partitions with a device of this machine, as psutil lists them.
        every: all that is mounted.
    """
    devices = {mount.device for mount in physical}
    seen = set[str]()
    for mount in sorted(every, key=lambda mount: (len(mount.mountpoint), mount.mountpoint)):
        by_path = mount.mountpoint in ("/", MEMORY)
        is_listed = mount.device in devices or mount.fstype in NETWORK or mount.fstype.startswith("fuse.") or by_path
        place = mount.mountpoint if by_path else mount.device
        if is_listed and mount.fstype not in FULL and place not in seen:
            seen.update((place, mount.device) if mount.device in devices else (place,))
            yield MountedDisk(mount.device, mount.fstype, mount.mountpoint)
