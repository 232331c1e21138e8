"""The sources: context managers that attach on entry and detach on exit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from probe.core.backend.protocols import ForwardKind, Optimizer, Remove, Shard, Tensor
from probe.core.backend.pytree import leaves
from probe.core.config.schema import Settings
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.forwards import OpenCalls
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.selection import Watched
from probe.core.instrumentation.signals.activations import activations
from probe.core.instrumentation.signals.call_stacks import stacks
from probe.core.instrumentation.signals.features.source import features
from probe.core.instrumentation.signals.optimizer_updates import missing_state, momentum_directions, updates_and_ratios
from probe.core.instrumentation.signals.structure import structure
from probe.core.records import Key

Source = Callable[[Run], AbstractContextManager[None]]
MICRO_BATCH = "micro batch"
"""Place under which failures to count micro batches are counted."""


@contextmanager
def weight_gradients(run: Run) -> Iterator[None]:
    """Record ``grad_unreduced`` as each backward leaves it, ``grad_reduced`` as the optimizer receives it.

    A parameter without a new gradient in this step has no row of the first. It has one of the second if the optimizer
    receives a gradient nevertheless: one assigned without a backward, or that of an earlier step again.
    """
    hooks, clock, per_micro_batch = run.framework.hooks, run.clock, run.settings.monitor_mbs_grad
    touched: set[int] = set()
    late: set[int] = set()
    restarted: set[int] = set()

    def attach(parameter: Watched) -> Remove:
        def listen(gradient: Tensor | Shard | None, apart: bool = False, reduced: bool = False) -> None:
            if clock.searching:
                return
            if gradient is None:
                touched.add(id(parameter.thing))  # there is a gradient, though its value is not known
                run.recorder.forget("grad_unreduced", parameter.key)
                return
            if id(parameter.thing) in clock.updated:  # from another optimizer's loss: of the next step, if of any
                late.add(id(parameter.thing))
                return
            touched.add(id(parameter.thing))
            clock.backward_began(hooks.backward_id())
            key, each = parameter.key, bool(per_micro_batch) or apart or id(parameter.thing) in restarted
            if each:
                key = run.recorder.next_call(
                    "grad_unreduced", key._replace(micro_step=clock.backward_step(hooks.backward_id()))
                )
            scale = hooks.loss_scale(lambda: (parameter.thing,))
            run.recorder.record("grad_unreduced", key, gradient, micro_stepped=each, scale=scale, remember=True)
            if reduced:
                restarted.add(id(parameter.thing))

        return hooks.on_gradient(
            parameter.thing, listen, own=per_micro_batch is True, main_grad=run.main_grad, guard=guard
        )

    guard, collect = partial(run.guard, "gradient"), partial(_reduced, run, touched)

    def begin_another() -> None:
        touched.clear()
        touched.update(late)
        late.clear()
        restarted.clear()

    with (
        run.each_parameter.added(attach),
        run.before_update.added(partial(collect, run.recorder)),
        run.gradients_now.added(collect),
        run.step_ended.added(begin_another),
    ):
        yield


def _reduced(
    run: Run, touched: set[int], into: Recorder, optimizer: Optimizer, owned: list[Watched], scale: Tensor | None
) -> None:
    """Record the gradients that ``optimizer`` receives. Read buffers that always exist only for parameters whose
    identities are ``touched``: others may hold values of earlier steps."""
    gradient, holds, main_grad = run.framework.hooks.gradient, run.framework.hooks.holds, run.main_grad

    def read(parameter: Watched) -> Tensor | Shard | None:
        if run.trained and id(parameter.thing) not in run.trained:
            return None
        if id(parameter.thing) not in touched and not holds(optimizer, parameter.thing, main_grad):
            return None
        found = gradient(optimizer, parameter.thing, main_grad)
        if found is not None and (run.repeats or run.tensor_repeats) and run.elsewhere(parameter.thing, found):
            return None
        return found

    held = run.read_each(owned, read, "grad_reduced of {}")
    into.record_all("grad_reduced", [key for key, _ in held], [each for _, each in held], scale=scale)


@contextmanager
def parameters(run: Run) -> Iterator[None]:
    """Record ``param_origin`` before and ``param_updated`` after the update."""

    value = run.framework.hooks.value

    def record(signal: str, optimizer: Optimizer, owned: list[Watched]) -> None:
        held = run.read_each(owned, lambda parameter: value(optimizer, parameter.thing), f"{signal} of {{}}")
        run.recorder.record_all(signal, [key for key, _ in held], [here for _, here in held])

    def before(optimizer: Optimizer, owned: list[Watched], _: Tensor | None) -> None:
        record("param_origin", optimizer, owned)

    with run.before_update.added(before), run.after_update.added(partial(record, "param_updated")):
        yield


@contextmanager
def optimizer_state(run: Run) -> Iterator[None]:
    """Record every tensor of the optimizer's state for a parameter, before the update, one signal for each kind."""

    def before(optimizer: Optimizer, owned: list[Watched], _: Tensor | None) -> None:
        kinds: dict[str, list[tuple[Key, Tensor | Shard]]] = {}
        read = run.framework.hooks.state
        for key, kept in run.read_each(owned, lambda each: read(optimizer, each.thing), "optimizer state"):
            for kind, tensor in kept.items():
                kinds.setdefault(kind, []).append((key, tensor))
        for kind, rows in kinds.items():
            run.recorder.record_all(kind, [key for key, _ in rows], [tensor for _, tensor in rows])

    missing = missing_state(run, "mv_distribution", bool, "an optimizer with state tensors")
    with run.before_update.added(before), missing:
        yield


@contextmanager
def micro_batches(run: Run) -> Iterator[None]:
    """Count micro batches by the forwards of each whole model and the backwards through its outputs."""
    with ExitStack() as attached:
        for stage, model in run.chunks:
            counter = _MicroBatches(run, stage, model)
            listen = partial(run.on_forward, compiled_too=True, gradients=True, dropped=counter.drop)
            attached.callback(listen(model, model, counter.before, counter.after, MICRO_BATCH))
        yield


class _MicroBatches:
    """Counter of the forwards and backwards of one whole model."""

    def __init__(self, run: Run, stage: int, model: Any) -> None:
        self._run, self._stage, self._model = run, stage, model
        self._open: OpenCalls[int] = OpenCalls(run.forwards, model, True)

    def before(self, kind: ForwardKind, _inputs: Any) -> None:
        """Begin a micro batch, if this forward is the first after a backward."""
        clock = self._run.clock
        if kind == "training" and not clock.searching:
            pipelined = self._run.framework.parallel.pipelined(self._model)
            micro_step = clock.forward_began(whole=True, pipeline=self._stage if pipelined else None)
            self._open.begin(micro_step, micro_step)

    def after(self, kind: ForwardKind, outputs: Any) -> None:
        """Listen to the backward through the outputs."""
        if kind != "training" or (micro_step := self._open.end()) is None:
            return
        framework = self._run.framework
        reached = self._run.guard(MICRO_BATCH, partial(self._reached, self._run.clock.step, micro_step))
        for tensor in filter(framework.tensors.is_tensor, leaves(outputs)):
            framework.hooks.on_tensor_gradient(tensor, reached)

    def drop(self) -> None:
        """Keep nothing of a forward that raised."""
        self._open.end()

    def _reached(self, step: int, micro_step: int, _: Tensor) -> None:
        if self._run.in_training_backward() and self._run.clock.step == step:
            self._run.clock.backward_reached(micro_step, self._run.framework.hooks.backward_id())


SOURCES: dict[str, tuple[Callable[[Settings], bool], Source]] = {
    "micro_batches": (
        lambda settings: bool(settings.xy_distribution or settings.monitor_mbs_grad or settings.recording_l2_features),
        micro_batches,
    ),
    "weight_gradients": (lambda settings: settings.wg_distribution, weight_gradients),
    "parameters": (lambda settings: settings.param_distribution, parameters),
    "optimizer_state": (lambda settings: settings.mv_distribution, optimizer_state),
    "momentum_directions": (lambda settings: settings.mg_direction, momentum_directions),
    "updates_and_ratios": (lambda settings: settings.ur_distribution, updates_and_ratios),
    "activations": (lambda settings: settings.xy_distribution, activations),
    "stacks": (lambda settings: settings.stack_info and "csv" in settings.formats, stacks),
    "features": (lambda settings: settings.recording_l2_features, features),
}
"""Every source with the condition that enables it, in the order in which they attach."""


def chosen(settings: Settings) -> list[Source]:
    """Return the sources that ``settings`` enable; none if collectives are only logged, one with ``print_struct``."""
    if settings.print_struct:
        return [structure]
    if settings.cc_distribution.enable and settings.cc_distribution.cc_log_only:
        return []
    return [source for switched_on, source in SOURCES.values() if switched_on(settings)]
