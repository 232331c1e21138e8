"""Aims of benchmarks, and the words for figures that miss them."""

from __future__ import annotations

import math
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
BENCHMARKS = re.sub(
    r"(?<=[^\n|])\n(?=[^\n|#<])", " ", PAGE[PAGE.index("<!-- benchmarks -->") : PAGE.index("<!-- /benchmarks -->")]
)
"""With each paragraph in a line."""
WORDS = "met|MISSED|too noisy to say|not compared"


@pytest.mark.parametrize(
    ("figure", "word"),
    [((0.9,), "met"), ((1.0,), "met"), ((1.1,), "MISSED"), ((0.1, 1.0), "met"), ((0.9, 1.1), "too noisy to say"),
     ((1.1, 1.2), "MISSED")],
)  # fmt: skip
def test_a_figure_above_its_aim_is_a_miss(
    figure: tuple[float, ...], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One figure by itself; an interval as a whole, or there is no verdict."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    assert import_module("_report").verdict(1.0, *figure) == word


def test_every_aim_of_the_results_has_its_verdict() -> None:
    """In sentences after the aim, in tables in each cell of a column that names one."""
    for sentence in re.findall(r"(?:aim <=|Aim:)(?![^|\n]*\|)[^.]*(?:\.\d[^.]*)*\.", BENCHMARKS):
        assert re.search(rf": ({WORDS})", sentence), sentence
    columns = [
        (header.split("|")[number], row.split("|")[number])
        for table in re.findall(r"(?:^\|.*\n)+", BENCHMARKS, re.MULTILINE)
        for header, _, *rows in [table.splitlines()]
        for number, name in enumerate(header.split("|"))
        if "aim" in name
        for row in rows
    ]
    assert len(columns) >= 7
    assert [
        each for each in columns if each[1].strip() != "-" and not re.search(rf"(?:^|[:,]) ({WORDS})", each[1])
    ] == []


def test_what_weight_gradients_add_to_memory_is_judged_by_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word follows from the numbers beside it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    number = r"([+-][\d.]+)%"
    found = re.search(
        rf"add {number} \({number} to {number}\) on the host to a process [^;]*; aim <= ([\d.]+) %: ({WORDS})",
        BENCHMARKS,
    )
    assert found
    value, low, high, aim = map(float, found.groups()[:4])
    assert low <= value <= high
    assert found[5] == import_module("_report").verdict(aim, low, high)


@pytest.mark.parametrize(("number", "hits", "of_each"), [(40, 20, 1), (44, 17, 1), (20, 10, 3)])
def test_the_interval_of_a_share_is_that_of_the_binomial_distribution(
    number: int, hits: int, of_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Families that are drawn give binomial numbers of hits, however many cases each of them has."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    report, rate = import_module("_report"), hits / number
    chances = [math.comb(number, n) * rate**n * (1 - rate) ** (number - n) for n in range(number + 1)]
    sums = np.cumsum(chances)
    low, high = (int(np.searchsorted(sums, edge)) / number for edge in (0.025, 0.975))
    votes = [n < hits for n in range(number) for _ in range(of_each)]
    families = [f"family {n}" for n in range(number) for _ in range(of_each)]
    figure = report.share(votes, families)
    assert figure.value == rate
    assert (figure.low, figure.high) == pytest.approx((low, high), abs=1.01 / number)  # a hit more or less, by chance
    text = f"{of_each * hits} of {of_each * number} ({100 * rate:.0f} %, {100 * figure.low:.0f} to "
    assert report.shared(votes, families) == f"{text}{100 * figure.high:.0f})"
    assert report.shared([], []) == "0 of 0"


def test_a_result_replaces_its_own_section_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The section with the same heading is exchanged where it is; a new one is added at the end; all else stays."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    page = import_module("_page")
    (tmp_path / "moments.md").write_text("### B\n\nnewer\n", encoding="utf-8")
    (tmp_path / "sinks.md").write_text("### D\n\nfirst\n", encoding="utf-8")
    before, after = f"# Page\n\n{page.BEGIN}\n### A\n\nold\n\n### B\n\n", f"\n{page.END}\n\nafter\n"
    assert page.replaced(f"{before}old\n\n### C\n\nold{after}", page.results(tmp_path)) == (
        f"{before}newer\n\n### C\n\nold\n\n### D\n\nfirst{after}"
    )
