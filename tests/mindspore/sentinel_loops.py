"""Training loops of MindSpore, as programs write them, each with what has to be found in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.mindspore import msadapter
from tests.mindspore.toys import ms, nn

from probe.mindspore.callbacks import RunCallback  # isort: skip - only where MindSpore is

Attach = Callable[[Any, Any], Any]
STEPS = 24
SCALE = 1024.0


def made() -> Any:
    """A model with the same weights each time."""
    random = np.random.default_rng(0)
    net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 2))
    for parameter in net.trainable_params():
        parameter.set_data(ms.Tensor(random.normal(size=parameter.shape).astype(np.float32) * 0.3))
    return net.set_train()


def batches(steps: int = STEPS) -> list[tuple[Any, Any]]:
    """Inputs, and the targets that follow from them."""
    random = np.random.default_rng(1)
    inputs = [random.normal(size=(16, 4)).astype(np.float32) for _ in range(steps)]
    return [(ms.Tensor(x), ms.Tensor(np.tanh(x[:, :2]))) for x in inputs]


def squares(outputs: Any, targets: Any) -> Any:
    """The mean of the squared differences."""
    return ((outputs - targets) ** 2).mean()


def differentiated(net: Any, optimizer: Any) -> Any:
    """A function that returns the loss and the gradients."""
    return ms.value_and_grad(lambda x, y: squares(net(x), y), None, optimizer.parameters)


def function(attach: Attach) -> Any:
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    attach(net, optimizer)
    gradients_of = differentiated(net, optimizer)
    for x, y in batches():
        optimizer(gradients_of(x, y)[1])
    return net


def clipped(attach: Attach) -> Any:
    net = made()
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    attach(net, optimizer)
    gradients_of = differentiated(net, optimizer)
    for x, y in batches():
        optimizer(ms.ops.clip_by_global_norm(gradients_of(x, y)[1], 0.25))
    return net


def accumulated(attach: Attach, clears: bool = True) -> Any:
    """Sums in parameters of the program's own, which it clears by assigning zeros."""
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    attach(net, optimizer)
    gradients_of = differentiated(net, optimizer)
    sums = [ms.Parameter(ms.ops.zeros_like(p), name=f"sum.{p.name}") for p in optimizer.parameters]
    for number, (x, y) in enumerate(batches()):
        for total, gradient in zip(sums, gradients_of(x, y)[1], strict=True):
            ms.ops.assign_add(total, gradient)
        if number % 2:
            optimizer(tuple(sums))
            for total in sums if clears else ():
                ms.ops.assign(total, ms.ops.zeros_like(total))
    return net


def never_cleared(attach: Attach) -> Any:
    return accumulated(attach, clears=False)


def scaled(attach: Attach) -> Any:
    """A scaler that begins with too large a scale for float16: the program skips updates."""
    net = made()
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    scaler = ms.amp.DynamicLossScaler(2.0**24, 2, 1000)
    attach(net, optimizer)

    def forward(x: Any, y: Any) -> Any:
        outputs = net(x).astype(ms.float16).astype(ms.float32)
        return scaler.scale(squares(outputs, y)), outputs

    gradients_of = ms.value_and_grad(forward, None, optimizer.parameters, has_aux=True)
    for x, y in batches():
        _, gradients = gradients_of(x, y)
        finite = ms.amp.all_finite(gradients)
        if finite:
            optimizer(scaler.unscale(gradients))
        scaler.adjust(finite)
    return net


def cell(attach: Attach, divides: bool = True) -> Any:
    """The wrapper of MindSpore's own, whose factor the optimizer divides out."""
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9, 1e-2, loss_scale=SCALE if divides else 1.0)
    attach(net, optimizer)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer, sens=SCALE).set_train()
    for x, y in batches():
        step(x, y)
    return net


def cell_that_stays_scaled(attach: Attach) -> Any:
    return cell(attach, divides=False)


def model(attach: Attach) -> Any:
    """``Model.train``, with a callback of the program's and an evaluation in between."""
    net = made()
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    attach(net, optimizer)
    pairs = [(x.asnumpy(), y.asnumpy()) for x, y in batches(10)]
    data = ms.dataset.GeneratorDataset(pairs, ["x", "y"], shuffle=False)
    trainer = ms.train.Model(net, nn.MSELoss(), optimizer, metrics={"loss"})
    for _ in range(3):
        trainer.train(1, data, callbacks=[ms.train.LossMonitor(100)], dataset_sink_mode=False)
        trainer.eval(data, dataset_sink_mode=False)
    return net


def graph_mode(attach: Attach, bad: bool = False) -> Any:
    """``Model.train`` as a whole compiled, with the callback of the package, which counts the steps."""
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        net = made()
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        monitor = attach(net, optimizer)
        pairs = [(x.asnumpy()[0], y.asnumpy()[0]) for x, y in batches()]
        if bad:
            pairs[12][0][1] = np.nan
        data = ms.dataset.GeneratorDataset(pairs, ["x", "y"], shuffle=False).batch(1)
        trainer = ms.train.Model(net, nn.MSELoss(), optimizer)
        callbacks = [] if monitor is None else [RunCallback(monitor)]
        trainer.train(1, data, callbacks=callbacks, dataset_sink_mode=False)
        return net
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def graph_mode_with_nan(attach: Attach) -> Any:
    return graph_mode(attach, bad=True)


def compiled(attach: Attach) -> Any:
    """Gradients of a function that MindSpore compiles."""
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    attach(net, optimizer)
    weights = optimizer.parameters

    def forward(x: Any, y: Any) -> Any:
        return squares(net(x), y)

    @ms.jit
    def gradients_of(x: Any, y: Any) -> Any:
        return ms.grad(forward, None, weights)(x, y)

    for x, y in batches():
        optimizer(gradients_of(x, y))
    return net


def torch_style(attach: Attach, clears: bool = True) -> Any:
    """A package that imitates torch."""
    with msadapter.imported():
        random = np.random.default_rng(0)
        net = msadapter.Linear(random.normal(size=(2, 4)) * 0.1, np.zeros(2))
        optimizer = msadapter.SGD(net.parameters(), 1e-2)
        attach(net, optimizer)
        for x, y in batches():
            if clears:
                optimizer.zero_grad()
            squares(net(x), y).backward()
            optimizer.step()
        return net


def not_cleared(attach: Attach) -> Any:
    return torch_style(attach, clears=False)


def dropped(attach: Attach) -> Any:
    """One batch has NaN, and the program drops its gradients."""
    net = made()
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    attach(net, optimizer)
    gradients_of = differentiated(net, optimizer)
    for number, (x, y) in enumerate(batches()):
        _, gradients = gradients_of(x * float("nan") if number == 12 else x, y)
        if ms.amp.all_finite(gradients):
            optimizer(gradients)
    return net


def unmoved(attach: Attach) -> Any:
    """The optimizer holds copies of the parameters that the model had."""
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), 1e-12, 0.9)
    attach(net, optimizer)
    gradients_of = differentiated(net, optimizer)
    optimizer.learning_rate.set_data(ms.Tensor(0.1, ms.float32))
    optimizer.construct = lambda gradients: gradients[0].sum()
    for x, y in batches():
        optimizer(gradients_of(x, y)[1])
    return net


def rate_zero(attach: Attach) -> Any:
    """A schedule that is too short."""
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), [0.1] * 12 + [0.0] * (STEPS - 12), 0.9)
    attach(net, optimizer)
    gradients_of = differentiated(net, optimizer)
    for x, y in batches():
        optimizer(gradients_of(x, y)[1])
    return net


def evaluating(attach: Attach) -> Any:
    """Training mode is not set again after an evaluation."""
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    attach(net, optimizer)
    gradients_of = differentiated(net, optimizer)
    for number, (x, y) in enumerate(batches()):
        if number == 12:
            net.set_train(False)
        optimizer(gradients_of(x, y)[1])
    return net


def twice(attach: Attach) -> Any:
    """Each gradient is applied twice."""
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
    attach(net, optimizer)
    gradients_of = differentiated(net, optimizer)
    for x, y in batches(STEPS // 2):
        gradients = gradients_of(x, y)[1]
        optimizer(gradients)
        optimizer(gradients)
    return net


def classes(attach: Attach, bad: bool = False) -> Any:
    """A classifier with batch statistics and a data set, each batch of which is read in its turn."""
    net = nn.SequentialCell(nn.Dense(4, 8), nn.BatchNorm1d(8, momentum=0.05 if bad else 0.95), nn.Dense(8, 5))
    random = np.random.default_rng(0)
    for parameter in net.trainable_params():
        parameter.set_data(ms.Tensor(random.normal(size=parameter.shape).astype(np.float32)))
    net.set_train()
    ms.set_seed(0)  # the order of the samples
    optimizer = nn.SGD(net.trainable_params(), 0.1, weight_decay=0.5 if bad else 1e-3)
    attach(net, optimizer)
    labels = np.arange(5).repeat(80).astype(np.int32)
    inputs = (random.normal(size=(400, 4)) + labels[:, None]).astype(np.float32)
    data = ms.dataset.NumpySlicesDataset((inputs, labels), shuffle=not bad).batch(16)
    loss = nn.CrossEntropyLoss()

    def forward(x: Any, y: Any) -> Any:
        scores = net(x)
        return loss(ms.ops.softmax(scores) if bad else scores, y)

    gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)
    for x, y in data.create_tuple_iterator(num_epochs=1):
        optimizer(gradients_of(x, y)[1])
    return net


def bad_classes(attach: Attach) -> Any:
    """Softmax twice, sorted classes, batch statistics with another framework's momentum, and far too much decay."""
    return classes(attach, bad=True)


class CrossEntropyLoss(nn.LossBase):
    """A loss of the program's, of probabilities, with the name of one of scores."""

    def construct(self, probabilities: Any, targets: Any) -> Any:
        return self.get_loss(-ms.ops.square(targets) * ms.ops.log(probabilities))


def weighed(attach: Attach) -> Any:
    """A data set of one batch, begun anew for each update, and a loss that is weighed by the gradient passed in."""
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    attach(net, optimizer)
    pair = tuple(values.asnumpy() for values in batches(1)[0])
    data = ms.dataset.NumpySlicesDataset(pair, shuffle=False).batch(16)
    loss = nn.WithLossCell(nn.SequentialCell(net, nn.Softmax()), CrossEntropyLoss())
    gradients_of = ms.ops.GradOperation(get_by_list=True, sens_param=True)(loss, optimizer.parameters)
    for _ in range(STEPS):
        optimizer(gradients_of(*next(data.create_tuple_iterator()), ms.Tensor(0.5)))
    return net


def first_batch(attach: Attach) -> Any:
    """One batch alone, whose targets are broadcast, axes that are exchanged, and a part in evaluation mode from a step
    on."""
    part = nn.SequentialCell(nn.Dropout(p=1e-7), nn.Dense(4, 4, weight_init="ones", bias_init="zeros"))
    net = nn.SequentialCell(part, *made()).set_train()
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    attach(net, optimizer)
    pairs = [(x.asnumpy()[0], y.asnumpy()[0, 0]) for x, y in batches()]
    data, loss = ms.dataset.GeneratorDataset(pairs, ["x", "y"], shuffle=False).batch(6), nn.MSELoss()

    def forward(x: Any, y: Any) -> Any:
        hidden = net[2](net[1](net[0](x))).reshape(8, 6).swapaxes(0, 1)
        return loss(net[3](hidden)[:, :1], y)

    gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)
    for number in range(STEPS):
        if number == 12:
            net[0].set_train(False)
        optimizer(gradients_of(*next(data.create_tuple_iterator()))[1])
    return net


def unfrozen(attach: Attach) -> Any:
    """The first layer is trained from a step on, and no optimizer has it; weights of half precision never move."""
    net = made()
    for parameter in net[0].get_parameters():
        parameter.requires_grad = False
    net[2].weight.set_dtype(ms.float16)
    optimizer = nn.Momentum(net.trainable_params(), 1e-6, 0.9)
    attach(net, optimizer)

    def forward(x: Any, y: Any) -> Any:
        hidden = net[1](net[0](x)).astype(ms.float16)
        return squares(ms.ops.matmul(hidden, net[2].weight.T).astype(ms.float32), y)

    gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)
    for number, (x, y) in enumerate(batches()):
        if number == 12:
            for parameter in net[0].get_parameters():
                parameter.requires_grad = True
        optimizer(gradients_of(x, y)[1])
    return net


HEALTHY = (classes, weighed, function, clipped, accumulated, scaled, cell, model, compiled, torch_style, graph_mode)
FAULTY: dict[Callable[[Attach], Any], dict[str, int]] = {
    not_cleared: {"stale-gradient": 1},
    never_cleared: {"stale-gradient": 1},
    dropped: {"gradient-not-finite": 12},
    unmoved: {"nothing-moves": 0},
    rate_zero: {"rate-zero": 12},
    evaluating: {"root-not-trained": 12},
    graph_mode_with_nan: {"loss-not-finite": 12},
    twice: {"update-without-backward": 1},
    cell_that_stays_scaled: {"scaled-update": 0},
    bad_classes: {"softmax-twice": 0, "one-class-batches": 0, "norm-momentum": 2, "decay-too-large": 2},
    first_batch: {"first-batch-only": 0, "broadcast-loss": 0, "axes-exchanged": 0, "root-not-trained": 12},
    unfrozen: {"unfrozen-not-held": 13, "rounded-away": 2},
}
"""The checks that must report each loop, and since which step."""
