"""The kernels for CUDA devices against the host's reductions, run by Triton's interpreter on this machine's CPU."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.quick_python import quick_python
from tests.required import require

require("torch")
triton = require("triton")

COMPARE = """
import numpy as np, torch
from probe.core.moments import MOMENTS
from probe.pytorch import device_moments, host_moments, triton_moments

names = tuple(MOMENTS)
draw = torch.Generator().manual_seed(0)
tensors = []
for dtype in triton_moments.POINTERS:
    for n, scale in ((1, 1), (7, 1e-3), (2048, 1), (2049, 1e-3), (70000, 1e-3)):
        tensors.append((torch.randn(n, generator=draw) * scale).to(dtype))
    for value in (float("nan"), float("inf"), 0.0):
        tensors.append(torch.randn(5000, generator=draw).to(dtype).index_fill_(0, torch.tensor([7]), value))
tensors += [torch.randn(3000, generator=draw) * 1e-25, torch.randn(3000, generator=draw) * 1e25]
tensors += [torch.randn(70000, generator=draw) * 1e-4 + 1]

got = device_moments.by_kernels(triton_moments, tensors, names, 1e-8).numpy()
expected = host_moments.moments(tensors, names, 1e-8)
count = np.array([t.numel() for t in tensors])
size = np.sqrt(expected[:, names.index("sumsq")] / count) * count
for i, name in enumerate(names):
    room = 1e-5 * size if name == "sum" else 2e-5 * np.abs(expected[:, i])
    with np.errstate(invalid="ignore"):
        near = np.abs(got[:, i] - expected[:, i]) <= room
    same = (got[:, i] == expected[:, i]) | (np.isnan(got[:, i]) & np.isnan(expected[:, i]))
    assert (near | same).all(), (name, got[~(near | same), i], expected[~(near | same), i])
assert [triton_moments.chunk_of(n) for n in (1, 131_072, 1 << 25, 1 << 40)] == [8192, 8192, 32_768, 65_536]
assert triton_moments.LARGEST <= 64 * triton_moments.BLOCK
triton_moments.SMALLEST = triton_moments.LARGEST
large = [tensor for tensor in tensors if tensor.numel() == 70_000]
np.testing.assert_allclose(
    device_moments.by_kernels(triton_moments, large, names, 1e-8).numpy(),
    got[[tensor.numel() == 70_000 for tensor in tensors]],
    rtol=2e-5,
    atol=1e-3,
)
few = device_moments.by_kernels(triton_moments, tensors, ("max", "nans"), 1e-8).numpy()
np.testing.assert_array_equal(few, got[:, [names.index("max"), names.index("nans")]])
tensors[0].fill_(3.0)  # at the same address
again = device_moments.by_kernels(triton_moments, tensors, ("max", "nans"), 1e-8).numpy()
assert again[0].tolist() == [3.0, 0.0]
np.testing.assert_array_equal(again[1:], few[1:])
assert 0 < len(triton_moments._tables) <= triton_moments.MOST_TABLES
print("equal", len(tensors))
"""


@pytest.mark.skipif(triton.__version__.startswith("3.0."), reason="its interpreter knows no constexpr (Triton 3.0)")
def test_kernels_give_the_moments_that_the_host_gives() -> None:
    """Every moment, every readable dtype, sizes about the chunk, NaN, Inf, magnitudes of 1e-25 and 1e25."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [quick_python("torch", "numpy"), "-c", COMPARE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("equal"), done.stderr
