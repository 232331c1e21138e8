"""Toy models, built of the framework's own parts from the same NumPy numbers.

All numbers are small multiples of powers of two, so that sums come out the same in whatever order they are added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.matrix.harness import Harness, Module

X = np.array([[1.0, 1.0], [0.0, -1.0]])
"""Input of :func:`tiny_net`; micro batch ``a`` is ``X * (a + 1)``."""
FC_WEIGHT, FC_BIAS = np.array([[1.0, 2.0], [3.0, 4.0], [-1.0, -2.0]]), np.array([0.5, -0.5, 0.0])
FC2_WEIGHT = np.array([[1.0, -1.0, 2.0]])
SQUARE = np.array([[1.0, -0.5], [0.25, 1.0]])
"""Weight of layers whose outputs are as wide as their inputs."""


def tiny_net(framework: Harness) -> Module:
    """Two linear layers around a ReLU, with weights that can be followed on paper."""
    fc, relu, fc2 = framework.linear(FC_WEIGHT, FC_BIAS), framework.relu(), framework.linear(FC2_WEIGHT)
    return framework.module(lambda x: fc2(relu(fc(x))), fc=fc, relu=relu, fc2=fc2)


def product(framework: Harness, start: Any, dtype: str = "float32") -> Module:
    """One parameter ``w`` times the input: under a sum its gradient is the input."""
    w = framework.parameter(start, dtype)
    return framework.module(lambda x: framework.multiply(w, x), w=w)


def aside(framework: Harness) -> Module:
    """``w`` times the first input; the second only goes through a module that hands it on."""
    w = framework.parameter(np.ones(2))
    look = framework.module(lambda x: (x,))

    def forward(x: Any, other: Any) -> Any:
        look(other)
        return framework.multiply(w, x)

    return framework.module(forward, look=look, w=w)


def called_twice(framework: Harness) -> Module:
    """One layer, applied to its own output."""
    fc = framework.linear(SQUARE)
    return framework.module(lambda x: fc(fc(x)), fc=fc)


def residual(framework: Harness) -> Module:
    """A layer beside which its input goes on."""
    first, branch = framework.linear(SQUARE), framework.linear(2 * SQUARE)

    def forward(x: Any) -> Any:
        h = first(x)
        return framework.add(h, branch(h))

    return framework.module(forward, first=first, branch=branch)


def container(framework: Harness, pack: Callable[[Any, Any], Any], unpack: Callable[[Any], Any]) -> Module:
    """An inner module of two inputs and two outputs, in a container; the outputs are added up."""
    scale = framework.parameter(np.full((2, 2), 2.0))

    def give(left: Any, right: Any) -> Any:
        return pack(framework.multiply(left, scale), framework.multiply(right, scale))

    giver = framework.module(give, scale=scale)
    first = framework.linear(SQUARE)

    def forward(x: Any) -> Any:
        h = first(x)
        return framework.add(*unpack(giver(h, framework.add(h, h))))

    return framework.module(forward, first=first, giver=giver)


def keywords(framework: Harness) -> Module:
    """An inner module that takes a tensor and something else by keyword."""
    first = framework.linear(SQUARE)
    inner = framework.module(lambda x, *, factor, note: framework.multiply(x, factor))

    def forward(x: Any) -> Any:
        h = first(x)
        return inner(h, factor=framework.add(h, h), note="no tensor")

    return framework.module(forward, first=first, inner=inner)


def with_idle(framework: Harness) -> Module:
    """Two layers, of which one takes no part."""
    used, idle = framework.linear(SQUARE), framework.linear(SQUARE)

    def forward(x: Any) -> Any:
        return used(x)

    return framework.module(forward, used=used, idle=idle)


def tower(framework: Harness) -> Module:
    """An encoder of eleven layers within a model, so that one is called ``layers.1`` and another ``layers.10``."""
    layers = [framework.linear(SQUARE) for _ in range(11)]
    final_norm = framework.relu()

    def encode(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return final_norm(x)

    stack = framework.module(None, **{str(number): layer for number, layer in enumerate(layers)})
    encoder = framework.module(encode, layers=stack, final_norm=final_norm)
    output = framework.linear(FC2_WEIGHT[:, :2])
    return framework.module(lambda x: output(encoder(x)), encoder=encoder, output=output)


def noisy(framework: Harness) -> Module:
    """A layer and a dropout, to train with random numbers."""
    fc, drop, fc2 = framework.linear(FC_WEIGHT, FC_BIAS), framework.dropout(), framework.linear(FC2_WEIGHT)
    return framework.module(lambda x: fc2(drop(fc(x))), fc=fc, drop=drop, fc2=fc2)
