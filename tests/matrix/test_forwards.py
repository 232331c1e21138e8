"""Forwards that fail, overlap or contain themselves: what is kept of one dies with it."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from probe.core.instrumentation.forwards import Forwards
from tests.matrix.harness import Harness
from tests.matrix.models import SQUARE, X
from tests.matrix.watching import ACTIVATIONS, LR, rows_of


class Failing:
    """A model whose last module raises as long as ``error`` is set."""

    def __init__(self, framework: Harness) -> None:
        self.error: type[BaseException] | None = None
        first, second = framework.linear(SQUARE), framework.linear(SQUARE)
        last = framework.module(self._last)
        within = framework.module(lambda x: last(second(x)), second=second, last=last)
        self.module = framework.module(lambda x: within(first(x)), first=first, within=within)

    def _last(self, x: Any) -> Any:
        if self.error is not None:
            raise self.error
        return x


def open_calls(monitor: Any) -> int:
    """The number of forwards of which something is kept."""
    return len(monitor._attachment.run.forwards)


def failed(framework: Harness, model: Failing, loop: Any, error: type[BaseException]) -> None:
    model.error = error
    with suppress(error):
        loop.micro_batch(framework.tensor(X))
    model.error = None
    gc.collect()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_forward_that_failed_is_gone_when_it_is_tried_again(framework: Harness, error: type[BaseException]) -> None:
    """Nothing is kept of the failed forward, and the rows are those of a run that never failed."""
    rows = []
    for fails in (False, True):
        model = Failing(framework)
        optimizer = framework.optimizer("momentum", model.module, lr=LR, momentum=0.5)
        with framework.TrainerMon(ACTIVATIONS) as monitor:
            monitor.set_monitor(model.module, 1, optimizer)
            loop = framework.loop(model.module, optimizer)
            if fails:
                failed(framework, model, loop, error)
                failed(framework, model, loop, error)
                assert error is KeyboardInterrupt or framework.NAME == "numpy" or not open_calls(monitor)
            loop.micro_batch(framework.tensor(X))
            assert open_calls(monitor) == 0
            loop.update()
        assert monitor.faults == {}
        signals = {"actv"} if framework.NAME == "mindspore" else {"actv", "actv_grad"}  # it ends no interrupted graph
        rows.append({(r.signal, r.name): v["norm"] for r, v in rows_of(monitor).items() if r.signal in signals})
    assert rows[0] == rows[1]
    assert rows[0]


def test_threads_do_not_mix_their_forwards(framework: Harness) -> None:
    """Two threads in one module at the same time: each call has the input and the output of one thread."""
    if framework.NAME == "mindspore":
        pytest.skip("the executor of MindSpore's dynamic graph belongs to one thread")
    begun, ended = threading.Event(), threading.Event()

    def double(x: Any) -> Any:
        is_first = not begun.is_set()
        begun.set()
        if is_first:  # to begin, and to end
            assert overtaken.wait(30)
        else:
            overtaken.set()
            assert ended.wait(30)
        return framework.add(x, x)

    def relay(x: Any) -> Any:
        ended.set()
        return x

    overtaken = threading.Event()

    inner = framework.module(double)
    last, after = framework.linear(SQUARE), framework.module(relay)
    model = framework.module(lambda x: after(last(inner(x))), inner=inner, last=last, after=after)
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.5)
    with framework.TrainerMon(ACTIVATIONS) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        loop = framework.loop(model, optimizer)
        threads = [
            threading.Thread(target=loop.micro_batch, args=(framework.tensor(X * factor),)) for factor in (1, 100)
        ]
        threads[0].start()
        assert begun.wait(30)
        threads[1].start()
        for thread in threads:
            thread.join()
        loop.update()
    rows = {row: values["norm"] for row, values in rows_of(monitor).items() if row.signal == "actv"}
    pairs = {
        row.call: (norm, next(n for r, n in rows.items() if (r.name, r.call) == ("inner.output", row.call)))
        for row, norm in rows.items()
        if row.name == "inner.input"
    }
    assert len(pairs) == 2
    for given, returned in pairs.values():
        assert returned == pytest.approx(2 * given)


def test_a_module_that_calls_itself(framework: Harness) -> None:
    """Each call of a module that runs inside its own call has its own input and output."""
    fc = framework.linear(SQUARE)
    again: list[Any] = []

    def forward(x: Any) -> Any:
        if again:
            return again.pop()(fc(x))
        return framework.add(x, x)

    inner = framework.module(forward, fc=fc)
    model = framework.module(lambda x: framework.add(x, inner(x)), inner=inner)
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.5)
    with framework.TrainerMon(ACTIVATIONS) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        loop = framework.loop(model, optimizer)
        again.append(inner)
        loop.micro_batch(framework.tensor(X))
        loop.update()
    norms = {(row.name, row.call): v["norm"] for row, v in rows_of(monitor).items() if row.signal == "actv"}
    outer, nested = np.linalg.norm(X), np.linalg.norm(X @ SQUARE.T)
    assert norms["inner.input", 0] == pytest.approx(outer)
    assert norms["inner.input", 1] == pytest.approx(nested)
    assert norms["inner.output", 0] == norms["inner.output", 1] == pytest.approx(2 * nested)


def test_listeners_of_one_module_end_in_any_order() -> None:
    """A module in two models has two listeners, of which the first to begin is the first to end."""
    forwards, module, inner = Forwards(), object(), object()
    forwards.begin("one", module, 3, 1, False)
    forwards.begin("two", module, 3, 2, False)
    forwards.begin("within", inner, 4, 3, False)  # its end is not seen
    assert (forwards.micro_step, len(forwards)) == (3, 2)  # calls, each with what its listeners keep
    assert [forwards.end(listener) for listener in ("one", "two", "within")] == [1, 2, None]
    assert forwards.micro_step is None
