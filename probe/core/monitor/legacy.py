"""The interface of older scripts: other names of what there is, and what may be changed by assignment."""

from __future__ import annotations

import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from probe.core.config.errors import nearest
from probe.core.config.load import assigned
from probe.core.config.schema import EVERY_OP
from probe.core.instrumentation.session import Session
from probe.core.instrumentation.signals.sources import chosen
from probe.core.monitor import attachment
from probe.core.monitor.collector import Collecting

_log = logging.getLogger("probe")
OPTIMIZER_TYPES = (
    "Megatron_DistributedOptimizer",
    "Megatron_Float16OptimizerWithFloat16Params",
    "Megatron_ChainedDistributedOptimizer",
    "Megatron_ChainedFloat16OptimizerWithFloat16Params",
    "DeepSpeedZeroOptimizer_Stage1_or_2",
    "DeepSpeedZeroOptimizer_Stage3",
)
"""What ``opt_ty`` could be. Which optimizer it is, the optimizer itself tells."""


class Legacy(Collecting, ABC):
    """The part of a monitor that older scripts use."""

    def __init__(
        self,
        config_file_path: str | os.PathLike[str] | Mapping[str, Any],
        process_group: Any,
        main_grad: bool,
        opt_ty: str | None,
        param_have_main_grad: bool | None,
    ) -> None:
        if opt_ty is not None:
            known = (
                "" if opt_ty in OPTIMIZER_TYPES else f" (nor was {opt_ty!r} ever one of {', '.join(OPTIMIZER_TYPES)})"
            )
            _deprecated(f"opt_ty has no effect: leave it out{known}", 4)
        if param_have_main_grad is not None:
            _deprecated("param_have_main_grad: write params_have_main_grad", 4)
            main_grad = param_have_main_grad
        super().__init__(config_file_path, process_group, main_grad)
        self._wrapped: Any = None
        self._asked: dict[str, Any] = {}
        """Values of keys that hold from the next step on."""

    @abstractmethod
    def set_monitor(self, *args: Any, **kwargs: Any) -> None:
        """Attaches to a model and its optimizer."""

    def set_wrapped_optimizer(self, optimizer: Any) -> None:
        """The optimizer for :meth:`monitor_gnorm_with_ad`, if that is given none. Deprecated: give it to
        ``set_monitor``."""
        _deprecated("set_wrapped_optimizer: give the optimizer to set_monitor", 3)
        self._wrapped = optimizer

    def monitor_gnorm_with_ad(self, *args: Any, **kwargs: Any) -> None:
        """As ``set_monitor``, in either order of arguments; the optimizer may be missing or None after
        :meth:`set_wrapped_optimizer`. Deprecated: call ``set_monitor``.

        Raises:
            TypeError: if there is no optimizer.
        """
        _deprecated("monitor_gnorm_with_ad: call set_monitor", 3)
        self.set_monitor(**attachment.read_wrapped(self._wrapped, *args, **kwargs)._asdict())

    def reload_xy(self, xy_distribution: bool = False) -> None:
        """Collects module inputs and outputs and their gradients, or no more, from the next step on, as with
        :attr:`ops`. Deprecated: DYNAMIC_MONITOR does this for every key.

        Raises:
            ConfigError: if it is neither true nor false, and nothing is attached yet; then only a warning is logged.
        """
        _deprecated("reload_xy: DYNAMIC_MONITOR switches xy_distribution, and every other key, while training runs", 3)
        if self._session is None or isinstance(xy_distribution, bool):
            self._ask("xy_distribution", xy_distribution)
        else:
            _log.warning("reload_xy: expected true or false, got %.80r; nothing changes", xy_distribution)

    @property
    def ops(self) -> list[str]:
        """The numbers that are computed. What is assigned between an update and the next forward holds from that
        forward on, else from the next step on; and until a changed configuration file says otherwise. The rows begin a
        new file.

        While a monitor is attached, nothing is raised: what is no op is left out with a warning, norm is computed if
        nothing is left, and what is no list changes nothing.

        Raises:
            ConfigError: naming what is no op, if nothing is attached yet.
        """
        return list(self._asked.get("ops", self.settings.ops))

    @ops.setter
    def ops(self, ops: list[str]) -> None:
        if self._session is None:
            self._ask("ops", ops)
        elif isinstance(ops, (list, tuple)):
            try:
                self._ask("ops", list(_known_ops(ops)))
            except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
                self._faults.note("monitor.ops", error)
        else:
            _log.warning('monitor.ops: expected a list such as ["norm", "max"], got %.80r; nothing changes', ops)

    def _ask(self, key: str, value: Any) -> None:
        """``key`` is to have ``value``: from the next forward or the next step on, while something is collected.

        Raises:
            ConfigError: if it cannot have that.
        """
        value = getattr(assigned(self.settings.model_copy(update=self._asked), key, value), key)
        if self.monitoring and (session := self._session) is not None:
            self._asked[key] = value
            session.at_once(lambda step: self._obey_program(session, step))
            return
        self.settings = self.settings.model_copy(update={key: value})
        if self._session is None and key == "ops":
            self._stop_listening()  # attaching begins again, with these

    def _between(self, step: int) -> None:
        if self._asked and self._session is not None:
            self._obey_program(self._session, step)
        super()._between(step)

    def _obey_program(self, session: Session, step: int) -> None:
        """What a program has assigned takes effect; deeper monitoring ends. What cannot be watched changes nothing."""
        asked, self._asked = self._asked, {}
        before, self.settings = self.settings, self.settings.model_copy(update=asked)
        if not self.monitoring or self._output is None:
            return
        try:
            run = self._new_run(self._given, step)
        except BaseException:
            self.settings = before
            raise
        schedule = session.schedule if self._deeper is None else self._deeper[1]
        if "ops" in asked:
            self._stop_listening()
        self._output.change(run)
        self._run, self._deeper = run, None
        session.change(run, schedule, self._output, chosen(self.settings))
        self._listen(run)


def _known_ops(ops: Iterable[object]) -> Iterator[str]:
    """Those of ``ops`` that there are; the others are logged."""
    for op in ops:
        if isinstance(op, str) and op in EVERY_OP:
            yield op
        else:
            close = nearest(op, EVERY_OP)
            hint = f"; did you mean {close}?" if close else ""
            _log.warning("monitor.ops: expected some of %s, got %.80r, left out%s", ", ".join(EVERY_OP), op, hint)


def _deprecated(text: str, level: int) -> None:
    warnings.warn(text, DeprecationWarning, stacklevel=level)
