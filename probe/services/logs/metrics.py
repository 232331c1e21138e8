"""Numbers that training programs log: steps, losses, learning rates, norms, times, throughput, memory.

Each format is recognized by a literal that ordinary lines lack, and then split, not searched. All names are those of
:data:`NAMES`; times are in seconds.
"""

from __future__ import annotations

from math import isfinite, isinf
from typing import Any

from probe.services.logs.expressions import Expression

Number = int | float
Metrics = dict[str, Number]

MOST = 128
"""Largest number of metrics of one line."""
NUMBER = rb"[-+]?(?:\d{1,32}(?:\.\d{0,32})?|\.\d{1,32})(?:[eE][-+]?\d{1,4})?|[-+]?(?i:nan|inf(?:inity)?)"
END = rb"(?:$|[^\w.]|\.(?:\s|$))"
"""End of a number: no letter, digit or further fraction follows."""
NAMES = {
    **dict.fromkeys(
        ("loss", "lm loss", "train loss", "train_loss", "training loss", "avg loss", "average loss"), "loss"
    ),
    **dict.fromkeys(("val loss", "val_loss", "valid loss", "valid_loss", "validation loss"), "validation_loss"),
    **dict.fromkeys(("eval loss", "eval_loss"), "eval_loss"),
    **dict.fromkeys(("lr", "learning rate", "learning_rate", "learning-rate", "cur_lr"), "learning_rate"),
    **dict.fromkeys(("accuracy", "acc", "train_acc"), "accuracy"),
    **dict.fromkeys(("ppl", "perplexity", "lm loss ppl"), "perplexity"),
    **dict.fromkeys(
        ("grad norm", "grad_norm", "gradient norm", "gradient_norm", "global_norm", "global norm", "gnorm"),
        "gradient_norm",
    ),
    **dict.fromkeys(("params norm", "weight_norm"), "parameter_norm"),
    **dict.fromkeys(("loss scale", "loss_scale"), "loss_scale"),
    **dict.fromkeys(("step", "steps", "iteration", "iter", "global_step", "global step"), "step"),
    **dict.fromkeys(("epoch",), "epoch"),
    **dict.fromkeys(("batch",), "batch"),
    "time": "time",
    **dict.fromkeys(
        ("step time", "step_time", "per_step_time", "per step time", "iter time", "train per step time"),
        "step_time",
    ),
    **dict.fromkeys(("epoch time", "epoch_time", "train epoch time"), "epoch_time"),
    **dict.fromkeys(("throughput", "samples/sec", "samples_per_second"), "throughput"),
    "train_throughput_per_npu": "tflops_per_device",
    "throughput per gpu": "tflops_per_device",
    "runningavgsamplespersec": "throughput_mean",
    "currsamplespersec": "throughput",
    "memallocated": "memory_used_gb",
    "maxmemallocated": "memory_peak_gb",
    "skipped": "skipped_steps",
    "number of skipped iterations": "skipped_steps",
    "number of nan iterations": "nan_steps",
    "consumed samples": "consumed_samples",
    "consumed tokens": "consumed_tokens",
    "global batch size": "global_batch_size",
    "num zeros": "gradient_zeros",
    "local_loss": "local_loss",
    "device_local_norm": "device_local_norm",
    "throughput_linearity": "throughput_linearity",
    "mfu": "mfu",
    "train_runtime": "train_seconds",
    "train_samples_per_second": "throughput",
    "exitcode": "exit_code",
    "local_rank": "local_rank",
}
"""Names in logs, in lower case, and ours."""
COUNTS = frozenset(
    {"step", "epoch", "batch", "skipped_steps", "nan_steps", "consumed_samples", "consumed_tokens", "exit_code"}
    | {"global_batch_size", "local_rank", "total_steps", "total_epochs", "total_batches"}
)
"""Names of numbers that are whole unless the line has a fraction."""
TOTALS = {"step": "total_steps", "epoch": "total_epochs", "batch": "total_batches", "loss": "loss_mean"}
"""Names of the second number of ``12/100``; MindSpore Transformers writes ``loss:[current/mean of the epoch]``."""
SECONDS = frozenset({"step_time", "epoch_time", "time"})
UNITS = {b"ms": 1e3, b"us": 1e6}
"""Parts of a second by their names."""

PAIR = Expression(
    rb"\b([A-Za-z_][A-Za-z_/-]{0,40}(?: [A-Za-z_]{1,24}){0,2})['\"]?(?: \(([a-z]{1,3})\)|%)?(?:\s{0,4}[:=]|\s{1,4}is\s)"
    rb"\s{0,8}[\['\"(]{0,2}\s{0,8}(" + NUMBER + rb")(?:\s{0,4}/\s{0,8}(" + NUMBER + rb"))?"
    rb"(?:\s?(ms|us|s|secs?|seconds|T|[GM]i?B|it))?" + END
)
"""``name: number``, ``name=number``, ``name is number``, with ``/ number`` and a unit where there are."""
COUNT = Expression(
    rb"(?i)\b(epoch|step|iteration|iter|batch)s?\s{1,16}#?(\d{1,15})(?:\s{0,3}/\s{0,6}(\d{1,15}))?" + END
)
"""``Step 100``, ``Epoch 3/20``."""
ENTRY = Expression(rb"['\"]([\w /.-]{1,64})['\"]:\s{0,4}['\"]?(" + NUMBER + rb")['\",}\s]")
"""Entry of a Python dictionary of numbers, or of texts of numbers."""
GPU = Expression(rb"\b(?:GPU|NPU)\s{0,2}(\d{1,4}): ?([\d.]{1,12})\s?Gi?B\s?/\s?([\d.]{1,12})\s?Gi?B")
BAR = Expression(
    rb"(\d{1,3})%\|[^|]{0,1000}\| {0,8}([\d.]{1,12})([kMGT]?)/([\d.]{1,12})([kMGT]?) \[[\d:]{1,12}<[\d:?]{1,12}"
    rb"(?:, {1,8}([\d.]{1,12}|\?) ?(it/s|s/it))?"
)
"""State of a progress bar of tqdm."""
SAMPLES = Expression(rb"([\d.]{1,16}) samples/s/p\b")
OVERFLOW = Expression(rb"OVERFLOW! (?:Rank (\d{1,7}) )?Skipping step\.(?: Attempted loss scale: ([\d.]{1,24}))?")
NAMED_BARS = (b"", b"epoch", b"train", b"step", b"iter")
"""Beginnings of the titles of bars that show training, not a download."""


def metrics_of(line: bytes, low: bytes) -> Metrics:
    """Return the numbers of a line.

    Args:
        line: The line.
        low: The same in lower case.
    """
    if b"elapsed time per iteration" in low or b" | lm loss" in low:
        return _piped(low)
    metrics: Metrics = {}
    if b"%|" in line:
        _bar(line, metrics)
    if b"{'" in line and (b"loss" in low or b"epoch" in low or b"'learning_rate'" in low):
        for name, text in ENTRY.findall(line):
            _put(metrics, _ours(name.lower().decode("ascii")) or _plain(name), text)
        if "train_seconds" in metrics and "loss" in metrics:  # the summary at the end
            metrics["loss_mean"] = metrics.pop("loss")
        return metrics
    if _may_have_pairs(low):
        _pairs(line, metrics)
    if b"epoch" in low or b"step" in low or b"iter" in low or b"batch" in low:
        _counts(line, metrics)
    _of_formats(line, low, metrics)
    _settle(low, metrics)
    return metrics


def _of_formats(line: bytes, low: bytes, metrics: Metrics) -> None:
    """Add the numbers of lines of a form of their own."""
    if b"pu" in low and (found := GPU.search(line)):
        _memory(found.groups(), metrics)
    if b"samples/s/p" in line and (found := SAMPLES.search(line)):
        _put(metrics, "throughput_per_device", found.group(1))
    if b"OVERFLOW!" in line and (found := OVERFLOW.search(line)):
        metrics["overflow"] = 1
        _put(metrics, "loss_scale", found.group(2) or b"")
    elif b"overflow cond: " in line:
        metrics["overflow"] = int(b"overflow cond: True" in line)


def _may_have_pairs(low: bytes) -> bool:
    """Return whether a line in lower case may have a number with a name of ours."""
    return (
        b"loss" in low or b"lr" in low or b"step" in low or b"epoch" in low or b"norm" in low or b"rate" in low
        or b"acc" in low or b"time" in low or b"through" in low or b"samples" in low or b"iter" in low or b"ppl" in low
        or b"perplex" in low or b"memalloc" in low or b"skipped" in low or b"exitcode" in low or b"mfu" in low
    )  # fmt: skip


def number_of(text: bytes | str) -> Number | None:
    """Return a number, whole if it is written so; None if it is none. ``nan``, ``inf`` and ``1e-5`` are numbers."""
    if len(text) > 64:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return None
    return None if isinf(value) and text[-1:].isdigit() else value  # 1e999 is no infinity


def _put(metrics: Metrics, name: str, text: bytes, divisor: float = 1.0) -> None:
    if not name or name in metrics or len(metrics) >= MOST:
        return
    value = number_of(text)
    if value is None:
        return
    if name in COUNTS:
        metrics[name] = int(value) if isfinite(value) and value == int(value) and b"." not in text else value
    else:
        metrics[name] = value / divisor


def _ours(name: str) -> str:
    """Our name for one in a log; of several words the longest known end counts."""
    while name:
        if name in NAMES:
            return NAMES[name]
        _, space, name = name.partition(" ")
        if not space:
            break
    return ""


def _plain(name: bytes) -> str:
    return name.decode("ascii").replace(" ", "_")


def _piped(low: bytes) -> Metrics:
    """Fields of Megatron-LM, ``name: number | name: number |``."""
    first, *parts = low.split(b"|", 64)
    metrics: Metrics = {}
    for part in parts:
        name, _, text = part.rpartition(b":")
        ours, divisor, whole = _FIELDS.get(name) or _field(name)
        if ours:
            try:
                value = float(text)
                metrics[ours] = int(value) if whole else value if divisor == 1 else value / divisor
            except (ValueError, OverflowError):
                continue
    _, _, numbers = first.rpartition(b"iteration")
    for count, written in zip(("step", "total_steps"), numbers.split(b"/"), strict=False):
        if (number := number_of(written.strip())) is not None:
            metrics[count] = number
    if b"validation" in first:
        return {VALIDATION.get(name, name): value for name, value in metrics.items()}
    return metrics


def _field(name: bytes) -> tuple[str, float, bool]:
    """Our name for a field of Megatron-LM, the divisor for its unit, and whether it is a count; remembered, since all
    lines have the same."""
    plain, divisor = name.strip(), 1.0
    if plain.endswith(b")"):
        plain, _, unit = plain.rpartition(b" (")
        divisor = UNITS.get(unit[:-1], 1.0)
    ours = STATED.get(plain) or (_plain(plain) if plain.endswith(b"loss") and plain.isascii() else "")
    if len(_FIELDS) < MOST:
        _FIELDS[name] = ours, divisor, ours in COUNTS
    return ours, divisor, ours in COUNTS


_FIELDS: dict[bytes, tuple[str, float, bool]] = {}
STATED = {name.encode(): ours for name, ours in NAMES.items()} | {
    b"elapsed time per iteration": "step_time",
    b"lm loss value": "loss",
}
VALIDATION = {"loss": "validation_loss", "perplexity": "validation_perplexity"}


def _pairs(line: bytes, metrics: Metrics) -> None:
    for name, unit, text, second, after in PAIR.findall(line):
        words = name.lower().decode("ascii")
        ours = _ours(words)
        if not ours:
            last = words.rpartition(" ")[2]
            if not last.endswith("loss"):
                continue
            ours = last
        divisor = UNITS.get(after or unit, 1.0) if ours in SECONDS else 1.0
        known = ours in metrics
        _put(metrics, ours, text, divisor)
        if second and not known and ours in TOTALS:
            _put(metrics, TOTALS[ours], second)


def _counts(line: bytes, metrics: Metrics) -> None:
    for name, text, total in COUNT.findall(line):
        ours = NAMES[name.lower().decode("ascii")]
        if ours not in metrics:
            _put(metrics, ours, text)
            if total:
                _put(metrics, TOTALS[ours], total)


def _memory(parts: tuple[Any, ...], metrics: Metrics) -> None:
    used, total = number_of(parts[1]), number_of(parts[2])
    if used is None or total is None:
        return
    metrics |= {"gpu_id": int(parts[0]), "memory_used_gb": float(used), "memory_total_gb": float(total)}
    if total:
        metrics["memory_utilization"] = used / total


def _bar(line: bytes, metrics: Metrics) -> None:
    found = BAR.search(line)
    if found is None:
        return
    percent, done, done_unit, total, total_unit, rate, unit = found.groups()
    title = line[max(0, found.start() - 64) : found.start()].rpartition(b"\r")[2].strip().lower()
    metrics["percent"] = int(percent)
    if rate and rate != b"?" and (value := number_of(rate)):
        metrics["steps_per_second"] = float(value) if unit == b"it/s" else 1.0 / value
    if title.startswith(NAMED_BARS[1:]) or not title:
        name = "batch" if title.startswith(b"epoch") else "step"
        if not done_unit and not total_unit:
            _put(metrics, name, done)
            _put(metrics, TOTALS[name], total)
        if name == "batch":
            _counts(title.replace(b":", b" "), metrics)


def _settle(low: bytes, metrics: Metrics) -> None:
    """Name a time by the rest of its line; any line may have one."""
    time = metrics.pop("time", None)
    if time is None:
        return
    if "step" in metrics or "batch" in metrics:
        metrics.setdefault("step_time", time)
    elif "epoch" in metrics:
        metrics.setdefault("epoch_time" if b"complete" in low else "step_time", time)
