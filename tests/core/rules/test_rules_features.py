"""Rules about features: attention whose entropy collapses, routers that send everything to one expert."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from probe.core.naming import COLUMNS
from probe.core.records import Batch, Key
from probe.core.rules.entropy import AnomalyEntropy, EntropyArgs
from probe.core.rules.router import AnomalyRouter, RouterArgs

ATTENTION, ROUTER = "attention_hook", "moe_router_logit_hook"


def batch(signal: str, step: int, row: Mapping[str, float], shape: tuple[int, ...]) -> Batch:
    """One row of a feature."""
    columns = {name: np.array([row[name]]) for name in COLUMNS[signal]}
    return Batch(
        signal, step, (Key("core"),), (shape,), ("torch.float32",), np.zeros(1, np.int64), columns, micro_stepped=True
    )


def entropies(rule: AnomalyEntropy, values: Iterable[float], keys: int = 64, first: int = 0) -> list[int]:
    """Steps at which these entropies are reported."""
    rows = ({"entropy": value, "softmax_max": 0.5} for value in values)
    shape = (1, keys, 4, 16)
    return [f.step for step, row in enumerate(rows, first) for f in rule.judge(batch(ATTENTION, step, row, shape))]


def loads(rule: AnomalyRouter, counts: Iterable[list[int]], top_k: int = 1) -> list[tuple[int, str]]:
    """Steps and columns that are reported of a router whose experts have these numbers of tokens."""
    found = []
    for step, numbers in enumerate(counts):
        load, tokens = np.array(numbers), sum(numbers) / top_k
        row = {
            "per_token_expert_entropy": 1.0,
            "load_max": load.max() / load.mean(),
            "load_cv": load.std() / load.mean(),
            "load_min": load.min() / load.mean(),
            "load_share": load.max() / tokens,
        }
        shape = (int(tokens), len(numbers))
        found += [(finding.step, finding.op) for finding in rule.judge(batch(ROUTER, step, row, shape))]
    return found


def test_entropy_that_collapses_is_reported_once() -> None:
    """A tenth of its median in ten samples in a row; again after it has recovered."""
    rule = AnomalyEntropy(EntropyArgs(), 0, ())
    series = [3.0] * 12 + [0.2] * 30 + [3.0] * 5 + [0.2] * 10
    assert entropies(rule, series) == [21, 56]


def test_entropy_that_is_low_for_a_moment_or_falls_slowly_is_not() -> None:
    """Nor one that was always low, as of a head that looks at the token before."""
    assert entropies(AnomalyEntropy(EntropyArgs(), 0, ()), [3.0] * 12 + [0.2] * 9 + [3.0] * 9) == []
    assert entropies(AnomalyEntropy(EntropyArgs(), 0, ()), 3.0 * 0.97 ** np.arange(300)) == []
    assert entropies(AnomalyEntropy(EntropyArgs(), 0, ()), [0.01] * 100) == []


def test_entropy_of_shorter_texts_has_another_history() -> None:
    """Attention over two keys has no more than ln 2, and is not compared with that over a thousand."""
    rule = AnomalyEntropy(EntropyArgs(), 0, ())
    assert entropies(rule, [6.8] * 20, 1024) == []
    assert entropies(rule, [0.6] * 40, 2, 20) == []


def test_router_that_sends_all_tokens_to_one_expert_is_reported() -> None:
    """After twenty samples, the first ten of a run left out; once."""
    rule = AnomalyRouter(RouterArgs(), 0, ())
    assert loads(rule, [[250, 2, 2, 2]] * 60) == [(29, "load_max")]
    assert loads(AnomalyRouter(RouterArgs(), 0, ()), [[250, 2, 2, 2]] * 28 + [[100, 80, 50, 26]] * 40) == []


def test_expert_without_a_token_is_reported() -> None:
    """Where experts have many tokens in the mean; with few, one may have none by chance."""
    rule = AnomalyRouter(RouterArgs(), 0, ())
    assert loads(rule, [[100, 100, 56, 0]] * 60) == [(29, "load_min")]
    assert loads(AnomalyRouter(RouterArgs(), 0, ()), [[10, 10, 5, 0]] * 60) == []


def test_expert_that_all_tokens_share_is_no_collapse() -> None:
    """Of two experts a token has, one may be the same for all; if both are, the router has collapsed."""
    shared, collapsed = [256, 90, 86, 80], [254, 252, 3, 3]
    assert loads(AnomalyRouter(RouterArgs(), 0, ()), [shared] * 60, top_k=2) == []
    assert loads(AnomalyRouter(RouterArgs(), 0, ()), [collapsed] * 60, top_k=2) == [(29, "load_max")]
    assert loads(AnomalyRouter(RouterArgs(), 0, ()), [[256, 256]] * 60, top_k=2) == []


def test_rows_without_these_columns_are_left_alone() -> None:
    """Other signals have no entropy, and earlier versions wrote no load_share."""
    row = batch(ROUTER, 0, dict.fromkeys(COLUMNS[ROUTER], 0.0), (8, 4))
    columns = {name: values for name, values in row.columns.items() if name != "load_share"}
    old = Batch(ROUTER, 0, row.keys, row.shapes, row.dtypes, row.order, columns)
    assert [*AnomalyRouter(RouterArgs(), 0, ()).judge(old), *AnomalyEntropy(EntropyArgs(), 0, ()).judge(old)] == []
