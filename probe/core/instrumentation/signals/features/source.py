"""The source of the interpretable features, of the modules that ``l2_targets`` name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from probe.core.backend.protocols import Arrays, ForwardKind, Module, Numbers, Remove, Tensor
from probe.core.backend.pytree import leaves
from probe.core.config.schema import Settings
from probe.core.faults import Misfit
from probe.core.instrumentation.context import Run, note_unseen
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.selection import Lead, Watched, names_of, no_lead, unknown_names
from probe.core.instrumentation.signals.features import attention, linear, router
from probe.core.storage.layout import coverage_text

WEIGHTS = ("weight", "wg")
"""Attributes of modules of ``linear_hook`` for their weight."""
HOOKS = {
    "attention_hook": "attention",
    "linear_hook": "linear",
    "moe_router_weight_hook": "moe_router",
    "moe_router_logit_hook": "moe_router",
}
"""Every signal, with the suffix of its rows after the name of a module."""
NO_MASK = "neither a mask nor is_causal, causal or attn_mask_type says what is hidden from a query; "
SUPPOSED = {
    True: NO_MASK + "later keys are taken to be: if all are seen, set sa_mask to none, else to causal",
    False: NO_MASK + "with another number of keys than queries nothing is taken to be: if later keys are, set sa_mask "
    "to causal, else to none",
}
"""Warnings, for True if later keys are taken to be hidden."""

ONE = ("sum",)
"""The columns of a recorder whose rows have one number of any kind each."""

_log = logging.getLogger("probe")


@contextmanager
def features(run: Run) -> Iterator[None]:
    """Attach to every named module, once for each feature."""
    if (ops := run.framework.arrays) is None:
        _log.warning("recording_l2_features: %s offers nothing to compute them with", run.framework.name)
        yield
        return
    main = run.recorder
    collected = Recorder(run.framework.tensors, ONE, run.settings.eps, run.faults.note, lambda: len(main))
    listeners: dict[FeatureListener, None] = {}

    def attach(root: Module, module: Watched) -> Remove:
        with ExitStack() as attached:
            for hook in _chosen(run, ops, module):
                listener = LISTENERS[hook](run, ops, collected, hook, module)
                where = f"{hook} of module {module.full!r}"
                remove = run.on_forward(module.thing, root, listener.before, listener.after, where, compiled_too=True)
                attached.callback(remove)
                attached.enter_context(run.before_update.added(listener.settle))
                attached.callback(listeners.pop, listener, None)
                listeners[listener] = None
            return attached.pop_all().close

    def end_step() -> None:
        for hook in HOOKS:
            calls = [listener for listener in listeners if listener.hook == hook and not isinstance(listener, OfWeight)]
            if calls and not any(listener.ran for listener in calls):
                note_unseen(run, hook)
        for listener in listeners:
            listener.forget()

    with ExitStack() as entered:
        entered.enter_context(run.collectors.added(collected))
        entered.enter_context(run.each_watched_module.added(attach))
        entered.enter_context(run.step_ended.added(collected.clear))
        entered.enter_context(run.step_ended.added(end_step))
        yield


def _chosen(run: Run, ops: Arrays, module: Watched) -> Iterator[str]:
    """Yield the features of ``module``."""
    for hook in LISTENERS:
        targets = getattr(run.settings.l2_targets, hook)
        every = hook == "linear_hook" and targets == () and bool(_weights(run, ops, module.thing))
        if every or not {*map(_normal, targets or ())}.isdisjoint(_called(module.stage, module.full)):
            yield hook


def _normal(target: str) -> str:
    prefix, colon, name = target.partition(":")
    return f"{int(prefix)}:{name}" if colon and prefix.isdecimal() else target


def _called(stage: int, full: str) -> set[str]:
    """Return all names of a module, with its stage and without."""
    return {called for name in names_of(full) for called in (name, f"{stage}:{name}")}


def _weights(run: Run, ops: Arrays, module: Any) -> list[Tensor]:
    """Return the weights of ``module``, by any of their names. Read their shapes only in a forward: between steps, FSDP
    and ZeRO may hold them flat, or not at all."""
    members = (ops.member(module, name) for name in WEIGHTS)
    return [weight for weight in members if run.framework.tensors.is_tensor(weight)]


def unknown(settings: Settings, names: Iterable[tuple[int, str]], lead: Lead = no_lead) -> list[str]:
    """Return a sentence for each name in ``l2_targets`` that no module has, up to the number that a message lists.

    Args:
        names: names of all modules, with their stages.
        lead: returns the beginning of a sentence, by the path of its key.
    """
    if not settings.recording_l2_features:
        return []
    called = {name for stage, full in names for name in _called(stage, full)}
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
        self._numbers = run.framework.tensors.numbers
        self.hook, self.ran = hook, False
        self._logged = set[str]()
        self._key = module.key._replace(name=f"{module.name}.{HOOKS[hook]}".lstrip("."))

    def _member(self, name: str) -> object:
        """Return the member ``name`` of the module; None if it has none."""
        return self._ops.member(self._module.thing, name)

    def before(self, kind: ForwardKind, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """Read the inputs of a forward that begins."""
        if kind == "training" and not self._run.clock.searching:
            self.ran = True
            self._run.clock.forward_began(whole=False)
            self._quietly(self.entered, *inputs)

    def after(self, kind: ForwardKind, outputs: Any) -> None:
        """Read the outputs of a forward that has ended."""
        if kind == "training" and not self._run.clock.searching:
            self._quietly(self.left, outputs)

    def settle(self, *_: object) -> None:
        """Finish the step before the update."""
        self._quietly(self.ending)

    def entered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read inputs."""

    def left(self, outputs: Any) -> None:
        """Read outputs."""

    def ending(self) -> None:
        """Read the module if it has not run in this step."""

    def _micro_step(self) -> int:
        """Return the micro step of the forward that runs on this thread."""
        around = self._run.forwards.micro_step
        return self._run.clock.micro_step if around is None else around

    def forget(self) -> None:
        """Begin the next step."""
        self.ran = False

    def _quietly(self, function: Callable[..., None], *args: Any) -> None:
        try:
            with self._ops.quiet():
                function(*args)
        except Misfit as misfit:
            self._warn_once("misfit", f"{misfit}; nothing is recorded of it")

    def _warn_once(self, problem: str, message: str) -> None:
        """Log the message about the module, unless one about the same problem was logged."""
        if problem not in self._logged:
            self._logged.add(problem)
            _log.warning("l2_targets.%s: %s:%s: %s", self.hook, self._module.stage, self._module.full, message)


class OfWeight(FeatureListener):
    """A feature of the weight. It is read in the step's first forward, where FSDP and ZeRO have gathered the weight; if
    the module does not run, before the update."""

    _done = False

    def entered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        self.ending()

    def ending(self) -> None:
        if self._done:
            return
        self._done = True
        described = self._run.framework.tensors.describe
        weights = _weights(self._run, self._ops, self._module.thing)
        weight = next((weight for weight in weights if len(described(weight)[0]) == 2), None)
        numbers = None if weight is None else self._numbers(weight)
        if numbers is None or not self._ops.is_floating(numbers):
            if not getattr(self._run.settings.l2_targets, self.hook):
                return  # it was not named
            needed = f"a two-dimensional {' or '.join(WEIGHTS)} of floating numbers"
            raise Misfit(f"expected a module with {needed} (one that is computed at each reading is left alone)")
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
        tensors = attention.of_call(args, kwargs, self._run.framework.tensors.is_tensor)
        causal = attention.causal(args, kwargs, self._member) if settings.sa_mask == "auto" else False
        unknown_mask = causal is None and tensors.mask is None
        supposed = unknown_mask and self._alike(tensors)
        call = attention.AttentionCall(
            self._numbers(tensors.query),
            self._numbers(tensors.key),
            None if tensors.mask is None or settings.sa_mask == "none" else self._numbers(tensors.mask),
            settings.sa_mask == "causal" or causal is True or supposed,
            settings.sa_mask_true == "attends",
        )
        block = attention.begin(self._ops, call, settings.sa_order, settings.sa_heads == "all")
        if unknown_mask:
            self._warn_once("mask", SUPPOSED[supposed])
        key = self._key._replace(micro_step=self._micro_step())
        self._collected.compute(self.hook, key, tensors.query, block, attention.finish, micro_stepped=True)

    def _alike(self, tensors: attention.AttentionTensors) -> bool:
        """True if the numbers of keys and queries are equal, as in self-attention."""
        place = self._run.settings.sa_order.split(",").index("s")
        shapes = [self._run.framework.tensors.describe(tensor)[0] for tensor in (tensors.query, tensors.key)]
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
        numbers = None if len(shape) < 2 or 0 in shape else self._numbers(logits)
        if numbers is None or not ops.is_floating(numbers):
            raise Misfit(f"expected logits with the experts as last dimension as first output, got shape {shape}")
        top_k = self._run.settings.router_top_k or router.integer(router.TOP_K, self._member)
        if top_k is None:
            names = ", ".join(router.TOP_K)
            self._warn_once(
                "top_k", f"to how many experts a token goes is not known (none of {names}): set router_top_k"
            )
        block = router.begin(ops, numbers.reshape(-1, shape[-1]), top_k)
        finish = partial(router.finish, experts=shape[-1] if top_k else 0)
        key = self._key._replace(micro_step=self._micro_step())
        self._collected.compute(self.hook, key, logits, block, finish, micro_stepped=True)


LISTENERS: dict[str, type[FeatureListener]] = {
    "attention_hook": AttentionListener,
    "linear_hook": Linear,
    "moe_router_weight_hook": RouterWeight,
    "moe_router_logit_hook": RouterLogit,
}
"""The listener of every feature."""
