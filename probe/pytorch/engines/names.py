"""Names in the user's model, without the parts that wrappers insert."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from probe.core.naming import Name
from probe.pytorch.engines.table import ENGINES

INSIDE = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.ActivationWrapper": "_checkpoint_wrapped_module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    **{kind: attribute for engine in ENGINES.values() for kind, attribute in engine.wraps.items()},
}
"""Classes of torch and engines that wrap a module of the user, each with the attribute that holds the module."""


def inside(module: torch.nn.Module) -> str | None:
    """Return the attribute in which ``module`` holds the module that it wraps, if it is a wrapper."""
    for kind in type(module).__mro__:
        name = INSIDE.get(f"{kind.__module__}.{kind.__qualname__}")
        if name is not None and isinstance(getattr(module, name, None), torch.nn.Module):
            return name
    return None


def modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield every module but the wrappers, once, under its first name; the root is ``""``."""
    for raw, written, module in _walk(model):
        if inside(module) is None:
            yield _name(written, raw), module


def parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield every parameter once; a tied one under its first name."""
    names = {raw: written for raw, written, _ in _walk(model)}
    for raw, parameter in model.named_parameters():
        module, _, last = raw.rpartition(".")
        yield _name(_join(names.get(module, module), last), raw), parameter


def _walk(model: torch.nn.Module) -> Iterator[tuple[str, str, torch.nn.Module]]:
    """Yield each module, after its parent, with its name in torch and its name in the user's model."""
    names: dict[str, str] = {}
    wrapped: dict[str, str] = {}
    for raw, module in model.named_modules():
        parent, _, last = raw.rpartition(".")
        written = (
            names.get(parent, parent) if raw and wrapped.get(parent) == last else _join(names.get(parent, ""), last)
        )
        names[raw] = written if raw else ""
        if name := inside(module):
            wrapped[raw] = name
        yield raw, names[raw], module


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name


def _name(written: str, raw: str) -> str:
    return raw if written == raw else Name(written, raw)
