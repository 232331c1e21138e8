"""Engines as seen by core: they wrap models and distribute their tensors among processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probe.pytorch.engines.homes import check_again
from probe.pytorch.engines.table import ENGINES, acting, pipelined
from probe.pytorch.gloo import meet, store
from probe.pytorch.groups import has_store

__all__ = ["acting", "check_again", "has_store", "meet", "named", "pipelined", "store"]


def named() -> Mapping[str, Sequence[int]]:
    """Return the groups of this rank, by the names that engines have for them."""
    functions = [engine.groups() for engine in ENGINES.values() if engine.groups is not None]
    return {name: ranks for groups in functions for name, ranks in groups.items()}
