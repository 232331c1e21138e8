"""``python -m probe.core.anomaly_processor``: documented files, order, options and output."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from probe.core.analysis.anomaly_processor import main
from probe.core.output.sinks.anomaly import AnomalySink
from probe.core.records import Key
from probe.core.storage.anomaly_json import entry_of
from tests.core.output.sink_data import context, finding, snapshot

FIELDS = ["rank", "step", "micro_step", "pp_stage", "vpp_stage", "call_id", "tag_name", "message", "group_mates"]


def entry(task: str, name: str = "fc.weight", **fields: Any) -> dict[str, Any]:
    """An object as the documentation shows it."""
    rank, vpp = fields.get("rank", 0), fields.get("vpp_stage", 0)
    tag = f"{vpp}:{name}/rank{rank}/{task}"
    values = dict.fromkeys(("rank", "step", "micro_step", "pp_stage", "vpp_stage", "call_id"), 0)
    message = f"Rule AnomalyNan reports anomaly signal in ('{tag}', 'norm') at step {fields.get('step', 0)}."
    return {**values, "tag_name": tag, "message": message, "group_mates": [0, 1], **fields}


def actv(**fields: Any) -> dict[str, Any]:
    return entry("actv", f"fc.input:{fields.get('micro_step', 0)}", **fields)


def actv_grad(**fields: Any) -> dict[str, Any]:
    return entry("actv_grad", f"fc.input:{fields.get('micro_step', 0)}", **fields)


IN_ORDER = [
    entry("post_grad", step=1, call_id=90),
    entry("param_origin", step=2, call_id=70),
    entry("param_origin", step=2, pp_stage=1, rank=1, call_id=3),
    actv(step=2, call_id=8),
    actv(step=2, call_id=9),
    actv(step=2, pp_stage=1, rank=1, call_id=1),
    actv(step=2, vpp_stage=1, call_id=10),
    actv(step=2, vpp_stage=1, pp_stage=1, rank=1, call_id=2),
    actv_grad(step=2, vpp_stage=1, pp_stage=1, rank=1, call_id=5),
    actv_grad(step=2, vpp_stage=1, call_id=12),
    actv_grad(step=2, pp_stage=1, rank=1, call_id=6),
    actv_grad(step=2, call_id=13),
    actv(step=2, micro_step=1, call_id=4),
    entry("pre_grad", "fc.weight:1", step=2, micro_step=1, call_id=14),
    entry("pre_grad", step=2, call_id=15),
    entry("post_grad", step=2, pp_stage=1, rank=1, call_id=30),
    entry("post_grad", step=2, call_id=29),
    entry("exp_avg", step=2, call_id=20),
    entry("param_updated", step=2, call_id=60),
    entry("param_origin", step=3, call_id=0),
]
"""Step, weights, forward up the stages, backward down, micro step by micro step, gradients, state, updated weights."""


def dump(root: Path, entries: list[dict[str, Any]]) -> Path:
    """Writes entries into the files of their ranks, in any order; the folder that the documentation names."""
    shuffled = random.Random(7).sample(entries, len(entries))
    for rank in {each["rank"] for each in entries}:
        path = root / "anomaly_detected" / f"rank{rank}" / "anomaly.json"
        path.parent.mkdir(parents=True)
        own = {f"{n}:{each['tag_name']}": each for n, each in enumerate(shuffled) if each["rank"] == rank}
        path.write_text(json.dumps(own, indent=1))
    return root / "anomaly_detected"


def result(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text()).values())


def test_order_and_output(tmp_path: Path) -> None:
    """All entries of all ranks, as they were, in order."""
    folder = dump(tmp_path, IN_ORDER)
    assert main(["-d", str(folder), "-k", "100"]) == 0
    assert result(folder / "anomaly_analyse.json") == IN_ORDER
    assert list(result(folder / "anomaly_analyse.json")[0]) == FIELDS


def test_eight_unless_told_otherwise(tmp_path: Path) -> None:
    """The first eight; with -k as many."""
    folder = dump(tmp_path, IN_ORDER)
    assert main(["--data_path", str(folder)]) == 0
    assert result(folder / "anomaly_analyse.json") == IN_ORDER[:8]
    assert main(["--data_path", str(folder), "--topk", "3"]) == 0
    assert result(folder / "anomaly_analyse.json") == IN_ORDER[:3]


@pytest.mark.parametrize("option", ["-s", "--step_list", "--step"])
@pytest.mark.parametrize(("steps", "number"), [("[1,3]", 2), ("[]", 20), ("[77]", 0)])
def test_steps(tmp_path: Path, option: str, steps: str, number: int) -> None:
    """Only those; all if the list is empty; none is an empty result."""
    folder = dump(tmp_path, IN_ORDER)
    assert main(["-d", str(folder), "-k", "50", option, steps]) == 0
    assert len(result(folder / "anomaly_analyse.json")) == number


@pytest.mark.parametrize(
    ("out", "file"), [("found.txt", "found.txt"), ("x.json", "x.json"), ("new", "new/anomaly_analyse.json")]
)
def test_out_is_a_file_or_a_folder(tmp_path: Path, out: str, file: str) -> None:
    """Folders are made; the output root serves as well as the folder in it."""
    dump(tmp_path, IN_ORDER)
    assert main(["-d", str(tmp_path), "-o", str(tmp_path / "a" / out)]) == 0
    assert len(result(tmp_path / "a" / file)) == 8
    assert not (tmp_path / "anomaly_detected" / "anomaly_analyse.json").exists()


def test_what_the_monitor_dumps_is_read(tmp_path: Path) -> None:
    """Entries of the anomaly sink come back with signal, row, rule, op and numbers."""
    found = finding(
        3, signal="actv", key=Key("fc", "output", 2, call=1), op="max", order=112, micro_stepped=True,
        rule="AnomalySpike", value=1e-05, expected=2.5,
        message="Rule AnomalySpike reports anomaly signal in ('x', 'max') at step 3, "
        "current value 1e-05, history median 2.5.",
    )  # fmt: skip
    AnomalySink(context(tmp_path, dump=True)).write(snapshot(3, findings=[found]))
    assert main(["-d", str(tmp_path)]) == 0
    (fields,) = result(tmp_path / "anomaly_detected" / "anomaly_analyse.json")
    read = entry_of(fields)
    assert (read.signal, read.row, *read.judgement) == ("actv", "fc.output.call1", "AnomalySpike", "max", 1e-05, 2.5)
    assert (read.micro_step, read.call_id, read.micro_stepped) == (2, 112, True)


def test_older_names_of_tasks(tmp_path: Path) -> None:
    """The documentation's own example is a gradient of an input, after any forward."""
    name = "1.self_attention.core_attention_flash_0"
    older = [entry("input", name, step=1, call_id=200), entry("input_grad", name, step=1, call_id=112)]
    folder = dump(tmp_path, older[::-1])
    assert main(["-d", str(folder)]) == 0
    assert result(folder / "anomaly_analyse.json") == older


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-s", "1"], "list of steps"),
        (["-s", "[1,"], "list of steps"),
        (["-s", "['a']"], "list of steps"),
        (["-s", "[-1]"], "list of steps"),
        (["-s", "__import__('os')"], "list of steps"),
        (["-k", "0"], "1 or more"),
        (["-k", "many"], "1 or more"),
    ],
)
def test_wrong_use(tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, what was expected, and what came."""
    folder = dump(tmp_path, IN_ORDER)
    with pytest.raises(SystemExit) as ended:
        main(["-d", str(folder), *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert words[1] in error
    assert not (folder / "anomaly_analyse.json").exists()


def test_a_file_is_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not reported as missing."""
    file = dump(tmp_path, IN_ORDER) / "rank0" / "anomaly.json"
    assert main(["-d", str(file)]) == 2
    assert f"{file}: expected a directory; this is a file" in capsys.readouterr().err


def test_nothing_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that is missing, empty or of another program: exit code 2 and the expected content."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "anomaly.json").write_text("{}")
    for name in ("empty", "photos", "missing"):
        assert main(["-d", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert str(tmp_path / name) in error
        assert "expected" in error
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["anomaly.json", "empty", "photos"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"a": {"rank": 0', "rank1/anomaly.json:1: expected a JSON object"),
        ("[1, 2]", "rank1/anomaly.json: expected a JSON object; there is list"),
        (b"\xff\xfe\x00", "rank1/anomaly.json: expected a JSON object"),
        ('{"a": 3}', "entry 'a': expected an object; there is int"),
        ('{"a": {"rank": 1, "step": "x"}}', "entry 'a': expected step as a whole number; got 'x'"),
        (json.dumps({"a": actv(rank=1) | {"tag_name": None}}), "entry 'a': expected tag_name"),
        (json.dumps({"a": actv(rank=1) | {"group_mates": 3}}), "entry 'a': expected group_mates"),
    ],
)
def test_what_cannot_be_read_is_told(
    tmp_path: Path, content: str | bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, place and reason; the other ranks are put in order; exit code 1."""
    folder = dump(tmp_path, [each for each in IN_ORDER if each["rank"] == 0])
    torn = folder / "rank1" / "anomaly.json"
    torn.parent.mkdir()
    torn.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["-d", str(folder), "-k", "3"]) == 1
    assert said in capsys.readouterr().err
    assert result(folder / "anomaly_analyse.json") == [each for each in IN_ORDER if each["rank"] == 0][:3]


def test_empty_file_and_unknown_fields_are_fine(tmp_path: Path) -> None:
    """A run that has found nothing yet; a version with more fields."""
    folder = dump(tmp_path, [actv(step=1, colour="red")])
    (folder / "rank1").mkdir()
    (folder / "rank1" / "anomaly.json").touch()
    assert main(["-d", str(folder)]) == 0
    assert result(folder / "anomaly_analyse.json") == [actv(step=1)]


def test_equal_keys_of_two_ranks_are_both_kept(tmp_path: Path) -> None:
    """Files of two ranks that call an entry alike lose none."""
    for rank in (0, 1):
        path = tmp_path / "anomaly_detected" / f"rank{rank}" / "anomaly.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"same": actv(rank=rank)}))
    assert main(["-d", str(tmp_path)]) == 0
    assert [each["rank"] for each in result(tmp_path / "anomaly_detected" / "anomaly_analyse.json")] == [0, 1]


def test_as_a_module(tmp_path: Path) -> None:
    """The documented way to run it."""
    folder = dump(tmp_path, IN_ORDER)
    command = [sys.executable, "-m", "probe.core.anomaly_processor", "-d", str(folder), "-k", "2", "-s", "[2]"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result(folder / "anomaly_analyse.json") == IN_ORDER[1:3]
    assert IN_ORDER[1]["message"] in done.stdout
