"""Numbers that training programs log: steps, losses, learning rates, norms, times, throughput, memory.

A line in normal form (:mod:`probe.services.logs.normal`) is a row of fields: a name, a sign or a space, a number, a
unit. Its name is looked up in :mod:`probe.services.logs.names`; which program wrote the line is not asked. Times are in
seconds.
"""

from __future__ import annotations

import re
from math import isfinite, isinf, isnan
from typing import Any

from probe.services.logs.expressions import Expression
from probe.services.logs.names import COUNTERS, HELD_OUT, LONGEST, SIGNED, named, ours
from probe.services.logs.normal import NUMBER, PIPED

Number = int | float
Metrics = dict[str, Number]

MOST = 128
"""Largest number of metrics of one line."""
OF_HELD_OUT = Expression(
    rb"(?:^|[\]|>:\d-] |(?:info|debug|\bi) )\W{0,4}\[?(?:epoch ?\()?(eval|evaluation|val|valid|validation|validate|"
    rb"dev|cv|test)\b[^|]{0,32}(?:\||:|(?:step|epoch|batch)(?:$|[^_])|\bsubset|\]\[)"
)
"""Begin of a message whose loss is one of held-out data: ``validate step: 30  loss: 6.3``."""
COUNTS = frozenset(
    {"step", "epoch", "batch", "skipped_steps", "nan_steps", "consumed_samples", "consumed_tokens", "exit_code"}
    | {"global_batch_size", "local_rank", "total_steps", "total_epochs", "total_batches"}
)
"""Names of numbers that are whole unless the line has a fraction."""
WHOLE_ALONE = ("step", "batch")
"""Counts that never have a fraction: what took 0.5 seconds is no step."""
TOTALS = {"step": "total_steps", "epoch": "total_epochs", "batch": "total_batches", "loss": "loss_mean"}
"""Names of the second number of ``12/100``; MindSpore Transformers writes ``loss:[current/mean of the epoch]``."""
SECONDS = frozenset({"step_time", "epoch_time", "validation_time", "time"})
CLOCKED = SECONDS | {"train_seconds"}
"""Times that some programs write as on a clock, which are left out."""
OF_CLOCKS = CLOCKED | {"loss"}
"""Names before a time of day: ``Tot: 0:01:12``."""
UNITS = {"ns": 1e9, "us": 1e6, "ms": 1e3, "min": 1 / 60}
"""Parts of a second by their names."""
TIMES = frozenset({"s", "sec", "secs", "seconds", "min", "ms"})
BYTES = {"B": 1 / 2**30, "K": 1 / 2**20, "M": 1 / 1024, "T": 1024.0}
"""Gigabytes in a unit of memory, by its first letter."""
THOUSANDS = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9}
LONGEST_TIME = 1e7
"""Seconds from which a time is a date: ``Time: 20240302``."""
CLOCK = Expression(rb":\d\d|-\d\d-\d\d")
"""Rest of a time of day or of a date: ``Time=07:29:39``."""
UNSTATED = 1000
"""Number of a memory without unit from which it is no number of gigabytes."""

UNIT = rb"(?:(?:[kKM] )?(?:wps|t(?:k|oken|ok)s?(?:(?: per |/)(?:s(?:ec(?:ond)?)?|[gn]pu|device)){1,2})|"
UNIT += rb"[mun]?s|secs?|seconds|min|[KMGTkmgt]i?[Bb]|[kKMGTB]|%|it|TFLOPS|TFLOPs?/s/\w{2,6})"
FIELD = Expression(
    rb"\b((?:\d[a-z]_)?[A-Za-z_][\w/-]{0,47}(?:\.[A-Za-z_][\w/-]{0,24}){0,2}(?: [A-Za-z_][\w/-]{0,24}){0,3})[.'\"]{0,3}"
    rb"(?:\s?\(([A-Za-z/ =]{1,24})\)|%)?"
    rb"(?:\s{0,6}(::?|=|[-=]>|~)|\s|\[)\s{0,32}[\['\"(#]{0,3}\s{0,8}(" + NUMBER + rb")"
    rb"(?:\s{0,4}(?:/|of)\s{0,8}(" + NUMBER + rb"))?[\])'\"]{0,2}(?:\s?(" + UNIT + rb"))?"
    rb"(?:(\s{0,16}(?:$|[|,;:)\]}({\"\xe2\xc2*@/-])|\s\s|\s[\d.]{1,12}(?:s|it)/)|$|[^\w.]|\.{1,3}(?:\s|$))"
)
"""``name: number``, ``name=number``, ``name is number``, ``name number``; ``/ number`` and a unit where there are; and
the separator after it, which may be a line of a frame."""
NESTED = Expression(rb"\b([A-Za-z_][\w/.-]{0,48})['\"]?\s{0,2}[:=]\s{0,2}\{([^{}]{1,512})\}")
"""Dictionary as a value: ``grad_norm={'0_default': 2.15}``."""
CHANGED = re.compile(r" (?:adjust|chang|reduc|decreas|increas|lower|rais|reset|set|updat)[a-z]{0,4}$")
"""Verb between a name and ``to``: ``loss scale adjust to 1024``."""
ENTRY = Expression(
    rb"['\"]([\w /.()-]{1,64})['\"]:\s{0,4}['\"]?(" + NUMBER + rb")(?:\s{0,2}/\s{0,2}(" + NUMBER + rb"))?['\",}\s]"
)
"""Entry of a Python dictionary of numbers, or of texts of numbers."""
EPOCH = Expression(
    rb"(?i)\b(?:epoch|train|val|test)\s?(?:\((?:train|val|test)\))?:?\s{0,4}\[?\s{0,4}(\d{1,6})(?:\s?/\s?(\d{1,6}))?\]?\s{0,4}"
    rb"(?:\(\s{0,2}\d{1,3}%\)\s{0,4})?[\[( ,]\s{0,8}(\d{1,9})\s{0,2}/\s{0,6}(\d{1,9})\b"
)
"""``Epoch: [3][ 50/391]``, ``Train: [3/90][50/391]``, ``Train: 3/90 (3%) [ 50/391``: epoch, and batch of batches."""
OF_EPOCH = Expression(rb"\bEpoch ?\((?:val|test)\) {0,2}\[(\d{1,6})\]()")
"""Epoch of an evaluation: ``Epoch(val) [12][5000]``."""
BEHIND = Expression(rb"(?:^|[ (\[])(\d{1,6})(?:/(\d{1,6}))?epochs?(?:$|[ :,)\]])")
"""Epoch before its name: ``7epoch results``, ``8/20epoch started``."""
DONE = Expression(rb"\b(?:finished|completed|done) (\d{1,9})()(?: of \d{1,9})? (?:iteration|step)s?\b")
"""Count before its name: ``finished 120 iterations``."""
SECTION = Expression(rb"[|,;] {0,2}\[?([a-z]{2,10})[\]:] {1,2}[a-z_]{0,8}loss")
"""Begin of the fields of other data: ``, [valid] loss=1.8``, ``| val: loss=1.8``."""
RATE = Expression(
    rb"(?:^|[^\d.,]|\.\d{1,12},)(" + NUMBER + rb")([kKMB]?) {0,2}"
    rb"(?:(tok|tokens|words|samples|examples|ex|seqs?|sequences|images|imgs?|it|iters?|iterations|"
    rb"steps?)/s(?:ec(?:ond)?)?(/[gn]pu|/device)?|"
    rb"(ms|us|s|sec) {0,2}/ {0,2}(?:step|iter|iteration|batch|it))(?:$|[^\w/])"
)
"""Number before its name: ``151000 tok/s``, ``120ms/step``."""
CELL = Expression(rb"\| {0,4}(" + NUMBER + rb") ?(ms|s) {0,4}(?:$|\|)")
"""Time without a name: ``| 8060.78ms |``."""
RATED = ("throughput", "steps_per_second")
RATES = {b"it": "steps_per_second", b"st": "steps_per_second"} | dict.fromkeys((b"to", b"wo"), "tokens_per_second")
FIRST = Expression(
    rb"^(?:[^\w\[(|]{0,4}[\[(]?\s{0,8}|.{0,64} \|\s{0,8})(\d{1,9})\s?/\s{0,8}(\d{1,9})"
    rb"(?:[\])]|:? [a-z]{2,20}\b| [^\w:]|[:,|])"
)
"""Count of a whole before the fields: ``[10/1000] loss=2.3``, ``200/ 2983 batches``."""
WHOLE = Expression(rb"(?:[a-z\])]|\btrain(?:ing)?:) {1,4}(\d{1,9}) ?/ {0,4}(\d{1,9})(?:$|[^\w/.:-])")
"""Count of a whole anywhere before the loss: ``Process 100/3161(3%) average loss: 2.3``."""
BRACKETED = Expression(
    rb"(?i)(?:^\s{0,16}|(?:train\w{0,3}|iter\w{0,7}|steps?|progress|[\])|:>,;\t-]|"
    rb"\d\s)\s{0,8}:?\s{0,8})[\[(]\s{0,8}(\d{1,9})\s{0,2}/\s{0,8}(\d{1,9})\s{0,2}[\])]"
)
"""Count of a whole in brackets: ``Training  [ 10/1000]``."""
WEAK = Expression(
    rb"(?i)(?:^|[ ,;|(\[\t])(?:(e|ep|i|it|n_iter|upd|update|mb|minibatch)\.?[ :=#]{1,3}|(E))"
    rb"(\d{1,9})(?:/(\d{1,9}))?(?:$|[ ,;:|)\]\t])"
)
"""Counts behind abbreviations that mean that beside a loss alone: ``ep 3, it 120, loss 2.5``."""
ABBREVIATED = {b"e": "epoch", b"ep": "epoch", b"mb": "batch", b"minibatch": "batch"}
"""Our names for those of which most count steps."""
COLUMN = Expression(rb"^\s{0,8}\[?(\d{1,9})()(?: \||:(?:\t|\s{2})\s{0,16}[a-z]|\] {1,4}[A-Za-z])")
"""Step in the first column: ``1230 | loss 5.4``, ``1230:    loss: 5.4``, ``[1230] loss: 5.4``."""
LABEL = Expression(rb"^(\d{4,9})(): [a-z]")
"""Step before the fields, too large for a rank: ``12500: loss: 5.4``."""
PAIR = Expression(rb"^\[\s{0,8}(\d{1,6})\]\s{1,16}(\d{1,9})() \|")
"""Epoch and step in the first column: ``[  1]    1440 || B: 5.5``."""
OF_PAIR = Expression(rb"^\s{0,8}\[(\d{1,6})[:,] {1,8}(\d{1,9})(?:/(\d{1,9}))?\] ")
"""Epoch and batch before the fields: ``[8: 85/199] train loss: 0.004``, ``[8,    85] loss: 0.004``."""
OF_PAIRS = Expression(rb"(?:^\s{0,8}|\| )\[ {0,8}(\d{1,6})/ {0,8}(\d{1,6})\] ?\[ {0,8}(\d{1,9})/ {0,8}(\d{1,9})\]")
"""The same with both wholes: ``[3/25][120/1000] Loss: 2.5``."""
PART = Expression(rb"^\s{0,4}([A-Za-z]\w{0,12}):\s{1,4}(\d{1,9}\.\d{1,9}|nan)\s{0,4}$")
"""Cell of a row of parts and their sum: ``B: 5.5 | C: 3.7 | T: 9.2``."""
JUDGED = ("loss", "objective", "learning_rate", "gradient_norm")
"""Ends of the names of numbers beside which a count without a name is one of steps."""
PARTS_OF_SUM = 4
"""Smallest number of such cells, the sum among them."""
HEADLESS = Expression(rb"^\s{0,8}(\d{1,6})/(\d{1,6})\s{1,12}[\d.]{1,8}[GM]B?\s")
"""Epoch and memory at the begin of a row of which the head is not there."""
ROUND = Expression(rb"(?:^|INFO )\[(\d{1,9})\]():?\s{1,16}(?:train|valid|eval|test|dtrain)")
"""Iteration in brackets before columns of data: ``[500]    train-logloss:0.16``."""
TRIPLE = Expression(rb"^([A-Za-z_][\w/.]{1,64}) {1,8}(" + NUMBER + rb") {1,8}(\d{1,9})$")
"""Name, value and step alone: ``losses/q1_loss 65.3581 193000``."""
WRITER = Expression(rb"\.py:\d{1,6}\] \[(\d{1,9})\] [a-z]")
"""Step of the log writer of JAX's libraries: ``logging_writer.py:48] [120] loss=3.2``."""
ROW = Expression(
    rb"^\s{0,64}\|\s{0,16}([A-Za-z_][\w/ -]{0,40}?)\s{0,64}\|\s{0,16}(" + NUMBER + rb")\s{0,64}\|()\s{0,16}$"
)
"""Row of a table: ``| loss | 0.12 |``."""
CELLS = Expression(rb"([A-Za-z]\w{1,32}(?: {1,8}[A-Za-z]\w{1,32})?) {1,32}\| {1,16}(" + NUMBER + rb")\s{0,4}$")
"""Name and number in columns at the end of a line: ``train loss |  2.5``."""
GPU = Expression(rb"\b(?:GPU|NPU)\s{0,2}(\d{1,4}): ?([\d.]{1,12})\s?Gi?B\s?/\s?([\d.]{1,12})\s?Gi?B")
BAR = Expression(
    rb"(\d{1,3})%(?:\|[^|]{0,1000}\|)? {0,8}([\d.]{1,12})([kMGT]?)/([\d.]{1,12})([kMGT]?) \[[\d:]{1,12}<[\d:?]{1,12}"
    rb"(?:, {1,8}([\d.]{1,12}|\?) ?(it/s|s/it))?"
)
"""State of a progress bar of tqdm."""
PROCESS = Expression(rb"(\.py:\d{1,6}\] )\(\d{1,5}/\d{1,5}\) ")
"""Number of a process, and of all, behind the source: ``[train.py:12] (0/8) Epoch 1``."""
LOGGED_BAR = Expression(rb" (\d{1,9})it/(?:(\d{1,9})|[\d.]{1,9}[kMGT])it ")
"""State of a bar that is written to a log: ``Progress on:train 120it/10.0kit rate:1.2it/s``."""
OPEN_BAR = Expression(rb"(?:^|[ |])(\d{1,9})it \[\d")
"""State of a bar without a total: ``3663it [44:35, 1.85it/s``."""
SAMPLES = Expression(rb"([\d.]{1,16}) samples/s/p\b")
OVERFLOW = Expression(
    rb"\boverflow\b[^|]{0,32}\bskipping (?:the )?step\b(?:[^|]{0,32}\bloss scale(?: to|:) (" + NUMBER + rb"))?"
)
"""Step that a loss scaler leaves out, and the scale, in lower case."""
TITLE = Expression(
    rb"(?:^|[\])|>]:?\s{0,2})[\[(]?(?:(?:train(?:ing)? )?(?:(epochs)\b[^|\d]{0,40}$|(epoch|episode|batch))|train|"
    rb"step|iter)[^|]{0,40}$"
)
"""Title of a bar that shows training, not a download."""

COUNTED = Expression(rb"(?i)\b(?:step|iter|iteration)[ :=]{1,2}\d{1,9}:? {0,2}$")
"""Title of a bar that shows what is done between two such counts: ``step 120: 100%|``."""


def metrics_of(line: bytes, low: bytes) -> Metrics:
    """Return the numbers of a line in normal form.

    Args:
        line: The line.
        low: The same in lower case.
    """
    if PIPED in low or b" | lm loss" in low:
        return _piped(low)
    metrics: Metrics = {}
    if b"time (ms) |" in low:
        return metrics  # a row of times; ``step: 12.3`` is that of the optimizer
    if b"%|" in line or b"% " in line:
        _bar(line, metrics)
    if b"={'" in line or b": {'" in line:
        line = _nested(line, metrics)
    if b"{'" in line and (b"loss" in low or b"epoch" in low or b"'learning_rate'" in low):
        _entries(line, metrics)
        before: Metrics = {}
        _fields(line[: line.index(b"{'")], before)
        return metrics | {name: value for name, value in before.items() if name in COUNTERS - metrics.keys()}
    if _may_have_fields(low):
        _of_line(line, low, metrics)
    _of_formats(line, low, metrics)
    _settle(metrics, low)
    if type(metrics.get("step")) is float and b"slurm" in low:  # number of a job
        del metrics["step"]
    if "loss" in metrics and (found := OF_HELD_OUT.search(low[: low.find(b"loss")])):
        metrics.setdefault(HELD_OUT[found.group(1).decode()], metrics.pop("loss"))
    return metrics


def _of_line(line: bytes, low: bytes, metrics: Metrics) -> None:
    """Add epochs, fields, and numbers without names."""
    if b"epoch" in low or b"train" in low or b": [" in low or b"[val" in low:
        _counts(EPOCH, ("epoch", "total_epochs", "batch", "total_batches"), line, metrics)
        for expression in (BEHIND, OF_EPOCH) if b"epoch" in low else ():
            _counts(expression, ("epoch", "total_epochs"), line, metrics)
    _fields(_of_training(line, metrics) if b"al" in line or b" [" in line else line, metrics)
    _without_names(line, low, metrics)


def _of_training(line: bytes, metrics: Metrics) -> bytes:
    """Add the losses of the sections of held-out data; return what stands before the first of them."""
    begins = [found for found in SECTION.finditer(line) if found.group(1).decode() in HELD_OUT]
    for found in begins:
        inner: Metrics = {}
        _fields(line[found.end(1) + 1 :].partition(b" [")[0], inner)
        if "loss" in inner:
            metrics[HELD_OUT[found.group(1).decode()]] = inner["loss"]
        metrics |= {name: inner[name] for name in COUNTERS & inner.keys()}
    return line[: begins[0].start()] if begins else line


def _without_names(line: bytes, low: bytes, metrics: Metrics) -> None:
    """Add numbers whose name stands behind them, in another column, or nowhere."""
    if b".py:" in low:
        _counts(WRITER, ("step",), line, metrics)
    if b"finished " in low or b"completed " in low:
        _counts(DONE, ("step", "total_steps"), low, metrics)
    _sum(line, metrics)
    if any(name.startswith("loss") or name.endswith(JUDGED) for name in metrics):
        _counts_beside(line, low, metrics)
    elif not metrics and (found := (ROW if b"|" in line else TRIPLE).search(line)):
        known = _put(metrics, ours(found.group(1).decode("ascii")), found.group(2))
        _put(metrics, "step" if known else "", found.group(3))
    if b" |  " in line and "loss" not in metrics and (found := CELLS.search(line)):
        _put(metrics, ours(b" ".join(found.group(1).split()).decode("ascii")), found.group(2))
    if b"/s" in low or b"s/" in low or b"sec/" in low or b"s / " in low:
        _rates(line, metrics)
    if "loss" in metrics and "step_time" not in metrics and (found := CELL.search(line)):
        _put(metrics, "step_time", found.group(1), UNITS.get(found.group(2).decode(), 1.0))


def _counts_beside(line: bytes, low: bytes, metrics: Metrics) -> None:
    """Add counts of a line about a loss that have no name, or an abbreviation of one."""
    if not {"step", "epoch"} <= metrics.keys():
        for name, letter, count, total in WEAK.findall(line):
            known = ABBREVIATED.get((name or letter).lower(), "step")
            if _put(metrics, known, count):
                _put(metrics, TOTALS[known], total)
    if "step" not in metrics and "batch" not in metrics:
        _counts(OF_PAIR, ("epoch", "batch", "total_batches"), line, metrics)
        _counts(OF_PAIRS, ("epoch", "total_epochs", "batch", "total_batches"), line, metrics)
        if "total_batches" not in metrics:
            _counted_so_far(PROCESS.replace(line, rb"\1") if b".py:" in low else line, low, metrics)


def _counted_so_far(line: bytes, low: bytes, metrics: Metrics) -> None:
    """Add the count of a line about a loss that has no name."""
    for expression in (FIRST, BRACKETED, LOGGED_BAR, COLUMN, LABEL):
        _counts(expression, ("step", "total_steps"), line, metrics)
    if "epoch" in metrics and metrics["epoch"] == metrics.get("step") and FIRST.search(line):  # ``3/10 * Epoch 3``
        del metrics["step"]
        _put(metrics, "total_epochs", b"%d" % metrics.pop("total_steps", 0))
    if b"it [" in line:
        _counts(OPEN_BAR, ("batch" if "epoch" in metrics else "step",), line, metrics)
    if "total_epochs" not in metrics:
        _counts(WHOLE, ("step", "total_steps"), re.split(b"loss|obj", low, maxsplit=1)[0], metrics)


def _sum(line: bytes, metrics: Metrics) -> None:
    """Add as the loss the cell of a row that is the sum of the others, or NaN if all are."""
    cells = line.split(b"|", 64)
    if "loss" in metrics or len(cells) <= PARTS_OF_SUM:
        return
    found = filter(None, map(PART.match, cells))
    parts = [float(each.group(2)) for each in found if not ours(each.group(1).decode("ascii"))]
    if len(parts) < PARTS_OF_SUM:
        return
    if abs(2 * max(parts) - sum(parts)) < len(parts) / 1000 or all(map(isnan, parts)):
        metrics["loss"] = max(parts)
        _counts(PAIR, ("epoch", "step", "total_steps"), line, metrics)


def _counts(expression: Expression, names: tuple[str, ...], line: bytes, metrics: Metrics) -> None:
    """Add the groups of the first match under ``names``."""
    if found := expression.search(line):
        for name, text in zip(names, found.groups(), strict=True):
            _put(metrics, name, text or b"")


def _of_formats(line: bytes, low: bytes, metrics: Metrics) -> None:
    """Add the numbers of lines of a form of their own."""
    if line[:1] == b"[" or b"INFO [" in line:
        _counts(ROUND, ("step", "total_steps"), line, metrics)
    if b"%" in line:
        _counts(HEADLESS, ("epoch", "total_epochs"), line, metrics)
    if b"pu" in low and (found := GPU.search(line)):
        _memory(found.groups(), metrics)
    if b"samples/s/p" in line and (found := SAMPLES.search(line)):
        _put(metrics, "throughput_per_device", found.group(1))
    if b"skipping" in low and (found := OVERFLOW.search(low)):
        metrics["overflow"] = 1
        _put(metrics, "loss_scale", found.group(1) or b"")
    elif b"overflow cond: " in line:
        metrics["overflow"] = int(b"overflow cond: True" in line)


def _may_have_fields(low: bytes) -> bool:
    """Return whether a line in lower case may have a number with a name of ours."""
    return (
        b"loss" in low or b"lr" in low or b"step" in low or b"epoch" in low or b"norm" in low or b"rate" in low
        or b"acc" in low or b"time" in low or b"through" in low or b"samples" in low or b"iter" in low or b"ppl" in low
        or b"perplex" in low or b"memalloc" in low or b"skipped" in low or b"exitcode" in low or b"mfu" in low
        or b"batch" in low or b"tok" in low or b"obj" in low or b"learn" in low or b"peak" in low
        or b"/sec" in low or b"cost" in low or b"entropy" in low or b"xent" in low or b"tot " in low
    )  # fmt: skip


def number_of(text: bytes | str) -> Number | None:
    """Return a number, whole if it is written so; None if it is none. ``nan``, ``inf`` and ``1e-5`` are numbers."""
    if len(text) > 64:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    plain = text.replace(",", "") if isinstance(text, str) else text.replace(b",", b"")
    try:
        value = float(plain)
    except ValueError:
        return None
    return None if isinf(value) and text[-1:].isdigit() else value  # 1e999 is no infinity


def _put(metrics: Metrics, name: str, text: bytes, divisor: float = 1.0) -> bool:
    """Add a number under ``name`` unless there is one; return whether it was added."""
    if not name or name in metrics or len(metrics) >= MOST:
        return False
    value = number_of(text)
    if value is None:
        return False
    if name in COUNTS:
        value /= divisor
        if name in WHOLE_ALONE and value % 1:
            return False
        whole = isfinite(value) and value == int(value) and (divisor != 1 or b"." not in text[:-1])
        metrics[name] = int(value) if whole else value
    else:
        metrics[name] = value / divisor
    return True


def _plain(name: bytes) -> str:
    return name.decode("ascii").replace(" ", "_")


def _entries(line: bytes, metrics: Metrics) -> None:
    """Add the entries of a dictionary, those whose name is not ours under the program's."""
    for name, text, second in ENTRY.findall(line):
        put_entry(metrics, name.decode("ascii"), text, second, _plain(name))
    if "train_seconds" in metrics and "loss" in metrics and "learning_rate" not in metrics:  # the summary at the end
        metrics["loss_mean"] = metrics.pop("loss")


def put_entry(metrics: Metrics, name: str, text: bytes, second: bytes, otherwise: str) -> None:
    """Add an entry of a dictionary, with ``/ second`` where there is one: under our name, or else under ``otherwise``,
    which may be empty."""
    plain, _, unit = (name.partition("/")[0] if second else name).partition("(")
    known = _of_rate(ours(plain.strip()), unit.rstrip(")"))
    if known == "step" and name.startswith("total"):
        metrics.pop(known, None)  # after those since the last line
    if _put(metrics, known or otherwise, text, _divisor(known, unit.rstrip(")"))) and second:
        _put(metrics, TOTALS.get(known, ""), second)


def _nested(line: bytes, metrics: Metrics) -> bytes:
    """Add the entries of dictionaries that are values, each under the name of both, or under its own; return the line
    without them."""
    for found in NESTED.finditer(line):
        whole = found.group(1).decode("ascii")
        known = ours(whole)
        for name, text, _ in ENTRY.findall(found.group(2) + b"}"):
            plain = _plain(name)
            _put(
                metrics, f"{known}/{plain}" if known else ours(f"{whole}/{plain}" if whole in HELD_OUT else plain), text
            )
    return NESTED.replace(line, b" ")


def _piped(low: bytes) -> Metrics:
    """Fields of Megatron-LM, ``name: number | name: number |``; the first releases wrote no colons."""
    metrics: Metrics = {}
    parts = low.split(b"|", 64)
    for part in parts:
        name, colon, text = part.rpartition(b":")
        known, divisor, whole = _FIELDS.get(name) or _field(name)
        if not known:
            if colon or b"iteration" in part or b"epoch" in part:
                _counted(part, metrics)
                continue
            name, _, text = part.strip().rpartition(b" ")
            known, divisor, whole = _FIELDS.get(name) or _field(name)
        if known:
            number, _, unit = text.strip().partition(b" ")
            try:
                value = float(number)
                divisor = _divisor(known, unit.decode("ascii", "replace")) if unit else divisor
                metrics[known] = int(value) if whole else value if divisor == 1 else value / divisor
            except (ValueError, OverflowError):
                _counted(part, metrics)
    if b"validation" in parts[0]:
        return {VALIDATION.get(name, name): value for name, value in metrics.items()}
    return metrics


def _counted(part: bytes, metrics: Metrics) -> None:
    """Add the iteration, or the epoch, of a part such as ``iteration 120/ 5000``."""
    for word, count in ((b"iteration", "step"), (b"epoch", "epoch")):
        written_counts = part.rpartition(word)[2].split(b"/") if word in part else ()
        for name, written in zip((count, TOTALS[count]), written_counts, strict=False):
            if (number := number_of(written.strip(b" :").partition(b" ")[0])) is not None:
                metrics.setdefault(name, number)


def _field(name: bytes) -> tuple[str, float, bool]:
    """Our name for a field of Megatron-LM, the divisor for its unit, and whether it is a count; remembered, since all
    lines have the same."""
    plain, unit = name.strip(), b""
    if plain.endswith(b")"):
        plain, _, unit = plain.rpartition(b"(")
    plain = plain.strip().replace(b"_", b" ").removesuffix(b" value")
    known = "" if len(plain) > LONGEST else named(plain.decode("utf-8", "replace"))
    if not known and plain.endswith(b"loss") and plain.isascii() and len(plain) <= LONGEST:
        known = _plain(plain)
    of = unit[:-1].decode("utf-8", "replace")
    field = _of_rate(known, of), _divisor(known, of), known in COUNTS
    if len(_FIELDS) < MOST:
        _FIELDS[name] = field
    return field


_FIELDS: dict[bytes, tuple[str, float, bool]] = {}
VALIDATION = {"loss": "validation_loss", "perplexity": "validation_perplexity"}


def _fields(line: bytes, metrics: Metrics) -> None:
    """Add the fields of a line. One without a sign counts if a separator or the next field follows it."""
    order = 0 if "step" in metrics else 9
    pending: tuple[int, str, bytes, float] | None = None
    losses: list[tuple[str, bytes, bytes]] = []
    loss_before = False  # then a bare ``val`` is its pair: ``loss train: 2.3, val: 2.5``
    for found in FIELD.finditer(line):
        name, sign, text = _name_and_number(found)
        own = text == found.group(4)
        second, stated = found.group(5) if own else b"", (found.group(6) if own else b"") or found.group(2)
        if pending is not None and pending[0] == found.start():
            _put(metrics, *pending[1:])
        pending = None
        known, unit = ("", "") if not sign and name in SIGNED else _with_unit(name, stated)
        if unit.lower() in HELD_OUT or (not known and loss_before):
            known = HELD_OUT.get(unit.lower() or name.lower(), "") if known in ("", "loss") else ""
        loss_before = known == "loss"
        if (
            not known
            or _no_unit_of(known, unit, text, second)
            or (own and known in OF_CLOCKS and CLOCK.match(line[found.end(4) :]))
            or (known == "step" and order < 9 and line[found.end(4) :][:1] == b"(")  # a meter and its mean
        ):
            continue
        if not sign and found.group(7) is None and known not in COUNTERS and not found.group().rstrip().endswith(b"."):
            pending = found.end(), known, text, _divisor(known, unit)
            continue
        if known == "loss":
            losses.append((name.lower(), text, second))
            continue
        if known == "step":
            if (rank := _order(name)) >= order:
                continue
            order = rank
            _replace_step(number_of(text), metrics)
        if _put(metrics, known, text, _divisor(known, unit)) and second and known in TOTALS:
            _put(metrics, TOTALS[known], second)
    _put_losses(losses, metrics)


def _put_losses(losses: list[tuple[str, bytes, bytes]], metrics: Metrics) -> None:
    """Add what is called a loss alone, or its mean, or the only one of a line; others, as ``Box loss``, as parts."""
    parts = {name for name, *_ in losses if name.endswith(" loss") and not named(name)}
    if len(parts) == 1 == len({name for name, *_ in losses}):
        parts = set()
    for name, text, second in sorted(losses, key=lambda each: each[0] != "loss"):
        if name in parts:
            _put(metrics, name.rsplit(" ", 2)[-2] + "_loss", text)
        elif _put(metrics, "loss", text) and second:
            _put(metrics, TOTALS["loss"], second)


def _name_and_number(found: Any) -> tuple[str, bytes | None, bytes]:
    """Return name, sign and number of a field, of which ``is`` is a sign and ``nan`` a number: ``loss nan (0.5)``."""
    name, sign, text = found.group(1).decode("ascii"), found.group(3), found.group(4)
    if name.endswith((" is", " to", " is now")):
        return CHANGED.sub("", name.removesuffix(" now")[:-3]), b"is", text
    return (name[:-4], b" ", name[-3:].encode()) if name.lower().endswith((" nan", " inf")) else (name, sign, text)


def _replace_step(step: Number | None, metrics: Metrics) -> None:
    """Remove the step so far; its total stays if it counts the same."""
    if metrics.pop("step", step) != step:
        metrics.pop("total_steps", None)


def _no_unit_of(known: str, unit: str, text: bytes, second: bytes) -> bool:
    """Return whether a number cannot be that quantity: a percentage of steps, bytes or megabytes without a unit."""
    if unit == "%":
        return known in COUNTS or known.startswith("memory_")
    if known == "accuracy" and (second or text == b"0"):
        return True  # a count of a whole, or of the accumulation
    if (known in ("loss", "gradient_norm") or known in COUNTERS) and unit in TIMES:
        return True  # ``cost: 12 s``, ``time for 100 iters: 12 s``
    return not unit and known.startswith("memory_") and abs(number_of(text) or 0) >= UNSTATED


def _with_unit(name: str, stated: bytes | None) -> tuple[str, str]:
    """Return our name for one in a log, and the unit: as stated, or as the name ends: ``elapsed_ms``, ``time in s``."""
    unit = (stated or b"").decode("ascii", "replace")
    if "." in name and not ours(name.rpartition(".")[2]):
        return "", unit  # a file: ``loss_scaler.py:188``
    if known := ours(name):
        return _of_rate(known, unit) if known in RATED else known, unit
    if name.startswith("ms/"):
        return ours(name[1:]), "ms"
    if unit and name.startswith("time/"):
        return ours(name.replace("/", " per ")), unit
    for end, of_name in ((" in s", "s"), ("_ms", "ms"), ("_in_s", "s"), ("_s", "s")):
        known = ours(name.removesuffix(end)) if name.endswith(end) else ""
        if (known := "step_time" if known == "step" else known) in SECONDS:
            return known, unit or of_name
    return "", unit


def _of_rate(known: str, unit: str) -> str:
    """Return our name for a throughput in a ``unit``: of samples, tokens or operations, of all devices or of each; that
    of its time for a speed in seconds a step."""
    rate = named(unit[2 * (unit[1:2] == " ") :].lower()) if unit and known in RATED else ""
    return rate if rate.endswith(("_second", "_device", "_time")) else known


def _order(name: str) -> int:
    """Return which of several counters of steps is the program's: the lower, the rather."""
    last = name.lower()
    return 1 if "global" in last or "updates" in last else 2 if "step" in last else 3 if "iteration" in last else 4


def _divisor(name: str, unit: str) -> float:
    """Return what a number is divided by to be in the unit of ``name``."""
    if name in SECONDS:
        return UNITS.get(unit, 1.0)
    if name.startswith("memory_"):
        return 1 / BYTES.get(unit[:1].upper(), 1.0)
    if name in COUNTS or name == "throughput" or name.startswith("tokens_"):
        return 1 / THOUSANDS.get(unit[:1] if unit[1:2] in ("", " ") else "", 1.0)
    return 1.0


def _rates(line: bytes, metrics: Metrics) -> None:
    spaced = line.replace(b" ", b"  ")  # one ends a rate, one begins the next
    for text, thousands, name, device, unit in RATE.findall(spaced):
        known = RATES.get(name[:2], "throughput") + ("_per_device" if device else "")
        if name and not (known == "throughput" and b"%|" in line):  # a bar over samples is one of the preparation
            _put(metrics, known, text, 1 / THOUSANDS.get(thousands.decode(), 1.0))
        elif not name and b"%|" not in line:
            _put(metrics, "step_time", text, UNITS.get(unit.decode(), 1.0))


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
    title = line[max(0, found.start() - 64) : found.start()].rpartition(b"\r")[2].strip(b"[]0123456789 |:").lower()
    metrics["percent"] = int(percent)
    if rate and rate != b"?" and (value := number_of(rate)):
        metrics["steps_per_second"] = float(value) if unit == b"it/s" else 1.0 / value
    if not title or (named_so := TITLE.search(title)):
        epochs, within = named_so.groups() if title else (None, None)
        within = within or COUNTED.search(line[: found.start()])
        name = "epoch" if epochs else "batch" if within else "step"
        if not done_unit and not total_unit:
            _put(metrics, name, done)
            _put(metrics, TOTALS[name], total)


def _settle(metrics: Metrics, low: bytes) -> None:
    """Name a time by the rest of its line; any line may have one. That of the loader is beside that of the model."""
    if b"iter_time" in low and b"forward_time" in low:
        metrics.pop("step_time", None)
    time = metrics.pop("time", None)
    if time is None or time > LONGEST_TIME:
        return
    if "step" in metrics or "batch" in metrics:
        metrics.setdefault("step_time", time)
    elif "epoch" in metrics:
        metrics.setdefault("epoch_time" if type(metrics["epoch"]) is int else "step_time", time)
