"""Output of the demonstration: a live line while it trains, tables at the end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from urllib.parse import urlencode

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from probe.core.errors import missing
from probe.core.messages import has_blocks, printable, shown_path, terminal_width
from probe.core.naming import signal_of
from probe.core.output.pipeline import FINDINGS_KEPT
from probe.core.rules.evaluate import explain
from probe.core.storage.layout import CSV, names_of
from probe.core.storage.location import located
from probe.demo.diagnosis import FirstBad
from probe.demo.faults import Injection
from probe.demo.training import DemoOutcome, DemoPlan, DemoProgress

EVERY = 10
"""Steps from one plain line to the next without a terminal."""


def begin(console: Console, plan: DemoPlan) -> None:
    """Print what will be run, with the seed that repeats it."""
    broken = {None: "one layer breaks on the way", "none": "nothing breaks"}.get(plan.fault, f"fault: {plan.fault}")
    console.print(
        f"A small GPT trains on Python's standard library for {plan.steps} steps; {broken}; --seed {plan.seed}",
        highlight=False,
        soft_wrap=True,
    )


@contextmanager
def progress(console: Console, steps: int) -> Iterator[Callable[[DemoProgress], None]]:
    """Yield a function to call after each step: it updates one line of a terminal, or prints every tenth line."""
    if console.is_terminal:
        with Live(Text("starting"), console=console, refresh_per_second=4) as live:
            yield lambda now: live.update(Text(_line(now, steps)))
    else:

        def write(now: DemoProgress) -> None:
            if now.step % EVERY == 0 or now.step == steps - 1:
                console.print(_line(now, steps), highlight=False, soft_wrap=True)

        yield write


def _line(now: DemoProgress, steps: int) -> str:
    return (
        f"step {now.step + 1:>3}/{steps}   loss {now.loss:6.3f}   monitor {now.cost:5.1%} of the time   "
        f"findings {_count(now.findings)}"
    )


def _count(findings: int) -> str:
    return f"{findings}+" if findings >= FINDINGS_KEPT else str(findings)


def show(console: Console, plan: DemoPlan, outcome: DemoOutcome, diagnosis: FirstBad | None, matched: bool) -> None:
    """Print what was broken and what was named, the findings, where to look at them, and the card."""
    console.print(_comparison(outcome.injection, diagnosis))
    colour = "green" if matched else "red"
    console.print(f"[bold {colour}]{'match' if matched else 'no match'}[/]: {_verdict(outcome.injection, matched)}\n")
    for line in (*_found(diagnosis), *_places(plan, outcome, diagnosis), *_costs(outcome), *_card(outcome)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _verdict(injection: Injection | None, matched: bool) -> str:
    if injection is None:
        return "nothing was broken and nothing was found" if matched else "nothing was broken, yet something was found"
    if matched:
        return "the layer and step that were named are those that were broken"
    return "the layer and step that were broken are not those that were named"


def _comparison(injection: Injection | None, diagnosis: FirstBad | None) -> Table:
    table = Table("", "found by the monitor", "injected", title="First bad layer", title_justify="left")
    first = diagnosis.first if diagnosis else None
    table.add_row("layer", diagnosis.module if diagnosis else "none", injection.place if injection else "none")
    table.add_row("step", str(first.step) if first else "", str(injection.step) if injection else "")
    table.add_row("tensor", diagnosis.row if diagnosis else "", "")
    signal = f"{first.signal}: {signal_of(first.signal).meaning}" if first else ""
    table.add_row("signal", signal, f"{injection.kind}: {injection.detail}" if injection else "")
    table.add_row("op", first.op if first else "", "")
    expected = f" (usually {first.expected:.3g})" if first and not isnan(first.expected) else ""
    table.add_row("value", f"{first.value:.6g}{expected}" if first else "", "")
    table.add_row("rule", first.rule if first else "", "")
    return table


def _found(diagnosis: FirstBad | None) -> Iterator[str]:
    if diagnosis is None:
        return
    yield diagnosis.sentence
    if diagnosis.later:
        yield "Then, in causal order:"
    yield from (f"  {explain(finding)}" for finding in diagnosis.later)
    rules = ", ".join(f"{rule} {number}" for rule, number in diagnosis.by_rule.items())
    total = sum(diagnosis.by_rule.values())
    yield f"Findings: {_count(total)}{' (the first are kept)' if total >= FINDINGS_KEPT else ''}; by rule: {rules}\n"


def _places(plan: DemoPlan, outcome: DemoOutcome, diagnosis: FirstBad | None) -> Iterator[str]:
    """Lines, not a table: commands to copy must not be folded."""
    directory = outcome.directory
    beside = Path(sys.executable).with_name("probe")  # of this interpreter
    probe = shlex.quote(str(beside)) if beside.exists() else "probe"
    cell, output = "", shown_path(str(plan.output))
    if diagnosis is not None:
        first = diagnosis.first
        place = {"signal": first.signal, "op": first.op, "row": diagnosis.row, "step": first.step}
        cell = f"#{urlencode(place)}"
    yield "Where to look next:"
    if diagnosis is not None:
        files = f"{shlex.quote(str(directory))}/{names_of(diagnosis.first.signal)}.{CSV}"
        yield f"  these numbers  grep -h ',{diagnosis.row},' {files}"
    yield f"  the page       {probe} view {shlex.quote(output + cell)}"
    yield f"  first cause    {probe} anomalies {shlex.quote(output)}"
    yield f"  one HTML file  {probe} report {shlex.quote(output)} -o report.html"
    if "tensorboard" in plan.formats:
        yield f"  TensorBoard    tensorboard --logdir {shlex.quote(str(directory))}"
    yield f"  all files      {shown_path(str(directory))}"


def _card(outcome: DemoOutcome) -> Iterator[str]:
    """Yield the card of the run's files, as ``probe run`` and ``probe anomalies`` print it."""
    if find_spec("duckdb") is None:
        yield missing("The verdict", "duckdb", "analysis")
        return
    from probe.core.analysis.diagnosis.analyse import analyse
    from probe.core.analysis.diagnosis.run_verdict import card_about, verdict_about

    analysis = analyse(located(outcome.directory))
    files, width = printable(shown_path(str(outcome.directory))), terminal_width(sys.stdout)
    yield from ("", *card_about(verdict_about(analysis), analysis, files, has_blocks(sys.stdout), width))


def _costs(outcome: DemoOutcome) -> Iterator[str]:
    cost, steps = outcome.cost, max(outcome.cost.get("steps", 0.0), 1.0)
    waited = cost.get("hooks", 0.0) + cost.get("drain", 0.0)
    yield (
        f"\nTraining took {outcome.seconds:.1f} s; it waited {waited:.1f} s of that for the monitor "
        f"({waited / outcome.seconds:.1%}, {1000 * waited / steps:.0f} ms a step), which judged and wrote for "
        f"{cost.get('delivery', 0.0):.1f} s in a thread of its own."
    )
    if outcome.faults:
        yield f"The monitor itself failed in places: {', '.join(f'{f} ({n})' for f, n in outcome.faults.items())}."


def matches(injection: Injection | None, diagnosis: FirstBad | None) -> bool:
    """Return whether the diagnosis names the broken module or parameter and the step, or nothing if none was broken."""
    if injection is None or diagnosis is None:
        return injection is None and diagnosis is None
    return diagnosis.first.step == injection.step and injection.place in (diagnosis.module, diagnosis.row)
