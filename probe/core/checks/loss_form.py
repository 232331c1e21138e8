"""Checks of the form of a loss, as its graph shows it: what stands between the outputs of the model and the root."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite, isnan
from typing import ClassVar, NamedTuple

import numpy as np

from probe.core.checks.check import CheckClass, CheckFinding, Grade, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.loss_calls import READ, LossCall, LossGraph
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
PADDED = 0.01
"""Share of labels that are padding behind padding, above which padding is learnt: an end of a text is one token."""
CLASSES = 4
"""Classes at least of which no one fills several batches by being frequent."""


WEIGHED, FEWEST_LABELS, MORE, HEAVIER = 4, 4, 2.0, 1.2
"""Graphs whose labels are counted, labels of a class at least, and the factors by which a class has more labels, and
more weight."""
UNUSED = 10.0
"""Operations in graphs since the last update, in units of those of the loss, from which on most are not used."""
SEEN = 3e-6
"""Part of a loss that is no rounding."""


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


class OfTokens(LossForm):
    """Base of the checks of losses over classes whose labels are tokens."""

    absent = "no loss whose labels are tokens that the model gets"
    relation: ClassVar[str]
    """Relation of the labels to the tokens that is judged."""

    @classmethod
    def concerns(cls, call: LossCall) -> bool:
        """Return whether the labels of a loss are tokens of the model."""
        return bool(call.classes) and call.relation != "other"

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of the losses in a graph; None if there is none."""
        related = [call for call in graph.losses if cls.concerns(call)]
        if not related or any(call.relation != cls.relation for call in related):
            return None
        return cls.of_all(related, graph)

    @classmethod
    def of_all(cls, calls: Sequence[LossCall], graph: LossGraph) -> LossFault | None:
        """Return the fault of losses whose labels are all of the judged relation; None if there is none."""
        raise NotImplementedError


class CopiedLabels(OfTokens):
    """Report a model with causal attention whose labels are the tokens that it gets at the same positions: it learns to
    copy them, and the loss falls to nothing. A model that sees both sides may be an autoencoder."""

    name = "unshifted-labels"
    title = "Labels equal inputs"
    why = "The model learns to copy its input, with a very good loss."
    source = "https://github.com/huggingface/transformers/issues/32944"
    remedy = "Shift the labels by one: compare the output at each position with the next token."
    relation = "same"

    @classmethod
    def of_all(cls, calls: Sequence[LossCall], graph: LossGraph) -> LossFault | None:
        """Return the fault of causal attention; None of any other."""
        if not (graph.most_ahead <= READ or (isnan(graph.most_ahead) and graph.any_causal)):
            return None
        text = message("the labels of the loss are the tokens that the model gets at the same positions")
        return LossFault(text, {"calls": len(calls)})


class LateLabels(OfTokens):
    """Report labels that are the token after the next one at each position, of a loss that has no others: the data
    shifts them, and the model shifts them again."""

    name = "labels-shifted-twice"
    title = "Labels shifted twice"
    why = "The model learns to leave out every next token, and generates text with holes."
    source = "https://github.com/huggingface/transformers/issues/47394"
    remedy = (
        "Shift the labels in the data or in the loss: a model that computes its loss from labels shifts them itself."
    )
    relation = "second"

    @classmethod
    def of_all(cls, calls: Sequence[LossCall], graph: LossGraph) -> LossFault | None:  # noqa: ARG003 - as of the base
        """Return the fault."""
        text = message("the label at each position is not the next token, but the one after it")
        return LossFault(text, {"calls": len(calls), "labels": calls[0].rows})


class ReadsAhead(OfTokens):
    """Report a model that learns the next token, and reads it: in every layer of attention a position that has a label
    has weight for the next position, as in convolutions with padding on both sides and recurrence from the end. A model
    that reads several sequences of tokens, such as one of an encoder and a decoder, is not judged."""

    name = "not-causal"
    title = "Sees the next token"
    why = "The loss falls to nothing, and the model cannot generate."
    source = "https://github.com/huggingface/transformers/issues/48745"
    remedy = "Apply a causal mask in every layer that mixes positions, and pass is_causal or the mask to the attention."
    relation = "next"

    @classmethod
    def of_all(cls, calls: Sequence[LossCall], graph: LossGraph) -> LossFault | None:  # noqa: ARG003 - as of the base
        """Return the fault if the layers are seen to read ahead."""
        if not graph.least_ahead > READ:
            return None
        text = message(
            "the labels are the next tokens, and in every layer a position reads the next one, with a weight of up to "
            "{weight:.3g}: the model sees what it is to predict",
            weight=graph.least_ahead,
        )
        return LossFault(text, {"weight": graph.least_ahead})


class PaddingLearnt(OfTokens):
    """Report labels that are padding and count in the loss, one behind the other. A single one at the end of a text may
    be meant, where padding also ends a text. Padding is what the table of embeddings says, or one token with which most
    rows end, some of them with many and others with few."""

    name = "padding-counted"
    title = "Padding is learnt"
    why = "The mean is one over padding, which is learnt in place of the text, and short texts count less."
    source = "https://github.com/huggingface/trl/pull/1625"
    remedy = "Set the labels of padding to the index that the loss ignores, -100 by default."
    relation = "next"

    @classmethod
    def of_all(cls, calls: Sequence[LossCall], graph: LossGraph) -> LossFault | None:  # noqa: ARG003 - as of the base
        """Return the fault if much of the labels is padding."""
        share = max(call.padded for call in calls)
        if share <= PADDED:
            return None
        text = message("{share:.0f} % of the labels are padding, and the loss counts them", share=100 * share)
        return LossFault(text, {"share": share, "labels": calls[0].rows})


class OfShapes(LossForm):
    """Base of the checks of what lies before the losses."""

    absent = "no loss of the framework"

    @classmethod
    def concerns(cls, call: LossCall) -> bool:  # noqa: ARG003 - as of the base
        """Return True: any loss has a model before it."""
        return True

    @classmethod
    def found(cls, calls: Sequence[LossCall]) -> LossFault | None:  # noqa: ARG003 - as of the base
        """Return None: losses alone show nothing."""
        return None


class ExchangedAxes(OfShapes):
    """Report a view or reshape that takes one axis for another: heads are split or merged, or batch and time are
    swapped, without a transpose. Views of padding and of slices, by which relative positions are shifted, are left out.
    """

    name = "axes-exchanged"
    title = "A view exchanges axes"
    why = "Numbers of different positions or samples are mixed, and the model learns less than it could."
    source = "https://github.com/hyunwoongko/transformer/issues/15"
    remedy = "Transpose or permute the axes, and use view or reshape only to split one or to merge neighbours."

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if (view := graph.regrouped) is None:
            return None
        text = message(
            "a view from {before} to {after} moves an axis: it takes numbers of one position for those of another",
            before=str(view.before),
            after=str(view.after),
        )
        return LossFault(text, {}, _module(view.place))


class MixedSamples(OfShapes):
    """Report a model each of whose layers of attention or recurrence takes the samples of the batch for a sequence, as
    those without batch_first do with a batch that comes first."""

    name = "samples-as-sequence"
    title = "Samples as a sequence"
    why = "Each prediction depends on the other samples of its batch, and not on its own sequence."
    source = "https://github.com/IBM/TabFormer/pull/14"
    remedy = "Pass batch_first=True to the layer, or transpose what it gets."

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if (crossing := graph.crossing) is None:
            return None
        text = message(
            "the loss compares {samples} samples, and the layers take these for the steps of {rows} sequences",
            samples=crossing.samples,
            rows=crossing.rows,
        )
        return LossFault(text, {"samples": crossing.samples, "sequences": crossing.rows}, _module(crossing.place))


class InvertedMask(OfShapes):
    """Report attention that reads only one token, which stands in a sequence several times, and hides all others: its
    mask has padding and text exchanged."""

    name = "mask-inverted"
    title = "Mask is inverted"
    why = "The model sees the padding alone, and learns from what lies beside the attention."
    source = "https://github.com/mlwithme/TransformerTranslation/issues/6"
    remedy = "Look up whether True means hidden, as in key_padding_mask, or seen, as in attn_mask of the function."

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if graph.inverted is None:
            return None
        text = message("attention reads one token alone, several times in a sequence, and hides all others")
        return LossFault(text, {}, _module(graph.inverted))


class SoftmaxAxis(OfShapes):
    """Report attention whose softmax is taken over the samples of the batch or over the heads, as ``softmax`` without
    ``dim`` does with three or four axes; also weights of the positions of each sample that have a sum of 1 over the
    samples of a loss."""

    name = "softmax-axis"
    title = "Softmax over another axis"
    why = "The weights of a position have no sum of 1, and depend on other samples."
    source = "https://discuss.pytorch.org/t/implicit-dimension-choice-for-softmax-warning/12314"
    remedy = "Pass dim=-1 to the softmax: over the positions that are read."

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if graph.off_axis is None:
            return None
        text = message("the weights of attention have a sum of 1 over samples or heads, and not over positions")
        return LossFault(text, {}, _module(graph.off_axis))


class OneClass(OfShapes):
    """Report that the labels of each of the first batches are sorted and of one class, or of two neighbours, and that
    their loader does not shuffle. Losses with one class by intention, such as contrastive ones, have loaders that do.
    """

    name = "one-class-batches"
    title = "Batches of one class"
    why = "Each update unlearns the classes of the updates before it."
    source = "https://datascience.stackexchange.com/questions/76951"
    remedy = "Pass shuffle=True to the loader of the training data, or shuffle the samples once."
    absent = "no loss over classes with labels enough"
    graphs = 4

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        calls = [call for call in graph.losses if call.classes >= CLASSES]
        if not calls or any(call.spread > 1 for call in calls) or not graph.in_order():
            return None
        text = message("each batch has labels of one class or two neighbours, sorted, and the loader does not shuffle")
        return LossFault(text, {"labels": calls[0].rows, "classes": calls[0].classes})


class InvertedWeights(OfShapes):
    """Report a loss over classes whose weights rise with the number of labels of each class in the first batches, from
    step to step of three classes at least: they are the frequencies, where their inverse was meant."""

    name = "class-weights"
    title = "Class weights are inverted"
    why = "Rare classes count for next to nothing, and the model learns to ignore them."
    source = "https://discuss.pytorch.org/t/weights-in-weighted-loss-nn-crossentropyloss/69514"
    remedy = "Give each class the inverse of its frequency as its weight."
    absent = "no loss with weights of classes"
    graphs = 1

    def __init__(self) -> None:
        super().__init__()
        self._graphs, self._counts, self._weights = 0, np.zeros(0), np.zeros(0)

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of the graphs so far; None if there is none."""
        table = np.array(next((call.weights for call in graph.losses if call.weights), ()))
        if not len(table) or (self._graphs and not np.array_equal(table[:, 0], self._weights)):
            return None
        self._weights, self._counts = table[:, 0], table[:, 1] + (self._counts if self._graphs else 0)
        self._graphs += 1
        counted = (self._weights > 0) & (self._counts >= FEWEST_LABELS)
        weights, counts = self._weights[counted], self._counts[counted]
        more = counts[:, None] >= MORE * counts
        is_between = (more.any(axis=0) & more.any(axis=1)).any()
        if self._graphs < WEIGHED or not is_between or (weights[:, None] < HEAVIER * weights)[more].any():
            return None
        text = message(
            "the weights of {number} classes rise with the number of their labels: the rarest weighs {least:.3g}, the "
            "most frequent {most:.3g}",
            number=len(weights),
            least=float(weights[counts.argmin()]),
            most=float(weights[counts.argmax()]),
        )
        return LossFault(text, {"classes": len(weights)})


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


class MadeInForward(OfShapes):
    """Report parameters that the loss uses, that no model and no optimizer has, and that are others in each graph: a
    layer is made anew in each forward."""

    name = "made-in-forward"
    title = "Layer made in forward"
    why = "The layer is random in each step, and never trained or saved."
    source = "https://docs.pytorch.org/docs/stable/notes/modules.html"
    remedy = "Make the layer in __init__, and only call it in forward."

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[Callable[[], object], ...] = ()
        """Such parameters of the graph before."""

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        self.judged = True
        before, self._last = self._last, graph.foreign
        if not before or not self._last or any(refers() is not None for refers in before):
            return None
        text = message(
            "{number} parameters that the loss uses are made anew for each forward, and no optimizer has them",
            number=len(self._last),
        )
        return LossFault(text, {"parameters": len(self._last)})


class OneRow(OfShapes):
    """Report a table of embeddings, of more rows than sequences have positions, of which one row is looked up at all
    places of all samples: positions that are all 0, or tokens that are all unknown. So is one whose row, at all places
    of a sample, is the number of the sample: positions that count the samples."""

    name = "one-row"
    title = "One row looked up"
    why = "The model does not see what the table stands for, such as the order of the tokens."
    source = "https://github.com/huggingface/transformers/pull/42309"
    remedy = "Look at the indices: whether positions were counted, and whether tokens are of this vocabulary."
    graphs = 4

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if not graph.one_row:
            return None
        text = message("one row of the table is looked up at all places of each sample")
        return LossFault(text, {}, tuple(place for table in graph.one_row for place in _module(table)))


class OneSample(OfShapes):
    """Note batch norms in training mode that get a single sample in each of the first losses: they normalise it by
    itself, which some do by intention."""

    kind: ClassVar[CheckClass] = "unusual"
    grade: ClassVar[Grade] = "note"
    name = "norm-of-one-sample"
    title = "Norm of one sample"
    why = "Evaluation takes other statistics than training: those of all samples, and not of each."
    source = "https://arxiv.org/abs/1803.08494"
    remedy = "Use GroupNorm, freeze the batch norms of a pretrained model, or take more samples in a batch."
    graphs = 4

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if graph.one_sample is None:
            return None
        text = message("batch norms in training mode get one sample at a time")
        return LossFault(text, {}, _module(graph.one_sample))


class PixelsUnscaled(OfShapes):
    """Note images of whole numbers from 0 to 255 that a convolution gets, and behind which no norm follows."""

    kind: ClassVar[CheckClass] = "unusual"
    grade: ClassVar[Grade] = "note"
    name = "pixels-unscaled"
    title = "Pixels are not scaled"
    why = "Activations and gradients are a hundred times as large as the initialisation is made for."
    source = "https://karpathy.github.io/2019/04/25/recipe/"
    remedy = "Divide by 255, and subtract the mean: the net is made for numbers of size 1."
    graphs = 3

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if graph.pixels is None:
            return None
        return LossFault(message("the model gets images of whole numbers up to 255"), {}, _module(graph.pixels))


class UnusedForwards(OfShapes):
    """Note that between two updates of one backward ten times as many operations enter graphs as that of the loss has:
    most forwards are computed with gradients, and no backward uses them."""

    kind: ClassVar[CheckClass] = "unusual"
    grade: ClassVar[Grade] = "note"
    name = "forwards-unused"
    title = "Forwards are not used"
    why = "Of all batches that are shown to the model, it learns a few."
    source = "https://github.com/DeepReinforcementLearning/DeepReinforcementLearningInAction/pull/13"
    sees = "the number of operations in graphs, now and then"
    remedy = "Look at the indentation of the backward and the update; compute what is not trained under no_grad()."
    graphs = 3

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.operations and facts.alone and facts.backwards == 1 and facts.loss_graph is not None:
            graph = facts.loss_graph()
            self._ratio = facts.operations / graph.size if graph.size else 0.0
            yield from super().judge(update)

    def fault(self, graph: LossGraph) -> LossFault | None:  # noqa: ARG002 - as of the base
        """Return the fault of a graph; None if there is none."""
        if self._ratio < UNUSED:
            return None
        text = message("{ratio:.0f} times as much enters graphs as the backward of the loss uses", ratio=self._ratio)
        return LossFault(text, {"ratio": self._ratio})


class DropoutRepeats(OfShapes):
    """Report a dropout that hides the same units in each of the first losses: a seed is set in the loop."""

    name = "dropout-repeats"
    title = "Dropout repeats"
    why = "Some units are never trained, and all random numbers of the loop are the same in each step."
    source = "https://github.com/PaddlePaddle/Paddle/issues/7796"
    remedy = "Set the seed once, before the loop."
    graphs = 3

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[float, float] | None = None

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        before, self._last = self._last, graph.dropped
        if before is None or before != self._last:
            return None
        return LossFault(message("dropout hides the same units in each step"), {"units": before[1]})


class BatchesTwice(OfShapes):
    """Report batches of several workers of an iterable data set that have the labels of the one before, in two of the
    first updates, and not in others: each worker reads all samples. It is a note where the loader is not seen:
    a program may use each batch several times."""

    name = "samples-repeated"
    title = "Each worker reads all"
    why = "Each batch comes once for each worker, and an epoch is as many epochs."
    source = "https://github.com/huggingface/datasets/issues/3423"
    remedy = "Divide the samples among the workers in __iter__, by get_worker_info()."

    def __init__(self) -> None:
        super().__init__()
        self._labels, self._is_other = 0, False

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        calls = (call for call in graph.losses if call.labels and call.spread > 1)
        before, self._labels = self._labels, next((call.labels for call in calls), 0)
        self._is_other |= 0 < before != self._labels > 0
        if not before or before != self._labels:
            return None
        return LossFault(message("batches of several updates have the labels of the batch before"), {})

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.backwards == 1 and facts.alone and not facts.searches:
            of_stream = facts.loss_graph is not None and facts.loss_graph().streams
            findings = (finding for finding in super().judge(update) if self._is_other)
            yield from findings if of_stream else (finding._replace(grade="note") for finding in findings)


class NoGradientTerm(OfShapes):
    """Report a loss of which a part has no gradient and is another one in each graph: a term of what was detached.

    The other terms must be losses of the framework, whose values are computed again.
    """

    name = "term-without-gradient"
    title = "Term without gradient"
    why = "The term is in the loss that is shown, and training does not lower it."
    source = "https://github.com/yifita/deep_cage/issues/16"
    remedy = "Leave out detach(), item() and no_grad() in what computes the term."

    def __init__(self) -> None:
        super().__init__()
        self._first = 0.0
        """Such a part of the first graph."""

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        part, loss = graph.constant
        if not (isfinite(part) and abs(part) > SEEN * abs(loss)):
            return None
        self._first = self._first or part
        if abs(part - self._first) <= SEEN * abs(loss):
            return None
        text = message("{part:.3g} of a loss of {loss:.3g} is a term without gradient", part=part, loss=loss)
        return LossFault(text, {"part": part, "loss": loss})


class MovingGoal(OfShapes):
    """Report a distance between a score that was chosen, as of an action, and a goal of the best of other scores, that
    has a gradient on both sides: the goal of Q learning was not detached. The same of a value and a reward with a part
    of a later value of the same layer."""

    name = "goal-not-detached"
    title = "Goal is not detached"
    why = "The update pulls the goal to the score, too, and values are not those of the rewards."
    source = "https://docs.pytorch.org/tutorials/intermediate/reinforcement_q_learning.html"
    remedy = "Compute the goal under no_grad(), or detach it."

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if not graph.moving_goal:
            return None
        text = message("the goal, of later scores, has a gradient, as the scores have that are compared with it")
        return LossFault(text, {})


class PaddingRead(OfShapes):
    """Report attention in which tokens read padding, in each layer, and means over positions that take padding in: the
    mask was not given. Padding is what the table of embeddings says, or one token with which most rows end, some of
    them with many and others with few."""

    name = "padding-read"
    title = "Padding is read"
    why = "What the model says of a text depends on the length of the longest of its batch."
    source = "https://github.com/jingyaogong/minimind-v/issues/76"
    remedy = "Pass the mask of padding to each layer of attention, and divide sums by the number of tokens."

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if graph.padding_read is None:
            return None
        text = message("the padding of the tokens has a part in attention or in a mean over positions")
        return LossFault(text, {}, _module(graph.padding_read))


class DataWritten(OfShapes):
    """Report batches that are parts of one memory, which is written before each of them: an augmentation that changes
    the data set in place."""

    name = "data-written"
    title = "Data set is written"
    why = "Each epoch gets the data as the last one has left them, and not those of before."
    source = "https://github.com/facebookresearch/pycls/pull/21"
    remedy = "Copy a sample before it is changed, or use operations that return another tensor."
    graphs = 3

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[int, int, int] | None = None

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        before, self._last = self._last, graph.batch
        if before is None or self._last is None:
            return None
        (memory, version, place), (last_memory, last_version, last_place) = self._last, before
        if memory != last_memory or version <= last_version or place == last_place:
            return None
        return LossFault(message("batches are parts of one memory, and are written before they are used"), {})


class NegatedLoss(OfShapes):
    """Report a backward whose root is the negative of a mean loss: the update raises it without a bound. A program with
    several optimizers may play one part against another."""

    name = "loss-negated"
    title = "Loss is raised"
    why = "The model learns to be wrong, and the loss falls without a bound."
    source = "https://karpathy.github.io/2019/04/25/recipe/"
    remedy = "Minimise the loss itself; losses of the framework are negative log likelihoods or distances already."

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        return super().judge(update) if update.facts.alone else iter(())

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if not graph.negated:
            return None
        text = message(
            "the root of the backward is the negative of {function}, which training raises", function=graph.negated
        )
        return LossFault(text, {})


def _module(parameter: str) -> tuple[str, ...]:
    """Return the place of a parameter."""
    return (module_of(parameter),) if parameter else ()
