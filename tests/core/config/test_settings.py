"""Configuration: values that are accepted, values that are refused, and the messages."""

from __future__ import annotations

import importlib
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from probe.core.config.errors import ConfigError
from probe.core.config.load import dynamic, load
from probe.core.config.schema import RULE_ARGS, Selector, Settings
from probe.core.moments import OPS
from probe.core.output.sinks import SINKS, factory

CONFIGS = sorted((Path(__file__).parents[3] / "resources" / "configs").glob("*.json"))

DOCUMENTED = r"""
{  // every key, as the documentation of the existing tool prints them
    "targets": {
        "language_model.encoder.layers.0": {"input": "tuple[2]:0", "output": "tensor", "input_grad":"tuple[2]:0", "output_grad":"tuple[1]:0"}
    },
    "dynamic_on": false,
    "start_step": 0,
    "collect_times": 100000000,
    "step_interval": 1,
    "print_struct": false,
    "module_ranks": [0,1,2,3],
    "ur_distribution": true,
    "xy_distribution": true,
    "all_xy": true,
    "forward_only": false,
    "backward_only": false,
    "mv_distribution": true,
    "param_distribution": true,
    "wg_distribution": true,
    "monitor_mbs_grad": true,
    "cc_distribution": {"enable":true, "cc_codeline":["train.py\\[23\\]"], "cc_pre_hook": false, "cc_log_only": false},
    "alert": {
        "rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}],  // half
        "dump": false
    },
    "format": "csv",
    "ops": ["min", "max", "norm", "zeros", "nans", "mean"],
    "eps": 1e-8,
    "ndigits": 12,
    "step_count_per_record": 1,
    "append_output": [],
    "squash_name": true,
    "mg_direction": false,
    "stack_info": false,
    "recording_l2_features": true,
    "l2_targets": {"attention_hook": ["0:0.self_attention"], "linear_hook": [], "moe_router_weight_hook": [], "moe_router_logit_hook": []},
    "sa_order": "b, s, h, d",
}
"""  # noqa: E501


def refused(source: Any) -> tuple[str, ...]:
    """The problems of a configuration."""
    with pytest.raises(ConfigError) as caught:
        load(source)
    return caught.value.problems


def rules(*given: object) -> dict[str, Any]:
    """A configuration with these alert rules."""
    return {"alert": {"rules": list(given)}}


def spike(**args: object) -> dict[str, Any]:
    """A configuration of AnomalySpike."""
    return rules({"rule_name": "AnomalySpike", "args": args})


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# What is accepted


def test_documented_example_loads_with_its_comments(tmp_path: Path) -> None:
    """Every documented key is read from JSON with comments, with its documented meaning."""
    settings = load(written(tmp_path / "monitor_config.json", DOCUMENTED))
    place = settings.targets["language_model.encoder.layers.0"]
    assert place.input == Selector("tuple", 2, 0)
    assert place.output == Selector("tensor", 1, 0)
    assert place.output_grad == Selector("tuple", 1, 0)
    assert settings.module_ranks == (0, 1, 2, 3)
    assert settings.cc_distribution.cc_codeline == (r"train.py\[23\]",)
    assert settings.alert.rules[0].args.threshold == 0.5
    assert settings.statistics == ("min", "max", "norm", "zeros", "nans", "mean")
    assert settings.ndigits == 12
    assert settings.sa_order == "b,s,h,d"
    assert settings.l2_targets.linear_hook == ()


def test_defaults_are_the_documented_ones() -> None:
    """An empty configuration has the documented defaults."""
    settings = load({})
    given = settings.model_dump(mode="json")
    switches = {name for name, field in Settings.model_fields.items() if field.annotation is bool}
    assert [name for name in switches if given[name]] == ["squash_name"]
    assert (settings.start_step, settings.collect_times, settings.step_interval) == (0, 100_000_000, 1)
    assert (settings.formats, settings.statistics, settings.eps, settings.ndigits) == (("csv",), ("norm",), 1e-8, None)
    assert (settings.step_count_per_record, settings.append_output, settings.module_ranks) == (1, (), ())
    assert (settings.queue_size, settings.when_queue_full, settings.monitor_mbs_grad) == (8, "wait", False)
    assert (settings.targets, settings.alert.dump) == ({}, False)
    rules = [rule.rule_name.removeprefix("Anomaly") for rule in settings.alert.rules]
    assert rules == ["Nan", "Spike", "Vanish", "Dead", "Frozen", "Extreme", "Entropy", "Router"]
    assert (settings.sa_order, settings.cc_distribution.cc_codeline) == ("s,b,h,d", ())


FORMATS = "csv, tensorboard, sqlite, parquet, csv_v2, prometheus, otlp, wandb, mlflow, swanlab, trackio, api"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_examples_are_equal_in_json_and_yaml(path: Path) -> None:
    """Each example configuration loads, is without doubt, and says the same in JSON and in YAML."""
    settings = load(path)
    assert settings == load(path.with_suffix(".yaml"))
    assert settings != Settings()


def test_every_example_has_a_twin() -> None:
    """There are examples, and no YAML file without its JSON file."""
    assert len(CONFIGS) >= 15
    assert {path.stem for path in CONFIGS} == {path.stem for path in CONFIGS[0].parent.glob("*.yaml")}


def test_settings_survive_json() -> None:
    """What a manifest keeps of the settings loads to equal settings."""
    targets = {"a": {"input": "dict[2]"}, "b": {}}
    rules = [{"rule_name": "AnomalySpike"}, {"rule_name": "AnomalyNan", "args": {"threshold": 1}}]
    settings = load({"format": "api", "targets": targets, "alert": {"rules": rules}, "monitor_mbs_grad": "accumulated"})
    assert load(json.loads(json.dumps(settings.model_dump(mode="json")))) == settings


def test_nested_read_only_mappings_are_taken() -> None:
    """Any mapping will do, not only dict."""
    rules = [MappingProxyType({"rule_name": "AnomalyNan", "args": MappingProxyType({"threshold": 2})})]
    settings = load(MappingProxyType({"alert": MappingProxyType({"rules": rules})}))
    assert settings.alert.rules[0].args.threshold == 2.0


@pytest.mark.parametrize(
    ("given", "formats"),
    [("tensorboard", ("tensorboard",)), (["api", "csv", "api"], ("api", "csv"))],
)
def test_format_is_a_name_or_a_list(given: object, formats: tuple[str, ...]) -> None:
    """Formats come singly or as a list, each once."""
    assert load({"format": given}).formats == formats


def test_every_op_is_accepted_once_and_in_order() -> None:
    """The ops to compute are those given, without repetition; shape and dtype are not computed."""
    assert load({"ops": ["shape", "std", "norm", "std", "dtype"]}).statistics == ("std", "norm")
    assert load({"ops": list(OPS)}).statistics == tuple(OPS)


def test_whole_floats_are_integers() -> None:
    """Writers of JSON print whole numbers as 1e8, and eps as an integer."""
    settings = load({"collect_times": 1e8, "module_ranks": [0.0, 3.0], "eps": 1})
    assert settings.collect_times == 100_000_000
    assert isinstance(settings.collect_times, int)
    assert (settings.module_ranks, settings.eps) == ((0, 3), 1.0)


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("tensor", Selector("tensor", 1, 0)),
        ("tuple[2]:1", Selector("tuple", 2, 1)),
        ("tuple[2]", Selector("tuple", 2, 0)),
        ("list[3]:1", Selector("list", 3, 1)),
        ("dict[2]:0", Selector("dict", 2, 0)),
    ],
)
def test_selectors(text: str, selector: Selector) -> None:
    """An element selector names kind, length and index; without an index it is element 0."""
    assert Selector.parse(text) == selector
    assert Selector.parse(str(selector)) == selector


def test_places_of_a_target() -> None:
    """An empty target watches all four places, any other only those listed."""
    targets = load({"targets": {"a": {}, "b": {"output": "tensor"}}}).targets
    assert targets["a"].places == dict.fromkeys(("input", "output", "input_grad", "output_grad"))
    assert targets["b"].places == {"output": Selector("tensor", 1, 0)}


def test_arguments_of_rules_have_defaults() -> None:
    """A rule without arguments gets its defaults; an empty list of rules means none."""
    nan, spike = load(rules({"rule_name": "AnomalyNan"}, {"rule_name": "AnomalySpike"})).alert.rules
    assert nan.args.threshold is None
    spiked = (spike.args.window, spike.args.warm_up, spike.args.threshold, spike.args.min_ratio, spike.args.cool_down)
    assert spiked == (32, 10, 5.0, 30.0, 10)
    assert spike.args.ops == ("norm", "min", "max")
    assert load(rules()).alert.rules == ()
    assert len(load({"alert": {"dump": True}}).alert.rules) == 8


def test_installed_rules_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of another installed package is known by its entry point and gets its arguments as they are."""
    package = tmp_path / "thirdparty-1.0.dist-info"
    package.mkdir()
    written(package / "METADATA", "Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    written(package / "entry_points.txt", "[probe.rules]\nAnomalyOfMine = thirdparty:Rule\n")
    config = rules({"rule_name": "AnomalyOfMine", "args": {"depth": "deep"}})
    assert "did you mean" in refused(config)[0]
    monkeypatch.syspath_prepend(tmp_path)
    args = load(config).alert.rules[0].args
    assert args == {"depth": "deep"}
    assert type(args) is dict
    config["alert"]["rules"][0]["rule_name"] = "AnomalyOfMin"
    assert refused(config)[0].endswith("did you mean AnomalyOfMine?")


def test_installed_formats_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer of another installed package is known by its entry point; one that is built in is preferred."""
    package = tmp_path / "writers-1.0.dist-info"
    package.mkdir()
    written(package / "METADATA", "Metadata-Version: 2.1\nName: writers\nVersion: 1.0\n")
    written(package / "entry_points.txt", "[probe.sinks]\nlines = writers:Lines\ncsv = writers:Lines\n")
    written(tmp_path / "writers.py", "class Lines: pass\n")
    assert "expected one of csv, tensorboard" in refused({"format": "lines"})[0]
    monkeypatch.syspath_prepend(tmp_path)
    assert load({"format": ["csv", "lines"]}).formats == ("csv", "lines")
    assert refused({"format": "linse"})[0].endswith("did you mean lines?")
    assert factory("lines") is importlib.import_module("writers").Lines
    assert factory("csv") is SINKS["csv"]
    assert factory("api") is None


def test_settings_never_change() -> None:
    """Settings are frozen."""
    with pytest.raises(ValueError, match="frozen"):
        load({}).eps = 1.0  # type: ignore[misc]


# What is refused


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"wg_distribtion": True}, "wg_distribtion: unknown key; did you mean wg_distribution?"),
        ({"EPS": 1}, "EPS: unknown key; did you mean eps?"),
        ({"xy_distribution": 1}, "xy_distribution: expected true or false, got 1"),
        ({"forward_only": "true"}, 'forward_only: expected true or false, got "true"; write true without quotes'),
        ({"all_xy": None}, "all_xy: expected true or false, got null"),
        ({"start_step": -1}, "start_step: expected an integer >= 0, got -1"),
        ({"start_step": True}, "start_step: expected an integer >= 0, got true"),
        ({"start_step": "3"}, 'start_step: expected an integer >= 0, got "3"; write 3 without quotes'),
        ({"step_interval": 0}, "step_interval: expected an integer >= 1, got 0"),
        ({"step_interval": 1.5}, "step_interval: expected an integer >= 1, got 1.5"),
        ({"step_count_per_record": 1_000_001}, "step_count_per_record: expected an integer 1..1000000, got 1000001"),
        ({"queue_size": 0}, "queue_size: expected an integer 1..1000, got 0"),
        ({"when_queue_full": "dorp"}, 'when_queue_full: expected one of wait, drop, got "dorp"; did you mean drop?'),
        ({"ndigits": 21}, "ndigits: expected an integer 0..20, got 21"),
        ({"eps": "1e-8"}, 'eps: expected a number >= 0, got "1e-8"; write 1e-08 without quotes'),
        ({"eps": float("nan")}, "eps: expected a number >= 0, got NaN"),
        ({"eps": True}, "eps: expected a number >= 0, got true"),
        ({"module_ranks": [0, "1"]}, 'module_ranks[1]: expected an integer >= 0, got "1"; write 1 without quotes'),
        (
            {"module_ranks": "0"},
            'module_ranks: expected a list of integers >= 0, got "0"; write numbers in brackets, such as [0, 1]',
        ),
        (
            {"format": "cvs"},
            f'format: expected one of {FORMATS}, got "cvs"; did you mean csv?',
        ),
        (
            {"format": ["csv", 3]},
            f"format[1]: expected one of {FORMATS}, got 3",
        ),
        (
            {"format": []},
            f"format: expected one or a list of {FORMATS}, got []",
        ),
        ({"monitor_mbs_grad": "sum"}, 'monitor_mbs_grad: expected true, false or "accumulated", got "sum"'),
        ({"monitor_mbs_grad": 1}, 'monitor_mbs_grad: expected true, false or "accumulated", got 1'),
        ({"sa_order": "hbsd"}, 'sa_order: expected one of "s,b,h,d", "b,s,h,d", "b,h,s,d", got "hbsd"'),
        *(
            (
                {"append_output": ["Dec03_21-34-40", wrong]},
                f'append_output[1]: expected a timestamp such as Dec03_21-34-40, got "{wrong}"',
            )
            for wrong in ("Dez03_21-34-40", "Dec32_21-34-40", "Dec03_24-00-00", "Dec03_21-60-40", "Dec03_21:34:40")
        ),
        ({"append_output": ["now"]}, 'append_output[0]: expected a timestamp such as Dec03_21-34-40, got "now"'),
        ({"cc_distribution": {"enabled": True}}, "cc_distribution.enabled: unknown key; did you mean enable?"),
        ({"on_anomaly": {"arms": {}, "arm": {}}}, "on_anomaly.arms: unknown key; did you mean arm?"),
        (
            {"l2_targets": {"linear_hook": "fc"}},
            'l2_targets.linear_hook: expected a list of strings, got "fc"; write ["fc"]',
        ),
        ({"targets": ["fc"]}, 'targets: expected a mapping, got ["fc"]; write a key before each value'),
        (
            {"targets": {"fc": "tensor"}},
            'targets.fc: expected a mapping, got "tensor"; write keys such as input, output, input_grad in it',
        ),
        ({"targets": {"fc": {"inputs": "tensor"}}}, "targets.fc.inputs: unknown key; did you mean input?"),
        ({"targets": {12: {}}}, "targets[12]: expected a string as key, got 12; put it in quotes"),
        ({12: 1}, "12: expected a string as key, got 12; put it in quotes"),
        (
            {"alert": {"rules": {"a": 1}}},
            'alert.rules: expected a list of mappings, got {"a": 1}; write it in brackets: [...]',
        ),
        (rules({"rule_name": "AnomalyNan", "args": [1]}), "alert.rules[0].args: expected a mapping, got [1]"),
        (
            rules({"rule_name": "AnomalyTurbulence"}),
            "alert.rules[0].args.threshold: missing; expected a number >= 0",
        ),
        (
            rules({"args": {}}),
            f"alert.rules[0].rule_name: missing; expected one of {', '.join(RULE_ARGS)}",
        ),
    ],
)
def test_problem(config: dict[Any, Any], problem: str) -> None:
    """A problem is one line: the path, what was expected, what came, the nearest name."""
    assert refused(config) == (problem,)


@pytest.mark.parametrize("text", ["", "tuple", "tuple[0]:0", "tuple[2]:2", "set[2]:0", "tensor:0", "tuple[2]:-1"])
def test_selector_that_is_none(text: str) -> None:
    """What is no element selector is refused, at its path, whatever is wrong with it."""
    (problem,) = refused({"targets": {"layers.0": {"output_grad": text}}})
    assert problem.startswith('targets["layers.0"].output_grad: expected an element selector')
    assert problem.endswith(json.dumps(text))


def test_unknown_rule_names_the_nearest() -> None:
    """A misspelt rule is told with the one that was meant."""
    (problem,) = refused(rules({"rule_name": "AnomalyTurbulance", "args": {"threshold": 1}}))
    assert problem.startswith("alert.rules[0].rule_name: expected one of AnomalyTurbulence, AnomalyNan, AnomalySpike")
    assert problem.endswith("did you mean AnomalyTurbulence?")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window", 3), ("window", 10_001), ("warm_up", 1), ("warm_up", 33), ("threshold", 0), ("min_ratio", 1),
        ("cool_down", -1), ("ops", []), ("ops", "norm"),
    ],
)  # fmt: skip
def test_ranges_of_spike(name: str, value: object) -> None:
    """Each argument of AnomalySpike has its range; the warm-up fits into the window."""
    (problem,) = refused(spike(**{name: value}))
    assert problem.startswith(f"alert.rules[0].args.{name}: expected a")
    assert f"got {json.dumps(value)}" in problem


def test_window_smaller_than_default_warm_up() -> None:
    """A window below the default warm-up asks for a warm-up; with one it is fine."""
    assert refused(spike(window=6))[0].startswith("alert.rules[0].args.warm_up: expected an integer 2..6")
    assert load(spike(window=6, warm_up=6)).alert.rules[0].args.window == 6


def test_all_problems_come_at_once() -> None:
    """Whatever is wrong, wherever, is told in one error, one line each, and it says what to do."""
    config = {
        "strat_step": 1,
        "eps": -1,
        "targets": {"fc": {"input": "x"}},
        "ops": ["norm", "men", 4],
        "alert": {"dump": 1, "rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": "high", "x": 1}}]},
    }
    with pytest.raises(ConfigError) as caught:
        load(config)
    problems = caught.value.problems
    paths = {problem.split(": ")[0] for problem in problems}
    rule = "alert.rules[0].args"
    assert paths == {
        "strat_step",
        "eps",
        "targets.fc.input",
        "ops[1]",
        "ops[2]",
        "alert.dump",
        f"{rule}.threshold",
        f"{rule}.x",
    }
    assert 'alert.rules[0].args.threshold: expected a number >= 0, got "high"' in problems
    lines = str(caught.value).splitlines()
    assert lines[1:-1] == list(problems)
    assert lines[0] == "the given mapping: 8 problems in the configuration"
    assert "probe config explain" in lines[-1]
    assert pickle.loads(pickle.dumps(caught.value)).problems == problems


# Files


def test_comments_trailing_commas_and_byte_order_mark(tmp_path: Path) -> None:
    """Comments and commas after a last element are no part of JSON's values; inside strings they are."""
    text = '\ufeff/* head\n */{"targets": {"http://x /*y*/, ]": {},}, // "eps": 1\n "ops": ["norm", "max",],\n}\n//end'
    settings = load(written(tmp_path / "a.json", text))
    assert list(settings.targets) == ["http://x /*y*/, ]"]
    assert settings.statistics == ("norm", "max")


@pytest.mark.parametrize(
    "text", ["[,]", '{"ops": [,]}', '{"ops": ["norm",,]}', '{"ops":,}', '{"ops": ["norm"] "eps": 1}']
)
def test_commas_without_a_value_are_refused(tmp_path: Path, text: str) -> None:
    """Only the comma after a last element is forgiven."""
    path = written(tmp_path / "a.json", text)
    assert refused(path)[0].startswith(f"{path}:1:")


@pytest.mark.parametrize(
    ("ending", "text", "line", "column"),
    [
        ("json", '{\n  // one\n  "eps": 1e-8\n  "ndigits": 3\n}', 4, 3),
        ("json", '{"eps": /* two\nlines */ oops}', 2, 10),
        ("json", '{"eps": "open\n}', 1, 14),
        ("conf", "eps: 1\n", 1, 1),
        ("yaml", "eps: 1\nops: [norm\nndigits: 3\n", 3, 8),
        ("yml", "targets: {}\n  eps: 1\n", 2, 3),
    ],
)
def test_syntax_errors_have_a_place(tmp_path: Path, ending: str, text: str, line: int, column: int) -> None:
    """A syntax error is led by file, line and column, comments or not."""
    path = written(tmp_path / f"a.{ending}", text)
    (problem,) = refused(path)
    assert problem.startswith(f"{path}:{line}:{column}: not valid ")


@pytest.fixture
def usual_recursion() -> Iterator[None]:
    """Python's own limit, which some frameworks raise: a deep text would take long to refuse."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.parametrize("ending", ["json", "yaml"])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"[1]", "expected a mapping of keys at the top level, got a list"),
        (b'"eps"', "got a str"),
        (b"null", "got nothing"),
        (b'{"eps": "\xff"}', ":1:10: not UTF-8 (byte 0xff)"),
        (b"[" * 20_000, "nested too deeply"),
        (b'{"eps": 1, "alert": {"dump": true, "dump": false}, "eps": 1}', "alert.dump: given more than once"),
    ],
)
@pytest.mark.usefixtures("usual_recursion")
def test_files_that_are_no_configuration(tmp_path: Path, ending: str, text: bytes, says: str) -> None:
    """A file that holds no usable mapping is refused with its reason."""
    path = written(tmp_path / f"a.{ending}", text)
    problems = refused(path)
    assert any(says in problem for problem in problems)
    assert "nested" in says or len(problems) == (2 if "alert" in says else 1)


def test_yaml_tells_repeated_keys_among_other_problems(tmp_path: Path) -> None:
    """Repeated keys and wrong values are told together; a merged key may be given again."""
    rule = "{rule_name: AnomalyNan, args: {<<: *base, threshold: -2}}"
    text = f"base: &base {{threshold: 1}}\neps: x\neps: y\nalert: {{rules: [{rule}]}}\n"
    path = written(tmp_path / "a.yaml", text)
    problems = refused(path)
    assert f"{path}:3: eps: given more than once, expected once; keep one" in problems
    assert [problem.removeprefix(f"{path}:").split(": ")[:2] for problem in problems] == [
        ["3", "eps"],
        ["4", "alert.rules[0].args.threshold"],
        ["3", "eps"],
        ["1", "base"],
    ]


@pytest.mark.parametrize("number", ["1e-8", "1.0e-8", "1E-8", "+1e-8", "0.00000001", ".1e-7"])
def test_yaml_numbers(tmp_path: Path, number: str) -> None:
    """YAML takes every spelling of a number, also those that YAML 1.1 takes for strings."""
    assert load(written(tmp_path / "a.yaml", f"eps: {number}\nqueue_size: 1e2\n")).eps == pytest.approx(1e-8)


def test_yaml_that_holds_itself(tmp_path: Path) -> None:
    """An alias inside its own anchor is a wrong value like any other."""
    path = written(tmp_path / "a.yaml", "eps: &a [*a]\n")
    (problem,) = refused(path)
    assert problem.startswith(f"{path}:1: eps: expected a number >= 0, got ")


def test_yaml_makes_no_objects(tmp_path: Path) -> None:
    """A YAML tag that asks for a Python object is a syntax error."""
    path = written(tmp_path / "a.yaml", "eps: !!python/object/apply:os.getpid []\n")
    assert (
        ":1:6: not valid YAML: expected plain values, got the tag !!python/object/apply:os.getpid;" in refused(path)[0]
    )
    path = written(tmp_path / "b.yaml", "targets: {}\n  ops: [norm]\n")
    assert ":2:3: not valid YAML: expected as many spaces before this line" in refused(path)[0]


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks, Chinese characters and ~ in a path work, as str and as Path."""
    folder = tmp_path / "监控 配置"
    folder.mkdir()
    path = written(folder / "设 置.json", '{"ndigits": 7}')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert load(path) == load(str(path)) == load("~/监控 配置/设 置.json")
    assert load(path).ndigits == 7


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("missing.json", "missing.json: cannot be read"),
        (".", "is a directory"),
        ("", "is a directory"),
        ("a\0b", "cannot be read"),
        ("x" * 5000, "cannot be read"),
        (None, "expected the path of a file or a mapping, got NoneType"),
        ([], "got list"),
    ],
)
def test_sources_that_cannot_be_read(source: Any, says: str) -> None:
    """A file that cannot be read is a ConfigError with the reason."""
    assert says in refused(source)[0]


# Warnings, and what is not built


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"forward_only": True, "backward_only": True}, "forward_only and backward_only"),
        ({"ops": []}, "norm"),
        ({"ops": ["shape"]}, "norm"),
        ({"cc_distribution": {"cc_log_only": True}}, "cc_distribution.enable"),
        ({"alert": {"rules": [{"rule_name": "AnomalyCommNan"}]}}, "cc_distribution.enable"),
        ({"alert": {"rules": [{"rule_name": "AnomalyDead"}]}, "xy_distribution": True}, "needs the op zeros"),
        ({"alert": {"rules": [{"rule_name": "AnomalyDead"}]}, "ops": ["zeros"]}, "needs xy_distribution"),
        ({"alert": {"rules": [{"rule_name": "AnomalyVanish"}]}}, "needs wg_distribution or xy_distribution"),
        ({"alert": {"rules": [{"rule_name": "AnomalyFrozen"}]}}, "needs param_distribution and wg_distribution, and"),
        ({"alert": {"rules": [{"rule_name": "AnomalyReplica"}]}, "param_distribution": True}, "needs global_stats"),
        ({"alert": {"rules": [{"rule_name": "AnomalyVanish"}]}, "wg_distribution": True}, None),
        ({"alert": {"dump": True}}, None),
        ({"cc_distribution": {"enable": True, "cc_log_only": True}}, None),
        ({"forward_only": True, "ops": ["max"]}, None),
        ({"recording_l2_features": True}, "l2_targets names no module"),
        ({"recording_l2_features": True, "l2_targets": {"attention_hook": []}}, "l2_targets names no module"),
        ({"recording_l2_features": True, "l2_targets": {"linear_hook": []}}, None),
        ({"recording_l2_features": True, "l2_targets": {"attention_hook": ["a"]}}, None),
        ({"l2_targets": {"linear_hook": []}}, "without recording_l2_features"),
        ({"ops": ["norm"], "format": ["sqlite", "csv"]}, None),
    ],
)
def test_warnings(config: dict[str, Any], says: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """Only documented lenience is logged, once."""
    with caplog.at_level(logging.WARNING, "probe.settings"):
        settings = load(config)
    assert [says in message for message in caplog.messages] == ([True] if says else [])
    assert settings.statistics == tuple(op for op in config.get("ops", []) if op in OPS) or settings.statistics == (
        "norm",
    )


@pytest.mark.parametrize(
    ("value", "follows"),
    [(None, False), ("", False), ("False", False), ("false", False), ("True", True), ("TRUE", True), (" true ", True)],
)
def test_dynamic_mode_is_asked_for_by_true(value: str | None, follows: bool, caplog: pytest.LogCaptureFixture) -> None:
    """In any case of letters."""
    assert dynamic({} if value is None else {"DYNAMIC_MONITOR": value}) is follows
    assert caplog.messages == []


@pytest.mark.parametrize("value", ["1", "yes", "on", "Ture"])
def test_what_is_neither_true_nor_false_is_told(value: str, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong value of the variable is logged, since dynamic mode is then off."""
    assert dynamic({"DYNAMIC_MONITOR": value}) is False
    assert caplog.messages == [
        f"DYNAMIC_MONITOR: expected True or False, got {value!r}: the configuration is not followed"
    ]


@pytest.mark.parametrize(
    ("formats", "warned"),
    [(["sqlite"], True), (["api", "sqlite"], True), (["sqlite", "csv"], False), (["parquet"], False)],
)
def test_histograms_that_no_format_takes(formats: list[str], warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Are warned of: a database has numbers alone."""
    load({"ops": ["norm", "histogram"], "format": formats})
    assert [("the op histogram" in message) for message in caplog.messages] == [True] * warned


def test_importing_probe_loads_no_pydantic() -> None:
    """`import probe` stays cheap."""
    code = "import sys, probe; sys.exit(any(name in sys.modules for name in ('pydantic', 'yaml')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
