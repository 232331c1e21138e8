"""Files that sources make."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.core.faults import Faults
from probe.core.output.run_output import StructureOutput, write_text
from probe.core.records import TextFile


@pytest.mark.parametrize(("replaces", "expected"), [(True, "second"), (False, "first")])
def test_a_file_that_is_there_is_replaced_only_if_so_wanted(tmp_path: Path, replaces: bool, expected: str) -> None:
    """Of stacks the first file stays: a later run of the same directory has other ones."""
    for text in ("first", "second"):
        write_text(TextFile(tmp_path / "a" / "file.csv", text, "place", replaces), Faults())
    assert (tmp_path / "a" / "file.csv").read_text(encoding="utf-8") == expected


def test_a_failure_is_counted_at_the_place_of_the_file(tmp_path: Path) -> None:
    """A directory in the place of the file raises nothing."""
    faults = Faults()
    write_text(TextFile(tmp_path, "text", "place", replaces=False), faults)
    assert faults.counts == {"place: OSError": 1}


def test_the_structure_is_written_when_the_call_returns(tmp_path: Path) -> None:
    """Training is stopped right after, with an exit code that depends on it."""
    faults = Faults()
    output = StructureOutput(faults)
    output.write(TextFile(tmp_path / "structure.json", "{}", "print_struct"))
    assert (tmp_path / "structure.json").read_text(encoding="utf-8") == "{}"
    output.write(TextFile(tmp_path, "{}", "print_struct"))
    assert faults.counts == {"print_struct: OSError": 1}
