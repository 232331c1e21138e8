"""DeepSpeed, with and without ZeRO."""

from __future__ import annotations

from probe.pytorch.engines.deepspeed import gradients, steps
from probe.pytorch.engines.engine import Engine

ENGINE = Engine(
    homes=gradients.homes,
    wraps={
        "deepspeed.runtime.engine.DeepSpeedEngine": "module",
        "deepspeed.runtime.pipe.engine.PipelineEngine": "module",
    },
    optimizers=steps,
    check_optimizer=steps.check,
    around=steps.around,
    wraps_optimizers={"deepspeed.runtime.engine.DeepSpeedEngine": "optimizer"},
)
