"""Files: the same bytes whatever the framework, but for the spelling of dtypes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe import __version__
from tests.matrix.by_hand import TinyNetByHand, numbers
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import X, called_twice, tiny_net
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM, inputs, lines_of, train_tiny, watching
from tests.required import require
from tests.tables import Row

SIX = ["min", "max", "norm", "mean", "zeros", "nans"]
ALL = {**EVERYTHING, "ops": SIX, "ndigits": None}
SIGNALS = ("actv", "actv_grad", "grad_reduced", "grad_unreduced", "param_origin", "param_updated", "momentum_buffer")
TASKS = {"grad_unreduced": "pre_grad", "grad_reduced": "post_grad"}
"""Names of signals in tags, if they differ."""

GRADIENTS = """\
vpp_stage,name,step,min,max,norm,mean,zeros,nans,shape,dtype
0,fc.weight,0,-2.0,1.0,2.828427,-0.333333,0.166667,0,"[3, 2]",{float32}
0,fc.bias,0,-1.0,2.0,2.44949,0.666667,0.0,0,[3],{float32}
0,fc2.weight,0,2.0,6.5,7.648529,4.0,0.0,0,"[1, 3]",{float32}
"""
ACTIVATIONS = """\
vpp_stage,name,step,micro_step,min,max,norm,mean,zeros,nans,shape,dtype
0,.input,0,0,-1.0,1.0,1.732051,0.25,0.25,0,"[2, 2]",{float32}
0,fc.input,0,0,-1.0,1.0,1.732051,0.25,0.25,0,"[2, 2]",{float32}
0,fc.output,0,0,-4.5,6.5,9.486833,0.5,0.0,0,"[2, 3]",{float32}
0,relu.input,0,0,-4.5,6.5,9.486833,0.5,0.0,0,"[2, 3]",{float32}
0,relu.output,0,0,0.0,6.5,7.648529,2.0,0.5,0,"[2, 3]",{float32}
0,fc2.input,0,0,0.0,6.5,7.648529,2.0,0.5,0,"[2, 3]",{float32}
0,fc2.output,0,0,-3.0,4.0,5.0,0.5,0.0,0,"[2, 1]",{float32}
0,.output,0,0,-3.0,4.0,5.0,0.5,0.0,0,"[2, 1]",{float32}
"""


def directory_of(monitor: Any) -> Path:
    return Path(str(monitor.output_directory))


def texts_of(framework: Harness, monitor: Any) -> dict[str, str]:
    """Every table to the last byte, dtypes spelled as the golden ones are."""
    spelling = str(framework.DTYPES["float32"]).encode()
    return {
        path.stem: path.read_bytes().replace(spelling, b"{float32}").decode()
        for path in directory_of(monitor).glob("*.csv")
    }


@pytest.mark.parametrize(
    ("name", "golden"), [("grad_reduced_0-0", GRADIENTS), ("actv_0-0", ACTIVATIONS)], ids=["gradients", "activations"]
)
def test_golden_files(framework: Harness, name: str, golden: str) -> None:
    """Reduced gradients and activations of TinyNet, as worked out on paper."""
    monitor, _ = train_tiny(framework, ALL | {"ndigits": 6})
    assert texts_of(framework, monitor)[name] == golden


def table(signal: str, rows: dict[Row, np.ndarray]) -> str:
    """The table that ``rows`` make, six significant digits each."""
    stepped = signal in ("actv", "actv_grad")
    lines = [",".join(["vpp_stage", "name", "step", *["micro_step"] * stepped, *SIX, "shape", "dtype"])]
    for row, array in rows.items():
        values = [f"{value:.6g}" for value in (numbers(array)[op] for op in SIX)]
        shape = str(list(array.shape))
        quoted = f'"{shape}"' if "," in shape else shape
        micro_step = [str(row.micro_step)] * stepped
        lines.append(",".join(["0", row.name, str(row.step), *micro_step, *values, quoted, "{float32}"]))
    return "".join(f"{line}\n" for line in lines)


MODULES = {"": 0, "fc": 1, "relu": 2, "fc2": 3}


def in_order(row: Row) -> tuple[int, float, bool]:
    """Position of a forward row: the whole model around its parts."""
    module, _, part = row.name.rpartition(".")
    return row.micro_step, (9 if part == "output" else 0) if not module else MODULES[module], part == "output"


@pytest.mark.parametrize("signal", ["param_origin", "param_updated", "grad_reduced", "momentum_buffer", "actv"])
def test_every_byte_of_the_tables(framework: Harness, signal: str) -> None:
    """Header, order, names and numbers of every step's file are the same on every framework."""
    monitor, _ = train_tiny(framework, ALL, (2, 1, 2))
    found, net = texts_of(framework, monitor), TinyNetByHand(LR, MOMENTUM)
    for step, count in enumerate((2, 1, 2)):
        expected = dict(net.step(step, [X * (number + 1) for number in range(count)], False))
        rows = {row: array for row, array in expected.items() if row.signal == signal}
        if signal == "actv":
            rows = {row: rows[row] for row in sorted(rows, key=in_order)}
        if rows:
            assert found[f"{signal}_{step}-{step}"] == table(signal, rows)


@pytest.mark.parametrize("signal", ["grad_unreduced", "actv_grad"])
def test_every_line_of_what_the_backward_gives(framework: Harness, signal: str) -> None:
    """The same lines too, in the order in which the framework's backward came to them."""
    monitor, _ = train_tiny(framework, ALL, (2, 1))
    found, net = texts_of(framework, monitor), TinyNetByHand(LR, MOMENTUM)
    for step, count in enumerate((2, 1)):
        expected = dict(net.step(step, [X * (number + 1) for number in range(count)], False))
        wanted = table(signal, {row: array for row, array in expected.items() if row.signal == signal})
        header, *lines = found[f"{signal}_{step}-{step}"].splitlines()
        assert [header, *sorted(lines)] == [wanted.splitlines()[0], *sorted(wanted.splitlines()[1:])]


def test_several_steps_in_a_file(framework: Harness) -> None:
    """Files are aligned to step 0; every step's rows stand together and in order."""
    monitor, _ = train_tiny(framework, ALL | {"step_count_per_record": 3}, (1,) * 5, start_iteration=1)
    tables = lines_of(monitor)
    assert set(tables) == {f"{signal}_{steps}" for signal in SIGNALS for steps in ("0-2", "3-5")}
    assert [line["step"] for line in tables["grad_reduced_3-5"]] == [step for step in "345" for _ in range(3)]
    assert [line["step"] for line in tables["param_updated_0-2"]] == [step for step in "12" for _ in range(3)]


def test_rows_line_up_with_their_header(framework: Harness) -> None:
    """Every line of every table has a cell for each column, and a number in each column of numbers."""
    monitor, _ = train_tiny(framework, ALL | {"monitor_mbs_grad": True}, (2, 2))
    tables = lines_of(monitor)
    assert len(tables) >= 13
    for lines in tables.values():
        for line in lines:
            assert None not in line.keys() | line.values()
            assert all(np.isfinite(float(line[op])) for op in ("step", *SIX))
            assert line["dtype"] == str(framework.DTYPES["float32"])


def test_repetitions_are_told_apart_in_the_last_column(framework: Harness) -> None:
    """Where a module ran twice its table has a column ``call``; others have none."""
    model = called_twice(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    with watching(framework, ALL, model, optimizer) as monitor:
        train_step(framework.loop(model, optimizer), framework.tensor(X))
    tables = lines_of(monitor)
    calls = [(line["name"], line["call"]) for line in tables["actv_0-0"] if line["name"].startswith("fc")]
    assert calls == [("fc.input", "0"), ("fc.output", "0"), ("fc.input.call1", "1"), ("fc.output.call1", "1")]
    assert list(tables["actv_0-0"][0])[-1] == "call"
    assert "call" not in tables["grad_reduced_0-0"][0]


def scalars(directory: Path) -> dict[tuple[str, int], float]:
    """Values that TensorBoard reads, by tag and step, without probe's own figures."""
    reader = require("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(directory), {reader.SCALARS: 0}).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("probe/")]
    return {(tag, event.step): event.value for tag in tags for event in events.Scalars(tag)}


@pytest.mark.parametrize("formats", [["csv", "tensorboard"], "tensorboard"], ids=str)
def test_tensorboard(framework: Harness, formats: Any) -> None:
    """Every number is a scalar under its documented tag, and no other is there; a list of formats writes each."""
    config = EVERYTHING | {"ops": ["norm", "min"], "format": formats}
    monitor, rows = train_tiny(framework, config, (2, 1))
    net, expected = TinyNetByHand(LR, MOMENTUM), {}
    for step, count in enumerate((2, 1)):
        for row, array in net.step(step, [X * (number + 1) for number in range(count)], False):
            micro_step = f":{row.micro_step}" if row.signal.startswith("actv") else ""
            tag = f"0:{row.name}{micro_step}/rank0/{TASKS.get(row.signal, row.signal)}"
            expected |= {(f"{tag}_{op}", step): numbers(array)[op] for op in ("norm", "min")}
    found = scalars(directory_of(monitor))
    early = {key for key in found if key[1] == 0 and "momentum_buffer" in key[0]}
    assert {key: value for key, value in found.items() if key not in early} == pytest.approx(expected, rel=1e-5)
    assert bool(rows) is ("csv" in formats)


def test_api_writes_nothing(framework: Harness, output_dir: Path) -> None:
    """With format api nothing reaches the disk, and values can be asked for."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    with watching(framework, ALL | {"format": "api"}, model, optimizer) as monitor:
        train_step(framework.loop(model, optimizer), *inputs(framework))
        reduced, unreduced = monitor.generate_wgrad_metrics()
        assert monitor.output_directory is None
    assert reduced["0:fc2.weight/rank0/post_grad"]["norm"] == pytest.approx(7.648529)
    assert unreduced["0:fc2.weight/rank0/pre_grad"]["norm"] == pytest.approx(7.648529)
    assert not output_dir.exists()


def test_the_manifest(framework: Harness) -> None:
    """The manifest next to the tables names their framework, model, optimizer and the kinds of its state."""
    for kind, state in framework.STATE.items():
        model = tiny_net(framework)
        optimizer = framework.optimizer(kind, model, lr=LR)
        with watching(framework, ALL, model, optimizer) as monitor:
            train_step(framework.loop(model, optimizer), *inputs(framework))
        manifest = json.loads((directory_of(monitor) / "manifest.json").read_text(encoding="utf-8"))
        assert (manifest["probe"], manifest["framework"]) == (__version__, framework.NAME)
        assert manifest["framework_version"][0].isdigit()
        assert (manifest["rank"], manifest["world_size"], manifest["faults"]) == (0, 1, {})
        assert manifest["model"] == [type(model).__name__]
        assert manifest["optimizer"] == [type(optimizer).__name__]
        (names,) = manifest["optimizer_state_names"]
        renamed = {signal: name for signal, name in names.items() if signal != name}
        assert renamed == {signal: name for signal, name in state.items() if signal != name}
