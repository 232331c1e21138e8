"""Cases of rules in promtool, each with those rules alone that it needs: with all of a file they take five times as
long, since promtool judges every rule at every moment of every case."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.required import require_program

WORDS = {
    *("and", "or", "unless", "on", "by", "without", "group_left", "group_right", "bool", "offset", "Inf"),
    *("abs", "absent", "avg", "avg_over_time", "changes", "count", "count_over_time", "exp", "histogram_quantile"),
    *("increase", "label_replace", "last_over_time", "max", "max_over_time", "min", "min_over_time", "predict_linear"),
    *("quantile", "quantile_over_time", "rate", "round", "sqrt", "sum", "time", "vector"),
}
"""Words of PromQL in the rules."""
Content = Mapping[str, Any]


def contents(path: Path) -> Any:
    """Content of a file of YAML, by the parser in C, which takes a tenth of the time."""
    return yaml.load(path.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def names_in(expression: str) -> set[str]:
    """Names of metrics in an expression of PromQL."""
    for left_out in (r'"(?:[^"\\]|\\.)*"', r"\{[^}]*\}", r"\[[^\]]*\]", r"\b(?:by|on|without|group_\w+)\s*\([^)]*\)"):
        expression = re.sub(left_out, " ", expression)
    expression = re.sub(r"\boffset\s+\w+|\b[\d.]+(?:e\d+)?\w*", " ", expression)
    return set(re.findall(r"[a-zA-Z_:][\w:]*", expression)) - WORDS


def name_of(rule: Content) -> str:
    """Name of an alert or of a record."""
    return str(rule.get("alert") or rule["record"])


def promtool(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    command = [require_program("promtool"), *map(str, arguments)]
    environment = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def judged(
    folder: Path, rules: Mapping[str, Content], cases: Mapping[str, Content]
) -> subprocess.CompletedProcess[str]:
    """Run cases in one promtool.

    Args:
        folder: an empty one.
        rules: contents of files of rules by name.
        cases: contents of files of cases by name.
    """
    files = []
    for name, content in cases.items():
        groups = [group for path in content["rule_files"] for group in rules[Path(path).name]["groups"]]
        for number, (wanted, tests) in enumerate(_by_rules(content["tests"], groups).items()):
            files.append(folder / f"{number}_{name}")
            kept = [_only(group, wanted) for group in groups if not wanted.isdisjoint(map(name_of, group["rules"]))]
            files[-1].with_suffix(".rules").write_text(json.dumps({"groups": kept}))
            order = [each for each in content.get("group_eval_order", ()) if each in {group["name"] for group in kept}]
            own = {"rule_files": [files[-1].with_suffix(".rules").name], "tests": tests, "group_eval_order": order}
            files[-1].write_text(json.dumps({**content, **own}))  # JSON is YAML, and fast
    return promtool("test", "rules", *files, GOGC="off", GOMEMLIMIT="512MiB", TMPDIR=str(folder))


def _by_rules(tests: Iterable[Content], groups: Sequence[Content]) -> dict[frozenset[str], list[Content]]:
    """Cases by the names of the rules that they need."""
    found = defaultdict(list)
    for test in tests:
        wanted = {check["alertname"] for check in test.get("alert_rule_test", ())}
        for check in test.get("promql_expr_test", ()):
            wanted |= names_in(check["expr"])
        found[_needed(wanted, groups)].append(test)
    return found


def _needed(names: Iterable[str], groups: Sequence[Content]) -> frozenset[str]:
    """Names of rules, and of those whose records they use in their expressions or texts."""
    by_name = defaultdict(list)
    for rule in (rule for group in groups for rule in group["rules"]):
        by_name[name_of(rule)].append(rule)
    left, found = [*names], set[str]()
    while left:
        name = left.pop()
        if name not in found and name in by_name:
            found.add(name)
            for rule in by_name[name]:
                left += re.findall(r"[\w:]+", " ".join([rule["expr"], *rule.get("annotations", {}).values()]))
    return frozenset(found)


def _only(group: Content, names: frozenset[str]) -> dict[str, Any]:
    return {**group, "rules": [rule for rule in group["rules"] if name_of(rule) in names]}
