"""Check for modules in plain containers, which no optimizer gets."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import ancestors, listing
from probe.core.language import message


class UnusedLoss(FactCheck):
    """Report a loss that a module keeps as its attribute, such as the balancing loss of a router, and of which none of
    the first losses is made whose backward runs."""

    name = "loss-unused"
    title = "Loss is not used"
    why = "Nothing lowers it: the experts of a router, say, are not balanced."
    source = "https://github.com/jingyaogong/minimind/issues/140"
    sees = "attributes of modules, and the graph of a loss now and then"
    remedy = "Add it to the loss, or compute it under no_grad() if it is only to be shown."
    lacks = "no graph of a loss was seen"

    def __init__(self) -> None:
        super().__init__()
        self._reported = False

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self.judged |= bool(facts.uses)
        if facts.unused and not self._reported:
            self._reported = True
            text = message("{places} has a graph, and no loss is made of it", places=listing(facts.unused))
            yield self.finding(facts, facts.step, text, {"losses": len(facts.unused)}, facts.unused)


class NotRegistered(FactCheck):
    """Report parameters of modules in a plain list, tuple or dictionary of a model that the loss uses, that require a
    gradient and that are in no optimizer: ``parameters()`` does not return them."""

    name = "not-registered"
    title = "Not registered"
    why = "These modules are never trained, moved to the device or saved."
    source = "https://github.com/pytorch/pytorch/issues/59925"
    sees = "modules in lists and dictionaries of the models, and the parameters in the graph of a loss now and then"
    remedy = "Keep modules in nn.ModuleList or nn.ModuleDict, and parameters in nn.ParameterList."
    lacks = "no graph of a loss was seen"

    def __init__(self) -> None:
        super().__init__()
        self._reported: tuple[str, ...] = ()

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self.judged |= bool(facts.uses)
        if not facts.hidden or facts.hidden == self._reported:
            return
        self._reported = facts.hidden
        where = ancestors(facts.hidden, (*facts.names, *facts.hidden))
        text = message(
            "{number} parameters that the loss uses lie in plain containers of modules and are in no optimizer: "
            "{places}",
            number=len(facts.hidden),
            places=listing(where),
        )
        yield self.finding(facts, facts.step, text, {"parameters": len(facts.hidden)}, where)
