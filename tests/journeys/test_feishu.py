"""Operation with Feishu: a message names the place, the step and the rank, and leads to the cell."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.core.alerting.receivers import Receiver, serving, signed, text_of
from tests.journeys.commands import english, run
from tests.journeys.test_student import TRAIN
from tests.required import require

require("torch")
require("httpx")

SECRET = "s3cr3t"
ACTIVATIONS = {"xy_distribution": True, "all_xy": True, "wg_distribution": True, "sentinel": {"enable": False}}
PLACES = {
    "en": ("NaN in blocks.0.n1.output, step {}", "critical"),
    "zh_cn": ("blocks.0.n1.output：NaN，第 {} 步", "严重"),
}


def messages(folder: Path, seed: int, bad: int, language: str, config: dict[str, Any]) -> list[str]:
    """Messages that the bot gets about a run, each title and lines."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "secret").write_text(SECRET)
    with serving(Receiver()) as receiver:
        args = {"url": receiver.url(), "secret_file": str(folder / "secret")}
        alert = {"language": language, "group_seconds": 0, "channels": [{"channel": "feishu", "args": args}]}
        (folder / "monitor.json").write_text(json.dumps({**config, "alert": alert}))
        done = run(folder, seed, bad, options=["-c", "monitor.json"])
    assert done.returncode == 0, done.stderr
    assert all(signed(SECRET, request.body) for request in receiver.requests)
    return [text_of(request) for request in receiver.requests]


@pytest.mark.parametrize(("seed", "bad", "language"), [(0, 20, "en"), (2, 14, "zh_cn")])
def test_a_message_names_the_cell(tmp_path: Path, seed: int, bad: int, language: str) -> None:
    """Title once, a sentence and what to do, in the configuration's language, and a command that opens the cell."""
    (text,) = messages(tmp_path, seed, bad, language, ACTIVATIONS)
    title, *lines = text.splitlines()
    place, severity = PLACES[language]
    assert title == f"train: [{severity}] {place.format(bad)}"
    assert not any(title.partition("] ")[2] in line for line in lines)
    assert not re.search(r"\('|/rank\d|\)\)", text)
    (address,) = re.findall(r"probe view (\S+)$", text, re.MULTILINE)
    folder, _, fragment = shlex.split(address)[0].partition("#")
    cell = dict(parse_qsl(fragment))
    assert (cell["row"], int(cell["step"])) == ("blocks.0.n1.output", bad)
    (path,) = Path(folder).glob(f"{cell['signal']}_{bad}-*.csv")
    with path.open(encoding="utf-8") as file:
        values = [
            row[cell["op"]] for row in csv.DictReader(file) if (row["name"], row["step"]) == (cell["row"], str(bad))
        ]
    assert values == ["nan"]
    if language == "zh_cn":
        assert english(text) == []


@pytest.mark.parametrize(("seed", "bad", "language"), [(3, 26, "zh_cn")])
def test_the_checks_of_the_loop_alone_name_the_layer(tmp_path: Path, seed: int, bad: int, language: str) -> None:
    """One message about one fault, though the loss and the gradients are not finite either."""
    (text,) = messages(tmp_path, seed, bad, language, {"sentinel": {"enable": True}})
    title, *lines = text.splitlines()
    assert "blocks.0.n1" in title
    assert f"第 {bad} 步" in title
    assert any("`emb`" in line and "除法" not in line for line in lines)
    assert english(text) == []
