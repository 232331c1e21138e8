"""Files as a user finds them after real training: layout, formats, names and the manifest."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from probe import __version__
from probe.pytorch import TrainerMon
from tests.pytorch.runs import directory_of, header, manifest, names, one_step, table, tables, train_tiny, watching
from tests.pytorch.toys import Product, TinyNet, X
from tests.required import require

torch = require("torch")


def file(root: Path, name: str) -> Path:
    return directory_of(root) / f"{name}.csv"


# The existing tool's layout and values.


def test_the_directory_of_a_run(output_dir: Path) -> None:
    """C1: one directory a rank and run, named after the time."""
    train_tiny({"wg_distribution": True})
    assert re.fullmatch(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d-rank0-[0-9a-f]{8}", directory_of(output_dir).name)


def test_what_the_backward_gives_stands_in_its_order(output_dir: Path) -> None:
    """C3 and C5: the last layer first; an input that needs no gradient gives no row."""
    train_tiny({"wg_distribution": True, "xy_distribution": True})
    found = tables(output_dir)
    assert names(found["grad_unreduced_0-0"])[0] == "fc2.weight"
    order = names(found["actv_grad_0-0"])
    assert set(order) == {".output", "fc2.input", "fc2.output", "relu.input", "relu.output", "fc.output"}
    assert order.index("fc2.output") < order.index("fc2.input") <= order.index("relu.output") + 1
    assert order.index("relu.output") < order.index("relu.input")


def test_targets_narrow_every_file(output_dir: Path) -> None:
    """C11: a target takes its own activations and its parameters' gradients."""
    train_tiny({"targets": {"fc2": {}}, "xy_distribution": True, "wg_distribution": True})
    found = tables(output_dir)
    assert names(found["actv_0-0"]) == ["fc2.input", "fc2.output"]
    assert names(found["grad_reduced_0-0"]) == names(found["grad_unreduced_0-0"]) == ["fc2.weight"]


def test_norm_is_the_default(output_dir: Path) -> None:
    """C12: without ops the norm is written; shape and dtype always are."""
    train_tiny({"wg_distribution": True})
    assert header(file(output_dir, "grad_reduced_0-0")) == ["vpp_stage", "name", "step", "norm", "shape", "dtype"]


def test_an_unknown_op_is_an_error() -> None:
    """C12, other than the existing tool: what cannot be computed is refused before training, with the valid names."""
    with pytest.raises(ValueError, match=r"ops\[0\]: expected one of min, .*norm.* got \"foo\""):
        TrainerMon({"ops": ["foo"]})


# Numbers as text.


def small_state(output_dir: Path, **config: Any) -> dict[str, str]:
    """How a second moment of 1e-10 is written."""
    model = Product(2)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.99))
    with watching({"mv_distribution": True, "ops": ["mean", "max"], **config}, model, optimizer):
        for _ in range(2):
            one_step(model, optimizer, inputs=lambda: torch.full((2,), 1.2345678e-4))
    return table(file(output_dir, "exp_avg_sq_1-1"))[0]


def test_six_significant_digits_by_default(output_dir: Path) -> None:
    """B20: a second moment of 1e-10 is not printed as 0.0."""
    row = small_state(output_dir)
    assert row["mean"] == row["max"] == "1.52416e-10"


def test_ndigits_are_decimal_places(output_dir: Path) -> None:
    """Asked for explicitly, digits are counted from the point, as documented."""
    assert float(small_state(output_dir, ndigits=12)["mean"]) == 1.52e-10


def test_counts_are_whole_and_odd_values_are_words(output_dir: Path) -> None:
    """NaN and Inf are ``nan``, ``inf`` and ``-inf``; numbers of elements have no decimal point."""
    model = Product(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"wg_distribution": True, "ops": ["nans", "infs", "min", "max"], "alert": {"rules": []}}
    with watching(config, model, optimizer):
        for values in ([1.0, 2.0, 3.0], [1.0, math.nan, 3.0], [math.inf, -math.inf, 3.0]):
            one_step(model, optimizer, inputs=lambda values=values: torch.tensor(values))
    found = tables(output_dir)
    written = [[found[f"grad_reduced_{step}-{step}"][0][op] for op in config["ops"]] for step in range(3)]
    assert written == [["0", "0", "1", "3"], ["1", "0", "nan", "nan"], ["0", "2", "-inf", "inf"]]


# Which files there are, and which rows in each.


def test_a_resumed_run_counts_on(output_dir: Path) -> None:
    """start_iteration is the number of the first step, everywhere."""
    train_tiny({"wg_distribution": True, "xy_distribution": True}, steps=2, start_iteration=5)
    found = tables(output_dir)
    kinds = ("grad_reduced", "grad_unreduced", "actv", "actv_grad")
    assert set(found) == {f"{kind}_{step}-{step}" for kind in kinds for step in (5, 6)}
    assert all({row["step"] for row in rows} == {name[-1]} for name, rows in found.items())


def test_micro_steps(output_dir: Path) -> None:
    """Activations and gradients of micro batches carry their micro step; the step's total does not."""
    train_tiny({"wg_distribution": True, "xy_distribution": True, "monitor_mbs_grad": True}, steps=2, micro_batches=3)
    found = tables(output_dir)
    for name in ("actv_1-1", "actv_grad_1-1", "grad_unreduced_1-1"):
        assert header(file(output_dir, name))[:4] == ["vpp_stage", "name", "step", "micro_step"]
        of_name = {n: [row["micro_step"] for row in found[name] if row["name"] == n] for n in names(found[name])}
        assert set(map(tuple, of_name.values())) == {("0", "1", "2")}
    assert "micro_step" not in header(file(output_dir, "grad_reduced_1-1"))


class Twice(torch.nn.Module):
    """A module that is called twice in a forward, once in its first."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.times = 1

    def forward(self, x: Any) -> Any:
        for _ in range(self.times):
            x = self.fc(x)
        self.times = 2
        return x


def test_calls_have_a_column_only_where_needed(output_dir: Path) -> None:
    """B4: repetitions of a module are numbered in the last column of the files that have any."""
    model = Twice()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching({"wg_distribution": True, "xy_distribution": True, "forward_only": True}, model, optimizer):
        for _ in range(2):
            one_step(model, optimizer)
    assert "call" not in header(file(output_dir, "actv_0-0"))
    assert "call" not in header(file(output_dir, "grad_reduced_1-1"))
    assert header(file(output_dir, "actv_1-1"))[-1] == "call"
    calls = [(row["name"], row["call"]) for row in table(file(output_dir, "actv_1-1")) if row["name"].startswith("fc")]
    assert calls == [("fc.input", "0"), ("fc.output", "0"), ("fc.input.call1", "1"), ("fc.output.call1", "1")]


def states(optimizer: str, shape: tuple[int, ...] = (3, 2), **arguments: Any) -> Any:
    return pytest.param(optimizer, shape, arguments, id=f"{optimizer} {arguments}")


@pytest.mark.parametrize(
    ("optimizer", "shape", "arguments"),
    [
        states("SGD"),
        states("SGD", momentum=0.9),
        states("Adam"),
        states("AdamW", amsgrad=True),
        states("RMSprop", momentum=0.9, centered=True),
        states("Adagrad"),
        states("Adafactor"),
        states("Adafactor", shape=(3,)),
    ],
)
def test_optimizer_state(output_dir: Path, optimizer: str, shape: tuple[int, ...], arguments: dict[str, Any]) -> None:
    """Every tensor that an optimizer keeps has its own file, named as it names it; its step counter has none."""
    if not hasattr(torch.optim, optimizer):
        pytest.skip(f"this torch has no {optimizer}")
    model = Product(*shape)
    made = getattr(torch.optim, optimizer)(model.parameters(), **arguments)
    with watching({"mv_distribution": True, "ops": ["norm"]}, model, made):
        for _ in range(3):
            kept = {kind: value.clone() for kind, value in made.state[model.w].items() if torch.is_tensor(value)}
            one_step(model, made, inputs=lambda: torch.ones(shape))
    kept.pop("step", None)
    found = {path.stem: table(path)[0] for path in directory_of(output_dir).glob("*_2-2.csv")}
    assert set(found) == {f"{kind}_2-2" for kind in kept}
    for kind, value in kept.items():
        assert float(found[f"{kind}_2-2"]["norm"]) == pytest.approx(float(value.norm()), rel=1e-5)
        assert found[f"{kind}_2-2"]["shape"] == str(list(value.shape))


# Formats.


@pytest.mark.parametrize("alert", [{}, {"alert": {"rules": [{"rule_name": "AnomalyNan"}], "dump": False}}])
def test_api_writes_nothing(output_dir: Path, alert: dict[str, Any]) -> None:
    """With format api nothing reaches the disk, and values can be asked for."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"wg_distribution": True, "xy_distribution": True, "format": "api", "ops": ["norm", "max"], **alert}
    with watching(config, model, optimizer) as monitor:
        model(X).sum().backward()
        reduced, unreduced = monitor.generate_wgrad_metrics()
        actv, actv_grad = monitor.generate_xy_metrics()
        optimizer.step()
        assert monitor.output_directory is None
    assert reduced["0:fc2.weight/rank0/post_grad"] == pytest.approx({"norm": 7.648529, "max": 6.5})
    assert unreduced["0:fc2.weight/rank0/pre_grad"] == pytest.approx({"norm": 7.648529, "max": 6.5})
    assert actv["0:fc.output:0/rank0/actv"] == pytest.approx({"norm": 9.486833, "max": 6.5})
    assert actv_grad["0:fc2.input:0/rank0/actv_grad"] == pytest.approx({"norm": 3.464102, "max": 2.0})
    assert not output_dir.exists()


def test_values_can_be_asked_for_beside_files(output_dir: Path) -> None:
    """The interface answers whatever the format, after the step too."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching({"wg_distribution": True}, model, optimizer) as monitor:
        assert monitor.generate_wgrad_metrics() == ({}, {})
        one_step(model, optimizer)
        after = monitor.generate_wgrad_metrics()
    norms = {row["name"]: float(row["norm"]) for row in table(file(output_dir, "grad_reduced_0-0"))}
    assert after[0] == {f"0:{n}/rank0/post_grad": {"norm": pytest.approx(v, rel=1e-5)} for n, v in norms.items()}
    assert set(after[1]) == {f"0:{n}/rank0/pre_grad" for n in norms}


# The manifest.


def test_what_the_manifest_says(output_dir: Path) -> None:
    """The manifest describes the tables while training runs, and at the end its cost and findings."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"wg_distribution": True, "ops": ["min"], "targets": {"fc": {"input": "tuple[1]:0"}}}
    with watching(config, model, optimizer):
        begun = manifest(output_dir)
        one_step(model, optimizer)
    assert begun["schema"] == 1
    assert (begun["probe"], begun["framework"], begun["framework_version"]) == (
        __version__,
        "pytorch",
        torch.__version__,
    )
    assert (begun["rank"], begun["world_size"]) == (0, 1)
    assert (begun["model"], begun["optimizer"]) == (["TinyNet"], ["SGD"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", begun["start_time"])
    assert begun["time_zone"]
    assert begun["config"]["ops"] == ["min"]
    assert begun["config"]["targets"]["fc"]["input"] == "tuple[1]:0"
    assert begun["config"]["step_interval"] == 1
    ended = manifest(output_dir)
    assert begun.items() <= ended.items()
    assert ended["findings"] == 0
    assert ended["faults"] == {}
    assert ended["cost_seconds"]["steps"] == 1
    assert 0 < ended["cost_seconds"]["hooks"] < 10


def test_the_configuration_in_the_manifest_can_be_used_again(output_dir: Path) -> None:
    """A run can be repeated from what its manifest holds."""
    train_tiny({"wg_distribution": True, "targets": {"fc": {"output": "tensor"}}, "ndigits": 3})
    config = manifest(output_dir)["config"]
    assert (
        TrainerMon(config).settings.model_dump()
        == TrainerMon(
            {"wg_distribution": True, "targets": {"fc": {"output": "tensor"}}, "ndigits": 3}
        ).settings.model_dump()
    )


def test_faults_are_in_the_manifest(output_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of lost data are written in the manifest."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TrainerMon({"wg_distribution": True}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        (directory_of(output_dir) / "grad_reduced_0-0.csv").mkdir()
        one_step(model, optimizer)
    assert manifest(output_dir)["faults"] == monitor.faults
    assert sum(monitor.faults.values()) == 1
    assert "grad_unreduced_0-0" in {path.stem for path in directory_of(output_dir).glob("*.csv")}


# Places and names.


@pytest.mark.parametrize("name", ["with a space", "输出 目录", "a+b@c~d", "deep/er"])
def test_output_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """B22: any path will do."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / name))
    monitor = train_tiny({"wg_distribution": True, "format": ["csv", "tensorboard"]})
    assert set(tables(tmp_path / name)) == {"grad_reduced_0-0", "grad_unreduced_0-0"}
    assert monitor.output_directory == str(directory_of(tmp_path / name))


def test_the_default_output_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable files go to ./monitor_output."""
    monkeypatch.delenv("MONITOR_OUTPUT_DIR")
    monkeypatch.chdir(tmp_path)
    train_tiny({"wg_distribution": True})
    assert set(tables(tmp_path / "monitor_output")) == {"grad_reduced_0-0", "grad_unreduced_0-0"}


def test_the_run_may_change_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative output path means the directory in which the monitor was attached."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", "here")
    monkeypatch.chdir(tmp_path)
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching({"wg_distribution": True}, model, optimizer):
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        one_step(model, optimizer)
    assert set(tables(tmp_path / "here")) == {"grad_reduced_0-0", "grad_unreduced_0-0"}
    assert "findings" in manifest(tmp_path / "here")


@pytest.mark.parametrize("ending", [".json", ".yaml"])
def test_configuration_paths(tmp_path: Path, output_dir: Path, ending: str) -> None:
    """A configuration file may lie anywhere."""
    path = tmp_path / f"配置 file{ending}"
    path.write_text('{"wg_distribution": true}')
    train_tiny(path)
    assert tables(output_dir)


@pytest.mark.parametrize(("ranks", "writes"), [([], True), ([0], True), ([1], False), ([1, 0], True)])
def test_chosen_ranks(output_dir: Path, ranks: list[int], writes: bool) -> None:
    """In one process the rank is 0: listed, it writes; not listed, it leaves no trace."""
    monitor = train_tiny({"wg_distribution": True, "xy_distribution": True, "module_ranks": ranks})
    assert output_dir.exists() is writes
    assert (monitor.output_directory is not None) is writes


def test_a_rank_that_does_not_take_part_is_not_watched() -> None:
    """No hook is placed, and the generate functions return nothing."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching({"xy_distribution": True, "module_ranks": [1]}, model, optimizer) as monitor:
        assert not monitor.monitoring
        one_step(model, optimizer)
        assert monitor.step == 1
        assert monitor.generate_xy_metrics() == monitor.generate_wgrad_metrics() == ({}, {})
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_odd_module_names(output_dir: Path) -> None:
    """Colons, commas, quotes and what a spreadsheet would take for a formula come back from the file as they were."""
    odd = ["a:b", "x,y", "=1+1", 'say "hi"', "@cell", "-minus", "层", "percent%s", "new\nline"]
    model = torch.nn.Sequential()
    for name in odd:
        model.add_module(name, torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"wg_distribution": True, "xy_distribution": True, "format": ["csv", "tensorboard"]}
    with watching(config, model, optimizer):
        one_step(model, optimizer)
    found = tables(output_dir)
    assert names(found["grad_reduced_0-0"]) == [f"{name}.{kind}" for name in odd for kind in ("weight", "bias")]
    assert {f"{name}.{part}" for name in odd for part in ("input", "output")} <= set(names(found["actv_0-0"]))
    assert all(row["dtype"] == "torch.float32" for rows in found.values() for row in rows)
