"""Keys that have no effect as the others are, or with this model and optimizer: each is named once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from probe.core.config.lint import without_effect
from probe.core.monitor.trainer_mon import Monitor
from tests.matrix.editing import config as written
from tests.matrix.editing import rewriting, training
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import SQUARE, X, tiny_net
from tests.matrix.watching import LR, MOMENTUM, names_of, rows_of

WG = {"wg_distribution": True}
NO_RULES = {"alert": {"rules": []}}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output directory of runs."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    monkeypatch.delenv("DYNAMIC_MONITOR", raising=False)


def trained(framework: Harness, config: Any, kind: str = "momentum", steps: int = 2, **options: float) -> Monitor:
    """A run from its beginning to its end."""
    model = tiny_net(framework)
    optimizer = framework.optimizer(kind, model, lr=LR, **options)
    loop = framework.loop(model, optimizer)
    with framework.TrainerMon(config) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for _ in range(steps):
            train_step(loop, framework.tensor(X))
    assert monitor.faults == {}
    return monitor


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


IN_VAIN: dict[str, tuple[dict[str, Any], str]] = {
    "history": (WG | {"history": 5} | NO_RULES, "history writes nothing unless training ends by an exception"),
    "on_anomaly": (WG | {"on_anomaly": {"arm": {"mv_distribution": True}}} | NO_RULES, "on_anomaly has no effect"),
    "dump": (WG | {"alert": {"rules": [], "dump": True}}, "alert.dump has no effect"),
    "collect_times": (WG | {"collect_times": 0}, "collect_times is 0: nothing is collected"),
    "monitor_mbs_grad": (
        {"param_distribution": True, "monitor_mbs_grad": True},
        "monitor_mbs_grad has no effect without wg_distribution",
    ),
    "all_xy": (WG | {"all_xy": True}, "all_xy has no effect without xy_distribution"),
    "directions": (
        WG | {"forward_only": True, "all_xy": True},
        "all_xy and forward_only have no effect without xy_distribution",
    ),
    "selectors": (
        WG | {"targets": {"fc": {"output": "tensor"}, "fc2": {}}},
        "the element selectors in targets (as of fc) have no effect without xy_distribution",
    ),
    "cc_codeline": (
        WG | {"cc_distribution": {"cc_codeline": ["train.py"]}},
        "cc_distribution.cc_codeline has no effect without cc_distribution.enable",
    ),
    "cc_pre_hook": (
        WG | {"cc_distribution": {"cc_pre_hook": True}},
        "cc_distribution.cc_pre_hook has no effect without cc_distribution.enable",
    ),
    "ndigits": (WG | {"ndigits": 3, "format": "sqlite"}, "ndigits has no effect without the format csv"),
    "step_count_per_record": (
        WG | {"step_count_per_record": 5, "format": "sqlite"},
        "step_count_per_record has no effect without the format csv or parquet",
    ),
    "eps": (WG | {"eps": 0.5}, "eps has no effect without the op zeros"),
    "sa_order": (WG | {"sa_order": "b,s,h,d"}, "sa_order has no effect without l2_targets.attention_hook"),
    "parameters alone": (
        WG | {"xy_distribution": True, "targets": {"fc.weight": {}}},
        "xy_distribution has no effect: targets name parameters alone; name the modules, or set all_xy to true",
    ),
}


@pytest.mark.parametrize("key", IN_VAIN)
def test_a_key_in_vain_is_named_when_the_monitor_attaches(
    framework: Harness, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    """In one sentence, before the first step; training goes on."""
    config, words = IN_VAIN[key]
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    with framework.TrainerMon(config) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        (message,) = warnings(caplog)
        assert message.startswith(words)
        train_step(framework.loop(model, optimizer), framework.tensor(X))
    assert len(warnings(caplog)) == 1


def test_all_keys_in_vain_are_named_at_once(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """One sentence each, in one attachment."""
    config = {"wg_distribution": True, "format": "sqlite", "ndigits": 3, "step_count_per_record": 5, "history": 2}
    config |= {"cc_distribution": {"cc_pre_hook": True}, "forward_only": True, "collect_times": 0, **NO_RULES}
    trained(framework, config, momentum=MOMENTUM)
    assert len(warnings(caplog)) == len(set(warnings(caplog))) == 6


@pytest.mark.parametrize(
    "config",
    [
        WG | {"xy_distribution": True, "all_xy": True, "forward_only": True, "monitor_mbs_grad": True},
        WG | {"xy_distribution": True, "targets": {"fc": {"output": "tensor"}, "fc.weight": {}}},
        WG | {"ndigits": 3, "step_count_per_record": 5, "format": ["tensorboard", "csv"]},
        WG | {"step_count_per_record": 5, "format": "parquet"},
        WG | {"history": 2, "on_anomaly": {"arm": {"xy_distribution": True}}, "forward_only": True, "all_xy": True},
        {"mv_distribution": True, "mg_direction": True},
        {"print_struct": True, "all_xy": True, "monitor_mbs_grad": True},
    ],
    ids=" ".join,
)
def test_keys_that_have_an_effect_are_not_named(
    framework: Harness, caplog: pytest.LogCaptureFixture, config: dict[str, Any]
) -> None:
    """Also those that have it only when on_anomaly looks deeper."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    with framework.TrainerMon(config) as monitor:
        monitor.set_monitor(model, 1, optimizer)
    assert [each for each in warnings(caplog) if "no training step was seen" not in each] == []


def test_the_examples_of_the_project_have_no_key_in_vain() -> None:
    """Neither those for reading nor those that tests run."""
    from probe.core.config.load import load

    files = sorted((Path(__file__).parents[2] / "resources" / "configs").glob("*.json"))
    assert len(files) >= 15
    assert {path.name: list(without_effect(load(path))) for path in files} == {path.name: [] for path in files}


@pytest.mark.needs("sgd")
@pytest.mark.parametrize("key", ["mv_distribution", "mg_direction"])
def test_an_optimizer_that_keeps_no_state_is_named(
    framework: Harness, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    """Once, after its first update, which is when it is known."""
    trained(framework, {key: True}, "sgd", steps=3)
    (message,) = warnings(caplog)
    assert message.startswith(f"{key} has no effect: expected an optimizer with ")
    assert "keeps none" in message


@pytest.mark.needs("adam")
@pytest.mark.parametrize("key", ["mv_distribution", "mg_direction"])
def test_adam_is_not_named(framework: Harness, caplog: pytest.LogCaptureFixture, key: str) -> None:
    """Though on PyTorch it keeps nothing before its first update."""
    trained(framework, {key: True}, "adam", beta1=0.9, beta2=0.99)
    assert warnings(caplog) == []


def test_an_optimizer_whose_parameters_got_no_gradient_yet_is_not_named(
    framework: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """Their state shows only in a step that has gradients."""
    used, unused = framework.linear(SQUARE), framework.linear(SQUARE)
    model = framework.module(lambda x: framework.add(used(x), x), used=used, unused=unused)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    with framework.TrainerMon({"mv_distribution": True, "targets": {"used": {}}}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for _ in range(2):
            train_step(loop, framework.tensor(X))
    assert warnings(caplog) == []


def test_a_change_in_vain_is_named_when_it_takes_effect(
    framework: Harness, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, in dynamic mode."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    path = written(tmp_path / "monitor.json", on=True)
    with training(framework, path, 6, {2: rewriting(forward_only=True), 4: rewriting(ndigits=3)}):
        pass
    assert warnings(caplog) == ["forward_only has no effect without xy_distribution"]


def nested(framework: Harness) -> Any:
    """Eleven layers in a container that never runs, and a head."""
    layers = {str(number): framework.linear(SQUARE) for number in range(11)}

    def forward(x: Any) -> Any:
        for layer in layers.values():
            x = layer(x)
        return x

    return framework.module(forward, layers=framework.module(None, **layers))


def test_a_container_as_target_is_refused_with_its_children(framework: Harness) -> None:
    """Nothing goes in or out of what is never called; nothing stays attached."""
    model = nested(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    before = framework.picture([model], [optimizer])
    monitor = framework.TrainerMon({"xy_distribution": True, "targets": {"layers": {}}})
    with pytest.raises(ValueError, match=r"targets\.layers: expected a module that is called, got a \w+, which") as no:
        monitor.set_monitor(model, 1, optimizer)
    assert "layers.0, layers.1, layers.2" in str(no.value)
    assert "layers.8" not in str(no.value)
    assert framework.picture([model], [optimizer]) == before


@pytest.mark.parametrize(
    ("line", "words"),
    [('"targets": {\n"layers": {}}', "3: targets.layers: expected a module that is called"),
     ('"targets": {\n"leyars": {}}', "3: targets.leyars: expected the name of a module"),
     ('"recording_l2_features": true, "l2_targets": {\n"linear_hook": ["fc"]}', "3: l2_targets.linear_hook: expected")],
)  # fmt: skip
def test_what_the_model_lacks_has_the_line_of_its_key(
    framework: Harness, tmp_path: Path, line: str, words: str
) -> None:
    """As everything that is wrong with a file."""
    path = tmp_path / "a.json"
    path.write_text(f'{{"xy_distribution": true,\n{line}}}')
    model = nested(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    with pytest.raises(ValueError, match=re.escape(f"{path}:{words}")):
        framework.TrainerMon(path).set_monitor(model, 1, optimizer)


@pytest.mark.parametrize("config", [{"targets": {"layers": {}}}, {"xy_distribution": True}], ids=json.dumps)
def test_a_container_is_no_error_otherwise(framework: Harness, config: dict[str, Any]) -> None:
    """As the name of its parameters, or where everything is watched."""
    model = nested(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    with framework.TrainerMon({"param_distribution": True, "squash_name": False, **config}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        train_step(loop, framework.tensor(X))
    names = names_of(rows_of(monitor), "param_origin")
    assert names == {f"layers.{number}.weight" for number in range(11)}


def test_every_selector_that_does_not_fit_is_named(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """Each place of each module, once."""
    wrong = dict.fromkeys(("input", "output", "input_grad", "output_grad"), "tuple[3]:0")
    trained(framework, {"xy_distribution": True, "targets": {"fc": wrong, "fc2": wrong}}, momentum=MOMENTUM, steps=3)
    named = sorted(message.partition(": expected")[0] for message in warnings(caplog))
    assert named == sorted(f"targets.{module}.{place}" for module in ("fc", "fc2") for place in wrong)
