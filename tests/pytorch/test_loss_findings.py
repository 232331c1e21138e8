"""Findings that the graph of a loss, the clips, the scaler and the first numbers of parameters show, each with a twin
that differs in the fault alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.pytorch.test_loop_findings import Found, found  # noqa: F401 - a fixture
from tests.required import require

torch = require("torch")

from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

nn = torch.nn
STEPS, TOKENS, LENGTH, WIDTH = 8, 12, 9, 16
Loop = Callable[[Any, Any], None]
Program = tuple[Any, Loop]
PROGRAMS: dict[str, tuple[str, Callable[[bool], Program], str]] = {}
"""Kind that is found, function from whether the fault is in to a model and its loop, and the first place, by name."""


def program(kind: str, place: str = "") -> Callable[[Callable[[bool], Program]], Callable[[bool], Program]]:
    """Add a program."""

    def add(make: Callable[[bool], Program]) -> Callable[[bool], Program]:
        PROGRAMS[make.__name__] = kind, make, place
        return make

    return add


def updates(loss_of: Callable[[Any], Any], steps: int = STEPS) -> Loop:
    """A plain loop."""

    def loop(model: Any, optimizer: Any) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()

    return loop


class Decoder(nn.Module):  # type: ignore[misc]
    """A layer of attention between an embedding and a head.

    Args:
        mask: whether a position reads those before it alone.
        way: ``softmax``, or the arguments of the fused attention: ``flag`` or ``mask``.
    """

    def __init__(self, mask: bool = True, way: str = "softmax") -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(TOKENS, WIDTH, padding_idx=0), nn.Embedding(LENGTH, WIDTH)
        self.mix, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, TOKENS)
        self.mask, self.way = mask, way

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = self.mix(x)[:, None].chunk(3, -1)
        hidden = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        if self.way == "softmax":
            scores = q @ k.transpose(-1, -2) / WIDTH**0.5
            mixed = (scores.masked_fill(hidden, float("-inf")) if self.mask else scores).softmax(-1) @ v
        else:
            masks = (
                {"is_causal": self.mask}
                if self.way == "flag"
                else {"attn_mask": ~hidden if self.mask else ~hidden[-1:]}
            )
            mixed = F.scaled_dot_product_attention(q, k, v, **masks)
        return self.head(x + mixed[:, 0])


def tokens(padded: bool = False) -> Any:
    """Some texts, of which the second half is padding."""
    ids = torch.randint(1, TOKENS, (4, LENGTH + 1))
    ids[:, (LENGTH if not padded else LENGTH // 2) + 1 :] = 0
    return ids


def next_loss(model: Any, padded: bool = False, **more: Any) -> Any:
    ids = tokens(padded)
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), **more)


@program("not-causal")
def without_a_mask(faulty: bool) -> Program:
    return Decoder(mask=not faulty), updates(next_loss)


@program("not-causal")
def fused_without_a_flag(faulty: bool) -> Program:
    return Decoder(not faulty, "flag"), updates(next_loss)


@program("not-causal")
def fused_without_a_mask(faulty: bool) -> Program:
    return Decoder(not faulty, "mask"), updates(next_loss)


@program("unshifted-labels")
def labels_are_the_inputs(faulty: bool) -> Program:
    def loss(model: Any) -> Any:
        ids = tokens()
        labels = ids[:, :-1] if faulty else ids[:, 1:]
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), labels.flatten())

    return Decoder(), updates(loss)


@program("labels-shifted-twice")
def labels_are_late(faulty: bool) -> Program:
    def loss(model: Any) -> Any:
        ids = tokens()
        scores, labels = model(ids[:, :-1]), ids[:, 1:]
        if faulty:
            scores, labels = scores[:, :-1], labels[:, 1:]
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())

    return Decoder(), updates(loss)


@program("padding-counted")
def padding_counts(faulty: bool) -> Program:
    return Decoder(), updates(lambda model: next_loss(model, padded=True, ignore_index=-100 if faulty else 0))


@program("padding-counted")
def padding_counts_without_an_index(faulty: bool) -> Program:
    """Most texts end with some of one token, which no table calls padding."""

    def loss(model: Any) -> Any:
        ids = torch.randint(1, TOKENS, (4, LENGTH + 1))
        ids[torch.arange(LENGTH + 1) > torch.tensor([[2], [4], [6], [LENGTH]])] = 0
        scores = model(ids[:, :-1]).flatten(0, 1)
        return F.cross_entropy(scores, ids[:, 1:].flatten(), ignore_index=-100 if faulty else 0)

    model = Decoder()
    model.embed = nn.Embedding(TOKENS, WIDTH)
    return model, updates(loss)


class Convolutions(nn.Module):  # type: ignore[misc]
    """A convolution over positions behind an embedding.

    Args:
        ends: positions that are added before the first and behind the last.
    """

    def __init__(self, *ends: int) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(TOKENS, WIDTH), nn.Conv1d(WIDTH, WIDTH, 3)
        self.head, self.ends = nn.Linear(WIDTH, TOKENS), ends

    def forward(self, ids: Any) -> Any:
        return self.head(self.mix(F.pad(self.embed(ids).transpose(1, 2), self.ends)).transpose(1, 2))


@program("not-causal")
def convolution_with_both_ends(faulty: bool) -> Program:
    return Convolutions(*((1, 1) if faulty else (2, 0))), updates(next_loss)


class BothWays(Convolutions):
    """Recurrence in place of the convolution.

    Args:
        both: whether it also runs from the end.
    """

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.mix, self.head = nn.LSTM(WIDTH, WIDTH, bidirectional=both), nn.Linear((1 + both) * WIDTH, TOKENS)

    def forward(self, ids: Any) -> Any:
        return self.head(self.mix(self.embed(ids).transpose(0, 1))[0].transpose(0, 1))


@program("not-causal")
def recurrence_from_the_end(faulty: bool) -> Program:
    return BothWays(faulty), updates(next_loss)


@program("class-weights")
def weights_are_frequencies(faulty: bool) -> Program:
    shares = torch.tensor([0.6, 0.25, 0.1, 0.05])
    weights = shares if faulty else 1 / shares

    def loss(model: Any) -> Any:
        return F.cross_entropy(model(torch.randn(200, 8)), torch.multinomial(shares, 200, True), weights)

    return classifier(), updates(loss)


def classifier(*end: Any) -> Any:
    return nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4), *end)


@program("softmax-twice")
def softmax_before_cross_entropy(faulty: bool) -> Program:
    model = classifier(*[nn.Softmax(1)] * faulty)
    return model, updates(lambda model: F.cross_entropy(model(torch.randn(6, 8)), torch.randint(0, 4, (6,))))


@program("softmax-twice")
def sigmoid_before_logits(faulty: bool) -> Program:
    model = classifier(*[nn.Sigmoid()] * faulty)
    return model, updates(lambda m: F.binary_cross_entropy_with_logits(m(torch.randn(6, 8)), torch.rand(6, 4)))


@program("not-log-probabilities")
def likelihood_of_probabilities(faulty: bool) -> Program:
    model = classifier(nn.Softmax(1) if faulty else nn.LogSoftmax(1))
    return model, updates(lambda model: F.nll_loss(model(torch.randn(6, 8)), torch.randint(0, 4, (6,))))


@program("not-log-probabilities")
def logarithms_over_the_samples(faulty: bool) -> Program:
    model = classifier(nn.LogSoftmax(0 if faulty else 1))
    return model, updates(lambda model: F.nll_loss(model(torch.randn(6, 8)), torch.randint(0, 4, (6,))))


class Heads(nn.Module):  # type: ignore[misc]
    """Attention of two heads.

    Args:
        split: whether heads are made by a transpose, and not by a view alone; ``merged`` the same of their end.
        axis: that of the softmax.
    """

    def __init__(self, split: bool = True, merged: bool = True, axis: int = -1) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(8, 24), nn.Linear(8, 4)
        self.split, self.merged, self.axis = split, merged, axis

    def forward(self, x: Any) -> Any:
        q, k, v = self.mix(x).chunk(3, -1)
        shapes = ((6, LENGTH, 2, 4), (1, 2)) if self.split else ((6, 2, LENGTH, 4), (1, 1))
        q, k, v = (part.reshape(shapes[0]).transpose(*shapes[1]) for part in (q, k, v))
        mixed = F.dropout((q @ k.transpose(-1, -2)).softmax(self.axis), 0.1) @ v
        return self.out((mixed.transpose(1, 2) if self.merged else mixed).reshape(6, LENGTH, 8)).mean(1)


def of_sequences(model: Any) -> Any:
    return F.cross_entropy(model(torch.randn(6, LENGTH, 8)), torch.randint(0, 4, (6,)))


@program("axes-exchanged", "mix")
def heads_are_split_by_a_view(faulty: bool) -> Program:
    return Heads(split=not faulty), updates(of_sequences)


@program("axes-exchanged", "mix")
def heads_are_merged_by_a_view(faulty: bool) -> Program:
    return Heads(merged=not faulty), updates(of_sequences)


@program("axes-exchanged", "1")
def scores_are_given_by_a_view(faulty: bool) -> Program:
    def loss(model: Any) -> Any:
        ids = tokens()
        scores = model[1](model.embed(ids[:, :-1]))
        return F.cross_entropy(scores.view(4, 18, LENGTH) if faulty else scores.transpose(1, 2), ids[:, 1:])

    model = nn.Sequential(nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, 2 * LENGTH))
    model.embed = model[0]
    return model, updates(loss)


class Sequences(nn.Module):  # type: ignore[misc]
    """Classifier of sequences by a layer that may take their batch for a sequence."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(8, 4)

    def forward(self, x: Any, **more: Any) -> Any:
        x = self.layer(x, **more)
        return self.head((x[0] if isinstance(x, tuple) else x).mean(1))


@program("samples-as-sequence", "layer.self_attn")
def attention_over_the_samples(faulty: bool) -> Program:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=not faulty)
    return Sequences(layer), updates(of_sequences)


@program("samples-as-sequence", "layer")
def recurrence_over_the_samples(faulty: bool) -> Program:
    return Sequences(nn.LSTM(8, 8, batch_first=not faulty)), updates(of_sequences)


@program("mask-inverted", "layer.self_attn")
def padding_alone_is_read(faulty: bool) -> Program:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, model.embed = Sequences(layer), nn.Embedding(TOKENS, 8)

    def loss(model: Any) -> Any:
        ids = tokens(padded=True)
        scores = model(model.embed(ids), src_key_padding_mask=(ids != 0) if faulty else (ids == 0))
        return F.cross_entropy(scores, torch.randint(0, 4, (4,)))

    return model, updates(loss)


@program("softmax-axis", "mix")
def attention_is_normalized_over_heads(faulty: bool) -> Program:
    return Heads(axis=1 if faulty else -1), updates(of_sequences)


@program("softmax-axis", "mix")
def attention_is_normalized_over_samples(faulty: bool) -> Program:
    return Heads(axis=0 if faulty else -1), updates(of_sequences)


class Pooled(nn.Module):  # type: ignore[misc]
    """Mean over positions, with weights that a layer gives them, over one axis or over both."""

    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.score, self.out, self.axes = nn.Linear(8, 1), nn.Linear(8, 4), axes

    def forward(self, x: Any) -> Any:
        scores = self.score(x)
        return self.out((math.prod((scores / 0.5).softmax(axis) for axis in self.axes) * x).sum(1))


@program("softmax-axis", "score")
def pooling_is_normalized_over_samples(faulty: bool) -> Program:
    return Pooled(*((0,) if faulty else (0, 1))), updates(of_sequences)


@program("loss-negated")
def loss_is_raised(faulty: bool) -> Program:
    def loss(model: Any) -> Any:
        value = F.cross_entropy(model(torch.randn(6, 8)), torch.randint(0, 4, (6,)))
        return -value if faulty else value

    return classifier(), updates(loss)


@program("gradients-discarded")
def cleared_for_each_micro_batch(faulty: bool) -> Program:
    def loop(model: Any, optimizer: Any) -> None:
        for _ in range(STEPS):
            for micro in range(3):
                if faulty or not micro:
                    optimizer.zero_grad()
                (model(torch.randn(6, 8)).pow(2).mean() / 3).backward()
            optimizer.step()

    return classifier(), loop


@program("undivided-accumulation")
def means_are_added(faulty: bool) -> Program:
    def loop(model: Any, optimizer: Any) -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            for _ in range(4):
                loss = F.cross_entropy(model(torch.randn(6, 8)), torch.randint(0, 4, (6,)))
                (loss if faulty else loss / 4).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()

    return classifier(), loop


@program("one-class-batches")
def samples_are_sorted(faulty: bool) -> Program:
    def loop(model: Any, optimizer: Any) -> None:
        data = torch.utils.data.TensorDataset(torch.randn(96, 8), torch.arange(96) // 24)
        for x, y in torch.utils.data.DataLoader(data, 8, shuffle=not faulty):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return classifier(), loop


@program("one-class-batches")
def sorted_samples_have_begun_before(faulty: bool) -> Program:
    """Of a loader that no variable leads to."""
    data = torch.utils.data.TensorDataset(torch.randn(96, 8), torch.arange(96) // 24)
    batches = iter(torch.utils.data.DataLoader(data, 8, shuffle=not faulty))

    def loop(model: Any, optimizer: Any) -> None:
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return classifier(), loop


def epochs(model: Any, optimizer: Any, told: bool) -> None:
    """Epochs of a rank, with a validation whose order is of no importance between them."""
    data = torch.utils.data.TensorDataset(torch.randn(24, 8))
    samplers = [torch.utils.data.distributed.DistributedSampler(data, 2, 0) for _ in range(2)]
    loader, others = (torch.utils.data.DataLoader(data, 6, sampler=sampler) for sampler in samplers)
    for epoch in range(4):
        if told:
            samplers[0].set_epoch(epoch)
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        model.eval()
        assert [model(x).isfinite().all() for (x,) in others]
        model.train()


@program("same-order")
def epochs_of_one_order(faulty: bool) -> Program:
    return classifier(), lambda model, optimizer: epochs(model, optimizer, told=not faulty)


@program("same-order")
def seed_before_each_epoch(faulty: bool) -> Program:
    """The loader is made anew each time, as programs do."""

    def loop(model: Any, optimizer: Any) -> None:
        for epoch in range(3):
            torch.manual_seed(0 if faulty else epoch)
            for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(12, 8)), 6, shuffle=True):
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()

    return classifier(), loop


@program("rectified-scores")
def rectifier_before_cross_entropy(faulty: bool) -> Program:
    model = classifier(*[nn.ReLU()] * faulty)
    return model, updates(lambda model: F.cross_entropy(model(torch.randn(6, 8)), torch.randint(0, 4, (6,))))


@program("rectified-scores")
def dropout_before_cross_entropy(faulty: bool) -> Program:
    layers = [nn.Linear(8, WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, 4)]
    model = nn.Sequential(*(layers[::2] + layers[1:2] if faulty else layers))
    return model, updates(lambda m: F.cross_entropy(m(torch.randn(6, 8)), torch.randint(0, 4, (6,))))


@program("dropout-repeats")
def seed_in_the_loop(faulty: bool) -> Program:
    seeds = iter(range(100))

    def loss(model: Any) -> Any:
        torch.manual_seed(next(seeds) * (not faulty))
        return F.mse_loss(model(torch.randn(16, 8)), torch.randn(16, 4))

    return nn.Sequential(nn.Linear(8, WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, 4)), updates(loss)


@program("one-row", "places")
def positions_are_all_0(faulty: bool) -> Program:
    model = Decoder()
    if faulty:
        model.places.register_forward_pre_hook(lambda _, ids: torch.zeros_like(ids[0]))
    return model, updates(next_loss)


@program("one-row", "places")
def positions_count_the_samples(faulty: bool) -> Program:
    model = Decoder()
    if faulty:
        model.places.register_forward_pre_hook(lambda *_: torch.arange(4)[:, None].expand(4, LENGTH))
    return model, updates(next_loss)


@program("ignored-labels")
def no_answer_is_found(faulty: bool) -> Program:
    """The sum of the losses is divided by the number of labels, at least 1."""

    def loss(model: Any) -> Any:
        ids = tokens()
        labels = ids[:, 1:].clone()
        labels[:, : LENGTH if faulty else LENGTH // 2] = -100
        whole = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), labels.flatten(), reduction="sum")
        return whole / (labels >= 0).sum().clamp(min=1)

    return Decoder(), updates(loss)


@program("arguments-exchanged")
def labels_stand_for_scores(faulty: bool) -> Program:
    def loss(model: Any) -> Any:
        scores, labels = model(torch.randn(6, 8)), torch.rand(6, 4).round()
        return F.binary_cross_entropy_with_logits(*((labels, scores) if faulty else (scores, labels)))

    return classifier(), updates(loss)


@program("clip-before-unscale")
def clip_by_value_of_scaled_gradients(faulty: bool) -> Program:
    def loop(model: Any, optimizer: Any) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(6, 8)).pow(2).mean()).backward()
            if not faulty:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()

    return classifier(), loop


@program("term-without-gradient")
def term_is_detached(faulty: bool) -> Program:
    def loss(model: Any) -> Any:
        scores = model(torch.randn(6, 8))
        size = F.mse_loss(scores.detach() if faulty else scores, torch.ones(6, 4))
        return 0.5 + 2 * F.cross_entropy(scores, torch.randint(0, 4, (6,))) - size / 3

    return classifier(), updates(loss)


class Router(nn.Module):  # type: ignore[misc]
    """A layer that keeps its balancing loss."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4)
        self.aux_loss: Any = None

    def forward(self, x: Any) -> Any:
        shares = self.gate(x).softmax(-1)
        self.aux_loss = shares.mean(0).pow(2).sum()
        return self.head(shares)


@program("loss-unused", "aux_loss")
def balancing_loss_is_not_added(faulty: bool) -> Program:
    """In the healthy program it has a backward of its own."""

    def loop(model: Any, optimizer: Any) -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.randn(6, 8)), torch.randint(0, 4, (6,)))
            loss.backward(retain_graph=True)
            if not faulty:
                model.aux_loss.backward()
            optimizer.step()

    return Router(), loop


@program("goal-not-detached")
def goal_of_the_best_action(faulty: bool) -> Program:
    def loss(model: Any) -> Any:
        goal = torch.randn(6, 1) + 0.9 * model(torch.randn(6, 8)).max(1, keepdim=True).values
        chosen = model(torch.randn(6, 8)).gather(1, torch.randint(0, 4, (6, 1)))
        return F.mse_loss(chosen, goal if faulty else goal.detach())

    return classifier(), updates(loss)


@program("goal-not-detached")
def goal_of_a_later_value(faulty: bool) -> Program:
    def loss(model: Any) -> Any:
        goal = torch.randn(6, 4) + 0.9 * model(torch.randn(6, 8))
        return F.mse_loss(model(torch.randn(6, 8)), goal if faulty else goal.detach())

    return classifier(), updates(loss)


class Reader(nn.Module):  # type: ignore[misc]
    """A classifier of padded texts, by the first position or by the mean of all.

    Args:
        hides: whether padding is hidden from what reads positions.
        pools: whether that is the mean alone, without padding in the table of embeddings.
    """

    def __init__(self, hides: bool, pools: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(TOKENS, WIDTH, padding_idx=None if pools else 0), nn.Linear(WIDTH, 4)
        self.mix = nn.Linear(WIDTH, WIDTH if pools else 3 * WIDTH)
        self.hides, self.pools = hides, pools

    def forward(self, ids: Any) -> Any:
        x, pad = self.mix(self.embed(ids)), ids == 0
        if self.pools:
            seen = ~pad[..., None]
            return self.head((x * seen).sum(1) / seen.sum(1) if self.hides else x.mean(1))
        q, k, v = x[:, None].chunk(3, -1)
        scores = q @ k.transpose(-1, -2)
        if self.hides:
            scores = scores.masked_fill(pad[:, None, None], float("-inf"))
        return self.head((scores.softmax(-1) @ v)[:, 0, 0])


def of_padded_texts(model: Any) -> Any:
    ids = torch.randint(1, TOKENS, (8, LENGTH))
    for row, length in enumerate((2, 3, 4, 5, 6, 7, 3, 2)):
        ids[row, length:] = 0
    return F.cross_entropy(model(ids), torch.randint(0, 4, (8,)))


@program("padding-read", "mix")
def padding_has_weight(faulty: bool) -> Program:
    return Reader(not faulty), updates(of_padded_texts)


@program("padding-read", "mix")
def padding_is_in_the_mean(faulty: bool) -> Program:
    return Reader(not faulty, pools=True), updates(of_padded_texts)


@program("data-written")
def samples_are_changed_in_place(faulty: bool) -> Program:
    data = torch.randn(STEPS * 6, 8)

    def loop(model: Any, optimizer: Any) -> None:
        for step in range(STEPS):
            x = data[6 * step : 6 * step + 6]
            x = (x if faulty else x.clone()).add_(0.1)
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()

    return classifier(), loop


@program("beginning-cut", "0")
def encoder_is_cut_off(faulty: bool) -> Program:
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4))

    def loss(model: Any) -> Any:
        hidden = model[0](torch.randn(6, 8))
        return model[1](hidden.data if faulty else hidden).pow(2).mean()

    return model, updates(loss)


@program("first-batch-only")
def loader_begins_again(faulty: bool) -> Program:
    rows = torch.utils.data.TensorDataset(torch.randn(6 * STEPS, 8))
    loader = torch.utils.data.DataLoader(rows, batch_size=6)

    def loop(model: Any, optimizer: Any) -> None:
        batches = iter(loader)
        for _ in range(STEPS):
            (x,) = next(iter(loader) if faulty else batches)
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()

    return classifier(), loop


@program("loads-itself")
def best_weights_are_no_copy(faulty: bool) -> Program:
    def loop(model: Any, optimizer: Any) -> None:
        best = {name: thing if faulty else thing.clone() for name, thing in model.state_dict().items()}
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(6, 8)).pow(2).mean().backward()
            optimizer.step()
            if step == 2:
                model.load_state_dict(best)

    return classifier(), loop


@program("loads-nothing")
def no_name_is_known(faulty: bool) -> Program:
    def loop(model: Any, optimizer: Any) -> None:
        start = "module." if faulty else ""
        model.load_state_dict({start + name: thing + 0.1 for name, thing in model.state_dict().items()}, strict=False)
        updates(lambda model: model(torch.randn(6, 8)).pow(2).mean())(model, optimizer)

    return classifier(), loop


@program("checkpoint-random")
def checkpoint_with_other_masks(faulty: bool) -> Program:
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, 4))

    def loss(model: Any) -> Any:
        x = torch.randn(6, 8, requires_grad=True)
        return checkpoint(model, x, use_reentrant=False, preserve_rng_state=not faulty).pow(2).mean()

    return model, updates(loss)


@program("schedule-of-another")
def schedule_of_an_optimizer_that_was_replaced(faulty: bool) -> Program:
    def loop(model: Any, optimizer: Any) -> None:
        owner = torch.optim.Adam(model.parameters()) if faulty else optimizer
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(owner, 100)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(6, 8)).pow(2).mean().backward()
            optimizer.step()
            schedule.step()

    return classifier(), loop


@program("schedule-ahead")
def schedule_takes_two_steps_an_update(faulty: bool) -> Program:
    def loop(model: Any, optimizer: Any) -> None:
        total_steps = 40
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(6, 8)).pow(2).mean().backward()
            optimizer.step()
            for _ in range(1 + faulty):
                schedule.step()

    return classifier(), loop


@program("schedule-restarted")
def schedule_is_not_loaded(faulty: bool) -> Program:
    def loop(model: Any, optimizer: Any) -> None:
        state = optimizer.state_dict()
        zeros = [torch.zeros_like(parameter) for parameter in model.parameters()]
        rows = [{"step": torch.tensor(20.0), "exp_avg": zero, "exp_avg_sq": zero + 1} for zero in zeros]
        optimizer.load_state_dict({**state, "state": dict(enumerate(rows))})
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        schedule.last_epoch = 0 if faulty else 20
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(6, 8)).pow(2).mean().backward()
            optimizer.step()
            schedule.step()

    return classifier(), loop


@pytest.mark.parametrize("mode", [True, False])
def test_an_evaluation_in_training_mode_is_found(
    mode: bool,
    found: Callable[..., Found],  # noqa: F811 - the fixture
) -> None:
    """By what batch normalization writes; a look at one batch, and an average that is put in and out, write less."""

    def loop(model: Any, optimizer: Any) -> None:
        for step in range(24):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(6, 8)), torch.randn(6, 4)).backward()
            optimizer.step()
            model.train(mode or step != 16)
            with torch.no_grad():
                assert all(model(torch.randn(6, 8)).isfinite().all() for _ in range({14: 1, 16: 4}.get(step, 0)))
            if step == 18:
                for _ in range(2):
                    model.load_state_dict({name: thing.clone() for name, thing in model.state_dict().items()})
            model.train()

    rows = found(loop, nn.Sequential(nn.Linear(8, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 4)))
    assert rows == ([("evaluated-in-training", 18, ())] if mode else [])


@program("made-in-forward")
def layer_is_made_in_forward(faulty: bool) -> Program:
    model, kept = classifier(), nn.Linear(WIDTH, WIDTH)
    model.kept = None if faulty else kept

    def loss(model: Any) -> Any:
        layer = nn.Linear(WIDTH, WIDTH) if faulty else kept
        return model[2](layer(model[0](torch.randn(6, 8))).tanh()).pow(2).mean()

    return model, updates(loss)


class EncoderDecoder(nn.Module):  # type: ignore[misc]
    """Two sequences of tokens, of which the second is read causally."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS)
        self.net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def forward(self, source: Any, target: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.out(self.net(self.embed(source), self.embed(target), tgt_mask=mask))


@program("unshifted-labels")
def decoder_gets_its_labels(faulty: bool) -> Program:
    def loss(model: Any) -> Any:
        source, ids = tokens(), tokens()
        scores = model(source, ids[:, 1:] if faulty else ids[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())

    return EncoderDecoder(), updates(loss)


@program("broadcast-loss")
def column_less_row(faulty: bool) -> Program:
    def loss(model: Any) -> Any:
        labels = torch.randn(6) if faulty else torch.randn(6, 1)
        return (model(torch.randn(6, 8)) - labels).pow(2).mean()

    return nn.Linear(8, 1), updates(loss)


@program("broadcast-loss")
@pytest.mark.filterwarnings("ignore")
def row_and_column_of_mse(faulty: bool) -> Program:
    def loss(model: Any) -> Any:
        return F.mse_loss(model(torch.randn(6, 8)), torch.randn(6) if faulty else torch.randn(6, 1))

    return nn.Linear(8, 1), updates(loss)


@program("clip-of-nothing")
def spent_iterator(faulty: bool) -> Program:
    def loop(model: Any, optimizer: Any) -> None:
        parameters: Any = filter(lambda p: p.requires_grad, model.parameters())
        parameters = parameters if faulty else [*parameters]
        assert [*parameters]
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(6, 8)).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(parameters, 0.1)
            optimizer.step()

    return classifier(), loop


@program("clip-each-backward")
def clip_in_accumulation(faulty: bool) -> Program:
    def loop(model: Any, optimizer: Any) -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            for micro in range(3):
                model(torch.randn(6, 8)).pow(2).mean().backward()
                if faulty or micro == 2:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()

    return classifier(), loop


@program("scaled-update")
def past_the_scaler(faulty: bool) -> Program:
    def loop(model: Any, optimizer: Any) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(6, 8)).pow(2).mean()).backward()
            if faulty:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()

    return classifier(), loop


class Listed(nn.Module):  # type: ignore[misc]
    """Layers in a list."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        layers = [nn.Linear(8, 8) for _ in range(2)]
        self.layers, self.head = layers if plain else nn.ModuleList(layers), nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x).tanh()
        return self.head(x)


@program("not-registered", "layers.0")
def layers_in_a_list(faulty: bool) -> Program:
    return Listed(faulty), updates(lambda model: model(torch.randn(6, 8)).pow(2).mean())


@program("symmetric-units", "0.weight")
def weights_alike(faulty: bool) -> Program:
    model = classifier()
    for parameter in [*model.parameters()] if faulty else [model[0].bias, model[2].bias]:
        nn.init.constant_(parameter, 0.1 if parameter.dim() > 1 else 0.0)
    return model, updates(lambda model: model(torch.randn(6, 8)).pow(2).mean())


class Factors(nn.Module):  # type: ignore[misc]
    """A layer with factors of low rank, and one with the bias of a time step."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.dt_bias = nn.Linear(8, 8), nn.Parameter(torch.linspace(-6, -2, 8))
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.zeros(8, 2))

    def forward(self, x: Any) -> Any:
        return self.base(x) + x @ self.lora_A.T @ self.lora_B.T + F.softplus(self.dt_bias) * x


def factors(name: str, number: float | None) -> Program:
    """A model one of whose parameters begins with one number, if that is one."""
    model = Factors()
    if number is not None:
        nn.init.constant_(getattr(model, name), number)
    return model, updates(lambda model: model(torch.randn(6, 8)).pow(2).mean())


@program("initialisation", "lora_A")
def factors_of_zeros(faulty: bool) -> Program:
    return factors("lora_A", 0.0 if faulty else None)


@program("initialisation", "dt_bias")
def time_steps_of_ones(faulty: bool) -> Program:
    return factors("dt_bias", 1.0 if faulty else None)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fault_is_found_at_its_place_and_its_twin_is_not(
    name: str,
    seed: int,
    found: Callable[..., Found],  # noqa: F811 - the fixture
) -> None:
    """By one finding, from one of the first steps whose graph is looked at."""
    kind, make, place = PROGRAMS[name]
    torch.manual_seed(seed)
    assert found(*reversed(make(False))) == []
    torch.manual_seed(seed)
    rows = found(*reversed(make(True)))
    assert [check for check, _, _ in rows] == [kind]
    assert (rows[0][1] <= 5, *rows[0][2][:1]) == (True, *filter(None, [place]))


def encoder_and_decoder(model: Any) -> Any:
    """Labels are the next tokens of one sequence, and attention reads all of another."""
    ids = tokens()
    model.embed(ids.roll(3, 0)[:, :-1])
    scores = model(ids[:, :-1]) + model(ids.roll(1, 0)[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())


def hidden_tokens(model: Any) -> Any:
    """Labels are the hidden tokens alone, of a model that sees both sides."""
    ids = tokens()[:, :-1]
    hidden = torch.arange(LENGTH) % 3 == 0
    labels = torch.where(hidden, ids, -100)
    return F.cross_entropy(model(ids.masked_fill(hidden, 1)).flatten(0, 1), labels.flatten())


def tokens_of_an_autoencoder(model: Any) -> Any:
    """Labels are the inputs, of a model that sees both sides."""
    ids = tokens()[:, :-1]
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def two_tokens_at_once(model: Any) -> Any:
    """One loss of the next token, and one of the token after it."""
    ids = tokens()
    scores = model(ids[:, :-1])
    late = F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 2:].flatten())
    return F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten()) + late


def prefix(model: Any) -> Any:
    """The first half is a prompt, which sees itself whole and has no labels."""
    ids, half = tokens(), LENGTH // 2
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    hidden[:half, :half] = False
    x = model.embed(ids[:, :-1]) + model.places(torch.arange(LENGTH))
    q, k, v = model.mix(x).chunk(3, -1)
    mixed = (q @ k.transpose(-1, -2)).masked_fill(hidden, float("-inf")).softmax(-1) @ v
    labels = torch.where(torch.arange(LENGTH) < half, -100, ids[:, 1:])
    return F.cross_entropy(model.head(x + mixed).flatten(0, 1), labels.flatten())


def one_pad_ends_a_text(model: Any) -> Any:
    """The padding is the end of a text, too, and is learnt once."""
    ids = tokens()
    ids[:, -1] = 0
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def regions(model: Any) -> Any:
    """Labels are regions that are mostly one class, of tokens that are mostly one, too, and close to the next."""
    ids = torch.ones(4, LENGTH, dtype=torch.long)
    ids[0, 4:] = 5
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


BIDIRECTIONAL = hidden_tokens, tokens_of_an_autoencoder, encoder_and_decoder, regions


@pytest.mark.parametrize(
    "loss", [*BIDIRECTIONAL, two_tokens_at_once, prefix, one_pad_ends_a_text], ids=lambda loss: loss.__name__
)
def test_tasks_of_tokens_that_resemble_faults_are_none(
    loss: Callable[[Any], Any],
    found: Callable[..., Found],  # noqa: F811 - the fixture
) -> None:
    """Of masked models, autoencoders, pairs of texts, prompts, several tokens at once, and ends of texts."""
    assert found(updates(loss), Decoder(mask=loss not in BIDIRECTIONAL)) == []


def clip_of_an_unused_part(model: Any, optimizer: Any) -> None:
    """Each part is clipped by itself, and one has no gradient."""
    for _ in range(STEPS):
        optimizer.zero_grad()
        model[:2](torch.randn(6, 8)).pow(2).mean().backward()
        for part in (model[2], model[0]):
            nn.utils.clip_grad_norm_(part.parameters(), 1e3)
        optimizer.step()


def clip_of_each_sample(model: Any, optimizer: Any) -> None:
    """Each sample is clipped by itself, and what is left of all is summed."""
    parameters = [*model.parameters()]
    for _ in range(STEPS):
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(1, 8)).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(parameters, 0.01)
            for one, parameter in zip(sums, parameters, strict=True):
                one.add_(parameter.grad)
        for one, parameter in zip(sums, parameters, strict=True):
            parameter.grad = one
        optimizer.step()


def norm_after_each_backward(model: Any, optimizer: Any) -> None:
    """Norms are only measured while gradients are accumulated."""
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(3):
            model(torch.randn(6, 8)).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def unscaled_by_hand(model: Any, optimizer: Any) -> None:
    """The program divides gradients by the factor itself."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(6, 8)).pow(2).mean()).backward()
        for parameter in model.parameters():
            parameter.grad.div_(scaler.get_scale())
        optimizer.step()


def adversarial_inputs(model: Any, optimizer: Any) -> None:
    """A first backward is for the inputs."""
    for _ in range(STEPS):
        x = torch.randn(6, 8, requires_grad=True)
        model(x).pow(2).mean().backward()
        optimizer.zero_grad()
        model(x.detach() + 0.1 * x.grad.sign()).pow(2).mean().backward()
        optimizer.step()


def sharpness(model: Any, optimizer: Any) -> None:
    """A first backward leads to where the second one begins."""
    parameters = [*model.parameters()]
    for _ in range(STEPS):
        x = torch.randn(6, 8)
        model(x).pow(2).mean().backward()
        steps = [0.1 * parameter.grad for parameter in parameters]
        for sign in (1, -1):
            with torch.no_grad():
                for parameter, step in zip(parameters, steps, strict=True):
                    parameter.add_(step, alpha=sign)
            if sign == 1:
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def gradients_of_tasks(model: Any, optimizer: Any) -> None:
    """Each loss has gradients of its own, which are summed."""
    parameters = [*model.parameters()]
    for _ in range(STEPS):
        parts = []
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(6, 8)).pow(2).mean().backward()
            parts.append([parameter.grad.clone() for parameter in parameters])
        for parameter, one, other in zip(parameters, *parts, strict=True):
            parameter.grad = one + other
        optimizer.step()


def relative_places(model: Any, optimizer: Any) -> None:
    """Scores are shifted by a view of what was padded, as Transformer-XL does."""
    for _ in range(STEPS):
        optimizer.zero_grad()
        scores = model(torch.randn(5, 6, 8))
        padded = torch.cat([torch.zeros(5, 1, 4), scores], 1).view(7, 5, 4)[1:].view_as(scores.transpose(0, 1))
        F.mse_loss(padded, torch.zeros(6, 5, 4)).backward()
        optimizer.step()


def distances_of_all_pairs(model: Any, optimizer: Any) -> None:
    """Scores are compared with each other by intention."""
    for _ in range(STEPS):
        optimizer.zero_grad()
        scores = model(torch.randn(6, 8))[:, :1]
        (scores - scores.T).pow(2).mean().backward()
        optimizer.step()


def update_inside(model: Any, optimizer: Any) -> None:
    """The loss of weights that a step has led to, whose graph has the nodes of a backward."""
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model[0](torch.randn(6, 8)).tanh().pow(2).mean()
        weight = model[0].weight - 0.1 * torch.autograd.grad(loss, model[0].weight, create_graph=True)[0]
        F.mse_loss(model[2](F.linear(torch.randn(6, 8), weight)), torch.randn(6, 4)).backward()
        optimizer.step()


def terms_that_stay_or_go(model: Any, optimizer: Any) -> None:
    """A number is added to the loss, terms have weights of 0, and a seed is set where nothing is dropped."""
    for step in range(STEPS):
        torch.manual_seed(0)
        optimizer.zero_grad()
        loss = 0
        loss += F.mse_loss(model(torch.randn(6, 8)), torch.zeros(6, 4))
        (loss + 0.5 + 0.0 * step * model[0].weight.pow(2).sum()).backward()
        optimizer.step()


def schedules_of_stages(model: Any, optimizer: Any) -> None:
    """Each stage has a schedule of its own, of the same optimizer."""
    for _ in range(3):
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=20)
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(6, 8)).pow(2).mean().backward()
            optimizer.step()
            schedule.step()


HABITS = [
    update_inside,
    terms_that_stay_or_go,
    schedules_of_stages,
    clip_of_an_unused_part,
    clip_of_each_sample,
    norm_after_each_backward,
    unscaled_by_hand,
    distances_of_all_pairs,
    adversarial_inputs,
    sharpness,
    gradients_of_tasks,
    relative_places,
]


@pytest.mark.parametrize("loop", HABITS, ids=lambda loop: loop.__name__)
def test_habits_with_clips_and_scalers_are_none(
    loop: Loop,
    found: Callable[..., Found],  # noqa: F811 - the fixture
) -> None:
    """Clips of parts and of samples, norms that are measured, gradients that the program divides, pairs of scores."""
    assert found(loop, classifier()) == []


class Around(torch.optim.Optimizer):  # type: ignore[misc, name-defined]
    """Optimizer that makes its updates by one inside it, as SAM does."""

    def __init__(self, parameters: Any, rate: float) -> None:
        self.inside = torch.optim.Adam(parameters, rate)
        super().__init__(self.inside.param_groups, {})

    def step(self, closure: Any = None) -> None:
        self.inside.step()


def test_a_schedule_of_the_optimizer_inside_is_none(found: Callable[..., Found]) -> None:  # noqa: F811 - the fixture
    """It sets the rate of the updates."""

    def loop(model: Any, optimizer: Any) -> None:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.inside, 100)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(6, 8)).pow(2).mean().backward()
            optimizer.step()
            schedule.step()

    assert found(loop, classifier(), make=Around) == []


def test_parameters_in_a_list_that_have_an_optimizer_are_none(found: Callable[..., Found]) -> None:  # noqa: F811
    """The program passes them itself."""
    model = Listed(plain=True)
    every = [*model.parameters(), *(parameter for layer in model.layers for parameter in layer.parameters())]
    loss = updates(lambda model: model(torch.randn(6, 8)).pow(2).mean())
    assert found(loss, model, lambda _: every) == []
