"""Limits of interpretable features: masks, refusals, warnings, and findings of rules."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests.matrix.harness import Harness, Tensor, train_step
from tests.matrix.test_features import (
    Attention,
    assert_attention,
    attends,
    inputs,
    later,
    of_parameter,
    only_linear,
    printed_by,
    random_case,
    rotated,
    routed,
    watched,
)
from tests.matrix.watching import watching

# Masks


@pytest.mark.parametrize("lowest", [-np.inf, np.finfo(np.float32).min, -1e9, -65504.0])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_query_that_sees_nothing_is_left_out_whatever_its_mask_adds(
    framework: Harness, lowest: float, dtype: str
) -> None:
    """The lowest number of half precision hides as -inf does: no query that is only padding counts."""
    hidden = later(6, 6)
    hidden[:2] = True
    case = random_case(queries=6, keys=6)._replace(hidden=hidden)
    with np.errstate(over="ignore"):
        mask = np.where(hidden, lowest, 0.0).astype(dtype)
    (row,) = attends(framework, case, given={"attn_mask": mask}, sa_heads="all")
    assert_attention(row, case, everything=True)


@pytest.mark.parametrize("dtype", ["bool", "int64", "float32"])
@pytest.mark.parametrize(
    ("case", "shape", "what"),
    [
        (random_case(batches=5), (5, 5), "queries"),
        (random_case(batches=4), (4, 5, 5), "heads"),
    ],
)
def test_a_mask_that_can_be_read_in_two_ways_is_refused(
    framework: Harness, case: Attention, shape: tuple[int, ...], what: str, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first dimension may be the samples: a warning and no row instead of one reading or the other."""
    assert attends(framework, case, given={"attention_mask": np.zeros(shape, dtype)}) == []
    (said,) = caplog.messages
    assert "expected a mask of four dimensions" in said
    assert said.endswith(f"{what}; nothing is recorded of it")


def test_a_mask_of_one_sample_has_one_reading(framework: Harness) -> None:
    """There it does not matter."""
    case = random_case(batches=1, queries=1, keys=5)._replace(hidden=np.arange(5)[None] > 2)
    (row,) = attends(framework, case, given={"attention_mask": case.hidden.copy()}, sa_heads="all")
    assert_attention(row, case, everything=True)


def test_what_nobody_says_is_told(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """Without a mask or an argument, later keys are hidden if a sequence may attend to itself; that is logged once."""
    for queries, keys in ((5, 5), (3, 5)):
        case = random_case(queries=queries, keys=keys)
        (row,) = attends(framework, case)
        assert_attention(row, case._replace(hidden=later(5, 5)) if queries == keys else case)
        assert ["0:inner: neither a mask nor is_causal" in said for said in caplog.messages] == [True]
        caplog.clear()


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"is_causal": False}, {}),
        ({"attn_mask_type": "no_mask"}, {}),
        ({"attention_mask": np.zeros((1, 1, 1, 5), bool)}, {}),
        ({}, {"sa_mask": "none"}),
        ({}, {"sa_mask": "causal"}),
    ],
    ids=str,
)
def test_what_is_said_is_not_told(
    framework: Harness, given: dict[str, Any], settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """By the call or by the configuration."""
    assert len(attends(framework, random_case(), given=given, **settings)) == 1
    assert caplog.messages == []


def test_nothing_to_attend_to_gives_no_row(framework: Harness) -> None:
    """A sample that is only padding, and tokens that no expert may take."""
    assert attends(framework, random_case(), given={"attention_mask": np.ones((5, 5), bool)}) == []
    assert routed(framework, np.full((3, 4), -np.inf), router_top_k=2) == []


# Weights


@pytest.mark.parametrize("target", [[], ["inner"]])
def test_a_weight_that_is_no_floating_number(
    framework: Harness, target: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Integers are codes of something else: no row, and a warning if the configuration names the module."""
    inner = framework.module(None, weight=framework.tensor(np.arange(6).reshape(2, 3), "int8"))
    fc = framework.linear(np.eye(2))

    def forward(x: Tensor) -> Tensor:
        return fc(x)

    model = framework.module(forward, fc=fc, inner=inner)
    rows = watched(framework, model, {"linear_hook": target}, [inputs(framework, 2)])
    assert [row["name"] for row in rows] == ([] if target else ["fc.linear"])
    assert ["of floating numbers" in said for said in caplog.messages] == [True] * len(target)


def test_numbers_are_the_same_in_each_run(framework: Harness) -> None:
    """To the last digit, also where the start of the method shows in them: singular values crowd at the top."""
    weight = rotated(np.cos(np.linspace(0, np.pi / 2, 400)), 400, 400)
    x = framework.tensor(np.zeros((1, 400)))
    first, second = (watched(framework, only_linear(framework, weight), {"linear_hook": []}, [x]) for _ in range(2))
    assert first == second != []


MEASURED = """
import sys
import numpy as np
from importlib import import_module
from pathlib import Path
harness = import_module(sys.argv[1])
from probe.core.instrumentation.signals.features import linear
ops, tensors = harness.TrainerMon.framework.arrays, harness.TrainerMon.framework.tensors
weight = tensors.numbers(harness.tensor(np.random.default_rng(0).standard_normal((4096, 2048), dtype=np.float32)))
def run(weight):
    with ops.quiet():
        return linear.finish(np.asarray(linear.begin(ops, weight))[:, 0])
def kibibytes(name):
    return int(Path("/proc/self/status").read_text().partition(name)[2].split()[0])
run(weight[:64, :64])
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = kibibytes("VmRSS:")
found = run(weight)
print((kibibytes("VmHWM:") - before) / 1024, found["sr"])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_memory_of_linear(framework: Harness) -> None:
    """Of a weight of 32 MiB no copies are made, which would take 64 at least; what there is at a time is blocks."""
    said = printed_by(framework, MEASURED)
    mebibytes, ratio = map(float, said.split())
    assert mebibytes < 48
    assert ratio == pytest.approx(np.sqrt(4096 * 2048) / (np.sqrt(4096) + np.sqrt(2048)), rel=0.02), "Marchenko, Pastur"


# Routers


@pytest.mark.parametrize("name", ["num_experts", "n_routed_experts", "num_local_experts", "expert_num"])
@pytest.mark.parametrize(("experts", "columns"), [(3, True), (4, False), (5, False)])
def test_experts_are_where_the_module_says(framework: Harness, name: str, experts: int, columns: bool) -> None:
    """Rows of the weight, unless it has as many columns as there are experts."""
    weight = np.random.RandomState(5).standard_normal((4, 3))
    model = of_parameter(framework, weight, says={name: experts})
    (row,) = watched(framework, model, {"moe_router_weight_hook": ["inner"]}, [inputs(framework, 2)])
    units = weight.T if columns else weight
    units = units / np.linalg.norm(units, axis=1, keepdims=True)
    cosines = (units @ units.T)[~np.eye(len(units), dtype=bool)]
    assert float(row["router_weight_similarity"]) == pytest.approx(cosines.mean(), rel=1e-4)


@pytest.mark.parametrize(("said", "asked", "taken"), [(1, None, 1), (2, None, 2), (2, 1, 1)])
def test_tokens_go_to_as_many_experts_as_the_module_says(
    framework: Harness, said: int, asked: int | None, taken: int
) -> None:
    """The module's own attribute counts if the configuration has no value."""
    logits = np.array([[3.0, 2.0, 1.0, 0.0]] * 5)
    (row,) = routed(framework, logits, {"top_k": said}, **({} if asked is None else {"router_top_k": asked}))
    assert float(row["load_max"]) == pytest.approx(4 / taken)


# Rules


def found(framework: Harness, model: Any, l2: dict[str, Any], *x: Any, **config: Any) -> list[tuple[str, str, str]]:
    """Signal, name and column of what rules find in one step."""
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.0)
    loop = framework.loop(model, optimizer)
    config = {"recording_l2_features": True, "l2_targets": l2, "squash_name": False, **config}
    with watching(framework, config, model, optimizer) as monitor:
        train_step(loop, *x)
    return [(one.signal, one.key.name, one.op) for one in monitor.findings]


NAN = {"alert": {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": 1e-3}}]}}


def test_a_weight_that_is_not_finite_is_found(framework: Harness) -> None:
    """By its spectral norm; a threshold is for tensors, and a ratio that zeros have not is no finding."""
    bad = only_linear(framework, [[1.0, np.nan], [0.0, 1.0]])
    assert found(framework, bad, {"linear_hook": []}, inputs(framework, 2), **NAN) == [
        ("linear_hook", "fc.linear", "kernel_norm")
    ]
    for weight in (np.eye(2), np.zeros((2, 2))):
        assert found(framework, only_linear(framework, weight), {"linear_hook": []}, inputs(framework, 2), **NAN) == []


def test_scores_that_are_not_finite_are_found(framework: Harness) -> None:
    """Of attention and routers; not what is hidden, nor what has no answer."""

    def of(logits: Any) -> list[tuple[str, str, str]]:
        given, fc = framework.tensor(logits), framework.linear(np.eye(2))
        inner = framework.module(lambda *_: given)

        def forward(x: Any) -> Any:
            inner(given, given)
            return fc(x)

        model = framework.module(forward, inner=inner, fc=fc)
        l2 = {"attention_hook": ["inner"], "moe_router_logit_hook": ["inner"]}
        return found(framework, model, l2, inputs(framework, 2), **NAN)

    logits = np.zeros((2, 2, 2, 3))
    assert of(logits) == []
    logits[0, 0, 0, 0] = np.nan
    assert sorted(of(logits)) == [
        ("attention_hook", "inner.attention", "entropy"),
        ("moe_router_logit_hook", "inner.moe_router", "per_token_expert_entropy"),
    ]
