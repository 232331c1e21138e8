"""Wrong uses, and what each user is left with: where it went wrong, what was expected, what came and what to do."""

from __future__ import annotations

import errno
import gc
import inspect
import json
import pydoc
import re
import subprocess
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core import anomaly_processor
from probe.core.analysis.convert.csv2tb import csv2tensorboard_by_step
from probe.core.config.load import load
from probe.core.config.schema import Settings
from probe.core.control.command_requests import ReduceLearningRate
from probe.core.csv2db import CSV2DBConfig, csv2db
from probe.core.messages import lines
from probe.core.monitor.legacy import NEVER_BEGUN
from probe.core.monitor.subject import warnings_for
from probe.core.monitor.trainer_mon import NEVER_SET
from probe.core.monitor_v2.configuration import read_monitor_v2
from probe.core.monitor_v2.trainer import NEVER_STARTED, TrainerMonitorV2
from probe.launch.trainer_run import TrainerRun, Watching
from probe.services.performance import PerformanceMonitor
from tests.core.storage.run_files import write_run
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import tiny_net
from tests.matrix.watching import LR, MOMENTUM, inputs
from tests.quick_python import probe_command
from tests.required import require

WG = {"wg_distribution": True}
EXPLAIN = "`probe config explain KEY` describes a key"
NO_EVENTS = """\
monitor_config: {monitor_on: true, local_loss_format: [tensorboard]}
tensorboard: {tensorboard_dir: plain/events}
"""
STRUCTURE = '{"fc": {"input": {"config": "tensor", "0": "size=(1,)"}}}'
CALL = "call set_monitor(model, grad_acc_steps, optimizer"


class Use(NamedTuple):
    """A wrong use, and parts of the message that it must end with."""

    use: Any
    where: str
    expected: str
    got: str
    remedy: str = EXPLAIN


def rules(*given: object) -> dict[str, Any]:
    return {"alert": {"rules": list(given)}}


CONFIGURATIONS = {
    "a misspelt key": Use({"wg_distribtion": True}, "wg_distribtion", "unknown key", "wg_distribtion", "did you mean"),
    "a key of nobody": Use({"zzz": 1}, "zzz", "expected one that `probe config explain` lists", "zzz"),
    "a number for a switch": Use({"xy_distribution": 1}, "xy_distribution", "true or false", "got 1"),
    "null": Use({"format": None}, "format", "one or a list of csv", "got null"),
    "a negative step": Use({"start_step": -1}, "start_step", "an integer >= 0", "got -1"),
    "an interval of 0": Use({"step_interval": 0}, "step_interval", "an integer >= 1", "got 0"),
    "half a step": Use({"step_interval": 1.5}, "step_interval", "an integer >= 1", "got 1.5"),
    "a text for a number": Use({"eps": "1e-8"}, "eps", "a number >= 0", 'got "1e-8"'),
    "too many digits": Use({"ndigits": 30}, "ndigits", "an integer 0..20", "got 30"),
    "an unknown op": Use(
        {"ops": ["norm", "men"]}, "ops[1]", "one of min, max, mean", 'got "men"', "did you mean mean?"
    ),
    "one op": Use({"ops": "norm"}, "ops", "a list of names out of min", 'got "norm"'),
    "an unknown format": Use({"format": "cvs"}, "format", "one of csv", 'got "cvs"', "did you mean csv?"),
    "a rank as a text": Use({"module_ranks": ["0"]}, "module_ranks[0]", "an integer >= 0", 'got "0"'),
    "targets as a list": Use({"targets": ["fc"]}, "targets", "a mapping", 'got ["fc"]'),
    "a wrong place": Use(
        {"targets": {"fc": {"inptu": "tensor"}}}, "targets.fc.inptu", "unknown key", "inptu", "mean input"
    ),
    "a wrong selector": Use(
        {"targets": {"fc": {"input": "tuple"}}}, "targets.fc.input", 'such as "tensor"', 'got "tuple"'
    ),
    "an index too far": Use(
        {"targets": {"fc": {"input": "tuple[2]:2"}}}, "targets.fc.input", "index is below its length 2", "tuple[2]:2"
    ),
    "a time": Use({"append_output": ["now", "x"]}, "append_output[0]", "such as Dec03_21-34-40", 'got "now"'),
    "one time": Use({"append_output": ["Dec03_21-34-40"]}, "append_output", "two timestamps", "got ["),
    "a code line": Use(
        {"cc_distribution": {"cc_codeline": ["train.py[23"]}}, "cc_codeline[0]", "a regular expression", "train.py[23"
    ),
    "an unknown rule": Use(
        rules({"rule_name": "AnomalyNaN"}), "alert.rules[0].rule_name", "one of AnomalyTurbulence", "AnomalyNaN",
        "did you mean"
    ),
    "a rule without its threshold": Use(
        rules({"rule_name": "AnomalyTurbulence"}), "alert.rules[0].args.threshold", "expected a number >= 0", "missing"
    ),
    "an unknown signal": Use(
        rules({"rule_name": "AnomalyThreshold", "args": {"above": 1, "signals": ["grad_reducd"]}}),
        "alert.rules[0].args.signals[0]",
        "expected one of actv",
        'got "grad_reducd"',
        "did you mean grad_reduced?",
    ),
    "no limit": Use(
        rules({"rule_name": "AnomalyThreshold", "args": {}}), "alert.rules[0].args.below", "a number, here or as above",
        "got null"
    ),
    "limits that meet": Use(
        rules({"rule_name": "AnomalyThreshold", "args": {"above": 1, "below": 2}}),
        "alert.rules[0].args.below",
        "at most above, 1",
        "got 2",
    ),
    "formats in one text": Use({"format": "csv,api"}, "format", "one of csv", 'got "csv,api"', 'mean ["csv", "api"]?'),
    "ops in one text": Use({"ops": "norm, max"}, "ops", "a list of names", 'got "norm, max"', 'write ["norm", "max"]'),
    "a rule by its name": Use(
        rules("AnomalyNan"), "alert.rules[0]", "a mapping", 'got "AnomalyNan"', "write keys such as rule_name, args"
    ),
    "mail": Use(
        {"alert": {"channels": [{"channel": "mail"}]}}, "channels[0].channel", "one of", '"mail"', "mean apprise?"
    ),
    "keys a level too deep": Use(
        {"monitor": {"eps": 1, "ops": []}}, "monitor", "unknown key", "ops, eps in it", "write them in its place"
    ),
    "a URL to write to": Use({"output_dir": "s3://a/b"}, "output_dir", "path of a folder", "a URL", "copy it there"),
    "a number in quotes": Use({"step_interval": "5"}, "step_interval", "an integer >= 1", 'got "5"', "write 5 without"),
    "a switch in quotes": Use({"all_xy": "False"}, "all_xy", "true or false", "False", "false without quotes"),
    "yes": Use({"all_xy": "yes"}, "all_xy", "true or false", 'got "yes"', "write true without quotes"),
    "the text of a file": Use('{"eps": 1}', "config_file_path", "the path of a file", "text of one", "json.loads"),
    "an address": Use({"dynamic_broadcast": "here"}, "dynamic_broadcast", "a host and a port", 'got "here"'),
    "ranks in one text": Use({"module_ranks": "0-7"}, "module_ranks", "a list of integers", '"0-7"', "such as [0, 1]"),
    "an address without http": Use({"otlp": {"endpoint": "a:1"}}, "otlp.endpoint", "an address such as http", '"a:1"'),
    "a number for a text": Use({"prometheus": {"push": 1}}, "prometheus.push", "a string", "got 1", 'in quotes, "1"'),
    "a rule of the run": Use(
        rules({"rule_name": "RunNan"}), "alert.rules[0]", "about collected values", "RunNan", "stand in run.rules"
    ),
    "a rule of values": Use(
        {"run": {"rules": [{"rule_name": "AnomalyNan"}]}}, "run.rules[0]", "numbers of the run", "AnomalyNan", "alert"
    ),
    "a key that is a number": Use({12: 1}, "12", "expected a string as key", "got 12", "put it in quotes"),
    "nothing": Use(None, "config_file_path", "the path of a file or a mapping", "got NoneType", "give one, such as"),
    "a list": Use([WG], "config_file_path", "the path of a file or a mapping", "got list", "give one, such as"),
    "a missing file": Use("no.json", "no.json", "expected a JSON or YAML file", "No such file", "give its path"),
    "a directory": Use("/", "/", "expected a regular file", "this is a directory", "give the path of a file"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_wrong_configuration(name: str) -> None:
    """Wrong values come as a mapping, or as a path."""
    wrong = CONFIGURATIONS[name]
    check(wrong, lambda: load(wrong.use))


FILES = {
    "Python's True": Use('{\n"wg_distribution": True}', "a.json:2:20", "expected a value", "got True", "write true"),
    "single quotes": Use("{'eps': 1}", "a.json:1:2", "expected double quotes", "got a single quote", 'write "..."'),
    "curly quotes": Use("{“eps”: 1}", "a.json:1:2", "a straight double quote", "got a curly one", 'write "..."'),
    "a zero in front": Use("start_step: -010", "a.yaml:1: start_step", "an integer >= 0", "got -10"),
    "minutes": Use("step_interval: 1:30", "a.yaml:1: step_interval", "an integer >= 1", 'got "1:30"'),
    "a # comment": Use('{\n# all\n"eps": 1}', "a.json:2:1", "expected a key", "got #", "write //"),
    "an INI file": Use("[a]\neps = 1", "a.ini", "expected JSON, YAML or Python", "got INI", ".yaml file"),
    "a list left open": Use('{"ops": [1,\n"eps": 1}', "a.json:2:6", "expected ]", "got :", "[ of line 1 is not closed"),
    "an early end": Use('{"alert": {\n', "a.json:1:12", "expected }", "got the end of the file", "add what is missing"),
    "a comma left out": Use(
        '{"eps": 1\n"ndigits": 2}', "a.json:2:1", "expected a comma", 'got "ndigits"', "write a comma"
    ),
    "a key without quotes": Use("{eps: 1}", "a.json:1:2", "a key in double quotes", "got eps", 'write "eps"'),
    "a wrong value": Use('{\n"eps": -1}', "a.json:2: eps", "a number >= 0", "got -1"),
    "a key given twice": Use('{"eps": 1,\n"eps": 2}', "a.json:2: eps", "expected once", "more than once", "keep one"),
    "a list in a file": Use("[1]", "a.json:1", "a mapping of keys", "got a list", "write keys and values"),
    "an empty file": Use("", "a.json", "a mapping of keys", "got an empty file", "write at least {}"),
    "a wrong value in YAML": Use(
        "ops:\n- norm\n- men\n", "a.yaml:3: ops[1]", "one of min", 'got "men"', "did you mean mean?"
    ),
    "another comment": Use(
        "// all\nops: [norm]", "a.yaml:2:4", "expected # before a comment", "got //", "write # in its place"
    ),
    "a tab": Use("eps:\n\tndigits: 1", "a.yaml:2:1", "expected spaces", "got a tab", "write spaces"),
    "two documents": Use("eps: 1\n---\neps: 2", "a.yaml:2:1", "one document", "a second", "remove the other"),
    "a star": Use("targets: {*.mlp: {}}", "a.yaml:1:12", "expected alphabetic", "found '.'", "stand in quotes"),
    "an open quote": Use('output_dir: "a\nops: []', "a.yaml:1:13", "a closing quote", "got none", "close the text"),
    "a key too deep": Use("eps: 1\n  ops: []", "a.yaml:2:6", "expected one key in a line", "got another", "write it"),
    "a Chinese colon": Use("ops： [norm]", "a.yaml:1", "a mapping of keys", "a str", 'write ":" in place of "："'),
    "a path of Windows": Use(
        '{"output_dir": "C:\\runs"}', "a.json:1: output_dir", "path of a folder", "a control character", "write /"
    ),
    "Latin-1": Use(
        '\ufeff{"output_dir": "caf\udce9"}', "a.json:1:20", "expected UTF-8", "got byte 0xe9", "save the file as UTF-8"
    ),
    "an equals sign": Use("ops = [norm]", "a.yaml:1", "a mapping of keys", "a str", "write a colon behind each key"),
    "a binary file": Use("a\0\udc80", "a.json", "a configuration", "a binary file", "give its path"),
    "a list without its end": Use(
        "eps: 1\nops: [norm\nndigits: 3\n", "a.yaml:3:8", "expected ',' or ']'", "got ':'", "correct it"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_file(name: str, tmp_path: Path) -> None:
    """What somebody has typed."""
    wrong = FILES[name]
    path = tmp_path / wrong.where.partition(":")[0]
    path.write_text(wrong.use, "utf-8", errors="surrogateescape")
    check(wrong, lambda: load(path))


TOOLS: dict[str, Use] = {
    "a summary of hours in the future": Use(
        lambda _: PerformanceMonitor().get_performance_summary(-1), "hours: ", "at least 0", "got -1", "expected"
    ),
    "csv2db of a mapping": Use(
        lambda _: csv2db({"monitor_path": "x"}),  # type: ignore[arg-type]
        "csv2db: config",
        "expected a CSV2DBConfig",
        "got dict",
        "write csv2db(CSV2DBConfig(",
    ),
    "csv2db of no path": Use(
        lambda _: CSV2DBConfig(None), "monitor_path", "the path of a folder", "got None", "give one"
    ),
    "csv2db of nowhere": Use(
        lambda path: csv2db(CSV2DBConfig(path / "no")),
        "no: ",
        "expected the directory",
        "there is none",
        "give MONITOR",
    ),
    "csv2db of an empty folder": Use(
        lambda path: csv2db(CSV2DBConfig(path)),
        "{path}",
        "expected directories such as",
        "found none",
        "MONITOR_OUTPUT_DIR",
    ),
    "csv2db with no process": Use(
        lambda path: CSV2DBConfig(path, process_num=0), "process_num", "from 1 to 128", "got 0", "leave it out"
    ),
    "csv2db with half a step": Use(
        lambda path: CSV2DBConfig(path, step_partition=0.5),
        "step_partition",
        "a whole number",
        "got 0.5",
        "leave it out",
    ),
    "csv2db with one kind": Use(
        lambda path: CSV2DBConfig(path, data_type_list="actv"),
        "data_type_list",
        "a list of names",
        "got 'actv'",
        "or None for all",
    ),
    "csv2db with a time": Use(
        lambda path: csv2db(CSV2DBConfig(path, "now")),
        "time_start",
        "such as Dec03_21-34-40",
        "got 'now'",
        "leave it out",
    ),
    "csv2tb of nowhere": Use(
        lambda path: csv2tensorboard_by_step(path / "no"),
        "no: ",
        "expected the directory",
        "there is none",
        "give MONITOR",
    ),
    "csv2tb with many processes": Use(
        lambda path: csv2tensorboard_by_step(path, process_num=1000),
        "process_num",
        "from 1 to 128",
        "got 1000",
        "leave it out",
    ),
    "csv2tb with a time": Use(
        lambda path: csv2tensorboard_by_step(path, None, "x"), "time_end", "such as Dec03", "got 'x'", "leave it out"
    ),
}


TOOLS |= {
    "a factor that increases": Use(
        lambda _: ReduceLearningRate(factor=2), "reduce_learning_rate: factor", "> 0 and < 1", "got 2", ""
    ),
    "an argument without its name": Use(
        lambda _: ReduceLearningRate(0.5), "ReduceLearningRate", "arguments by name", "got 0.5", "write factor=..."
    ),
    "a configuration of TrainerMon for Monitor V2": Use(
        lambda _: read_monitor_v2(WG),
        "given mapping",
        "of msprobe's Monitor V2",
        "of TrainerMon",
        "pass it to TrainerMon",
    ),
}


@pytest.mark.parametrize("name", TOOLS)
def test_a_wrong_conversion(name: str, tmp_path: Path) -> None:
    """As a function of Python."""
    wrong = TOOLS[name]
    if "csv2tb" in name:
        require("tensorboardX")
    wrong = wrong._replace(where=wrong.where.replace("{path}", str(tmp_path)))
    check(wrong, lambda: wrong.use(tmp_path))


COMMANDS: dict[str, Use] = {
    "anomalies of nowhere": Use(["-d", "{path}/no"], "/no: ", "expected a directory", "there is none", "give MONITOR"),
    "anomalies of a healthy run": Use(
        ["-d", "{path}"], "{path}", "expected anomaly_detected", "there is none", '"dump": true'
    ),
    "no anomalies": Use(["-d", "{path}", "-k", "0"], "-k/--topk", "a number of findings", "got '0'", "leave it out"),
    "steps": Use(["-d", "{path}", "-s", "x"], "-s/--step_list", "a list of steps", "got 'x'", '"[]" for all'),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_command_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ends with exit code 2."""
    wrong = COMMANDS[name]
    try:
        code = anomaly_processor.main([word.replace("{path}", str(tmp_path)) for word in wrong.use])
    except SystemExit as end:
        code = end.code
    assert code == 2
    told(wrong._replace(where=wrong.where.replace("{path}", str(tmp_path))), capsys.readouterr().err)


class Parts(NamedTuple):
    """What a wrong use is made of."""

    new: Callable[..., Any]
    model: Any
    optimizer: Any

    def attach(self, *args: Any, config: Any = WG, **kwargs: Any) -> None:
        self.new(config).set_monitor(*args, **kwargs)


ATTACHMENTS: dict[str, Use] = {
    "no configuration": Use(
        lambda p: p.new(None),
        "config_file_path",
        "the path of a file or a mapping",
        "got NoneType",
        "give one, such as",
    ),
    "a keyword of nobody": Use(
        lambda p: p.new(config_path="a.json"),
        "TrainerMon: ",
        "unexpected keyword",
        "'config_path'",
        "; call TrainerMon(",
    ),
    "a call on the class": Use(
        lambda p: p.new.set_monitor(p.model, 1, p.optimizer),
        "set_monitor: ",
        "expected a monitor",
        "got the class, and ",
        "write monitor = TrainerMon(...); monitor.set_monitor(...)",
    ),
    "no argument": Use(
        lambda p: p.new(), "config_file_path", "the path of a file or a mapping", "got NoneType", "such as"
    ),
    "a text for a group": Use(
        lambda p: p.new(WG, process_group="x"), "process_group", "expected", "got 'x'", "pass the group itself, or None"
    ),
    "a text for a switch": Use(
        lambda p: p.new(WG, params_have_main_grad="no"),
        "params_have_main_grad",
        "true or false",
        "got 'no'",
        "leave it",
    ),
    "a number for a group": Use(
        lambda p: p.attach(p.model, 1, p.optimizer, dp_group=3), "dp_group", "expected", "got 3", "or None"
    ),
    "a list for a group": Use(
        lambda p: p.attach(p.model, 1, p.optimizer, tp_group=[0, 1]), "tp_group", "expected", "got [0, 1]", "or None"
    ),
    "no model": Use(lambda p: p.attach(), "set_monitor", "required argument: 'model'", "missing", CALL),
    "an empty model": Use(
        lambda p: p.attach([], 1, p.optimizer), "set_monitor: model", "one or a list", "an empty list", CALL
    ),
    "no optimizer": Use(lambda p: p.attach(p.model, 1), "set_monitor: the optimizer", "optimizer", "is missing", CALL),
    "a model twice": Use(
        lambda p: p.attach([p.model, p.model], 1, p.optimizer),
        "set_monitor: model",
        "each model once",
        "more than once",
        CALL,
    ),
    "an optimizer twice": Use(
        lambda p: p.attach(p.model, 1, [p.optimizer] * 2), "optimizer", "each optimizer once", "more than once", CALL
    ),
    "a monitor in a checkpoint": Use(
        lambda p: deepcopy(p.new(WG)), "TrainerMon", "expected its state_dict()", "cannot be copied", "save that"
    ),
    "no micro batch": Use(
        lambda p: p.attach(p.model, 0, p.optimizer),
        "set_monitor: grad_acc_steps",
        "an integer of at least 1",
        "got 0",
        CALL,
    ),
    "half a micro batch": Use(
        lambda p: p.attach(p.model, 0.5, p.optimizer),
        "set_monitor: grad_acc_steps",
        "an integer of at least 1",
        "got 0.5",
        CALL,
    ),
    "a negative start": Use(
        lambda p: p.attach(p.model, 1, p.optimizer, start_iteration=-1),
        "set_monitor: start_iteration",
        "an integer of at least 0",
        "got -1",
        CALL,
    ),
    "an unknown argument": Use(
        lambda p: p.attach(p.model, optimiser=1), "set_monitor", "unexpected", "'optimiser'", CALL
    ),
    "too many arguments": Use(lambda p: p.attach(*[p.model] * 8), "set_monitor", "too many", "arguments", CALL),
    "an unknown target": Use(
        lambda p: p.attach(p.model, 1, p.optimizer, config=WG | {"targets": {"fcc": {}}}),
        "targets.fcc",
        "the name of a module or parameter",
        "got 'fcc'",
        "did you mean 'fc'?",
    ),
    "wrong ops": Use(
        lambda p: setattr(p.new(WG), "ops", ["media"]),
        "monitor.ops",
        "expected one of min",
        'got "media"',
        "did you mean mean?",
    ),
}


@pytest.fixture
def parts(framework: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    """A model that could be watched."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    model = tiny_net(framework)
    return Parts(framework.TrainerMon, model, framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM))


@pytest.mark.parametrize("name", ATTACHMENTS)
def test_a_wrong_attachment(parts: Parts, name: str) -> None:
    """Before training begins."""
    wrong = ATTACHMENTS[name]
    check(wrong, lambda: wrong.use(parts))


@pytest.mark.parametrize("package", ["pytorch", "mindspore"])
@pytest.mark.parametrize(("place", "name"), [(0, "model"), (2, "optimizer")])
def test_a_number_is_neither_model_nor_optimizer(package: str, place: int, name: str) -> None:
    """Each adapter names the types that it takes, and a monitor of the same configuration goes on."""
    require({"pytorch": "torch"}.get(package, package))
    harness = import_module(f"tests.matrix.{package}_harness")
    model = tiny_net(harness)
    given = [model, 1, harness.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)]
    before = harness.TrainerMon(WG)
    before.set_monitor(*given)
    loop = harness.loop(model, given[2])
    given[place] = 3
    wrong = Use(None, f"set_monitor: {name}", "expected a", "got <class 'int'>", "; pass the ")
    check(wrong, lambda: harness.TrainerMon(WG).set_monitor(*given))
    train_step(loop, *inputs(harness))
    assert before.step == 1
    before.stop()


VERBS: dict[str, Use] = {
    "a map that is a folder": Use(["compare", "run", "run", "--map", "."], ".: ", "a mapping file", "a folder", "give"),
    "an unknown number": Use(
        ["compare", "run", "run", "--ops", "zzz"], "--ops", "there are max, min", "'zzz' is no number", "name some"
    ),
    "event files that cannot be": Use(
        ["config", "check", "t.yaml"], "t.yaml: ", "expected a folder for files", "got plain/events: ", "name another"
    ),
    "a file for the merged run": Use(
        ["merge", "run", "-o", "plain"], "plain: ", "expected a folder", "there is a file", "choose another"
    ),
    "a file for the packed run": Use(
        ["pack", "run", "-o", "plain"], "plain: ", "a new folder", "this is a file", "name another"
    ),
    "a file for the curves": Use(
        ["csv2tb", "run", "-o", "plain"], "plain: ", "a folder to write to", "a file", "another"
    ),
    "a file for the demonstration": Use(
        ["demo", "--output", "plain"], "plain: ", "a file of this name", "there is", "choose another path"
    ),
    "lines into no folder": Use(
        ["logs", "parse", "plain", "-o", "no/x"], "--output no/x: ", "cannot be written", "no such", "check the path"
    ),
    "a page as PDF": Use(["report", "run", "-o", "a.pdf"], "a.pdf: ", "ends with .html", "got .pdf", "no other format"),
    "a page of Markdown": Use(["compare", "run", "run", "-o", "a.md"], "a.md: ", "ends with .html", "got .md"),
    "an archive": Use(["anomalies", "a.zip"], "a.zip: ", "expected the directory", "an archive", "unpack it"),
    "a merge into the run": Use(["merge", "run", "-o", "run"], "run: ", "another folder", "that are read", "a new one"),
    "logs of a server": Use(["logs", "parse", "http://a/b.log"], "http://a/b.log: ", "expected a file", "load it down"),
    **{
        f"a URL for a path of {words[0]}": Use(words, "s3:/a/b", "a path of this machine", "got a URL", "copy it")
        for words in (["pack", "s3://a/b", "-o", "x"], ["config", "check", "s3://a/b"], ["report", "-o", "s3://a/b"])
    },
    **{
        f"{name} for {verb}": Use([verb, "-m", name], f"-m {name}: ", "a module that can be run", "none", "correct")
        for verb, name in (("run", "json.no"), ("check", "no.one"), ("run", "json"))
    },
    "a query that writes": Use(
        ["sql", "run", "DROP TABLE actv"], "'DROP TABLE actv'", "one query that only reads", "got", "write one such as"
    ),
    "a table of another query": Use(
        ["sql", "run", "--map", "FROM actv", "--reduce", "FROM z"],
        "reduce query 'z'",
        "there is mapped",
        "no",
        "name one",
    ),
    "a quoted pattern": Use(
        ["logs", "parse", "*.log"], "*.log: ", "expected a file", "no file", "leave the quotes out"
    ),
    "one run twice": Use(["compare", "run", "run"], "run: ", "A and B are one folder", "with itself", "give two runs"),
    "an empty log": Use(["logs", "parse", "empty"], "empty", "no line of text", "nothing was read", "give the log"),
    "TOML": Use(["config", "check", "a.toml"], "a.toml: ", "expected JSON, YAML or Python", "got TOML", ".yaml file"),
    "a report into no folder": Use(
        ["report", "run", "-o", "no/x.html"], "no/x.html: ", "expected the name of a file", "no folder no", "make it"
    ),
    "a report into a device": Use(
        ["report", "run", "-o", "/dev/full"], "/dev/full: ", "the name of a file", "a device", "choose another name"
    ),
    "steps the wrong way round": Use(
        ["compare", "run", "run", "--steps", "9-3"], "--steps", "the smaller first", "got '9-3'", "3-9"
    ),
    "two ways to run": Use(
        ["run", "--deep", "--light", "a.py"], "--light", "expected one of -c", "got --deep, --light", "leave the others"
    ),
    "a notebook": Use(
        ["run", "a.ipynb"], "a.ipynb: ", "expected a script", "a notebook", "`jupyter nbconvert --to script a.ipynb`"
    ),
    "a script of a shell": Use(["run", "a.sh"], "a.sh: ", "a script of Python", "a.sh", "`probe run -- bash a.sh ...`"),
    "an address of nobody": Use(
        ["serve", "--listen", "300.1.2.3:0"], "--listen 300.1.2.3:0: ", "HOST:PORT", "no such address", "such as 127"
    ),
    "an empty token": Use(
        ["serve", "--token-file", "private"], "--token-file private: ", "one line", "an empty file", "`openssl rand"
    ),
    "a configuration for a script": Use(
        ["run", "c.json", "a.py"], "c.json: ", "expected a script", "a configuration", "`probe run -c c.json train.py`"
    ),
    "a script for the configuration": Use(
        ["run", "-c", "a.py"], "a.py: ", "expected a script", "taken for the configuration", "--help"
    ),
    "a program for a script": Use(
        ["run", "true"], "true: ", "a script of Python", "program", "`probe run -- PROGRAM true"
    ),
    "a module by its path": Use(
        ["run", "-m", "a/b.py"], "-m a/b.py: ", "the name of a module", "a/b", "write `-m a.b`"
    ),
    "a script of a server": Use(["run", "http://a/b.py"], "b.py: ", "a script of Python", "a URL", "load it down"),
    "standard input": Use(["run", "-"], "-: ", "a script of Python", "standard input", "`probe run -- python -`"),
    "a rank of nobody": Use(
        ["compare", "run", "run", "--rank", "7"], "--rank", "one of the ranks of", "got 7", "run: 0"
    ),
    "steps with dots": Use(["anomalies", "run", "--steps", "5..9"], "--steps", "such as 10-20", "5..9", "leave it out"),
    "a script for a structure": Use(
        ["targets", "plain"], "plain, line 1", "expected JSON", "other text", "give its module"
    ),
    "a text without quotes": Use(
        ["sql", "run", "SELECT * FROM actv WHERE name = zz"], "'zz'", "there is rank", "no column", "in single quotes"
    ),
    "modules of no name": Use(["targets", "s.json", "--match", "g*"], "--match g*", "there are fc", "no such module"),
    **{
        f"{words} of the usual folder": Use(words.split(), "usual: ", "expected the directory", "none", "give MONITOR_")
        for words in ("merge", "performance", "csv2db", "csv2tb", "sql", "report", "anomalies", "track --to mlflow")
    },
}


WRITTEN = (("c.json", '{"ops": ["norm"]}'), ("true", "\0"))
"""Files that uses of a verb name."""


@pytest.mark.parametrize("name", VERBS)
def test_a_wrong_use_of_a_verb(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No number of the system's errors is shown, and the command ends with an exit code."""
    wrong = VERBS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", "usual")
    if "run" in wrong.use:
        write_run(tmp_path / "run", 0, range(2))
    for file, text in (
        ("t.yaml", NO_EVENTS),
        ("plain", "x"),
        ("empty", ""),
        ("a.toml", "ndigits = 3"),
        ("s.json", STRUCTURE),
        *WRITTEN,
    ):
        Path(file).write_text(text)
    for file in ("a.ipynb", "a.sh", "private", "a.zip"):
        Path(file).touch(0o600)
    done = CliRunner().invoke(app, wrong.use)
    assert done.exit_code == (
        0 if name in ("an empty log", "one run twice", "event files that cannot be") else 1 if name == "TOML" else 2
    ), done.output
    assert "Errno" not in done.stderr
    told(wrong._replace(remedy="" if wrong.remedy == EXPLAIN else wrong.remedy), done.stderr or caplog.text)


def test_no_place_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full everywhere: no traceback."""
    write_run(tmp_path, 0, range(2))
    reason = "No usable temporary directory found in ['/tmp']"

    def full() -> str:
        raise FileNotFoundError(errno.ENOENT, reason)

    monkeypatch.setattr("tempfile.gettempdir", full)
    done = CliRunner().invoke(app, ["anomalies", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{reason}: free space there, or name another folder by TMPDIR" in done.stderr


MISTAKES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a misspelt attribute": (
        lambda m: setattr(m, "opps", ["max"]),
        "monitor.opps: there is no such attribute: assigned without effect; did you mean ops?",
    ),
    "a key": (lambda m: setattr(m, "start_step", 5), "it is a key of the configuration: give it to TrainerMon"),
    "an argument": (lambda m: setattr(m, "start_iteration", 5), "it is an argument of set_monitor"),
    "a number": (lambda m: setattr(m, "loss", 2.5), "a number of the run is recorded by monitor.log(loss=...)"),
    "nothing like it": (lambda m: setattr(m, "zzz", "x"), "assigned without effect; `help(TrainerMon)` lists them"),
    "a method": (lambda m: setattr(m, "log", 1), "monitor.log: cannot be assigned: 1 is left out; read it, or call it"),
    "the step": (lambda m: setattr(m, "step", 1), "monitor.step: cannot be assigned: 1 is left out"),
    "wrong ops": (lambda m: setattr(m, "ops", "max"), "monitor.ops: expected a list such as"),
    "no number at all": (lambda m: m.log(), "log: expected numbers by name, such as log(loss=2.5), got none"),
    "no phase": (lambda m: m.phase(), "phase: expected a name such as evaluation, got ''; pass one"),
    "a phase that nobody holds": (lambda m: m.phase("io").__enter__(), "phase: io was not left, and counts no further"),
    "no time": (lambda m: m.promise(-5), "promise: expected seconds above 0, got -5: it is left out"),
    "no seconds": (lambda m: m.flush("now"), "flush: expected seconds, got 'now'"),
    "no state": (lambda m: m.load_state_dict(3), "load_state_dict: expected what state_dict has returned, got 3"),
    "no listener": (lambda m: m.on_snapshot("x"), "on_snapshot: expected a function of one argument, got 'x'"),
    "numbers that are not collected": (
        lambda m: m.generate_xy_metrics(),
        "xy_distribution: expected true where these numbers are asked for, got false",
    ),
    "no type of commands": (
        lambda m: m.commands("x"),
        "commands: expected types such as ReduceLearningRate, got ('x',)",
    ),
    "no listener of steps": (lambda m: m.on_run_step(lambda: 0), "on_run_step: expected a function of one argument"),
    "no ended number": (lambda m: m.log_ended(), "log_ended: expected numbers by name, such as log_ended(loss=2.5)"),
    "too few arguments": (lambda m: m.promise(), "promise: no effect: expected promise(seconds), got missing 1"),
    "too many arguments": (lambda m: m.flush(1, 2), "flush: no effect: expected flush(timeout=30.0), got takes from"),
    "a number without its name": (
        lambda m: m.log_ended(2.5),
        "log_ended: no effect: expected log_ended(**values), got",
    ),
}


def test_mistakes_while_training_runs(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    """Each is told once, however often it is made, and none is raised; what the monitor has stays."""
    monitor = parts.new(WG)
    monitor.set_monitor(parts.model, 1, parts.optimizer)
    for mistake, _ in [*MISTAKES.values()] * 2:
        mistake(monitor)
    logged = [record.getMessage() for record in caplog.records]
    assert {name: sum(text in line for line in logged) for name, (_, text) in MISTAKES.items()} == dict.fromkeys(
        MISTAKES, 1
    )
    assert (monitor.step, callable(monitor.log), monitor.ops) == (0, True, ["norm"])
    with pytest.raises(TypeError, match="log: expected a monitor, got the class, and dict in the place of one; write"):
        parts.new.log({}, loss=1.0)
    assert type(monitor.step) is int  # a checkpoint of the program may hold it
    monitor.stop()
    assert "phase: expected that each is left before" not in caplog.text


CALLS: dict[str, Callable[[Any], object]] = {
    "log": lambda m: m.log(loss=1.0),
    "log_ended": lambda m: m.log_ended(loss=1.0),
    "phase": lambda m: m.phase("data").__enter__(),
    "promise": lambda m: m.promise(5),
    "commands": lambda m: m.commands() or None,
    "load_state_dict": lambda m: m.load_state_dict({}),
    "generate_wgrad_metrics": lambda m: None if m.generate_wgrad_metrics() == ({}, {}) else m,
    "generate_xy_metrics": lambda m: None if m.generate_xy_metrics() == ({}, {}) else m,
}


@pytest.mark.parametrize(
    ("state", "lack"),
    [
        ("unset", "expected a model that is watched, got none; call set_monitor first"),
        ("ended", "expected a run in progress, got one that has ended; call it before stop()"),
        ("forked", "expected the process that trains, got one that was forked from it; call it there"),
    ],
)
def test_calls_without_effect(
    parts: Parts, state: str, lack: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told once: before a model is watched, after the end, and in a process that does not train."""
    monitor = parts.new(WG)
    if state != "unset":
        monitor.set_monitor(parts.model, 1, parts.optimizer)
    if state == "ended":
        monitor.stop()
    with monkeypatch.context() as patch:
        if state == "forked":
            patch.setattr("os.getpid", lambda: 0)
            monitor.stop()  # as a program may in a finally block: nothing is lost, and nothing told
            assert monitor.flush()
        for call in [*CALLS.values()] * 2:
            assert call(monitor) is None
    logged = [text for text in caplog.messages if ": no effect: " in text]
    assert logged == [f"{name}: no effect: {lack}" for name in CALLS]
    monitor.stop()


def test_a_phase_that_lasts_to_the_end(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    """Is told at the end of the run, and one within a phase that is left is not."""
    monitor = parts.new(WG)
    monitor.set_monitor(parts.model, 1, parts.optimizer)
    with monitor.phase("checkpoint"):
        pass
    held = monitor.phase("evaluation")
    held.__enter__()
    monitor.stop()
    told = [text for text in caplog.messages if text.startswith("phase: ")]
    assert ["got evaluation, which lasted until now: its time counts" in text for text in told] == [True]


def test_programs_own_attributes_and_replaced_methods_are_theirs(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """A class of the program has its own attributes; a function may take the place of a method."""

    class Own(parts.new):  # type: ignore[misc]  # a class of one framework or another
        def __init__(self) -> None:
            super().__init__(WG)
            self.tag = "first"

    monitor = Own()
    monitor.log = print
    assert (monitor.tag, monitor.log, caplog.messages) == ("first", print, [])
    monitor.set_monitor(parts.model, 1, parts.optimizer)
    monitor.stop()


def test_a_monitor_that_was_never_attached(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """Is told when it is gone; one that was refused has its error."""
    gc.collect()  # monitors of other tests
    caplog.clear()
    framework.TrainerMon(WG)
    gc.collect()
    assert caplog.messages == [NEVER_SET]
    with pytest.raises(TypeError, match="missing"):
        framework.TrainerMon(WG).set_monitor()
    gc.collect()
    assert caplog.messages == [NEVER_SET]


def test_what_was_made_and_never_began(framework: Harness, caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    """A monitor of Monitor V2, a callback of a trainer, and one of MindSpore Transformers."""
    require("torch")
    gc.collect()
    caplog.clear()
    TrainerMonitorV2({"framework": "pytorch", "monitors": {"module": {"enabled": True}}})
    run = TrainerRun(framework.TrainerMon, WG)
    assert NEVER_BEGUN not in " ".join(capsys.readouterr().err.split())
    del run
    TrainerRun(framework.TrainerMon, WG, automatic=True)
    gc.collect()
    assert (caplog.messages, NEVER_BEGUN in " ".join(capsys.readouterr().err.split())) == ([NEVER_STARTED], True)
    with pytest.raises(TypeError, match="expected a file, a mapping or a monitor, got <class 'dict'>; pass one"):
        TrainerRun(framework.TrainerMon, dict)


def test_doubts_about_what_is_watched(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is refused: what is frozen may be trained later, and a launcher may set the rank alone."""
    monkeypatch.setenv("RANK", "1")
    for _, parameter in parts.new.framework.hooks.parameters(parts.model):
        parameter.requires_grad = False
    parts.attach(parts.model, 1, parts.optimizer)
    assert "expected a parameter that requires a gradient, got none in it; set requires_grad" in caplog.text
    assert "has rank 1, and no number of ranks: expected WORLD_SIZE too; start all ranks with a launcher" in caplog.text


@pytest.mark.parametrize(("variables", "told"), [({}, True), ({"MASTER_ADDR": "10.0.0.1"}, False)])
def test_ranks_of_a_launch_without_a_name(variables: dict[str, str], told: bool) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2"} | variables
    sentences = "".join(warnings_for(Settings(wg_distribution=True), 2, environ))
    assert ("rank 0 of 2, and no name of the launch: expected MASTER_ADDR and MASTER_PORT too" in sentences) is told


def test_a_callback_in_its_place(parts: Parts, caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    """No mistake is told of one that is used as it should be; one that a trainer has twice is told."""
    run = TrainerRun(parts.new, WG)
    run.begin([parts.model], [parts.optimizer])
    assert "expected once" not in capsys.readouterr().err
    run.begin([parts.model], [parts.optimizer])
    assert "expected once among the trainer's callbacks, got twice" in " ".join(capsys.readouterr().err.split())
    run.end()
    assert "expected numbers" not in caplog.text


def test_a_callback_with_a_second_configuration(framework: Harness) -> None:
    """The error has the call that is meant."""
    kind = type("Mine", (Watching,), {"monitor_class": framework.TrainerMon})
    with pytest.raises(TypeError, match=r"Mine: too many positional arguments; call Mine\(config=None, \*\*overrides"):
        kind(WG, WG)


def test_what_is_attached_or_entered_again(framework: Harness, parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    """While training runs, and after its end, it is told and nothing is raised; before, it is refused."""
    monitor = parts.new(WG)
    monitor.set_monitor(parts.model, 1, parts.optimizer)
    with pytest.raises(RuntimeError, match="attached already: expected one call"):
        monitor.set_monitor(parts.model, 1, parts.optimizer)
    with monitor:
        for step in range(3):
            train_step(framework.loop(parts.model, parts.optimizer), *inputs(framework))
            monitor.set_monitor(parts.model, 1, parts.optimizer)
            assert monitor.step == step + 1
    assert caplog.text.count("set_monitor: no effect: this monitor is attached already: expected one call") == 1
    assert "with: no effect" not in caplog.text
    with monitor:
        assert "with: no effect: expected a run in progress, got one that has ended; call it before" in caplog.text


def test_a_monitor_in_the_place_of_a_callback(framework: Harness) -> None:
    """The error of its first call names the callbacks; that of any other attribute is Python's."""
    monitor = framework.TrainerMon(WG)
    with pytest.raises(
        AttributeError, match=r"no attribute 'on_init_end'; a Trainer takes one of probe\.pytorch\.callb"
    ):
        monitor.on_init_end(None)
    with pytest.raises(AttributeError, match=r"no attribute 'set_monitors'$") as caught:
        monitor.set_monitors(None)
    assert (caught.value.name, caught.value.obj) == ("set_monitors", monitor)  # Python adds the nearest name


IMPORTS = {
    "probe.torch": "probe has no torch; did you mean pytorch?",
    "probe.core.storage.locatoin": "probe.core.storage has no locatoin; did you mean location?",
    "probe.TrainerMon": "probe has no TrainerMon; import it from probe.pytorch or probe.mindspore",
    "probe.services.ProbeCallback": "import it from probe.mindspore, or that of a trainer from probe",
    "probe.tensorflow": "probe has no tensorflow; TrainerMon is in probe.pytorch and probe.mindspore",
}


@pytest.mark.parametrize("path", IMPORTS)
def test_a_name_that_no_module_has(path: str) -> None:
    """Whether it is imported as a module, or from one."""
    module, _, name = path.rpartition(".")
    for statement in (f"import {path}", f"from {module} import {name}"):
        with pytest.raises(ImportError, match=re.escape(IMPORTS[path])):
            exec(statement)


def test_there_are_many_of_them() -> None:
    """As many as users were seen to make, and more."""
    assert sum(map(len, (CONFIGURATIONS, IMPORTS, FILES, TOOLS, COMMANDS, ATTACHMENTS, VERBS, MISTAKES))) >= 105


def check(wrong: Use, use: Callable[[], object]) -> None:
    """The exception of a wrong use has all that its user needs."""
    with pytest.raises((ValueError, TypeError)) as caught:
        use()
    told(wrong, str(caught.value))


def told(wrong: Use, message: str) -> None:
    """Every part of a message is there."""
    lacking = [part for part in wrong[1:] if part not in message]
    assert lacking == [], message


def test_help_shows_the_documented_signature(framework: Harness) -> None:
    """Of the class and of an instance; and what is shown can be called."""
    shown = "(model: Any, grad_acc_steps: int, optimizer: Any, dp_group: Any = None, tp_group: Any = None, "
    shown += "start_iteration: int = 0) -> None"
    monitor = framework.TrainerMon(WG)
    assert str(inspect.signature(monitor.set_monitor)) == shown
    assert str(inspect.signature(framework.TrainerMon.set_monitor)) == shown.replace("(model", "(self, model", 1)
    text = pydoc.render_doc(framework.TrainerMon.set_monitor, renderer=pydoc.plaintext)
    assert f"set_monitor{shown.replace('(model', '(self, model', 1)}" in text
    bound = inspect.signature(monitor.set_monitor).bind("m", 1, "o", start_iteration=3)
    assert bound.arguments == {"model": "m", "grad_acc_steps": 1, "optimizer": "o", "start_iteration": 3}


@pytest.mark.parametrize("package", ["pytorch", "mindspore"])
def test_the_error_of_a_configuration_comes_with_the_adapter(package: str) -> None:
    """Scripts catch it by the name that they import the monitor from."""
    require({"pytorch": "torch"}.get(package, package))
    adapter = import_module(f"probe.{package}")
    with pytest.raises(adapter.ConfigError, match="unknown key"):
        adapter.TrainerMon({"zzz": 1})
    assert "ConfigError" in adapter.__all__


def test_checking_a_wrong_file_on_the_command_line(tmp_path: Path) -> None:
    """Prints the same as the monitor raises, each line as one of probe's, and nothing else."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"eps": -1}))
    command = probe_command("config", "check", path)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    with pytest.raises(ValueError, match="eps") as caught:
        load(path)
    assert done.stderr == f"{lines('error', str(caught.value))}\n"
