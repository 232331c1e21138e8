"""The sources: context managers that attach on entry and detach on exit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from probe.core.backend.protocols import ForwardKind, Optimizer, Remove, Shard, Tensor
from probe.core.backend.pytree import leaves
from probe.core.config.schema import Settings
from probe.core.door import count
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.selection import Watched
from probe.core.instrumentation.signals.activations import activations
from probe.core.instrumentation.signals.call_stacks import stacks
from probe.core.instrumentation.signals.features.source import features
from probe.core.instrumentation.signals.optimizer_updates import missing_state, momentum_directions, updates_and_ratios
from probe.core.instrumentation.signals.relative_updates import relative_updates
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
    touched, late, restarted = set[int](), set[int](), set[int]()

    def attach(parameter: Watched) -> Remove:
        thing, identity = parameter.thing, id(parameter.thing)

        def listen(gradient: Tensor | Shard | None, apart: bool = False, reduced: bool = False) -> None:
            if clock.searching:
                return
            if gradient is None:
                touched.add(identity)  # there is a gradient, though its value is not known
                run.recorder.forget("grad_unreduced", parameter.key)
                return
            if identity in clock.updated:  # from another optimizer's loss: of the next step, if of any
                late.add(identity)
                return
            touched.add(identity)
            if (backward := hooks.backward_id()) != clock.backward:
                clock.backward_began(backward)
            key, micro_stepped = parameter.key, bool(per_micro_batch) or apart or identity in restarted
            if micro_stepped:
                key = run.recorder.next_call("grad_unreduced", key._replace(micro_step=clock.backward_step(backward)))
            scale = hooks.loss_scale(lambda: (thing,))
            run.recorder.record("grad_unreduced", key, gradient, micro_stepped=micro_stepped, scale=scale)
            if reduced:
                restarted.add(identity)

        return hooks.on_gradient(thing, listen, own=per_micro_batch is True, main_grad=run.main_grad, guard=guard)

    guard = run.guard_of("gradient")

    collect = _reduced(run, touched)

    def begin_another() -> None:
        touched.clear()
        touched.update(late)
        late.clear()
        restarted.clear()

    with (
        run.each_parameter.added(attach),
        run.before_update.added(collect),
        run.gradients_now.added(collect),
        run.step_ended.added(begin_another),
    ):
        yield


def _reduced(run: Run, touched: set[int]) -> Callable[..., None]:
    """Return a function that records the gradients that an optimizer receives. It reads buffers that always exist only
    for parameters whose identities are ``touched``: others may hold values of earlier steps."""
    hooks, main_grad = run.framework.hooks, run.main_grad

    def collect(
        optimizer: Optimizer, owned: list[Watched], scale: Tensor | None, into: Recorder = run.recorder
    ) -> None:
        trained, repeated = run.trained, bool(run.repeats or run.tensor_repeats)
        gradient = hooks.gradients_of(optimizer, main_grad)
        keys: list[Key] = []
        gradients: list[Tensor | Shard] = []
        for parameter in owned:
            thing, identity = parameter.thing, id(parameter.thing)
            if trained and identity not in trained:
                continue
            try:
                if identity not in touched and not hooks.holds(optimizer, thing, main_grad):
                    continue
                value = gradient(thing)
                if value is not None and not (repeated and run.elsewhere(thing, value)):
                    keys.append(parameter.key)
                    gradients.append(value)
            except Exception as error:  # noqa: BLE001 - the others can still be read
                count(run.faults, f"grad_reduced of {parameter.name}", error)
        into.record_all("grad_reduced", keys, gradients, scale=scale)

    return collect


@contextmanager
def parameters(run: Run) -> Iterator[None]:
    """Record ``param_origin`` before and ``param_updated`` after the update."""

    value = run.framework.hooks.value

    def record(signal: str, optimizer: Optimizer, owned: list[Watched]) -> None:
        values = run.read_each(owned, lambda parameter: value(optimizer, parameter.thing), f"{signal} of {{}}")
        run.recorder.record_all(signal, [key for key, _ in values], [value_of for _, value_of in values])

    def before(optimizer: Optimizer, owned: list[Watched], _: Tensor | None) -> None:
        record("param_origin", optimizer, owned)

    def after(optimizer: Optimizer, owned: list[Watched]) -> None:
        record("param_updated", optimizer, owned)

    with run.before_update.added(before), run.after_update.added(after):
        yield


@contextmanager
def optimizer_state(run: Run) -> Iterator[None]:
    """Record every tensor of the optimizer's state for a parameter, before the update, one signal for each kind."""

    def before(optimizer: Optimizer, owned: list[Watched], _: Tensor | None) -> None:
        kinds: dict[str, list[tuple[Key, Tensor | Shard]]] = {}
        read = run.framework.hooks.state
        for key, tensors in run.read_each(owned, lambda parameter: read(optimizer, parameter.thing), "optimizer state"):
            for kind, tensor in tensors.items():
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
            remove = run.on_forward(
                model,
                model,
                counter.before,
                counter.after,
                MICRO_BATCH,
                dropped=counter.drop,
                compiled_too=True,
                gradients=True,
            )
            attached.callback(remove)
        yield


class _MicroBatches:
    """Counter of the forwards and backwards of one whole model."""

    def __init__(self, run: Run, stage: int, model: Any) -> None:
        self._run, self._stage, self._model = run, stage, model

    def before(self, kind: ForwardKind, _inputs: Any) -> None:
        """Begin a micro batch, if this forward is the first after a backward."""
        clock = self._run.clock
        if kind == "training" and not clock.searching:
            pipelined = self._run.framework.parallel.pipelined(self._model)
            micro_step = clock.forward_began(whole=True, pipeline=self._stage if pipelined else None)
            self._run.forwards.begin(self, self._model, micro_step, micro_step, True)

    def after(self, kind: ForwardKind, outputs: Any) -> None:
        """Listen to the backward through the outputs."""
        micro_step = self._run.forwards.end(self) if kind == "training" else None
        if type(micro_step) is not int:
            return
        run, step = self._run, self._run.clock.step

        def reached(_: Tensor) -> None:
            if run.in_training_backward() and run.clock.step == step:
                run.clock.backward_reached(micro_step, run.framework.hooks.backward_id())

        listen = run.guard(MICRO_BATCH, reached)
        for tensor in filter(run.framework.tensors.is_tensor, leaves(outputs)):
            run.framework.hooks.on_tensor_gradient(tensor, listen)

    def drop(self) -> None:
        """Keep nothing of a forward that raised."""
        self._run.forwards.end(self)


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
    "relative_updates": (lambda settings: settings.relative_update, relative_updates),
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


def collects_nothing(settings: Settings) -> Iterator[str]:
    """Yield a sentence if ``settings`` enable neither signals nor checks."""
    others = settings.cc_distribution.enable, settings.run.enable, settings.sentinel.enable
    if not (chosen(settings) or any(others)):
        yield (
            "the configuration collects nothing: switch on wg_distribution, xy_distribution, param_distribution or "
            "mv_distribution; `probe config check FILE` says what a file collects"
        )
