"""Files of the page of ``probe view``, without a browser: texts, vendored library, nothing that runs what data say."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from pathlib import Path

import pytest

import probe

PAGE = Path(probe.__file__).parent / "view" / "page"
MODULES = sorted(path for path in PAGE.glob("*.js") if path.name != "uPlot.iife.min.js")
MESSAGES = {
    language: json.loads((PAGE / f"messages.{language}.json").read_text(encoding="utf-8")) for language in ("en", "zh")
}
PLACE = re.compile(r"\{\w+\}")


def test_the_vendored_library_is_what_its_list_says() -> None:
    """Every file has the hash of its list, and states its version; the licence lies beside it."""
    listed = json.loads((PAGE / "vendored.json").read_text(encoding="utf-8"))
    assert set(listed["sha256"]) == {path.name for path in PAGE.glob("uPlot*")}
    for name, digest in listed["sha256"].items():
        assert hashlib.sha256((PAGE / name).read_bytes()).hexdigest() == digest
    assert f"(v{listed['version']})" in (PAGE / "uPlot.iife.min.js").read_text(encoding="utf-8")[:400]
    assert "Permission is hereby granted, free of charge" in (PAGE / "uPlot.LICENSE.txt").read_text(encoding="utf-8")


def test_both_languages_have_the_same_texts() -> None:
    """Names and places are alike, no text is empty, and Chinese is not English."""
    english, chinese = MESSAGES["en"], MESSAGES["zh"]
    assert list(english) == list(chinese) == sorted(english)
    for name, text in english.items():
        assert text.strip()
        assert sorted(PLACE.findall(text)) == sorted(PLACE.findall(chinese[name]))
    alike = {name for name, text in english.items() if text == chinese[name]}
    assert {english[name] for name in alike} <= {"NaN", "Inf", "0", "rank", "{count} × Inf", "{count} × NaN"}


def test_every_text_is_used_and_every_used_text_is_there() -> None:
    """A name in a module without a text, or a text that no module names, is found."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in MODULES)
    named = set(re.findall(r'"([a-z]+(?:\.[a-z]+)*)"', source))
    begun = set(re.findall(r"\bt\(`([a-z.]+)\$\{", source))
    called = set(re.findall(r'\bt\("([^"]+)"', source))
    assert called
    assert called - set(MESSAGES["en"]) == set()
    assert {name for name in MESSAGES["en"] if name not in named and not name.startswith(tuple(begun))} == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_module_makes_markup_or_programs_of_texts(path: Path) -> None:
    """Names from data become text nodes; modules come from this folder alone."""
    source = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)  # types are imports, too
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\"(?:style|on)"
    )
    assert re.findall(forbidden, source) == []
    imported = re.findall(r'^(?:import|export) .* from "(.*)";$|\bimport\("(.*)"\)', source, re.MULTILINE)
    assert all((PAGE / static).is_file() and not dynamic for static, dynamic in imported)
    assert "://" not in source


def test_the_page_has_nothing_inline_and_asks_nobody_else() -> None:
    """As its Content-Security-Policy demands: scripts and styles are files of this folder."""
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", page) == []
    assert "://" not in page
    named = re.findall(r'(?:src|href)="page/([^"]+)"', page)
    assert len(named) == 4
    assert all((PAGE / name).is_file() for name in named)


def test_the_wheel_has_every_file_of_the_page() -> None:
    """Endings of data files in setup.py cover each of them."""
    setup = Path(probe.__file__).parents[1] / "setup.py"
    if not setup.is_file():
        pytest.skip("probe is not a clone")
    (listed,) = re.findall(r"^PAGES = (\(.*?\))", setup.read_text(encoding="utf-8"), re.MULTILINE)
    endings = set(ast.literal_eval(listed))
    assert {path.name for path in PAGE.iterdir() if path.is_file() and path.suffix[1:] not in endings} == set()
