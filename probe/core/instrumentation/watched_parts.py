"""The watched modules and parameters of a run, including those that come into a model or leave it while training runs:
their names, their hooks, and the optimizers of parameters."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

from probe.core.backend.protocols import Module, Optimizer, Parameter
from probe.core.door import count
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.selection import Watched, named

ENDED = "modules and parameters: rows that ended, since the program took the thing out of the model"
"""Kind of loss, counted for each module and parameter."""
MOST_NAMED = 8
"""Number of names in a message."""
REPLACED = (
    "the optimizer updates a parameter that the model no longer has: another has replaced {!r}; make the optimizer "
    "after the call that replaces parameters (fully_shard, parallelize_module, load_state_dict with assign=True)"
)
STRANGE = (
    "the optimizer updates none of the model's parameters, so that their updates are not seen: pass to set_monitor "
    "the model and the optimizer that train together, after both are wrapped"
)

EMPTY = (
    "expected parameters with values, got some of the meta device: %s: they are left out until they have values; give "
    "them some, by to_empty() say, or take them out of the model"
)
_log = logging.getLogger("probe")


class WatchedParts:
    """Watched modules of ``run``, and its watched parameters, with hooks on those that can have a gradient."""

    def __init__(self, run: Run) -> None:
        self._run, self._hooks = run, run.framework.hooks
        self.looked = False
        """True if new parameters were searched for in the step in progress."""
        self._names_of_modules: set[tuple[int, str]] = set()
        """Stages and row names of the watched modules."""
        self._modules: dict[tuple[int, int, str], tuple[Watched, ExitStack]] = {}
        """Modules and their hooks, by the identities of model and module and the full name, which a wrapper changes."""
        self._begun = False
        """True once modules were searched for."""
        self._names: set[tuple[int, str]] = set()
        """Stages and row names of parameters."""
        self._attached: dict[int, ExitStack] = {}
        """The hooks of each parameter."""
        self._present: dict[int, Watched] = {}
        """Parameters of the models, watched or not, and those that an optimizer alone has, by identity."""
        self._every: dict[int, Watched] = {}
        self._others: tuple[str, ...] = ()
        self._watched: list[Watched] = []
        """The watched parameters."""
        self._waiting: list[Watched] = []
        """The watched parameters whose hooks are not placed yet."""
        self._owned: dict[int, list[Watched]] = {}
        """The watched parameters by the identity of their optimizer."""
        self._census: list[int] = []
        """Identities of the parameters of all optimizers at the last search."""
        self._before: list[tuple[int, ...]] = []
        """Result of :meth:`_ends` at the last search."""
        self._structure: list[tuple[int, ...]] = []
        """Identities of what the models consist of, by the last search."""
        self._hooked: list[Watched] = []
        """The watched parameters with hooks."""
        self._tokens: list[int] = []
        """Identities of the tensors on which their hooks were placed."""
        self._strange = False
        """True if the optimizers have no parameter of the models: another may be on its way."""
        self._replaced: dict[int, str] = {}
        """Parameters that others have replaced in the model, while an optimizer has them: another may be on its way."""
        self._empty: dict[str, Parameter] = {}
        """Parameters of the models that have no values yet, as those of the meta device, by full name."""
        self._empty_reported = False
        """True once those were named."""
        self._wrapping = True
        """True if a wrapper may still replace parameters before training begins."""

    def look(self) -> None:
        """Search for new parameters: once a step, and again if a forward may have made or added any."""
        if not self.looked or self._wrapping or self._ends() != self._before:
            self.looked = True
            self.find()

    def _ends(self) -> list[tuple[int, ...]]:
        """Return the number of each optimizer's parameters, with the identities of the first and the last."""
        return [_ends(self._hooks.owned(optimizer)) for optimizer in self._run.optimizers]

    def remove_hooks(self) -> None:
        """Remove the hooks of all parameters and modules."""
        for _, hooks in self._modules.values():
            hooks.close()
        self._modules.clear()
        for attached in self._attached.values():
            attached.close()
        self._attached.clear()
        self._hooked, self._tokens = [], []

    def find(self) -> None:
        """Watch parameters and modules that are new since the last search, and hook those that have become
        trainable."""
        owned = [self._hooks.owned(optimizer) for optimizer in self._run.optimizers]
        self._before = [*map(_ends, owned)]
        census = [id(parameter) for parameters in owned for parameter in parameters]
        structure = [self._hooks.structure(model) for _, model in self._run.chunks]
        changed = structure != self._structure or any(map(self._run.framework.tensors.is_tensor, self._empty.values()))
        if changed:
            for parameter in self._watched:
                self._run.framework.parallel.check_again(parameter.thing)
            self._find_modules()
        if changed or census != self._census or self._wrapping:
            self._wrapping = self._census != census
            self._census = census
            self._watch_new()
            self._structure = structure  # only now: after a refusal the search is made again
            self._share_out()
            self._strange = False
            if not self._wrapping and census and self._present and not self._present.keys() & set(census):
                self._strange = True
        if self._hooked and (tokens := self._hooks.tokens(self._hooked_things())) != self._tokens:
            self._unhook_swapped(tokens)
        if self._waiting:
            self._hook_trainable()

    # Modules.

    def _find_modules(self) -> None:
        """Hook modules that are new since the last search; remove the hooks of those that are gone."""
        if not len(self._run.each_watched_module):
            return
        chunks = [(stage, model, [*self._hooks.modules(model)]) for stage, model in self._run.chunks]
        present = {(id(model), id(module), str(full)) for _, model, modules in chunks for full, module in modules}
        removed = [self._modules.pop(key) for key in [*self._modules] if key not in present]
        for module, hooks in removed:
            self._names_of_modules.discard((module.stage, module.name))
            hooks.close()
        added: list[str] = []
        for stage, model, modules in chunks:
            new = ((full, thing) for full, thing in modules if (id(model), id(thing), str(full)) not in self._modules)
            full_names, squash = (full for full, _ in modules), self._run.settings.squash_name
            for module in named(stage, new, full_names, self._names_of_modules, squash):
                self._hook_module(model, module)
                added.append(module.name)
        if self._begun:
            names = {module.name for module, _ in self._modules.values()}
            if added:
                _log.info(
                    "modules that came into the model after set_monitor are recorded from now on: %s", _listed(added)
                )
            self._report_ends("modules", (module.name for module, _ in removed if module.name not in names))
        self._begun = True

    def _hook_module(self, model: Module, module: Watched) -> None:
        hooks = ExitStack()
        self._modules[id(model), id(module.thing), str(module.full)] = module, hooks
        for attach in self._run.each_watched_module:
            hooks.callback(attach(model, module))

    def _report_ends(self, kind: str, names: Iterable[str]) -> None:
        """Log and count things that are no longer in a model."""
        if removed := [*names]:
            _log.warning("%s are no longer in the model, and their rows end: %s", kind, _listed(removed))
            self._run.faults.lost(ENDED, len(removed))

    # Parameters.

    def _hooked_things(self) -> list[Parameter]:
        return [parameter.thing for parameter in self._hooked]

    def _unhook_swapped(self, tokens: list[int]) -> None:
        """Let hooks be placed again on parameters whose tensors, now ``tokens``, the program has exchanged
        (``torch.utils.swap_tensors``): they have stayed on the old ones."""
        swapped = [p for p, before, now in zip(self._hooked, self._tokens, tokens, strict=True) if before != now]
        for parameter in swapped:
            self._attached.pop(id(parameter.thing), ExitStack()).close()
        self._waiting.extend(swapped)
        self._note_hooked()

    def _hook_trainable(self) -> None:
        """Place the hooks of waiting parameters that can have them."""
        untrainable: list[Watched] = []
        for parameter in self._waiting:
            if self._hooks.trainable(parameter.thing):
                for attach in self._run.each_parameter:
                    remove = self._run.keep(attach(parameter))
                    self._attached.setdefault(id(parameter.thing), ExitStack()).callback(remove)
            else:
                untrainable.append(parameter)
        self._waiting = untrainable
        self._note_hooked()

    def _note_hooked(self) -> None:
        """Note which parameters have hooks, and on which tensors."""
        self._hooked = [parameter for parameter in self._watched if id(parameter.thing) in self._attached]
        self._tokens = self._hooks.tokens(self._hooked_things())

    def _watch_new(self) -> None:
        chunks = [(stage, [*self._hooks.parameters(model)]) for stage, model in self._run.chunks]
        has_values = self._run.framework.tensors.is_tensor
        self._empty = {full: thing for _, things in chunks for full, thing in things if not has_values(thing)}
        self._drop_removed({id(thing): (stage, full) for stage, things in chunks for full, thing in things})
        for stage, things in chunks:
            # looked up one by one: a parameter may have two names
            new = ((full, thing) for full, thing in things if id(thing) not in self._present and has_values(thing))
            full_names, squash = (full for full, _ in things), self._run.settings.squash_name
            for parameter in named(stage, new, full_names, self._names, squash):
                if self._run.selection.watches(parameter):
                    self._run.framework.parallel.check_again(parameter.thing)
                    self._watched.append(parameter)
                    self._waiting.append(parameter)
                self._present[id(parameter.thing)] = parameter
        self._every = dict(self._present)

    def _drop_removed(self, present: dict[int, tuple[int, str]]) -> None:
        """Drop parameters that are not among ``present``, those of the model, unless an optimizer updates them and no
        others have replaced them (``fully_shard`` and ``parallelize_module`` replace parameters)."""
        names, owned, ended = set(present.values()), set(self._census), list[str]()
        for identity, parameter in [*self._present.items()]:
            replaced = (parameter.stage, parameter.full) in names
            if identity in present or (identity in owned and not replaced):
                continue
            if identity in owned:
                self._replaced[identity] = parameter.full
                self._others = (*self._others, parameter.full)
            if not replaced:
                ended.append(parameter.name)
            self._names.discard((parameter.stage, parameter.name))
            del self._present[identity]
            self._attached.pop(identity, ExitStack()).close()
        self._report_ends("parameters", ended)
        self._watched = [parameter for parameter in self._watched if id(parameter.thing) in self._present]
        self._waiting = [parameter for parameter in self._waiting if id(parameter.thing) in self._present]
        self._note_hooked()

    @property
    def every(self) -> Mapping[int, Watched]:
        """Every parameter of the models as of the last search, watched or not, by identity; the same object until a
        search finds others."""
        return self._every

    @property
    def structure(self) -> object:
        """Parts of the models, as of the last search; the same object until a search finds others."""
        return self._structure

    @property
    def replaced(self) -> tuple[str, ...]:
        """Parameters of the optimizers in whose place the models have others."""
        return self._others

    def hand_over(self, optimizer: Optimizer) -> None:
        """Stop watching ``optimizer``; the next search assigns the parameters again."""
        self._owned.pop(id(optimizer), None)
        self._census, self.looked = [], False
        self._strange = False
        self._replaced.clear()
        self._others = ()

    def _share_out(self) -> None:
        """Assign each parameter to the optimizer that updates it; if none does, to the first optimizer."""
        owners = {id(p): id(o) for o in reversed(self._run.optimizers) for p in self._hooks.owned(o)}
        first = id(self._run.optimizers[0])
        self._run.note_trained(frozenset(owners))
        self._owned = {id(optimizer): [] for optimizer in self._run.optimizers}
        for parameter in self._watched:
            self._owned[owners.get(id(parameter.thing), first)].append(parameter)

    def updated_by(self, optimizer: Optimizer) -> list[Watched]:
        """:meth:`of` this optimizer, after another :meth:`look`, a failure of which is counted."""
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - those that were found before can still be read
            count(self._run.faults, "parameters", error)
        return self.of(optimizer)

    def of(self, optimizer: Optimizer) -> list[Watched]:
        """The watched parameters that ``optimizer`` updates; note those that the model no longer has."""
        if self._strange:
            self._strange = False
            self._run.faults.note("optimizer", ValueError(STRANGE))
        if self._empty and not self._empty_reported:
            self._empty_reported = True
            _log.warning(EMPTY, _listed(self._empty))
        if self._replaced:
            for identity in map(id, self._hooks.owned(optimizer)):
                if (full := self._replaced.pop(identity, None)) is not None:
                    self._run.faults.note("parameters", ValueError(REPLACED.format(full)))
        return self._owned.get(id(optimizer), [])


def _ends(owned: Sequence[Parameter]) -> tuple[int, ...]:
    return (len(owned), id(owned[0]), id(owned[-1])) if owned else ()


def _listed(names: Iterable[str]) -> str:
    names = sorted(repr(name) for name in names)
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
