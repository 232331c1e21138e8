"""MindSpore tensors beside the contract of moments: blocks, copies, failures, and when two readings are one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from probe.core.faults import Faults
from probe.core.instrumentation.recorder import Recorder
from probe.core.records import Key
from tests.required import require

os.environ.setdefault("GLOG_v", "4")  # MindSpore logs its warnings to the terminal
ms = require("mindspore")

from probe.mindspore import device_moments, tensors  # noqa: E402 - only where MindSpore is
from tests.mindspore.processes import queued  # noqa: E402

Tensor = Any
Moments = Callable[[Sequence[Tensor], Sequence[str], float], Any]
EPS = 1e-8
NAN, INF = math.nan, math.inf


@pytest.fixture(params=["host", "device"])
def moments(request: pytest.FixtureRequest) -> Moments:
    """Both reductions: that of tensors in host memory, and that for a device, whose operators the CPU has too."""
    return tensors.moments if request.param == "host" else device_moments.moments


def normal(size: int, seed: int = 0) -> np.ndarray:
    """Random elements in float64, the same every time."""
    return np.random.default_rng(seed).normal(size=size)


def test_scaled_readings_compare_with_a_scaled_eps() -> None:
    """Gradients that carry a loss scale count as zeros what would be below eps without it."""
    scaled = tensors.moments([ms.Tensor(np.full(5000, 1024e-9, np.float32))], ("below",), EPS, ms.Tensor(1024.0))
    assert scaled[0, 0] == 5000


def test_blocks_arrive_in_order() -> None:
    """Host and device blocks of different lengths come back as one table in the order they were made."""
    groups = [[1.0], [2.0, 3.0, 4.0], [5.0], [6.0, 7.0]]
    for kinds in ([0, 1, 0, 1], [1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]):
        reductions = [(tensors.moments, device_moments.moments)[kind] for kind in kinds]
        blocks = [
            reduce([ms.Tensor(np.full(3, value, np.float32)) for value in group], ("max", "sum"), EPS)
            for group, reduce in zip(groups, reductions, strict=True)
        ]
        assert tensors.to_host(blocks)().tolist() == [[value, 3 * value] for group in groups for value in group]
    assert tensors.to_host([])().size == 0


def test_a_part_of_a_block_is_a_block(moments: Moments) -> None:
    """Core keeps the row of one tensor out of a list's block."""
    block = moments([ms.Tensor(np.full(3, value, np.float32)) for value in (1.0, 2.0)], ("sum",), EPS)
    assert tensors.to_host([block[1:2], block])().tolist() == [[6.0], [3.0], [6.0]]


def test_what_is_a_tensor() -> None:
    """Tensors with numbers in them, parameters and subclasses; nothing sparse, and nothing without elements yet."""

    class Adapted(ms.Tensor):
        """As libraries derive their own."""

    tensor = ms.Tensor(np.ones((2, 3), np.float32))
    assert all(map(tensors.is_tensor, (tensor, ms.Parameter(tensor), Adapted(tensor), tensor * 2, ms.Tensor(True))))
    assert not any(map(tensors.is_tensor, (None, 1.0, np.ones(3), [tensor], ms.float32)))
    assert not tensors.is_tensor(ms.COOTensor(ms.Tensor([[0, 1]]), ms.Tensor([1.0]), (3, 4)))
    assert not tensors.is_tensor(ms.common.initializer.initializer("normal", [3, 4], ms.float32))
    assert tensors.describe(Adapted(tensor)) == ((2, 3), ms.float32, None)
    assert str(tensors.describe(tensor)[1]) == "Float32"


def test_what_is_held_is_a_copy() -> None:
    """A small tensor's numbers are those of the moment when it was held; a large one is not held."""
    small, large = ms.Tensor(np.ones(4096, np.float32)) * 1, ms.Tensor(np.ones(4097, np.float32)) * 1
    held = tensors.hold(small)
    small[0] = 5
    assert tensors.hold(large) is None
    assert tensors.moments([held, small], ("sum",), EPS).tolist() == [[4096.0], [4100.0]]
    half = tensors.hold(small.astype(ms.bfloat16))
    assert tensors.moments([half], ("sum",), EPS).tolist() == [[4100.0]]


def item(x: Tensor) -> None:
    x[0] = 100.0


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "an item": item,
    "assign": lambda x: ms.ops.assign(x, x + 100),
    "assign_add": lambda x: ms.ops.assign_add(x, ms.ops.ones_like(x)),
    "set_data": lambda x: x.set_data(x * 2),
    "copy_": lambda x: x.copy_(x * 2),
    "negated": lambda x: x.set_data(-x),
}


def sums(recorder: Recorder) -> list[float]:
    """The sums of all that was recorded, in order."""
    return [float(total) for batch in recorder.drain().batches(0) for total in batch.columns["sum"]]


@pytest.mark.parametrize("size", [3, 100_001])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_in_place_is_seen(change: str, size: int) -> None:
    """One object read twice gives its numbers then and its numbers now: in a step, and from one step to the next."""
    parameter = ms.Parameter(np.ones(size, np.float32), name="p")
    recorder = Recorder(tensors, ["sum"], EPS, Faults().note)
    recorder.record("before", Key("p"), parameter, shared=True)
    recorder.record_all("all before", [Key("p")], [parameter])
    CHANGES[change](parameter)
    now = float(parameter.asnumpy().sum(dtype=np.float64))
    assert now != size
    recorder.record("after", Key("p"), parameter, shared=True)
    recorder.record_all("all after", [Key("p")], [parameter])
    assert sums(recorder) == [size, size, now, now]
    parameter.set_data(ms.ops.ones_like(parameter))
    recorder.record_all("next step", [Key("p")], [parameter])
    assert sums(recorder) == [size]


def test_a_large_tensor_that_stays_the_same_is_found_again() -> None:
    """Equal content of one object is one identity; other objects, and small ones, have their own."""
    tensor = ms.Tensor(normal(5000).astype(np.float32)) * 1
    (key, alive), (again, _) = tensors.identity(tensor), tensors.identity(tensor)
    assert key == again
    assert alive() is tensor
    assert tensors.identity(tensor.copy())[0] != key
    small = tensor[:10]
    assert tensors.identity(small)[0] != tensors.identity(small)[0]
    del tensor, small
    assert alive() is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64", "complex64"])
@pytest.mark.parametrize("size", [4097, 16 * tensors.ROW, 61_440])
def test_the_checksum_depends_on_every_byte(dtype: str, size: int) -> None:
    """A flipped bit anywhere, the same elements with the other sign, and the same bytes of another type all differ."""
    x = (10 * normal(size)).astype(dtype)
    original = tensors.checksum(x)
    assert original == tensors.checksum(x.copy())
    data = x.view(np.uint8)
    for place in {0, 1, data.size // 2, data.size - 9, data.size - 1}:
        data[place] ^= 0x80
        assert tensors.checksum(x) != original, place
        data[place] ^= 0x80
    alternating = np.tile(np.array([1, 5, -2, 5]), size)[:size].astype(dtype)
    assert tensors.checksum(alternating) != tensors.checksum(-alternating)
    assert tensors.checksum(data) != original
    assert tensors.checksum(x[::2]) == tensors.checksum(x[::2].copy())


def after_a_failure() -> Tensor:
    """What uses the result of an operator that has failed, which nobody knows yet: there is no AdamW on the CPU."""
    parameter = ms.Parameter(np.ones((100, 100), np.float32), name="p")
    ms.mint.optim.AdamW([parameter], lr=0.1)((ms.Tensor(np.ones((100, 100), np.float32)),))
    return parameter * 2


def failed() -> Tensor:
    """The result of an operator that fails, which nobody knows yet: the CPU cannot convert to this dtype."""
    return ms.Tensor(np.ones(5000, np.float32)).astype(ms.float8_e5m2)


READINGS: dict[str, Callable[[Tensor], object]] = {
    "identity": tensors.identity,
    "numbers": tensors.numbers,
    "moments": lambda tensor: tensors.moments([tensor], ("sum",), EPS),
}
QUESTIONS: dict[str, Callable[[Tensor], object]] = {
    "is_tensor": tensors.is_tensor,
    "describe": tensors.describe,
    "hold": tensors.hold,
}
FAILURES = [(after_a_failure, name, "RuntimeError", "AdamW") for name in READINGS]
FAILURES += [(failed, name, "TypeError", "Cast") for name in READINGS | QUESTIONS]


def surfaced() -> list[tuple[str, str, bool]]:
    """Class and text of the error that surfaces in each case, and whether a guard would swallow it."""
    errors = []
    for make, name, *_ in FAILURES:
        tensor = make()
        with pytest.raises(tensors.Deferred) as caught:
            (READINGS | QUESTIONS)[name](tensor)
        error = caught.value.error
        errors.append((type(error).__name__, str(error), isinstance(caught.value, Exception)))
    return errors


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, bool]]:
    """The same of a process in which nobody knows of them yet."""
    return [tuple(line) for line in queued(surfaced, tmp_path_factory.mktemp("failures"))]


@pytest.mark.skipif(not hasattr(ms, "float8_e5m2"), reason="fails otherwise in versions before 2.10")
@pytest.mark.parametrize(("number", "kind", "text"), [(n, *case[2:]) for n, case in enumerate(FAILURES)])
def test_a_failure_of_training_surfaces(
    failures: list[tuple[str, str, bool]], number: int, kind: str, text: str
) -> None:
    """Whoever asks first gets the error of an operator that failed before, and no guard of probe's swallows it."""
    raised, message, swallowed = failures[number]
    assert (raised, swallowed) == (kind, False)
    assert text in message


def test_readings_do_not_differentiate_or_change_anything(moments: Moments) -> None:
    """Reducing a tensor that takes part in training leaves its gradient, its elements and the generator alone."""
    weight = ms.Parameter(normal(5000).astype(np.float32), name="w")
    before, state = weight.asnumpy().copy(), ms.get_rng_state().asnumpy().copy()
    blocks = []

    def forward() -> Tensor:
        product = weight * weight
        blocks.append(moments([product, weight], ("sumsq", "m2", "min"), EPS))
        return product.sum()

    _, (gradient,) = ms.value_and_grad(forward, None, [weight])()
    assert np.array_equal(gradient.asnumpy(), 2 * before)
    assert np.array_equal(weight.asnumpy(), before)
    assert np.array_equal(ms.get_rng_state().asnumpy(), state)
    wide = before.astype(np.float64)
    assert tensors.to_host(blocks)()[:, 0] == pytest.approx([np.sum(wide**4), np.sum(wide**2)], rel=1e-5)


def test_a_graph_does_not_reach_the_moments() -> None:
    """What an operator computes of a differentiated tensor is no part of its graph."""
    weight = ms.Parameter(np.ones(3, np.float32), name="w")
    nodes = []

    def forward() -> Tensor:
        block = device_moments.moments([weight * 2], ("sum",), EPS)
        nodes.append(getattr(block, "_grad_node", None))
        return weight.sum()

    ms.value_and_grad(forward, None, [weight])()
    assert nodes == [None]
