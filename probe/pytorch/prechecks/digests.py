"""Digests of tensors and of random generators."""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Iterable, Iterator, Mapping

import torch

MOST = 1 << 16
"""Numbers of a tensor that are read, at even distances."""


def tensors_in(values: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in arguments or outputs, in lists, tuples and mappings too."""
    if issubclass(type(values), torch.Tensor):
        yield values  # type: ignore[misc]
    elif isinstance(values, Mapping):
        for value in [*values.values()]:
            yield from tensors_in(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)


def some(tensor: torch.Tensor) -> torch.Tensor:
    """Return a part of the numbers of a tensor on the host."""
    flat = tensor.detach().flatten()
    return flat[:: max(1, flat.numel() // MOST)].cpu()


def norm_of(tensor: torch.Tensor) -> float:
    """Return the norm of a tensor in double precision, without a copy of the whole."""
    parts = tensor.detach().flatten().split(MOST)
    return math.sqrt(float(torch.stack([part.double().pow(2).sum() for part in parts]).sum())) if parts else 0.0


def digest(tensors: Iterable[torch.Tensor]) -> int:
    """Return a digest of shapes and numbers; never 0."""
    sums = hashlib.blake2b(digest_size=6)
    for tensor in tensors:
        part = some(tensor)
        wide = part.to(torch.float64) if part.is_floating_point() else part.to(torch.int64)
        sums.update(repr(tuple(tensor.shape)).encode() + wide.numpy().tobytes())
    return int.from_bytes(sums.digest(), "little") or 1


def generator_digests() -> dict[str, int]:
    """Return a digest of the state of each random generator of this process on the host, by name."""
    states = {"random": repr(random.getstate()).encode(), "torch": torch.get_rng_state().numpy().tobytes()}
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, numbers, *rest = numpy.random.get_state()
        states["numpy"] = repr((kind, rest)).encode() + numbers.tobytes()
    return {name: _of_bytes(state) for name, state in states.items()}


def device_generator_digest(model: torch.nn.Module) -> int:
    """Return a digest of the state of the generator by which a model draws numbers on its device."""
    parameter = next(model.parameters(), None)
    if parameter is not None and parameter.device.type == "cuda":
        return _of_bytes(torch.cuda.get_rng_state(parameter.device).numpy().tobytes())
    return _of_bytes(torch.get_rng_state().numpy().tobytes())


def _of_bytes(state: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(state, digest_size=6).digest(), "little") or 1
