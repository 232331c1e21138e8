"""Calls and assignments of older scripts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from probe.core.config.errors import ConfigError
from probe.core.monitor.legacy import OPTIMIZER_TYPES
from probe.core.monitor.trainer_mon import Monitor
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import X, tiny_net
from tests.matrix.watching import LR, MOMENTUM, lines_of, rows_of, train_tiny

PARAMETERS = {"param_distribution": True, "ops": ["norm"], "squash_name": False}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Output directory of runs."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    return tmp_path / "out"


class Trained:
    """TinyNet with its optimizer and loop."""

    def __init__(self, framework: Harness) -> None:
        self.framework, self.model = framework, tiny_net(framework)
        self.optimizer = framework.optimizer("momentum", self.model, lr=LR, momentum=MOMENTUM)
        self._loop = framework.loop(self.model, self.optimizer)

    def steps(self, count: int) -> None:
        """Trains."""
        for _ in range(count):
            train_step(self._loop, self.framework.tensor(X))


def columns(monitor: Monitor, signal: str) -> dict[int, tuple[str, ...]]:
    """By step the columns of a signal's rows."""
    found: dict[int, tuple[str, ...]] = {}
    for stem, lines in lines_of(monitor).items():
        if stem.rpartition("_")[0] == signal:
            found |= {int(line["step"]): tuple(line) for line in lines}
    return found


CALLS: dict[str, Any] = {
    "documented order": lambda t: ((t.model, 1, t.optimizer, None, None, 5), {}),
    "the existing tool's order": lambda t: ((t.model, t.optimizer, 1, None, None, 5), {}),
    "keywords": lambda t: ((), {"model": t.model, "grad_acc_steps": 1, "optimizer": t.optimizer, "start_iteration": 5}),
    "wrapped, documented order": lambda t: ((t.model, 1, None, None, None, 5), {}),
    "wrapped, the existing tool's order": lambda t: ((t.model, None, 1, None, None, 5), {}),
    "wrapped, left out": lambda t: ((t.model,), {"start_iteration": 5}),
}


@pytest.mark.parametrize("call", CALLS)
def test_monitor_gnorm_with_ad_attaches(framework: Harness, call: str) -> None:
    """Either order works, with the optimizer passed now or before, and with a DeprecationWarning."""
    trained = Trained(framework)
    args, kwargs = CALLS[call](trained)
    with framework.TrainerMon(PARAMETERS) as monitor:
        if call.startswith("wrapped"):
            with pytest.warns(DeprecationWarning, match="set_wrapped_optimizer"):
                monitor.set_wrapped_optimizer(trained.optimizer)
        with pytest.warns(DeprecationWarning, match="set_monitor") as warned:
            monitor.monitor_gnorm_with_ad(*args, **kwargs)
        trained.steps(2)
    assert warned[0].filename == __file__
    assert {row.step for row in rows_of(monitor)} == {5, 6}
    assert monitor.faults == {}


def test_without_any_optimizer_there_is_an_error(framework: Harness) -> None:
    """The error names the missing optimizer, and nothing is attached."""
    trained = Trained(framework)
    monitor = framework.TrainerMon(PARAMETERS)
    with pytest.warns(DeprecationWarning, match="set_monitor"), pytest.raises(TypeError, match="optimizer is missing"):
        monitor.monitor_gnorm_with_ad(trained.model, 1)
    assert not monitor.monitoring


def test_ops_assigned_during_training_begin_a_new_file(framework: Harness) -> None:
    """From the next step on; and every number is that of a run with those ops."""
    trained = Trained(framework)
    with framework.TrainerMon({**PARAMETERS, "step_count_per_record": 10}) as monitor:
        monitor.set_monitor(trained.model, 1, trained.optimizer)
        trained.steps(2)
        monitor.ops = ["max", "min"]
        assert monitor.ops == ["max", "min"]
        trained.steps(3)
    assert monitor.faults == {}
    keys, tail = ("vpp_stage", "name", "step"), ("shape", "dtype")
    before, after = (*keys, "norm", *tail), (*keys, "max", "min", *tail)
    assert columns(monitor, "param_origin") == dict.fromkeys((0, 1), before) | dict.fromkeys((2, 3, 4), after)
    _, whole = train_tiny(framework, {**PARAMETERS, "ops": ["norm", "max", "min"]}, (1,) * 5)
    rows = rows_of(monitor)
    assert rows.keys() == whole.keys()
    for row, values in rows.items():
        assert values.keys() == ({"norm"} if row.step < 2 else {"max", "min"})
        assert values.items() <= whole[row].items()


def test_ops_assigned_within_a_step_hold_from_the_next_one_on(framework: Harness) -> None:
    """An assignment within a step, between forward and update, leaves that step as it was."""
    trained = Trained(framework)
    with framework.TrainerMon(PARAMETERS) as monitor:
        monitor.set_monitor(trained.model, 1, trained.optimizer)
        loop = framework.loop(trained.model, trained.optimizer)
        loop.micro_batch(framework.tensor(X))
        monitor.ops = ["mean"]
        loop.update()
        trained.steps(1)
    assert {step: names[3] for step, names in columns(monitor, "param_updated").items()} == {0: "norm", 1: "mean"}


@pytest.mark.parametrize("wrong", [["norm", "media"], "norm", [3], None])
def test_wrong_ops_are_an_error_before_attaching(framework: Harness, wrong: Any) -> None:
    """The error names them, and the configuration stays."""
    monitor = framework.TrainerMon(PARAMETERS)
    with pytest.raises(ConfigError, match="ops"):
        monitor.ops = wrong
    assert monitor.ops == ["norm"]


@pytest.mark.parametrize(
    ("wrong", "computed", "told"),
    [
        (["max", "media"], ["max"], ["got 'media', left out; did you mean mean?"]),
        ([3], ["norm"], ["got 3, left out", "ops names nothing to compute: norm is collected"]),
        ([], ["norm"], ["ops names nothing to compute: norm is collected"]),
        ("max", ["min"], ['expected a list such as ["norm", "max"], got \'max\'; nothing changes']),
        (None, ["min"], ["got None; nothing changes"]),
    ],
    ids=str,
)
def test_wrong_ops_in_training_are_told_and_never_raised(
    framework: Harness, caplog: pytest.LogCaptureFixture, wrong: Any, computed: list[str], told: list[str]
) -> None:
    """Those that exist are computed, norm if there are none, and training goes on."""
    trained = Trained(framework)
    with framework.TrainerMon(PARAMETERS | {"ops": ["min"]}) as monitor:
        monitor.set_monitor(trained.model, 1, trained.optimizer)
        trained.steps(1)
        monitor.ops = wrong
        trained.steps(2)
    assert monitor.faults == {}
    assert {step: [names[3]] for step, names in columns(monitor, "param_origin").items()} == {
        0: ["min"],
        1: computed,
        2: computed,
    }
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [words in message for words, message in zip(told, messages, strict=True)] == [True] * len(told)


def test_assigned_ops_are_checked_with_everything_else(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """A rule that loses its needs is named; settings that were in vain before are not logged again."""
    rules = [{"rule_name": "AnomalyFrozen"}, {"rule_name": "AnomalyVanish"}]
    config = PARAMETERS | {"wg_distribution": True, "ops": ["norm", "max"], "alert": {"rules": rules}}
    trained = Trained(framework)
    with framework.TrainerMon(config) as monitor:
        monitor.set_monitor(trained.model, 1, trained.optimizer)
        trained.steps(1)
        monitor.ops = ["norm"]
        trained.steps(1)
        monitor.ops = ["norm", "mean"]
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert messages == ["monitor.ops: the rule AnomalyFrozen judges nothing: it needs the op min or max"]


def test_a_wrong_reload_xy_in_training_changes_nothing(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; before anything is attached it is an error."""
    trained = Trained(framework)
    with framework.TrainerMon(PARAMETERS) as monitor, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(ConfigError, match="xy_distribution: expected true or false"):
            monitor.reload_xy("yes")  # type: ignore[arg-type]
        monitor.set_monitor(trained.model, 1, trained.optimizer)
        monitor.reload_xy("yes")  # type: ignore[arg-type]
        trained.steps(2)
    assert {row.signal for row in rows_of(monitor)} == {"param_origin", "param_updated"}
    assert "reload_xy: expected true or false, got 'yes'; nothing changes" in caplog.messages


def test_ops_assigned_before_attaching_hold_from_the_start(framework: Harness) -> None:
    """As if they had been configured."""
    trained = Trained(framework)
    with framework.TrainerMon(PARAMETERS) as monitor:
        monitor.ops = ["max"]
        monitor.set_monitor(trained.model, 1, trained.optimizer)
        trained.steps(1)
    assert columns(monitor, "param_origin")[0][3:4] == ("max",)


def test_ops_keep_the_schedule(framework: Harness) -> None:
    """Neither the distance between collected steps nor their number begins anew."""
    trained = Trained(framework)
    with framework.TrainerMon({**PARAMETERS, "step_interval": 2, "collect_times": 3}) as monitor:
        monitor.set_monitor(trained.model, 1, trained.optimizer)
        trained.steps(1)
        monitor.ops = ["max"]
        trained.steps(8)
    assert sorted(columns(monitor, "param_origin")) == [0, 2, 4]


def test_reload_xy_switches_activations(framework: Harness) -> None:
    """On and off from the next step on; everything else is collected all the time."""
    trained = Trained(framework)
    with framework.TrainerMon(PARAMETERS) as monitor:
        monitor.set_monitor(trained.model, 1, trained.optimizer)
        trained.steps(1)
        with pytest.warns(DeprecationWarning, match="reload_xy"):
            monitor.reload_xy(xy_distribution=True)
        trained.steps(2)
        with pytest.warns(DeprecationWarning, match="reload_xy"):
            monitor.reload_xy()
        trained.steps(2)
    assert monitor.faults == {}
    rows = rows_of(monitor)
    steps = {signal: {row.step for row in rows if row.signal == signal} for signal in {row.signal for row in rows}}
    assert steps == {
        "actv": {1, 2},
        "actv_grad": {1, 2},
        "param_origin": {0, 1, 2, 3, 4},
        "param_updated": {0, 1, 2, 3, 4},
    }
    _, whole = train_tiny(framework, {**PARAMETERS, "xy_distribution": True}, (1,) * 5)
    assert rows.items() <= whole.items()


@pytest.mark.parametrize("opt_ty", OPTIMIZER_TYPES)
def test_every_opt_ty_is_accepted(framework: Harness, opt_ty: str) -> None:
    """With a DeprecationWarning that points to the script."""
    with pytest.warns(DeprecationWarning, match="opt_ty has no effect") as warned:
        framework.TrainerMon(PARAMETERS, opt_ty=opt_ty).stop()
    assert (warned[0].filename, len(warned)) == (__file__, 1)
    assert "nor was" not in str(warned[0].message)


def test_an_opt_ty_that_never_was_is_told(framework: Harness) -> None:
    """With those that were."""
    with pytest.warns(DeprecationWarning, match="nor was 'Adam'.*DeepSpeedZeroOptimizer_Stage3"):
        framework.TrainerMon(PARAMETERS, opt_ty="Adam").stop()


@pytest.mark.parametrize("value", [True, False])
def test_the_other_spelling_of_params_have_main_grad(framework: Harness, value: bool) -> None:
    """Means the same, with a DeprecationWarning; without it there is none."""
    with pytest.warns(DeprecationWarning, match="params_have_main_grad"):
        monitor = framework.TrainerMon(PARAMETERS, param_have_main_grad=value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = framework.TrainerMon(PARAMETERS, params_have_main_grad=value)
    assert monitor._main_grad is other._main_grad is value
