"""Trains with the callbacks of a YAML of MindSpore Transformers, first as it is, then with `ProbeCallback` in it.

python examples/tutorial/from_mindspore_transformers.py
"""

import json
import os
from pathlib import Path

import command_line
import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from pictures import heatmap, numbers

from probe.mindspore import from_yaml

SAMPLE = Path(__file__).parents[2] / "resources" / "mindspore_transformers.yaml"
WITH_CALLBACK = Path(__file__).with_name("probe_callback.yaml")
MONITOR = {
    "wg_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm", "zeros", "nans"],
    "format": ["csv"],
    "step_count_per_record": 100,
}
WIDTH, DEPTH, STEPS, EMPTY_SAMPLE = 16, 2, 12, 8
"""Sizes of the model; steps of a training, and the one in which a sample is zero."""


class Norm(nn.Cell):
    """Mean 0 and standard deviation 1 over the last dimension, without a guard against 0."""

    def construct(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keep_dims=True)
        return centred / ops.sqrt(ops.square(centred).mean(-1, keep_dims=True))


class Block(nn.Cell):
    """A residual block: ``x + fc(norm(x))``."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = Norm(), nn.Dense(WIDTH, WIDTH)

    def construct(self, x: Tensor) -> Tensor:
        return x + self.fc(self.norm(x))


class SmallModel(nn.Cell):
    """Vectors ``(batch, WIDTH)`` in, one number for each out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.CellList([Block() for _ in range(DEPTH)])
        self.output = nn.Dense(WIDTH, 1)

    def construct(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def dataset() -> mindspore.dataset.Dataset:
    """Returns the batches of an epoch; a sample of one is zero."""
    random = np.random.default_rng(0)
    x = random.normal(size=(STEPS * 4, WIDTH)).astype(np.float32)
    x[EMPTY_SAMPLE * 4] = 0
    data = {"x": x, "y": x[:, :1]}
    return mindspore.dataset.NumpySlicesDataset(data, shuffle=False).batch(4)


def train(yaml: Path) -> None:
    """Trains for an epoch with the callbacks of a YAML."""
    mindspore.set_seed(0)
    model = SmallModel()
    optimizer = nn.AdamWeightDecay(model.trainable_params(), learning_rate=3e-3)
    training = mindspore.train.Model(model, nn.MSELoss(), optimizer)
    training.train(1, dataset(), callbacks=from_yaml(yaml), dataset_sink_mode=False)


def main() -> None:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    train(SAMPLE)
    print("curves:", *(path.parent for path in Path("worker").glob("*/*/events*")))

    Path("monitor.json").write_text(json.dumps(MONITOR), encoding="utf-8")
    os.environ["MONITOR_OUTPUT_DIR"] = "watched"
    train(WITH_CALLBACK)
    command_line.run("anomalies", "watched", "-k", "3")
    (directory,) = (path for path in Path("watched").iterdir() if path.is_dir())
    norms = numbers(directory, "actv", "norm")
    heatmap(Path("from_mindspore_transformers.svg"), "Norm of inputs and outputs", norms, range(4, STEPS))


if __name__ == "__main__":
    main()
