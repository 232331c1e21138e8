"""Alert rules that can judge nothing of what is collected: named at load; signals that do not exist: refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from probe.core.config.errors import ConfigError
from probe.core.config.lint import SIGNAL_NEEDS
from probe.core.config.load import load
from probe.core.naming import SIGNALS

WG = {"wg_distribution": True}
ARMED = {"on_anomaly": {"arm": {"xy_distribution": True}}}


NEEDS_OF_COLUMNS = (
    "the rule AnomalyThreshold judges nothing: it needs l2_targets.linear_hook (for sr), and cc_distribution.enable "
    "(for seconds)"
)


def ruled(name: str, more: dict[str, Any], **args: Any) -> dict[str, Any]:
    """A configuration of one rule."""
    return {**more, "alert": {"rules": [{"rule_name": name, "args": args}]}}


def above(more: dict[str, Any], **args: Any) -> dict[str, Any]:
    """A configuration of AnomalyThreshold."""
    return ruled("AnomalyThreshold", more, above=1, **args)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            ruled("AnomalyTurbulence", WG | {"ops": ["max"]}, threshold=1),
            "the rule AnomalyTurbulence judges nothing: it needs one of the ops norm and mean",
        ),
        (
            ruled("AnomalySpike", WG | {"ops": ["mean"]}),
            "the rule AnomalySpike judges nothing: it needs one of the ops norm, min, max",
        ),
        (ruled("AnomalySpike", WG, ops=["max"]), "the rule AnomalySpike judges nothing: it needs the op max"),
        (
            ruled("AnomalySpike", WG, ops=["norm", "max"]),
            "the rule AnomalySpike does not judge all that it names: it needs the op max",
        ),
        (above(WG, ops=["std"]), "the rule AnomalyThreshold judges nothing: it needs the op std"),
        (above(WG | {"ops": ["max"]}), "the rule AnomalyThreshold judges nothing: it needs the op norm"),
        (
            above(WG, ops=["sr", "seconds"]),
            NEEDS_OF_COLUMNS,
        ),
        (
            above(WG, ops=["global_norm"]),
            "the rule AnomalyThreshold judges nothing: it needs global_stats (for global_norm)",
        ),
        (
            above({**WG, "run": {"enable": False}}, ops=["norm", "loss"]),
            "the rule AnomalyThreshold does not judge all that it names: it needs run.enable (for loss)",
        ),
        (
            above(WG, signals=["actv"]),
            "the rule AnomalyThreshold judges nothing: it needs xy_distribution without backward_only (for actv)",
        ),
        (
            above(WG, signals=["grad_reduced", "exp_avg"]),
            "the rule AnomalyThreshold does not judge all that it names: it needs mv_distribution (for exp_avg)",
        ),
        (
            above({"xy_distribution": True, "forward_only": True}, signals=["actv_grad"]),
            "the rule AnomalyThreshold judges nothing: it needs xy_distribution without forward_only (for actv_grad)",
        ),
    ],
)
def test_a_rule_that_can_judge_nothing_is_named(
    config: dict[str, Any], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A sentence names its needs."""
    with caplog.at_level(logging.WARNING, "probe.settings"):
        load(config)
    assert caplog.messages == [f"the given mapping: {sentence}"]


@pytest.mark.parametrize(
    "config",
    [
        ruled("AnomalyTurbulence", WG | {"ops": ["mean"]}, threshold=1),
        ruled("AnomalySpike", WG | {"ops": ["max", "mean"]}),
        above(WG | ARMED, signals=["actv", "grad_unreduced"]),
        above({"mv_distribution": True}, signals=["exp_avg", "momentum_of_mine"]),
        above({"recording_l2_features": True, "l2_targets": {"linear_hook": []}}, signals=["linear_hook"]),
        above({"recording_l2_features": True, "l2_targets": {"linear_hook": []}}, ops=["kernel_norm", "loss"]),
        above({}, ops=["value"], signals=["run"], names=["accuracy"]),
    ],
)
def test_a_rule_that_has_what_it_needs_is_not(config: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """This holds for signals that on_anomaly collects, and for state that a user's optimizer may keep."""
    load(config)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("config", "signal", "end"),
    [
        (above(WG, signals=["actv", "grad_reducd"]), 1, 'got "grad_reducd"; did you mean grad_reduced?'),
        (above({"mv_distribution": True}, signals=["exp_avgs"]), 0, 'got "exp_avgs"; did you mean exp_avg?'),
        (above(WG, signals=["loss"]), 0, 'got "loss"; name one of these, or switch on mv_distribution'),
        (above(WG, signals=["Actv"]), 0, 'got "Actv"; did you mean actv?'),
    ],
)
def test_a_signal_that_does_not_exist_is_an_error(config: dict[str, Any], signal: int, end: str) -> None:
    """The error has the nearest name."""
    with pytest.raises(ConfigError) as caught:
        load(config)
    (problem,) = caught.value.problems
    assert problem.startswith(f"alert.rules[0].args.signals[{signal}]: expected one of actv, actv_grad, ")
    assert problem.endswith(end)


def test_every_fixed_signal_says_what_it_needs() -> None:
    """None is forgotten when one is added."""
    assert set(SIGNAL_NEEDS) == set(SIGNALS)
