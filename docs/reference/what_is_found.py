"""Page of the guides about what is found: its generated parts, from the cases, the benchmarks and the classes."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from markup import inline, item

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "what_is_found.md"
FAULTS = ROOT / "benchmarks" / "faults"
sys.path[:0] = [str(ROOT), str(FAULTS)]

import case as cases  # noqa: E402 - as the benchmark imports it

from probe.core.checks import CHECKS  # noqa: E402
from probe.core.prechecks import PRECHECKS  # noqa: E402
from probe.core.rules import RULES  # noqa: E402
from probe.core.run_state.rules import RUN_RULES  # noqa: E402

BLOCK = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)
"""Generated part of a page: what stands between two comments."""
EVIDENCE = {
    "sentinel": "The loss and the norms of the gradients at every step",
    "loop": "Facts of the loop: identities, modes, order of calls",
    "ranks": "Numbers of other ranks",
    "rows": "Recorded rows: activations, parameters, optimizer state",
    "before": "A check before training",
    "twin": "A reference run",
}
GROUPS: dict[str, tuple[Mapping[str, Any], str]] = {
    "Checks of the loop": (
        CHECKS,
        '`"sentinel": {"enable": false}`, or a configuration without it, for all checks together.',
    ),
    "Rules about rows": (RULES, 'name the other rules in `alert.rules`; `"rules": []` for none.'),
    "Rules about numbers of the run": (RUN_RULES, 'name the other rules in `run.rules`; `"rules": []` for none.'),
    "Checks before training": (PRECHECKS, "they run in `probe check` alone, and end no program."),
}
"""Classes by the title of their section, and how they are switched off."""


def what_is_found() -> str:
    """Return the page, with its generated parts made anew."""
    parts: dict[str, Callable[[], Iterator[str]]] = {"rates": rates, "faults": faults, "judges": judges}

    def made(match: re.Match[str]) -> str:
        return match[1] + "\n" + "\n".join(parts[match[2]]()).strip("\n") + "\n\n" + match[3]

    return BLOCK.sub(made, PAGE.read_text(encoding="utf-8"))


def rates() -> Iterator[str]:
    """Yield the table of rates by label, as the page of the benchmarks has it."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").partition("\n## Finding power\n")[2]
    tables = re.findall(r"^\|.*(?:\n\|.*)*", text, re.MULTILINE)
    yield next(table for table in tables if table.startswith("| label |") and " found " in table.splitlines()[0])


def faults() -> Iterator[str]:
    """Yield the cases of each label."""
    rows: dict[str, list[str]] = {label: [] for label in cases.LABELS}
    for path in sorted(FAULTS.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        case = _case_of(tree)
        if case is not None:
            about = inline(" ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split()))
            kinds = ", ".join(f"`{kind}`" for kind in case.kinds)
            reports = " ".join(f"[{number}]({link})" for number, link in enumerate(case.sources, 1))
            rows[case.label].append(item(f"`{path.stem}`: {about} Found as {kinds}. Reports: {reports}"))
    for label, lines in rows.items():
        yield f"### {label}\n\n{EVIDENCE[label]}.\n\n{''.join(lines)}"


def _case_of(tree: ast.Module) -> cases.Case | None:
    """Return the case of a script, which is not imported: it may need a framework."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASE":
            case: cases.Case = eval(compile(ast.Expression(node.value), "case", "eval"), dict(vars(cases)))
            return case
    return None


def judges() -> Iterator[str]:
    """Yield five lines for each check and rule."""
    for title, (classes, switch) in GROUPS.items():
        yield f"### {title}\n"
        for name, judge in classes.items():
            about = " ".join((inspect.getdoc(judge) or "").partition("\n\n")[0].split())
            lines = [f"What: {inline(about)}", f"Why: {judge.why}", f"Source: <{judge.source}>"]
            lines += [f"Sees: {judge.sees}.", f"Switch off: {switch}"]
            yield f"#### {name}\n\n{''.join(map(item, lines))}"
