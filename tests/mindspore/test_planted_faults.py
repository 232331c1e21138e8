"""Faults planted in runs on MindSpore, their place, rank and step drawn by chance, named from all ranks' files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from probe.core.analysis.diagnosis.analyse import Analysis, analyse
from probe.core.naming import row_name
from probe.core.rules.evaluate import module_of
from tests.distributed.ranks import Ranks
from tests.mindspore.toys import HAS_IDENTITIES, ms, nn, tensor, watch
from tests.required import require

require("duckdb")

from mindspore.experimental import optim  # noqa: E402 - only where MindSpore is

from probe.demo.mindspore.faults import _Amplify  # noqa: E402

WIDTH, ROWS, RANKS = 8, 16, 2
FIRST, LAST = 12, 16
"""Steps between which a fault begins."""
KINDS = {
    "nan weight": "NaN",
    "overflow": "overflow",
    "gradient": "exploding gradient",
    "dead": "dead layer",
    "frozen": "frozen parameter",
    "bad batch": "bad batch",
}
PLACES = {
    "nan weight": ["first.weight", "fc1.bias", "last.weight"],
    "overflow": ["first", "fc1", "fc2"],
    "gradient": ["fc1", "fc2", "last"],
    "dead": ["act"],
    "frozen": ["fc1.weight", "fc2.weight"],
    "bad batch": [""],
    "none": [""],
}


class Fault(NamedTuple):
    kind: str
    place: str
    rank: int
    step: int


class Net(nn.Cell):
    """Four linear layers, one of them behind a ReLU."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        random = np.random.default_rng(seed)

        def dense(inputs: int, outputs: int) -> Any:
            weight = tensor((random.standard_normal((outputs, inputs)) / inputs**0.5).astype(np.float32))
            return nn.Dense(inputs, outputs, weight_init=weight, bias_init=tensor(np.full(outputs, 0.1, np.float32)))

        self.first, self.fc1, self.act = dense(WIDTH, WIDTH), dense(WIDTH, 4 * WIDTH), nn.ReLU()
        self.fc2, self.last = dense(4 * WIDTH, WIDTH), dense(WIDTH, WIDTH)

    def construct(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(x + self.fc2(self.act(self.fc1(x))))


def draw(kind: str, seed: int, ranks: int = 1) -> Fault:
    random = np.random.default_rng([seed, 0xCB])
    place = PLACES[kind][random.integers(len(PLACES[kind]))]
    return Fault(kind, place, int(random.integers(ranks)), int(random.integers(FIRST, LAST + 1)))


class Planted:
    """The fault in a model. Set :attr:`step` as training goes on."""

    def __init__(self, fault: Fault, model: Any, here: bool) -> None:
        self.fault, self.step, self.here = fault, -1, here
        if not here:
            return
        cells, weights = dict(model.cells_and_names()), dict(model.parameters_and_names())
        if fault.kind == "nan weight":
            weight = weights[fault.place]

            def poison(*_: object) -> None:
                if self.strikes:
                    values = weight.asnumpy().copy()
                    values.flat[3] = np.nan
                    weight.set_data(tensor(values))

            model.register_forward_pre_hook(poison)
        elif fault.kind in ("overflow", "gradient", "dead"):
            amplify = _Amplify(1e7)
            change = {"overflow": lambda y: y * 1e38 * 1e10, "gradient": amplify, "dead": lambda y: y * 0.0}[fault.kind]
            cells[fault.place].register_forward_hook(lambda _, __, y: change(y) if self.strikes else y)

    @property
    def strikes(self) -> bool:
        if self.fault.kind in ("dead", "frozen"):
            return self.here and self.step >= self.fault.step
        return self.here and self.step == self.fault.step

    def data(self, rank: int, seed: int) -> tuple[Any, Any]:
        random = np.random.default_rng([seed, self.step, rank])
        x = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
        y = np.sin(x + 1)
        if self.fault.kind == "bad batch" and self.strikes:
            x[-1, 2] = np.nan
        return tensor(x), tensor(y)


def train(fault: Fault, seed: int, rank: int = 0, reduced: bool = False) -> None:
    model = Net(seed)
    planted = Planted(fault, model, rank == fault.rank)
    parameters = model.trainable_params()
    frozen = fault.place if fault.kind == "frozen" else ""
    apart, others = ([p for p in parameters if (p.name == frozen) is own] for own in (True, False))
    groups = [{"params": each} for each in (others, apart) if each]
    optimizer = optim.Adam(groups, 1e-3)
    differentiated = ms.value_and_grad(lambda x, y: ((model(x) - y) ** 2).mean(), None, optimizer.parameters)
    reducer = (
        nn.DistributedGradReducer(optimizer.parameters, mean=True, degree=RANKS) if reduced else lambda given: given
    )
    rules = ["AnomalyNan", "AnomalySpike", "AnomalyDead", "AnomalyFrozen", "AnomalyVanish"]
    settings: dict[str, Any] = {"ops": ["norm", "min", "max", "zeros"], "squash_name": False, "ndigits": None}
    monitor = watch(model, optimizer, alert={"rules": [{"rule_name": name} for name in rules]}, **settings)
    for step in range(fault.step + (8 if fault.kind in ("dead", "frozen", "none") else 3)):
        planted.step = step
        if apart and planted.strikes:
            ms.ops.assign(optimizer.param_groups[1]["lr"], 0.0)
        _, gradients = differentiated(*planted.data(rank, seed))
        optimizer(reducer(gradients))
    monitor.stop()
    assert monitor.faults == {}


def assert_named(analysis: Analysis, fault: Fault) -> None:
    if fault.kind == "gradient" and not HAS_IDENTITIES:
        pytest.skip("without gradients of inputs the layer behind is named (MindSpore before 2.9)")
    diagnosis = analysis.diagnosis
    assert diagnosis is not None, f"{fault}: nothing was found"
    finding, told = diagnosis.first.finding, f"{fault}\n{diagnosis.text}"
    assert diagnosis.kind.value == KINDS[fault.kind], told
    assert (finding.rank, diagnosis.first.began) == (fault.rank, fault.step), told
    assert fault.place in (module_of(finding), row_name(finding.key)), told
    assert not diagnosis.rivals, told
    assert analysis.problems.lines() == []


@pytest.mark.parametrize(("kind", "seed"), [(kind, 1 + number % 2) for number, kind in enumerate(KINDS)])
def test_one_process(kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault is named, with module, step and kind."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    fault = draw(kind, seed)
    train(fault, seed)
    assert_named(analyse(tmp_path), fault)


def test_a_healthy_run_gives_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No finding at all."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    train(draw("none", 3), 3)
    assert analyse(tmp_path).diagnosis is None


PARALLEL = [draw(kind, seed, RANKS) for seed, kind in enumerate(("nan weight", "overflow", "gradient", "bad batch"))]


def train_on_all_ranks(fault: Fault, seed: int) -> None:
    """Runs on each rank."""
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    train(fault, seed, ms.communication.get_rank(), reduced=True)
    ms.reset_auto_parallel_context()


@pytest.mark.parametrize("fault", PARALLEL, ids=lambda fault: fault.kind)
def test_data_parallel(two_ranks: Ranks, fault: Fault, output_dir: Path) -> None:
    """The rank is named as well, although reduced gradients are bad on both in the same step."""
    two_ranks.run(train_on_all_ranks, fault, PARALLEL.index(fault))
    assert_named(analyse(output_dir), fault)
