"""Activations and their gradients: rows against a full backward hook, a second graph or a formula."""

from __future__ import annotations

import copy
import dataclasses
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.toys import SmallGPT, TinyNet, X, language_loss, token_batch
from tests.pytorch.watching import OPS, Row, Rows, assert_rows, rows_of, watch
from tests.required import require

torch = require("torch")

from probe.pytorch import TrainerMon  # noqa: E402 - only where torch is

ACTIVATIONS = {"wg_distribution": False, "param_distribution": False, "mv_distribution": False, "squash_name": False}
BOTH = ("actv", "actv_grad")


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: Any, loss_of: Callable[[Any], Any], steps: int = 1, **settings: Any) -> Rows:
    """Rows of activations and their gradients of a short training."""
    optimizer = sgd(model)
    monitor = watch(model, optimizer, **{**ACTIVATIONS, **settings})
    for _ in range(steps):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    return rows_of(monitor)


def as_full_backward_hooks_report(model: Any, loss_of: Callable[[Any], Any]) -> dict[Row, Any]:
    """``actv_grad`` of one backward, from torch's own module hooks on a copy of ``model``."""
    rows: dict[Row, Any] = {}
    twin = copy.deepcopy(model)

    def note(name: str, place: str, gradients: Any) -> None:
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                part = place if len(gradients) == 1 else f"{place}_{i}"
                rows[Row("actv_grad", 0, f"{name}.{part}")] = gradient.clone()

    for name, module in twin.named_modules():

        def hook(_: Any, inputs: Any, outputs: Any, name: str = name) -> None:
            note(name, "input", inputs)
            note(name, "output", outputs)

        module.register_full_backward_hook(hook)
    loss_of(twin).backward()
    return rows


class Mix(torch.nn.Module):
    """Two tensors in, two out."""

    def forward(self, x: Any, y: Any) -> Any:
        return x + y.sin(), x * y


class Halves(torch.nn.Module):
    """Gives two tensors, of which its user may take one."""

    def forward(self, x: Any) -> Any:
        return x.sin() * x, x.cos() + x


class Branches(torch.nn.Module):
    """A residual branch, a shared input, several inputs and outputs, slices, and an output that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.a, self.b, self.c = (torch.nn.Linear(4, 4) for _ in range(3))
            self.left, self.right = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
        self.mix, self.halves, self.drop = Mix(), Halves(), torch.nn.Dropout(0.0)

    def forward(self, x: Any) -> Any:
        h = self.a(x)
        r = h + self.b(h) + self.c(h).tanh()
        m, n = self.mix(h, r)
        kept, _ = self.halves(m * n)
        p, q = self.drop(kept + m).chunk(2, -1)
        return self.left(p) * self.right(q) + self.left(p).exp().detach()


def branches_loss(model: Any) -> Any:
    torch.manual_seed(5)
    return model(torch.randn(3, 4, requires_grad=True)).square().sum()


def test_gradients_of_a_language_model() -> None:
    """Every module's input and output gradients are those that full backward hooks report, residual branches too."""
    tokens = token_batch()
    expected = as_full_backward_hooks_report(SmallGPT(), lambda model: language_loss(model, tokens))
    rows = train(SmallGPT(), lambda model: language_loss(model, tokens))
    assert Row("actv_grad", 0, "layers.1.norm2.input") in expected
    assert_rows(rows, expected, ("actv_grad",))


def test_gradients_through_branches() -> None:
    """An input's gradient is the one through the module, whatever else uses the tensor or ignores an output."""
    expected = as_full_backward_hooks_report(Branches(), branches_loss)
    rows = {row: values for row, values in train(Branches(), branches_loss).items() if row.call == 0}
    for name in ("a", "b", "c", "mix", "halves", "left", "right", ""):
        assert any(row.name.startswith(f"{name}.input") for row in expected), name
    assert_rows(rows, expected, ("actv_grad",))


def test_a_tensor_that_is_two_inputs_has_its_gradient_in_both_rows() -> None:
    """Where one tensor is passed twice, both rows show its gradient through the module."""
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2), "mix": Mix()})

    def loss_of(net: Any) -> Any:
        h = net["first"](X)
        return net["mix"](h, h)[1].sum()

    h = model["first"](X).detach().requires_grad_()
    (gradient,) = torch.autograd.grad((h * h).sum(), h)
    rows = train(model, loss_of)
    expected = {Row("actv_grad", 0, f"mix.input_{i}"): gradient for i in (0, 1)}
    assert_rows({row: rows[row] for row in expected}, expected, BOTH)


def test_in_place_modules() -> None:
    """ReLU(inplace=True) has its input as it came and its output as it went; gradients are as without in-place."""
    ordinary = train(TinyNet(), lambda model: model(X.clone().requires_grad_()).sum(), steps=2)
    in_place = train(TinyNet(inplace=True), lambda model: model(X.clone().requires_grad_()).sum(), steps=2)
    read_after = {Row("actv", step, "fc.output") for step in (0, 1)}
    assert in_place.keys() == ordinary.keys()
    assert {row for row in ordinary if in_place[row] != pytest.approx(ordinary[row])} <= set()
    assert in_place[Row("actv", 0, "relu.input")]["min"] == -4.5
    assert in_place[Row("actv", 0, "relu.output")]["min"] == 0.0
    assert read_after <= in_place.keys()


def test_an_in_place_module_on_a_slice_breaks_nothing() -> None:
    """A module that overwrites a slice of another tensor trains as it did, and its activations are right."""
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(2, 4), "relu": torch.nn.ReLU(inplace=True)})

    def loss_of(net: Any) -> Any:
        h = net["first"](X)
        net["relu"](h[:, :2])
        return h.square().sum()

    before = model["first"](X)[:, :2]
    twin = copy.deepcopy(model)
    loss_of(twin).backward()
    sgd(twin).step()
    expected = {Row("actv", 0, "relu.input"): before, Row("actv", 0, "relu.output"): before.relu()}
    rows = train(model, loss_of)
    assert_rows({row: rows[row] for row in expected}, expected, ("actv",))
    assert torch.equal(twin["first"].weight, model["first"].weight)


class Looped(torch.nn.Module):
    """One layer, called twice in each of two parts."""

    def __init__(self, checkpoint: str | None = None) -> None:
        super().__init__()
        self.layer, self.checkpoint = torch.nn.Linear(2, 2), checkpoint
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[1.0, -2.0], [0.5, 1.0]]))
            self.layer.bias.copy_(torch.tensor([0.1, -0.2]))

    def forward(self, x: Any) -> Any:
        for _ in range(2):
            if self.checkpoint is None:
                x = self.part(x)
            else:
                x = torch.utils.checkpoint.checkpoint(self.part, x, use_reentrant=self.checkpoint == "reentrant")
        return x

    def part(self, x: Any) -> Any:
        return self.layer(self.layer(x).tanh()).tanh()


@pytest.mark.parametrize("checkpoint", [None, "reentrant", "non-reentrant"])
def test_a_looped_module_keeps_every_call(checkpoint: str | None) -> None:
    """Calls count in the order of the forward, each with its own values and its own gradients."""
    model = Looped(checkpoint)
    places, x = [], X.clone().requires_grad_()
    for call in range(4):
        y = model.layer(x)
        places += [(call, "input", x), (call, "output", y)]
        x = y.tanh()
    gradients = torch.autograd.grad(x.square().sum(), [tensor for _, _, tensor in places])
    expected = {Row("actv", 0, f"layer.{part}", call=call): tensor for call, part, tensor in places}
    for (call, part, _), gradient in zip(places, gradients, strict=True):
        expected[Row("actv_grad", 0, f"layer.{part}", call=call)] = gradient
    rows = train(model, lambda net: net(X.clone().requires_grad_()).square().sum())
    assert_rows({row: rows[row] for row in rows if row.name.startswith("layer")}, expected, BOTH)


def test_a_shared_module_has_its_first_name() -> None:
    """A module under two names is watched once and keeps both calls."""
    model = TinyNet()
    shared = torch.nn.Sequential(model.fc2, torch.nn.Identity())
    model.again = shared

    def loss_of(net: Any) -> Any:
        hidden = net.relu(net.fc(X))
        return (net.again(hidden) * net.fc2(hidden)).sum()

    rows = train(model, loss_of)
    assert {row.call for row in rows if row.name == "fc2.output"} == {0, 1}
    assert not [row for row in rows if row.name.startswith("again.0")]


@pytest.mark.parametrize("module", [torch.nn.Identity(), torch.nn.Dropout(0.0)])
def test_what_hands_its_input_through(module: Any) -> None:
    """A module that gives back the very tensor it got shows that tensor's values and gradient."""
    rows = train(torch.nn.Sequential(torch.nn.Linear(2, 3), module, torch.nn.Linear(3, 1)), lambda net: net(X).sum())
    for signal in BOTH:
        assert rows[Row(signal, 0, "1.input")] == rows[Row(signal, 0, "1.output")]
        assert rows[Row(signal, 0, "1.input")] == rows[Row(signal, 0, "0.output")]


@dataclasses.dataclass
class Answer:
    """An output as a dataclass."""

    hidden: Any
    logits: Any
    note: str = "no tensor"


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """An output as Hugging Face models give it: a mapping that also has attributes, and is registered."""

    def __post_init__(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return self[name]


torch.utils._pytree.register_pytree_node(
    ModelOutput,
    lambda output: ([*output.values()], [*output]),
    lambda values, names: ModelOutput(zip(names, values, strict=True)),
    serialized_type_name="ModelOutput",
)


SHAPES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any], list[str]]] = {
    "tuple": (lambda h, y: (h, y), lambda out: out[1], ["output_0", "output_1"]),
    "list": (lambda h, y: [h, y], lambda out: out[1], ["output_0", "output_1"]),
    "dict": (lambda h, y: {"h": h, "y": y}, lambda out: out["y"], ["output_0", "output_1"]),
    "dataclass": (Answer, lambda out: out.logits, ["output_0", "output_1"]),
    "model output": (lambda h, y: ModelOutput(h=h, y=y), lambda out: out["y"], ["output_0", "output_1"]),
    "nested": (lambda h, y: (h, {"y": [y]}), lambda out: out[1]["y"][0], ["output_0", "output_1"]),
    "None and int": (lambda h, y: (None, h, 3, y), lambda out: out[3], ["output_1", "output_3"]),
    "one": (lambda h, y: (y,), lambda out: out[0], ["output"]),
}


class Shaped(torch.nn.Module):
    """Takes keyword arguments and gives its two results in some container."""

    def __init__(self, wrap: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.fc, self.wrap = torch.nn.Linear(2, 2), wrap

    def forward(self, x: Any, *, mask: Any, flag: bool = True) -> Any:
        h = self.fc(x)
        return self.wrap(h, h * mask)


@pytest.mark.parametrize("shape", list(SHAPES))
def test_containers_and_keyword_arguments(shape: str) -> None:
    """Tensors inside any container have rows with values and gradients; None and other things have none."""
    wrap, result_of, parts = SHAPES[shape]
    model = torch.nn.ModuleDict({"shaped": Shaped(wrap)})
    mask = torch.tensor([1.0, 0.5])
    rows = train(model, lambda net: result_of(net["shaped"](X, mask=mask, flag=False)).square().sum())
    found = {row.name for row in rows if row.signal == "actv" and row.name.startswith("shaped.output")}
    assert found == {f"shaped.{part}" for part in parts}
    assert rows[Row("actv", 0, "shaped.input_1")]["min"] == 0.5
    assert Row("actv_grad", 0, f"shaped.{parts[-1]}") in rows
    assert not [row for row in rows if row.name == "shaped.input_2"]


def values(rows: Rows) -> list[tuple[Row, dict[str, float]]]:
    return [(row, rows[row]) for row in sorted(rows)]


@pytest.mark.parametrize("kind", ["reentrant", "non-reentrant"])
def test_checkpointing_changes_no_row(kind: str) -> None:
    """With activation checkpointing there are the same rows and values, and the forward's in the same order."""

    def run(checkpoint: str | None) -> Rows:
        return train(SmallGPT(checkpoint=checkpoint), lambda net: language_loss(net, token_batch()), steps=2)

    without, with_it = run(None), run(kind)
    assert with_it.keys() == without.keys()
    for row, numbers in without.items():
        assert with_it[row] == pytest.approx(numbers, rel=1e-4, abs=1e-6), row
    forward = [row for row in without if row.signal == "actv"]
    assert [row for row in with_it if row.signal == "actv"] == forward


@pytest.mark.parametrize("kind", ["reentrant", "non-reentrant"])
def test_checkpointing_and_accumulation(kind: str) -> None:
    """Recomputing counts as no micro batch: micro steps and unreduced gradients are as without checkpointing."""

    def run(checkpoint: str | None) -> Rows:
        model = SmallGPT(checkpoint=checkpoint)
        optimizer = sgd(model)
        monitor = watch(model, optimizer, 3, monitor_mbs_grad=True)
        for _ in range(2):
            for micro_step in range(3):
                language_loss(model, token_batch(micro_step)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return rows_of(monitor)

    without, with_it = run(None), run(kind)
    assert with_it.keys() == without.keys()
    assert {row.micro_step for row in without if row.signal == "actv_grad"} == {0, 1, 2}
    for row, numbers in without.items():
        assert with_it[row] == pytest.approx(numbers, rel=1e-3, abs=1e-5), row


def test_forwards_that_are_no_training_data() -> None:
    """Forwards without gradients or in evaluation leave no row and shift no micro step."""

    def run(evaluates: bool) -> Rows:
        model = TinyNet()
        optimizer = sgd(model)
        monitor = watch(model, optimizer, 2, monitor_mbs_grad=True)
        for _ in range(2):
            for micro_step in range(2):
                if evaluates:
                    evaluate(model)
                loss = model(X * (micro_step + 1)).sum()
                if evaluates:
                    evaluate(model)
                loss.backward()
                if evaluates:
                    evaluate(model)
            optimizer.step()
            optimizer.zero_grad()
        return rows_of(monitor)

    assert run(True) == run(False)


def evaluate(model: Any) -> None:
    with torch.no_grad():
        model(X * 100)
    with torch.inference_mode():
        model(X * 100)
    model.eval()
    model(X * 100)
    model.train()


def penalised(model: Any, x: Any) -> Any:
    """A loss with the squared gradient of the output in it, as in a gradient penalty."""
    x = x.clone().requires_grad_()
    out = model(x).tanh()
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return model(x).sum() + slope.square().sum()


def test_a_gradient_inside_the_loss() -> None:
    """A gradient penalty counts as no micro batch, and its inner backward leaves no row of its own."""
    model, twin = TinyNet(), TinyNet()
    optimizer, other = sgd(model), sgd(twin)
    monitor = watch(model, optimizer, 2, monitor_mbs_grad=True)
    for _ in range(2):
        for micro_step in range(2):
            penalised(model, X * (micro_step + 1)).backward()
            penalised(twin, X * (micro_step + 1)).backward()
        for each in (optimizer, other):
            each.step()
            each.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    rows = rows_of(monitor)
    assert {row.micro_step for row in rows if row.signal in (*BOTH, "grad_unreduced")} == {0, 1}
    outputs = {(row.micro_step, row.call) for row in rows if row.signal == "actv_grad" and row.name == "fc2.output"}
    assert outputs == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert {row.call for row in rows if row.signal == "grad_unreduced"} == {0}


class Forces(torch.nn.Module):
    """Differentiates inside its forward, as models of atoms do."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = TinyNet()

    def forward(self, x: Any) -> Any:
        x = x.clone().requires_grad_()
        (force,) = torch.autograd.grad(self.energy(x).tanh().sum(), x, create_graph=True)
        return force


def test_a_gradient_inside_the_forward() -> None:
    """A forward that differentiates is one micro batch like any other."""
    model = Forces()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, 2, monitor_mbs_grad=True)
    for _ in range(2):
        for micro_step in range(2):
            model(X * (micro_step + 1)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = rows_of(monitor)
    micro_batches = {(step, micro_step) for step in (0, 1) for micro_step in (0, 1)}
    for name in ("energy.fc.output", ".output"):
        assert {
            (row.step, row.micro_step) for row in rows if row.signal == "actv" and row.name == name
        } == micro_batches
    assert {(row.step, row.micro_step) for row in rows if row.signal == "grad_unreduced"} == micro_batches
    assert {row.call for row in rows} == {0}


class Fragile(torch.nn.Module):
    """Raises when its input is large."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        if self.fc(x).abs().max() > 1e3:
            raise FloatingPointError("the user's own")
        return self.fc(x) * 2


class Catching(torch.nn.Module):
    """Falls back when its part raises."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.last = Fragile(), torch.nn.Linear(2, 1)

    def forward(self, x: Any) -> Any:
        try:
            x = self.part(x * 1e6)
        except FloatingPointError:
            x = self.part(x)
        return self.last(x)


def test_a_forward_that_raises_and_is_caught() -> None:
    """Rows after a caught exception belong to the right module and call, with the right gradients."""
    model = Catching()
    with torch.no_grad():
        x = model.part.fc(X) * 2
    hidden = x.requires_grad_()
    (gradient,) = torch.autograd.grad(model.last(hidden).sum(), hidden)
    rows = train(model, lambda net: net(X).sum(), steps=2)
    expected = {Row("actv", 0, "part.output", call=1): hidden, Row("actv_grad", 0, "part.output", call=1): gradient}
    assert_rows({row: rows[row] for row in rows if row.name == "part.output" and row.step == 0}, expected, BOTH)
    assert {row.step for row in rows if row.name == "part.output"} == {0, 1}


def test_a_model_whose_own_forward_is_never_called() -> None:
    """If only submodules are called, micro batches are still counted, in every signal alike."""
    model = TinyNet()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, 2, monitor_mbs_grad=True)
    for _ in range(2):
        for micro_step in range(2):
            model.fc2(model.relu(model.fc(X * (micro_step + 1)))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = rows_of(monitor)
    micro_batches = {(step, micro_step, 0) for step in (0, 1) for micro_step in (0, 1)}
    for signal, name in (("actv", "fc.output"), ("actv_grad", "fc.output"), ("grad_unreduced", "fc.weight")):
        found = {(row.step, row.micro_step, row.call) for row in rows if row.signal == signal and row.name == name}
        assert found == micro_batches, signal


def test_two_losses_are_two_backwards() -> None:
    """Two backwards of one forward leave the gradients of both, in one micro step."""
    model = TinyNet()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, 1, monitor_mbs_grad=True)
    for _ in range(2):
        out = model(X)
        out.sum().backward(retain_graph=True)
        (out * 3).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = rows_of(monitor)
    for row in (Row("actv_grad", 0, "fc2.output"), Row("grad_unreduced", 0, "fc2.weight")):
        assert rows[row._replace(call=1)]["max"] == pytest.approx(3 * rows[row]["max"])
    assert {row.micro_step for row in rows} == {0}


def test_three_thousand_modules() -> None:
    """A model of 3,000 modules is attached to, trained and let go within seconds of the processor, with every row."""
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()) for _ in range(1000)))
    begin = time.process_time()
    rows = train(model, lambda net: net(X).sum(), ops=["norm"], wg_distribution=True)
    assert time.process_time() - begin < 15
    assert len([row for row in rows if row.signal == "actv"]) == 2 * 3001
    assert len([row for row in rows if row.signal == "actv_grad"]) == 2 * 3001 - 3  # the input is no variable
    assert len([row for row in rows if row.signal == "grad_reduced"]) == 2000


def test_model_chunks_are_stages() -> None:
    """Each model of a list is a stage of its own, with the same names."""
    chunks = [torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.Sequential(torch.nn.Linear(2, 2))]
    optimizer = torch.optim.SGD([p for chunk in chunks for p in chunk.parameters()], lr=0.1)
    monitor = watch(chunks, optimizer, 2, monitor_mbs_grad=True)
    for micro_step in range(2):
        chunks[1](chunks[0](X * (micro_step + 1))).sum().backward()
    optimizer.step()
    rows = rows_of(monitor)
    for signal, name in (("actv", "0.output"), ("actv_grad", "0.output"), ("grad_unreduced", "0.weight")):
        found = {(row.stage, row.micro_step, row.call) for row in rows if row.signal == signal and row.name == name}
        assert found == {(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)}, signal


def test_a_compiled_model_is_refused_for_activations() -> None:
    """Attaching to a compiled model is an error with the remedy."""
    wrapped, in_place = torch.compile(TinyNet(), backend="eager"), TinyNet()
    in_place.fc.compile(backend="eager")
    for model in (wrapped, in_place):
        with pytest.raises(ValueError, match=r'compiled by torch\.compile.*"compiled": "record"'):
            watch(model, sgd(model), **ACTIVATIONS)


def test_recording_inside_graphs_is_refused_where_torch_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the version that is needed, and what records the rest."""
    monkeypatch.setattr("probe.pytorch.compiled.RECORDS", False)
    model = TinyNet()
    with pytest.raises(ValueError, match=r'compiled: "record" needs torch 2\.13 or later, this is .*"skip"'):
        watch(model, sgd(model), **ACTIVATIONS, compiled="record")


def test_a_compiled_model_is_refused_for_activations_that_may_be_wanted_later() -> None:
    """``on_anomaly`` would place hooks that do not run: that is an error before training begins."""
    arm = {"arm": {"xy_distribution": True}}
    model = torch.compile(TinyNet(), backend="eager")
    with pytest.raises(ValueError, match="compiled"):
        watch(model, sgd(model), wg_distribution=True, on_anomaly=arm)


def test_monitoring_is_switched_off_also_after_the_model_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has to be placed for that."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    path = tmp_path / "monitor.json"
    config = {"xy_distribution": True, "param_distribution": True, "dynamic_on": True, "collect_times": 2}
    path.write_text(json.dumps(config))
    model = TinyNet()
    optimizer = sgd(model)
    with TrainerMon(path) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(6):
            if step == 2:
                model.fc.compile(backend="eager")
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert not monitor.monitoring
    assert {row.step for row in rows_of(monitor) if row.signal == "param_origin"} == {1, 2}
    assert not [fault for fault in monitor.faults if fault.startswith("control")]
    assert json.loads(path.read_text()) == config | {"dynamic_on": False}


@pytest.mark.parametrize("unreduced", [False, True])
def test_a_compiled_model_is_accepted_for_weights(unreduced: bool) -> None:
    """Weights of a compiled model are watched under the names that the model gives them."""
    model = TinyNet()
    compiled = torch.compile(model, backend="eager")
    optimizer = sgd(model)
    monitor = watch(compiled, optimizer, xy_distribution=False, monitor_mbs_grad=unreduced)
    for _ in range(3):
        compiled(X).sum().backward()
        compiled(X * 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = rows_of(monitor)
    assert {row.step for row in rows if row.signal == "grad_reduced" and row.name == "fc.weight"} == {0, 1, 2}
    found = {row.micro_step for row in rows if row.signal == "grad_unreduced" and row.name == "fc.weight"}
    assert found == ({0, 1} if unreduced else {0})


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_model_compiled_after_attaching_trains_as_without(fullgraph: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Compiling later, even as one graph, trains the same; the missing activations are logged and counted."""
    models = [TinyNet(), TinyNet()]
    optimizers = [sgd(model) for model in models]
    monitor = watch(models[0], optimizers[0])
    for model, optimizer in zip(models, optimizers, strict=True):
        compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
        for _ in range(3):
            compiled(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))
    monitor.stop()
    assert monitor.faults == {"activations: steps in which no watched module was seen to run": 3}
    assert "torch.compile" in caplog.text


def test_dispatch_modes_of_the_user_see_nothing_of_ours() -> None:
    """A mode that counts operations, as FLOP counters do, counts the same with and without the monitor."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def run(monitored: bool) -> list[str]:
        model = Branches()
        optimizer = sgd(model)
        monitor = watch(model, optimizer, ops=OPS) if monitored else None
        with Count() as count:
            for _ in range(2):
                branches_loss(model).backward()
                optimizer.step()
                optimizer.zero_grad()
        if monitor:
            monitor.stop()
        return count.seen

    assert run(True) == run(False)


@pytest.mark.parametrize("kind", ["scheduler", "scaler"])
def test_what_only_has_a_step_is_no_optimizer(kind: str) -> None:
    """A scheduler of learning rates and a gradient scaler step too, but not when parameters are updated."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    given = scheduler if kind == "scheduler" else torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match="expected what updates the parameters"):
        watch(model, given)
