"""Questions about a CUDA device where torch is built for one and none is in use."""

from __future__ import annotations

import pytest

from tests.required import require

torch = require("torch")

from probe.pytorch import device_clock  # noqa: E402 - only where torch is


def test_nothing_is_asked_before_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver torch raises when it is asked whether a graph is captured."""

    def no_driver() -> bool:
        raise RuntimeError("CUDA driver version is insufficient for CUDA runtime version")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", no_driver)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert device_clock.capturing() is False
    assert device_clock.mark() is None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="driver"):
        device_clock.capturing()
