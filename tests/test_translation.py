"""Chinese edition: whole, of this English, with its numbers, options, links and code, in the terms of the table."""

from __future__ import annotations

import gettext
import re
import runpy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.required import require

require("sphinx")
require("babel")

ROOT = Path(__file__).resolve().parents[1]
TOOL: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "locale" / "catalogues.py"))
TERMS = dict(
    line.split("\t") for line in (ROOT / "docs" / "locale" / "zh_CN" / "terms.tsv").read_text("utf-8").splitlines()
)
"""Chinese of each English term, both as regular expressions."""
ENGLISH, CHINESE = ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md"))

CODE = re.compile(r"(`+)(?!`)(.*?)(?<!`)\1(?!`)", re.DOTALL)
TARGET = re.compile(r"\]\(([^)\s]+)\)")
NUMBER = re.compile(r"(?<![A-Za-z_\d.])\d[\d,]*(?:\.\d+)*(?:e-?\d+)?( ?(?:million|万|亿))?")
SCALES = {"million": 1_000_000, "万": 10_000, "亿": 100_000_000}
OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
FIELD = re.compile(r"\{[^{}]*\}")
VALUE = re.compile(r"%(?:[.]\d+)?[sdrf]")
"""Values of a line of the log, which come in their order."""
NAME = re.compile(r"\{[^{}]*\}|\w+(?:[./=]\w+)+")
"""Fields of templates, keys, paths and settings, which are no words of a sentence."""


COMMAND_LINE = "command line"


def numbers(text: str) -> Counter[str]:
    """Count the numbers of a text without code; a million and its Chinese count as what they stand for."""
    found = Counter[str]()
    for each in NUMBER.finditer(text):
        digits = each[0].removesuffix(each[1] or "").replace(",", "").rstrip(".")
        scale = SCALES[each[1].strip()] if each[1] else 1
        found[str(int(digits) * scale) if scale > 1 else digits] += 1
    return found


def facts(text: str) -> dict[str, Counter[Any]]:
    """Count what a translation may not change."""
    bare = TARGET.sub("]", CODE.sub(" ", text))
    return {
        "code": Counter(each[2].strip() for each in CODE.finditer(text)),
        "links": Counter(TARGET.findall(CODE.sub(" ", text))),
        "numbers": numbers(bare),
        "options": Counter(OPTION.findall(bare)),
        "fields": Counter(FIELD.findall(bare)),
        "values in order": Counter(enumerate(VALUE.findall(text))),
    }


def changed(english: str, chinese: str) -> Iterator[str]:
    """Name each fact in which a translation differs from its original."""
    for (name, wanted), found in zip(facts(english).items(), facts(chinese).values(), strict=True):
        if wanted != found:
            yield f"{name}: lacks {sorted(wanted - found)}, adds {sorted(found - wanted)}"


def strange(english: str, chinese: str) -> Iterator[str]:
    """Name each term of the table that ``chinese`` has another word for."""
    bare, translation = NAME.sub(" ", TARGET.sub("]", CODE.sub(" ", english))), CODE.sub(" ", chinese)
    for term, wanted in TERMS.items():
        if re.search(rf"(?<![\w-])(?:{term})(?![\w-])", bare, re.IGNORECASE) and not re.search(
            wanted, translation, re.IGNORECASE
        ):
            yield f"{term}: expected {wanted}"


def faults(english: str, chinese: str) -> list[str]:
    """Differences and strange terms, if ``english`` is translated at all."""
    return [] if english == chinese else [*changed(english, chinese), *strange(english, chinese)]


@pytest.mark.parametrize(
    ("chinese", "fault"),
    [
        ("第 12 步的损失见 [规则](rules.md#a)，用 `probe sql` 和 --steps 查看，共 4,000 万行", ""),
        ("第 13 步的损失见 [规则](rules.md#a)，用 `probe sql` 和 --steps 查看，共 4,000 万行", "numbers"),
        ("第 12 步的损失见 [规则](rules.md#a)，用 `probe sql` 和 --steps 查看，共 4,000 行", "numbers"),
        ("第 12 步的损失见 [规则](rules.md#b)，用 `probe sql` 和 --steps 查看，共 4,000 万行", "links"),
        ("第 12 步的损失见 规则，用 `probe sql` 和 --steps 查看，共 4,000 万行", "links"),
        ("第 12 步的损失见 [规则](rules.md#a)，用 `probe SQL` 和 --steps 查看，共 4,000 万行", "code"),
        ("第 12 步的损失见 [规则](rules.md#a)，用 `probe sql` 和 --step 查看，共 4,000 万行", "options"),
        ("第 12 步的亏损见 [规则](rules.md#a)，用 `probe sql` 和 --steps 查看，共 4,000 万行", "loss"),
        ("第 12 步的损失 %s 见 [规则](rules.md#a)，用 `probe sql` 和 --steps 查看，共 4,000 万行", "values in order"),
        ("第 12 步的损失见 [规则](rules.md#a)，用 `probe sql`、{name} 和 --steps 查看，共 4,000 万行", "fields"),
    ],
)
def test_a_planted_fault_is_found(chinese: str, fault: str) -> None:
    """Each kind of fault by its name, and none in a translation that has none."""
    english = "The loss of step 12 is in [the rules](rules.md#a): `probe sql` and --steps show 40 million rows"
    found = faults(english, chinese)
    assert len(found) == bool(fault)
    assert all(each.startswith(fault) for each in found)


@pytest.fixture(scope="module")
def wanted() -> dict[str, list[str]]:
    """Messages of each page that is to be translated, and of the command line."""
    return {**TOOL["extracted"](), COMMAND_LINE: TOOL["command_line_messages"]()}


def catalogues() -> dict[str, list[Any]]:
    """Messages of each catalogue of pages, and of the command line's."""
    pages = TOOL["PAGES"]
    found = {str(path.relative_to(pages).with_suffix("")): TOOL["messages"](path) for path in pages.rglob("*.po")}
    return {**dict(sorted(found.items())), COMMAND_LINE: TOOL["messages"](TOOL["PACKAGE"])}


def test_every_page_is_translated_whole_or_named_as_english(wanted: dict[str, list[str]]) -> None:
    """No message is missing or fuzzy, none is left over."""
    found = catalogues()
    apart = sorted(found.keys() ^ wanted.keys())
    assert apart == [], f"{apart}: run `make messages` and translate, or name in the table of README.zh-CN.md"
    wrong = []
    for page, english in wanted.items():
        known = {each.english: each for each in found[page]}
        wrong += [f"{page}: missing: {each}" for each in english if not (each in known and known[each].chinese)]
        wrong += [f"{page}: fuzzy: {each.english}" for each in found[page] if each.fuzzy]
        wrong += [f"{page}: not in the original: {each}" for each in known.keys() - set(english)]
    assert wrong == [], "\n".join(["run `make messages`, then translate:", *wrong])


def test_the_compiled_catalogue_of_the_command_line_is_what_its_source_says() -> None:
    """To the byte, and as gettext reads it."""
    compiled = TOOL["PACKAGE"].with_suffix(".mo")
    known = catalogues()[COMMAND_LINE]
    is_same = compiled.read_bytes() == TOOL["mo_bytes"](known)
    assert is_same, "run `make messages`"  # pytest would spend minutes on what differs
    with compiled.open("rb") as file:
        read = gettext.GNUTranslations(file)
    assert [each.english for each in known if read.gettext(each.english) != each.chinese] == []


def test_the_table_names_only_pages_that_are_there() -> None:
    """Pages and folders of the documentation, each once, and not all of them."""
    named = TOOL["pages_in_english"](CHINESE)
    assert len(named) == len(set(named)) == CHINESE.count("\n| [docs/")
    assert [
        each for each in named if not (ROOT / "docs" / (each if each.endswith("/") else f"{each}.md")).exists()
    ] == []
    assert not {"index", "guides/anomalies", "tutorial/watch_a_run"} & set(named)


@pytest.mark.parametrize("page", catalogues())
def test_a_translation_keeps_numbers_options_links_and_code_and_the_terms(page: str) -> None:
    """Each message has them as often as its original; its terms are those of the table."""
    wrong = {each.english: found for each in catalogues()[page] if (found := faults(each.english, each.chinese))}
    assert wrong == {}, "\n".join(f"{page}: {english}: {found}" for english, found in wrong.items())


def test_the_glossary_has_the_terms_of_the_table() -> None:
    """Each entry of the translated glossary begins with the Chinese word, then the English one."""
    entries = [each for each in catalogues()["explanation/glossary"] if each.english.startswith("**")]
    assert len(entries) > 50
    for each in entries:
        noun = re.match(r"\*\*(.+?)\*\*", each.english)[1]
        chinese = re.match(r"\*\*(.+?)\*\*(?:（(.+?)）)?：", each.chinese)
        assert chinese, each.chinese
        assert noun in (chinese[2], chinese[1])
        known = [word for term, word in TERMS.items() if re.fullmatch(term, noun)]
        assert [word for word in known if not re.search(word, chinese[1])] == []


def test_readme_is_the_translation_of_this_readme() -> None:
    """Section by section: the original's hash, its code, links and numbers."""
    sections, translated = TOOL["sections"](ENGLISH), TOOL["translated_sections"](CHINESE)
    assert [each.title for each in translated] == list(sections)
    wrong = {
        each.title: found
        for each in translated
        if (
            found := [
                *TOOL["stale"](each, sections[each.title]),
                *faults(prose(sections[each.title]), prose(each.text)),
            ]
        )
    }
    assert wrong == {}, "\n".join(f"{title}: {found}" for title, found in wrong.items())
    assert [bare_blocks(text) for text in sections.values()] == [bare_blocks(each.text) for each in translated]


FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """Text without blocks of code, and without the line that leads to the other language."""
    return re.sub(r"^(\[中文\]|\[English\]).*$", "", FENCED.sub("", text), flags=re.MULTILINE)


def bare_blocks(text: str) -> list[str]:
    """Blocks of code without their comments."""
    return [re.sub(r" *# .*", "", block) for _, block in FENCED.findall(text)]


def test_the_chinese_edition_is_called_unreviewed() -> None:
    """Until a reader of Chinese has reviewed it."""
    assert "中文版尚未经过中文读者审阅" in CHINESE


def test_links_of_the_chinese_readme_lead_somewhere() -> None:
    """Each file is there."""
    links = [link.partition("#")[0] for link in TARGET.findall(CODE.sub(" ", CHINESE)) if not link.startswith("http")]
    assert len(links) > 40
    assert [link for link in links if not (ROOT / link).exists()] == []
