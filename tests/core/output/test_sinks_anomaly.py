"""Anomaly sink: printed and dumped findings."""

from __future__ import annotations

import json
import logging
import math
import shutil
from pathlib import Path

import pytest

from probe.core.output.sinks import SINKS, Sink, anomaly
from probe.core.records import Key
from probe.core.rules.evaluate import explain
from tests.core.output.sink_data import context, finding, snapshot
from tests.full_disk import files_of_at_most


def dumping(root: Path, **fields: object) -> Sink:
    return SINKS["anomaly"](context(root, dump=True, **fields))


def where(root: Path, rank: int = 0) -> Path:
    return root / "anomaly_detected" / f"rank{rank}" / "anomaly.json"


def test_dump_has_the_documented_form(tmp_path: Path) -> None:
    """Key, fields and their order, values and indentation are those that readers know; typed ones come behind them."""
    found = finding(
        3, signal="actv", key=Key("fc", "output", 2, stage=1), op="max", rank=5, order=112, micro_stepped=True,
        message="Rule AnomalyNan reports anomaly signal in ('x', 'max') at step 3, current value nan, history mean 1.",
    )  # fmt: skip
    run = {"run": "Dec03_21-34-40-rank5-1f0c9a3e", "start": "2026-12-03T21:34:40+0800", "first_step": 2}
    dumping(tmp_path, rank=5, pp_stage=4, group_mates=(1, 5), **run).write(snapshot(3, findings=[found]))
    text = where(tmp_path, 5).read_text()
    expected = {
        "1:fc.output:2/rank5/actv_step_3_call_112_max": {
            "rank": 5, "step": 3, "micro_step": 2, "pp_stage": 4, "vpp_stage": 1, "call_id": 112,
            "tag_name": "1:fc.output:2/rank5/actv", "message": found.message, "group_mates": [1, 5],
            "rule": "AnomalyNan", "signal": "actv", "name": "fc.output", "op": "max", "value": "nan", "expected": "nan",
            "micro_stepped": True, "call": 0, **run,
        }
    }  # fmt: skip
    assert text == json.dumps(expected, indent=1)


def test_dump_is_valid_after_every_write(tmp_path: Path) -> None:
    """Every flush is a JSON object with all findings so far, in order."""
    sink = dumping(tmp_path)
    sink.open()
    assert not where(tmp_path).exists()
    expected: list[int] = []
    for step in range(20):
        sink.write(snapshot(step, findings=[finding(step, f"层{row}") for row in range(step % 3)]))
        expected += [step] * (step % 3)
        if expected:
            assert [entry["step"] for entry in json.loads(where(tmp_path).read_text()).values()] == expected
    sink.close()


def test_alarms_of_one_tag_are_all_kept(tmp_path: Path) -> None:
    """Two ops, two rules, and a restart at an earlier step lose nothing."""
    found = [finding(1, op="norm"), finding(1, op="max"), finding(1, op="max", rule="AnomalySpike")]
    for _ in range(3):
        dumping(tmp_path).write(snapshot(1, findings=found))
    entries = json.loads(where(tmp_path).read_text())
    assert len(entries) == 9
    assert all(key.startswith("0:fc.weight/rank0/post_grad_step_1_call_7_") for key in entries)


@pytest.mark.parametrize(
    "text", ['{"old": {"step": 1}}', '{\n "old": {\n  "step": 1\n }\n}\n', '{"old": {"step": 1}\n}']
)
def test_earlier_file_is_continued(tmp_path: Path, text: str) -> None:
    """Whatever its layout, what was there stays."""
    where(tmp_path).parent.mkdir(parents=True)
    where(tmp_path).write_text(text)
    dumping(tmp_path).write(snapshot(2, findings=[finding(2)]))
    entries = json.loads(where(tmp_path).read_text())
    assert [entry["step"] for entry in entries.values()] == [1, 2]
    assert entries["old"] == {"step": 1}


@pytest.mark.parametrize("content", [b"{}", b""])
def test_empty_earlier_file_is_filled(tmp_path: Path, content: bytes) -> None:
    """Nothing to keep, nothing put aside."""
    where(tmp_path).parent.mkdir(parents=True)
    where(tmp_path).write_bytes(content)
    dumping(tmp_path).write(snapshot(2, findings=[finding(2)]))
    assert len(json.loads(where(tmp_path).read_text())) == 1
    assert len(list(where(tmp_path).parent.iterdir())) == 1


@pytest.mark.parametrize("content", [b'{\n "a": {\n  "step": 1', b"[1]", b"\xff\xfe", b"null"])
def test_torn_or_foreign_file_is_put_aside(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Twice, and both times byte for byte and with a word in the log."""
    where(tmp_path).parent.mkdir(parents=True)
    for number in (1, 2):
        where(tmp_path).write_bytes(content)
        with caplog.at_level(logging.WARNING, "probe"):
            dumping(tmp_path).write(snapshot(2, findings=[finding(2)]))
        aside = where(tmp_path).with_name(f"anomaly_aside_{number}.json")
        assert aside.read_bytes() == content
        assert aside.name in caplog.text
        assert len(json.loads(where(tmp_path).read_text())) == 1


def test_dump_is_bounded_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond the bound, findings are counted; this is logged once, and their number at the end."""
    monkeypatch.setattr(anomaly, "MOST_ENTRIES", 5)
    sink = dumping(tmp_path)
    for step in range(4):
        sink.write(snapshot(step, findings=[finding(step, f"p{row}") for row in range(2)]))
    sink.close()
    assert len(json.loads(where(tmp_path).read_text())) == 5
    assert caplog.text.count("further findings are only counted") == 1
    assert "3 findings were not written" in caplog.text


def test_dump_recovers_from_a_full_disk(tmp_path: Path) -> None:
    """The findings that did not fit are reported as lost; the file stays valid and takes the next ones."""
    sink = dumping(tmp_path)
    with files_of_at_most(100), pytest.raises(OSError):  # noqa: PT011 (which errno is the system's affair)
        sink.write(snapshot(0, findings=[finding(0)]))
    sink.write(snapshot(1, findings=[finding(1)]))
    with files_of_at_most(where(tmp_path).stat().st_size + 50), pytest.raises(OSError):  # noqa: PT011
        sink.write(snapshot(2, findings=[finding(2)]))
    assert [entry["step"] for entry in json.loads(where(tmp_path).read_text()).values()] == [1]
    sink.write(snapshot(3, findings=[finding(3)]))
    assert [entry["step"] for entry in json.loads(where(tmp_path).read_text()).values()] == [1, 3]
    assert len(list(where(tmp_path).parent.iterdir())) == 1


def test_dump_recovers_from_a_removed_directory(tmp_path: Path) -> None:
    """It is made again; a file in its place fails until it is gone."""
    sink = dumping(tmp_path)
    sink.write(snapshot(0, findings=[finding(0)]))
    shutil.rmtree(tmp_path / "anomaly_detected")
    sink.write(snapshot(1, findings=[finding(1)]))
    assert [entry["step"] for entry in json.loads(where(tmp_path).read_text()).values()] == [1]
    shutil.rmtree(tmp_path / "anomaly_detected")
    (tmp_path / "anomaly_detected").touch()
    with pytest.raises(OSError):  # noqa: PT011
        sink.write(snapshot(2, findings=[finding(2)]))
    (tmp_path / "anomaly_detected").unlink()
    sink.write(snapshot(3, findings=[finding(3)]))
    assert [entry["step"] for entry in json.loads(where(tmp_path).read_text()).values()] == [3]


def test_without_dump_nothing_is_written(tmp_path: Path) -> None:
    """Printing is the default."""
    sink = SINKS["anomaly"](context(tmp_path))
    sink.open()
    sink.write(snapshot(0, findings=[finding(0)]))
    sink.close()
    assert list(tmp_path.iterdir()) == []


def test_eight_lines_a_step_then_a_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first findings are printed as the rule worded them, one line each; the rest by rule."""
    found = [finding(4, f"p{row}\n", rule=("AnomalySpike", "AnomalyNan")[row % 2]) for row in range(13)]
    SINKS["anomaly"](context(tmp_path)).write(snapshot(4, findings=found))
    lines = [record.getMessage() for record in caplog.records if record.name == "probe.anomaly"]
    assert lines[:8] == [f"p{row}  norm is bad at step 4" for row in range(8)]
    assert lines[8] == "and 5 more findings at step 4 (AnomalyNan 2, AnomalySpike 3)"
    assert lines[9:] == [f"First bad on rank 0: {' '.join(explain(found[0]).splitlines())}"]
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_what_stays_bad_is_counted_not_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A NaN that stays is printed once, what is new beside it too, and it again after a pause; in words as well."""
    sink = SINKS["anomaly"](context(tmp_path))
    steps = [["a"], ["a"], ["a", "b"], [], ["a"]]
    for step, bad in enumerate(steps):
        sink.write(snapshot(step, findings=[finding(step, name, value=math.nan) for name in bad]))
    meaning = "weight gradient as the optimizer applies it"
    words = f"{{}} on rank 0: NaN at step {{}}: norm of {{}} ({meaning}) in the root module is nan."
    assert [record.getMessage() for record in caplog.records] == [
        "a norm is bad at step 0",
        words.format("First bad", 0, "a"),
        "and 1 more finding at step 1 (AnomalyNan 1)",
        "b norm is bad at step 2",
        "and 1 more finding at step 2 (AnomalyNan 1)",
        words.format("New beside what was bad before", 2, "b"),
        "a norm is bad at step 4",
        words.format("First bad", 4, "a"),
    ]


def test_a_step_has_one_line_a_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of several numbers of one tensor the first is printed, the others are counted."""
    found = [finding(4, name, op=op, value=math.nan) for name in "ab" for op in ("norm", "min", "max")]
    SINKS["anomaly"](context(tmp_path)).write(snapshot(4, findings=found))
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:3] == [
        "a norm is bad at step 4",
        "b norm is bad at step 4",
        "and 4 more findings at step 4 (AnomalyNan 4)",
    ]


def test_what_stays_bad_for_long_takes_few_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A count for the first step, then for two, four and more of them; the rest at the end."""
    sink = SINKS["anomaly"](context(tmp_path))
    for step in range(12):
        sink.write(snapshot(step, findings=[finding(step, "a", value=math.nan)]))
    sink.close()
    assert [record.getMessage() for record in caplog.records][2:] == [
        "and 1 more finding at step 1 (AnomalyNan 1)",
        "and 2 more findings at steps 2 to 3 (AnomalyNan 2)",
        "and 4 more findings at steps 4 to 7 (AnomalyNan 4)",
        "and 4 more findings at steps 8 to 11 (AnomalyNan 4)",
    ]


def test_after_a_spoilt_weight_other_numbers_that_are_not_finite_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They follow from it; a finding of another kind is printed."""
    sink = SINKS["anomaly"](context(tmp_path))
    weight = finding(0, "w", value=math.nan, signal="param_origin")
    sink.write(snapshot(0, findings=[weight]))
    caplog.clear()
    later = [finding(1, "a", value=math.nan), finding(1, "b", value=9.0, rule="AnomalySpike")]
    sink.write(snapshot(1, findings=[weight, *later]))
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:2] == ["b norm is bad at step 1", "and 2 more findings at step 1 (AnomalyNan 2)"]
