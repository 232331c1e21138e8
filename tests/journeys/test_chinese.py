"""A student who reads Chinese: the card, the anomalies, the reasons and the report have no sentence of English."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.journeys.commands import CHINESE, card, english, probe, run
from tests.journeys.test_student import TRAIN
from tests.required import require

require("torch")
require("duckdb")


@pytest.mark.parametrize(("seed", "bad"), [(0, 40), (1, 26)])
def test_the_card_is_in_chinese(tmp_path: Path, seed: int, bad: int) -> None:
    """With the layer and the step in its first line."""
    (tmp_path / "train.py").write_text(TRAIN)
    lines = card(run(tmp_path, seed, bad, **CHINESE))
    assert lines[0] == f"严重：损失非有限，位于 emb 与 blocks.0.n1 之间，第 {bad} 步"
    assert english("\n".join(lines)) == []
    if seed:
        return
    for words in (("anomalies",), ("anomalies", "--why"), ("report", "-o", "report.html")):
        done = probe(tmp_path, *words, **CHINESE)
        assert re.search(rf"第 {bad} 步", done.stdout), done.stdout
        assert "blocks.0.n1" in done.stdout
        assert english(done.stdout + done.stderr) == [], words


def test_a_healthy_run_is_in_chinese(tmp_path: Path) -> None:
    """What was looked at, steps, loss, checks, cost and files."""
    (tmp_path / "train.py").write_text(TRAIN.replace("if step == bad:", "if False:"))
    lines = card(run(tmp_path, 0, 20, **CHINESE))
    assert "32 步" in "".join(lines)
    assert english("\n".join(lines)) == []
