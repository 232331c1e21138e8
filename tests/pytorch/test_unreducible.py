"""Tensors that torch cannot reduce: their own rows are missing and named, all others are there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.pytorch.watching import EVERYTHING, Rows, read
from tests.required import require

torch = require("torch")

from probe.pytorch import TrainerMon, device_moments  # noqa: E402 - only where torch is

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*quantiz.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*nested.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Sparse.*:UserWarning"),
]
SIZES = {"small": (2, 4), "large": (64, 96)}
"""Small tensors are held and reduced together, large ones at once."""


class Elsewhere(torch.Tensor):  # type: ignore[misc, name-defined]
    """Numbers in another tensor, with few operators, as of quantized weights and states of 8-bit optimizers."""

    @staticmethod
    def __new__(cls, numbers: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=numbers.dtype)
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, _: Any, args: Any = (), __: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return cls(args[0].numbers)
        if function is torch.ops.aten.copy_.default:
            return args[0].copy_(args[1].numbers)
        raise NotImplementedError(function)


def freed(size: tuple[int, ...], first: int) -> Any:
    """A view of memory that its owner has freed."""
    whole = torch.ones(first + size[0] * size[1])
    part = whole[first:].view(size)
    whole.untyped_storage().resize_(0)
    return part


QUANTIZED = ("quint8", "qint8", "qint32")
FORMATS: dict[str, Callable[[], Any]] = {
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]),
    "mkldnn": lambda: torch.ones(4, 4).to_mkldnn(),
    "coo": lambda: torch.eye(4).to_sparse(),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    "quantized by channel": lambda: torch.quantize_per_channel(
        torch.eye(2), torch.tensor([0.1, 0.2]), torch.tensor([0, 0]), 0, torch.qint8
    ),
    "conjugate": lambda: torch.complex(torch.ones(2), torch.ones(2)).conj(),
    "negative": lambda: torch.complex(torch.ones(2), torch.ones(2)).conj().imag,
    "meta": lambda: torch.ones(2, device="meta"),
}


def of_dtype(name: str, size: tuple[int, ...]) -> Any:
    """A tensor of a dtype, by whichever way torch has to make one."""
    dtype = getattr(torch, name)
    if name in QUANTIZED:
        return torch.quantize_per_tensor(torch.ones(size), 0.1, 0, dtype)
    try:
        return torch.ones(size).to(dtype)
    except RuntimeError:  # bits and numbers of less than a byte can only be seen as such
        return torch.empty(size, dtype=dtype) if dtype.itemsize > 1 else torch.ones(size).to(torch.uint8).view(dtype)


DTYPES = sorted({str(value).partition(".")[2] for value in vars(torch).values() if isinstance(value, torch.dtype)})
VALUES: dict[str, Callable[[], Any]] = FORMATS | {
    f"{name} {size}": (lambda name=name, shape=shape: of_dtype(name, shape))
    for name in DTYPES
    for size, shape in SIZES.items()
}
for size, shape in SIZES.items():
    VALUES[f"elsewhere {size}"] = partial(Elsewhere, torch.ones(shape))
    VALUES[f"freed {size}"] = partial(freed, shape, 0)
    VALUES[f"freed part {size}"] = partial(freed, shape, 4)


READABLE = {
    *(f"{kind} {size}" for size in SIZES for kind in (*QUANTIZED, "bool", "float8_e4m3fn", "float8_e5m2", "bfloat16")),
    *(f"float{bits} {size}" for size in SIZES for bits in (16, 32, 64)),
    *(f"complex{bits} {size}" for size in SIZES for bits in (32, 64, 128)),
    *(f"{sign}int{bits} {size}" for size in SIZES for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"elsewhere {size}" for size in SIZES),
    *("coo", "csr", "csc", "bsr", "bsc", "quantized by channel", "conjugate", "negative"),
}
"""Module that certainly has a row."""


class Odd(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Module that also returns other tensors than it computes, and may hold them as parameters that are not trained."""

    def __init__(self, values: list[Any], held: bool) -> None:
        super().__init__()
        self.fc, self.values = torch.nn.Linear(3, 3), [] if held else values
        for number, value in enumerate(values if held else []):
            self.register_parameter(f"p{number}", torch.nn.Parameter(value, requires_grad=False))

    def forward(self, x: Any) -> Any:
        return (self.fc(x), *self.values)


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Computes with the first of what the inner module hands out."""

    def __init__(self, odd: Odd) -> None:
        super().__init__()
        self.odd = odd

    def forward(self, x: Any) -> Any:
        return self.odd(x)[0]


def trained(values: list[Any], held: bool) -> tuple[dict[str, int], Rows]:
    """Faults and rows of two steps of a model that hands out or holds ``values``."""
    model = Model(Odd(values, held))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with TrainerMon(EVERYTHING) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return monitor.faults, read(monitor.output_directory)


@pytest.mark.parametrize(("signal", "held"), [("actv", False), ("param_origin", True)])
def test_only_the_row_of_what_cannot_be_reduced_is_missing(signal: str, held: bool) -> None:
    """Whatever torch has: each tensor has its row with its norm, or its name in the faults, once each step."""
    values = {name: make() for name, make in VALUES.items()}
    del values["meta"]  # has no elements: handed out, it is as no tensor, and held, it is named once, without a row
    faults, rows = trained([*values.values()], held)
    norms = {row.name: found["norm"] for row, found in rows.items() if row.signal == signal and row.step == 1}
    counts = {where.partition(": ")[0]: count for where, count in faults.items()}
    for number, (name, value) in enumerate(values.items()):
        odd = f"odd.p{number}" if held else f"odd.output_{number + 1}"
        if odd in norms:
            assert not name.startswith("freed")
            given = getattr(value, "numbers", value)
            dense = given.to_dense() if given.layout is not torch.strided else given
            plain = dense.dequantize() if dense.is_quantized else dense.to(torch.complex128)
            assert norms[odd] == pytest.approx(plain.abs().double().norm().item(), rel=1e-4), name
        assert (odd in norms) != (counts.pop(f"{signal} of {odd}", 0) == 2), name
        assert odd in norms or name not in READABLE, name
    assert {where.partition(" of ")[0] for where in counts} <= {"param_updated"}
    plain_faults, plain_rows = trained([], held)
    assert plain_faults == {}
    assert {row for row in plain_rows if not row.name.startswith("odd.output")} <= set(rows)


def test_numbers_elsewhere_are_read_without_kernels_that_need_an_address() -> None:
    """Tensors without memory of their own are reduced on the device by operators of torch."""
    rows = device_moments.moments([Elsewhere(torch.ones(3, 2)), torch.ones(2)], ("sum", "max"), 0.0)
    assert rows.tolist() == [[6.0, 1.0], [2.0, 1.0]]


class Unreadable(torch.nn.Parameter):  # type: ignore[misc, name-defined]
    """A parameter whose gradient is kept where nobody can read it."""

    @property
    def main_grad(self) -> Any:
        raise RuntimeError("freed")


def test_one_parameter_that_cannot_be_read_costs_no_other_row() -> None:
    """Its own gradient is missing and named; those of the other parameters are there."""
    model = torch.nn.Linear(3, 3)
    model.bias = Unreadable(model.bias.detach())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TrainerMon({"wg_distribution": True}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert monitor.faults["grad_reduced of bias: RuntimeError"] == 1
    assert {row.name for row in read(monitor.output_directory) if row.signal == "grad_reduced"} == {"weight"}


def test_many_rows_of_one_tensor_are_each_named() -> None:
    """A tensor that several modules hand on is reduced once, and every row that it would have had is counted."""
    odd, inner, model = of_dtype("bits8", (2, 4)), torch.nn.Identity(), torch.nn.Linear(3, 3)
    model.inner = inner

    def pass_on(*_: Any) -> None:
        inner(odd)

    model.register_forward_hook(pass_on)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TrainerMon({"xy_distribution": True, "ops": ["norm"]}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    with pytest.raises(RuntimeError) as raised:  # or one that inherits from it, by version
        odd.abs()
    failed = type(raised.value).__name__
    assert monitor.faults == {f"actv of inner.input: {failed}": 1, f"actv of inner.output: {failed}": 1}
