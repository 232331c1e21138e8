"""Files of MindSpore's TensorDump as they are read."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from probe.core.faults import Faults
from probe.core.transformers.dump_files import DumpedStep, DumpFolder

DUMPED = {
    "of the present": ("local_norm__{name}_float32_{number}", "device_local_norm_float16_{number}",
                       "local_loss_float32_{number}", "finish_step_int32_{number}"),
    "before 2.5": ("{number}_local_norm__{name}", "{number}_device_local_norm", "{number}_local_loss",
                   "{number}_finish_step"),
}  # fmt: skip
"""Names of files of MindSpore's TensorDump."""


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "unmarked"])
@pytest.mark.parametrize("form", DUMPED)
def test_dumped_tensors_have_their_steps(form: str, marked: bool, tmp_path: Path) -> None:
    """Files belong to the step whose marker follows, else to that of their number among files of their name; each step
    is shown once it is complete, its files are removed, and all others stay."""
    norm, device, loss, end = DUMPED[form]
    faults, numbers = Faults(), itertools.count(7)

    def dump(form: str, value: float, **names: str) -> None:
        np.save(tmp_path / f"{form.format(number=next(numbers), **names)}.npy", np.float32(value))

    dump(norm, 9.0, name="of.another.run")
    (tmp_path / "local_norm__mine.npy").write_bytes(b"mine")
    old = {path.name for path in tmp_path.iterdir()}
    folder = DumpFolder(tmp_path, faults)
    shown = []
    for step in (1, 2, 3):
        dump(loss, step)
        dump(loss, step + 1) if marked else None
        for name, value in (("layers.0.w_1", 3.0), ("layers.0.b", 4.0)):
            dump(norm, step * value, name=name)
        dump(device, 5.0 * step)
        dump(end, 0) if marked else None
        shown += folder.steps()
        assert len(shown) == (step if marked else step - 1)
    shown += folder.steps(last=True)
    losses = [[step, step + 1.0] if marked else [step] for step in (1, 2, 3)]
    norms = [{"layers.0.w_1": 3.0 * step, "layers.0.b": 4.0 * step} for step in (1, 2, 3)]
    assert shown == [DumpedStep(*row) for row in zip((1, 2, 3), norms, (5.0, 10.0, 15.0), losses, strict=True)]
    assert {path.name for path in tmp_path.iterdir()} == old
    assert faults.counts == {}


def test_a_dumped_tensor_in_writing_is_read_later(tmp_path: Path) -> None:
    """One that is still unreadable at the end is counted."""
    faults = Faults()
    folder, half = DumpFolder(tmp_path, faults), tmp_path / "local_norm__fc_float32_0.npy"
    half.write_bytes(b"")
    assert list(folder.steps()) == []
    np.save(half, np.float32(2.0))
    assert [step.norms for step in folder.steps(last=True)] == [{"fc": 2.0}]
    half.write_bytes(b"")
    assert list(folder.steps(last=True)) == []
    assert faults.counts == {"dumped tensor: EOFError": 1}
