"""Findings that show after some updates: settings of optimizers, modules and schedules, and steps out of scale; each
with a twin that differs in the fault alone."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.pytorch.test_loop_findings import SETTINGS
from tests.required import require

torch = require("torch")

from torch.nn import functional as F  # noqa: E402

from probe.pytorch import TrainerMon  # noqa: E402

nn = torch.nn
STEPS, LONG = 30, 130


class Program(NamedTuple):
    """Model, optimizers, and a function that yields before each pair of backward and update."""

    model: Any
    optimizers: list[Any]
    steps: Iterator[Any]


Make = Callable[[bool], Program]
PROGRAMS: dict[str, tuple[str, Make, tuple[str, ...]]] = {}
"""Kind that is found, function from whether the fault is in to a program, and the first places, by name."""


def program(kind: str, *places: str) -> Callable[[Make], Make]:
    """Add a program."""

    def add(make: Make) -> Make:
        PROGRAMS[make.__name__] = kind, make, places
        return make

    return add


def net(norm: bool = False) -> Any:
    """Two layers, perhaps with a batch norm between them."""
    middle = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(8, 16), *middle, nn.ReLU(), nn.Linear(16, 4))


def loss_of(model: Any, own: bool = True) -> Any:
    """A loss over four classes, of the samples' own labels or of others'."""
    x = torch.randn(32, 8)
    labels = x[:, :4].argmax(1)
    return F.cross_entropy(model(x), labels if own else labels.roll(7))


def plain(model: Any, optimizer: Any, number: int = STEPS, own: bool = True) -> Iterator[Any]:
    """Yield before each of some steps."""
    for step in range(number):
        yield step
        optimizer.zero_grad()
        loss_of(model, own).backward()
        optimizer.step()


def trained(model: Any, number: int = STEPS, own: bool = True, **options: Any) -> Program:
    """A plain program with Adam."""
    optimizer = torch.optim.Adam(model.parameters(), **{"lr": 1e-2, **options})
    return Program(model, [optimizer], plain(model, optimizer, number, own))


@program("no-better-than-guess")
def labels_of_other_samples(faulty: bool) -> Program:
    return trained(net(), LONG, own=not faulty)


@program("no-better-than-guess")
def rate_at_which_the_loss_runs_away(faulty: bool) -> Program:
    return trained(net(), STEPS, lr=5.0 if faulty else 1e-2)


@program("step-out-of-scale")
def rate_in_another_unit(faulty: bool) -> Program:
    return trained(net(), 70, lr=1e-9 if faulty else 1e-3)


@program("step-out-of-scale")
def rate_far_too_high(faulty: bool) -> Program:
    model = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), 16.0 if faulty else 0.1)

    def steps() -> Iterator[Any]:
        for step in range(12):
            yield step
            optimizer.zero_grad()
            model(torch.randn(64, 16)).pow(2).mean().backward()
            optimizer.step()

    return Program(model, [optimizer], steps())


@program("parameters-forgotten", "2")
def head_is_in_no_optimizer(faulty: bool) -> Program:
    model = net()
    optimizer = torch.optim.Adam((model[0] if faulty else model).parameters(), 1e-2)
    return Program(model, [optimizer], plain(model, optimizer))


@program("frozen-moves", "0")
def frozen_layer_keeps_its_gradient(faulty: bool) -> Program:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def steps() -> Iterator[Any]:
        for step in range(STEPS):
            yield step
            optimizer.zero_grad(set_to_none=False)
            loss_of(model).backward()
            if step == 5:
                model[0].requires_grad_(False)
                if not faulty:
                    model[0].zero_grad(set_to_none=True)
            optimizer.step()

    return Program(model, [optimizer], steps())


@program("rates-part")
def schedule_of_the_first_group(faulty: bool) -> Program:
    model = net()
    optimizer = torch.optim.Adam([{"params": [*layer.parameters()]} for layer in (model[0], model[2])], 1e-2)

    def steps() -> Iterator[Any]:
        for step in plain(model, optimizer):
            for group in optimizer.param_groups[: 1 if faulty else None]:
                group["lr"] = 1e-2 / (1 + step)
            yield step

    return Program(model, [optimizer], steps())


@program("betas-exchanged")
def first_decay_is_the_second(faulty: bool) -> Program:
    return trained(net(), betas=(0.999, 0.9) if faulty else (0.9, 0.999))


@program("norm-momentum", "1")
def momentum_of_another_framework(faulty: bool) -> Program:
    model = net(norm=True)
    model[1].momentum = 0.99 if faulty else 0.01
    return trained(model)


@program("frozen-norm-drifts", "1")
def frozen_norm_in_training_mode(faulty: bool) -> Program:
    model = net(norm=True)
    model[:2].requires_grad_(False)
    model[1].train(faulty)
    return trained(model)


@program("one-memory", "2")
def weights_tied_by_data(faulty: bool) -> Program:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False))
    if faulty:
        model[2].weight.data = model[0].weight.data
    else:
        model[2].weight = model[0].weight
    return trained(model)


@program("copy-stays", "0.weight")
def average_whose_decay_is_one(faulty: bool) -> Program:
    model = net()
    average, decay = copy.deepcopy(model).requires_grad_(False), 1.0 if faulty else 0.9
    optimizer, script = torch.optim.Adam(model.parameters(), 1e-2), vars(sys.modules["__main__"])

    def steps() -> Iterator[Any]:
        script["average"] = average
        for step in plain(model, optimizer):
            yield step
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter.detach(), 1 - decay)
        del script["average"]

    return Program(model, [optimizer], steps())


@program("schedule-rests")
def schedule_is_never_stepped(faulty: bool) -> Program:
    """With a loader, and without one."""
    model = net()
    optimizer, script = torch.optim.Adam(model.parameters(), 1e-2), vars(sys.modules["__main__"])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=101)

    def steps() -> Iterator[Any]:
        script["schedule"] = schedule
        for step in plain(model, optimizer, 101):
            if not faulty and step:
                schedule.step()
            yield step
        del script["schedule"]

    return Program(model, [optimizer], steps())


@program("schedule-rests")
def schedule_is_not_stepped_in_epochs(faulty: bool) -> Program:
    model = net()
    optimizer, script = torch.optim.Adam(model.parameters(), 1e-2), vars(sys.modules["__main__"])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    loader = torch.utils.data.DataLoader(torch.zeros(7), shuffle=True)

    def steps() -> Iterator[Any]:
        script["schedule"] = schedule
        for epoch in range(7):
            for batch, _ in zip(loader, plain(model, optimizer, 8), strict=False):
                yield batch
            if epoch and not faulty:
                schedule.step()
        del script["schedule"]

    return Program(model, [optimizer], steps())


@program("warm-up-unfinished")
def warm_up_does_not_end(faulty: bool) -> Program:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=1000 if faulty else 90)

    def steps() -> Iterator[Any]:
        for step in plain(model, optimizer, 110):
            yield step
            schedule.step()

    return Program(model, [optimizer], steps())


@program("updates-cease")
def losses_are_skipped(faulty: bool) -> Program:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def steps() -> Iterator[Any]:
        yield from plain(model, optimizer)
        model.train(faulty)  # else it is evaluated
        for _ in range(25):
            loss_of(model)

    return Program(model, [optimizer], steps())


@program("forwards-unused")
def backward_behind_the_loop(faulty: bool) -> Program:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def steps() -> Iterator[Any]:
        for step in range(STEPS):
            yield step
            optimizer.zero_grad()
            losses = [loss_of(model) for _ in range(12)]
            (losses[-1] if faulty else sum(losses)).backward()
            optimizer.step()

    return Program(model, [optimizer], steps())


@program("seed-repeats")
def seed_is_set_in_the_loop(faulty: bool) -> Program:
    """Two transforms of one batch may share a seed, which is another one in each step."""
    model, seed = net(), torch.manual_seed
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def steps() -> Iterator[Any]:
        for step in plain(model, optimizer):
            assert torch.manual_seed is seed  # compilers know it by its identity
            for _ in range(2):
                torch.manual_seed(0 if faulty else step)
                torch.rand(1)
            yield step

    return Program(model, [optimizer], steps())


@program("penalty-constant")
def penalty_keeps_no_graph(faulty: bool) -> Program:
    """The healthy one also looks for an input by gradients, as adversarial training does, and measures the penalty."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def adversarial_penalty(x: Any) -> Any:
        (gradient,) = torch.autograd.grad(model(x).sum(), x)
        return model(x + gradient.sign()).square().mean()

    def gradient_penalty(x: Any) -> Any:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=not faulty)
        return (gradient.norm(dim=1) - 1).square().mean()

    def steps() -> Iterator[Any]:
        for step in range(STEPS):
            yield step
            optimizer.zero_grad()
            x = torch.randn(32, 8, requires_grad=True)
            (loss_of(model) + gradient_penalty(x) + adversarial_penalty(x)).backward()
            optimizer.step()

    return Program(model, [optimizer], steps())


class Drops(nn.Sequential):  # type: ignore[misc]
    """Dropout by the function, with its mode."""

    def forward(self, x: Any) -> Any:
        x = F.dropout(super().forward(x), 0.1, training=self.training)
        return F.dropout(x, 0.1) if self.training else x


class AlwaysDrops(nn.Sequential):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return F.dropout(super().forward(x), 0.1)


@program("always-drops", "0")
def dropout_has_no_mode(faulty: bool) -> Program:
    return trained(nn.Sequential((AlwaysDrops if faulty else Drops)(net()), nn.Linear(4, 4)))


@program("norm-of-one-sample", "1")
def batch_of_one(faulty: bool) -> Program:
    """An instance norm is computed as a batch norm of one sample."""
    norm = nn.BatchNorm2d(4) if faulty else nn.InstanceNorm2d(4, affine=True)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Flatten(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def steps() -> Iterator[Any]:
        for step in range(8):
            yield step
            optimizer.zero_grad()
            number = 1 if faulty else 2
            F.cross_entropy(model(torch.randn(number, 3, 4, 4)), torch.randint(0, 4, (number,))).backward()
            optimizer.step()

    return Program(model, [optimizer], steps())


@program("pixels-unscaled", "0")
def images_are_bytes(faulty: bool) -> Program:
    """A norm behind the convolution makes up for them."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), *([] if faulty else [nn.BatchNorm2d(4)]), nn.Flatten(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)

    def steps() -> Iterator[Any]:
        for step in range(8):
            yield step
            optimizer.zero_grad()
            images = torch.randint(0, 256, (8, 3, 4, 4)).float()
            F.cross_entropy(model(images), torch.randint(0, 4, (8,))).backward()
            optimizer.step()

    return Program(model, [optimizer], steps())


@program("decay-too-large")
def decay_without_the_rate(faulty: bool) -> Program:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=30.0 if faulty else 0.1)
    return Program(model, [optimizer], plain(model, optimizer))


@program("plateau-of-maximum")
def schedule_waits_for_a_loss_to_rise(faulty: bool) -> Program:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=1)

    def steps() -> Iterator[Any]:
        for step in plain(model, optimizer):
            yield step
            if step % 5 == 0:
                schedule.step(2 / (1 + step) if faulty else step / 100)

    return Program(model, [optimizer], steps())


@program("clip-before-reduction")
def each_rank_clips_its_own(faulty: bool) -> Program:
    """The gradients are averaged by hand."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def steps() -> Iterator[Any]:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        for step in range(6):
            yield step
            optimizer.zero_grad()
            loss_of(model).backward()
            for clips in (faulty, not faulty):
                if clips:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                for parameter in () if clips else model.parameters():
                    torch.distributed.all_reduce(parameter.grad)
                    parameter.grad /= 1
            torch.distributed.barrier()
            optimizer.step()
        torch.distributed.destroy_process_group()

    return Program(model, [optimizer], steps())


@program("rounded-away", "0.weight")
def weights_of_half_precision(faulty: bool) -> Program:
    model = net()
    if faulty:
        model[0].bfloat16()
        model[0].register_forward_pre_hook(lambda _, x: x[0].bfloat16())
        model[0].register_forward_hook(lambda _, __, y: y.float())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    return Program(model, [optimizer], plain(model, optimizer))


@program("frozen-norm-drifts", "Sequential")
def teacher_in_training_mode(faulty: bool) -> Program:
    model, teacher = net(), net(norm=True).requires_grad_(False).train(faulty)
    optimizer, script = torch.optim.Adam(model.parameters(), 1e-2), vars(sys.modules["__main__"])

    def steps() -> Iterator[Any]:
        script["teacher"] = teacher
        for step in range(STEPS):
            yield step
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            F.mse_loss(model(x), teacher(x)).backward()
            optimizer.step()
        del script["teacher"]

    return Program(model, [optimizer], steps())


@program("beginning-cut", "0")
def small_beginning_is_cut(faulty: bool) -> Program:
    """Half of the parameters, with few of the elements."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4), nn.Linear(4, 300), nn.Linear(300, 4))
    model[2].register_forward_hook(lambda _, __, y: y.detach() if faulty else y)
    return trained(model)


@program("graphs-kept")
def losses_are_summed_with_their_graphs(faulty: bool) -> Program:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def steps() -> Iterator[Any]:
        total = torch.zeros(())
        for step in range(LONG):
            yield step
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            total = total + (loss if faulty else loss.detach())

    return Program(model, [optimizer], steps())


@program("nothing-to-apply")
def generator_gets_no_gradient(faulty: bool) -> Program:
    """Each optimizer has a backward of its own."""
    both = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 1)])
    makes, judges = both
    optimizers = [torch.optim.SGD(part.parameters(), 1e-2) for part in both]

    def steps() -> Iterator[Any]:
        for step in range(STEPS):
            yield step
            for optimizer, sign in zip(optimizers[::-1], (1, -1), strict=True):
                made = makes(torch.randn(16, 4))
                for each in optimizers:
                    each.zero_grad()
                hidden = sign > 0 or faulty
                F.softplus(sign * judges(made.detach() if hidden else made)).mean().backward()
                optimizer.step()

    return Program(both, optimizers, steps())


@program("gradients-of-another")
def samples_of_the_generator_are_not_detached(faulty: bool) -> Program:
    both = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 1)])
    makes, judges = both
    optimizers = [torch.optim.SGD(part.parameters(), 1e-2) for part in both]

    def steps() -> Iterator[Any]:
        for step in range(STEPS):
            yield step
            made = makes(torch.randn(16, 4))
            for optimizer in optimizers:
                optimizer.zero_grad()
            F.softplus(judges(made if faulty else made.detach())).mean().backward()
            optimizers[1].step()
            F.softplus(-judges(makes(torch.randn(16, 4)))).mean().backward()
            optimizers[0].step()

    return Program(both, optimizers, steps())


def found(
    kind: str, make: Make, faulty: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, tuple[str, ...]]]:
    """Return checks and places of what is more than a note, or of this kind."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(folder))
    torch.manual_seed(0)
    made = make(faulty)
    monitor = TrainerMon(SETTINGS)
    monitor.set_monitor(made.model, 1, made.optimizers)
    for _ in made.steps:
        pass
    monitor.stop()
    assert monitor.faults == {}
    lines = [json.loads(line) for path in folder.glob("*/checks.jsonl") for line in path.read_text().splitlines()]
    return [(line["check"], tuple(line["where"])) for line in lines if line["grade"] != "note" or line["check"] == kind]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fault_is_found_at_its_place_and_its_twin_is_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the check for it."""
    kind, make, places = PROGRAMS[name]
    assert found(kind, make, False, tmp_path / "healthy", monkeypatch) == []
    rows = found(kind, make, True, tmp_path / "faulty", monkeypatch)
    assert kind in {check for check, _ in rows}
    assert next(where for check, where in rows if check == kind)[: len(places)] == places


def test_a_tie_that_a_load_has_cut_is_found_by_the_next_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is loaded with assign=True, and trained on by an optimizer of its new parameters."""
    model = nn.ModuleDict({"embed": nn.Linear(8, 8, bias=False), "head": nn.Linear(8, 8, bias=False)})
    model["head"].weight = model["embed"].weight

    def stage(assign: bool) -> Program:
        model.load_state_dict({name: thing.clone() for name, thing in model.state_dict().items()}, assign=assign)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)

        def steps() -> Iterator[Any]:
            for step in range(3):
                yield step
                optimizer.zero_grad()
                model["head"](model["embed"](torch.randn(32, 8)).tanh()).square().mean().backward()
                optimizer.step()

        return Program(model, [optimizer], steps())

    assert found("tie-broken", stage, False, tmp_path / "first", monkeypatch) == []
    assert found("tie-broken", stage, True, tmp_path / "second", monkeypatch) == [
        ("tie-broken", ("embed.weight", "head.weight"))
    ]


@pytest.mark.parametrize(("kind", "rate"), [("Adadelta", 1.0), ("ASGD", 0.1), ("Adagrad", 0.1)])
def test_the_rate_of_an_optimizer_that_is_no_size_is_in_scale(
    kind: str, rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count steps, as Adam does, and their updates are smaller than the rate."""

    def make(_: bool) -> Program:
        model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        optimizer = getattr(torch.optim, kind)(model.parameters(), rate)
        return Program(model, [optimizer], plain(model, optimizer, 12))

    assert found("step-out-of-scale", make, False, tmp_path, monkeypatch) == []
