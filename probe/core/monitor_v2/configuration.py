"""Configuration of msprobe's Monitor V2: sections of ``monitors``, read as settings of ``TrainerMon``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Annotated, Any

import annotated_types as ranges
from pydantic import BeforeValidator, Field, PlainValidator

from probe.core.config.dialect import Dialect, keys_of
from probe.core.config.errors import ConfigError, nearest
from probe.core.config.foreign import refuse_trainer_mon
from probe.core.config.schema import EVERY_OP, CcDistribution, Formats
from probe.core.config.source import ConfigSource
from probe.core.fields import Flag, Form, Integer, Names, Number, Rank, Section, Text, wrong
from probe.core.language import message

FRAMEWORKS = {"pytorch": "pytorch", "pt": "pytorch", "torch": "pytorch", "mindspore": "mindspore", "ms": "mindspore"}
"""Names of the frameworks, with the packages here that watch them."""
MONITORS = "monitors"
OPS = ("min", "max", "mean", "norm", "nans")
"""Ops of a section that names none."""
LAYOUT_FORMAT = "csv_v2"
"""Format that writes files in the layout of Monitor V2."""
_OPS_FORM = Form("list of names", "", f"a list of names out of {', '.join(EVERY_OP)}")
_RANK_FORM = Form("rank or list of ranks", ">= 0", "a rank or a list of ranks, each an integer >= 0")
_TARGETS_FORM = Form("list of texts", "", 'a list of parts of names, such as ["layers.0", "mlp"]')
_log = logging.getLogger("probe.settings")


class MonitorV2ConfigError(ConfigError):
    """Error of a configuration of Monitor V2 that cannot be used."""

    advice = message("Correct these and start again; docs/guides/coming_from.md describes the keys.")


def _ops(value: object) -> tuple[str, ...]:
    """Return the known names; one that is unknown is left out with a warning, as there."""
    named = [value] if isinstance(value, str) else value
    if not isinstance(named, list | tuple) or not all(isinstance(name, str) for name in named):
        raise wrong(_OPS_FORM.expected)
    for name in named:
        if name not in EVERY_OP:
            hint = f"; did you mean {close}?" if (close := nearest(name, EVERY_OP)) else ""
            _log.warning("ops: expected some of %s, got %.80r, left out%s", ", ".join(EVERY_OP), name, hint)
    return tuple(name for name in named if name in EVERY_OP) or OPS


def _ranks(value: object) -> object:
    """Return a rank as a list, and null as an empty one."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else value


def _texts(value: object) -> tuple[str, ...]:
    texts = () if value is None else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise wrong(_TARGETS_FORM.expected)
    return tuple(texts)


def _framework(value: object) -> str:
    name = FRAMEWORKS.get(value.strip().lower()) if isinstance(value, str) else None
    if name is None:
        raise wrong(message("one of {names}", names=", ".join(FRAMEWORKS)))
    return name


Ops = Annotated[tuple[str, ...], PlainValidator(_ops), _OPS_FORM]
Ranks = Annotated[tuple[Rank, ...], BeforeValidator(_ranks), _RANK_FORM]
Count = Annotated[Integer, ranges.Ge(1)]


class MonitorSection(Section):
    """Keys of every section of ``monitors``."""

    enabled: Flag | None = None
    """Switch of the section. Missing: true for `module`, false for the others."""
    ops: Ops = OPS
    """Numbers of each tensor. All sections have the ops that any of them names."""
    eps: Annotated[Number, ranges.Ge(0)] = 1e-8
    """Magnitude below which the op zeros counts an element."""


class ModuleSection(MonitorSection):
    """Section ``monitors.module``."""

    targets: Annotated[tuple[str, ...], PlainValidator(_texts), _TARGETS_FORM] = ()
    """Parts of names: modules whose names contain one of these are watched. Empty: all."""


class WeightGradSection(MonitorSection):
    """Section ``monitors.weight_grad``."""

    monitor_mbs_grad: Flag = False
    """Record the unreduced gradient of each micro batch."""
    micro_batch_number: Count | None = None
    """Number of micro batches in a step, instead of `grad_acc_steps`; checked only, since they are counted as they
    run."""
    grad_acc_steps: Count | None = None
    """Number of micro batches in a step; checked only."""


class OptimizerSection(MonitorSection):
    """Section ``monitors.optimizer``."""

    mv_distribution: Flag = True
    """Record the optimizer's state."""


class ParamSection(MonitorSection):
    """Section ``monitors.param``."""

    param_distribution: Flag = True
    """Record parameters before and after the update."""


class CcSection(MonitorSection):
    """Section ``monitors.cc``."""

    cc_codeline: Annotated[tuple[str, ...], PlainValidator(_texts), _TARGETS_FORM] = ()
    """Lines of code whose collectives are watched, such as `train.py[23]`."""
    cc_log_only: Flag = False
    """Log the calls once, and stop training then."""
    cc_pre_hook: Flag = False
    """Record tensors before communication too."""
    module_ranks: Ranks = ()
    """Ranks that record collectives; here, those of `rank` record, and these are without an effect."""


class Monitors(Section):
    """Section ``monitors``."""

    module: ModuleSection | None = None
    """Inputs and outputs of modules, and their gradients."""
    weight_grad: WeightGradSection | None = None
    """Weight gradients before and after reduction."""
    optimizer: OptimizerSection | None = None
    """State of the optimizer."""
    param: ParamSection | None = None
    """Parameters."""
    cc: CcSection | None = None
    """Collective communication."""

    @property
    def enabled(self) -> dict[str, MonitorSection]:
        """Sections that are switched on, by name."""
        sections = {name: getattr(self, name) for name in type(self).model_fields}
        return {
            name: section
            for name, section in sections.items()
            if section is not None and (name == "module" if section.enabled is None else section.enabled)
        }


class MonitorV2Config(Section):
    """Configuration of Monitor V2."""

    framework: Annotated[str, PlainValidator(_framework), Form("name", ", ".join(FRAMEWORKS))] = "pytorch"
    """Framework: `pytorch` (`pt`, `torch`) or `mindspore` (`ms`); the argument `fr` is used instead if it is passed."""
    output_dir: Annotated[Text, BeforeValidator(lambda value: value or "./")] = "./"
    """Directory of the output."""
    format: Formats = ("csv",)
    """Formats of the output, of which Monitor V2 has `csv`: those of `format` in the configuration."""
    layout: Annotated[Text, Names(("probe", "v2"))] = "probe"
    """Layout of CSV files. `probe`: files of each rank and signal, as without Monitor V2; `v2`: also
    `rank_0/weight_grad_step0-0.csv` and so on, for programs that parse those."""
    async_write: Flag = False
    """Without an effect: files are always written beside training."""
    rank: Ranks = ()
    """Ranks that record. Empty: all."""
    start_step: Annotated[Integer, ranges.Ge(0)] = 0
    """First step that is recorded."""
    stop_step: Annotated[Integer, ranges.Ge(0)] | None = None
    """Step before which recording ends. Missing: it follows from `collect_times`."""
    step_interval: Count = 1
    """Distance in steps from one recorded step to the next."""
    step_count_per_record: Annotated[Integer, ranges.Ge(1), ranges.Le(1_000_000)] = 1
    """Number of steps that one file holds."""
    collect_times: Count = 100_000_000
    """Number of steps that are recorded at most."""
    patch_optimizer_step: Flag | None = None
    """If false, the program calls `step()` after each update; else that call has no effect. Either way steps are
    counted by updates; without an optimizer, by `step()`. Missing: true if an optimizer is passed."""
    monitors: Annotated[Monitors, BeforeValidator(lambda value: {} if value is None else value)] = Field(Monitors())
    """Sections of what is recorded."""

    @property
    def times(self) -> int:
        """Number of steps that are recorded at most."""
        if self.stop_step is None:
            return self.collect_times
        return min(self.collect_times, -(-max(0, self.stop_step - self.start_step) // self.step_interval))

    def settings(self, targets: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of the ``TrainerMon`` that records the same.

        Args:
            targets: its targets.
        """
        sections = self.monitors.enabled
        weights, cc, formats = sections.get("weight_grad"), sections.get("cc"), list(self.format)
        ops = list(dict.fromkeys(op for section in sections.values() for op in section.ops)) or list(OPS)
        return {
            **({"eps": min(section.eps for section in sections.values())} if "zeros" in ops else {}),
            "targets": dict(targets),
            "output_dir": self.output_dir,
            "format": [*formats, LAYOUT_FORMAT] if self.layout == "v2" else formats,
            "module_ranks": list(self.rank),
            "start_step": self.start_step,
            "step_interval": self.step_interval,
            "step_count_per_record": self.step_count_per_record,
            "collect_times": self.times,
            "squash_name": False,
            "ops": ops,
            "xy_distribution": "module" in sections,
            "wg_distribution": weights is not None,
            "monitor_mbs_grad": isinstance(weights, WeightGradSection) and weights.monitor_mbs_grad,
            "mv_distribution": any(isinstance(s, OptimizerSection) and s.mv_distribution for s in sections.values()),
            "param_distribution": any(isinstance(s, ParamSection) and s.param_distribution for s in sections.values()),
            "cc_distribution": _collectives(cc) if isinstance(cc, CcSection) else {},
        }


def _collectives(section: CcSection) -> dict[str, Any]:
    lines = [line.replace("[", r"\[").replace("]", r"\]") if "\\" not in line else line for line in section.cc_codeline]
    names = CcDistribution.model_fields.keys() & CcSection.model_fields.keys()
    return {**{name: getattr(section, name) for name in names}, "enable": True, "cc_codeline": lines}


_SECTIONS: dict[str, type[Section]] = {
    "module": ModuleSection,
    "weight_grad": WeightGradSection,
    "optimizer": OptimizerSection,
    "param": ParamSection,
    "cc": CcSection,
}
MONITOR_V2 = Dialect(
    "msprobe's Monitor V2",
    (
        *keys_of(MonitorV2Config),
        *keys_of(Monitors, MONITORS),
        *(key for name, model in _SECTIONS.items() for key in keys_of(model, f"{MONITORS}.{name}")),
    ),
)
"""Keys of the file, each with its section and its effect."""


def read_monitor_v2(source: str | PathLike[str] | Mapping[str, Any]) -> MonitorV2Config:
    """Read a configuration of Monitor V2 from a JSON or YAML file, or a mapping with the same keys.

    Raises:
        MonitorV2ConfigError: with every problem at once.
    """
    given = ConfigSource(source)
    refuse_trainer_mon(given.values, given.name, MONITOR_V2.title, MonitorV2ConfigError)
    config = given.validated(MonitorV2Config, _flat(given.values), MonitorV2ConfigError, MONITOR_V2.place)
    for sentence in _in_vain(config):
        _log.warning("%s: %s", given.name, sentence)
    return config


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the keys of ``cc_distribution`` in ``cc`` itself, where they may stand as well."""
    monitors = values.get(MONITORS)
    cc = monitors.get("cc") if isinstance(monitors, Mapping) else None
    if not isinstance(monitors, Mapping) or not isinstance(cc, Mapping):
        return dict(values)
    if not isinstance(cc.get("cc_distribution"), Mapping):
        return dict(values)
    inner = {key: value for key, value in cc["cc_distribution"].items() if key != "enable"}
    outer = {key: value for key, value in cc.items() if key != "cc_distribution"}
    return {**values, MONITORS: {**monitors, "cc": {**outer, **inner}}}


def _in_vain(config: MonitorV2Config) -> Iterator[str]:
    """Yield a sentence for each key without an effect."""
    sections = config.monitors.enabled
    if not sections:
        yield f"{MONITORS} switches nothing on, so nothing is recorded: set enabled of {_listed(Monitors)} to true"
    if not config.times:
        yield f"stop_step {config.stop_step} is not after start_step {config.start_step}: nothing is recorded"
    if config.async_write:
        yield "async_write has no effect: files are always written beside training"
    cc = sections.get("cc")
    if isinstance(cc, CcSection) and cc.module_ranks:
        yield f"{MONITORS}.cc.module_ranks has no effect: the ranks of rank record collectives"


def _listed(model: type[Section]) -> str:
    *names, last = model.model_fields
    return f"{', '.join(names)} or {last}"
