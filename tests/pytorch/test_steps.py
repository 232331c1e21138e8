"""Training steps: every row against a second, unmonitored training whose gradients are computed in another way."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.pytorch.toys import SmallGPT, TinyNet, X, language_loss, token_batch
from tests.pytorch.watching import Row, assert_rows, numbers, read, rows_of, watch, weights_only
from tests.required import require

torch = require("torch")

from probe.pytorch.engines import native  # noqa: E402 - only where torch is

STATES = ("exp_avg", "exp_avg_sq", "momentum_buffer")
WEIGHTS = ("grad_unreduced", "grad_reduced", "param_origin", "param_updated", *STATES)
SCALE = 1024.0


class Loop:
    """Training as a user writes it."""

    def __init__(self, model: Any, optimizer: Any, scaler: Any = None, unscales: bool = False) -> None:
        self.model, self.optimizer, self.scaler, self.unscales = model, optimizer, scaler, unscales

    def backward(self, x: Any) -> None:
        loss = self.model(x).sum()
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def step(self, clip: float | None = None, zero: bool = False, skips: bool = False) -> None:
        if self.unscales:
            self.scaler.unscale_(self.optimizer)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not zero)

    def search(self, x: Any) -> None:
        def closure() -> Any:
            self.optimizer.zero_grad()
            loss = self.model(x).square().sum()
            loss.backward()
            return loss

        self.optimizer.step(closure)
        self.optimizer.zero_grad()


class Truth(Loop):
    """The same training without monitor or scaler; gradients come from ``torch.autograd.grad``, micro batch by micro
    batch, and everything that happens is noted."""

    def __init__(self, model: Any, optimizer: Any, unreduced: bool | str = False) -> None:
        super().__init__(model, optimizer)
        self.rows: dict[Row, Any] = {}
        self._unreduced = unreduced
        self._step = self._micro_step = 0
        self._touched: set[str] = set()

    def backward(self, x: Any) -> None:
        self._take(self.model(x).sum())

    def _take(self, loss: Any) -> None:
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        own = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
        for (name, parameter), gradient in zip(named, own, strict=True):
            if gradient is not None:
                self._touched.add(name)
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
                value = gradient if self._unreduced is True else parameter.grad
                self._note("grad_unreduced", name, value, self._micro_step if self._unreduced else 0)
        self._micro_step += 1

    def _note(self, signal: str, name: str, value: Any, micro_step: int = 0) -> None:
        self.rows[Row(signal, self._step, name, micro_step)] = value.detach().clone()

    def step(self, clip: float | None = None, zero: bool = False, skips: bool = False) -> None:
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self._before()
        if not skips:
            self.optimizer.step()
        self._after(zero)

    def search(self, x: Any) -> None:
        self._take(self.model(x).square().sum())
        self._before()
        super().search(x)
        self._after(False)

    def _before(self) -> None:
        for name, parameter in self.model.named_parameters():
            if name in self._touched:
                self._note("grad_reduced", name, parameter.grad)
            self._note("param_origin", name, parameter)
            for kind, value in self.optimizer.state.get(parameter, {}).items():
                if torch.is_tensor(value) and kind in STATES:
                    self._note(kind, name, value)

    def _after(self, zero: bool) -> None:
        for name, parameter in self.model.named_parameters():
            self._note("param_updated", name, parameter)
        self.optimizer.zero_grad(set_to_none=not zero)
        self._step, self._micro_step = self._step + 1, 0
        self._touched.clear()


Scenario = Callable[[Loop], None]


def plain(loop: Loop) -> None:
    for step in range(3):
        loop.backward(X * (step + 1))
        loop.step()


def accumulation(loop: Loop) -> None:
    for step in range(3):
        for micro_step in range(4):
            loop.backward(X * (step + micro_step + 1))
        loop.step()


def incomplete_accumulation(loop: Loop) -> None:
    for micro_batches in (4, 3, 4):
        for micro_step in range(micro_batches):
            loop.backward(X * (micro_step + 1))
        loop.step()


def clipped(loop: Loop) -> None:
    for step in range(3):
        loop.backward(X * (step + 1))
        loop.step(clip=0.5)


def zeroed(loop: Loop) -> None:
    for step in range(3):
        loop.backward(X * (step + 1))
        loop.step(zero=True)


def overflowing(loop: Loop) -> None:
    for step in range(4):
        loop.backward(X * (float("inf") if step == 1 else step + 1))
        loop.step(skips=step == 1)


def closures(loop: Loop) -> None:
    for step in range(3):
        loop.search(X * (step + 1))


def sgd(model: Any, **more: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **more)


def adam(model: Any, **more: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.1, **more)


def lbfgs(model: Any) -> Any:
    return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)


def fused_sgd(model: Any) -> Any:
    return sgd(model, fused=True)


def fused_adam(model: Any) -> Any:
    return adam(model, fused=True)


class Nested(torch.optim.SGD):
    """Calls its parent's step inside its own, so that step hooks run twice."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def nested(model: Any) -> Any:
    sgd(model)  # torch wraps the parent's step when the first object of it is made
    return Nested(model.parameters(), lr=0.1, momentum=0.9)


def compare(
    scenario: Scenario, make: Callable[[Any], Any], unreduced: bool | str, loop: Callable[..., Loop] = Loop
) -> None:
    """Runs ``scenario`` under a monitor and beside it, and compares every row."""
    model, twin = TinyNet(), TinyNet()
    optimizer = make(model)
    monitor = watch(model, optimizer, 4, **weights_only(monitor_mbs_grad=unreduced))
    scenario(loop(model, optimizer))
    truth = Truth(twin, make(twin), unreduced)
    scenario(truth)
    assert_rows(rows_of(monitor), truth.rows, WEIGHTS)


def scaled(model: Any, optimizer: Any) -> Loop:
    return Loop(model, optimizer, torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=2))


def unscaled_by_user(model: Any, optimizer: Any) -> Loop:
    return Loop(model, optimizer, torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=2), unscales=True)


@pytest.mark.parametrize("unreduced", [False, True, "accumulated"])
@pytest.mark.parametrize("scenario", [plain, accumulation, incomplete_accumulation])
def test_every_micro_batch_and_total(scenario: Scenario, unreduced: bool | str) -> None:
    """Unreduced gradients are each micro batch's own, the running sum or the total, and a short step shifts nothing."""
    compare(scenario, sgd, unreduced)


@pytest.mark.parametrize("make", [sgd, adam, fused_sgd, fused_adam, nested])
@pytest.mark.parametrize("scenario", [plain, clipped, zeroed, accumulation])
def test_every_optimizer_gives_one_step_a_step(scenario: Scenario, make: Callable[[Any], Any]) -> None:
    """Reduced gradients are those after clipping, unreduced those before; the rest is the step's."""
    compare(scenario, make, False)


@pytest.mark.parametrize("unreduced", [False, True])
@pytest.mark.parametrize("loop", [scaled, unscaled_by_user])
@pytest.mark.parametrize("make", [sgd, adam, fused_sgd, fused_adam])
@pytest.mark.parametrize("scenario", [plain, accumulation, overflowing])
def test_a_scaled_loss_shows_true_gradients(
    scenario: Scenario, make: Callable[[Any], Any], loop: Callable[..., Loop], unreduced: bool
) -> None:
    """Under a GradScaler every gradient is as without it; a skipped step has its own number and its own rows."""
    compare(scenario, make, unreduced, loop)


@pytest.mark.parametrize("ops", [["std"], ["norm"], ["max"], ["zeros", "nans"]])
def test_a_scaled_loss_shows_true_gradients_whatever_the_ops(ops: list[str]) -> None:
    """The scale is divided out of every op by itself."""

    def train(loop: Callable[..., Loop]) -> Any:
        model = TinyNet()
        optimizer = fused_sgd(model)
        monitor = watch(model, optimizer, ops=ops, eps=1e-3, monitor_mbs_grad=True)
        plain(loop(model, optimizer))
        return rows_of(monitor)

    with_scaler, without = train(scaled), train(Loop)
    assert with_scaler.keys() == without.keys()
    for row, values in without.items():
        assert with_scaler[row] == pytest.approx(values, rel=1e-4, abs=1e-6), row


@pytest.mark.parametrize("make", [lbfgs, sgd, adam])
def test_a_closure_is_part_of_the_step(make: Callable[[Any], Any]) -> None:
    """Gradients are those of the closure's first evaluation; what line search computes belongs to no micro batch."""
    for unreduced in (False, True):
        compare(closures, make, unreduced)


def test_line_search_leaves_no_activations() -> None:
    """Of a closure that runs four times and more, each module has the rows of one forward."""
    model = TinyNet()
    optimizer = lbfgs(model)
    monitor = watch(model, optimizer)
    closures(Loop(model, optimizer))
    rows = rows_of(monitor)
    names = ["fc.input", "fc.output", "relu.input", "relu.output", "fc2.input", "fc2.output", ".input", ".output"]
    assert {row for row in rows if row.signal == "actv"} == {Row("actv", s, n) for s in range(3) for n in names}
    assert {row.step for row in rows if row.signal == "actv_grad"} == {0, 1, 2}
    assert {(row.micro_step, row.call) for row in rows} == {(0, 0)}


def test_activations_and_their_gradients_are_true_under_a_scaler() -> None:
    """Rows of actv and actv_grad are the same with and without a GradScaler, skipped steps included."""

    def train(loop: Callable[..., Loop]) -> Any:
        model = TinyNet()
        optimizer = sgd(model)
        monitor = watch(model, optimizer, wg_distribution=False)
        accumulation(loop(model, optimizer))
        return {row: values for row, values in rows_of(monitor).items() if row.signal.startswith("actv")}

    with_scaler, without = train(scaled), train(Loop)
    assert with_scaler.keys() == without.keys()
    assert len({row for row in without if row.signal == "actv_grad"}) == 3 * 4 * 6
    for row, values in without.items():
        assert with_scaler[row] == pytest.approx(values, rel=1e-5), row


class Gan(torch.nn.Module):
    """A generator and a judge."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.judge = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)

    def forward(self, x: Any) -> Any:
        return self.judge(self.make(x))


def gan(seed: int = 0) -> Gan:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Gan()


def test_two_optimizers_share_a_step() -> None:
    """Each optimizer's gradients are those it applied; what the second's loss adds to the first's is in no row."""
    model, twin = gan(), gan()
    judge, make = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.judge, model.make))
    monitor = watch(model, [judge, make], **weights_only())
    expected = {}
    for step in range(3):
        judge.zero_grad()
        (model.judge(X) - model.judge(model.make(X).detach())).sum().backward()
        judge.step()
        make.zero_grad()
        model(X * (step + 1)).sum().backward()
        make.step()
        for name, part in (("judge", twin.judge), ("make", twin.make)):
            loss = (twin.judge(X) - twin.judge(twin.make(X))) if name == "judge" else twin(X * (step + 1))
            named = [(f"{name}.{inner}", p) for inner, p in part.named_parameters()]
            gradients = torch.autograd.grad(loss.sum(), [p for _, p in named])
            for (full, parameter), gradient in zip(named, gradients, strict=True):
                expected[Row("grad_unreduced", step, full)] = expected[Row("grad_reduced", step, full)] = gradient
                expected[Row("param_origin", step, full)] = parameter.detach().clone()
                with torch.no_grad():
                    parameter.sub_(0.1 * gradient)
                expected[Row("param_updated", step, full)] = parameter.detach().clone()
    assert_rows(rows_of(monitor), expected, WEIGHTS)


@pytest.mark.parametrize("fused_first", [True, False])
def test_two_scaled_optimizers_of_which_one_is_fused(fused_first: bool) -> None:
    """One optimizer gets scaled gradients and the other unscaled ones, in one step: both have true rows."""
    model, twin = TinyNet(), TinyNet()
    optimizers = [
        torch.optim.SGD(model.fc.parameters(), lr=0.1, fused=fused_first),
        torch.optim.SGD(model.fc2.parameters(), lr=0.1, fused=not fused_first),
    ]
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    monitor = watch(model, optimizers, **weights_only())
    truth = Truth(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
    for step in range(3):
        scaler.scale(model(X * (step + 1)).sum()).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        truth.backward(X * (step + 1))
        truth.step()
    assert_rows(rows_of(monitor), truth.rows, WEIGHTS)


def test_an_optimizer_that_rests_does_not_stop_the_count() -> None:
    """A second optimizer that never steps holds nothing up: every step of the first is a step with its own rows."""
    model, twin = gan(), gan()
    optimizer, resting = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.make, model.judge))
    monitor = watch(model, [optimizer, resting], **weights_only())
    truth = Truth(twin, torch.optim.SGD(twin.make.parameters(), lr=0.1))
    for step in range(5):
        model(X * (step + 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        resting.zero_grad()
        truth.backward(X * (step + 1))
        truth.step()
        twin.zero_grad()
    rows = rows_of(monitor)
    settled = [row for row in {**rows, **truth.rows} if row.step >= 3 and row.name.startswith("make")]
    assert_rows(*({row: every[row] for row in settled if row in every} for every in (rows, truth.rows)), WEIGHTS)
    reduced = {row for row in rows if row.signal == "grad_reduced" and row.name.startswith("make")}
    assert reduced == {Row("grad_reduced", step, f"make.{part}") for step in range(5) for part in ("weight", "bias")}


def test_uneven_updates_are_each_recorded_and_miss_no_forward() -> None:
    """Of a step that begins with an update after its forward nothing is missed: the step before has that forward."""
    model = gan()
    make, judge = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.make, model.judge))
    monitor = watch(model, [make, judge], xy_distribution=True)
    for _ in range(3):
        for optimizer in (judge, judge, make):
            model(X).sum().backward()
            optimizer.step()
            model.zero_grad()
    rows = rows_of(monitor)
    assert monitor.faults == {}
    for name, updates in (("judge.weight", 6), ("make.weight", 3)):  # stop() ends the last one's step
        assert len([row for row in rows if (row.signal, row.name) == ("grad_reduced", name)]) == updates


def test_a_step_that_makes_the_state_for_a_checkpoint_is_none_of_training() -> None:
    """PyTorch calls ``step`` with gradients and a rate of 0 where a checkpoint is loaded before training."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    for kind in (torch.optim.Adam, torch.optim.SGD):
        model = TinyNet()
        optimizer = kind(model.parameters(), lr=0.1)
        monitor = watch(model, optimizer, **weights_only())
        get_optimizer_state_dict(model, optimizer)
        model(X).sum().backward()
        optimizer.step()
        rows = rows_of(monitor)
        assert {row.step for row in rows} == {0}
        assert all(rows[row]["norm"] for row in rows if row.signal == "grad_reduced")


def test_the_state_of_a_shared_out_optimizer_is_that_of_its_part() -> None:
    """``ZeroRedundancyOptimizer`` keeps its state in an optimizer of its own part of the parameters."""
    model = TinyNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    outer = torch.optim.Optimizer(model.parameters(), {"betas": (0.9, 0.999), "eps": 1e-8})
    outer.optim, outer.step = optimizer, optimizer.step
    names = {name for name, _ in model.named_parameters()}
    model(X).sum().backward()
    outer.step()
    assert {name for name, p in model.named_parameters() if "exp_avg" in native.state(outer, p)} == names
    assert all(native.adam(outer)(p).steps == 1 for p in model.parameters())


class Clumsy(torch.optim.SGD):
    """Raises in its second step."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise FloatingPointError("the user's own")
        return super().step(closure)


def test_a_step_that_raises_is_not_counted_and_mutes_nothing() -> None:
    """After the user's step has raised, the next attempt is that step, and later ones are right."""
    model, twin = TinyNet(), TinyNet()
    optimizer = Clumsy(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, **weights_only())
    truth = Truth(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
    for step in range(4):
        model(X * (step + 1)).sum().backward()
        if step == 1:
            with pytest.raises(FloatingPointError):
                optimizer.step()
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()
        truth.backward(X * (step + 1))
        truth.step()
    assert_rows(rows_of(monitor), truth.rows, WEIGHTS)


class Searching(torch.optim.SGD):
    """Evaluates its closure three times a step."""

    def step(self, closure: Any = None) -> Any:
        losses = [closure() for _ in range(3)]
        super().step()
        return losses[0]


def test_a_closure_that_raises_mutes_nothing() -> None:
    """After a closure has raised in the line search, the next steps are recorded as ever."""
    model = TinyNet()
    optimizer = Searching(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer)
    evaluations = 0

    def closure() -> Any:
        nonlocal evaluations
        evaluations += 1
        if evaluations == 2:
            raise FloatingPointError("the user's own")
        optimizer.zero_grad()
        loss = model(X).square().sum()
        loss.backward()
        return loss

    with pytest.raises(FloatingPointError):
        optimizer.step(closure)
    for _ in range(2):
        optimizer.step(closure)
    assert monitor.step == 2
    rows = rows_of(monitor)
    assert {row.step for row in rows if row.signal == "actv"} == {0, 1}
    assert {row.step for row in rows if row.signal == "grad_unreduced"} == {0, 1}


@pytest.mark.parametrize("before", [True, False])
def test_a_learning_rate_scheduler_sees_its_optimizer(before: bool) -> None:
    """A scheduler made before or after attaching warns of nothing, and every step has its number."""
    model, twin = TinyNet(), TinyNet()
    optimizer = sgd(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if before else None
        monitor = watch(model, optimizer, **weights_only())
        scheduler = scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        truth = Truth(twin, sgd(twin))
        for step in range(3):
            model(X * (step + 1)).sum().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            truth.backward(X * (step + 1))
            truth.step()
            truth.optimizer.param_groups[0]["lr"] *= 0.5
        assert_rows(rows_of(monitor), truth.rows, WEIGHTS)


class Duck:
    """An optimizer that is none of torch's and offers no hooks."""

    def __init__(self, parameters: Any) -> None:
        self.param_groups = [{"params": list(parameters)}]

    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(0.1 * parameter.grad)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None


@pytest.mark.parametrize("scenario", [plain, accumulation, closures])
def test_an_optimizer_without_hooks(scenario: Scenario) -> None:
    """Anything with a step is watched, closures included, and afterwards its step is its class's again."""
    model, twin = TinyNet(), TinyNet()
    optimizer = Duck(model.parameters())
    monitor = watch(model, optimizer, **weights_only())
    scenario(Loop(model, optimizer))
    truth = Truth(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
    scenario(truth)
    assert_rows(rows_of(monitor), truth.rows, WEIGHTS)
    assert "step" not in vars(optimizer)


def test_a_duck_whose_step_raises() -> None:
    """A wrapped step that raises raises what it raised, and the next one is counted."""
    model = TinyNet()
    optimizer = Duck(model.parameters())
    monitor = watch(model, optimizer, **weights_only())
    with pytest.raises(TypeError, match="NoneType"):
        optimizer.step()  # there is no gradient yet
    plain(Loop(model, optimizer))
    assert monitor.step == 3
    assert {row.step for row in rows_of(monitor)} == {0, 1, 2}


class Branching(torch.nn.Module):
    """Model that uses its side branch only if switched on."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False)
        self.uses_side = True

    def forward(self, x: Any) -> Any:
        return self.main(x) + self.side(x) if self.uses_side else self.main(x)


@pytest.mark.parametrize("zero", [True, False])
def test_a_parameter_without_new_gradient_gives_no_row(zero: bool) -> None:
    """An unused branch has gradient rows only in the steps that used it; zeros that are left are applied."""
    model = Branching()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, **weights_only())
    loop = Loop(model, optimizer)
    for step in range(4):
        model.uses_side = step in (0, 3)
        loop.backward(X)
        loop.step(zero=zero)
    rows = rows_of(monitor)
    applied = {"grad_unreduced": {0, 3}, "grad_reduced": {0, 1, 2, 3} if zero else {0, 3}}
    for signal, steps in applied.items():
        assert {row.step for row in rows if row.signal == signal and row.name == "side.weight"} == steps
        assert {row.step for row in rows if row.signal == signal and row.name == "main.weight"} == {0, 1, 2, 3}
    assert {row.step for row in rows if row.signal == "param_updated" and row.name == "side.weight"} == {0, 1, 2, 3}


def test_frozen_and_tied_parameters() -> None:
    """A frozen parameter has value rows and no gradient rows; a tied one has one row with the sum of its gradients."""
    model, twin = SmallGPT(tied=True), SmallGPT(tied=True)
    for net in (model, twin):
        net.norm.weight.requires_grad_(False)
    optimizer = sgd(model)
    monitor = watch(model, optimizer, **weights_only(squash_name=False))
    truth = Truth(twin, sgd(twin))
    for step in range(2):
        language_loss(model, token_batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        truth._take(language_loss(twin, token_batch(step)))
        truth.step()
    rows = rows_of(monitor)
    assert_rows(rows, truth.rows, WEIGHTS, relative=1e-3)
    assert Row("param_updated", 1, "norm.weight") in rows
    assert Row("grad_reduced", 1, "norm.weight") not in rows
    assert not [row for row in rows if row.name == "head.weight"]


def test_a_parameter_unfrozen_later_has_rows_from_its_first_gradient() -> None:
    """Gradients of a parameter that is unfrozen between two steps are there in the very next step."""
    model = TinyNet()
    model.fc.weight.requires_grad_(False)
    optimizer = sgd(model)
    monitor = watch(model, optimizer, **weights_only())
    loop = Loop(model, optimizer)
    for step in range(4):
        if step == 2:
            model.fc.weight.requires_grad_(True)
        loop.backward(X)
        loop.step()
    rows = rows_of(monitor)
    for signal in ("grad_unreduced", "grad_reduced"):
        assert {row.step for row in rows if row.signal == signal and row.name == "fc.weight"} == {2, 3}


def test_parameters_added_later_have_rows_from_their_first_step() -> None:
    """A module that joins model and optimizer between two steps is watched from the next step on."""
    model = TinyNet()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, **weights_only())
    loop = Loop(model, optimizer)
    for step in range(4):
        if step == 2:
            model.fc2 = torch.nn.Sequential(model.fc2, torch.nn.Linear(1, 1))
            optimizer.add_param_group({"params": list(model.fc2[1].parameters())})
        loop.backward(X)
        loop.step()
    rows = rows_of(monitor)
    for signal in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated"):
        assert {row.step for row in rows if row.signal == signal and row.name == "fc2.1.weight"} == {2, 3}


def accumulate_in_main_grad(model: Any) -> None:
    """Keeps gradients as Megatron does: summed up in ``main_grad``, ``grad`` dropped."""

    def accumulate(parameter: Any) -> None:
        parameter.main_grad += parameter.grad.double()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float64)
        parameter.register_post_accumulate_grad_hook(accumulate)


@pytest.mark.parametrize("unreduced", [False, True, "accumulated"])
def test_main_grad_is_read_where_there_is_one(unreduced: bool | str) -> None:
    """With params_have_main_grad, sums come from main_grad, and a micro batch's own gradient is still its own."""
    from probe.pytorch import TrainerMon

    model, twin = TinyNet(), TinyNet()
    accumulate_in_main_grad(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    settings = {"wg_distribution": True, "monitor_mbs_grad": unreduced, "ops": ["norm", "max", "min"], "ndigits": 20}
    monitor = TrainerMon(settings, params_have_main_grad=True)
    monitor.set_monitor(model, 2, optimizer)
    truth = Truth(twin, torch.optim.SGD(twin.parameters(), lr=0.0), unreduced)
    for _ in range(2):
        for micro_step in range(2):
            model(X * (micro_step + 1)).sum().backward()
            truth.backward(X * (micro_step + 1))
        optimizer.step()
        truth.step()
        for parameter in model.parameters():
            parameter.main_grad.zero_()
    rows, signals = rows_of(monitor), ("grad_unreduced", "grad_reduced")
    assert {row for row in rows if row.signal in signals} == {row for row in truth.rows if row.signal in signals}
    for row, values in rows.items():
        assert values["norm"] == pytest.approx(numbers(truth.rows[row])["norm"], rel=1e-5)


def test_main_grad_that_is_not_there_is_not_missed() -> None:
    """params_have_main_grad, which is the default, just reads grad where a parameter has nothing else."""
    from probe.pytorch import TrainerMon

    model, twin = TinyNet(), TinyNet()
    optimizer = sgd(model)
    monitor = TrainerMon({"wg_distribution": True, "ops": ["norm"], "ndigits": 20})
    monitor.set_monitor(model, 1, optimizer)
    plain(Loop(model, optimizer))
    truth = Truth(twin, sgd(twin))
    plain(truth)
    for row, values in rows_of(monitor).items():
        assert values["norm"] == pytest.approx(numbers(truth.rows[row])["norm"], rel=1e-5)


@pytest.mark.parametrize("unreduced", [False, True])
def test_sparse_gradients(unreduced: bool) -> None:
    """Sparse gradients of an embedding have the numbers of the dense ones."""
    model = torch.nn.Sequential(torch.nn.Embedding(9, 3, sparse=True), torch.nn.Flatten(), torch.nn.Linear(6, 1))
    twin = copy.deepcopy(model)
    twin[0].sparse = False
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, **weights_only(monitor_mbs_grad=unreduced))
    truth = Truth(twin, torch.optim.SGD(twin.parameters(), lr=0.1), unreduced)
    for _ in range(2):
        for tokens in (torch.tensor([[1, 2], [2, 7]]), torch.tensor([[0, 2], [3, 3]])):
            model(tokens).sum().backward()
            truth.backward(tokens)
        optimizer.step()
        optimizer.zero_grad()
        truth.step()
    assert_rows(rows_of(monitor), truth.rows, WEIGHTS)


def test_step_numbers_begin_where_they_are_told() -> None:
    """start_iteration is the first step's number, and start_step and step_interval choose among the numbers."""
    model = TinyNet()
    optimizer = sgd(model)
    from probe.pytorch import TrainerMon

    monitor = TrainerMon({"wg_distribution": True, "start_step": 6, "step_interval": 3, "ops": ["norm"]})
    monitor.set_monitor(model=model, grad_acc_steps=1, optimizer=optimizer, start_iteration=5)
    loop = Loop(model, optimizer)
    for _ in range(6):
        loop.backward(X)
        loop.step()
    assert monitor.step == 11
    monitor.stop()
    assert {row.step for row in read(monitor.output_directory)} == {6, 9}


def test_writes_that_autograd_does_not_see_are_seen() -> None:
    """Gradients and weights changed through ``.data`` (as a hand-written all-reduce does) are read anew."""
    model = torch.nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    settings = {"wg_distribution": True, "param_distribution": True, "ops": ["mean", "norm"], "alert": {"rules": []}}
    from probe.pytorch import TrainerMon

    with TrainerMon(settings) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        norms = []
        for _ in range(2):
            model(torch.ones(3, 100)).sum().backward()
            model.weight.grad.data.mul_(0.5)
            norms.append((model.weight.grad.norm().item(), model.weight.norm().item()))
            optimizer.step()
            optimizer.zero_grad()
            model.weight.data.mul_(2.0)
    rows = read(monitor.output_directory)
    for step, (gradient, weight) in enumerate(norms):
        found = {row.signal: values["norm"] for row, values in rows.items() if (row.step, row.name) == (step, "weight")}
        assert found["grad_unreduced"] == pytest.approx(2 * gradient, rel=1e-5)
        assert found["grad_reduced"] == pytest.approx(gradient, rel=1e-5)
        assert found["param_origin"] == found["param_updated"] == pytest.approx(weight, rel=1e-5)


class Bare:
    """An optimizer of somebody's own, without torch's hooks."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.param_groups, self.state = optimizer, optimizer.param_groups, optimizer.state

    def step(self) -> None:
        self.optimizer.step()


def test_a_monitor_that_cannot_be_taken_away_hears_nothing_after_its_end() -> None:
    """Two monitors wrap one optimizer's step; the first to come is the first to go, and stays wrapped in. Training goes
    on for longer than any queue."""
    model = TinyNet()
    optimizer = Bare(torch.optim.SGD(model.parameters(), lr=0.01))
    first, second = watch(model, optimizer), watch(model, optimizer, step_interval=2)

    def step() -> None:
        model(X).sum().backward()
        optimizer.step()

    step()
    first.stop()
    step()
    second.stop()
    training = threading.Thread(target=lambda: [step() for _ in range(20)], daemon=True)
    training.start()
    training.join(60)
    assert not training.is_alive(), "training hangs"
    assert (first.step, second.step) == (1, 2)
    assert (first.faults, second.faults) == ({}, {})
