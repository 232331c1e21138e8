"""Checks of the form of a loss, as its graph shows it: what stands between the outputs of the model and the root."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import ClassVar, NamedTuple

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.loss_calls import LossCall, LossGraph
from probe.core.checks.places import module_of
from probe.core.language import Message, message

APPLIES = (
    ("cross_entropy", "probabilities", "softmax"),
    ("binary_cross_entropy_with_logits", "sigmoid", "sigmoid"),
    ("binary_cross_entropy_with_logits", "probabilities", "softmax"),
    ("softmax", "probabilities", "softmax"),
)
"""Functions, each with a form of scores that it must not get, and the function that makes scores of that form."""
WRONG = {"nll_loss": ("probabilities", "numbers", "sigmoid"), "kl_div": ("probabilities",)}
"""Loss functions, each with the forms of scores that it must not get."""


class LossFault(NamedTuple):
    """Fault of losses: a sentence and its numbers."""

    text: Message
    evidence: Mapping[str, float]
    where: tuple[str, ...] = ()


class LossForm(FactCheck):
    """Base of these checks. A loss whose labels are one number is left out."""

    sees = "the operations and labels in the graph of a loss now and then"
    lacks = "no graph of a loss was seen"
    absent: ClassVar[str]
    """Reason for which a program has nothing of the kind, as a clause."""
    graphs: ClassVar[int] = 2
    """Graphs that must show a fault: batches of one pattern may do so by chance."""

    def __init__(self) -> None:
        super().__init__()
        self._graph: object = None
        self._number, self._since = 0, -1

    @classmethod
    def concerns(cls, call: LossCall) -> bool:
        """Return whether a loss is of the kind that is judged."""
        raise NotImplementedError

    @classmethod
    def found(cls, calls: Sequence[LossCall]) -> LossFault | None:
        """Return the fault of some losses of the kind; None if there is none."""
        raise NotImplementedError

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of the losses in a graph; None if there is none."""
        calls = [call for call in graph.losses if call.rows > 1 and cls.concerns(call)]
        return cls.found(calls) if calls else None

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of the losses in a graph, which may depend on earlier ones; None if there is none."""
        return self.in_graph(graph)

    def missing(self) -> str | None:
        """Return why nothing could be judged so far; None if something was judged."""
        return super().missing() if self.judged or self._graph is None else NotApplicable(self.absent)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.loss_graph is None or facts.loss_graph is self._graph:
            return
        self._graph, graph = facts.loss_graph, facts.loss_graph()
        self.judged |= any(call.rows > 1 and self.concerns(call) for call in graph.losses)
        fault = self.fault(graph)
        if fault is not None:
            self._since = self._since if self._number else facts.step
            self._number += 1
            if self._number == self.graphs:
                evidence = {name: value for name, value in fault.evidence.items() if isfinite(value)}
                yield self.finding(facts, self._since, fault.text, evidence, fault.where)


class DoubleSoftmax(LossForm):
    """Report a cross entropy that gets probabilities, or a binary one with logits that gets what a sigmoid returned:
    both apply that function themselves, and the gradient nearly vanishes. A softmax of probabilities is reported, too.
    """

    name = "softmax-twice"
    title = "Softmax applied twice"
    why = "The model learns slowly, and its loss stays far above what it could be."
    source = "https://karpathy.github.io/2019/04/25/recipe/"
    remedy = "Pass the scores before the softmax or sigmoid to the loss, or use the loss that takes probabilities."
    absent = "no loss that applies a softmax or sigmoid"

    @classmethod
    def concerns(cls, call: LossCall) -> bool:
        """Return whether a function applies a softmax or sigmoid."""
        return any(call.function == function for function, _, _ in APPLIES)

    @classmethod
    def found(cls, calls: Sequence[LossCall]) -> LossFault | None:
        """Return the fault of some losses; None if there is none."""
        for function, form, applied in APPLIES:
            of_function = [call for call in calls if call.function == function]
            if of_function and all(call.form == form for call in of_function):
                text = message(
                    "{function} gets what a {applied} has returned, and applies a function of the kind itself",
                    function=function,
                    applied=applied,
                )
                first = of_function[0]
                return LossFault(text, {"calls": len(of_function), "loss": first.value, "classes": first.classes})
        return None


class LogarithmMissing(LossForm):
    """Report a negative log likelihood or a Kullback-Leibler divergence that gets probabilities in place of their
    logarithms, and a negative log likelihood of scores whose exponentials do not sum to 1 over the classes: it falls
    without a bound as the scores grow."""

    name = "not-log-probabilities"
    title = "No logarithms of probabilities"
    why = "The loss has no minimum: it falls without learning."
    source = "https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html"
    remedy = "Use log_softmax over the classes, or cross_entropy on the scores before it."
    absent = "no loss of logarithms of probabilities"

    @classmethod
    def concerns(cls, call: LossCall) -> bool:
        """Return whether a loss expects logarithms of probabilities."""
        return call.function in WRONG

    @classmethod
    def found(cls, calls: Sequence[LossCall]) -> LossFault | None:
        """Return the fault of some losses; None if there is none."""
        for function, forms in WRONG.items():
            of_function = [call for call in calls if call.function == function]
            if of_function and all(call.form in forms for call in of_function):
                first = of_function[0]
                form = message("the probabilities" if first.form == "probabilities" else "scores that are none")
                text = message(
                    "{function} expects logarithms of probabilities, and gets {form}", function=function, form=form
                )
                return LossFault(text, {"calls": len(of_function), "loss": first.value})
        return None


class PairwiseLoss(LossForm):
    """Report a loss whose scores and labels have shapes such as (N, 1) and (N,): each score is compared with all
    labels, and the model learns their mean."""

    name = "broadcast-loss"
    title = "Labels are broadcast"
    why = "The model predicts the mean of all labels, and a warning is the only sign."
    source = "https://discuss.pytorch.org/t/38443"
    remedy = "Give both the same shape, with squeeze(-1) or unsqueeze(-1)."
    absent = "no loss that compares numbers"

    @classmethod
    def concerns(cls, call: LossCall) -> bool:
        """Return whether the labels of a loss are numbers."""
        return not call.classes

    @classmethod
    def found(cls, calls: Sequence[LossCall]) -> LossFault | None:
        """Return the fault of some losses; None if there is none."""
        several = [call for call in calls if call.broadcast]
        if not several:
            return None
        text = message(
            "{function} gets scores and labels of different shapes, and compares all with all",
            function=several[0].function,
        )
        return LossFault(text, {"calls": len(several), "labels": several[0].rows})


class RectifiedScores(LossForm):
    """Report a loss over classes that gets what a rectifier or dropout has returned: scores below zero, by which
    classes are excluded, are cut off with their gradient, and dropout hides classes at random.
    """

    name = "rectified-scores"
    title = "Scores are rectified"
    why = "Classes are learnt late or never: a score that is 0 has no gradient."
    source = "https://doi.org/10.1145/3510003.3510099"
    remedy = "Leave out the rectifier or dropout behind the last layer."
    absent = "no loss that applies a softmax or sigmoid"

    @classmethod
    def concerns(cls, call: LossCall) -> bool:
        """Return whether a function applies a softmax or sigmoid to scores of any sign."""
        return call.function in ("cross_entropy", "binary_cross_entropy_with_logits")

    @classmethod
    def found(cls, calls: Sequence[LossCall]) -> LossFault | None:
        """Return the fault of some losses; None if there is none."""
        forms = {call.form for call in calls}
        if forms == {"rectified"}:
            text = message(
                "{function} gets what a rectifier has returned: no score is below zero", function=calls[0].function
            )
        elif forms == {"dropped"}:
            text = message(
                "{function} gets what dropout has returned: scores are set to 0 at random", function=calls[0].function
            )
        else:
            return None
        return LossFault(text, {"calls": len(calls)})


class ExchangedArguments(LossForm):
    """Report a binary cross entropy whose labels have a gradient, and whose scores have none."""

    name = "arguments-exchanged"
    title = "Arguments are exchanged"
    why = "The loss is another one, and pushes each score without a bound."
    source = "https://github.com/dyelax/Adversarial_Video_Generation/issues/3"
    remedy = "Pass the scores first, and then the labels."
    absent = "no binary cross entropy"

    @classmethod
    def concerns(cls, call: LossCall) -> bool:
        """Return whether a loss is a binary cross entropy."""
        return call.function.startswith("binary_cross_entropy")

    @classmethod
    def found(cls, calls: Sequence[LossCall]) -> LossFault | None:
        """Return the fault of some losses; None if there is none."""
        if not all(call.exchanged for call in calls):
            return None
        function = calls[0].function
        text = message("the labels of {function} have a gradient, and the scores have none", function=function)
        return LossFault(text, {"calls": len(calls)})


class AllIgnored(LossForm):
    """Report that each of the first losses ignores all its labels: a template was not found, or a mask is inverted."""

    name = "ignored-labels"
    title = "All labels are ignored"
    why = "Nothing is learnt: the loss is NaN, or 0 where its sum is divided by at least one."
    source = "https://github.com/huggingface/trl/issues/1191"
    remedy = "Look at a batch of labels: whether any is not the index that the loss ignores."
    absent = "no loss over classes"
    graphs = 4

    @classmethod
    def concerns(cls, call: LossCall) -> bool:
        """Return whether a loss may ignore labels."""
        return bool(call.classes)

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of the losses in a graph; None if there is none."""
        if not graph.losses or any(call.ignored < 1 for call in graph.losses):
            return None
        text = message("all of {labels} labels are ignored", labels=graph.losses[0].rows)
        return LossFault(text, {"labels": graph.losses[0].rows})


def part_of(parameter: str) -> tuple[str, ...]:
    """Return the place of a parameter."""
    return (module_of(parameter),) if parameter else ()
