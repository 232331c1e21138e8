"""Log files: names that state ranks, directories, rotation, truncation."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from probe.services.logs.first_anomalies import MOST, FirstAnomalies
from probe.services.logs.followed_file import FollowedFile
from probe.services.logs.log_scan import LogScan
from probe.services.logs.parser import TrainingLogParser
from probe.services.logs.sources import SourceError, files_of, rank_of_path


def scanned(*places: Path, everything: bool = False) -> tuple[LogScan, list[dict[str, Any]]]:
    """A scan of some files, and the records that it wrote."""
    output = io.BytesIO()
    scan = LogScan(TrainingLogParser(), output, everything)
    for place in places:
        scan.read(str(place))
    return scan, [json.loads(line) for line in output.getvalue().decode().splitlines()]


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("logs/rank3.log", 3), ("rank_12.log.gz", 12), ("out/rank_4/info.log", 4), ("worker_5.log", 5),
        ("logs/none_x1/attempt_0/3/stderr.log", 3), ("global_rank-7.txt", 7), ("frank3.log", None), ("node1.log", None),
        ("rank3/attempt_0/1/stdout.log", 1), ("scheduler.log", None),
    ],
)  # fmt: skip
def test_ranks_in_names_of_files(path: str, rank: int | None) -> None:
    """Of torchrun's folders, of msrun, of MindSpore Transformers, and the usual ones."""
    assert rank_of_path(path) == rank


def test_a_directory_is_searched_for_text(tmp_path: Path) -> None:
    """Binary files, FIFOs, dead links and the output itself are left out; compressed text is read."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "rank1.log").write_text("loss: 1\n")
    (tmp_path / "a.log").write_text("loss: 2\n")
    (tmp_path / "model.bin").write_bytes(b"\0loss: 3\n")
    (tmp_path / "old.log.gz").write_bytes(gzip.compress(b"loss: 4\n"))
    (tmp_path / "out.jsonl").write_text("loss: 5\n")
    (tmp_path / "dead").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo")
    own = (tmp_path / "out.jsonl").stat()
    taken, passed = files_of(str(tmp_path), (own.st_dev, own.st_ino))
    assert [Path(each).name for each in taken] == ["a.log", "old.log.gz", "rank1.log"] or sorted(
        Path(each).name for each in taken
    ) == ["a.log", "dead", "old.log.gz", "rank1.log"]
    assert sorted(Path(each).name for each in passed) == ["fifo", "model.bin"]
    _, records = scanned(*(tmp_path / each for each in ("a.log", "old.log.gz", "b/rank1.log")))
    assert [(each["metrics"]["loss"], each["rank"], each["line"]) for each in records] == [
        (2, None, 1),
        (4, None, 1),
        (1, 1, 1),
    ]


def test_nothing_of_that_name_is_an_error(tmp_path: Path) -> None:
    """With the place and the reason."""
    with pytest.raises(SourceError, match=r"missing\.log: expected a file, a directory or -; there is no such file"):
        files_of(str(tmp_path / "missing.log"))


def test_a_binary_file_that_is_named_is_an_error(tmp_path: Path) -> None:
    """It is no log: that nothing was found in it says nothing."""
    (tmp_path / "model.bin").write_bytes(b"PK\0\0" * 100)
    with pytest.raises(SourceError, match=r"model\.bin: expected lines of text, got a binary file"):
        files_of(str(tmp_path / "model.bin"))


def test_a_broken_file_is_counted(tmp_path: Path) -> None:
    """The part of an incomplete archive that can be read is parsed."""
    content = gzip.compress(b"".join(b"loss: %d\n" % n for n in range(4_000)))
    (tmp_path / "a.log.gz").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.gz").write_text("loss: 1\n")
    scan, records = scanned(tmp_path / "a.log.gz", tmp_path / "missing", tmp_path / "text.gz")
    assert scan.unread == 3
    assert len(records) > 500


def test_only_lines_that_matter_are_written(tmp_path: Path) -> None:
    """Those with metrics, anomalies, warnings and errors; on demand all."""
    (tmp_path / "a.log").write_text("hello\nloss: 1\nINFO nothing\nWARNING w\nCUDA out of memory\nno errors\n")
    assert [each["line"] for each in scanned(tmp_path / "a.log")[1]] == [2, 4, 5]
    scan, records = scanned(tmp_path / "a.log", everything=True)
    assert [each["line"] for each in records] == [1, 2, 3, 4, 5, 6]
    assert (scan.lines, scan.records, scan.first.number) == (6, 6, 1)


def test_a_message_without_a_time_has_that_of_the_line_before(tmp_path: Path) -> None:
    """Also if nothing else is of interest in that line, as above a traceback."""
    (tmp_path / "rank2.log").write_text(
        "2024-01-15 10:30:15 INFO loss: 1\n2024-01-15 10:30:16 plain\nTraceback\n"
        "  File x\nRuntimeError: CUDA out of memory\n"
    )
    record = scanned(tmp_path / "rank2.log")[1][-1]
    assert (record["timestamp"], record["timestamp_source"], record["rank"]) == (
        "2024-01-15T10:30:16",
        "line before",
        2,
    )


def test_numbers_without_a_time_have_that_of_the_latest_line(tmp_path: Path) -> None:
    """Lines of a progress bar or of Hugging Face Trainer state none; before the first time there is none."""
    (tmp_path / "a.log").write_text("loss: 1\n2024-01-15 10:30:15 INFO loss: 2\n{'loss': 3.0}\nloss: 4\n")
    _, records = scanned(tmp_path / "a.log")
    assert [(each["timestamp"], each["timestamp_source"]) for each in records] == [
        (None, None),
        ("2024-01-15T10:30:15", "line"),
        *[("2024-01-15T10:30:15", "line before")] * 2,
    ]


def test_first_anomalies_are_bounded() -> None:
    """Of ranks without end those that came first are kept, and the others counted."""
    first = FirstAnomalies()
    record = TrainingLogParser().record(b"CUDA out of memory")
    for rank in range(MOST + 10):
        first.add({**record, "rank": rank})
    first.add({**record, "rank": 0})
    assert (len(first), first.number, first.left_out) == (MOST, MOST + 11, 10)
    assert next(each.number for each in first if each.rank == 0) == 2


def test_first_anomalies_come_by_time_and_rank(tmp_path: Path) -> None:
    """Each kind once a rank, the earliest by time although it is read last; offsets from UTC count."""
    (tmp_path / "rank0.log").write_text("2024-01-15T10:30:20Z CUDA out of memory\n" * 3)
    (tmp_path / "rank1.log").write_text("2024-01-15T18:30:10+0800 No space left on device\nx\n")
    (tmp_path / "rank2.log").write_text("CUDA out of memory\n")
    scan, _ = scanned(*(tmp_path / f"rank{rank}.log" for rank in range(3)))
    assert [(first.rank, first.kind, first.number) for first in scan.first] == [
        (1, "disk_full", 1), (0, "oom_error", 3), (2, "oom_error", 1)
    ]  # fmt: skip


def test_numbers_that_json_lacks_are_texts(tmp_path: Path) -> None:
    """NaN and infinities, as in heartbeats."""
    (tmp_path / "a.log").write_text("loss: nan, grad_norm: -inf\n")
    assert scanned(tmp_path / "a.log")[1][0]["metrics"] == {"loss": "NaN", "gradient_norm": "-Infinity"}


def contents(file: FollowedFile) -> list[str]:
    return [line.content.decode() for line in file.poll()]


def test_rotation_loses_no_line(tmp_path: Path) -> None:
    """The old file is read to its end, then the new one from its beginning; between them the path may be missing."""
    path = tmp_path / "a.log"
    file = FollowedFile(str(path), everything=True)
    assert contents(file) == []
    path.write_text("one\ntw")
    assert contents(file) == ["one"]
    with path.open("a") as old:
        path.rename(tmp_path / "a.log.1")
        old.write("o\nthree\n")
        old.flush()
        assert contents(file) == ["two", "three"]
        old.write("four\n")
    path.write_text("five\n")
    assert contents(file) == ["four", "five"]
    assert "rotated" in file.note
    file.close()


class _LateWriter(FollowedFile):
    """Reader of a file whose writer adds a line just before the rotation is noticed."""

    def _replaced(self) -> bool:
        if Path(f"{self.path}.1").exists():
            with Path(f"{self.path}.1").open("a") as old:
                old.write("late\n")
        return super()._replaced()


def test_a_line_written_while_a_rotation_is_noticed_is_read(tmp_path: Path) -> None:
    """The old file is read once more."""
    path = tmp_path / "a.log"
    path.write_text("one\n")
    file = _LateWriter(str(path), everything=True)
    assert contents(file) == ["one"]
    path.rename(tmp_path / "a.log.1")
    path.write_text("two\n")
    assert contents(file) == ["late", "two"]
    file.close()


def test_truncation_is_noticed(tmp_path: Path) -> None:
    """Also if the file has grown beyond the place of reading in the meantime."""
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\n")
    file = FollowedFile(str(path), everything=True)
    assert contents(file) == ["one", "two"]
    path.write_text("x\n")
    assert contents(file) == ["x"]
    assert "truncated" in file.note
    path.write_text("a line that is longer\nand another\n")
    assert contents(file) == ["a line that is longer", "and another"]
    file.close()


def test_an_incomplete_line_waits_for_its_end(tmp_path: Path) -> None:
    """It is parsed when the line feed comes, or at the end."""
    path = tmp_path / "a.log"
    path.write_text("loss: 1")
    file = FollowedFile(str(path))
    assert contents(file) == []
    with path.open("a") as more:
        more.write("5\nloss: 2")
    assert contents(file) == ["loss: 15"]
    assert [line.content for line in file.end()] == [b"loss: 2"]
    file.close()
