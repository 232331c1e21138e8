"""The mapped file between a rank and the exporter of its node."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from probe.core.output.metrics import mapped_file
from probe.core.output.metrics.catalogue import Series
from probe.core.output.metrics.mapped_file import MetricsFile, MetricsHeader, MetricsReader, sweep
from tests.quick_python import quick_python
from tests.user_scripts import COMMANDS

ROOT = Path(__file__).resolve().parents[3]
WRITER = """
import sys
import time
from pathlib import Path
import numpy as np
from probe.core.output.metrics.catalogue import Series
from probe.core.output.metrics.mapped_file import MetricsFile, MetricsHeader
file = MetricsFile(Path(sys.argv[1]), MetricsHeader(1, 1, "job", 0, 2, "host", series=300))
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    number = 100 + turn // 50 % 3
    file.store([Series("m", (str(number), str(n))) for n in range(number)], np.full(number, float(turn)))
"""


def header(series: int = 200) -> MetricsHeader:
    return MetricsHeader(os.getpid(), 1, "job", 3, 8, "host", ("GPU-1",), series)


def test_what_is_stored_is_read(tmp_path: Path) -> None:
    """Names and values, NaN and infinities among them; another set of series replaces the first."""
    file = MetricsFile(tmp_path / "rank3.metrics", header())
    reader = MetricsReader(file.path)
    assert reader.header == header()
    assert reader.read()[0] == ()
    assert file.path.stat().st_mode & 0o077 == 0, "numbers of a run are for its user"
    one = (Series("probe_training_loss"), Series("probe_tensor_norm", ("actv", 'a"\n\u4e2d')))
    assert file.store(one, np.array([1.0, np.nan])) == 0
    series, values = reader.read()
    assert series == one
    np.testing.assert_array_equal(values, [1.0, np.nan])
    file.store(one, np.array([np.inf, -1e300]))
    np.testing.assert_array_equal(reader.read()[1], [np.inf, -1e300])
    file.store(one[1:], np.array([5.0]))
    assert reader.read()[0] == one[1:]
    file.close()
    assert not file.path.exists()
    np.testing.assert_array_equal(reader.read()[1], [5.0])
    reader.close()


def test_series_without_room_are_counted(tmp_path: Path) -> None:
    """More series than the file was made for, or longer names than there is room for, are left out, never written
    past the end."""
    file = MetricsFile(tmp_path / "rank3.metrics", header(10))
    reader = MetricsReader(file.path)
    assert file.store([Series("m", (str(n),)) for n in range(12)], np.arange(12.0)) == 2
    np.testing.assert_array_equal(reader.read()[1], np.arange(10.0))
    left = file.store([Series("m", ("x" * 2000, str(n))) for n in range(10)], np.arange(10.0))
    assert left > 0
    assert len(reader.read()[0]) == 10 - left


def test_a_reader_never_sees_half_of_a_write(tmp_path: Path) -> None:
    """While another process writes as fast as it can, every row that is read is whole and belongs to its names."""
    path = tmp_path / "rank0.metrics"
    command = [quick_python(*COMMANDS), "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            reader, seen = MetricsReader(path), set()
            while len(seen) < 300:
                series, values = reader.read()
                if not series:
                    continue
                assert {each.labels[0] for each in series} == {str(len(series))}
                assert len(set(values.tolist())) == 1
                seen.add(values[0])
        finally:
            writer.kill()


@pytest.mark.parametrize("content", [b"", b"probe-metrics-1\n", b"\0" * 200_000, b"probe-metrics-1\n{}" + b"\0" * 9000])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """A file of another kind, or of which a part is missing, is an error that names it."""
    path = tmp_path / "rank0.metrics"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"rank0\.metrics: "):
        MetricsReader(path)


def test_a_torn_file_has_no_series(tmp_path: Path) -> None:
    """A row whose checksum is wrong is not read: the process has ended while it wrote."""
    file = MetricsFile(tmp_path / "rank3.metrics", header())
    file.store([Series("m")], np.array([1.0]))
    data = bytearray(file.path.read_bytes())
    data[mapped_file._places(200)[1] + mapped_file.PART.size] ^= 1
    file.path.write_bytes(data)
    assert MetricsReader(file.path).read()[0] == ()


def test_values_of_an_earlier_set_have_no_names(tmp_path: Path) -> None:
    """A process that has ended between its names and its values leaves values that belong to other names."""
    file = MetricsFile(tmp_path / "rank3.metrics", header())
    file.store([Series("a")], np.array([1.0]))
    before = file.path.read_bytes()
    file.store([Series("b")], np.array([2.0]))
    at = mapped_file._places(200)[1]
    (tmp_path / "torn.metrics").write_bytes(file.path.read_bytes()[:at] + before[at:])
    assert MetricsReader(tmp_path / "torn.metrics").read()[0] == ()
    assert MetricsReader(file.path).read()[0] == (Series("b"),)


def test_a_later_monitor_keeps_its_file(tmp_path: Path) -> None:
    """The end of a monitor does not remove the file of one that has taken its place."""
    one = MetricsFile(tmp_path / "rank3.metrics", header())
    two = MetricsFile(tmp_path / "rank3.metrics", header())
    one.close()
    two.store([Series("m")], np.array([2.0]))
    assert MetricsReader(two.path).read()[1].tolist() == [2.0]


def test_files_of_processes_that_are_gone_are_removed_after_a_day(tmp_path: Path) -> None:
    """Those of today, and those of processes that exist, stay."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    for folder, pid, age in (("a", gone.pid, 2), ("b", gone.pid, 0), ("c", os.getpid(), 2), ("d", gone.pid, 2)):
        (tmp_path / folder).mkdir()
        file = MetricsFile(tmp_path / folder / "rank0.metrics", header()._replace(pid=pid, ranks=2))
        step = time.time() if folder == "d" else 0.0  # in a container whose processes cannot be seen
        file.store([Series("probe_training_last_step_timestamp_seconds")], np.array([step]))
        past = file.path.stat().st_mtime - age * mapped_file.KEPT_SECONDS
        os.utime(file.path, (past, past))
        file.path.with_suffix(".progress").touch()
    sweep(tmp_path / "new")
    for suffix in (".metrics", ".progress"):
        assert [path.parent.name for path in sorted(tmp_path.glob(f"*/*{suffix}"))] == ["b", "c", "d"]
    assert not (tmp_path / "a").exists()
