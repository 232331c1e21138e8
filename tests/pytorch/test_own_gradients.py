"""Gradients of this process before any reduction, of a few parameters at every step."""

from __future__ import annotations

import numpy as np
import torch

from probe.core.faults import Faults
from probe.core.sentinel.rota import LEAST, Rota
from probe.pytorch import training_loop
from probe.pytorch.own_gradients import GradientSums


def net() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def test_norms_and_sums_are_those_of_the_gradients() -> None:
    """Of one backward those of ``grad``; of several the root of the sum of squares, and the sum."""
    model, faults = net(), Faults()
    parameters = [*model.parameters()]
    own = GradientSums(parameters[:3], lambda: False, faults)
    batches = torch.randn(2, 5, 4)
    model(batches[0]).pow(2).mean().backward()
    first = [each.grad.double() for each in parameters[:3] if each.grad is not None]
    places, wait = own.take()
    expected = np.array([[float(each.norm()), float(each.sum())] for each in first])
    np.testing.assert_allclose(wait()[np.argsort(places)], expected, rtol=1e-5, atol=1e-6)
    assert own.take()[0] == []
    for batch in batches:
        model(batch).pow(2).mean().backward()
    (places, wait), second = own.take(), [each.grad.double() for each in parameters[:3] if each.grad is not None]
    sums = [float((two - one).sum()) for one, two in zip(first, second, strict=True)]
    np.testing.assert_allclose(wait()[np.argsort(places), 1], sums, rtol=1e-4, atol=1e-5)
    assert faults.counts == {}


def test_training_is_the_same_to_the_last_bit() -> None:
    """With the hooks, in halves of precision, with unused parameters, and after they are removed."""

    def trained(looks: bool) -> list[torch.Tensor]:
        model = net().to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        own = GradientSums([*model.parameters()] if looks else [], lambda: False, faults)
        torch.manual_seed(5)
        for step in range(6):
            optimizer.zero_grad()
            model[: 1 + 2 * (step % 2)](torch.randn(5, 4, dtype=torch.bfloat16)).pow(2).mean().backward()
            optimizer.step()
            own.take()
            if step == 3:
                own.remove()
        return [each.detach() for each in model.parameters()]

    faults = Faults()
    assert all(map(torch.equal, trained(True), trained(False)))
    assert faults.counts == {}


def test_a_compiled_model_is_compiled_once() -> None:
    """A compiler does not see the hooks, though they come after the first step."""
    model = net()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(torch.randn(5, 4)).pow(2).mean().backward()
    before = dict(torch._dynamo.utils.counters["stats"])
    own = GradientSums([*model.parameters()], lambda: False, Faults())
    compiled(torch.randn(5, 4)).pow(2).mean().backward()
    assert sorted(own.take()[0]) == [0, 1, 2, 3]
    assert dict(torch._dynamo.utils.counters["stats"]) == before


def test_ranks_whose_rota_has_another_pace_read_parameters_in_common() -> None:
    """At every update, and all of them in time."""
    parameters = [torch.nn.Parameter(torch.ones(LEAST // 4)) for _ in range(40)]
    rotas = [Rota(training_loop, parameters, [LEAST // 4] * 40) for _ in range(2)]
    rotas[1]._room = 3 * LEAST
    common = set[int]()
    for _ in range(60):
        for rota in rotas:
            rota.before()
        looks = [rota.after().before for rota in rotas]
        shared = set.intersection(*({*look.positions} for look in looks if look is not None))
        assert shared
        common |= shared
    assert common == {*range(40)}
