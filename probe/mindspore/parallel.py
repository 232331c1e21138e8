"""Several processes that train together, as core sees them. MindSpore holds tensors whole, and its processes share no
store: nothing differs from one process."""

from __future__ import annotations

from probe.core.backend.single_process import acting, check_again, has_store, meet, named, pipelined, store

__all__ = ["acting", "check_again", "has_store", "meet", "named", "pipelined", "store"]
