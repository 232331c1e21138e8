"""Reading of a MindSpore Transformers configuration: merge of arguments, YAML and defaults, all problems at once."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from typing import Any, TypeVar

from pydantic import ValidationError

from probe.core.config.errors import ConfigError, nearest, path_text, problems, shown, unknown_key
from probe.core.config.source import ConfigSource
from probe.core.fields import Section
from probe.core.language import message
from probe.core.transformers.dialect import CALLBACKS, DYNAMIC, EVENTS, MONITOR, TRANSFORMERS
from probe.core.transformers.schema import (
    LOG,
    SWITCHED_BY_MONITOR,
    TENSORBOARD,
    LossSection,
    StateSection,
    TensorboardSection,
    TrainStateSection,
)

LOSS, STATE, PROBE = "MFLossMonitor", "TrainingStateMonitor", "ProbeCallback"
"""Types of callbacks that are read here."""
DYNAMIC_LOSS = "LossCallback"
"""Type that the dynamic graph has in place of the first."""
MISSPELT = 0.85
"""Least likeness of the type of a callback that is probably one of these: `ProfileMonitor` is not."""
DIRECTORY_VARIABLE = "MA_SUMMARY_LOG_DIR"
"""Environment variable with the directory of event files; it is used instead of `tensorboard_dir`."""
_log = logging.getLogger("probe.transformers")
Path = tuple[int | str, ...]
Lead = Callable[[Path], str]
Kind = TypeVar("Kind", bound=Section)


class TransformersConfigError(ConfigError):
    """Error of a configuration of MindSpore Transformers that cannot be used."""

    advice = message("Correct these and start again; docs/guides/coming_from.md describes the keys.")


@dataclass(frozen=True)
class TransformersConfig:
    """Configuration of a run, after arguments, YAML and defaults are merged."""

    state: StateSection = field(default_factory=StateSection)
    """Numbers of ``TrainingStateMonitor``; the places are those that exist."""
    loss: LossSection | None = None
    """Arguments of ``MFLossMonitor``; None if it is not listed."""
    tensorboard: TensorboardSection | None = None
    """Event files; None if there are none."""
    probe: Mapping[str, Any] | None = None
    """Arguments of ``ProbeCallback``; None if it is not listed."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Every key of arguments and YAML, merged, and the sections above with their defaults."""

    @property
    def watches_state(self) -> bool:
        """True if ``TrainingStateMonitor`` is added."""
        return self.state.monitor_on or self.checks_nan

    @property
    def checks_nan(self) -> bool:
        """True if NaN in the loss and the global norm ends training."""
        return bool(self.values.get("check_for_nan_in_loss_and_grad"))

    @property
    def skips_spikes(self) -> bool:
        """True if the training cell leaves out updates at spikes of the global norm."""
        return bool(self.values.get("use_skip_data_by_global_norm"))

    @property
    def epochs(self) -> int | None:
        """Number of epochs, if known."""
        return _count(_section(self.values, "runner_config"), "origin_epochs", "epochs")

    @property
    def sink_mode(self) -> bool:
        """True if the dataset is sunk to the device, as it is by default."""
        return bool(_section(self.values, "runner_config").get("sink_mode", True))

    @property
    def global_batch_size(self) -> int:
        """Number of samples in a step over all devices; 0 if the configuration does not say it."""
        runner, parallel = _section(self.values, "runner_config"), _section(self.values, "parallel_config")
        whole, batch = _count(runner, "global_batch_size"), _count(runner, "batch_size")
        if whole is not None or batch is None:
            return whole or 0
        micro = (_count(parallel, "micro_batch_num") or 1) if (_count(parallel, "pipeline_stage") or 1) > 1 else 1
        accumulated = _count(runner, "gradient_accumulation_steps") or 1
        copies = (_count(parallel, "data_parallel") or 1) * (_count(self.values, "micro_batch_interleave_num") or 1)
        return batch * micro * accumulated * copies

    @property
    def output_directory(self) -> str:
        """Directory of the file with abnormal global norms."""
        return str(self.values.get("output_dir") or "./output")


def read_configuration(
    source: str | PathLike[str] | Mapping[str, Any],
    arguments: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> TransformersConfig:
    """Read the YAML file ``source``, or a mapping with the same keys.

    Args:
        arguments: values that replace those of the file, such as ``{"seed": 1, "runner_config": {"epochs": 2}}``.

    Raises:
        TransformersConfigError: with every problem at once.
    """
    given = ConfigSource(source)
    values, variables = merged(given.values, arguments or {}), os.environ if environ is None else environ
    config = _Reader(values, given.lead, given.problems, variables).read()
    given.refuse(TransformersConfigError)
    return config


def checked(model: type[Kind], values: Mapping[str, Any], name: str) -> Kind:
    """Return a section made of ``values``.

    Args:
        name: place of the values in messages, such as a callback.

    Raises:
        TransformersConfigError: with every problem at once.
    """
    found = list[str]()
    section = _Reader({}, lambda _: "", found, {}).section(model, values, ())
    if section is None or found:
        raise TransformersConfigError(name, found)
    return section


def pass_over(arguments: Mapping[str, Any], name: str, known: Sequence[str]) -> None:
    """Accept arguments that the tool's callback has besides those here; log those that ask for anything.

    Args:
        name: name of the callback.
        known: arguments without effect here.

    Raises:
        TypeError: for an argument that the tool does not have either.
    """
    for key, value in arguments.items():
        if key not in TRANSFORMERS.unsupported and key not in known:
            raise TypeError(f"{name}: unexpected argument {key!r}")
        if key in TRANSFORMERS.unsupported and TRANSFORMERS.asks(value):
            _log.warning("%s: %s", name, TRANSFORMERS.not_supported(key, (key,)))


def merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with those of ``over`` in their place, section by section."""
    result = dict(values)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type] # below is a mapping
    return result


class _Reader:
    """Reader of the sections, which appends to ``found`` a line for each problem."""

    def __init__(self, values: dict[str, Any], lead: Lead, found: list[str], environ: Mapping[str, str]) -> None:
        self._values, self._lead, self._found = values, lead, found
        self._directory = environ.get(DIRECTORY_VARIABLE, "").strip()

    def read(self) -> TransformersConfig:
        if self._values.get(DYNAMIC) is not None and self._values.get(MONITOR) is not None:
            self._problem((DYNAMIC,), f"expected one of {DYNAMIC} and {MONITOR}, got both; keep one")
        state, events = self._state(), self._events()
        if self._values.get(DYNAMIC) is not None:
            state, events = self._dynamic(events)
        loss, probe = self._callbacks()
        if self._directory:
            events = (events or TensorboardSection()).model_copy(update={"tensorboard_dir": self._directory})
        if events is not None and events.tensorboard_dir is None:
            events = None
        values = dict(self._values)
        if self._values.get(MONITOR) is not None:
            values[MONITOR] = _plain(state)
        self._warn_of_misplaced(state, events)
        if events is not None:
            values[EVENTS] = _plain(events)
        if not self._found:
            state = self._placed(state, events)
        return TransformersConfig(state, loss, events, probe, values)

    def _state(self) -> StateSection:
        section = self._mapping(MONITOR)
        if section.get("monitor_on") in (None, False):  # nothing else in it has an effect
            if section.get("monitor_on") is None and section:
                self._warn_of_no_switch(section)
            return StateSection()
        return self.section(StateSection, section, (MONITOR,)) or StateSection()

    def _events(self) -> TensorboardSection | None:
        section = self._mapping(EVENTS)
        return self.section(TensorboardSection, section, (EVENTS,)) if section else None

    def _dynamic(self, events: TensorboardSection | None) -> tuple[StateSection, TensorboardSection | None]:
        """Return the sections that the dynamic graph's ``monitor`` stands for."""
        section = self.section(TrainStateSection, self._mapping(DYNAMIC), (DYNAMIC,)) or TrainStateSection()
        wanted, written = section.train_state, section.tensorboard
        if (folder := written.output_dir or written.tensorboard_dir) is not None:
            queue = written.tensorboard_queue_size or written.queue_size
            events = TensorboardSection(
                tensorboard_dir=folder, tensorboard_queue_size=queue, log_timers_to_tensorboard=True
            )
        places: tuple[str, ...] = (LOG, TENSORBOARD) if events is not None or self._directory else (LOG,)
        state = StateSection(
            monitor_on=any(wanted.model_dump().values()),
            step_interval=written.tensorboard_log_interval or written.log_interval,
            local_norm_format=places if wanted.local_norm else (),
            local_loss_format=places if wanted.local_loss else (),
            device_local_norm_format=places if wanted.device_norm else (),
            device_local_loss_format=places if wanted.device_loss else (),
        )
        return state, events

    def _callbacks(self) -> tuple[LossSection | None, Mapping[str, Any] | None]:
        """Return the arguments of the first ``MFLossMonitor`` among the callbacks, and of the first
        ``ProbeCallback``."""
        listed = self._values.get(CALLBACKS)
        if listed is None:
            return None, None
        if not isinstance(listed, list | tuple):
            self._problem(
                (CALLBACKS,), f"expected a list of callbacks, such as [{{type: MFLossMonitor}}], got {shown(listed)}"
            )
            return None, None
        loss, probe, left = None, None, dict[int, str]()
        for index, entry in enumerate(listed):
            kind = entry.get("type") if isinstance(entry, Mapping) else None
            if not isinstance(kind, str):
                self._problem((CALLBACKS, index), "expected a mapping with the key type, such as {type: MFLossMonitor}")
            elif kind == LOSS:
                loss = loss or self.section(LossSection, entry, (CALLBACKS, index))
            elif kind == DYNAMIC_LOSS:
                times = entry.get("log_interval", 1)
                loss = loss or self.section(LossSection, {"per_print_times": times}, (CALLBACKS, index))
                self._warn_of_unread(kind, entry, index, ("type", "log_interval"))
            elif kind == PROBE:
                probe = probe or {key: value for key, value in entry.items() if key != "type"}
            elif kind == STATE:
                self._warn_of_unread(kind, entry, index, ("type",))
            else:
                left[index] = kind
        self._name_left(left)
        return loss, probe

    def _name_left(self, left: Mapping[int, str]) -> None:
        """Log the types of callbacks that are left to the program, by their places, with what was probably meant."""
        if left:
            _log.info("callbacks of other types are left to the program: %s", ", ".join(left.values()))
        for index, kind in left.items():
            if meant := nearest(kind, (LOSS, DYNAMIC_LOSS, STATE, PROBE), MISSPELT):
                at = (CALLBACKS, index, "type")
                self._warn(at, f"{path_text(at)}: {kind} is left to the program; did you mean {meant}?")

    def _mapping(self, key: str) -> Mapping[str, Any]:
        value = self._values.get(key)
        if value is None or isinstance(value, Mapping):
            return value or {}
        self._problem((key,), f"expected a mapping, got {shown(value)}; write keys in it, each in a line below")
        return {}

    def section(self, model: type[Kind], section: Mapping[str, Any], at: Path) -> Kind | None:
        known = dict[str, Any]()
        for key, value in section.items():
            if key in model.model_fields:
                known[key] = value
            if key in TRANSFORMERS.unsupported:
                self._warn_of_unsupported(key, value, at)
            elif key not in model.model_fields:
                sentence = unknown_key(key, list(model.model_fields), TRANSFORMERS.place)
                self._problem((*at, key), sentence)
        try:
            return model.model_validate(known)
        except ValidationError as error:
            self._found += problems(error, model, self._lead, at, TRANSFORMERS.place)
            return None

    def _warn_of_unsupported(self, key: str, value: object, at: Path) -> None:
        """Log that ``key`` is not supported, if it would switch anything on."""
        if TRANSFORMERS.asks(value):
            self._warn((*at, key), TRANSFORMERS.not_supported(key, (*at, key)))

    def _warn_of_unread(self, kind: str, entry: Mapping[str, Any], index: int, read: Sequence[str]) -> None:
        """Log each key of a callback that is not read of it."""
        for key in entry.keys() - set(read):
            elsewhere = MONITOR in TRANSFORMERS.places.get(key, ())
            place = TRANSFORMERS.place(key) if elsewhere else f"of a {kind}, {read[-1]} is read; remove it"
            at = (CALLBACKS, index, str(key))
            self._warn(at, f"{path_text(at)} has no effect: {place}")

    def _warn_of_no_switch(self, section: Mapping[str, Any]) -> None:
        """Log that a section is passed over, since it lacks its switch, unless that is misspelt."""
        known = (*StateSection.model_fields, *TRANSFORMERS.unsupported)
        # one of another section is named by a warning of its own
        unknown = [key for key in section if key not in known and TRANSFORMERS.place(key, MONITOR) is None]
        for key in unknown:
            self._problem((MONITOR, key), unknown_key(key, known, TRANSFORMERS.place))
        if not unknown:
            self._warn((MONITOR,), f"{MONITOR} has no effect without its key monitor_on: set it to True")

    def _warn_of_misplaced(self, state: StateSection, events: TensorboardSection | None) -> None:
        """Log each key that stands where it has no effect, with the place where it has one."""
        strict = (EVENTS, DYNAMIC, *([MONITOR] if state.monitor_on else []))
        for path, sentence in TRANSFORMERS.misplaced(self._values, strict):
            self._warn(path, sentence)
        watches = state.monitor_on or self._values.get("check_for_nan_in_loss_and_grad")
        for key in SWITCHED_BY_MONITOR:
            if self._values.get(key) and not watches:
                self._warn((key,), f"{key} has no effect without {MONITOR}.monitor_on")
        if events is None and _section(self._values, EVENTS):
            self._warn((EVENTS,), f"{EVENTS} has no effect without {EVENTS}.tensorboard_dir: name a directory")

    def _warn(self, path: Path, sentence: str) -> None:
        _log.warning("%s%s", self._lead(path), sentence)

    def _placed(self, state: StateSection, events: TensorboardSection | None) -> StateSection:
        """Return ``state`` with the log in place of event files, if there are none."""
        if events is not None:
            return state
        changed = {key: (LOG,) for key, places in state.formats.items() if TENSORBOARD in places}
        if changed:
            reason = "there is no tensorboard section with a tensorboard_dir: 'tensorboard' becomes 'log'"
            self._warn((MONITOR,), f"{', '.join(changed)}: {reason}")
        return state.model_copy(update=changed)

    def _problem(self, path: Path, sentence: str) -> None:
        self._found.append(f"{self._lead(path)}{path_text(path)}: {sentence}")


def _plain(section: Section) -> dict[str, Any]:
    """Return a section as in YAML."""
    pairs = section.model_dump().items()
    return {key: (list(value) or None) if isinstance(value, tuple) else value for key, value in pairs}


def _section(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = values.get(key)
    return value if isinstance(value, Mapping) else {}


def _count(section: Mapping[str, Any], *keys: str) -> int | None:
    """Return the first of ``keys`` that is a positive integer."""
    found = (section.get(key) for key in keys)
    return next(
        (value for value in found if isinstance(value, int) and not isinstance(value, bool) and value > 0), None
    )


def chooser(state: StateSection) -> Callable[[str], bool]:
    """Return the function that is true for the names of parameters that ``target`` and ``invert`` choose."""
    expressions = [re.compile(text) for text in state.target]
    return cache(lambda name: any(each.search(name) for each in expressions) != state.invert)


def monitor_settings(state: StateSection, names: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of the ``TrainerMon`` that collects the gradients for ``state``; empty if none
    is needed.

    Args:
        names: trainable parameters of the model.
    """
    chosen = list(filter(chooser(state), names)) if state.local_norm_format else []
    if not chosen and not state.device_local_norm_format:
        return {}
    whole = bool(state.device_local_norm_format) or len(chosen) == len(names)
    interval = state.step_interval
    return {
        "wg_distribution": True,
        "ops": ["norm"],
        "format": "api",
        "squash_name": False,
        "start_step": interval - 1,
        "step_interval": interval,
        "targets": {} if whole else {name: {} for name in chosen},
        "alert": {"rules": []},
    }
