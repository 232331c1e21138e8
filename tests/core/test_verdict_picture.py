"""The picture of a verdict: rows around the place that is named, over the last recorded steps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from probe.core.verdict import JudgedFinding, Looked, Verdict, verdict_of
from probe.core.verdict_picture import AFTER, BEFORE, card_lines, picture_of

NAMES = ("emb", "a", "b", "c", "head")
BAD = 12


def verdict(where: str = "b", since: int = BAD) -> Verdict:
    finding = JudgedFinding("critical", "NaN", (where,), since, since, "the loss is nan", {"norm": math.nan})
    return verdict_of([finding], Looked(), "probe anomalies out")


def written(folder: Path, signal: str = "actv", steps: range = range(16), bad: int = BAD) -> Path:
    """Files of one signal, one a step: from step ``bad`` on what comes after ``a`` is NaN."""
    part = ".output" if signal == "actv" else ".weight"
    for step in steps:
        rows = [f"0,emb.input,{step},0,9.0"] if signal == "actv" else []
        for number, name in enumerate(NAMES):
            value = "nan" if step >= bad and number > 1 else f"{10.0 ** (number + step / 4):.6g}"
            rows.append(f"0,{name}{part},{step},0,{value}")
        text = "\n".join(["vpp_stage,name,step,micro_step,norm", *rows])
        (folder / f"{signal}_{step}-{step}.csv").write_text(text + "\n")
    return folder


def test_rows_and_steps_around_the_place_are_drawn(tmp_path: Path) -> None:
    """Modules in the order of execution, blocks by size, a mark at the one that is named, a line before the step."""
    picture = picture_of(written(tmp_path), verdict())
    assert picture is not None
    assert picture.steps == (*range(BAD - BEFORE, BAD), *range(BAD, BAD + AFTER + 1))
    assert [name for name, _ in picture.rows] == [f"{name}.output" for name in NAMES]
    title, *rows = picture.lines()
    assert title.split() == ["actv", "norm", "5", "6", "7", "8", "9", "10", "11", "|", "12", "13", "14"]
    assert rows[2].split() == [">", "b.output", "▁", "▂", "▃", "▅", "▆", "▇", "█", "|", "NaN", "NaN", "NaN"]
    assert [row.startswith(">") for row in rows] == [False, False, True, False, False]
    assert len({len(line) for line in [title, *rows]}) == 1
    assert rows[1].split()[-3:] != ["NaN"] * 3


@pytest.mark.parametrize(("width", "steps", "of_long"), [(200, 10, 10), (60, 10, 4), (46, 7, 4), (10, 2, 2)])
def test_a_narrow_terminal_gets_fewer_steps_and_the_ends_of_names(
    tmp_path: Path, width: int, steps: int, of_long: int
) -> None:
    """Around the first bad one; nothing is wider than the terminal as long as two steps have room."""
    picture = picture_of(written(tmp_path), verdict())
    assert picture is not None
    long = picture._replace(rows=tuple((f"{'encoder.' * 5}{name}", values) for name, values in picture.rows))
    for narrow, number in ((picture, steps), (long, of_long)):
        title, *rows = narrow.lines(width=width)
        shown = [int(word) for word in title.split() if word.isdigit()]
        assert len(shown) == number
        assert (shown[0] < BAD <= shown[-1], f"| {BAD:>3}" in title) == (True, True)
        assert rows[2].split()[1].endswith("b.output")
        assert len({len(row) for row in rows}) == 1
        assert max(map(len, [title, *rows])) <= max(width, 33)
    assert long.lines(False, width=60)[1].startswith("  ...")


def test_a_terminal_without_blocks_gets_digits(tmp_path: Path) -> None:
    """One sign a cell as well, all of them ASCII."""
    picture = picture_of(written(tmp_path), verdict())
    assert picture is not None
    lines = picture.lines(blocks=False)
    assert all(line.isascii() for line in lines)
    assert lines[3].split()[2:9] == ["1", "2", "3", "5", "6", "7", "8"]


def test_the_signal_that_shows_most_is_drawn(tmp_path: Path) -> None:
    """Activations that are bad everywhere show less than gradients before and after."""
    written(tmp_path, steps=range(BAD, 14), bad=16)
    written(tmp_path, "grad_reduced")
    picture = picture_of(tmp_path, verdict())
    assert picture is not None
    assert picture.signal == "grad_reduced"


@pytest.mark.parametrize("signal", ["actv", "actv_grad"])
def test_of_finite_numbers_the_signal_of_the_finding_is_drawn(tmp_path: Path, signal: str) -> None:
    """Its row may have the same name in other signals, where nothing leaps."""
    for other in ("actv", "actv_grad"):
        written(tmp_path, other, bad=99)
    picture = picture_of(tmp_path, verdict()._replace(signal=signal))
    assert picture is not None
    assert picture.signal == signal


def test_steps_that_were_not_recorded_have_no_column(tmp_path: Path) -> None:
    """A row that a step lacks has a dot there."""
    written(tmp_path, steps=range(0, 16, 3))
    text = "vpp_stage,name,step,micro_step,norm\n0,b.output,13,0,nan\n"
    (tmp_path / "actv_13-13.csv").write_text(text)
    picture = picture_of(tmp_path, verdict())
    assert picture is not None
    assert picture.steps == (0, 3, 6, 9, 12, 13, 15)
    assert picture.lines()[1].split()[-2] == "·"


def test_an_input_that_is_named_has_its_row(tmp_path: Path) -> None:
    """Before the output of its module; the inputs of others have none."""
    written(tmp_path)
    picture = picture_of(tmp_path, verdict("emb.input"))
    assert picture is not None
    assert [name for name, _ in picture.rows] == ["emb.input", "emb.output", "a.output"]
    assert picture.named == 0


@pytest.mark.parametrize("where", ["", "elsewhere"], ids=["nowhere", "another"])
def test_a_place_without_rows_has_no_picture(tmp_path: Path, where: str) -> None:
    """Nor has a folder without files."""
    assert picture_of(tmp_path, verdict()) is None
    written(tmp_path)
    assert picture_of(tmp_path, verdict(where)) is None


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    """The rows around it are drawn."""
    written(tmp_path)
    file = tmp_path / f"actv_{BAD}-{BAD}.csv"
    file.write_text(file.read_text() + '0,b.output,x,0,1\n0,b.output\n"')
    assert picture_of(tmp_path, verdict()) is not None


def test_the_card_names_the_change_and_the_cell(tmp_path: Path) -> None:
    """A name from a file is quoted for the shell and for the address."""
    lines = card_lines(verdict(), picture_of(written(tmp_path), verdict()), "my run")
    assert lines[0] == "critical: NaN in b, step 12"
    assert lines[2] == "norm of b.output (actv): 5.623e+04 at step 11 -> nan at step 12"
    assert lines[-1] == "open: probe view 'my run#signal=actv&op=norm&row=b.output&step=12'"
    without = card_lines(verdict("x y"), None, "run")
    assert without[-1] == "open: probe view 'run#step=12'"


def test_numbers_of_another_kind_are_not_replaced_by_those_of_the_row(tmp_path: Path) -> None:
    """The evidence of a check stays; the picture is drawn beside it."""
    stale = JudgedFinding("critical", "stale-gradient", ("b",), BAD, BAD, "not cleared", {"updates": 3.0})
    about = verdict_of([stale], Looked(), "probe anomalies out")
    lines = card_lines(about, picture_of(written(tmp_path), about), "run")
    assert "updates 3" in lines
    assert not any(" -> " in line for line in lines)
    assert any(line.startswith("> b.output") for line in lines)
