"""The TensorBoard sink, read back with TensorBoard's own reader."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from probe.core.output.sinks import SINKS
from probe.core.records import Key
from tests.core.output.sink_data import batch, context, snapshot

pytest.importorskip("tensorboardX")
event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def read(directory: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Step, wall time and value of every scalar, by tag."""
    events = event_accumulator.EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    return {
        name: [(event.step, event.wall_time, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_tags_steps_times_and_values_come_back(tmp_path: Path) -> None:
    """Activations and parameters under their documented tags, at their step and time, exact in float32."""
    sink = SINKS["tensorboard"](context(tmp_path / "有 空格", rank=3))
    sink.open()
    keys = (Key("fc", "input"), Key("fc", "input", call=1), Key("fc", "output_1", 2, stage=1))
    values = np.random.default_rng(0).standard_normal((2, 2, 3))
    for step in (5, 6):
        low, high = values[step - 5]
        activations = batch("actv", step, {"min": low, "max": high}, keys=keys, micro_stepped=True)
        gradients = batch("grad_reduced", step, {"min": [0.0], "max": [1e-30]})
        sink.write(snapshot(step, activations, gradients))
    sink.close()
    scalars = read(tmp_path / "有 空格" / "run")
    tags = ["0:fc.input:0/rank3/actv", "0:fc.input:0.call1/rank3/actv", "1:fc.output_1:2/rank3/actv"]
    expected = {
        f"{tag}_{op}": [(5 + i, 1005.0 + i, float(np.float32(values[i][j][row]))) for i in (0, 1)]
        for row, tag in enumerate(tags)
        for j, op in enumerate(("min", "max"))
    }
    expected["0:p0/rank3/post_grad_min"] = [(5, 1005.0, 0.0), (6, 1006.0, 0.0)]
    expected["0:p0/rank3/post_grad_max"] = [(s, 1000.0 + s, float(np.float32(1e-30))) for s in (5, 6)]
    assert scalars == expected


def test_numbers_of_the_run_come_back(tmp_path: Path) -> None:
    """Loss and the like by name and rank; the monitor's own cost under ``probe``."""
    sink = SINKS["tensorboard"](context(tmp_path, rank=1))
    sink.write(snapshot(2, scalars={"loss": 0.5}, cost={"hooks": 0.25}))
    assert read(tmp_path / "run") == {
        "loss/rank1": [(2, 1002.0, 0.5)], "probe/rank1/hooks_seconds": [(2, 1002.0, 0.25)]
    }  # fmt: skip


def test_nan_and_infinities_survive(tmp_path: Path) -> None:
    """Also where float32 ends."""
    sink = SINKS["tensorboard"](context(tmp_path))
    sink.write(snapshot(0, batch("exp_avg", 0, {"min": [math.nan, math.inf, -math.inf, 1e300]})))
    values = [events[0][2] for events in read(tmp_path / "run").values()]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, math.inf]


def test_rows_may_change_from_step_to_step(tmp_path: Path) -> None:
    """The cache of the step before never shows in this one."""
    sink = SINKS["tensorboard"](context(tmp_path))
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0, 2.0]})))
    sink.write(snapshot(1, batch("actv", 1, {"min": [3.0]}, keys=(Key("q"),))))
    sink.write(snapshot(2, batch("actv", 2, {"min": [4.0]}), ops=("min",)))
    values = {tag: [(step, value) for step, _, value in events] for tag, events in read(tmp_path / "run").items()}
    assert values == {
        "0:p0/rank0/actv_min": [(0, 1.0), (2, 4.0)],
        "0:p1/rank0/actv_min": [(0, 2.0)],
        "0:q/rank0/actv_min": [(1, 3.0)],
    }


def test_a_failed_write_leaves_what_was_there_and_the_next_goes_on(tmp_path: Path) -> None:
    """A removed directory is made again, a blocked one fails until it is free."""
    sink = SINKS["tensorboard"](context(tmp_path))
    sink.open()
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0]})))
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").touch()
    with pytest.raises(OSError):  # noqa: PT011 (which errno is the system's affair)
        sink.write(snapshot(1, batch("actv", 1, {"min": [1.0]})))
    (tmp_path / "run").unlink()
    for step in (2, 3):
        sink.write(snapshot(step, batch("actv", step, {"min": [1.0]})))
    assert [step for step, *_ in read(tmp_path / "run")["0:p0/rank0/actv_min"]] == [2, 3]


def test_runs_in_one_directory_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Two sinks made in the same second have a file each."""
    for step in (0, 1):
        SINKS["tensorboard"](context(tmp_path)).write(snapshot(step, batch("actv", step, {"min": [1.0]})))
    assert [step for step, *_ in read(tmp_path / "run")["0:p0/rank0/actv_min"]] == [0, 1]


def test_checksum_is_that_of_tensorboardx() -> None:
    """The NumPy checksum equals the byte-by-byte one for every length, and RFC 3720's example."""
    from tensorboardX.record_writer import masked_crc32c

    from probe.core.storage.event_file import crc32c, masked

    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    generator = random.Random(0)
    for length in (*range(4, 80), 1000, 4095, 4096, 4097, 65537):
        data = generator.randbytes(length)
        assert masked(data) == masked_crc32c(data)


def test_without_tensorboardx_the_error_says_what_to_install(tmp_path: Path) -> None:
    """Nothing else of the sinks needs it, not even to be imported."""
    program = """
import sys
sys.modules["tensorboardX"] = None
from pathlib import Path
from probe.core.output.sinks import SINKS
from probe.core.output.sinks.context import SinkContext
context = SinkContext(Path("run"), Path("."), 0)
SINKS["csv"](context), SINKS["anomaly"](context)
try:
    SINKS["tensorboard"](context)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 'pip install -e ".[tensorboard]"' in done.stdout


def test_importing_sinks_imports_no_writer() -> None:
    """tensorboardX is imported only when a tensorboard sink is made."""
    program = "import sys, probe.core.output.sinks; print([name for name in sys.modules if 'tensorboard' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
