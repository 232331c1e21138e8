"""Search backwards from an incident in the files of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from probe.cli import app
from probe.core.checks.check import CheckFinding
from probe.core.hindsight.onset import Onset
from probe.core.storage.check_lines import CheckLines
from probe.core.storage.run_directory import write_manifest
from tests.required import require

require("duckdb")

STEPS, INCIDENT, ONSET = 120, 118, 105
LAYERS = [f"layers.{n}" for n in range(6)]
ROWS = {
    "param_origin": [f"{layer}.weight" for layer in LAYERS],
    "param_updated": [f"{layer}.weight" for layer in LAYERS],
    "actv": [f"{layer}.{part}" for layer in LAYERS for part in ("input", "output")],
    "grad_reduced": [f"{layer}.weight" for layer in LAYERS],
}
SPREAD = {"param_origin": 0.001, "param_updated": 0.001, "actv": 0.02, "grad_reduced": 0.2}
Factor = Callable[[int, str, str, int], float]
"""Factor of a norm, by rank, signal, row and step."""


def write(root: Path, factor: Factor, ranks: int = 1, steps: int = STEPS) -> list[Path]:
    """Write the files of a run whose norms have noise of their own, and a factor."""
    directories = [root / f"Dec03_21-34-40-rank{rank}-0123abcd" for rank in range(ranks)]
    for rank, directory in enumerate(directories):
        directory.mkdir(parents=True)
        random = np.random.default_rng(rank)
        for signal, names in ROWS.items():
            micro = "micro_step," if signal == "actv" else ""
            lines = [f"vpp_stage,name,step,{micro}norm,shape,dtype"]
            for step in range(steps):
                values = np.exp(random.normal(0, SPREAD[signal], len(names)))
                for name, value in zip(names, values, strict=True):
                    number = value * factor(rank, signal, name, step)
                    lines.append(f'0,{name},{step},{"0," if micro else ""}{number:.6g},"[64, 64]",torch.float32')
            (directory / f"{signal}_0-999.csv").write_text("\n".join(lines) + "\n")
        groups = {"groups": {"data_parallel": [*range(ranks)]}} if ranks > 1 else {}
        write_manifest(directory, {"rank": rank, "world_size": ranks, "program": "one", **groups})
    return directories


def failing(row: str = "", signal: str = "", rank: int = 0, at: str = "layers.4.output") -> Factor:
    """Return the factors of a run in which an activation is not finite at a step, and one row grew before."""

    def factor(where: int, kind: str, name: str, step: int) -> float:
        if (kind, name) == ("actv", at) and step >= INCIDENT:
            return float("nan")
        return 3.0 if (where, kind, name) == (rank, signal, row) and step >= ONSET else 1.0

    return factor


def analysed(root: Path, *options: str) -> dict[str, Any]:
    """Return what is printed for machines."""
    answer: dict[str, Any] = json.loads(CliRunner().invoke(app, ["anomalies", str(root), "--json", *options]).stdout)
    return answer


def onset(root: Path) -> dict[str, Any]:
    """Return the answer of the main incident."""
    answer: dict[str, Any] = analysed(root)["diagnosis"]["onset"]
    return answer


def test_an_upstream_row_that_left_its_level_is_named(tmp_path: Path) -> None:
    """With its step, in the JSON and in the paragraph; the incident keeps its own place."""
    write(tmp_path, failing("layers.1.weight", "param_origin"))
    main = analysed(tmp_path)["diagnosis"]
    assert (main["first"]["tag_name"].split("/")[0], main["first"]["step"]) == ("0:layers.4.output:0", INCIDENT)
    found = main["onset"]
    assert (found["where"], found["signal"], found["step"], found["samples"], found["ranks"]) == (
        "layers.1.weight",
        "param_origin",
        ONSET,
        INCIDENT - ONSET + 1,
        [0],
    )
    assert 2.8 < found["factor"] < 3.2
    assert found["chance"] <= 0.05
    text = " ".join(CliRunner().invoke(app, ["anomalies", str(tmp_path)]).stdout.split())
    assert f"looking back: began in layers.1.weight at step {ONSET} on rank 0: " in text
    assert "(away for 14 samples; chance " in text


def test_a_row_downstream_of_what_failed_is_no_cause(tmp_path: Path) -> None:
    """Also where it grew before, and in its gradients."""
    write(tmp_path, failing("layers.5.weight", "param_origin"))
    assert onset(tmp_path)["text"] == "nothing stood out before"


def test_parameters_after_their_update_are_left_out(tmp_path: Path) -> None:
    """They are the parameters before the next one."""
    write(tmp_path, failing("layers.1.weight", "param_updated"))
    assert onset(tmp_path)["text"] == "nothing stood out before"


def test_an_innocent_row_that_leaps_in_healthy_steps_too_is_not_named(tmp_path: Path) -> None:
    """An activation that is doubled for five steps of every twenty."""

    def factor(rank: int, signal: str, name: str, step: int) -> float:
        leaps = signal == "actv" and name == "layers.1.output" and step % 20 > 14
        return failing()(rank, signal, name, step) * (2.0 if leaps else 1.0)

    write(tmp_path, factor)
    assert onset(tmp_path)["where"] == ""


def test_too_short_a_history_says_so(tmp_path: Path) -> None:
    """In the JSON; the paragraph is silent about it."""

    def factor(_: int, signal: str, name: str, step: int) -> float:
        return float("nan") if (signal, name) == ("actv", "layers.4.output") and step >= 20 else 1.0

    write(tmp_path, factor, steps=25)
    assert onset(tmp_path)["looked"] == 0
    assert "looking back" not in CliRunner().invoke(app, ["anomalies", str(tmp_path), "--why"]).stdout.lower()


def test_of_several_ranks_the_one_whose_row_grew_is_named(tmp_path: Path) -> None:
    """The incident is on both at once."""
    write(tmp_path, failing("layers.2.input", "actv", rank=1), ranks=2)
    found = onset(tmp_path)
    assert (found["where"], found["step"], found["ranks"]) == ("layers.2.input", ONSET, [1])


def test_a_finding_of_a_check_is_looked_back_from_in_the_rows(tmp_path: Path) -> None:
    """If its cause may have begun earlier; what the run itself has seen counts where the rows show nothing."""
    (directory,) = write(tmp_path, failing("layers.1.weight", "param_origin", at=""))
    loss = CheckFinding(
        "loss-not-finite", "critical", (), INCIDENT, INCIDENT, "the loss is nan", {"loss": float("nan")}
    )
    early = loss._replace(step=60, since=60, onset=Onset(28, "layers.0.weight", "grad_reduced", 55, 5, 9.0, 0.02))
    stale = CheckFinding("stale-gradient", "warning", (), INCIDENT, INCIDENT, "nothing clears them", {})
    CheckLines(directory).write([loss, early, stale])
    answers = {(entry["kind"], entry["step"]): entry.get("onset") for entry in analysed(tmp_path)["findings"]}
    assert answers["stale-gradient", INCIDENT] is None
    assert (answers["loss-not-finite", INCIDENT]["where"], answers["loss-not-finite", INCIDENT]["step"]) == (
        "layers.1.weight",
        ONSET,
    )
    assert (answers["loss-not-finite", 60]["where"], answers["loss-not-finite", 60]["step"]) == ("layers.0.weight", 55)
    assert "the loss is nan; began in layers.1.weight" in CliRunner().invoke(app, ["anomalies", str(tmp_path)]).stdout


def test_where_too_few_steps_were_recorded_the_answer_of_the_run_itself_counts(tmp_path: Path) -> None:
    """It has seen the gradients of every update."""

    def factor(_: int, signal: str, name: str, step: int) -> float:
        return float("nan") if (signal, name) == ("actv", "layers.4.output") and step >= 20 else 1.0

    (directory,) = write(tmp_path, factor, steps=25)
    seen = Onset(50, "layers.0.weight", "grad_reduced", 15, 6, 9.0, 0.02)
    CheckLines(directory).write([CheckFinding("loss-not-finite", "critical", (), 20, 20, "nan", {}, onset=seen)])
    assert onset(tmp_path)["text"] == str(seen.text())
