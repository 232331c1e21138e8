"""Checks of losses of tokens: the relation of labels to tokens, and positions that read what they must not."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import ClassVar

from probe.core.checks.graph_axes import OfShapes
from probe.core.checks.loss_calls import READ, LossCall, LossGraph
from probe.core.checks.loss_form import LossFault, LossForm, part_of
from probe.core.language import message

PADDED = 0.01
"""Share of labels that are padding behind padding, above which padding is learnt: an end of a text is one token."""


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
        return LossFault(text, {}, part_of(graph.padding_read))
