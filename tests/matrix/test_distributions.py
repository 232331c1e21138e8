"""Signals beyond moments: agreement of gradients with momentum, and distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from probe.core.histogram import BINS, HIGH, HISTOGRAM, LOW, QUANTILES, ZERO, parsed
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import product, tiny_net
from tests.matrix.watching import OPS, assert_rows, inputs, lines_of, rows_of, watching
from tests.required import require
from tests.tables import EVERY_SIGNAL, Row, Rows

GRADIENTS = [np.array(g) for g in ([1.0, -2.0, 4.0, 0.0], [-8.0, -1.0, 2.0, 1.0], [3.0, 5.0, 0.0, -0.125])]
"""Of the parameter ``w`` of a product, step by step."""
BETA1, BETA2, MOMENTUM = 0.5, 0.75, 0.5
HYPERPARAMETERS: dict[str, dict[str, float]] = {
    "adam": {"beta1": BETA1, "beta2": BETA2},
    "momentum": {"momentum": MOMENTUM},
    "sgd": {},
}


def train_product(framework: Harness, config: dict[str, Any], kind: str, gradients: Sequence[Any], **more: Any) -> Rows:
    """The rows of a training whose gradients are these."""
    model = product(framework, np.zeros(gradients[0].shape))
    optimizer = framework.optimizer(kind, model, lr=0.125, **HYPERPARAMETERS[kind])
    loop = framework.loop(model, optimizer)
    with watching(framework, {"ops": OPS, "ndigits": 20, **config}, model, optimizer, **more) as monitor:
        for gradient in gradients:
            train_step(loop, framework.tensor(gradient))
    return rows_of(monitor)


def agreeing(gradient: Any, moment: Any) -> float:
    """By the definition in words: pairs of one sign count one, pairs with a zero one half."""
    scores = [0.5 if a * b == 0 else float(a * b > 0) for a, b in zip(gradient, moment, strict=True)]
    return sum(scores) / len(scores)


@pytest.mark.parametrize("kind", ["momentum", pytest.param("adam", marks=pytest.mark.needs("adam"))])
def test_the_direction_of_gradients_and_momentum(framework: Harness, kind: str) -> None:
    """The fraction of elements that agree in sign with the moment before the update, under every op alike."""
    rows = train_product(framework, {"mg_direction": True}, kind, GRADIENTS)
    moment, expected = np.zeros(4), {}
    for step, gradient in enumerate(GRADIENTS):
        expected[step] = agreeing(gradient, moment)
        moment = BETA1 * moment + (1 - BETA1) * gradient if kind == "adam" else MOMENTUM * moment + gradient
    assert len({*expected.values()}) == 3, "the steps must differ to tell anything"
    for step in (1, 2):
        row = rows[Row("mg_direction", step, "w")]
        assert [row[op] for op in ("min", "max", "mean", "norm")] == [expected[step]] * 4
    assert {row.signal for row in rows} == {"mg_direction"}, "and nothing else is collected"
    first = rows.get(Row("mg_direction", 0, "w"))
    assert first is None or first["mean"] == 0.5, "before the first update there is no moment, or it is all zeros"


@pytest.mark.parametrize("kind", [pytest.param("sgd", marks=pytest.mark.needs("sgd")), "momentum"])
def test_the_relative_size_of_updates(framework: Harness, kind: str) -> None:
    """The root mean square of the change over that of the parameter before it, and nothing else is collected."""
    weight = np.array([3.0, 0.0, -4.0, 1.0])
    model = product(framework, weight)
    optimizer = framework.optimizer(kind, model, lr=0.125, **HYPERPARAMETERS[kind])
    loop = framework.loop(model, optimizer)
    with watching(framework, {"relative_update": True}, model, optimizer) as monitor:
        for gradient in GRADIENTS:
            train_step(loop, framework.tensor(gradient))
    rows, velocity = rows_of(monitor), np.zeros(4)
    assert {row.signal for row in rows} == {"relative_update"}
    for step, gradient in enumerate(GRADIENTS):
        velocity = velocity * (MOMENTUM if kind == "momentum" else 0.0) + gradient
        expected = np.linalg.norm(0.125 * velocity) / np.linalg.norm(weight)
        weight = weight - 0.125 * velocity
        (line,) = lines_of(monitor)[f"relative_update_{step}-{step}"]
        assert float(line["relative_update"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.needs("adam")
def test_the_relative_size_of_updates_beside_those_of_adam(framework: Harness) -> None:
    """A parameter of zeros has none yet; rows of Adam's own updates stand in files of their own."""
    model = product(framework, np.zeros(4))
    optimizer = framework.optimizer("adam", model, lr=0.125, **HYPERPARAMETERS["adam"])
    loop = framework.loop(model, optimizer)
    with watching(framework, {"relative_update": True, "ur_distribution": True}, model, optimizer) as monitor:
        for gradient in GRADIENTS[:2]:
            train_step(loop, framework.tensor(gradient))
    lines = lines_of(monitor)
    numbers = [float(lines[f"relative_update_{step}-{step}"][0]["relative_update"]) for step in range(2)]
    assert math.isnan(numbers[0])
    assert 0 < numbers[1] < 2
    assert {row.signal for row in rows_of(monitor)} == {"relative_update", "update", "ratio"}


@pytest.mark.needs("sgd")
def test_an_optimizer_without_momentum_has_no_direction(framework: Harness) -> None:
    """No row instead of a made-up one."""
    config = {"mg_direction": True, "wg_distribution": True}
    rows = train_product(framework, config, "sgd", GRADIENTS)
    assert {row.signal for row in rows} == {"grad_reduced", "grad_unreduced"}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_zero_and_nan_agree_by_half(framework: Harness, dtype: str) -> None:
    """Whatever a zero or a NaN is paired with; infinities have a sign."""
    one = [1.0, -1.0, 2.0, 0.0, 0.0, np.nan, np.nan, -np.inf, -0.0, 1e-7]
    other = [2.0, -3.0, -1.0, 5.0, 0.0, 1.0, np.nan, -4.0, -1.0, 1e-7]
    agreement = framework.TrainerMon.framework.tensors.agreement(
        framework.tensor(one, dtype), framework.tensor(other, dtype)
    )
    assert framework.array(agreement) == (4 + 5 / 2) / 10


def test_tensors_of_different_shapes_are_not_compared(framework: Harness) -> None:
    """A rank's parts of a gradient and of its moment may differ; they are not broadcast."""
    agreement = framework.TrainerMon.framework.tensors.agreement
    with pytest.raises(ValueError, match=r"\[3\].*\[1, 3\]"):
        agreement(framework.tensor([1.0, 2.0, 3.0]), framework.tensor([[1.0, 2.0, 3.0]]))


def counted(array: Any) -> Any:
    """A histogram by the definition, element by element."""
    row = np.zeros(BINS)
    for x in np.abs(array).ravel() if np.iscomplexobj(array) else np.asarray(array, dtype=np.float64).ravel():
        size = abs(float(x))
        exponent = min(max(math.frexp(size)[1] - 1, LOW - 1), HIGH) if math.isfinite(size) else HIGH + 1
        distance = exponent - LOW + 2 if size else 0
        row[-1 if math.isnan(x) else ZERO + (distance if x > 0 else -distance)] += 1
    return row


NUMBERS = np.array([[0.0, 1.0, -1.0, 0.3, -700.0, 1e-30], [5.0, 2.0, 1.0, 0.25, 0.0, 1.0]])


def test_histograms_of_every_dtype(framework: Harness) -> None:
    """Each element in the bin of its sign and power of two, alone and among others."""
    tensors = framework.TrainerMon.framework.tensors
    for dtype in framework.DTYPES:
        values = np.concatenate([NUMBERS, [[np.nan, np.inf, -np.inf] * 2]]) if "float" in dtype else NUMBERS
        tensor = framework.tensor(np.clip(values, 0, 9) if dtype in ("uint8", "int8") else values, dtype)
        blocks = [tensors.moments([tensor, tensor], ("max", HISTOGRAM), 0.0, None)]
        rows = tensors.to_host(blocks)()
        assert rows.shape == (2, 1 + BINS)
        for row in rows:
            assert row[1:].tolist() == counted(framework.array(tensor)).tolist(), dtype


def test_histograms_and_quantiles_in_training(framework: Harness) -> None:
    """As ops: the cell holds every element's bin, and quantiles are columns."""
    for gradient in (np.array([3.0, -0.5, 0.0, 40.0, 0.75]), np.array([-1.0, -1.5, -1.25])):
        model = product(framework, np.zeros(gradient.shape))
        optimizer = framework.optimizer("momentum", model, lr=0.125)
        loop = framework.loop(model, optimizer)
        config = {"wg_distribution": True, "param_distribution": True, "ops": ["histogram", "quantiles", "norm"]}
        with watching(framework, config, model, optimizer) as monitor:
            train_step(loop, framework.tensor(gradient))
        lines = lines_of(monitor)
        (line,) = lines["grad_reduced_0-0"]
        assert parsed(line["histogram"]).tolist() == counted(gradient).tolist()
        assert float(line["norm"]) == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
        for op, q in QUANTILES.items():
            exact = np.quantile(gradient, q)
            assert abs(float(line[op]) - exact) <= max(abs(exact), 16.0 if q > 0.8 else 0.5), op
        (before,) = lines["param_origin_0-0"]
        assert before["histogram"] == f"0:{gradient.size}"
        assert [float(before[op]) for op in QUANTILES] == [0.0] * 5


def moments_of_adam(gradients: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Update and ratio of each step, as the paper has them (Kingma and Ba, 2015); 0 over 0 is 0."""
    first = second = np.zeros(gradients[0].shape)
    found = []
    for step, gradient in enumerate(gradients, 1):
        first = BETA1 * first + (1 - BETA1) * gradient
        second = BETA2 * second + (1 - BETA2) * gradient**2
        mean, root = first / (1 - BETA1**step), np.sqrt(second / (1 - BETA2**step))
        with np.errstate(invalid="ignore"):
            found.append((mean / (root + 1e-8), np.where(first == 0, 0.0, mean / root)))
    return found


@pytest.mark.needs("adam")
def test_the_updates_and_ratios_of_adam(framework: Harness) -> None:
    """The vectors that the update used are collected in every step; nothing else is."""
    rows = train_product(framework, {"ur_distribution": True}, "adam", GRADIENTS)
    expected = {}
    for step, (update, ratio) in enumerate(moments_of_adam(GRADIENTS)):
        expected |= {Row("update", step, "w"): update, Row("ratio", step, "w"): ratio}
    assert_rows(rows, expected)


@pytest.mark.needs("adam")
def test_the_parameters_move_by_the_update(framework: Harness) -> None:
    """The learning rate times the update is what the framework's own optimizer has done."""
    config = {"ur_distribution": True, "param_distribution": True}
    rows = train_product(framework, config, "adam", [g[:1] for g in GRADIENTS])
    for step in range(3):
        moved = rows[Row("param_updated", step, "w")]["mean"] - rows[Row("param_origin", step, "w")]["mean"]
        assert moved == pytest.approx(-0.125 * rows[Row("update", step, "w")]["mean"], rel=1e-5)


def test_without_two_moments_there_is_no_update(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """No rows, and one message for all steps."""
    with caplog.at_level("WARNING", logger="probe"):
        rows = train_product(framework, {"ur_distribution": True}, "momentum", GRADIENTS)
    assert rows == {}
    assert sum("ur_distribution" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.needs("adam")
def test_updates_in_tensorboard(framework: Harness) -> None:
    """With no more than ``ur_distribution`` and the format: histograms under the documented tags."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model = product(framework, np.zeros(4))
    optimizer = framework.optimizer("adam", model, lr=0.125, **HYPERPARAMETERS["adam"])
    loop = framework.loop(model, optimizer)
    with watching(framework, {"ur_distribution": True, "format": "tensorboard"}, model, optimizer) as monitor:
        for gradient in GRADIENTS:
            train_step(loop, framework.tensor(gradient))
    events = reading.EventAccumulator(str(monitor.output_directory), size_guidance={"histograms": 0})
    events.Reload()
    for place, task in enumerate(("adam_update", "adam_ratio")):
        shown = events.Histograms(f"0:w/rank0/{task}")
        assert [event.step for event in shown] == [0, 1, 2]
        for event, vectors in zip(shown, moments_of_adam(GRADIENTS), strict=True):
            x, value = vectors[place], event.histogram_value
            positive = sum(n for end, n in zip(value.bucket_limit, value.bucket, strict=True) if end > 0)
            assert (value.num, positive) == (4, np.sum(x > 0))


@pytest.mark.needs("adam")
def test_updates_alone_have_histograms(framework: Harness) -> None:
    """Other signals cost no more, and their numbers are the same as without."""
    reading = require("tensorboard.backend.event_processing.event_accumulator")
    rows = {}
    for formats in (["csv"], ["csv", "tensorboard"]):
        model = product(framework, np.zeros(4))
        optimizer = framework.optimizer("adam", model, lr=0.125, **HYPERPARAMETERS["adam"])
        loop = framework.loop(model, optimizer)
        config = {"ur_distribution": True, "wg_distribution": True, "param_distribution": True, "format": formats}
        with watching(framework, config, model, optimizer) as monitor:
            for gradient in GRADIENTS:
                train_step(loop, framework.tensor(gradient))
        rows[len(formats)] = rows_of(monitor)
    assert rows[1] == rows[2]
    events = reading.EventAccumulator(str(monitor.output_directory), size_guidance={"histograms": 0}).Reload()
    assert set(events.Tags()["histograms"]) == {"0:w/rank0/adam_update", "0:w/rank0/adam_ratio"}
    for signal, shown in (("update", True), ("ratio", True), ("grad_reduced", False), ("param_updated", False)):
        (line,) = lines_of(monitor)[f"{signal}_0-0"]
        assert ("histogram" in line) is shown
        if shown:
            assert parsed(line["histogram"]).sum() == 4


EVERY_DISTRIBUTION = EVERY_SIGNAL | {"mg_direction": True, "ur_distribution": True, "ops": ["histogram", "quantiles"]}


def weights_after(framework: Harness, config: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    """The weights of TinyNet after four steps, monitored unless ``config`` is None."""
    model = tiny_net(framework)
    optimizer = framework.optimizer(kind, model, lr=0.01)
    loop = framework.loop(model, optimizer)
    if config is None:
        for _ in range(4):
            train_step(loop, *inputs(framework))
    else:
        with watching(framework, config, model, optimizer):
            for _ in range(4):
                train_step(loop, *inputs(framework))
    return framework.weights(model)


@pytest.mark.parametrize("kind", ["momentum", pytest.param("adam", marks=pytest.mark.needs("adam"))])
def test_training_goes_on_undisturbed(framework: Harness, kind: str) -> None:
    """The weights are those of a training without a monitor, bit by bit."""
    watched = weights_after(framework, EVERY_DISTRIBUTION, kind)
    for name, weight in weights_after(framework, None, kind).items():
        assert watched[name].tobytes() == weight.tobytes(), name
