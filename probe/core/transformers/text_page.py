"""TEXT page of TensorBoard: the configuration of a training job, a tag for each name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

SIZE = "data_size"
NAMES: dict[str, Any] = {
    "seed": 1,
    "output_dir": "./output",
    "run_mode": None,
    "use_parallel": False,
    "resume_training": False,
    "ignore_data_skip": False,
    "data_skip_steps": None,
    "load_checkpoint": "",
    "load_ckpt_format": "ckpt",
    "auto_trans_ckpt": False,
    "transform_process_num": 1,
    "src_strategy_path_or_dir": "",
    "load_ckpt_async": False,
    "only_save_strategy": False,
    "profile": False,
    "profile_communication": False,
    "profile_level": 1,
    "profile_memory": True,
    "profile_start_step": 1,
    "profile_stop_step": 10,
    "profile_rank_ids": None,
    "profile_pipeline": False,
    "init_start_profile": False,
    "layer_decay": 0.65,
    "layer_scale": False,
    "lr_scale": False,
    "lr_scale_factor": 256,
    "micro_batch_interleave_num": 1,
    "remote_save_url": None,
    "callbacks": None,
    "context": None,
    SIZE: None,
    "device_num": None,
    "do_eval": False,
    "eval_callbacks": None,
    "eval_step_interval": 100,
    "eval_epoch_interval": -1,
    "eval_dataset": None,
    "eval_dataset_task": None,
    "lr_schedule": None,
    "metric": None,
    "model": None,
    "moe_config": None,
    "optimizer": None,
    "parallel_config": None,
    "parallel": None,
    "recompute_config": None,
    "remove_redundancy": None,
    "runner_config": None,
    "runner_wrapper": None,
    "monitor_config": None,
    "tensorboard": None,
    "train_dataset_task": None,
    "train_dataset": None,
    "trainer": None,
    "swap_config": None,
}
"""The documented names in their order, each with its default; None for a section that a job need not have."""

_RESUMED = (("resume_training", False),)
_LOADED = (("load_checkpoint", None),)
_TRANSFORMED = (*_LOADED, ("auto_trans_ckpt", False))
_PROFILED = (("profile", False),)
_EVALUATED = (("do_eval", False),)
CONDITIONS: dict[str, tuple[tuple[str, object], ...]] = {
    "ignore_data_skip": _RESUMED,
    "data_skip_steps": (*_RESUMED, ("ignore_data_skip", True)),
    "load_ckpt_format": _LOADED,
    "auto_trans_ckpt": _LOADED,
    "transform_process_num": _TRANSFORMED,
    "src_strategy_path_or_dir": _TRANSFORMED,
    "load_ckpt_async": _LOADED,
    "profile_communication": _PROFILED,
    "profile_level": _PROFILED,
    "profile_memory": _PROFILED,
    "profile_start_step": _PROFILED,
    "profile_stop_step": _PROFILED,
    "profile_rank_ids": _PROFILED,
    "profile_pipeline": _PROFILED,
    "init_start_profile": _PROFILED,
    "lr_scale_factor": (("lr_scale", False),),
    "eval_callbacks": _EVALUATED,
    "eval_step_interval": _EVALUATED,
    "eval_epoch_interval": _EVALUATED,
    "eval_dataset": _EVALUATED,
    "eval_dataset_task": _EVALUATED,
}
"""Names that are written under a condition: each with the names and values with any of which it is left out."""

UNWRITTEN = frozenset(
    {
        "adapter_id",
        "auto_tune",
        "autotune_per_step",
        "enable_mindio_ttp_save_ckpt",
        "exclude_cann_cpu",
        "filepath_prefix",
        "infer_precision_sync",
        "input_data",
        "local_rank",
        "postprocess_use_numpy",
        "predict_batch_size",
        "processor",
        "rank_id",
        "save_file",
        "train_precision_sync",
    }
)
"""Keys of a configuration that are no part of a training job."""

HIDDEN = "***"
_SECRET = re.compile(
    r"(?:^|_)(?:password|passwd|secret|(?:secret|access|api)_?key|(?:auth|access)_token)$", re.IGNORECASE
)


def texts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each name with the text of its value: the documented names, then the other keys of ``values``.

    Args:
        values: the configuration, after arguments, YAML and defaults of sections are merged.
    """
    whole = NAMES | dict(values)
    others = [name for name in whole if name not in NAMES and name not in UNWRITTEN]
    for name in (*NAMES, *others):
        if _holds(name, whole):
            yield name, HIDDEN if _SECRET.search(name) else str(_redacted(whole[name]))


def _holds(name: str, values: Mapping[str, Any]) -> bool:
    """Return whether the condition of ``name`` holds; an empty path of a checkpoint counts as none."""
    return not any(
        values.get(other) == flag or (flag is None and not values.get(other))
        for other, flag in CONDITIONS.get(name, ())
    )


def _redacted(value: Any) -> Any:
    """Return ``value`` with secrets in mappings hidden."""
    if isinstance(value, Mapping):
        return {key: HIDDEN if _secret(key, each) else _redacted(each) for key, each in value.items()}
    return [_redacted(each) for each in value] if isinstance(value, list | tuple) else value


def _secret(key: object, value: object) -> bool:
    return isinstance(value, str) and bool(value) and bool(_SECRET.search(str(key)))
