"""Configurations in Python: literal assignments, read and never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.core.config.errors import ConfigError, UnrunCode
from probe.core.config.parse import read
from probe.core.config.python_text import PythonText

INTERNEVO = """
import os

JOB_NAME = "7b"
DO_ALERT = False
SEQ_LEN: int = 2**11
monitor = dict(
    alert=dict(
        enable_feishu_alert=DO_ALERT,
        feishu_alert_address=None,  # feishu webhook to send alert message
        alert_file_path=f"llm_alter/{JOB_NAME}_alert.log",
    ),
    tensorboard=dict(queue_max_length=10, lengths=[SEQ_LEN, -1]),
)
monitor["alert"]["light_monitor_address"] = "http://a:1"
address = os.environ.get("A")
"""


def test_literal_assignments_are_read() -> None:
    """Names of literals, dict(...), texts with names in them, numbers, and keys that are assigned later."""
    assert PythonText(INTERNEVO).values["monitor"] == {
        "alert": {
            "enable_feishu_alert": False,
            "feishu_alert_address": None,
            "alert_file_path": "llm_alter/7b_alert.log",
            "light_monitor_address": "http://a:1",
        },
        "tensorboard": {"queue_max_length": 10, "lengths": [2048, -1]},
    }


@pytest.mark.parametrize(
    "text",
    [
        "a = open('/dev/null')",
        "a = 9**9**9**9",
        "a = 'x' * 10**12",
        "a = 1 / 0",
        "a = b",
        "if True:\n    a = 1",
        "a = 1\nfor a in range(3): pass",
        "a = 1\na += 1",
        "a = dict(b)",
    ],
)
def test_a_value_that_only_a_run_would_give_is_none(text: str) -> None:
    """Nothing is run or computed at length; the code itself takes the place of the value."""
    assert isinstance(PythonText(text).values["a"], UnrunCode)


def test_keys_have_their_lines(tmp_path: Path) -> None:
    """Those inside dict(...) too."""
    (path := tmp_path / "a.py").write_text(INTERNEVO)
    lines = read(path).lines
    assert lines.lead(("monitor", "alert", "feishu_alert_address")).endswith("a.py:10: ")


def test_a_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    """With the place of the mistake."""
    (path := tmp_path / "a.py").write_text("a = 1\nmonitor = dict(\n")
    with pytest.raises(ConfigError, match=r"a\.py:2:15: not valid Python: '\(' was never closed"):
        read(path)
