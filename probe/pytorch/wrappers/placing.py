"""Hooks on tensors that leave nothing behind."""

from __future__ import annotations

from typing import Any

import torch

from probe.core.framework import Remove


def removing(handle: Any, tensor: torch.Tensor, attribute: str) -> Remove:
    """Takes the hook away and, where it was the only one, the dict that torch made for it in ``attribute``."""

    def remove() -> None:
        handle.remove()
        if not getattr(tensor, attribute):
            setattr(tensor, attribute, None)

    return remove
