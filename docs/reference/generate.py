"""Makes the pages of the reference that come from the code: ``make reference``."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import typer  # noqa: E402
import typer.models  # noqa: E402
from markup import WIDE, inline, item, joined, markdown  # noqa: E402 - it lies beside this file
from what_is_found import what_is_found  # noqa: E402

from probe.agents import schema as answer_schema  # noqa: E402 - the repository is no package
from probe.agents.schema import ANSWERS, AnswerPart, CommandAnswer  # noqa: E402
from probe.cli import VERBS  # noqa: E402
from probe.cli.config import full_markdown  # noqa: E402
from probe.core.analysis.convert.csv2db import CSV2DBConfig, csv2db  # noqa: E402
from probe.core.analysis.convert.csv2tb import csv2tensorboard_by_step  # noqa: E402
from probe.core.analysis.report.findings import Diagnosis, Mark  # noqa: E402
from probe.core.analysis.report.write import write_report  # noqa: E402
from probe.core.checks import CHECKS  # noqa: E402
from probe.core.checks.check import CheckClass  # noqa: E402
from probe.core.config.dialect import Dialect  # noqa: E402
from probe.core.config.errors import ConfigError  # noqa: E402
from probe.core.config.load import MSPROBE  # noqa: E402
from probe.core.control.command_requests import (  # noqa: E402
    EnableGradientAccumulation,
    ReduceBatchSize,
    ReduceDataloaderWorkers,
    ReduceLearningRate,
    RollbackCheckpoint,
)
from probe.core.errors import TrainingStopped  # noqa: E402
from probe.core.fields import describe  # noqa: E402
from probe.core.internevo.configuration import INTERNEVO  # noqa: E402
from probe.core.monitor.trainer_mon import Monitor  # noqa: E402
from probe.core.monitor_v2.configuration import MONITOR_V2  # noqa: E402
from probe.core.output.sinks.context import SinkContext  # noqa: E402
from probe.core.prechecks import PRECHECKS  # noqa: E402
from probe.core.records import Batch, Coverage, Finding, Key, Snapshot  # noqa: E402
from probe.core.rules.replica import odd_ones  # noqa: E402
from probe.core.transformers.dialect import TRANSFORMERS  # noqa: E402
from probe.core.transformers_monitor import (  # noqa: E402
    LossMonitoring,
    Presentation,
    StateMonitoring,
    TransformersConfig,
    make_callbacks,
    read_configuration,
)


class Public(NamedTuple):
    """An object that programs may use, and where they import it from."""

    path: str
    value: Any
    members: tuple[str, ...] = ()


SECTIONS: dict[str, tuple[Public, ...]] = {
    "The monitor": (
        Public(
            "probe.pytorch.TrainerMon",
            Monitor,
            ("set_monitor", "log", "log_ended", "phase", "promise", "commands", "on_run_step", "on_snapshot",
             "state_dict", "load_state_dict",
             "stop", "flush", "step", "monitoring", "output_directory", "findings", "cost", "faults",
             "ops", "generate_wgrad_metrics", "generate_xy_metrics",
             "set_wrapped_optimizer", "monitor_gnorm_with_ad", "reload_xy"),
        ),
        Public("probe.pytorch.TrainingStopped", TrainingStopped),
        Public("probe.pytorch.ConfigError", ConfigError),
    ),
    "Commands from outside": (
        Public("probe.pytorch.ReduceLearningRate", ReduceLearningRate, ("done", "failed", "refuse")),
        Public("probe.pytorch.ReduceBatchSize", ReduceBatchSize),
        Public("probe.pytorch.ReduceDataloaderWorkers", ReduceDataloaderWorkers),
        Public("probe.pytorch.EnableGradientAccumulation", EnableGradientAccumulation),
        Public("probe.pytorch.RollbackCheckpoint", RollbackCheckpoint),
    ),
    "Callbacks of MindSpore Transformers": (
        Public("probe.core.transformers_monitor.make_callbacks", make_callbacks),
        Public("probe.pytorch.MFLossMonitor", LossMonitoring, ("step_begin", "step_end", "flush", "close", "faults")),
        Public(
            "probe.pytorch.TrainingStateMonitor",
            StateMonitoring,
            ("attach", "step_begin", "step_end", "finish", "flush", "close", "faults"),
        ),
        Public("probe.core.transformers_monitor.Presentation", Presentation),
        Public("probe.core.transformers_monitor.read_configuration", read_configuration),
        Public("probe.core.transformers_monitor.TransformersConfig", TransformersConfig),
    ),
    "After training": (
        Public("probe.core.csv2db.CSV2DBConfig", CSV2DBConfig),
        Public("probe.core.csv2db.csv2db", csv2db),
        Public("probe.pytorch.csv2tb.csv2tensorboard_by_step", csv2tensorboard_by_step),
        Public("probe.core.analysis.report.write.write_report", write_report),
        Public("probe.core.analysis.report.findings.Diagnosis", Diagnosis),
        Public("probe.core.analysis.report.findings.Mark", Mark),
        Public("probe.core.rules.replica.odd_ones", odd_ones),
    ),
    "For rules and writers of other packages": (
        Public("probe.core.records.Batch", Batch, ("op",)),
        Public("probe.core.records.Key", Key),
        Public("probe.core.records.Coverage", Coverage),
        Public("probe.core.records.Finding", Finding),
        Public("probe.core.records.Snapshot", Snapshot),
        Public("probe.core.output.sinks.context.SinkContext", SinkContext),
    ),
}  # fmt: skip
COMMANDS_HEAD = """\
# Commands

`probe COMMAND --help` prints the same. This page is made by `make reference`.

Exit codes are the same everywhere: 0 if it was done; 1 if it was done and the answer is no (something was found, runs
differ, a file is wrong), or not all could be read, sent or written; 2 if nothing was done: wrong use, a missing file
or package. Ctrl-C is 130. The section of a command has the details.
"""
PYTHON_HEAD = """\
# Python

Names that programs may import. `probe.mindspore` has `TrainerMon`, `TrainingStopped`, `ConfigError`, `csv2tb` and the
callbacks of MindSpore Transformers as `probe.pytorch` has them. This page is made by `make reference`.
"""
DIALECTS_HEAD = """\
# Configurations of other monitors

Every key that is read of the configuration of another monitor, with the section that it stands in and its effect here.
A known key that stands elsewhere is an error in a section whose keys are checked, and else a warning; both name its
path and the section where it belongs. Keys without an effect are named in a warning, with what does the same. How to
change over: [coming from another monitor](../guides/coming_from.md). This page is made by `make reference`.
"""
DIALECTS: tuple[Dialect, ...] = (MSPROBE, MONITOR_V2, TRANSFORMERS, INTERNEVO)


def dialects() -> str:
    """The page of the configurations of other monitors."""
    parts = [DIALECTS_HEAD]
    for dialect in DIALECTS:
        parts.append(f"## {dialect.title}\n")
        for key in dict.fromkeys(dialect.keys):
            section = f"`{key.section}`" if key.section else "top of the file"
            effect = inline(" ".join(key.effect.split()))
            words = effect if key.supported else f"*None.* Here, {effect}"
            parts.append(item(f"`{key.name}` ({section}): {words}").rstrip("\n"))
        parts.append("")
    return joined(parts)


CHECKS_HEAD = """\
# Checks

Every update of an optimizer is judged by these checks, sampled or not, while training goes on. They run no forward,
draw no random number and make training wait for no device. Their findings are in `checks.jsonl` in the directory of the
rank; `probe anomalies` and the report list them. A line that begins with `preflight` counts the checks that hold, and
names those that could not see what they judge. This page is made by `make reference`.
"""
CLASSES: dict[CheckClass, tuple[str, str]] = {
    "fact": ("Facts", "What holds in every meaningful training loop."),
    "change": ("Changes", "What held for some steps of this run, and holds no longer."),
    "unusual": ("Unusual", "What legitimate programs do, too: a note, which is no alarm."),
}


def checks() -> str:
    """The page of the checks of the training loop."""
    parts = [CHECKS_HEAD]
    for kind, (title, meaning) in CLASSES.items():
        parts.append(f"## {title}\n\n{meaning}\n")
        for name, check in CHECKS.items():
            if check.kind == kind:
                facts = [
                    f"Grade: {getattr(check, 'grade', 'warning')}.",
                    f"Sees {check.sees}.",
                    f"Remedy: {check.remedy}",
                    f"Reported in <{check.source}>.",
                ]
                about = markdown(inspect.getdoc(check) or "")
                parts += [f"### {name}\n\n{check.title}.\n", about, "".join(map(item, facts))]
    return joined([*parts, *prechecks()])


PRECHECKS_HEAD = """\
## Prechecks

`probe check` judges the first few updates of a copy of the program by these and by the checks above: see [before
training](../guides/check.md).
"""


def prechecks() -> Iterator[str]:
    """The section of the checks before training."""
    yield PRECHECKS_HEAD
    for name, check in PRECHECKS.items():
        facts = [
            f"Grade: {check.grade}.",
            f"Sees {check.sees}.",
            f"Remedy: {check.remedy}",
            f"Reported in <{check.source}>.",
        ]
        yield f"### {name} (before training)\n\n{check.title}.\n"
        yield markdown(inspect.getdoc(check) or "")
        yield "".join(map(item, facts))


ANSWERS_HEAD = """\
# Answers in JSON

Every command that answers takes `--json` and prints one object on standard output, with the exit code that it has
without; warnings stay on standard error. Wrong use prints no object: exit code 2, and the problem on standard error.
`probe run`, `view`, `serve`, `exporter` and `mcp` have no answer: after `probe run`, ask `probe anomalies --json`.

```console
$ probe anomalies monitor_output --json
{
 "schema_version": 1,
 "command": "anomalies",
 "run": "Dec03_21-34-40-rank0-1f0c9a3e",
 ...
```

Every answer begins with `schema_version`, 1, which is increased when a reader of the older one would be wrong, and
`command`. Fields may be added without, so ignore those that you do not know. NaN and the infinities, which JSON lacks,
are the texts `nan`, `inf` and `-inf` (in `performance`, null). The models are in the package:

```python
from probe.agents.schema import ANSWERS, json_schema

answer = ANSWERS["anomalies"].model_validate_json('{"schema_version": 1, ...}')  # of pydantic
schema = json_schema()  # all of it as JSON Schema
```

Answers of [`probe mcp`](../guides/agents.md) have the same `schema_version`, with `tool` in place of `command`. This
page is made by `make reference`.
"""


def answers() -> str:
    """The page of the answers in JSON: commands, then the objects in them."""
    spelled: dict[type[AnswerPart], list[str]] = {}
    for command, model in ANSWERS.items():
        spelled.setdefault(model, []).append(command)
    parts = [ANSWERS_HEAD]
    for model, names in spelled.items():
        parts += [f"## probe {', '.join(names)}\n", *_object_of_answer(model)]
    parts.append("## Objects in answers\n")
    for model in vars(answer_schema).values():
        if isinstance(model, type) and issubclass(model, AnswerPart) and not issubclass(model, CommandAnswer):
            parts += [f"### {model.__name__}\n", *_object_of_answer(model)] if model is not AnswerPart else []
    return joined(parts)


def _object_of_answer(model: type[AnswerPart]) -> Iterator[str]:
    """The docstring and the fields of an object, those of its bases first."""
    yield f"{inspect.getdoc(model)}\n"
    bases = [base for base in reversed(model.__mro__) if issubclass(base, AnswerPart) and base is not CommandAnswer]
    fields = [field for base in bases for field in _fields(base) if field[0] != "model_config"]
    named = ((name.rstrip("_"), kind.partition(" = ")[0], text) for name, kind, text in fields)
    yield "".join(item(f"`{name}` (`{kind}`){': ' * bool(text)}{text}") for name, kind, text in named)


def commands() -> str:
    """The page of the command line."""
    parts = [COMMANDS_HEAD]
    for verb, place in VERBS.items():
        module, _, attribute = place.partition(":")
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            parts += [f"## probe {verb}\n"]
            for command in found.registered_commands:
                function: Any = command.callback
                parts += _command(f"probe {verb} {command.name or function.__name__.strip('_')}", function, "###")
        else:
            parts += _command(f"probe {verb}", found, "##")
    return joined(parts)


def _command(name: str, function: Callable[..., object], heading: str) -> Iterator[str]:
    """The section of one command: its use, its docstring, its arguments and options."""
    hints = get_type_hints(function, include_extras=True)
    params = [Param(p, *get_args(hints[p.name])[:2]) for p in inspect.signature(function).parameters.values()]
    arguments = [param for param in params if isinstance(param.info, typer.models.ArgumentInfo)]
    options = [param for param in params if param not in arguments and not param.info.hidden]
    words = [param.names if param.required else f"[{param.names}]" for param in arguments]
    yield f"{heading} {name}\n\n`{' '.join([name, *['[OPTIONS]'] * bool(options), *words])}`\n"
    yield markdown(inspect.getdoc(function) or "")
    yield "".join(item(param.about()) for param in [*arguments, *options])


class Param(NamedTuple):
    """An argument or option of a command."""

    parameter: inspect.Parameter
    type: Any
    info: Any

    @property
    def required(self) -> bool:
        return self.parameter.default is inspect.Parameter.empty and self.info.default_factory is None

    @property
    def names(self) -> str:
        """The spellings, as they are typed."""
        name = self.parameter.name
        if isinstance(self.info, typer.models.ArgumentInfo):
            repeated = get_origin(self.type) is list and not self.info.metavar
            return (self.info.metavar or name).upper() + "..." * repeated
        long = "--" + name.replace("_", "-")
        no = [f"--no-{long[2:]}"] if self.type is bool and self.parameter.default else []
        first = self.info.default  # where Typer puts the first spelling of an annotation
        spelled = [*([first] if isinstance(first, str) else []), *(self.info.param_decls or [])]
        return "`, `".join(spelled or [long, *no])

    def about(self) -> str:
        """Spelling, type, default and meaning."""
        facts, default = [self._kind()] if self.type is not bool else [], self.parameter.default
        if self.required:
            facts.append("required")
        elif default not in (inspect.Parameter.empty, None, "", [], ()) and self.type is not bool:
            facts.append(f"default `{default.value if isinstance(default, Enum) else default}`")
        return f"`{self.names}`" + (f" ({', '.join(facts)})" if facts else "") + f": {self.info.help}"

    def _kind(self) -> str:
        (bare,) = {each for each in get_args(self.type) or (self.type,) if each is not type(None)}
        bare = get_args(bare)[0] if get_origin(bare) is list else bare
        if bare is not Any and issubclass(bare, Enum):
            return ", ".join(choice.value for choice in bare).replace(", ", " or ")
        kind = {Path: "path", Any: "path or URL", str: "text", int: "whole number", float: "number"}[bare]
        return kind + (f" from {self.info.min} on" if self.info.min is not None else "")


def python() -> str:
    """The page of the Python interface."""
    parts = [PYTHON_HEAD]
    for title, objects in SECTIONS.items():
        parts.append(f"## {title}\n")
        for public in objects:
            parts += _object(public)
    return joined(parts)


def _object(public: Public) -> Iterator[str]:
    """The section of a class or function."""
    module, _, name = public.path.rpartition(".")
    yield f"### {name}\n\n```python\nfrom {module} import {name}\n```\n"
    yield f"```text\n{_signature(name, public.value)}\n```\n"
    yield markdown(inspect.getdoc(public.value) or "") + "\n"
    if isinstance(public.value, type):
        found = [f"`{field}` (`{kind}`){': ' * bool(text)}{text}" for field, kind, text in _fields(public.value)]
        yield "".join(map(item, found)) + "\n"
    for member in public.members:
        value = inspect.getattr_static(public.value, member)
        documented = value.fget if isinstance(value, property) else value
        kind = f"{member}: {_type(inspect.signature(documented).return_annotation)}"
        shown = kind if isinstance(value, property) else _signature(member, documented)
        yield f"#### {name}.{member}\n\n```text\n{shown}\n```\n"
        yield markdown(inspect.getdoc(documented) or "") + "\n"


def _signature(name: str, value: Any) -> str:
    """A call with its parameters, one a line if they are many."""
    signature = inspect.signature(value)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    shown = [_parameter(p) for p in parameters]
    named = [place for place, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY]
    if named and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        shown.insert(named[0], "*")
    returned = signature.return_annotation
    nothing = isinstance(value, type) or returned in (inspect.Signature.empty, None, "None")
    tail = "" if nothing else f" -> {_type(returned)}"
    line = f"{name}({', '.join(shown)}){tail}"
    if len(line) <= WIDE:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in shown), f"){tail}"])


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {_type(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        plain = isinstance(parameter.default, (str, int, float, tuple, type(None)))
        text += f" = {parameter.default!r}" if plain else " = ..."
    return text


def _type(annotation: Any) -> str:
    annotation = getattr(annotation, "__forward_arg__", annotation)
    if get_origin(annotation) is Annotated:
        return describe(annotation).type
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(_type, get_args(annotation)))
    if annotation is NoneType:
        return "None"
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _fields(of: type) -> Iterator[tuple[str, str, str]]:
    """Name, type and docstring of each field in the source of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    assert isinstance(definition, ast.ClassDef)
    followed = [*definition.body[1:], None]
    for node, after in zip(definition.body, followed, strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            below = after.value if isinstance(after, ast.Expr) else None
            text = below.value if isinstance(below, ast.Constant) and isinstance(below.value, str) else ""
            yield node.target.id, _plain(of, node), inline(" ".join(text.split()))


def _plain(of: type, node: ast.AnnAssign) -> str:
    """The annotation of a field as its source has it; of an annotated one the values that it takes."""
    source = ast.unparse(node.annotation)
    assert isinstance(node.target, ast.Name)
    if "Annotated[" not in source:
        return source
    hint = get_type_hints(of, include_extras=True)[node.target.id]
    bare = next((each for each in get_args(hint) if get_origin(each) is Annotated), hint)
    return f"{_type(hint)}, {describe(bare).range}".rstrip(", ")


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": full_markdown,
    "commands.md": commands,
    "python.md": python,
    "checks.md": checks,
    "dialects.md": dialects,
    "answers.md": answers,
    "../guides/what_is_found.md": what_is_found,
}
"""The text of each page, by its file beside this one."""


def main() -> None:
    """Writes every page."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
