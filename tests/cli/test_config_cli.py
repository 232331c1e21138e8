"""`probe config`: checking a file and explaining keys; the documents that are printed by it."""

from __future__ import annotations

import json
import logging
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from probe.cli.config import app, entries
from probe.core.config.errors import ConfigError
from probe.core.config.load import load
from probe.core.config.schema import Settings
from tests.quick_python import probe_command

ROOT = Path(__file__).parents[2]


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_check_says_what_is_collected(tmp_path: Path) -> None:
    """A correct file exits with 0 and a summary."""
    path = tmp_path / "a.yaml"
    path.write_text(
        "wg_distribution: true\nmonitor_mbs_grad: true\nformat: [csv, api]\nstep_interval: 10\nstack_info: true"
    )
    result = run("check", path)
    assert result.exit_code == 0
    for said in (
        "weight gradients of each micro batch",
        "every 10",
        "norm, shape, dtype",
        "csv (",
        "api",
        "call stacks",
    ):
        assert said in result.stdout
    assert "optimizer" not in result.stdout


def test_check_knows_all_xy(tmp_path: Path) -> None:
    """The summary has inputs and outputs of every module, not of the targets alone."""
    path = tmp_path / "a.json"
    path.write_text('{"xy_distribution": true, "all_xy": true, "targets": {"fc": {}}}')
    assert "  of            fc; inputs and outputs of every module (all_xy)\n" in run("check", path).stdout
    path.write_text('{"xy_distribution": true, "all_xy": true}')
    assert "  of            every module and parameter\n" in run("check", path).stdout


def test_check_names_keys_without_effect(tmp_path: Path) -> None:
    """The command logs it as the monitor does when it attaches; the file is correct all the same."""
    path = tmp_path / "a.json"
    path.write_text(
        '{"wg_distribution": true, "all_xy": true, "format": "tensorboard", "ndigits": 3, "output_dir": "$A"}'
    )
    done = subprocess.run(probe_command("config", "check", path), capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"probe: warning: {path}: output_dir: variables are not replaced: $A is the name of a folder; write its path",
        f"probe: warning: {path}: all_xy has no effect without xy_distribution",
        f"probe: warning: {path}: ndigits has no effect without the format csv",
    ]


def test_check_of_nothing_collected(tmp_path: Path) -> None:
    """A file that switches nothing on is correct, and the summary has no signal."""
    path = tmp_path / "a.json"
    path.write_text("{}")
    assert "nothing: switch on" in run("check", path).stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"cc_distribution": {"enable": true}}', "collective communication"),
        ('{"cc_distribution": {"enable": true, "cc_log_only": true}, "wg_distribution": true}', "logged once"),
        ('{"ur_distribution": true}', "updates and ratios"),
        ('{"mg_direction": true}', "agreement of gradients and momentum"),
        ('{"recording_l2_features": true, "l2_targets": {"linear_hook": []}}', "features (linear_hook)"),
        ('{"recording_l2_features": true, "l2_targets": {"attention_hook": ["a"]}}', "features (attention_hook)"),
        ('{"print_struct": true, "wg_distribution": true}', "the structure of the model"),
    ],
)
def test_check_says_of_every_signal_that_it_is_collected(tmp_path: Path, text: str, said: str) -> None:
    """A single one that is switched on is not nothing; what stops training is all there is."""
    path = tmp_path / "a.json"
    path.write_text(text)
    (collects,) = (line for line in run("check", path).stdout.splitlines() if line.startswith("  collects"))
    assert said in collects
    assert "nothing" not in collects
    assert "weight gradients" not in collects


@pytest.mark.parametrize(
    "text",
    [
        '{"stack_info": true, "format": "api"}',
        '{"recording_l2_features": true, "l2_targets": {"attention_hook": []}}',
        '{"l2_targets": {"linear_hook": []}}',
    ],
)
def test_check_of_what_has_no_effect(tmp_path: Path, text: str) -> None:
    """A setting without effect collects nothing."""
    path = tmp_path / "a.json"
    path.write_text(text)
    assert "nothing: switch on" in run("check", path).stdout


def test_check_says_when_little_is_written(tmp_path: Path) -> None:
    """Held back around findings, within a budget, and of many targets the first."""
    path = tmp_path / "a.json"
    targets = {f"layers.{number}": {} for number in range(1000)}
    path.write_text(json.dumps({"history": 7, "max_overhead": 0.01, "wg_distribution": True, "targets": targets}))
    told = run("check", path).stdout
    for said in ("only around findings, 7 steps", "within 0.01 of the time", "layers.0, ", "and 980 more"):
        assert said in told
    assert max(map(len, told.splitlines())) < 400


def test_check_tells_every_problem(tmp_path: Path) -> None:
    """A wrong file exits with 1 and every problem on standard error."""
    path = tmp_path / "a.json"
    path.write_text('{"wg_distribtion": true, "eps": "x"}')
    result = run("check", path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "did you mean wg_distribution?" in result.stderr
    assert 'eps: expected a number >= 0, got "x"' in result.stderr


def test_explain_without_a_key_explains_all() -> None:
    """Every key, on every level, is explained."""
    result = run("explain")
    assert result.exit_code == 0
    for key in (*Settings.model_fields, "alert.rules.args.min_ratio", "targets.output_grad", "l2_targets.linear_hook"):
        assert f"\n{key}" in f"\n{result.stdout}"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("eps", ["eps: number (>= 0), default 1e-08", "zeros"]),
        ("queue_size", ["integer (1..1000), default 8"]),
        ("cc_distribution.enable", ["boolean, default false"]),
        (
            "alert.rules.args.threshold",
            ["of AnomalyTurbulence: number (>= 0), required", "of AnomalySpike: number (> 0)"],
        ),
        ("alert.rules[2].args.warm_up", ["of AnomalySpike: integer (2..10000), default 10"]),
        ('targets["layers.0"].input', ["element selector"]),
        ("cc_codeline", ["cc_distribution.cc_codeline: list of strings"]),
        ("warm_up", ["warm_up of AnomalySpike: integer", "warm_up of AnomalyVanish: integer"]),
        ("rules[0].args.both_sides", ["alert.rules.args.both_sides of AnomalyTurbulence: boolean"]),
        ("cc_distribution", ["cc_distribution.cc_codeline: list of strings"]),
    ],
)
def test_explain_a_key(key: str, said: list[str]) -> None:
    """A key is explained with type, range, default and meaning, also as errors print its path."""
    result = run("explain", key)
    assert result.exit_code == 0
    for words in said:
        assert words in result.stdout


def test_explain_takes_whole_components() -> None:
    """A key that begins another does not explain that one."""
    assert "format" not in run("explain", "step_interval").stdout
    assert run("explain", "cc").exit_code == 2


@pytest.mark.parametrize(
    ("key", "nearest"), [("epss", "eps"), ("alert.rules.args.treshold", "alert.rules.args.threshold")]
)
def test_explain_an_unknown_key(key: str, nearest: str) -> None:
    """An unknown key exits with 2 and names the nearest one."""
    result = run("explain", key)
    assert result.exit_code == 2
    assert f"did you mean {nearest}?" in result.stderr


def test_every_entry_is_complete() -> None:
    """No entry lacks its type, default or meaning, and each meaning ends."""
    for entry in entries():
        assert all((entry.key, entry.type, entry.default)), entry
        assert entry.short.endswith("."), entry
        assert entry.meaning.endswith("."), entry


def test_reference_is_what_explain_prints() -> None:
    """docs/reference/configuration.md is the output of `probe config explain --markdown`."""
    assert (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8") == run(
        "explain", "--markdown"
    ).stdout


def test_the_short_table_has_the_first_sentence_of_each_key() -> None:
    """`probe config explain --markdown --short`: a row a key."""
    rows = run("explain", "--markdown", "--short").stdout.splitlines()[2:]
    assert [row.split(" | ")[-1].rstrip(" |") for row in rows] == [entry.short for entry in entries()]


def test_the_readme_is_short() -> None:
    """The front door: what is longer has a page."""
    assert len((ROOT / "README.md").read_bytes()) <= 8_000


def test_check_warns_of_millions_of_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Ranks x signals x steps / step_count_per_record, with the value that is enough."""
    path = tmp_path / "a.yaml"
    path.write_text("wg_distribution: true\nformat: csv\n")  # two signals
    assert run("check", path, "--ranks", 10000, "--steps", 2000).exit_code == 0
    assert "10,000 ranks and 2,000 steps make about 40,000,000 files" in caplog.text
    assert "set step_count_per_record to 100 or more" in caplog.text
    caplog.clear()
    path.write_text("wg_distribution: true\nformat: csv\nstep_count_per_record: 100\n")
    assert run("check", path, "--ranks", 10000, "--steps", 2000).exit_code == 0
    assert run("check", path).exit_code == 0
    assert caplog.text == ""


TRANSFORMERS = "monitor_config: {monitor_on: true, local_norm_format: log}\ncallbacks: [{type: MFLossMonitor}]\n"
PYTHON = "DO_ALERT = False\nmonitor = dict(alert=dict(enable_feishu_alert=DO_ALERT, feishu_alert_address=None))\n"
V2 = '{"framework": "pytorch", "rank": [0], "monitors": {"weight_grad": {"enabled": true, "ops": ["min"]}}}'


@pytest.mark.parametrize(
    ("name", "text", "title", "line"),
    [
        ("a.yaml", TRANSFORMERS, "MindSpore Transformers", "local_norm (log)"),
        (
            "a.yaml",
            "run_mode: train\nrunner_config: {epochs: 2}\n",
            "MindSpore Transformers",
            "nothing: set monitor_on",
        ),
        ("a.yaml", "monitor_on: true\n", "MindSpore Transformers", "nothing: set monitor_on"),
        ("a.json", V2, "msprobe's Monitor V2", "weight gradients"),
        ("a.py", PYTHON, "InternEvo's monitor", "alerts        none"),
        ("a.txt", PYTHON, "InternEvo's monitor", "alerts        none"),
        (
            "a.yaml",
            "monitor: {alert: {light_monitor_address: 'http://a:1'}}",
            "InternEvo's monitor",
            "to light_monitor",
        ),
    ],
)
def test_check_recognises_configurations_of_other_monitors(
    tmp_path: Path, name: str, text: str, title: str, line: str
) -> None:
    """Each is read by its own reader, and summed up in its own keys."""
    (path := tmp_path / name).write_text(text)
    result = run("check", path)
    assert result.exit_code == 0
    assert f"{path}: correct, a configuration of {title}\n" in result.stdout
    assert line in result.stdout


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "a.yaml",
            "monitor_config: {monitor_onn: true}",
            "monitor_config.monitor_onn: unknown key; did you mean monitor_on?",
        ),
        ("a.json", '{"monitors": {"optimiser": {}}}', "monitors.optimiser: unknown key; did you mean optimizer?"),
        (
            "a.json",
            '{"rank": "0", "monitors": {}}',
            'rank: expected a rank or a list of ranks, each an integer >= 0, got "0"',
        ),
        ("a.py", "model = dict(type='x')\n", "expected an assignment such as monitor = dict(alert=dict("),
        ("a.py", "monitor = dict(\n", "not valid Python"),
        ("a.py", "monitor = dict(**base)\n", "monitor: expected a mapping, got dict(**base), which is not run"),
        (
            "a.yaml",
            "callbacks: {type: MFLossMonitor}",
            'such as [{type: MFLossMonitor}], got {"type": "MFLossMonitor"}',
        ),
        (
            "a.json",
            '{"task": "statistics", "level": "L1", "rank": []}',
            "this is one of msprobe's PrecisionDebugger; it",
        ),
        (
            "a.json",
            '{"train_batch_size": 8, "tensorboard": {"enabled": true}}',
            "this is one of DeepSpeed; write the keys",
        ),
        (
            "a.py",
            "import os\nmonitor = dict(alert=dict(\n    feishu_alert_address=os.environ['A']))\n",
            "and has a host, got os.environ['A'], which is not run; write the value",
        ),
    ],
)
def test_mistakes_are_named_in_the_words_of_the_monitor(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """With file, line and key, and exit code 1: the file was read, and is wrong."""
    (path := tmp_path / name).write_text(text)
    done = subprocess.run(probe_command("config", "check", path), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert problem in done.stderr


@pytest.mark.parametrize("name", ["nowhere.json", "."])
def test_a_file_that_cannot_be_read_is_wrong_use(tmp_path: Path, name: str) -> None:
    """Exit code 2, as of every verb that gets a missing file."""
    assert run("check", tmp_path / name).exit_code == 2


def test_a_section_without_its_switch_is_not_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning names the file, the line and the key that is missing."""
    (path := tmp_path / "a.yaml").write_text("seed: 1\nmonitor_config: {local_norm_format: log}")
    with caplog.at_level(logging.WARNING, "probe"):
        assert run("check", path).exit_code == 0
    assert f"{path}:2: monitor_config has no effect without its key monitor_on: set it to True" in caplog.text


def test_alerts_of_kj600_do_not_stop_training(caplog: pytest.LogCaptureFixture) -> None:
    """Its recipients are left out with a warning that shows none of their secrets."""
    inform = {"recipient": "database", "connection_str": "mysql+pymysql://username:secret@host:1/database"}
    with caplog.at_level(logging.WARNING, "probe"):
        settings = load({"targets": {}, "wg_distribution": True, "alert": {"rules": [], "inform": inform}})
    assert settings.wg_distribution
    assert "alert.inform is not supported; here, alert.channels sends alerts" in caplog.text
    assert "secret" not in caplog.text


def test_the_monitor_refuses_a_configuration_of_another(tmp_path: Path) -> None:
    """The error names the reader that takes it."""
    with pytest.raises(ConfigError, match="this is one of msprobe's Monitor V2; pass it to TrainerMonitorV2"):
        load(json.loads(V2))
