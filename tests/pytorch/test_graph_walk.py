"""First value of a step that is not finite, by the graph of its loss: what is named, and what the walk leaves alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.core.checks.beginning import Beginning, UsedParameter, frontier
from tests.required import require

torch = require("torch")
fsdp = require("torch.distributed.fsdp")

from torch.autograd.graph import save_on_cpu, saved_tensors_hooks  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from probe.pytorch import saved_tensors  # noqa: E402
from probe.pytorch.engines import fsdp2  # noqa: E402
from probe.pytorch.graph_walk import ForwardSpan, first_not_finite, uses  # noqa: E402

nn = torch.nn
FAULTS: dict[str, Callable[[Any], Any]] = {
    "division (div)": lambda x: (x - x) / (x - x).std(-1, keepdim=True),
    "logarithm (log)": lambda x: torch.log(-x.abs() - 1) + 1,
    "square root (sqrt)": lambda x: torch.sqrt(-x.abs() - 1) * 2,
    "exponential (exp)": lambda x: torch.exp(x.abs() * 1e3 + 1e3) * 0,
    "multiplication (mul)": lambda x: (x - x) * float("inf"),
}
"""Operations that make NaN or Inf of finite numbers, by the name that is expected."""


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class Norm(nn.Module):
    """Normalization of one's own, whose first operations may fail."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.fault: Callable[[Any], Any] = lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)

    def forward(self, x: Any) -> Any:
        return self.fault(x) * self.weight


class Block(nn.Module):
    """Two linear layers and two normalizations on a residual branch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.n0, self.n1 = Norm(width), Norm(width)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.n1(self.n0(self.up(x)))))


class Plain(nn.Module):
    """Three blocks and a head."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def loss(self) -> Any:
        return F.cross_entropy(self(torch.randn(6, 8)), torch.randint(0, 4, (6,)))


class Attention(nn.Module):
    """Causal self-attention whose mask is ``-inf``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.kind = "masked_fill"

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if self.kind == "sdpa":
            return self.proj(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        if self.kind == "nothing":
            mask[2] = False
        scores = q @ k.transpose(-1, -2) / 2
        if self.kind == "where":
            scores = torch.where(mask, scores, torch.tensor(float("-inf")))
        elif self.kind == "add":
            scores = scores + torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
        else:
            scores = scores.masked_fill(~mask, float("-inf"))
        if self.kind == "logsumexp":
            return self.proj((scores - scores.logsumexp(-1, keepdim=True)).exp() @ v)
        return self.proj(scores.softmax(-1) @ v)


class Layer(nn.Module):
    """Attention and a feed-forward net."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.fault: Callable[[Any], Any] = lambda x: x

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.ln1(x))
        return x + self.down(self.fault(F.gelu(self.up(self.ln2(x)))))


class GPT(nn.Module):
    """Small transformer; its embedding and its head may share their weight."""

    def __init__(self, kind: str = "masked_fill", tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(Layer(16) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 50, bias=False)
        self.tokens = torch.randint(0, 50, (2, 8))
        self.run: Callable[[Any, Any], Any] = lambda layer, x: layer(x)
        if tied:
            self.head.weight = self.embedding.weight
        for layer in self.layers:
            layer.attention.kind = kind

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = self.run(layer, x)
        return self.head(self.norm(x))

    def loss(self) -> Any:
        return F.cross_entropy(self(self.tokens).view(-1, 50), self.tokens.view(-1))


def names_of(model: Any) -> dict[int, str]:
    return {id(parameter): name for name, parameter in model.named_parameters()}


def walk(model: Any, loss: Any, **about: Any) -> Beginning:
    """The beginning, which exists."""
    found = first_not_finite(loss, names_of(model), **{"seconds": 20.0, **about})
    assert found is not None
    assert not found.cut
    return found


def place(found: Beginning) -> tuple[str, str, str]:
    return found.operation, found.after, found.before


@pytest.mark.parametrize("operation", FAULTS)
@pytest.mark.parametrize("block", [0, 2])
def test_an_operation_is_named_between_the_modules_around_it(operation: str, block: int) -> None:
    """The operation that makes the first NaN or Inf is named, in the very step, without a hook."""
    model = Plain()
    model.blocks[block].n1.fault = FAULTS[operation]
    found = walk(model, model.loss())
    assert place(found) == (operation, f"blocks.{block}.n0", f"blocks.{block}.n1")
    assert found.value == ("inf" if operation.startswith("exp") else "nan")


def test_a_finite_loss_has_no_beginning() -> None:
    """Nothing is walked for a finite loss, nor for one without a graph."""
    model = Plain()
    assert first_not_finite(model.loss(), names_of(model)) is None
    assert first_not_finite(torch.tensor(float("nan")), {}) is None


def test_the_module_is_named_where_its_forward_was_seen() -> None:
    """With the numbers of the nodes that each forward made, the innermost module is named."""
    model = Plain()
    model.blocks[1].n1.fault = FAULTS["division (div)"]
    spans: list[ForwardSpan] = []

    def watch(name: str, module: Any) -> None:
        begun: list[int] = []
        module.register_forward_pre_hook(lambda *_: begun.append(torch.autograd._get_sequence_nr()))
        module.register_forward_hook(
            lambda *_: spans.append(ForwardSpan(name, begun.pop(), torch.autograd._get_sequence_nr()))
        )

    for name, module in model.named_modules():
        watch(name, module)
    found = walk(model, model.loss(), spans=spans)
    assert found.text() == "NaN first appears in `blocks.1.n1`, in: division (div)."


@pytest.mark.parametrize("kind", ["masked_fill", "where", "add", "sdpa", "logsumexp"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_minus_infinity_under_a_mask_is_no_evidence(kind: str, value: str) -> None:
    """Healthy causal attention is not blamed for a loss that goes wrong elsewhere."""
    model = GPT(kind)
    healthy = model.loss()
    assert healthy.isfinite()
    size = model.embedding(model.tokens).abs().mean()
    other = torch.log(-size) if value == "nan" else torch.exp(size * 1e5)
    found = walk(model, healthy + other)
    assert place(found) == ("logarithm (log)" if value == "nan" else "exponential (exp)", "embedding", "")
    model.layers[1].fault = FAULTS["logarithm (log)"]
    assert place(walk(model, model.loss())) == ("logarithm (log)", "layers.1.up", "layers.1.down")


def test_a_row_in_which_all_is_masked_is_found_at_the_softmax() -> None:
    """A softmax over nothing but ``-inf`` makes NaN, and is named."""
    model = GPT("nothing")
    found = walk(model, model.loss())
    assert place(found) == ("softmax", "layers.0.attention.qkv", "layers.0.attention.proj")


def test_masked_classes_and_pools_are_no_evidence() -> None:
    """``-inf`` that enters a log-softmax or a max pool is meant: what makes the NaN is named."""
    model = GPT()
    logits = model(model.tokens).view(-1, 50)
    masked = logits.masked_fill(torch.arange(50) == 51, float("-inf"))
    padded = F.max_pool1d(F.pad(logits, (3, 3), value=float("-inf")), 3).clamp(-9, 9).mean()
    hidden = torch.where(torch.ones(50, dtype=torch.bool), logits, torch.log(-logits.abs())).mean()
    classes = logits.masked_fill(torch.arange(50) == 3, float("-inf")).log_softmax(-1)
    targets = torch.full((16,), 4)
    healthy = F.cross_entropy(masked, targets) + padded + hidden + F.nll_loss(classes, targets)
    assert healthy.isfinite()
    found = walk(model, healthy + (logits - logits).mean() / (logits - logits).mean())
    assert place(found) == ("division (div)", "head", "")


def test_a_target_that_is_masked_is_found() -> None:
    """An infinite loss comes of ``-inf`` where nothing else explains it."""
    model = GPT()
    logits = model(model.tokens).view(-1, 50)
    masked = logits.masked_fill(torch.arange(50) == int(model.tokens[0, 0]), float("-inf"))
    found = walk(model, F.cross_entropy(masked, model.tokens.view(-1)))
    assert (found.operation, found.value, found.after) == ("log_softmax", "inf", "head")


def test_a_mean_over_no_target_is_found() -> None:
    """A loss over targets that are all ignored is NaN by its own division, and all before it is finite."""
    model = GPT()
    loss = F.cross_entropy(model(model.tokens).view(-1, 50), torch.full((16,), -100))
    assert place(walk(model, loss)) == ("nll_loss", "head", "")


@pytest.mark.parametrize("name", ["layers.1.up.weight", "layers.1.up.bias", "layers.2.ln1.weight", "embedding.weight"])
def test_a_spoilt_parameter_is_named_itself(name: str) -> None:
    """A number that was not finite before the step is found in its parameter."""
    model = GPT()
    with torch.no_grad():
        model.get_parameter(name).view(-1)[-1 if "embedding" not in name else int(model.tokens[0, 0]) * 16] = float(
            "nan"
        )
    found = walk(model, model.loss())
    assert (found.kind, found.parameter, found.value) == ("parameter", name, "nan")


def test_the_first_of_spoilt_parameters_is_named() -> None:
    """After an update by NaN, the parameter that is used first is named."""
    model = Plain()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    assert walk(model, model.loss()).parameter.startswith("blocks.0.up.")


def test_a_spoilt_batch_is_named_as_the_input_of_its_reader() -> None:
    """NaN in the data is not blamed on the first layer, nor on statistics that it has spoilt."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )
    images = torch.randn(2, 1, 8, 8)
    images[1, 0, 2, 2] = float("nan")
    assert walk(model, F.cross_entropy(model(images), torch.tensor([0, 1]))).text() == "NaN is in the input of `0`."


def test_spoilt_statistics_are_named_in_evaluation() -> None:
    """Running statistics that are not finite are the beginning where they are used."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()
    model[1].running_var[2] = float("nan")
    names = names_of(model) | {id(buffer): name for name, buffer in model.named_buffers()}
    loss = model(torch.randn(2, 1, 8, 8)).sum()
    found = first_not_finite(loss, names)
    assert found is not None
    assert found.parameter == "1.running_var"


def test_shared_tied_and_recurrent_modules() -> None:
    """A module that runs several times, tied weights and a recurrence are walked like others."""
    tied = GPT(tied=True)
    tied.layers[2].fault = FAULTS["square root (sqrt)"]
    assert place(walk(tied, tied.loss())) == ("square root (sqrt)", "layers.2.up", "layers.2.down")
    shared = Plain()
    shared.blocks[1] = shared.blocks[0]
    shared.blocks[2].n1.fault = FAULTS["division (div)"]
    assert place(walk(shared, shared.loss())) == ("division (div)", "blocks.2.n0", "blocks.2.n1")
    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        model = nn.ModuleDict({"rnn": kind(3, 4), "head": nn.Linear(4, 1)})
        hidden = model["rnn"](torch.randn(5, 1, 3))[0]
        found = walk(model, model["head"](torch.log(-hidden.abs())).sum())
        assert place(found) == ("logarithm (log)", "rnn", "head")


def test_parameters_that_are_gathered_for_the_forward(tmp_path: Path) -> None:
    """Under ``fully_shard`` modules are found by the stand-ins of their parameters, whose storage may be freed."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1))
        for layer in model:
            fsdp.fully_shard(layer)
        fsdp.fully_shard(model)
        model[1].register_forward_hook(lambda *called: torch.log(-called[2].abs()))
        loss, names = model(torch.randn(4, 8)).sum(), names_of(model)
        names |= {id(stand_in): names[id(parameter)] for stand_in, parameter in fsdp2.stand_ins(model)}
        found = first_not_finite(loss, names)
        assert found is not None
        assert place(found) == ("logarithm (log)", "1", "2")
        loss.backward()
    finally:
        torch.distributed.destroy_process_group()


def test_a_wrapper_changes_nothing() -> None:
    """A model in a wrapper that passes its input through has the same place under the wrapper's names."""
    model = Plain()
    model.blocks[0].n1.fault = FAULTS["division (div)"]
    wrapped = nn.DataParallel(model)
    loss = F.cross_entropy(wrapped(torch.randn(6, 8)), torch.randint(0, 4, (6,)))
    assert place(walk(wrapped, loss)) == ("division (div)", "module.blocks.0.n0", "module.blocks.0.n1")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(dtype: Any) -> None:
    """Under autocast weights are found behind their casts."""
    model = GPT()
    model.layers[1].fault = FAULTS["logarithm (log)"]
    with torch.autocast("cpu", dtype):
        assert place(walk(model, model.loss())) == ("logarithm (log)", "layers.1.up", "layers.1.down")


def test_an_overflow_of_half_precision() -> None:
    """A product that leaves the range of float16 is found in its layer."""
    model = GPT()
    with torch.no_grad():
        model.layers[1].up.weight.mul_(6e4)
        model.layers[1].up.bias.fill_(5e4)
    with torch.autocast("cpu", torch.float16):
        found = walk(model, model.loss())
    assert (found.after, found.before) == ("layers.1.up", "layers.1.up")


def test_a_graph_of_gradients() -> None:
    """The graph of a gradient penalty holds backwards, and is walked, too."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(3, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    found = walk(model, torch.log((slope * 0).norm(dim=1) - 1).mean())
    assert found.operation == "logarithm (log)"


class _Tripled(torch.autograd.Function):
    """Custom function whose context hides the methods of its node."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x, None, torch.log(x))
        ctx.name = ctx._sequence_nr = ctx.needs = "a string"
        return x * 3 + torch.log(x).sum() * 0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 3


def test_a_custom_function_is_one_operation() -> None:
    """What a custom function keeps names it, whatever its context holds."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    loss = model[1](_Tripled.apply(-model[0](torch.randn(3, 4)).abs())).mean()
    assert place(walk(model, loss)) == ("_tripled", "0", "1")


def test_a_compiled_graph_is_one_operation() -> None:
    """A compiled model is one node, of which only that it lies in the model is known."""
    model = GPT()
    model.layers[1].fault = FAULTS["logarithm (log)"]
    compiled = torch.compile(model, backend="aot_eager")
    loss = F.cross_entropy(compiled(model.tokens).view(-1, 50), model.tokens.view(-1))
    found = walk(model, loss)
    assert (found.operation, found.after, found.nodes < 10) == ("compiled graph", "", True)


class _Hooks:
    """Pair of hooks on saved tensors that counts its calls."""

    def __init__(self) -> None:
        self.unpacked = 0

    def unpack(self, packed: Any) -> Any:
        self.unpacked += 1
        return packed()

    def on(self) -> Any:
        return saved_tensors_hooks(lambda tensor: lambda: tensor, self.unpack)


@pytest.fixture(params=["as torch shows it", "by address"])
def _way(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways by which a saved tensor is seen to have hooks: that of new torch, and that of older."""
    if request.param == "by address":
        monkeypatch.setattr(saved_tensors, "unhooked", saved_tensors._by_address())
    assert saved_tensors.unhooked is not None


@pytest.mark.usefixtures("_way")
def test_no_unpack_hook_is_called() -> None:
    """A pair of hooks around a part of the model is never called, and the modules around it are named."""
    model, hooks = GPT(), _Hooks()

    def run(layer: Any, x: Any) -> Any:
        if layer is not model.layers[1]:
            return layer(x)
        with hooks.on():
            return layer(x)

    model.run = run
    model.layers[1].fault = FAULTS["logarithm (log)"]
    found = walk(model, model.loss())
    assert hooks.unpacked == 0
    assert (found.kind, found.after, found.before) == ("unknown", "layers.0.down", "layers.2.ln1")
    assert found.unread > 0
    model.loss().backward()
    assert hooks.unpacked > 0


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("outer", ["one by one", "save_on_cpu"])
def test_no_unpack_hook_of_one_tensor_or_of_offloading_is_called(outer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks that were placed on single saved tensors, and those of offloading, are not called."""
    model, calls = Plain(), list[Any]()
    if outer == "save_on_cpu":
        offload = save_on_cpu()
        unpack = offload.unpack_hook
        offload.unpack_hook = lambda packed: calls.append(packed) or unpack(packed)
        with offload:
            loss = model.loss() / 0
    else:
        loss = model.loss() / 0
        node = loss.grad_fn.next_functions[0][0].next_functions[0][0]
        node._raw_saved_result.register_hooks(lambda tensor: tensor, lambda tensor: calls.append(1) or tensor)
    assert walk(model, loss).operation == "division (div)"
    assert calls == []


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_segments_are_not_computed_again(reentrant: bool) -> None:
    """No segment of activation checkpointing runs again for the walk."""
    model, runs = GPT(), list[Any]()
    model.run = lambda layer, x: checkpoint(lambda y: runs.append(layer) or layer(y), x, use_reentrant=reentrant)
    model.layers[1].fault = FAULTS["logarithm (log)"]
    loss = model.loss()
    before = len(runs)
    found = walk(model, loss)
    assert len(runs) == before == 3
    assert found.before == "norm"
    loss.backward()
    assert len(runs) == 6


def test_tensors_changed_in_place_are_not_read() -> None:
    """A saved tensor that was overwritten is no evidence, and nothing raises."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    hidden = model[0](torch.randn(3, 4))
    loss = torch.log(-(model[1](hidden) ** 2).sum())
    with torch.no_grad():
        hidden.fill_(float("nan"))
    found = walk(model, loss)
    assert place(found) == ("logarithm (log)", "1", "")
    assert found.unread > 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_graph_that_was_freed_is_not_read() -> None:
    """A second walk, behind the backward, finds no tensors and raises nothing."""
    model = Plain()
    loss = model.loss() / 0
    loss.backward()
    found = first_not_finite(loss, names_of(model))
    assert found is not None
    assert found.unread > 0


def test_freed_storage_is_not_read() -> None:
    """A parameter whose storage was freed behind its forward, as that of a gathered one is, is left alone."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1))
    loss = model(torch.randn(3, 64)).sum() / 0
    storage = model[0].weight.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    assert walk(model, loss).operation == "division (div)"
    storage.resize_(size)


class _Seen(TorchDispatchMode):
    """Mode of a user that notes each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(function)
        return function(*args, **(kwargs or {}))


class _Called(TorchFunctionMode):
    """Mode of a user that notes each function and attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(function)
        return function(*args, **(kwargs or {}))


def test_the_walk_leaves_no_trace() -> None:
    """No mode of the user sees an operation, no random number is drawn, and the gradients are those without it."""
    model = GPT()
    model.layers[1].fault = FAULTS["logarithm (log)"]
    twin = copy.deepcopy(model)
    twin.loss().backward()
    loss = model.loss()
    state, number = torch.get_rng_state(), torch.autograd._get_sequence_nr()
    with _Seen() as seen, _Called() as called:
        seen.operations.clear()
        called.functions.clear()
        found = first_not_finite(loss, names_of(model))
        assert (seen.operations, called.functions) == ([], [])
    assert found is not None
    assert torch.autograd._get_sequence_nr() == number
    assert torch.equal(torch.get_rng_state(), state)
    loss.backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one.grad.isnan(), other.grad.isnan())


def test_older_steps_are_not_visited() -> None:
    """A graph that reaches back into earlier steps is walked down to the first node of this one."""
    cell, hidden = nn.RNNCell(3, 4), torch.zeros(1, 4)
    for _ in range(9):
        floor = torch.autograd._get_sequence_nr()
        hidden = cell(torch.randn(1, 3), hidden)
    loss = torch.log(-hidden.abs()).sum()
    every, latest = walk(cell, loss), walk(cell, loss, sequence_floor=floor)
    assert every.operation == latest.operation == "logarithm (log)"
    assert latest.nodes < every.nodes / 2


def test_a_walk_without_time_is_cut_off() -> None:
    """A walk that runs out of time returns what it has, and that it may have begun earlier."""
    model = Plain()
    model.blocks[0].n1.fault = FAULTS["division (div)"]
    found = first_not_finite(model.loss(), names_of(model), seconds=0.0)
    assert found is not None
    assert found.cut
    assert "may have begun earlier" in found.text()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_numbers_of_other_kinds(dtype: Any) -> None:
    """Double and complex numbers, and those that do not lie side by side, are read."""
    model = nn.Sequential(nn.Linear(4, 4, dtype=dtype), nn.Linear(4, 4, dtype=dtype))
    x = model[0](torch.randn(3, 5, 4, dtype=dtype)).transpose(0, 1)
    x = (x / (x - x)) * x
    found = walk(model, model[1](x).abs().sum())
    assert place(found) == ("division (div)", "0", "1")


def test_the_frontier_of_a_backward_whose_loss_is_finite() -> None:
    """A square root at 0 has a finite value and no finite slope: the modules around it are named."""
    model = Plain()
    model.blocks[1].n1.fault = lambda x: torch.sqrt((x - x).abs())
    loss = model.loss()
    assert loss.isfinite()
    used = uses(loss, names_of(model))
    loss.backward()
    gradients = ((name, parameter.grad) for name, parameter in model.named_parameters())
    found = frontier(UsedParameter(name, used[name].order, bool(grad.isfinite().all())) for name, grad in gradients)
    assert found is not None
    assert (found.after, found.before) == ("blocks.1.n0", "blocks.1.n1")
