"""Alerts in real training: what is wrong is found where and when it was put, printed and dumped."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from probe.core.records import Finding
from probe.core.rules.evaluate import diagnose
from tests.pytorch.runs import one_step, train_tiny, watching
from tests.pytorch.toys import Product, TinyNet, X
from tests.required import require

torch = require("torch")

STEPS, BAD = 12, 9
"""Steps of a run, and the step at which something goes wrong."""
SPIKE = {"rule_name": "AnomalySpike", "args": {"warm_up": 5, "window": 8}}
NAN_RULE = {"rule_name": "AnomalyNan"}
EVERYTHING: dict[str, Any] = {
    "wg_distribution": True,
    "xy_distribution": True,
    "mv_distribution": True,
    "ops": ["min", "max", "mean", "norm", "nans", "infs"],
    "format": "api",
    "alert": {"rules": [NAN_RULE, SPIKE]},
}


class Net(torch.nn.Module):
    """Three layers that train on the same random data at a rate at which nothing much changes."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
            self.act = torch.nn.Tanh()

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.act(layer(x))
        return x


Break = Callable[[Any], None]


def findings_of(
    config: dict[str, Any], at_bad_step: Break = lambda _: None, prepare: Break = lambda _: None
) -> list[Finding]:
    """Findings of a run in which ``at_bad_step`` happens to the model before its step ``BAD``.

    ``prepare`` gets the model before the monitor, so that hooks placed there run first.
    """
    model = Net()
    prepare(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    data = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    with watching(config, model, optimizer) as monitor:
        for step in range(STEPS):
            if step == BAD:
                at_bad_step(model)
            one_step(model, optimizer, inputs=lambda: data)
    return monitor.findings


def first(findings: Sequence[Finding]) -> Finding:
    """The first bad thing; nothing was found before the step at which it was put."""
    assert findings
    assert min(finding.step for finding in findings) == BAD
    found = diagnose(findings)
    assert found == findings[0]
    return found


def test_a_healthy_run_has_no_findings() -> None:
    """Nothing is reported where nothing is wrong, all rules on."""
    turbulence = {"rule_name": "AnomalyTurbulence", "args": {"threshold": 1000}}
    assert findings_of(EVERYTHING | {"alert": {"rules": [NAN_RULE, SPIKE, turbulence]}}) == []


def put_nan(model: Any) -> None:
    with torch.no_grad():
        model.layers[1].weight[3, 4] = math.nan


def test_nan_in_a_weight_shows_in_the_weight() -> None:
    """With parameters watched, the first finding is the weight itself, at that step."""
    found = first(findings_of(EVERYTHING | {"param_distribution": True}, put_nan))
    assert (found.signal, found.key.name, found.rule) == ("param_origin", "layers.1.weight", "AnomalyNan")


def test_nan_in_a_weight_shows_in_its_layer() -> None:
    """Without parameters, it is the output of the layer that holds the weight; its input was good."""
    findings = findings_of(EVERYTHING, put_nan)
    found = first(findings)
    assert (found.signal, found.key.name, found.key.part) == ("actv", "layers.1", "output")
    assert {finding.op for finding in findings if (finding.key, finding.step) == (found.key, BAD)} == {
        "min",
        "max",
        "mean",
        "norm",
        "nans",
    }
    assert not [f for f in findings if f.signal == "actv" and f.key.name in ("layers.0",) and f.step == BAD]


def test_nan_in_a_weight_shows_in_the_gradients() -> None:
    """With nothing but weight gradients watched, the step is right and the finding a gradient."""
    found = first(findings_of({"wg_distribution": True, "format": "api"}, put_nan))
    assert found.signal == "grad_unreduced"


def overflow(model: Any) -> None:
    """From now on the second layer gives one infinite element."""
    model.overflows = True


def may_overflow(model: Any) -> None:
    model.overflows = False

    def spoil(_: Any, __: Any, output: Any) -> Any:
        if model.overflows:
            output = output.clone()
            output[2, 5] = math.inf
        return output

    model.layers[2].register_forward_hook(spoil)


def test_infinity_in_an_activation() -> None:
    """The first finding is about the module that returned it, with the number of infinite elements."""
    findings = findings_of(EVERYTHING, overflow, may_overflow)
    found = first(findings)
    assert (found.signal, found.key.name, found.key.part) == ("actv", "layers.2", "output")
    values = {finding.op: finding.value for finding in findings if (finding.key, finding.step) == (found.key, BAD)}
    assert values == {"max": math.inf, "mean": math.inf, "norm": math.inf, "infs": 1}


@pytest.mark.parametrize("factor", [1e6, 1e-6])
def test_a_gradient_of_another_size(factor: float) -> None:
    """A finite gradient a million times too large or too small is named, with its parameter and step."""

    def prepare(model: Any) -> None:
        model.factor = 1.0
        model.layers[1].weight.register_hook(lambda gradient: gradient * model.factor)

    def scale(model: Any) -> None:
        model.factor = factor

    findings = findings_of(EVERYTHING, scale, prepare)
    found = first(findings)
    assert (found.rule, found.signal, found.key.name) == ("AnomalySpike", "grad_unreduced", "layers.1.weight")
    assert found.value / found.expected == pytest.approx(factor, rel=0.5)
    assert {finding.key.name for finding in findings if finding.step == BAD} == {"layers.1.weight"}


def test_rules_are_on_by_default_and_an_empty_list_means_none() -> None:
    """Without an alert section NaN is found; with no rules in it nothing is."""
    default = {key: value for key, value in EVERYTHING.items() if key != "alert"}
    assert first(findings_of(default, put_nan)).rule == "AnomalyNan"
    assert findings_of(EVERYTHING | {"alert": {"rules": []}}, put_nan) == []


# One gradient that the test sets.


def found_in(gradients: Sequence[float], rules: list[dict[str, Any]], ops: Sequence[str] = ("norm",)) -> list[Finding]:
    """Findings in the reduced gradient of one element."""
    model = Product(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    config = {"wg_distribution": True, "ops": list(ops), "format": "api", "alert": {"rules": rules}}
    with watching(config, model, optimizer) as monitor:
        for gradient in gradients:
            one_step(model, optimizer, inputs=lambda gradient=gradient: torch.tensor([gradient]))
    return [finding for finding in monitor.findings if finding.signal == "grad_reduced"]


def turbulence(threshold: float) -> dict[str, Any]:
    return {"rule_name": "AnomalyTurbulence", "args": {"threshold": threshold}}


def test_a_nan_does_not_mute_the_rule() -> None:
    """B13: a NaN is an alarm, and after it a hundredfold spike still is."""
    assert [finding.step for finding in found_in([1, 1, math.nan, 1, 100], [turbulence(0.5)])] == [2, 4]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e12, -1e12])
def test_nan_infinity_and_excess(odd: float) -> None:
    """AnomalyNan finds all three, the last only with a threshold, at the step and nowhere else."""
    rule = NAN_RULE | {"args": {"threshold": 1e10}}
    assert {finding.step for finding in found_in([1, 2, odd, 3], [rule], ["min", "max"])} == {2}
    without = {finding.step for finding in found_in([1, 2, odd, 3], [NAN_RULE], ["min", "max"])}
    assert without == (set() if math.isfinite(odd) else {2})


def test_the_first_rule_that_matches_is_reported() -> None:
    """A value that two rules object to is one finding, of the rule that stands first."""
    both = [NAN_RULE | {"args": {"threshold": 50}}, turbulence(0.5)]
    for rules in (both, both[::-1]):
        (finding,) = found_in([1, 1, 100], rules)
        assert finding.rule == rules[0]["rule_name"]


def test_each_rule_has_its_say() -> None:
    """A value that only the second rule objects to is found by it."""
    findings = found_in([1, 1, 3, 1e12], [NAN_RULE | {"args": {"threshold": 1e10}}, turbulence(0.5)])
    assert [(finding.step, finding.rule) for finding in findings] == [(2, "AnomalyTurbulence"), (3, "AnomalyNan")]


def test_gradients_that_do_not_come_are_no_anomaly() -> None:
    """B16: the first module's input has no gradient, and a frozen layer none either: no alarm at any step."""
    monitor = train_tiny({"xy_distribution": True, "ops": ["norm", "nans"], "alert": {"rules": [NAN_RULE]}}, steps=3)
    assert monitor.findings == []


def test_an_empty_input_is_no_anomaly() -> None:
    """That a mean of nothing does not exist is not a NaN in training."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"xy_distribution": True, "ops": ["min", "mean", "std", "nans"], "alert": {"rules": [NAN_RULE]}}
    with watching(config, model, optimizer) as monitor:
        one_step(model, optimizer, inputs=lambda: torch.zeros(0, 2))
    assert monitor.findings == []


# What is printed and dumped.


@contextmanager
def broken_run(config: dict[str, Any]) -> Iterator[Any]:
    """TinyNet trains for two steps, in the second of which a weight is NaN."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching({"wg_distribution": True, **config}, model, optimizer) as monitor:
        one_step(model, optimizer)
        with torch.no_grad():
            model.fc2.weight[0, 1] = math.nan
        one_step(model, optimizer)
        yield monitor


def dumped(output_dir: Path) -> dict[str, dict[str, Any]]:
    """Content of ``anomaly.json``."""
    path = output_dir / "anomaly_detected" / "rank0" / "anomaly.json"
    entries: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return entries


DUMP = {"alert": {"rules": [NAN_RULE], "dump": True}}


@pytest.mark.parametrize("form", ["csv", "api"])
def test_dumped_fields(output_dir: Path, form: str) -> None:
    """Each finding has the documented fields in their order, then typed ones, whatever the format of the values."""
    with broken_run(DUMP | {"ops": ["norm"], "format": form}) as monitor:
        pass
    entries = dumped(output_dir)
    assert len(entries) == len(monitor.findings) > 0
    order = ["rank", "step", "micro_step", "pp_stage", "vpp_stage", "call_id", "tag_name", "message", "group_mates"]
    assert all(list(entry)[: len(order)] == order for entry in entries.values())
    key, entry = next((k, e) for k, e in entries.items() if e["tag_name"] == "0:fc.weight/rank0/post_grad")
    assert key == f"0:fc.weight/rank0/post_grad_step_1_call_{entry['call_id']}_norm"
    assert [entry[name] for name in ("rank", "step", "micro_step", "pp_stage", "vpp_stage")] == [0, 1, 0, 0, 0]
    assert entry["group_mates"] == [0]
    where = "('0:fc.weight/rank0/post_grad', 'norm')"
    assert entry["message"] == f"Rule AnomalyNan reports anomaly signal in {where} at step 1, current value nan."
    assert [entry[name] for name in ("rule", "op", "value", "expected")] == ["AnomalyNan", "norm", "nan", "nan"]
    if monitor.output_directory is not None:
        assert entry["run"] == Path(monitor.output_directory).name


def test_two_ops_of_one_tensor_are_both_kept(output_dir: Path) -> None:
    """B14: findings are distinguished by their op too."""
    with broken_run(DUMP | {"ops": ["norm", "max"]}):
        pass
    ops = {
        key.rpartition("_")[2] for key, entry in dumped(output_dir).items() if entry["tag_name"].startswith("0:fc.w")
    }
    assert ops == {"norm", "max"}


def test_earlier_findings_survive_a_restart(output_dir: Path) -> None:
    """B15: the findings of a second run join those of the first, though they are of the same steps and tensors."""
    for times in (1, 2):
        with broken_run(DUMP | {"ops": ["norm"]}) as monitor:
            pass
        assert len(dumped(output_dir)) == times * len(monitor.findings)


def test_the_dump_is_whole_while_training_runs(output_dir: Path) -> None:
    """A reader before the end finds valid JSON with all findings."""
    with broken_run(DUMP | {"ops": ["norm"]}) as monitor:
        assert monitor.flush()
        assert len(dumped(output_dir)) == len(monitor.findings)


def test_no_file_without_dump_or_finding(output_dir: Path) -> None:
    """Findings are not written without ``dump``, and neither is an empty file."""
    with broken_run({"alert": {"rules": [NAN_RULE]}}):
        pass
    train_tiny({"wg_distribution": True, **DUMP})
    assert not (output_dir / "anomaly_detected").exists()


def test_findings_are_printed(caplog: pytest.LogCaptureFixture) -> None:
    """A warning names rule, tensor, op, step and value at once, the first cause first."""
    with (
        caplog.at_level(logging.WARNING, logger="probe.anomaly"),
        broken_run({"xy_distribution": True, "ops": ["max"]}),
    ):
        pass
    lines = [record.getMessage() for record in caplog.records if record.name == "probe.anomaly"]
    assert lines[0] == (
        "Rule AnomalyNan reports anomaly signal in ('0:fc2.output:0/rank0/actv', 'max') at step 1, current value nan."
    )
    assert len(lines) <= 10


def test_micro_steps_are_told(output_dir: Path) -> None:
    """Of four micro batches the one with the infinite input is named."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"xy_distribution": True, "forward_only": True, "ops": ["infs"], **DUMP}
    with watching(config, model, optimizer, 4) as monitor:
        for number in range(4):
            model(X * (math.inf if number == 2 else 1)).sum().backward()
        optimizer.step()
    assert {finding.key.micro_step for finding in monitor.findings} == {2}
    assert {entry["micro_step"] for entry in dumped(output_dir).values()} == {2}
    assert "0:fc.output:2/rank0/actv" in {entry["tag_name"] for entry in dumped(output_dir).values()}


def test_stages_are_told(output_dir: Path) -> None:
    """Of two model chunks the one with the NaN is named."""
    chunks = [TinyNet(), TinyNet()]
    optimizer = torch.optim.SGD([p for chunk in chunks for p in chunk.parameters()], lr=0.1)
    with torch.no_grad():
        chunks[1].fc.weight[0, 0] = math.nan
    with watching({"wg_distribution": True, **DUMP}, chunks, optimizer):
        for chunk in chunks:
            chunk(X).sum().backward()
        optimizer.step()
    assert {entry["vpp_stage"] for entry in dumped(output_dir).values()} == {1}
    assert all(entry["tag_name"].startswith("1:") for entry in dumped(output_dir).values())
