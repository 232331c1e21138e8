"""Pages from files in a real browser: reports of few and of many ranks, and a comparison; numbers are the files'."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.core.analysis.compare.compare import compare
from probe.core.analysis.compare.explain import page as comparison_page
from probe.core.analysis.diagnosis.analyse import analyse
from probe.core.analysis.pictures import layout, payload
from probe.core.analysis.report.findings import card
from probe.core.analysis.report.write import write_report
from probe.core.naming import STEP_SECONDS
from tests.core.analysis import compare_data
from tests.core.analysis.browsing import SCAN, browser, choose, click_cell, errors, open_page, requested, settle
from tests.core.analysis.compare_data import Array, Where
from tests.core.analysis.many_ranks_data import NAMES as FEW_NAMES
from tests.core.analysis.many_ranks_data import replicas, usual, write_many_ranks
from tests.core.analysis.performance_data import write_rank
from tests.core.analysis.report_data import varied, write_run, written_rows
from tests.required import require

pytestmark = pytest.mark.browser

require("duckdb")

EVIL = "</script><script>window.evil = 1</script><img src=x onerror=window.evil=2>"
NAMES = ["fc1.weight", "<b>fc1</b>.bias", f"{EVIL}.weight", "fc2.weight", "fc2.bias"]
STEPS = range(0, 24, 2)
RANKS, BROKEN, LARGE, SLOW = 1000, 617, 377, 42
NAN = Where("grad_reduced", "layers.0.fc2.weight", 3, 0, 0)
LARGER = Where("grad_reduced", "head.bias", 5, 0, 0)


def value(step: int, rank: int, micro_step: int, row: int) -> float:
    """NaN from step 14 on in the first row of rank 1, Inf in the second, a zero in the third, else numbers."""
    if rank == 1 and step >= 14 and row < 2:
        return math.inf if row else math.nan
    return 0.0 if row == 2 and step == 4 else varied(step, rank, micro_step, row)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_run(tmp_path_factory.mktemp("run"), ranks=3, steps=STEPS, names=NAMES, value=value)


@pytest.fixture(scope="module")
def page(directories: list[Path]) -> Path:
    """The page of the run."""
    write_report(directories[0].parent, directories[0].parent / "report.html")
    return directories[0].parent / "report.html"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with many ranks: one is NaN from step 2 on, one is too large once, one is slow."""
    root = tmp_path_factory.mktemp("many")

    def planted(rank: int, step: int, row: int) -> float:
        if (rank, row) == (BROKEN, 0) and step >= 2:
            return math.nan
        return usual(rank, step, row) * (37 if (rank, step, row) == (LARGE, 3, 2) else 1)

    write_many_ranks(root, RANKS, 4, planted, lambda rank, _: 1.5 if rank == SLOW else 1.0)
    assert write_report(root, root / "report.html").size < 7_000_000
    return root / "report.html"


def shown(driver: Any, name: str) -> str:
    return str(driver.find_element("id", f"row-{name}").text)


def scan(driver: Any) -> list[str]:
    """What stands under the pointer, cell by cell."""
    return list(driver.execute_script(SCAN))


def read_curve(driver: Any, chart: str, *names: str) -> list[str]:
    """What a chart shows of the points that keys lead to."""
    keys = require("selenium.webdriver.common.keys").Keys
    element = driver.find_element("css selector", f"{chart} .chart")
    found = []
    for name in names:
        element.send_keys(getattr(keys, name))
        found.append(str(driver.find_element("css selector", f"{chart} output").text))
    return found


def expected_row(directories: list[Path], signal: str, name: str, step: int, op: str) -> list[dict[str, str]]:
    """The rows that a cell may show: those of the largest magnitude of a name at a step; NaN before all."""

    def size(row: dict[str, str]) -> float:
        return math.inf if math.isnan(float(row[op])) else min(abs(float(row[op])), 1e308)

    rows = [row for row in written_rows(directories, signal) if row["name"] == name and int(row["step"]) == step]
    return [row for row in rows if size(row) == max(map(size, rows))]


@pytest.mark.parametrize(
    ("signal", "op", "row", "name"),
    [
        ("grad_reduced", "min", 2, "fc2.weight"),
        ("actv", "norm", 2, f"{EVIL}.output"),
        ("grad_reduced", "max", 0, "fc1.weight"),
    ],
)
def test_a_clicked_cell_is_its_row_in_the_file(
    driver: Any, page: Path, directories: list[Path], signal: str, op: str, row: int, name: str
) -> None:
    """Value digit by digit, step, rank, micro step, file and line are those of a row that Python's csv reads."""
    open_page(driver, page, signal=signal, op=op)
    for column in (0, 5, 11):
        step = STEPS[column]
        click_cell(driver, row, column)
        settle(driver, "document.querySelector('#row-step')?.innerText.includes(arguments[0])", f" {step} ")
        found = expected_row(directories, signal, name, step, op)
        number = driver.find_element("css selector", f"#row td[data-op='{op}']").text
        np.testing.assert_equal(float(number), float(found[0][op]))
        directory, file = shown(driver, "file").split("/")
        micro = shown(driver, "micro") if signal == "actv" else None
        written = [
            one
            for one in found
            if (one["file"], directories[int(one["directory"])].name) == (file, directory)
            and micro in (None, one.get("micro_step"))
        ]
        assert len(written) == 1
        assert shown(driver, "rank") == str(int(written[0]["directory"]))
        line = [written[0]["vpp_stage"], name, str(step)] + ([micro] if micro else [])
        assert shown(driver, "search") == ",".join(line) + ","


def test_rounded_numbers_are_named_so(
    driver: Any, directories: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room the norm has four digits and other ops have three, in the card and under the pointer."""
    monkeypatch.setattr(payload, "ROOM", 0)
    write_report(directories[0].parent, tmp_path / "report.html")
    open_page(driver, tmp_path / "report.html", signal="grad_reduced", op="min")
    click_cell(driver, 2, 5)
    settle(driver, "document.querySelector('#row-step')?.innerText.includes(arguments[0])", f" {STEPS[5]} ")
    assert "to 3–4 digits" in driver.find_element("id", "row").text
    for op, digits in (("min", 3), ("norm", 4)):
        written = expected_row(directories, "grad_reduced", "fc2.weight", STEPS[5], op)[0][op]
        number = driver.find_element("css selector", f"#row td[data-op='{op}']").text
        assert float(number) == float(f"{float(written):.{digits - 1}e}")
        assert float(number) != float(written)


def test_what_has_no_logarithm_is_shown_as_what_it_is(driver: Any, page: Path) -> None:
    """NaN, Inf and zero have colours of their own and are named, at every cell that has them and at no other."""
    open_page(driver, page, signal="grad_reduced", op="max")
    cells = driver.execute_script(SCAN, True)
    assert len(cells) == 5 * 12

    def places(what: str) -> set[tuple[str, int]]:
        found = [text for text in cells if what in text]
        return {(text.rpartition(", step ")[0], int(text.rpartition(", step ")[2].split(" ")[0])) for text in found}

    assert places("1 × NaN") == {(NAMES[0], step) for step in range(14, 24, 2)}
    assert places("1 × Inf") == {(NAMES[1], step) for step in range(14, 24, 2)}
    assert places(" · 0 · ") == {(NAMES[2], 4)}
    for text, pixels in cells.items():
        colours = {tuple(pixel) for pixel in pixels}
        assert ("NaN" in text.rpartition(", step ")[2]) == ((230, 0, 126) in colours)
        assert ("Inf" in text.rpartition(", step ")[2]) == ((247, 208, 56) in colours)


def test_the_smallest_magnitude_is_a_colour_too(driver: Any, page: Path) -> None:
    """It is drawn in place of the largest, and NaN only where nothing else is; the first heatmap comes back."""
    open_page(driver, page, signal="grad_reduced", op="max", scale="all")
    before = driver.execute_script("return document.querySelector('#heatmap canvas').toDataURL()")
    choose(driver, "scale", "least")
    assert (230, 0, 126) not in {tuple(p) for own in driver.execute_script(SCAN, True).values() for p in own}
    choose(driver, "scale", "all")
    assert driver.execute_script("return document.querySelector('#heatmap canvas').toDataURL()") == before


def test_the_last_of_many_choices_wins(driver: Any, page: Path, directories: list[Path]) -> None:
    """After several choices, made without a mouse, the page shows the last only."""
    open_page(driver, page)
    driver.execute_script(
        """const change = (id, value) => {
          const control = document.getElementById(id);
          control.value = value;
          control.dispatchEvent(new Event("change"));
        };
        for (const [signal, op, row] of [["actv", "min", "fc2.output"], ["grad_reduced", "max", "fc2.weight"],
            ["actv", "norm", "fc1.output"], ["grad_reduced", "min", "fc2.bias"]]) {
          change("signal", signal);
          change("op", op);
          change("find", row);
        }
        change("rank", "0");"""
    )
    settle(driver, "document.getElementById('curve-title').textContent === 'min of grad_reduced: fc2.bias'")
    assert set(re.findall(r"^(\S+), step", "\n".join(scan(driver)), re.MULTILINE)) >= {"fc2.weight", "fc2.bias"}
    (read,) = read_curve(driver, "#over-ranks", "ARROW_RIGHT")
    step, rank, number = re.fullmatch(r"step (\d+) rank (\d): (\S+)", read).groups()  # type: ignore[union-attr]
    rows = written_rows([directories[int(rank)]], "grad_reduced")
    (written,) = (row["min"] for row in rows if (row["name"], row["step"]) == ("fc2.bias", step))
    assert float(number) == pytest.approx(float(written), rel=5e-4)


def test_curves_and_lines_of_ranks_are_their_rows(driver: Any, page: Path, directories: list[Path]) -> None:
    """Side by side stands what each rank wrote, to four digits, as curves and as a heatmap."""
    open_page(driver, page, signal="grad_reduced", op="max", row="fc1.weight", axis="ranks")
    cells = scan(driver)
    assert len(cells) == 3 * 12
    for text in cells:
        rank, step, number = re.fullmatch(r"rank (\d), step (\d+) · (.*) · rank \1", text).groups()  # type: ignore[union-attr]
        (row,) = (row for row in written_rows([directories[int(rank)]], "grad_reduced") if (row["name"], row["step"]) == ("fc1.weight", step))  # fmt: skip  # noqa: E501
        wrote = float(row["max"])
        assert number == "1 × NaN" if math.isnan(wrote) else float(number) == pytest.approx(wrote, rel=5e-4)
    open_page(driver, page, signal="grad_reduced", op="max", row="fc1.weight", rank=1, step=14)
    (text,) = read_curve(driver, "#over-ranks", "ARROW_UP")
    assert text.startswith("step 14 rank 0: ")


def test_one_rank_is_shown_alone(driver: Any, page: Path, directories: list[Path]) -> None:
    """The heatmap of layers has the numbers of the rank that is asked for."""
    open_page(driver, page, signal="grad_reduced", op="max", only=2)
    written = {(row["name"], row["step"]): float(row["max"]) for row in written_rows([directories[2]], "grad_reduced")}
    cells = scan(driver)
    assert len(cells) == len(written) == 5 * 12
    for text in cells:
        name, _, rest = text.rpartition(", step ")
        step, number, rank = rest.split(" · ")
        assert rank == "rank 2"
        assert float(number) == pytest.approx(written[name, step], rel=5e-4)


def test_gradients_over_depth_are_those_of_the_step(driver: Any, page: Path, directories: list[Path]) -> None:
    """From the first layer to the last stands the norm of the chosen step."""
    open_page(driver, page, signal="grad_reduced", op="norm", step=16)
    assert driver.find_element("id", "depth-title").text == "Over depth: norm of grad_reduced, step 16"
    driver.execute_script("document.getElementById('depth').scrollIntoView()")
    texts = read_curve(driver, "#depth", "ARROW_DOWN", "ARROW_DOWN", *["ARROW_RIGHT"] * 4)[1:]
    for name, text in zip(NAMES, texts, strict=True):
        row = expected_row(directories, "grad_reduced", name, 16, "norm")[0]
        assert text.startswith(f"{name} step 16: ")
        number = float(text.removeprefix(f"{name} step 16: "))
        np.testing.assert_allclose(number, abs(float(row["norm"])), rtol=1e-5)


def test_a_finding_leads_to_its_cell(driver: Any, page: Path) -> None:
    """From a finding it is one click to its numbers; so it is from the first cause."""
    open_page(driver, page)
    driver.find_element("css selector", "#findings tr[data-finding='2']").click()
    settle(driver, "document.querySelector('#row-row')?.textContent === 'fc1.weight'")
    assert [shown(driver, "rank"), shown(driver, "signal")] == ["1", "grad_reduced"]
    assert driver.find_element("css selector", "#row td[data-op='norm']").text == "NaN"
    driver.find_element("id", "show-cause").click()
    settle(driver, "document.querySelector('#row-row')?.textContent === 'fc1.output'")


def test_a_judged_report_opens_on_the_place_of_its_verdict(driver: Any, directories: list[Path]) -> None:
    """Activations, which have micro steps, stand above gradients, which have none; the named cell is chosen."""
    root = directories[0].parent
    write_report(root, root / "judged_report.html", card(analyse(root)))
    open_page(driver, root / "judged_report.html")
    assert driver.find_element("css selector", "#around h2").is_displayed()
    texts = driver.execute_script(SCAN.replace("#heatmap", "#picture").replace('"readout"', '"picture-readout"'))
    assert {text.split()[0] for text in texts} == {"actv", "grad_reduced"}
    assert (shown(driver, "row"), shown(driver, "rank")) == ("fc1.output", "1")
    assert errors(driver) == []


def test_both_languages_and_the_history_work_without_a_server(driver: Any, page: Path) -> None:
    """The state is in the fragment; names are shown and never run; no error, and no address but the file itself."""
    open_page(driver, page, signal="grad_reduced", row=f"{EVIL}.weight", rank=0, step=8)
    assert shown(driver, "row") == f"{EVIL}.weight"
    assert driver.execute_script("return [window.evil ?? null, document.querySelectorAll('main img').length]") == [None, 0]  # fmt: skip  # noqa: E501
    driver.find_element("css selector", "button[data-lang='zh']").click()
    settle(driver, "document.documentElement.lang === 'zh-CN' && document.querySelector('#row-row')")
    chinese = json.loads((Path(probe.__file__).parent / "view" / "page" / "messages.zh.json").read_text("utf-8"))
    assert driver.find_element("css selector", "#findings h2").text.startswith(chinese["findings"])
    choose(driver, "op", "min")
    driver.execute_script("history.back()")
    settle(driver, "document.getElementById('op').value === 'norm'")
    assert errors(driver) == []
    asked = [url.partition("#")[0] for url in requested(driver)]
    assert asked
    assert all(url.startswith("file:") and url.endswith("report.html") for url in asked)
    names = driver.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [name for name in names if not name.startswith(("data:", "blob:"))] == []


def test_what_the_file_lacks_names_the_command(driver: Any, page: Path) -> None:
    """A row that no signal has is not shown as empty: the page names `probe view` with the run."""
    open_page(driver, page, signal="grad_reduced", row="nothing", rank=0, step=8)
    text = driver.find_element("id", "row").text
    assert text == f"Not in this file. In a terminal: probe view {page.parent.resolve()}"


def test_a_column_of_many_steps_shows_the_extreme_and_where_it_was(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 90 steps in 9 columns none of the extremes is lost: the cell shows the very row."""
    monkeypatch.setattr(layout, "MOST_COLUMNS", 9)
    monkeypatch.setattr(layout, "FEWEST_COLUMNS", 1)

    def spike(step: int, rank: int, micro_step: int, row: int) -> float:
        return -12345.6 if (step, rank, row) == (47, 1, 1) else 1 + step / 1000

    directories = write_run(tmp_path, ranks=2, steps=range(90), names=["a.weight", "b.weight"], value=spike)
    write_report(tmp_path, tmp_path / "report.html")
    open_page(driver, tmp_path / "report.html", signal="grad_reduced", op="max")
    click_cell(driver, 1, 4)
    settle(driver, "document.querySelector('#row-step')?.innerText.includes(' 47 ')")
    number = driver.find_element("css selector", "#row td[data-op='max']").text
    assert number == expected_row(directories, "grad_reduced", "b.weight", 47, "max")[0]["max"] == "-12345.6"
    assert [shown(driver, "rank"), shown(driver, "file")] == ["1", f"{directories[1].name}/grad_reduced_46-47.csv"]


def test_numbers_of_the_run_and_a_drop_of_its_throughput_are_drawn(driver: Any, tmp_path: Path) -> None:
    """Curves from the lowest to the highest of all ranks; performance when it is opened."""
    for rank in range(2):
        write_rank(
            tmp_path, rank, range(400), lambda step, rank=rank: {STEP_SECONDS: 1.0 if 200 <= step < 300 else 0.25, "loss": 2.0 + rank}  # type: ignore[misc]  # noqa: E501
        )  # fmt: skip
    write_report(tmp_path, tmp_path / "report.html")
    open_page(driver, tmp_path / "report.html", numbers="loss", step=7)
    driver.execute_script("document.getElementById('numbers').scrollIntoView()")
    settle(driver, "document.querySelector('#numbers .uplot')")
    assert read_curve(driver, "#numbers", "ARROW_RIGHT") == ["step 7 loss: 2 … 3"]
    driver.execute_script("document.getElementById('performance').open = true")
    settle(driver, "document.querySelector('#performance .uplot')")
    assert "Drop: steps 200 to 299, 4.00 times as slow" in driver.find_element("id", "performance").text
    assert errors(driver) == []


def test_the_first_finding_leads_to_its_rank(driver: Any, many: Path) -> None:
    """Of 1,000 ranks that one is shown, with its host, stage and group; names of hosts are text."""
    open_page(driver, many)
    driver.find_element("id", "show-cause").click()
    settle(driver, "document.querySelector('#row-rank')?.textContent === arguments[0]", str(BROKEN))
    text = driver.find_element("id", "row").text
    assert f"host\n<b>node{BROKEN // 8}</b>" in text
    assert "pipeline stage\n1" in text
    assert driver.execute_script("return document.querySelectorAll('#row b').length") == 0


def test_ranks_are_zoomed_into_until_each_has_a_line(driver: Any, many: Path) -> None:
    """Of lines that share a pixel the worst is shown; a part of them shows every rank's number."""
    row = f"pp0:{FEW_NAMES[0]}"
    open_page(driver, many, signal="grad_reduced", op="norm", row=row, axis="ranks")
    assert driver.execute_script("return document.querySelector('#readout') !== null")
    open_page(driver, many, signal="grad_reduced", op="norm", row=row, axis="ranks", lines="400-415")
    cells = [re.fullmatch(r"rank (\d+), step (\d) · (\S+) · rank \1", text) for text in scan(driver)]
    found = {(int(cell[1]), int(cell[2])): float(cell[3]) for cell in cells if cell}
    assert found == {
        (rank, step): float(f"{usual(rank, step, 0):.2g}") for rank in range(400, 416) for step in range(4)
    }
    broken = f"pp1:{FEW_NAMES[0]}"
    open_page(driver, many, signal="grad_reduced", op="norm", row=broken, axis="ranks")
    pixels = """const { width, height } = document.querySelector("#heatmap canvas");
        const own = document.querySelector("#heatmap canvas").getContext("2d").getImageData(0, 0, width, height).data;
        return own.filter((_, i) => i % 4 === 0 && own[i] === 230 && own[i + 1] === 0 && own[i + 2] === 126).length"""
    assert driver.execute_script(pixels) >= 4 * 100


def test_ranks_stand_in_the_order_of_their_groups(driver: Any, many: Path) -> None:
    """Replicas are neighbours; the order is chosen by name."""
    row = f"pp0:{FEW_NAMES[0]}"
    open_page(driver, many, signal="grad_reduced", op="norm", row=row, axis="ranks", lines="0-15")
    choose(driver, "order", "group")
    choose(driver, "rank", 8)
    heatmap, down = driver.find_element("id", "heatmap"), require("selenium.webdriver.common.keys").Keys.ARROW_DOWN
    texts = []
    for _ in range(5):
        heatmap.send_keys(down)
        texts.append(driver.find_element("id", "readout").text.split(",")[0])
    assert texts == [f"rank {rank}" for rank in replicas(0, RANKS)[:5]]
    heatmap.send_keys(require("selenium.webdriver.common.keys").Keys.ENTER)
    settle(driver, "document.querySelector('#row-rank')?.textContent === '16'")
    assert "group\nreplicas of rank 0" in driver.find_element("id", "row").text


def test_a_row_of_the_farthest_ranks_leads_to_the_rank(driver: Any, many: Path) -> None:
    """To the cell of its number, for signals; to the rank, for the seconds of its steps."""
    open_page(driver, many)
    driver.execute_script("document.getElementById('farthest').open = true")
    settle(driver, "document.querySelector('#farthest table')")
    rows = driver.find_elements("css selector", "#farthest tbody tr")
    cells = [[cell.text for cell in row.find_elements("tag name", "td")] for row in rows]
    assert [row[0] for row in cells] == [str(BROKEN), str(LARGE), str(SLOW)]
    assert cells[1][1:] == ["37", f"{usual(LARGE, 3, 2) * 37:.6g}", f"{usual(LARGE, 3, 2):.6g}", "3", FEW_NAMES[2]]
    assert cells[2][1:4] == ["1.5", "1.5", "1"]
    driver.execute_script("arguments[0].click()", rows[1].find_element("tag name", "button"))
    settle(driver, "document.querySelector('#row-rank')?.textContent === arguments[0]", str(LARGE))
    assert shown(driver, "row").endswith(FEW_NAMES[2])
    number = driver.find_element("css selector", "#row td[data-op='norm']").text
    assert number == f"{usual(LARGE, 3, 2) * 37:.6g}"
    driver.execute_script("document.querySelector(`button[data-far='${arguments[0]}']`).click()", SLOW)
    settle(driver, "document.getElementById('rank').value === arguments[0]", str(SLOW))
    assert errors(driver) == []


def test_a_comparison_shows_its_differences(driver: Any, tmp_path: Path) -> None:
    """The signal of the first difference is drawn, its differences as cells; nothing is fetched; names are text."""

    def change(at: Where, tensor: Array) -> Array:
        return tensor * {NAN: math.nan, LARGER: 1.25}.get(at, 1.0)

    rename = {"layers.1": f"{EVIL}<b>"}
    runs = [compare_data.write_run(tmp_path / "a", rename=rename), compare_data.write_run(tmp_path / "b", change, rename=rename)]  # fmt: skip  # noqa: E501
    path = tmp_path / "page.html"
    path.write_text(comparison_page(compare(*runs)), encoding="utf-8")
    open_page(driver, path)
    assert driver.find_element("id", "layers-signal").get_attribute("value") == "grad_reduced"
    cells = {text.rpartition(" · ")[0]: text.rpartition(" · ")[2] for text in scan(driver)}
    assert cells.pop(f"{NAN.name}, step {NAN.step}") == "Inf"
    assert float(cells.pop(f"{LARGER.name}, step {LARGER.step}")) == pytest.approx(0.2, rel=0.01)
    assert set(cells.values()) == {"0"}
    assert "The runs differ. First difference: step 3" in driver.find_element("id", "verdict").text
    choose(driver, "layers-signal", "actv")
    assert any(text.startswith("head.output, ") for text in scan(driver))
    assert any(EVIL in text for text in scan(driver))
    assert f"probe view {runs[0]} {runs[1]}" in driver.find_element("id", "absent").text
    assert driver.execute_script("return [window.evil ?? null, document.querySelectorAll('main b').length]") == [None, 0]  # fmt: skip  # noqa: E501
    assert errors(driver) == []
