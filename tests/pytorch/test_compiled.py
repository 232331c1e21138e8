"""``compiled: record``: what runs inside a compiled graph has the rows that it has without a compiler."""

from __future__ import annotations

import csv
import dataclasses
import gc
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.required import require

torch = require("torch")

from probe.pytorch import TrainerMon, compiled  # noqa: E402
from tests.pytorch.toys import SmallGPT, TinyNet, X, language_loss, token_batch  # noqa: E402
from tests.pytorch.watching import EVERYTHING, OPS, Rows, read, rows_of, watch  # noqa: E402

pytestmark = pytest.mark.skipif(not compiled.RECORDS, reason="needs torch 2.13 or later")
MISSED = "activations: gradients of inputs of modules inside compiled graphs"
Loss = Callable[[Any, int], Any]
"""Of a model, or what was compiled of it, in a step."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test compiles anew, and counts what it compiles."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def whole(model: Any) -> Any:
    return torch.compile(model, backend="aot_eager", fullgraph=True)


def in_pieces(model: Any) -> Any:
    return torch.compile(model, backend="aot_eager")


def same(model: Any) -> Any:
    return model


def train(
    make: Callable[[], Any], loss: Loss, how: Callable[[Any], Any], watched: bool = True, **settings: Any
) -> tuple[Rows, dict[str, int], list[Any], int]:
    """The rows of three steps, the faults, the trained weights and the number of graphs."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"compiled": "record", "mv_distribution": False, "ops": OPS, **settings}
    monitor = watch(model, optimizer, **settings) if watched else None
    run = how(model)
    for step in range(3):
        loss(run, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    if monitor is None:
        return {}, {}, [*model.parameters()], graphs()
    monitor.stop()
    return read(monitor.output_directory), monitor.faults, [*model.parameters()], graphs()


def check(
    make: Callable[[], Any],
    loss: Loss,
    compiled: Callable[[Any], Any] = whole,
    never: int = 0,
    **settings: Any,
) -> Rows:
    """Compiled, there is every row of the eager run but gradients of inputs inside, which are counted, with its
    numbers; weights and the number of graphs are those of the compiled run without a monitor. ``never`` of the inputs
    inside have no backward."""
    eager, none, *_ = train(make, loss, same, **settings)
    _, _, alone, pieces = train(make, loss, compiled, watched=False)
    rows, faults, weights, number = train(make, loss, compiled, **settings)
    missing = eager.keys() - rows.keys()
    assert none == {}
    assert rows.keys() <= eager.keys()
    assert all(row.signal == "actv_grad" and "input" in row.name.rpartition(".")[2] for row in missing)
    assert faults == ({MISSED: len(missing) + never} if missing else {})
    assert all(torch.equal(a, b) for a, b in zip(alone, weights, strict=True))
    assert number == pieces > 0
    for row, values in rows.items():
        for op, value in values.items():
            if isinstance(value, float):
                expected = eager[row][op]
                assert value == pytest.approx(expected, rel=1e-5, abs=1e-5 * abs(eager[row]["norm"])), (row, op)
    return rows


def gpt(**options: Any) -> Callable[[], Any]:
    return lambda: SmallGPT(**options)


def of_tokens(model: Any, step: int) -> Any:
    return language_loss(model, token_batch(step))


@pytest.mark.parametrize("checkpoint", ["non-reentrant", "reentrant"])
def test_one_graph_has_the_rows_of_the_eager_run(checkpoint: str) -> None:
    """A model with activation checkpointing that is one graph stays one, as those without do below."""
    layers = 2 if checkpoint == "non-reentrant" else 1  # one graph computes both blocks anew
    how = whole if checkpoint == "non-reentrant" else in_pieces
    rows = check(gpt(layers=layers, checkpoint=checkpoint), of_tokens, how)
    signals = {row.signal for row in rows if row.name == f"layers.{layers - 1}.attention.qkv.output"}
    assert signals == {"actv", "actv_grad"}


class WithLoss(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model that returns its logits and, of these, the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = TinyNet()

    def forward(self, x: Any) -> Any:
        logits = self.net(x)
        return logits, logits.square().mean()


@pytest.mark.parametrize("make_run", [whole, lambda model: model.compile(backend="aot_eager") or model])
def test_an_output_without_a_gradient_has_no_row(make_run: Callable[[Any], Any]) -> None:
    """Of logits that are handed out beside the loss no gradient comes from outside the graph: no row, and no fault."""
    eager, *_ = train(WithLoss, lambda model, step: model(X + step)[1], same)
    rows, faults, *_ = train(WithLoss, lambda model, step: model(X + step)[1], make_run)
    assert set(faults) <= {MISSED}
    missing = {row.name for row in eager.keys() - rows.keys() if "input" not in row.name.rpartition(".")[2]}
    assert missing <= {".output_0"}
    assert {row.name for row in rows if row.signal == "actv_grad"} >= {".output_1", "net.fc2.output"}


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
@pytest.mark.skipif(" " in torch.__file__, reason="inductor cannot link libraries in a folder whose path has a space")
def test_inductor_keeps_and_runs_the_operators() -> None:
    """The default backend drops none of them; what it computes in another order is close."""
    loss = lambda model, step: model(X + step).sum()  # noqa: E731
    eager, _, trained, _ = train(TinyNet, loss, same)
    rows, faults, weights, number = train(TinyNet, loss, lambda model: torch.compile(model, fullgraph=True))
    assert number == 1
    missing = eager.keys() - rows.keys()
    assert faults == {MISSED: len(missing)}
    assert all(".input" in row.name and row.signal == "actv_grad" for row in missing)
    for row in rows:
        assert rows[row]["norm"] == pytest.approx(eager[row]["norm"], rel=1e-4, abs=1e-6), row
    assert all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(trained, weights, strict=True))


def test_steps_that_are_not_sampled_compile_nothing_anew() -> None:
    """Sampled steps and others run the same graph."""
    rows = check(TinyNet, lambda model, step: model(X + step).sum(), step_interval=2)
    assert {row.step for row in rows} == {0, 2}


@torch._dynamo.config.patch(recompile_limit=2)
def test_blocks_compiled_one_by_one_share_their_graph() -> None:
    """More blocks than torch keeps versions of a function: one graph serves all, each with its own rows."""

    def each(model: Any) -> Any:
        for block in model.layers:
            block.compile(backend="aot_eager", fullgraph=True)
        return model

    rows = check(gpt(layers=3), of_tokens, each, wg_distribution=False, param_distribution=False)
    assert len({values["norm"] for row, values in rows.items() if row.name.endswith(".up.output")}) == 2 * 3 * 3
    assert graphs() == 1


class Twice(torch.nn.Module):
    """Uses one layer twice, side by side, and changes an output in place."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.act = torch.nn.Linear(2, 3), torch.nn.ReLU(inplace=True)
        self.last = torch.nn.Linear(3, 1)

    def forward(self, x: Any) -> Any:
        one, other = self.shared(x), self.shared(3 * x + 1)
        return self.last(self.act(one) * 2 - self.act(other))


def test_a_layer_that_is_called_twice_in_a_graph() -> None:
    """Each call has its own rows, forwards and backwards."""
    rows = check(Twice, lambda model, step: model(X + step).sum())
    assert {row.call for row in rows if row.name == "shared.output" and row.signal == "actv_grad"} == {0, 1}


@pytest.mark.parametrize("first", [0, 1])
def test_two_forwards_and_their_backwards_in_either_order(first: int) -> None:
    """A gradient belongs to the forward that it comes from, not to the latest."""

    def loss(model: Any, step: int) -> Any:
        losses = [model(X + step).sum(), 5 * model(X * 2).square().sum()]
        losses[first].backward()
        return losses[1 - first]

    rows = check(TinyNet, loss)
    assert {row.call for row in rows if row.name == "fc.output" and row.signal == "actv_grad"} == {0, 1}


def test_a_forward_without_a_backward_gives_its_place_to_none() -> None:
    """State of another forward is not taken for the gradient's own."""
    gc.freeze()  # what earlier tests have left is not looked through

    def loss(model: Any, step: int) -> Any:
        model(X * 7)
        gc.collect()
        return model(X + step).sum()

    check(TinyNet, loss, never=3 * 2)


class Broken(torch.nn.Module):
    """Breaks the graph in pieces by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(TinyNet() for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            torch._dynamo.graph_break()
            x = x + 0.01 * layer(x)
        return x


def test_a_model_that_breaks_the_graph_is_in_as_many_pieces_as_without() -> None:
    """Hooks between two pieces run as they are, and make no graphs of their own."""
    check(Broken, lambda model, step: model(X + step).sum(), in_pieces)


class Moved(torch.nn.Module):
    """Calls a module with a number that is another in each step."""

    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(2, 2)

        def forward(self, x: Any, at: int) -> Any:
            return self.fc(x + at)

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: Any, at: int) -> Any:
        return self.inner(x, at)


def test_numbers_that_change_from_step_to_step_compile_nothing_anew() -> None:
    """The monitor compares no argument that the model itself does not."""
    check(Moved, lambda model, step: model(X, step + 3).sum())


@dataclasses.dataclass
class Result:
    """Output of a model as a dataclass."""

    logits: Any
    extra: Any = None


class Formed(torch.nn.Module):
    """Hands mappings, lists and dataclasses from module to module."""

    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(2, 2)

        def forward(self, x: Any, *, options: Any = None, flag: bool = True) -> Any:
            y = self.fc(x)
            return Result({"a": [y, y * options["by"]], "flag": flag}, (y + 1, None, "text"))

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: Any) -> Any:
        found = self.inner(x, options={"by": x * 2, "n": 3}, flag=False)
        return found.logits["a"][1] + found.extra[0]


def test_structures_keep_the_names_of_their_tensors() -> None:
    """Keyword arguments, mappings, lists and dataclasses give the same parts."""
    rows = check(Formed, lambda model, step: model(X + step).sum())
    assert {"inner.input_1", "inner.output_0", "inner.output_1", "inner.output_3"} <= {row.name for row in rows}


def test_selected_elements_are_those_of_the_eager_run() -> None:
    """A target's element selectors mean the same inside a graph."""
    targets = {"inner": {"output": "dict[2]:1", "output_grad": "dict[2]:0"}}
    rows = check(Formed, lambda model, step: model(X + step).sum(), targets=targets, all_xy=False)
    assert {row.name for row in rows if row.signal == "actv"} == {"inner.output_3"}


def test_autocast_is_recorded_in_the_dtype_that_it_computes_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The dtype column has bfloat16 for tensors that autocast computes in it, and float32 for the rest."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))

    def loss(model: Any, step: int) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(X + step).float().sum()

    check(TinyNet, loss)
    with max(tmp_path.rglob("actv_0-0.csv"), key=lambda path: path.stat().st_mtime_ns).open() as file:
        dtypes = {line["name"]: line["dtype"] for line in csv.DictReader(file)}
    assert (dtypes["fc.input"], dtypes["fc.output"]) == ("torch.float32", "torch.bfloat16")


def test_compiled_before_it_is_watched_and_not_yet_run() -> None:
    """The order does not matter as long as nothing has been compiled yet."""
    model = TinyNet()
    run = whole(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(run, optimizer, compiled="record", backward_only=False, forward_only=True)
    run(X).sum().backward()
    optimizer.step()
    names = {row.name for row in rows_of(monitor) if row.signal == "actv"}
    assert names == {f"{name}{part}" for name in (".", "fc.", "relu.", "fc2.") for part in ("input", "output")}


def nodes(seen: list[bool]) -> Callable[[Any, Any], Any]:
    """Backend that records for each graph whether it has operators of the monitor."""

    def backend(graph: Any, _: Any) -> Any:
        seen.append(any("probe" in str(node.target) for node in graph.graph.nodes))
        return graph

    return backend


def test_after_stopping_nothing_of_it_is_left_in_the_graph() -> None:
    """Stopping compiles once more, the graph that there is without a monitor."""
    model, seen = TinyNet(), list[bool]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = torch._dynamo.config.skip_nnmodule_hook_guards
    run = torch.compile(model, backend=nodes(seen), fullgraph=True)
    monitor = watch(model, optimizer, compiled="record", forward_only=True)
    for _ in range(4):
        run(X).sum().backward()
        optimizer.step()
        if monitor.step == 2:
            monitor.stop()
    assert {row.step for row in rows_of(monitor) if row.signal == "actv" and row.name == "fc.output"} == {0, 1}
    assert seen == [True, False]
    assert torch._dynamo.config.skip_nnmodule_hook_guards == before


def test_the_remedy_for_a_compiled_model_works() -> None:
    """The error names the setting with which the same model, compiled as it is, has activations."""
    model = TinyNet()
    run = whole(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match='"compiled": "record"'):
        watch(run, optimizer)
    monitor = watch(run, optimizer, compiled="record")
    run(X).sum().backward()
    optimizer.step()
    monitor.stop()
    assert "fc.output" in {row.name for row in read(monitor.output_directory) if row.signal == "actv"}


def test_a_graph_that_was_compiled_without_the_monitor_is_compiled_again() -> None:
    """A model that has run before it was watched is recorded inside, as one that has not."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = whole(model)
    run(X).sum().backward()
    monitor = watch(model, optimizer, compiled="record")
    for _ in range(2):
        run(X).sum().backward()
        optimizer.step()
    monitor.stop()
    assert monitor.faults == {MISSED: 4}
    names = {row.name for row in read(monitor.output_directory) if row.signal == "actv"}
    assert {"fc.output", "relu.output", "fc2.output"} <= names


def test_switched_off_and_on_again_it_goes_on_recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Dynamic start and stop: two graphs serve however many changes, one with the monitor and one without."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    path = tmp_path / "config.json"

    def write(on: bool) -> None:
        path.write_text(json.dumps({**EVERYTHING, "compiled": "record", "forward_only": True, "dynamic_on": on}))

    write(False)
    model, seen = TinyNet(), list[bool]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(str(path), params_have_main_grad=False)
    monitor.set_monitor(model, 1, optimizer)
    run = torch.compile(model, backend=nodes(seen), fullgraph=True)
    found = set[int]()
    for step in range(12):
        if step % 3 == 0:
            write(step % 6 == 3)
        run(X).sum().backward()
        optimizer.step()
    monitor.stop()
    assert monitor.faults == {}
    assert sorted(seen) == [False, True]
    for directory in {path.parent for path in tmp_path.rglob("actv_*.csv")}:
        found |= {row.step for row in read(directory) if row.signal == "actv" and row.name == "fc.output"}
    assert found == {4, 5, 6, 10, 11}


def test_a_backend_that_cannot_tell_gradients_apart_says_so() -> None:
    """Outputs are recorded, their gradients are a fault, training goes on."""
    loss = lambda model, step: model(X + step).sum()  # noqa: E731
    compiled = lambda model: torch.compile(model, backend="eager")  # noqa: E731
    rows, faults, weights, _ = train(TinyNet, loss, compiled)
    *_, alone, _ = train(TinyNet, loss, compiled, watched=False)
    assert all(torch.equal(a, b) for a, b in zip(weights, alone, strict=True))
    assert any(row.signal == "actv" and row.name == "fc2.output" for row in rows)
    assert {row.name for row in rows if row.signal == "actv_grad"} == {".output"}
    assert faults["module 'fc': RuntimeError"] == 3


def test_the_structure_of_a_compiled_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``print_struct`` writes the modules inside a graph, too."""
    from probe.core.errors import TrainingStopped

    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    with pytest.raises(TrainingStopped):
        train(TinyNet, lambda model, step: model(X + step).sum(), whole, print_struct=True)
    found = json.loads((tmp_path / "module_struct" / "rank0" / "module_struct.json").read_text())
    assert found["0:fc"]["output"] == {"config": "tensor", "tensor": "size=(2, 3), dtype=torch.float32"}
    assert found["0:fc"]["output_grad"]["0"] == "size=(2, 3), dtype=torch.float32"


class Attending(torch.nn.Module):
    """A module that is given query and key."""

    class Core(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def __init__(self) -> None:
        super().__init__()
        self.core, self.fc = self.Core(), torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        q = self.fc(x)
        return self.core(q, q * 2, q, is_causal=True)


def test_features_of_attention_inside_a_graph() -> None:
    """Entropy and the largest weight are those of the eager run, the causal mask included."""
    x = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    settings = {
        "xy_distribution": False,
        "wg_distribution": False,
        "param_distribution": False,
        "recording_l2_features": True,
        "l2_targets": {"attention_hook": ["core"], "linear_hook": ["fc"]},
        "sa_order": "b,h,s,d",
    }
    loss = lambda model, step: model(x + step).sum()  # noqa: E731
    eager, compiled = (train(Attending, loss, how, **settings)[0] for how in (same, whole))
    assert {row.signal for row in eager} == {"attention_hook", "linear_hook"}
    assert compiled == eager


class Pairs(torch.nn.Module):
    """Hands a tensor of a subclass from module to module."""

    class First(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            from torch.testing._internal.two_tensor import TwoTensor

            return TwoTensor(x, x)

    class Second(torch.nn.Module):
        def forward(self, pair: Any) -> Any:
            return pair.a + pair.b

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.first, self.second = torch.nn.Linear(2, 2), self.First(), self.Second()

    def forward(self, x: Any) -> Any:
        return self.second(self.first(self.fc(x)))


def test_tensors_of_subclasses_are_left_out_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on, the others are recorded."""
    rows, *_ = train(Pairs, lambda model, step: model(X + step).sum(), in_pieces)
    assert {"fc.output", "first.input", "second.output"} <= {row.name for row in rows if row.signal == "actv"}
    assert "tensors of subclasses" in caplog.text


def test_what_is_not_heard_by_default_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Without ``compiled: record`` features of calls and stacks that a graph hides are counted, and logged once."""
    x = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    settings = {
        "compiled": "skip",
        "xy_distribution": False,
        "recording_l2_features": True,
        "l2_targets": {"attention_hook": ["core"], "linear_hook": ["fc"]},
        "sa_order": "b,h,s,d",
        "stack_info": True,
    }
    rows, faults, *_ = train(Attending, lambda model, step: model(x + step).sum(), whole, **settings)
    assert faults == {
        f"{what}: steps in which no watched module was seen to run": 3 for what in ("attention_hook", "stack_info")
    }
    assert {row.step for row in rows if row.signal == "linear_hook"} == {0, 1, 2}
    assert caplog.text.count('compiled: "record" listens') == 2


def test_nothing_is_recorded_while_a_cuda_graph_is_captured(caplog: pytest.LogCaptureFixture) -> None:
    """Kernels of a capture do not run, so that there is nothing to read, which is logged once and counted."""
    now = [False]

    class OnDevice(TrainerMon):
        framework = TrainerMon.framework._replace(capturing=lambda: now[0])

    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = OnDevice(EVERYTHING, params_have_main_grad=False)
    monitor.set_monitor(model, 1, optimizer)
    for now[0] in (False, True, True, False):
        model(X).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    assert {row.step for row in read(monitor.output_directory)} == {0, 3}
    assert list(monitor.faults) == ["hooks called while a CUDA graph was captured"]
    assert caplog.text.count("a CUDA graph is captured") == 1


def test_a_model_whose_twin_was_compiled_before() -> None:
    """Another model of the same class that was compiled without a monitor does not hide this one from its hooks."""
    alone, *_ = train(TinyNet, lambda model, step: model(X + step).sum(), in_pieces)
    torch.manual_seed(0)
    twin, model = TinyNet(), TinyNet()
    in_pieces(twin)(X).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, compiled="record", mv_distribution=False, ops=OPS)
    run = in_pieces(model)
    for step in range(3):
        run(X + step).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    assert {(row.step, row.signal, row.name) for row in read(monitor.output_directory)} == {
        (row.step, row.signal, row.name) for row in alone
    }
