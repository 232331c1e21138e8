"""The interpretable features of l2_targets, against NumPy in float64."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from probe.core.naming import FEATURES
from probe.core.rules import RULES
from tests.matrix.harness import Array, Harness, Module, Tensor, generators, train_step
from tests.matrix.models import X, noisy, tiny_net, tower
from tests.matrix.watching import lines_of, train, watching
from tests.quick_python import quick_python
from tests.user_scripts import COMMANDS, MINDSPORE, TORCH

RANDOM = np.random.RandomState(3)
Lines = list[dict[str, str]]


def watched(framework: Harness, model: Module, l2: dict[str, Any], *steps: Sequence[Tensor], **more: Any) -> Lines:
    """The rows of the only table that a training gives whose steps have these micro batches."""
    config = {"recording_l2_features": True, "l2_targets": l2, "ndigits": 20, "squash_name": False, **more}
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.0)
    loop = framework.loop(model, optimizer)
    with watching(framework, config, model, optimizer) as monitor:
        for micro_batches in steps:
            train_step(loop, *micro_batches)
    tables = lines_of(monitor)
    return [row for rows in tables.values() for row in rows]


# linear_hook


def rotated(values: Any, rows: int, columns: int) -> Array:
    """A matrix of these singular values."""
    left, _ = np.linalg.qr(RANDOM.standard_normal((rows, rows)))
    right, _ = np.linalg.qr(RANDOM.standard_normal((columns, columns)))
    return left[:, : len(values)] * np.asarray(values) @ right[: len(values)]


MATRICES: dict[str, Callable[[], Array]] = {
    "diagonal": lambda: np.diag([4.0, 3.0, 2.0, 1.0]),
    "wide": lambda: RANDOM.standard_normal((7, 300)),
    "tall": lambda: RANDOM.standard_normal((300, 200)),
    "square": lambda: RANDOM.standard_normal((400, 400)),
    "close": lambda: rotated(1 - 1e-3 * np.linspace(0, 1, 300), 300, 300),
    "dense at the top": lambda: rotated(np.cos(np.linspace(0, np.pi / 2, 400)), 400, 400),
    "all equal": lambda: rotated(np.full(200, 3.0), 200, 200),
    "rank 2": lambda: rotated([5.0, 4.9999], 80, 90),
    "one row": lambda: RANDOM.standard_normal((1, 9)),
    "one column": lambda: RANDOM.standard_normal((9, 1)),
    "one element": lambda: np.array([[-3.0]]),
    "huge": lambda: 1e25 * RANDOM.standard_normal((30, 40)),
    "tiny": lambda: 1e-25 * RANDOM.standard_normal((30, 40)),
    "sparse": lambda: np.eye(50)[::-1] * 7.0,
    "ill-conditioned": lambda: rotated(np.logspace(0, -12, 200), 200, 200),
    "one apart": lambda: np.diag([1.0003] + [1.0] * 299),
    "edge of float32": lambda: 2.9e38 * np.sign(RANDOM.standard_normal((30, 30))),
    "subnormal": lambda: 1e-40 * RANDOM.standard_normal((30, 30)),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_linear(framework: Harness, kind: str) -> None:
    """kernel_norm is the largest singular value and sr the Frobenius norm divided by it, to 1e-4 of either."""
    weight = MATRICES[kind]().astype(np.float32)
    model = only_linear(framework, weight)
    (row,) = watched(framework, model, {"linear_hook": ["fc"]}, [framework.tensor(np.zeros((1, weight.shape[1])))])
    values = np.linalg.svd(weight.astype(np.float64), compute_uv=False)
    assert float(row["kernel_norm"]) == pytest.approx(values[0], rel=1e-4)
    assert float(row["sr"]) == pytest.approx(np.sqrt(((values / values[0]) ** 2).sum()), rel=1e-4)


def only_linear(framework: Harness, weight: Any) -> Module:
    fc = framework.linear(weight)

    def forward(x: Tensor) -> Tensor:
        return fc(x)

    return framework.module(forward, fc=fc)


def of_parameter(
    framework: Harness, weight: Any, dtype: str = "float32", name: str = "weight", says: dict[str, int] | None = None
) -> Module:
    """A module ``inner`` that calls its parameter so, and does not run; and what it says of itself."""
    inner = framework.module(None, **{name: framework.parameter(weight, dtype)}, **(says or {}))
    fc = framework.linear(np.eye(2))

    def forward(x: Tensor) -> Tensor:
        return fc(x)

    return framework.module(forward, fc=fc, inner=inner)


def test_linear_without_elements_of_size(framework: Harness) -> None:
    """Of nothing but zeros the norm is 0 and the ratio has no value; of NaN neither has one."""
    (row,) = watched(
        framework, only_linear(framework, np.zeros((4, 3))), {"linear_hook": ["fc"]}, [inputs(framework, 3)]
    )
    assert (float(row["kernel_norm"]), row["sr"]) == (0.0, "nan")
    bad = only_linear(framework, [[1.0, np.nan], [0.0, 1.0]])
    (row,) = watched(framework, bad, {"linear_hook": ["fc"]}, [inputs(framework, 2)], alert={"rules": []})
    assert (row["kernel_norm"], row["sr"]) == ("nan", "nan")


def inputs(framework: Harness, width: int) -> Tensor:
    return framework.tensor(np.ones((2, width)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", ["weight", "wg"])
def test_linear_of_a_module_that_does_not_run(framework: Harness, dtype: str, name: str) -> None:
    """A weight of any floating dtype, under either name, is read though no forward shows it."""
    weight = RANDOM.standard_normal((20, 30)).astype(dtype)
    model = of_parameter(framework, weight, dtype, name)
    (row,) = watched(framework, model, {"linear_hook": ["0:inner"]}, [inputs(framework, 2)])
    assert row["name"] == "inner.linear"
    assert row["shape"] == "[20, 30]"
    assert dtype in row["dtype"].lower()
    assert float(row["kernel_norm"]) == pytest.approx(np.linalg.norm(weight.astype(np.float64), 2), rel=1e-4)


def test_a_module_by_the_name_that_the_documentation_gives_it(framework: Harness) -> None:
    """``0:0`` is the module that is called ``encoder.layers.0``, as in the documentation's own example."""
    rows = watched(framework, tower(framework), {"linear_hook": ["0:0", "0:10"]}, [framework.tensor(X)])
    assert [row["name"] for row in rows] == ["encoder.layers.0.linear", "encoder.layers.10.linear"]


def test_linear_of_every_module(framework: Harness) -> None:
    """An empty list takes every module with a matrix; there is one row a step, whatever the micro batches."""
    x = framework.tensor(X)
    rows = watched(framework, tiny_net(framework), {"linear_hook": []}, [x, x], [x], [x], step_interval=2)
    assert [(row["step"], row["name"]) for row in rows] == [
        ("0", "fc.linear"), ("0", "fc2.linear"), ("2", "fc.linear"), ("2", "fc2.linear"),
    ]  # fmt: skip
    assert list(rows[0]) == ["vpp_stage", "name", "step", "sr", "kernel_norm", "shape", "dtype"]


def test_linear_by_default_is_none(framework: Harness) -> None:
    """Without the key, and without recording_l2_features, nothing is recorded."""
    x = framework.tensor(X)
    assert watched(framework, tiny_net(framework), {}, [x]) == []
    assert watched(framework, tiny_net(framework), {"linear_hook": []}, [x], recording_l2_features=False) == []


# attention_hook


class Attention(NamedTuple):
    """A case of attention, and what of it is hidden."""

    query: Array
    """Batches, heads, queries, depth; so is the key."""
    key: Array
    hidden: Array
    """Broadcasts to the scores."""
    added: Array | float = 0.0


def by_hand(case: Attention) -> tuple[Array, Array]:
    """Entropy and largest weight of each query in float64: batches, heads, queries; NaN where all is hidden."""
    query, key = case.query.astype(np.float64), case.key.astype(np.float64)
    key = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
    scores = query @ key.swapaxes(2, 3) / np.sqrt(query.shape[3]) + case.added
    with np.errstate(all="ignore"):
        weights = np.where(case.hidden, 0.0, np.exp(scores - scores.max(-1, keepdims=True)))
        weights = weights / weights.sum(-1, keepdims=True)
        terms = np.where(weights > 0, weights * np.log(weights), 0.0)
    nothing = np.broadcast_to(case.hidden, scores.shape).all(-1)
    return np.where(nothing, np.nan, -terms.sum(-1)), np.where(nothing, np.nan, weights.max(-1))


ORDERS = {"s,b,h,d": (2, 0, 1, 3), "b,s,h,d": (0, 2, 1, 3), "b,h,s,d": (0, 1, 2, 3)}


def attends(
    framework: Harness, case: Attention, order: str = "s,b,h,d", dtype: str = "float32", given: Any = None, **more: Any
) -> Lines:
    """The rows of a module ``inner`` that is called with query and key in this order, and what else is ``given``."""
    query, key = (framework.tensor(x.transpose(ORDERS[order]), dtype) for x in (case.query, case.key))
    inner, fc = framework.module(lambda query, key, *_, **__: query), framework.linear(np.eye(2))
    given = {
        name: framework.tensor(x, str(x.dtype)) if isinstance(x, np.ndarray) else x for name, x in (given or {}).items()
    }

    def forward(x: Tensor) -> Tensor:
        inner(query, key, **given)
        return fc(x)

    model = framework.module(forward, inner=inner, fc=fc)
    more = {"sa_order": order, **more}
    return watched(framework, model, {"attention_hook": ["0:inner"]}, [inputs(framework, 2)], **more)


def random_case(
    batches: int = 2, heads: int = 4, queries: int = 5, keys: int = 5, shared: int = 1, depth: int = 8
) -> Attention:
    query = 2 * RANDOM.standard_normal((batches, heads, queries, depth))
    return Attention(query, RANDOM.standard_normal((batches, heads // shared, keys, depth)), np.array(False))


def later(queries: int, keys: int) -> Array:
    """Keys after each query; the last query is as late as the last key."""
    return np.arange(keys)[None] > np.arange(queries)[:, None] + keys - queries


def assert_attention(row: dict[str, str], case: Attention, everything: bool = False, rel: float = 1e-5) -> None:
    entropy, largest = by_hand(case) if everything else (each[0, 0] for each in by_hand(case))
    assert np.isfinite(np.nanmean(entropy))
    assert float(row["entropy"]) == pytest.approx(np.nanmean(entropy), rel=rel, abs=1e-6)
    assert float(row["softmax_max"]) == pytest.approx(np.nanmean(largest), rel=rel)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("heads", ["first", "all"])
def test_attention(framework: Harness, order: str, heads: str) -> None:
    """Entropy and largest weight are the means over the queries of the first head, or of all of them."""
    case = random_case()
    (row,) = attends(framework, case, order, sa_heads=heads, sa_mask="none")
    assert_attention(row, case, heads == "all")
    assert row["name"] == "inner.attention"
    assert list(row) == ["vpp_stage", "name", "step", "micro_step", "entropy", "softmax_max", "shape", "dtype"]


@pytest.mark.parametrize("heads", ["first", "all"])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (1, 6), (7, 3)])
def test_causal_attention(framework: Harness, heads: str, queries: int, keys: int) -> None:
    """Where it is causal, later keys are hidden, also from fewer or more queries than keys, and with shared keys."""
    case = random_case(queries=queries, keys=keys, shared=2)._replace(hidden=later(queries, keys))
    (row,) = attends(framework, case, given={"is_causal": True}, sa_heads=heads)
    assert_attention(row, case, heads == "all")
    (row,) = attends(framework, case, sa_mask="causal", sa_heads=heads)
    assert_attention(row, case, heads == "all")
    (row,) = attends(framework, case, given={"attn_mask_type": "causal"}, sa_mask="none", sa_heads=heads)
    assert_attention(row, case._replace(hidden=np.array(False)), heads == "all")


@pytest.mark.parametrize("heads", ["first", "all"])
@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (2, 1, 4, 6), (1, 4, 4, 6), (2, 4, 1, 6), (2, 4, 4, 6)])
def test_masked_attention(framework: Harness, heads: str, shape: tuple[int, ...]) -> None:
    """A mask of booleans hides or leaves, one of numbers is added; queries that see nothing are left out."""
    hidden = RANDOM.standard_normal(shape) > 0
    hidden[..., 0, 0], hidden[..., -1, :] = hidden.shape[-2] == 1, hidden.shape[-2] > 1
    hidden[..., 0] &= hidden.shape[-2] > 1
    case, everything = random_case(queries=4, keys=6)._replace(hidden=hidden), heads == "all"
    for given, more in (
        ({"attention_mask": hidden}, {}),
        ({"mask": ~hidden}, {"sa_mask_true": "attends"}),
        ({"attn_mask": hidden.astype(np.uint8)}, {}),
        ({"attn_mask": np.where(hidden, -np.inf, 0.0).astype(np.float32)}, {}),
        ({"attn_mask": np.where(hidden, np.finfo(np.float32).min, 0.0).astype(np.float32)}, {}),
    ):
        (row,) = attends(framework, case, given=given, sa_heads=heads, **more)
        assert_attention(row, case, everything)
    bias = RANDOM.standard_normal(shape)
    (row,) = attends(framework, case, given={"attn_mask": bias.astype(np.float32)}, sa_heads=heads)
    assert_attention(row, case._replace(hidden=np.array(False), added=bias), everything)


def test_attention_of_half_precision(framework: Harness) -> None:
    """Half precision is reduced in float32: scores of a thousand do not overflow, and small entropies stay."""
    case = random_case(depth=64)
    case = case._replace(query=(40 * case.query).astype(np.float16), key=(40 * case.key).astype(np.float16))
    (row,) = attends(framework, case, dtype="float16")
    assert_attention(row, case, rel=1e-4)


def test_attention_of_infinite_scores(framework: Harness) -> None:
    """NaN among what is attended to makes NaN; among what is hidden it does not."""
    case = random_case()
    case.key[0, 0, 4, 0] = np.nan
    quiet = {"alert": {"rules": []}}
    (row,) = attends(framework, case, **quiet)
    assert (row["entropy"], row["softmax_max"]) == ("nan", "nan")
    hidden = np.arange(5) == 4
    (row,) = attends(framework, case, given={"attention_mask": np.broadcast_to(hidden, (5, 5)).copy()}, **quiet)
    assert_attention(row, case._replace(key=np.nan_to_num(case.key), hidden=hidden))


def test_attention_in_blocks(framework: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many queries are computed at once, the numbers are the same."""
    case = random_case(queries=37, keys=50)._replace(hidden=later(37, 50))
    for block in (1, 120, 1000):
        monkeypatch.setattr(framework.TrainerMon.framework.arrays, "block", lambda _, block=block: block)
        (row,) = attends(framework, case, given={"is_causal": True}, sa_heads="all")
        assert_attention(row, case, everything=True)


def test_attention_of_each_call(framework: Harness) -> None:
    """Every call of every micro batch has a row."""
    query = framework.tensor(random_case().query)
    inner, fc = framework.module(lambda query, key: query), framework.linear(np.eye(2))

    def forward(x: Tensor) -> Tensor:
        inner(query, query)
        inner(key=query, query=query)
        return fc(x)

    model, x = framework.module(forward, inner=inner, fc=fc), inputs(framework, 2)
    rows = watched(framework, model, {"attention_hook": ["inner"]}, [x, x], [x])
    assert [(row["step"], row["micro_step"], row["call"]) for row in rows] == [
        ("0", "0", "0"), ("0", "0", "1"), ("0", "1", "0"), ("0", "1", "1"), ("1", "0", "0"), ("1", "0", "1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        random_case()._replace(query=np.ones((2, 4, 5, 3))),
        random_case()._replace(query=np.ones((3, 4, 5, 8))),
        random_case(shared=1)._replace(query=np.ones((2, 6, 5, 8))),
        random_case()._replace(key=np.ones((2, 4, 0, 8))),
    ],
)
def test_no_attention(framework: Harness, case: Attention, caplog: pytest.LogCaptureFixture) -> None:
    """Tensors that are no query and key cause a warning and no row."""
    assert attends(framework, case) == []
    assert ["l2_targets.attention_hook: 0:inner: expected query and key" in said for said in caplog.messages] == [True]


def test_no_mask(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """A mask of another shape, and a module called with one tensor, cause a warning and no row."""
    assert attends(framework, random_case(), given={"attn_mask": np.zeros((3, 5), bool)}) == []
    x = framework.tensor(X)
    assert watched(framework, tiny_net(framework), {"attention_hook": ["fc"]}, [x]) == []
    first, second = caplog.messages
    assert "expected a mask" in first
    assert "0:fc: expected query" in second


MEASURED = """
import sys
import numpy as np
from importlib import import_module
from pathlib import Path
harness = import_module(sys.argv[1])
from probe.core.instrumentation.signals.features import attention
def kibibytes(name):
    return int(Path("/proc/self/status").read_text().partition(name)[2].split()[0])
ops, tensors = harness.TrainerMon.framework.arrays, harness.TrainerMon.framework.tensors
arrays = [np.random.RandomState(seed).standard_normal((8192, 1, 1, 16)).astype(np.float32) for seed in (0, 1)]
made = [tensors.numbers(harness.tensor(array)) for array in arrays]
def run(length):
    call = attention.AttentionCall(made[0][:length], made[1][:length], None, False)
    with ops.quiet():
        return attention.finish(np.asarray(attention.begin(ops, call, "s,b,h,d", False))[:, 0])
run(64)
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = kibibytes("VmRSS:")
found = run(8192)
after = kibibytes("VmHWM:")
print((after - before) / 1024, found["entropy"])
"""


def printed_by(framework: Harness, program: str) -> str:
    """The last line of a program, in a process of its own, that is given the name of the framework's harness."""
    modules = {"pytorch": TORCH, "mindspore": MINDSPORE}.get(framework.NAME, COMMANDS)
    arguments = [quick_python(*modules), "-c", program, framework.__name__]  # type: ignore[attr-defined]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()[-1]


@pytest.mark.slow
def test_memory_of_attention(framework: Harness) -> None:
    """8192 queries and keys, whose scores would take 256 MiB, take less than 64."""
    said = printed_by(framework, MEASURED)
    mebibytes, entropy = map(float, said.split())
    assert mebibytes < 64
    assert 8 < entropy < np.log(8192)


# moe_router_weight_hook


@pytest.mark.parametrize("size", [1.0, 1e25, 1e-25])
@pytest.mark.parametrize("experts", [2, 5, 9])
def test_router_weight(framework: Harness, experts: int, size: float) -> None:
    """The similarity is the mean cosine between the rows of two experts, whatever their lengths."""
    weight = (RANDOM.standard_normal((experts, 6)) + 0.5) * size
    (row,) = watched(
        framework, only_linear(framework, weight), {"moe_router_weight_hook": ["fc"]}, [inputs(framework, 6)]
    )
    pairs = [(a, b) for a in range(experts) for b in range(experts) if a != b]
    length = np.linalg.norm(weight, axis=1)
    cosines = [weight[a] / length[a] @ (weight[b] / length[b]) for a, b in pairs]
    assert float(row["router_weight_similarity"]) == pytest.approx(np.mean(cosines), rel=1e-4, abs=1e-6)
    assert row["name"] == "fc.moe_router"
    assert list(row) == ["vpp_stage", "name", "step", "router_weight_similarity", "shape", "dtype"]


def test_router_weight_of_zeros(framework: Harness) -> None:
    """An expert without weight is like no other, and one alone has no similarity."""
    (row,) = watched(
        framework,
        of_parameter(framework, [[1.0, 0], [0, 0], [2, 0]]),
        {"moe_router_weight_hook": ["inner"]},
        [inputs(framework, 2)],
    )
    assert float(row["router_weight_similarity"]) == pytest.approx(1 / 3)
    (row,) = watched(
        framework, of_parameter(framework, [[1.0, 2.0]]), {"moe_router_weight_hook": ["inner"]}, [inputs(framework, 2)]
    )
    assert row["router_weight_similarity"] == "nan"


# moe_router_logit_hook


def routed(framework: Harness, logits: Array, says: dict[str, int] | None = None, **more: Any) -> Lines:
    """The rows of a router ``inner`` that gives these logits and something else, and what it says of itself."""
    given, fc = framework.tensor(logits), framework.linear(np.eye(2))
    inner = framework.module(lambda x: (given, x), **(says or {}))

    def forward(x: Tensor) -> Tensor:
        inner(x)
        return fc(x)

    model = framework.module(forward, inner=inner, fc=fc)
    return watched(framework, model, {"moe_router_logit_hook": ["inner"]}, [inputs(framework, 2)], **more)


@pytest.mark.parametrize("top_k", [1, 2, 4, 9])
@pytest.mark.parametrize("shape", [(50, 4), (5, 7, 4)])
def test_router_logits(framework: Harness, shape: tuple[int, ...], top_k: int) -> None:
    """Entropy of the softmax, and how evenly the k largest logits of the tokens are spread over the experts."""
    logits = RANDOM.standard_normal(shape) + np.array([1.0, 0.0, 0.0, -1.0])
    (row,) = routed(framework, logits, router_top_k=top_k)
    tokens = logits.reshape(-1, 4)
    weights = np.exp(tokens) / np.exp(tokens).sum(1, keepdims=True)
    assert float(row["per_token_expert_entropy"]) == pytest.approx(-(weights * np.log(weights)).sum(1).mean(), rel=1e-5)
    load = [sum(expert in np.argsort(token)[::-1][:top_k] for token in tokens) for expert in range(4)]
    assert float(row["load_max"]) == pytest.approx(max(load) / np.mean(load))
    assert float(row["load_cv"]) == pytest.approx(np.std(load) / np.mean(load), abs=1e-7)
    assert list(row)[3:7] == ["micro_step", "per_token_expert_entropy", "load_max", "load_cv"]


@pytest.mark.parametrize("no", [-np.inf, np.finfo(np.float32).min])
def test_router_logits_that_are_hidden(framework: Harness, no: float) -> None:
    """Experts hidden by -inf, or the lowest number, have no weight and no load; tokens that none may take are left
    out."""
    (row,) = routed(framework, np.array([[0.0, 0.0, no], [1.0, no, no], [no, no, no]]), router_top_k=2)
    assert float(row["per_token_expert_entropy"]) == pytest.approx(np.log(2) / 2)
    assert float(row["load_max"]) == pytest.approx(2 / 1)
    assert float(row["load_cv"]) == pytest.approx(np.std([2, 1, 0]))


def test_router_without_top_k(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """If the number of experts of a token is unknown, their load is not a number, which is logged once."""
    (row,) = routed(framework, np.zeros((3, 4)))
    assert float(row["per_token_expert_entropy"]) == pytest.approx(np.log(4))
    assert (row["load_max"], row["load_cv"]) == ("nan", "nan")
    assert ["set router_top_k" in said for said in caplog.messages] == [True]


def test_no_router(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """An output without tokens or without numbers causes a warning and no row."""
    assert routed(framework, np.zeros(4)) == []
    assert ["expected logits" in said for said in caplog.messages] == [True]


# What all of them have in common.


def test_an_unknown_name(framework: Harness) -> None:
    """A name that no module has is an error before training, with the nearest."""
    with pytest.raises(ValueError, match=r"l2_targets.linear_hook: expected names .* got '0:fcc'; did you mean '0:fc'"):
        watched(framework, tiny_net(framework), {"linear_hook": ["0:fcc"]})
    with pytest.raises(ValueError, match=r"l2_targets\.linear_hook"):
        watched(framework, tiny_net(framework), {"linear_hook": ["1:fc"]})


def test_a_module_that_does_not_fit(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """A module without a matrix is logged once, and has no row."""
    x = framework.tensor(X)
    assert watched(framework, tiny_net(framework), {"linear_hook": ["relu"]}, [x], [x]) == []
    assert [("0:relu: expected a module with" in message) for message in caplog.messages] == [True]


def every_feature(framework: Harness) -> tuple[Module, dict[str, Any]]:
    """A model with random numbers in it, of which everything can be recorded, and the configuration for that."""
    inner, query = noisy(framework), framework.tensor(random_case().query)
    looked = framework.module(lambda query, key: query)

    def forward(x: Tensor) -> Tensor:
        looked(query, query)
        return inner(x)

    hooks = {"attention_hook": ["looked"], "linear_hook": [], "moe_router_weight_hook": ["inner.fc"]}
    hooks["moe_router_logit_hook"] = ["inner.fc"]
    config = {"recording_l2_features": True, "l2_targets": hooks, "router_top_k": 1, "squash_name": False}
    return framework.module(forward, looked=looked, inner=inner), config


def test_training_is_not_disturbed(framework: Harness) -> None:
    """Weights and random generators are the same to the last bit with features recorded and without."""

    def trained(config: dict[str, Any] | None) -> tuple[dict[str, bytes], list[object], set[str]]:
        framework.seed()
        model, on = every_feature(framework)
        rows = train(framework, on if config is None else config, model, steps=3)
        signals = {row.signal for row in rows}
        return (
            {name: array.tobytes() for name, array in framework.weights(model).items()},
            generators(framework),
            signals,
        )

    plain, watching_all = trained({}), trained(None)
    assert plain == trained({})
    assert watching_all[:2] == plain[:2]
    assert (plain[2], watching_all[2]) == (set(), set(FEATURES))


def test_nothing_stays_behind(framework: Harness) -> None:
    """After stop() hooks, attributes and classes are as before."""
    model, config = every_feature(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.1, momentum=0.0)
    loop = framework.loop(model, optimizer)
    train_step(loop, framework.tensor(X))
    before = framework.picture([model], [optimizer])
    with watching(framework, config, model, optimizer):
        assert framework.picture([model], [optimizer]) != before
        train_step(loop, framework.tensor(X))
    assert framework.picture([model], [optimizer]) == before


def test_other_outputs_and_rules(framework: Harness) -> None:
    """Every rule lets features pass, and every writer writes them, with the numbers of the tables."""
    model, config = every_feature(framework)
    names = [name for name in RULES if name not in ("AnomalyCommNan", "AnomalyReplica")]
    arguments = {"AnomalyTurbulence": {"threshold": 0.5}, "AnomalyThreshold": {"ops": ["norm"], "above": 1e9}}
    rules = [{"rule_name": name, "args": arguments.get(name, {})} for name in names]
    every = {
        "format": ["csv", "sqlite", "tensorboard"],
        "alert": {"rules": rules},
        "ndigits": 20,
    }
    optimizer = framework.optimizer("momentum", model, lr=0.1, momentum=0.0)
    loop = framework.loop(model, optimizer)
    with watching(framework, config | every, model, optimizer) as monitor:
        for _ in range(8):
            train_step(loop, framework.tensor(X))
    assert monitor.findings == []
    (row,) = lines_of(monitor)["linear_hook_7-7"][:1]
    database = next(Path(str(monitor.output_directory)).glob("*.db"))
    with closing(sqlite3.connect(database)) as connection:
        query = "SELECT kernel_norm FROM linear_hook_rows WHERE step = 7 AND target_name = ?"
        assert connection.execute(query, [row["name"]]).fetchone()[0] == float(row["kernel_norm"])
