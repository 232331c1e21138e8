"""The interface of older scripts: deprecated names, and settings that are changed by assignment."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from probe.core.backend.protocols import FrameworkAdapter
from probe.core.config.errors import nearest
from probe.core.config.schema import EVERY_OP, Settings
from probe.core.control.planner import Configuration
from probe.core.faults import Faults
from probe.core.instrumentation.signals.collectives import Listening
from probe.core.monitor import arguments
from probe.core.monitor.attachment import Attachment

_log = logging.getLogger("probe")
OPTIMIZER_TYPES = (
    "Megatron_DistributedOptimizer",
    "Megatron_Float16OptimizerWithFloat16Params",
    "Megatron_ChainedDistributedOptimizer",
    "Megatron_ChainedFloat16OptimizerWithFloat16Params",
    "DeepSpeedZeroOptimizer_Stage1_or_2",
    "DeepSpeedZeroOptimizer_Stage3",
)
"""Former values of ``opt_ty``. The type of the optimizer is now read from the optimizer itself."""
NEVER_BEGUN = "a callback of probe was made, and saw no training begin: pass it to the trainer, before training"
_OF_CALLBACKS = frozenset({"on_init_end", "on_train_begin", "state_key", "setup", "run_event"})
"""Attributes that trainers read first of their callbacks."""


def main_grad_of(opt_ty: str | None, param_have_main_grad: bool | None, params_have_main_grad: bool) -> bool:
    """Return ``params_have_main_grad`` from the arguments of older scripts, and warn of these."""
    if opt_ty is not None:
        remark = "" if opt_ty in OPTIMIZER_TYPES else f" (nor was {opt_ty!r} ever one of {', '.join(OPTIMIZER_TYPES)})"
        deprecated(f"opt_ty has no effect: leave it out{remark}", 5)
    if param_have_main_grad is not None:
        deprecated("param_have_main_grad: write params_have_main_grad", 5)
        params_have_main_grad = param_have_main_grad
    if not isinstance(params_have_main_grad, int):  # a bool is one
        got = f"got {params_have_main_grad!r:.80}; leave it out"
        raise TypeError(f"params_have_main_grad: expected true or false, {got}")
    return bool(params_have_main_grad)


class PassedToTrainer:
    """Object that a program may pass to a trainer that takes another."""

    if not TYPE_CHECKING:  # a checker of types is to see attributes that are missing

        def __getattr__(self, name: str) -> Any:
            """Raise the error of an attribute that is missing; that of a Trainer's callback names ours."""
            advice = (
                "; a Trainer takes one of probe.pytorch.callbacks made for it (docs/guides/callbacks.md)"
                if name in _OF_CALLBACKS
                else ""
            )
            text = f"{type(self).__name__!r} object has no attribute {name!r}{advice}"
            raise AttributeError(text, name=name, obj=self)


class CheckedAttributes(PassedToTrainer):
    """Attributes of a monitor, of which wrong ones are reported once."""

    _reported: set[str]
    """Mistakes that have been reported."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Nothing is raised for a public one that has no effect, which is reported; a value for a
        method or a number of the monitor is left out."""
        if not name.startswith("_"):
            attribute = getattr(type(self), name, None)
            if (isinstance(attribute, property) and attribute.fset is None) or (
                callable(attribute) and not callable(value)
            ):
                self._report(f"monitor.{name}: cannot be assigned: %.80r is left out; read it, or call it", value)
                return
            if not hasattr(type(self), name) and name not in vars(self) and _is_plain(type(self)):
                self._report(
                    f"monitor.{name}: there is no such attribute: assigned without effect%s", _meant(self, name, value)
                )
        super().__setattr__(name, value)

    def __getstate__(self) -> object:
        """Refuse to be copied, saved or sent, as threads and files cannot be."""
        raise TypeError(
            f"a {type(self).__name__} cannot be copied, saved or sent to another process; expected its state_dict(): "
            "save that, or make a monitor in each process"
        )

    def _lack(self, needs: str) -> str | None:  # noqa: ARG002 - of a monitor with states
        """Return the reason for which a call has no effect; empty if it is known already, None if there is none."""
        return None

    def _report(self, text: str, *values: object) -> None:
        """Log a mistake of the program, once for each text."""
        if text not in self._reported:
            self._reported.add(text)
            _log.warning(text, *values)


class AssignedSettings(CheckedAttributes):
    """The configuration of a monitor, whose values a program may assign, and older names for that."""

    framework: FrameworkAdapter

    def __init__(self, source: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        self._reported = set()
        self._configuration = Configuration(source)
        self._faults = Faults()
        """Faults before the first attachment."""
        self._listening = Listening(self.settings, self.framework, self._faults)
        self._attachment: Attachment | None = None
        """The latest attachment; None before the first."""

    @property
    def settings(self) -> Settings:
        """The configuration in effect."""
        return self._configuration.settings

    @property
    def monitoring(self) -> bool:
        """True if further rows will be collected."""
        return self._attachment is not None and self._attachment.collecting

    @property
    def _attached(self) -> bool:
        """True if a model is watched."""
        return self._attachment is not None and self._attachment.session is not None

    @property
    def _noted(self) -> Faults:
        """The faults of the run."""
        return self._attachment.faults if self._attachment is not None else self._faults

    def _value(self, key: str) -> Any:
        """Return the value that ``key`` has, or will have from the next step on."""
        return self._configuration.asked.get(key, getattr(self.settings, key))

    def _assign(self, key: str, value: Any) -> None:
        """Set ``key`` to ``value``: while rows are collected, from the next forward or the next step on.

        Raises:
            ConfigError: if ``value`` is not valid for ``key``.
        """
        value = self._configuration.assign(key, value)
        if self.monitoring and self._attachment is not None:
            self._configuration.asked[key] = value
            self._attachment.obey_program()
            return
        self._configuration.settings = self.settings.model_copy(update={key: value})
        if not self._attached and key == "ops":
            self._listening.stop()  # attaching begins again, with these

    def reload_xy(self, xy_distribution: bool = False) -> None:
        """Set whether module inputs and outputs and their gradients are collected, from the next step on, as with
        :attr:`ops`. Deprecated: DYNAMIC_MONITOR does this for every key.

        Raises:
            ConfigError: if the value is neither true nor false before ``set_monitor``; later, a warning is logged.
        """
        deprecated("reload_xy: DYNAMIC_MONITOR switches xy_distribution, and every other key, while training runs", 3)
        if not self._attached or isinstance(xy_distribution, bool):
            self._assign("xy_distribution", xy_distribution)
        else:
            self._report("reload_xy: expected true or false, got %.80r; nothing changes", xy_distribution)

    @property
    def ops(self) -> list[str]:
        """The ops that are computed. A list assigned between an update and the next forward holds from that forward on,
        otherwise from the next step on, until a changed configuration file replaces it. Its rows begin a new file.

        While a monitor is attached, nothing is raised: unknown ops are left out with a warning, norm is computed if
        none is left, and a value that is not a list changes nothing.

        Raises:
            ConfigError: naming unknown ops, while no monitor is attached.
        """
        return list(self._value("ops"))

    @ops.setter
    def ops(self, ops: list[str]) -> None:
        if not self._attached:
            self._assign("ops", ops)
        elif isinstance(ops, (list, tuple)):
            try:
                self._assign("ops", list(_known_ops(ops, self._report)))
            except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
                self._noted.note("monitor.ops", error)
        else:
            self._report('monitor.ops: expected a list such as ["norm", "max"], got %.80r; nothing changes', ops)


def _is_plain(kind: type) -> bool:
    """Return whether a class of monitors makes no attributes of its own."""
    return str(kind.__init__.__module__).startswith("probe.")  # type: ignore[misc]


def _meant(monitor: object, name: str, value: object) -> str:
    """Return the end of a sentence about an attribute that a monitor does not have."""
    if name in Settings.model_fields:
        return f"; it is a key of the configuration: give it to {type(monitor).__name__}"
    if name in arguments.NAMES:
        return f"; it is an argument of {'set_monitor' if hasattr(monitor, 'set_monitor') else 'start'}"
    if isinstance(value, (int, float)) and hasattr(monitor, "log"):
        return f"; a number of the run is recorded by monitor.log({name}=...)"
    close = nearest(name, [public for public in dir(type(monitor)) if not public.startswith("_")])
    return f"; did you mean {close}?" if close else f"; `help({type(monitor).__name__})` lists them"


def _known_ops(ops: Iterable[object], warn: Callable[..., None]) -> Iterator[str]:
    """Yield the known ones of ``ops``, and warn of the others."""
    for op in ops:
        if isinstance(op, str) and op in EVERY_OP:
            yield op
        else:
            close = nearest(op, EVERY_OP)
            hint = f"; did you mean {close}?" if close else ""
            warn("monitor.ops: expected some of %s, got %.80r, left out%s", ", ".join(EVERY_OP), op, hint)


def deprecated(text: str, level: int) -> None:
    """Warn of a name or an argument of older scripts; ``level`` leads to the script, as in :func:`warnings.warn`."""
    warnings.warn(text, DeprecationWarning, stacklevel=level)
