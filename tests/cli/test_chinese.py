"""Command line in Chinese: by the variables of the language, at the terminal alone."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from probe.cli.config import explain
from probe.core.config.reference import judges
from probe.core.language import _active, _catalogue, message, translated
from probe.core.messages import HANDLER
from probe.core.storage.problems import Problems
from probe.core.storage.table_files import EXAMPLE, table_file
from tests.core.analysis.causes_data import bad, everything_after, write_run
from tests.quick_python import probe_command
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

LANGUAGES = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
CHINESE = re.compile("[一-鿿]")
NO_PROCESS = 2**22 + 1
"""Number that Linux gives no process."""
AT = 20
NAN = everything_after(AT, (0, 1), bad(("actv", 1, AT, "b.output"), ("grad_reduced", 0, AT, "a.weight")))
ENGLISH = re.compile(r"[a-z]+(?: [a-z]+){2,}")
"""Three words of a sentence."""
NAMES = re.compile(r"[\w./-]*[./_-][\w./-]*|Anomaly\w+|NaN|Inf|norm|nan|ranks?|actv|inf")


def probe(*words: object, **language: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, with these variables of the language alone."""
    plain: Mapping[str, str] = {name: value for name, value in os.environ.items() if name not in LANGUAGES}
    command = probe_command(*words)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={"PYTHONUTF8": "1", **plain, **language},
        check=False,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of two ranks, of which the second one has a NaN that spreads."""
    root = tmp_path_factory.mktemp("run")
    write_run(root, 2, 24, NAN)
    return root


def test_the_first_cause_is_in_chinese(run: Path) -> None:
    """Every sentence, with the names, numbers and files of the English one, and the same exit code."""
    words = "anomalies", run, "-k", 3, "--why"
    english, chinese = probe(*words), probe(*words, LANG="zh_CN.UTF-8")
    assert english.returncode == chinese.returncode == 1
    text = "".join(chinese.stdout.split())
    for part in ("根因：NaN。", "b.output（激活值：模块的输入和输出；模块b），rank1，第20步，microstep0",
                 "由AnomalyNan检出", "该模块的输入是有限值", "并传播到rank0", "下一步请检查：", "级联"):  # fmt: skip
        assert part in text, part
    original = "".join(english.stdout.partition("cause ")[0].split())
    assert Counter(re.findall(r"\d+", text.partition("类别")[0])) == Counter(re.findall(r"\d+", original))
    shown = re.sub(rf"{run.name}|micro( step)?|Evidence|probe view.*", "", chinese.stdout)
    assert re.findall(r"[A-Za-z]{2,}", NAMES.sub(" ", shown)) == []


@pytest.mark.parametrize(
    "language", [{}, {"LANG": "C"}, {"LANG": "de_DE.UTF-8"}, {"LANGUAGE": "en", "LANG": "zh_CN.UTF-8"}]
)
def test_any_other_language_is_english(language: dict[str, str]) -> None:
    """Also where an earlier variable names English."""
    done = probe("anomalies", "missing", **language)
    assert done.stderr == (
        "probe: error: missing: expected the directory in which ranks have written; there is none of this name: "
        "give MONITOR_OUTPUT_DIR\n"
    )


@pytest.mark.parametrize("language", [{"LANGUAGE": "zh_CN"}, {"LC_ALL": "zh_TW.UTF-8"}, {"LC_MESSAGES": "zh"}])
def test_errors_are_in_chinese(language: dict[str, str]) -> None:
    """By each variable, for every Chinese."""
    done = probe("anomalies", "missing", **language)
    assert done.returncode == 2
    assert (
        done.stderr == "probe: 错误: missing：应为各 rank 写入的目录；没有这个名称的目录：请给出 MONITOR_OUTPUT_DIR\n"
    )


def test_a_terminal_that_cannot_print_it_gets_english() -> None:
    """Rather than an error of encoding."""
    done = probe("anomalies", "missing", LANG="zh_CN.UTF-8", PYTHONIOENCODING="ascii")
    assert done.stderr.startswith("probe: error: missing: expected")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("attach", NO_PROCESS), f"{NO_PROCESS}：没有这样的进程：`ps -u $USER -o pid,args` 列出现有的进程"),
        (
            ("view", __file__),
            (
                f"{__file__}：应为含有运行的文件夹，例如某次运行的 MONITOR_OUTPUT_DIR；这是一个文件："
                "请给出某次运行的文件夹，或含有运行的文件夹"
            ),
        ),
        (("view", "--listen", "a:b"), "--listen a:b：应为 HOST:PORT，例如 127.0.0.1:8090 或 0.0.0.0:8090"),
    ],
)
def test_errors_inside_errors_are_in_chinese(words: tuple[object, ...], error: str) -> None:
    """A reason that another message has in it is translated too."""
    done = probe(*words, LANG="zh_CN.UTF-8")
    assert (done.returncode, done.stderr) == (2, f"probe: 错误: {error}\n")


def test_problems_of_a_configuration_are_in_chinese(tmp_path: Path) -> None:
    """All at once; keys, names and values are as they stand in the file."""
    path = tmp_path / "monitor.json"
    path.write_text('{"opps": 1, "step_interval": 0, "format": ["cvs"]}', encoding="utf-8")
    lines = probe("config", "check", path, LANG="zh_CN.UTF-8").stderr.splitlines()
    assert lines[0] == f"probe: 错误: {path}：配置中有 3 个问题"
    assert "opps: 未知的配置项；是否想写 ops？" in "".join(lines)
    assert "format[0]: 应为 csv" in "".join(lines)
    assert '实际为 "cvs"；是否想写 csv？' in "".join(lines)


@pytest.fixture
def in_chinese(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is a command line in Chinese."""
    monkeypatch.setenv("LANGUAGE", "zh_CN")
    _active.append(True)
    _catalogue.cache_clear()
    yield
    _active.clear()
    _catalogue.cache_clear()


@pytest.mark.usefixtures("in_chinese")
def test_keys_rules_and_checks_are_explained_in_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, each line; the names, types and defaults of keys are there, and JSON is English."""
    for name in ("", *(judge.name for judge in judges())):
        explain(name)
    shown = capsys.readouterr().out
    assert ENGLISH.findall(re.sub("`[^`]*`", "", shown)) == []
    assert [block for block in shown.split("\n\n") if not CHINESE.search(block)] == []
    assert "\nalert.rules.args.threshold（AnomalyTurbulence）：数（>= 0），必填\n" in shown
    explain("eps", short=True)
    assert capsys.readouterr().out == "eps：数（>= 0），默认 1e-08\n    op zeros 统计小于此幅值的元素。\n"
    explain("eps", as_machine=True)
    assert not CHINESE.search(capsys.readouterr().out)


@pytest.mark.usefixtures("in_chinese")
def test_a_line_of_the_log_is_in_chinese_where_probe_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    """With its values; the record, which other handlers get, stays English."""
    _active.clear()
    reason = message("step {step}", step=7)
    record = logging.LogRecord("probe", logging.WARNING, "", 1, "not on this rank: %s", (reason,), None)
    HANDLER.emit(record)
    assert capsys.readouterr().err == "probe: 警告: 不在本 rank 上：第 7 步\n"
    assert record.getMessage() == "not on this rank: step 7"


@pytest.mark.usefixtures("in_chinese")
def test_a_damaged_file_is_named_in_chinese(tmp_path: Path) -> None:
    """With its line and the reason; files that are left out, too."""
    problems, file, other = Problems(), tmp_path / "actv_0-0.csv", tmp_path / "a.csv"
    file.write_text("vpp_stage,name,step,norm\n0,a,1,2\n0,b", encoding="utf-8")
    other.write_text("", encoding="utf-8")
    for path in (file, other):
        table_file(path, problems)
    assert [translated(line) for line in problems.lines()] == [
        f"{file}:3: 最后一行不完整（3 字节）：已略去",
        f"{other}: 名称应类似 {EXAMPLE}；不是监控的文件，已略去",
    ]


def test_help_is_in_chinese() -> None:
    """Text of the command, of its options, and headings."""
    text = probe("anomalies", "--help", LANG="zh_CN.UTF-8").stdout
    for part in ("从所有 rank 的文件中找出根因", "选项", "--topk", "显示的异常项个数"):
        assert part in text, part


def test_json_and_files_are_english(run: Path, tmp_path: Path) -> None:
    """To the byte what they are without Chinese."""
    outputs = []
    for number, language in enumerate(({}, {"LANG": "zh_CN.UTF-8"})):
        out = tmp_path / f"{number}.json"
        done = probe("anomalies", run, "--json", "-o", out, **language)
        assert json.loads(done.stdout)["diagnosis"]["text"].startswith("First cause: NaN.")
        outputs.append((done.stdout, out.read_bytes()))
    assert outputs[0] == outputs[1]
    assert not CHINESE.search(outputs[1][0])


def test_a_report_has_the_first_cause_in_chinese(run: Path, tmp_path: Path) -> None:
    """In the terminal."""
    done = probe("report", run, "-o", tmp_path / "report.html", LANG="zh_CN.UTF-8")
    assert done.stdout.startswith("根因：NaN。"), done.stderr


def test_outside_of_the_command_line_nothing_is_looked_up() -> None:
    """A program that imports probe reads no catalogue, and its errors are English, whatever its language."""
    program = (
        "import sys, gettext; gettext.find = None\n"
        "from probe.core.config.load import load\n"
        "try: load({'opps': 1})\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LANGUAGE": "zh_CN"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "opps: unknown key; did you mean ops?" in done.stdout


@pytest.mark.parametrize("words", [("--help",), ("csv2db", "--help"), ("serve", "--help")])
def test_no_sentence_of_a_help_is_cut(words: tuple[str, ...]) -> None:
    """Lines are broken by the width of characters; the first line and the options of all commands are Chinese."""
    done = probe(*words, LANGUAGE="zh_CN", COLUMNS="80")
    assert "…" not in done.stdout
    for text in ("用法：", "显示此消息并退出"):
        assert text in done.stdout
    for text in ("Usage", "Show this message"):
        assert text not in done.stdout
    for line in done.stdout.splitlines():
        assert sum(2 if CHINESE.match(letter) or letter in "，。；：（）、" else 1 for letter in line) <= 80
