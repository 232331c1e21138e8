"""Catalogues of the Chinese edition: ``make messages`` brings them up to date and lists the messages that lack Chinese.

A catalogue holds messages and nothing else, no dates and no lines of sources, so that it changes where a message does.
"""

from __future__ import annotations

import hashlib
import re
import struct
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from babel.messages.catalog import Catalog
from babel.messages.pofile import escape, read_po

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import command_line  # noqa: E402 - the repository is no package

LANGUAGE = "zh_CN"
DOCS = ROOT / "docs"
PAGES = DOCS / "locale" / LANGUAGE / "LC_MESSAGES"
PACKAGE = ROOT / "probe" / "locale" / "zh" / "LC_MESSAGES" / "probe.po"
"""Catalogue of the command line, of every Chinese: gettext comes to ``zh`` from ``zh_CN``, ``zh_TW`` and others."""
README = ROOT / "README.zh-CN.md"
HEADER = (
    f"Language: {LANGUAGE}\nMIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\n"
    "Content-Transfer-Encoding: 8bit\n"
)
ENGLISH_PAGE = re.compile(r"^\| \[docs/([\w./-]+?)(?:\.md)?\]", re.MULTILINE)
"""Row of the table in ``README.zh-CN.md`` that names a page, or a folder of pages, without a translation."""


class Message(NamedTuple):
    """Message of a catalogue."""

    english: str
    chinese: str = ""
    fuzzy: bool = False
    """True if ``chinese`` translates an earlier form of ``english``."""


class Section(NamedTuple):
    """Section of ``README.zh-CN.md``."""

    title: str
    """Heading of the section of ``README.md`` that it translates."""
    hash: str
    """Beginning of the SHA-256 of the text of which it is the translation."""
    text: str


def sections(readme: str) -> dict[str, str]:
    """Sections of ``README.md``, each with its heading."""
    starts = [
        *re.finditer(r"^##? (.+)$", re.sub(r"^```.*?^```$", lambda m: "`" * len(m[0]), readme, flags=re.S | re.M), re.M)
    ]
    ends = [each.start() for each in starts[1:]] + [len(readme)]
    return {each[1]: readme[each.start() : end].strip() for each, end in zip(starts, ends, strict=True)}


def translated_sections(readme: str) -> list[Section]:
    """Sections of ``README.zh-CN.md`` that translate one; the last one, about the edition itself, does not."""
    parts = re.split(r"^<!-- (?:(.+): ([0-9a-f]{16})|zh_CN) -->$", readme, flags=re.MULTILINE)
    found = [Section(*parts[at : at + 3]) for at in range(1, len(parts), 3)]
    return [each for each in found if each.title]


def stale(section: Section, original: str) -> list[str]:
    """Return what is wrong with the hash of a section, if its original has changed since it was translated."""
    now = hashlib.sha256(original.encode()).hexdigest()[:16]
    return (
        []
        if now == section.hash
        else [f"the original has changed: translate it again, then write <!-- {section.title}: {now} -->"]
    )


def pages_in_english(readme: str) -> list[str]:
    """Pages, and folders with a ``/`` at the end, that the table of ``README.zh-CN.md`` names."""
    return ENGLISH_PAGE.findall(readme)


def extracted() -> dict[str, list[str]]:
    """Messages of each page of the documentation that is to be translated, in the page's order, as Sphinx extracts
    them. It reads no other page."""
    english = pages_in_english(README.read_text("utf-8"))
    apart = ",".join(f"{each}**" if each.endswith("/") else f"{each}.md" for each in english)
    settings = [f"-Dgettext_{name}=0" for name in ("compact", "uuid", "location")]
    settings.append(f"-Dexclude_patterns=pictures/*.py,{apart}")
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sphinx", "-Q", "-b", "gettext", *settings, str(DOCS), folder]
        subprocess.run(command, check=True)
        paths = sorted(Path(folder).rglob("*.pot"))
        return {
            str(path.relative_to(folder).with_suffix("")): [each.english for each in messages(path)] for path in paths
        }


def command_line_messages() -> list[str]:
    """Messages of the command line."""
    return command_line.messages(ROOT / "probe")


def messages(path: Path) -> list[Message]:
    """Read the messages of a catalogue; none if there is no file."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        catalogue = read_po(file)
    return [Message(str(each.id), str(each.string or ""), each.fuzzy) for each in catalogue if each.id]


def updated(known: list[Message], wanted: list[str]) -> list[Message]:
    """Return ``wanted`` with the translations of ``known``; that of a similar message is marked fuzzy."""
    template, catalogue = Catalog(), Catalog()
    for english in wanted:
        template.add(english)
    for each in known:
        catalogue.add(each.english, each.chinese, flags=("fuzzy",) if each.fuzzy else ())
    catalogue.update(template)
    found = {str(each.id): Message(str(each.id), str(each.string or ""), each.fuzzy) for each in catalogue if each.id}
    return [found[english] for english in dict.fromkeys(wanted)]


def po_text(found: list[Message]) -> str:
    """Text of a catalogue."""
    parts = [
        'msgid ""\nmsgstr ""\n' + "".join(f'"{escape(line)[1:-1]}"\n' for line in HEADER.splitlines(keepends=True))
    ]
    for each in found:
        mark = "#, fuzzy\n" if each.fuzzy else ""
        parts.append(f"{mark}msgid {escape(each.english)}\nmsgstr {escape(each.chinese)}\n")
    return "\n".join(parts)


def mo_bytes(found: list[Message]) -> bytes:
    """Compiled catalogue, as ``gettext`` reads it (GNU gettext manual, "The Format of GNU MO Files")."""
    pairs = sorted({"": HEADER, **{each.english: each.chinese for each in found if not each.fuzzy}}.items())
    texts = [[text.encode() for text in column] for column in zip(*pairs, strict=True)]
    at, tables, body = 28 + 16 * len(pairs), b"", b""
    for column in texts:
        for text in column:
            tables += struct.pack("<II", len(text), at + len(body))
            body += text + b"\0"
    number = len(pairs)
    return struct.pack("<7I", 0x950412DE, 0, number, 28, 28 + 8 * number, 0, at) + tables + body


def write(path: Path, wanted: list[str]) -> list[Message]:
    """Bring the catalogue at ``path`` up to date; return its messages."""
    found = updated(messages(path), wanted)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(po_text(found), encoding="utf-8")
    return found


def main() -> None:
    """Write all catalogues; print each message that lacks Chinese after its catalogue."""
    wanted = extracted()
    for gone in {str(path.relative_to(PAGES).with_suffix("")) for path in PAGES.rglob("*.po")} - wanted.keys():
        (PAGES / f"{gone}.po").unlink()
    catalogues = {page: write(PAGES / f"{page}.po", found) for page, found in wanted.items()}
    catalogues["command line"] = write(PACKAGE, command_line_messages())
    PACKAGE.with_suffix(".mo").write_bytes(mo_bytes(catalogues["command line"]))
    lacking = [
        f"{name}: {'fuzzy' if each.fuzzy else 'missing'}: {each.english!r}"
        for name, found in catalogues.items()
        for each in found
        if each.fuzzy or not each.chinese
    ]
    readme = sections((ROOT / "README.md").read_text("utf-8"))
    for section in translated_sections(README.read_text("utf-8")):
        lacking += [f"README.zh-CN.md: {line}" for line in stale(section, readme.get(section.title, ""))]
    sys.stdout.write("".join(f"{line}\n" for line in lacking))
    sys.stdout.write(f"{len(wanted)} pages, {len(lacking)} messages without Chinese\n")


if __name__ == "__main__":
    main()
