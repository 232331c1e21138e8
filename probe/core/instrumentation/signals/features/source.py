"""The source of the interpretable features: attaches to the modules that ``l2_targets`` name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from probe.core.backend.protocols import Arrays, ForwardKind, Numbers, Tensor
from probe.core.backend.pytree import leaves
from probe.core.config.schema import Settings
from probe.core.errors import Misfit
from probe.core.instrumentation.context import Run, note_unseen
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.selection import Lead, Watched, names_of, no_lead, unknown_names
from probe.core.instrumentation.signals.features import attention, linear, router
from probe.core.storage.layout import coverage_text

WEIGHTS = ("weight", "wg")
"""What the modules of ``linear_hook`` call their weight."""
HOOKS = {
    "attention_hook": "attention",
    "linear_hook": "linear",
    "moe_router_weight_hook": "moe_router",
    "moe_router_logit_hook": "moe_router",
}
"""Every signal, and what it adds to the name of a module."""
UNSAID = "neither a mask nor is_causal, causal or attn_mask_type says what is hidden from a query; "
SUPPOSED = {
    True: UNSAID + "later keys are taken to be: if all are seen, set sa_mask to none, else to causal",
    False: UNSAID + "with another number of keys than queries nothing is taken to be: if later keys are, set sa_mask "
    "to causal, else to none",
}
"""By whether later keys are taken to be hidden."""

ONE = ("sum",)
"""The columns of a recorder whose rows have one number each, whatever that is."""

_log = logging.getLogger("probe")


@contextmanager
def features(run: Run) -> Iterator[None]:
    """Attaches to every module that is named, once for each feature."""
    if (ops := run.framework.arrays) is None:
        _log.warning("recording_l2_features: %s offers nothing to compute them with", run.framework.name)
        yield
        return
    own = run.recorder
    collected = Recorder(run.framework.tensors, ONE, run.settings.eps, run.faults.note, lambda: len(own))
    listeners: list[FeatureListener] = []
    with ExitStack() as attached:
        attached.enter_context(run.collectors.added(collected))
        for root, module, hook in _chosen(run, ops):
            listener = LISTENERS[hook](run, ops, collected, hook, module)
            listen = partial(run.on_forward, module.thing, root, compiled_too=True)
            attached.callback(listen(listener.before, listener.after, f"{hook} of module {module.full!r}"))
            attached.enter_context(run.before_update.added(listener.settle))
            listeners.append(listener)
        with run.step_ended.added(partial(_end_step, run, listeners)), run.step_ended.added(collected.clear):
            yield


def _end_step(run: Run, listeners: Sequence[FeatureListener]) -> None:
    for hook in HOOKS:
        calls = [listener for listener in listeners if listener.hook == hook and not isinstance(listener, OfWeight)]
        if calls and not any(listener.ran for listener in calls):
            note_unseen(run, hook)
    for listener in listeners:
        listener.forget()


def _chosen(run: Run, ops: Arrays) -> Iterator[tuple[Any, Watched, str]]:
    """The whole model, a module of it, and what is recorded of that."""
    named = {hook: {*map(_normal, getattr(run.settings.l2_targets, hook) or ())} for hook in LISTENERS}
    for model, module in run.each_module():
        for hook in LISTENERS:
            targets = getattr(run.settings.l2_targets, hook)
            every = hook == "linear_hook" and targets == () and bool(_weights(run, ops, module.thing))
            if every or not named[hook].isdisjoint(_called(module.stage, module.full)):
                yield model, module, hook


def _normal(target: str) -> str:
    prefix, colon, name = target.partition(":")
    return f"{int(prefix)}:{name}" if colon and prefix.isdecimal() else target


def _called(stage: int, full: str) -> set[str]:
    """All that a module may be called by, with its stage and without."""
    return {each for name in names_of(full) for each in (name, f"{stage}:{name}")}


def _weights(run: Run, ops: Arrays, module: Any) -> list[Tensor]:
    """What ``module`` calls its weight. Of what shape that is shows only in a forward: between steps FSDP and ZeRO may
    hold it flat, or not at all."""
    found = (ops.member(module, name) for name in WEIGHTS)
    return [weight for weight in found if run.framework.tensors.is_tensor(weight)]


def unknown(settings: Settings, names: Iterable[tuple[int, str]], lead: Lead = no_lead) -> list[str]:
    """One sentence for each name in ``l2_targets`` that no module has, as far as a message lists them.

    Args:
        names: those of all modules, with their stages.
        lead: gives what a sentence begins with, by the path of its key.
    """
    if not settings.recording_l2_features:
        return []
    called = {each for stage, full in names for each in _called(stage, full)}
    problems = []
    for hook in HOOKS:
        wrong = [target for target in getattr(settings.l2_targets, hook) or () if _normal(target) not in called]
        for target, end in unknown_names(wrong, called):
            begin = lead(("l2_targets", hook))
            problems.append(f"{begin}l2_targets.{hook}: expected names of modules of the model, got {target!r}{end}")
    return problems


class FeatureListener:
    """One feature of one module within a step."""

    def __init__(self, run: Run, ops: Arrays, collected: Recorder, hook: str, module: Watched) -> None:
        self._run, self._ops, self._collected, self._module = run, ops, collected, module
        self._member: Callable[[str], object] = partial(ops.member, module.thing)
        self.hook, self.ran = hook, False
        self._told = set[str]()
        self._key = module.key._replace(name=f"{module.name}.{HOOKS[hook]}".lstrip("."))

    def before(self, kind: ForwardKind, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """The module begins a forward."""
        if kind == "training" and not self._run.clock.searching:
            self.ran = True
            self._run.clock.forward_began(whole=False)
            self._try(partial(self.entered, *inputs))

    def after(self, kind: ForwardKind, outputs: Any) -> None:
        """The module has come to the end of a forward."""
        if kind == "training" and not self._run.clock.searching:
            self._try(partial(self.left, outputs))

    def settle(self, *_: object) -> None:
        """The step comes to its end."""
        self._try(self.ending)

    def entered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What is to be read of inputs."""

    def left(self, outputs: Any) -> None:
        """What is to be read of outputs."""

    def ending(self) -> None:
        """What is to be read of a step without a forward."""

    def forget(self) -> None:
        """Another step begins."""
        self.ran = False

    def _try(self, function: Callable[[], None]) -> None:
        try:
            with self._ops.quiet():
                function()
        except Misfit as misfit:
            self._tell("misfit", f"{misfit}; nothing is recorded of it")

    def _tell(self, about: str, what: str) -> None:
        """Says it once."""
        if about not in self._told:
            self._told.add(about)
            _log.warning("l2_targets.%s: %s:%s: %s", self.hook, self._module.stage, self._module.full, what)


class OfWeight(FeatureListener):
    """A feature of the weight. It is read in the step's first forward, where those who share it out (FSDP, ZeRO) have
    put it together; of a module that does not run, before the update."""

    _done = False

    def entered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        self.ending()

    def ending(self) -> None:
        if self._done:
            return
        self._done = True
        described = self._run.framework.tensors.describe
        weights = _weights(self._run, self._ops, self._module.thing)
        weight = next((each for each in weights if len(described(each)[0]) == 2), None)
        numbers = None if weight is None else self._ops.numbers(weight)
        if numbers is None or not self._ops.is_floating(numbers):
            if not getattr(self._run.settings.l2_targets, self.hook):
                return  # nobody has named it
            what = f"a two-dimensional {' or '.join(WEIGHTS)} of floating numbers"
            raise Misfit(f"expected a module with {what} (one that is computed at each reading is left alone)")
        shape, _, coverage = described(weight)
        if coverage is not None:
            raise Misfit(f"expected a whole weight, this rank holds {coverage_text(coverage, shape[0] * shape[1])}")
        if 0 in shape:
            raise Misfit(f"expected a weight with elements, got one of shape {shape}")
        self._record(weight, numbers)

    def _record(self, weight: Tensor, numbers: Numbers) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        super().forget()
        self._done = False


class Linear(OfWeight):
    """``linear_hook``."""

    def _record(self, weight: Tensor, numbers: Numbers) -> None:
        block = linear.begin(self._ops, numbers)
        self._collected.compute(self.hook, self._key, weight, block, linear.finish)


class AttentionListener(FeatureListener):
    """``attention_hook``."""

    def entered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        settings = self._run.settings
        given = attention.of_call(args, kwargs, self._run.framework.tensors.is_tensor)
        said = attention.causal(args, kwargs, self._member) if settings.sa_mask == "auto" else False
        unsaid = said is None and given.mask is None
        supposed = unsaid and self._alike(given)
        call = attention.AttentionCall(
            self._ops.numbers(given.query),
            self._ops.numbers(given.key),
            None if given.mask is None or settings.sa_mask == "none" else self._ops.numbers(given.mask),
            settings.sa_mask == "causal" or said is True or supposed,
            settings.sa_mask_true == "attends",
        )
        block = attention.begin(self._ops, call, settings.sa_order, settings.sa_heads == "all")
        if unsaid:
            self._tell("mask", SUPPOSED[supposed])
        key = self._key._replace(micro_step=self._run.clock.micro_step)
        self._collected.compute(self.hook, key, given.query, block, attention.finish, micro_stepped=True)

    def _alike(self, given: attention.AttentionTensors) -> bool:
        """Whether there are as many keys as queries, as where a sequence attends to itself."""
        place = self._run.settings.sa_order.split(",").index("s")
        shapes = [self._run.framework.tensors.describe(tensor)[0] for tensor in (given.query, given.key)]
        return all(len(shape) > place for shape in shapes) and shapes[0][place] == shapes[1][place]


class RouterWeight(OfWeight):
    """``moe_router_weight_hook``."""

    def _record(self, weight: Tensor, numbers: Numbers) -> None:
        experts = router.integer(router.EXPERTS, self._member)
        if experts == numbers.shape[1] != numbers.shape[0]:
            numbers = self._ops.turned(numbers)
        block = router.similarity(self._ops, numbers)
        self._collected.compute(
            self.hook, self._key, weight, block, partial(router.finish_similarity, experts=numbers.shape[0])
        )


class RouterLogit(FeatureListener):
    """``moe_router_logit_hook``."""

    def left(self, outputs: Any) -> None:
        tensors, ops = self._run.framework.tensors, self._ops
        logits = next((value for value in leaves(outputs) if tensors.is_tensor(value)), None)
        shape = () if logits is None else tensors.describe(logits)[0]
        numbers = None if len(shape) < 2 or 0 in shape else ops.numbers(logits)
        if numbers is None or not ops.is_floating(numbers):
            raise Misfit(f"expected logits with the experts as last dimension as first output, got shape {shape}")
        top_k = self._run.settings.router_top_k or router.integer(router.TOP_K, self._member)
        if top_k is None:
            names = ", ".join(router.TOP_K)
            self._tell("top_k", f"to how many experts a token goes is not known (none of {names}): set router_top_k")
        block = router.begin(ops, numbers.reshape(-1, shape[-1]), top_k)
        finish = partial(router.finish, experts=shape[-1] if top_k else 0)
        key = self._key._replace(micro_step=self._run.clock.micro_step)
        self._collected.compute(self.hook, key, logits, block, finish, micro_stepped=True)


LISTENERS: dict[str, type[FeatureListener]] = {
    "attention_hook": AttentionListener,
    "linear_hook": Linear,
    "moe_router_weight_hook": RouterWeight,
    "moe_router_logit_hook": RouterLogit,
}
"""Every feature that there is."""
