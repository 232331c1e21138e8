"""Data parallelism: ``grad_unreduced`` is the input of ``nn.DistributedGradReducer``, ``grad_reduced`` its output."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.ranks import Ranks
from tests.mindspore.toys import Deep, ms, nn, one_step, tensor, watch
from tests.tables import Row, read

RANKS = 2
MICRO_BATCHES = (1, 2)
"""Of each training step."""
LR = 0.1
X = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)
W, B = np.array([[0.5, -1.0]], np.float32), np.array([0.25], np.float32)


def inputs(rank: int, micro_batch: int) -> np.ndarray:
    """Training data of a process, different on each."""
    return X * (1 + rank + 2 * micro_batch)


def train(root: str) -> None:
    """Run the same steps twice in each process, with gradients by step and by micro batch."""
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    rank = ms.communication.get_rank()
    for each in (False, True):
        os.environ["MONITOR_OUTPUT_DIR"] = f"{root}/{each}"
        net = nn.Dense(2, 1, weight_init=tensor(W), bias_init=tensor(B))
        parameters = net.trainable_params()
        optimizer = nn.SGD(parameters, LR)
        reducer = nn.DistributedGradReducer(parameters, mean=True, degree=RANKS)
        differentiated = ms.value_and_grad(lambda x, net=net: (net(x) ** 2).sum() / 2, None, parameters)
        monitor = watch(net, optimizer, monitor_mbs_grad=each)
        for micro_batches in MICRO_BATCHES:
            grads = [differentiated(tensor(inputs(rank, number)))[1] for number in range(micro_batches)]
            optimizer(reducer(tuple(sum(parts[1:], parts[0]) for parts in zip(*grads, strict=True))))
        monitor.stop()
    ms.reset_auto_parallel_context()


def own_gradients(rank: int, micro_batch: int, weight: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
    """By hand, of half the sum of the squared outputs."""
    x = inputs(rank, micro_batch).astype(np.float64)
    outputs = x @ weight.T + bias
    return {"weight": outputs.T @ x, "bias": outputs.sum(0)}


def by_hand() -> Iterator[tuple[list[list[dict[str, np.ndarray]]], dict[str, np.ndarray]]]:
    """For each step: every rank's gradients by micro batch, and their mean over ranks."""
    weight, bias = W.astype(np.float64), B.astype(np.float64)
    for micro_batches in MICRO_BATCHES:
        own = [[own_gradients(rank, i, weight, bias) for i in range(micro_batches)] for rank in range(RANKS)]
        mean = {name: sum(one[name] for each in own for one in each) / RANKS for name in ("weight", "bias")}
        yield own, mean
        weight, bias = weight - LR * mean["weight"], bias - LR * mean["bias"]


@pytest.fixture(scope="module")
def trained(two_ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where processes that have trained together have written."""
    root = tmp_path_factory.mktemp("ranks")
    two_ranks.run(train, str(root))
    return root


def directory(trained: Path, each: bool, rank: int) -> Path:
    """The one that this rank has written."""
    (found,) = (trained / str(each)).glob(f"*rank{rank}*")
    return found


def test_directories_and_manifests_carry_the_rank(trained: Path) -> None:
    for each in (False, True):
        assert len(list((trained / str(each)).iterdir())) == RANKS
        for rank in range(RANKS):
            manifest = json.loads((directory(trained, each, rank) / "manifest.json").read_text(encoding="utf-8"))
            assert (manifest["rank"], manifest["world_size"], manifest["faults"]) == (rank, RANKS, {})


@pytest.mark.parametrize("rank", range(RANKS))
def test_gradients_before_and_after_the_reducer(trained: Path, rank: int) -> None:
    """One micro batch in the first step, two in the second: their sum."""
    rows = read(directory(trained, False, rank))
    for step, (own, mean) in enumerate(by_hand()):
        for name in ("weight", "bias"):
            total = sum(one[name] for one in own[rank])
            assert not np.allclose(total, mean[name], rtol=0.01)
            unreduced, reduced = (rows[Row(f"grad_{kind}", step, name)] for kind in ("unreduced", "reduced"))
            assert unreduced["norm"] == pytest.approx(np.linalg.norm(total), rel=1e-5)
            assert unreduced["mean"] == pytest.approx(total.mean(), rel=1e-5)
            assert reduced["norm"] == pytest.approx(np.linalg.norm(mean[name]), rel=1e-5)
            assert reduced["mean"] == pytest.approx(mean[name].mean(), rel=1e-5)
    assert {(row.step, row.micro_step, row.call) for row in rows if row.signal.startswith("grad")} == {
        (0, 0, 0), (1, 0, 0),
    }  # fmt: skip


@pytest.mark.parametrize("rank", range(RANKS))
def test_each_micro_batch_before_the_reducer(trained: Path, rank: int) -> None:
    rows = read(directory(trained, True, rank))
    expected = set()
    for step, (own, mean) in enumerate(by_hand()):
        for name in ("weight", "bias"):
            for micro_step, gradients in enumerate(own[rank]):
                row = Row("grad_unreduced", step, name, micro_step)
                assert rows[row]["norm"] == pytest.approx(np.linalg.norm(gradients[name]), rel=1e-5)
                expected.add(row)
            reduced = rows[Row("grad_reduced", step, name)]["norm"]
            assert reduced == pytest.approx(np.linalg.norm(mean[name]), rel=1e-5)
    assert {row for row in rows if row.signal == "grad_unreduced"} == expected


def deep() -> tuple[Any, Any]:
    """A model and its optimizer."""
    net = Deep()
    return net, nn.SGD(net.trainable_params(), LR)


def test_the_class_of_reducers_is_as_it_was_after_stopping() -> None:
    before = dict(vars(nn.DistributedGradReducer))
    first, second = watch(*deep()), watch(*deep())
    assert vars(nn.DistributedGradReducer) != before
    first.stop()
    assert vars(nn.DistributedGradReducer) != before, "the other one still listens"
    second.stop()
    assert vars(nn.DistributedGradReducer) == before


def test_the_class_of_reducers_is_as_it_was_after_an_exception() -> None:
    before = dict(vars(nn.DistributedGradReducer))
    net, optimizer = deep()

    def interrupted() -> None:
        with watch(net, optimizer):
            one_step(net, optimizer)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        interrupted()
    assert vars(nn.DistributedGradReducer) == before


def test_the_class_of_reducers_is_as_it_was_when_attaching_fails() -> None:
    before = dict(vars(nn.DistributedGradReducer))
    net, optimizer = deep()
    with pytest.raises(ValueError, match="nowhere"):
        watch(net, optimizer, targets={"nowhere": {}})
    assert vars(nn.DistributedGradReducer) == before
