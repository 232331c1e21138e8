"""``probe demo``: train a small GPT, break one of its layers, and name it."""

from __future__ import annotations

import os
import secrets
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from probe.cli import refuse, refusing
from probe.cli.json_answer import AsJson, print_answer
from probe.core.errors import install, missing
from probe.core.language import message
from probe.core.messages import complain
from probe.core.storage.run_directory import output_root

FEWEST_STEPS = 24


class FaultKind(str, Enum):
    """Kinds of faults; see :mod:`probe.demo.faults`."""

    nan = "nan"
    overflow = "overflow"
    gradient = "gradient"
    none = "none"


class FrameworkChoice(str, Enum):
    """Frameworks of the demonstration."""

    pytorch = "pytorch"
    mindspore = "mindspore"


PACKAGES = {FrameworkChoice.pytorch: ("PyTorch", "torch"), FrameworkChoice.mindspore: ("MindSpore", "mindspore")}
"""Title and package of each framework."""


def demo(
    seed: Annotated[int | None, typer.Option(min=0, help="Chooses the weights, the text and the fault.")] = None,
    fault: Annotated[FaultKind | None, typer.Option(help="Fault; else one of the first three by chance.")] = None,
    framework: Annotated[FrameworkChoice, typer.Option(help="Framework to train with.")] = FrameworkChoice.pytorch,
    steps: Annotated[int, typer.Option(min=FEWEST_STEPS, help="Number of steps.")] = 70,
    output: Annotated[Path | None, typer.Option(help="Where to write; else MONITOR_OUTPUT_DIR.")] = None,
    as_machine: AsJson = False,
) -> None:
    """Train a small GPT on Python's standard library, break one layer on the way, and name it.

    Exit code 0 if the named place and step are the broken ones (or if nothing was broken and nothing found), 1 if not,
    2 if the demonstration cannot run.
    """
    title, package = PACKAGES[framework]
    if find_spec(package) is None:
        advice = message(
            "pip install {package}, or in the clone of probe {command}",
            package=package,
            command=install(framework.value),
        )
        refuse("{title} is not installed: {advice}", title=title, advice=advice)
    from rich.console import Console

    from probe.demo import report, training
    from probe.demo.diagnosis import name_first_bad
    from probe.demo.report import matches

    console = Console(stderr=as_machine)
    seed = secrets.randbelow(10_000) if seed is None else seed
    root = output or output_root(os.environ)
    with refusing(OSError):
        root.mkdir(parents=True, exist_ok=True)
    plan = training.DemoPlan(framework.value, seed, fault and fault.value, steps, root, _formats())
    report.begin(console, plan)
    with report.progress(console, steps) as observe, refusing(OSError):
        outcome = training.run(plan, observe)
    diagnosis = name_first_bad(outcome.findings)
    matched = matches(outcome.injection, diagnosis)
    if as_machine:
        first = None if diagnosis is None else {"layer": diagnosis.module, **diagnosis.first._asdict()}
        fields = {"matched": matched, "seed": seed, "directory": outcome.directory, "injected": outcome.injection}
        print_answer("demo", {**fields, "found": first})
    else:
        report.show(console, plan, outcome, diagnosis, matched)
    raise typer.Exit(0 if matched else 1)


def _formats() -> list[str]:
    """Formats that can be written; warn if that is not all of them."""
    if find_spec("tensorboardX") is not None:
        return ["csv", "tensorboard"]
    complain("only CSV is written: {missing}", "warning", missing=missing("TensorBoard", "tensorboardX", "tensorboard"))
    return ["csv"]
