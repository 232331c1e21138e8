"""Imported first in processes that train with DeepSpeed: it is to use the CPU, without compiling an extension for it,
and to take fp16 as torch computes it here, where the processor has no instructions for it."""

from __future__ import annotations

import logging
import os
import sys
import types
import warnings

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["DS_SKIP_CUDA_CHECK"] = "1"
warnings.filterwarnings("ignore")

import deepspeed.runtime.utils  # noqa: E402
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator  # noqa: E402

# By module name: as an attribute, deepspeed.comm.torch is torch itself.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
# Dozens of times while an engine is made, to say how much memory is in use.
deepspeed.runtime.utils.gc = types.SimpleNamespace(collect=lambda: 0)
CPU_Accelerator.is_fp16_supported = lambda self: True
logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
