"""Our names for the numbers that training programs log, whatever spelling a program has for them.

A name in a log is brought to lower case with spaces between its words, and its units to one spelling; then it is looked
up in :data:`NAMES`, with the scopes and qualifiers before it taken off.
"""

from __future__ import annotations

import re
from functools import lru_cache

LONGEST = 128
"""Characters of a name, since each of its words is the begin of another that is looked up."""
WORDS = {
    "loss": "loss, lm loss, tot loss, tot, loss net, loss step, step loss, cross entropy loss, ce loss, "
    "loss train total, cost, learn, cross entropy, language cross entropy, xent, logloss, binary logloss, "
    "multi logloss, mlogloss",
    "objective": "objf, objective function",
    "learning_rate": "learning rate, last lr, learn rate, lrate",
    "accuracy": "accuracy, acc",
    "perplexity": "ppl, perplexity, lm loss ppl",
    "gradient_norm": "grad norm, gn, grad l2 norm, gradient norm, gnorm, g norm, grdn, gradnorm, norm, "
    "gradients norm, norm grad, grad",
    "parameter_norm": "params norm, weight norm, param norm",
    "loss_scale": "loss scale, grad scale, scale",
    "step": "step, steps, iteration, iterations, iter, iters, global step, global steps, global iter, "
    "global iteration, training iteration, iter num, num updates, train num updates, updates, n updates, nupdates, "
    "itn, total train updates, training step, env step, "
    "current steps, current step, train step, step i, it, cur iter, cur step, current iter, current iteration",
    "total_steps": "total steps, max steps, total optimization steps",
    "epoch": "epoch, epch",
    "batch": "batch, minibatch, mini batch, trainbatch, batch id, batch idx",
    "time": "time, timer, seconds, dt, time cost, cost time, time taken",
    "step_time": "step time, iter dt, per step time, time this iter, iter time, iteration time, step avg, "
    "train step timing, elapsed step time, batch time, batch cost",
    "epoch_time": "epoch time",
    "validation_time": "val time, validation time, eval time",
    "throughput": "throughput, samples/s, ips, throughput/samples/s",
    "tokens_per_second": "tps, wps, tokens/s, throughput/tokens/s",
    "tokens_per_second_per_device": "tgs, tokens/s/device, tokens/device/s, throughput/device/tokens/s",
    "steps_per_second": "steps/s, train speed",
    "tflops_per_device": "tflops, tflop/s, tflop/s/device, tflops/device, throughput/device, model tflops/device",
    "memory_used_gb": "mem, mem usage, mem used, mem allocated, allocated mem, gb used",
    "memory_peak_gb": "peak mem, peak mem usage, max mem, max mem allocated, peak mem allocated, mem peak",
    "throughput_mean": "running avg samples/s",
    "skipped_steps": "skipped, number of skipped iterations",
    "nan_steps": "number of nan iterations",
    "consumed_samples": "consumed samples",
    "consumed_tokens": "consumed tokens, num consumed tokens",
    "global_batch_size": "global batch size",
    "gradient_zeros": "num zeros",
    "local_loss": "local loss",
    "device_local_norm": "device local norm",
    "throughput_linearity": "throughput linearity",
    "mfu": "mfu",
    "train_seconds": "train runtime",
    "exit_code": "exitcode",
    "local_rank": "local rank",
    "training_cost": "training cost",
}
"""Our names, and those in logs: lower case, with spaces between words and the units of :data:`SPELLINGS`."""
NAMES = {name: ours for ours, names in WORDS.items() for name in names.split(", ")}
SPELLINGS = tuple(
    (re.compile(spelling), unit)
    for spelling, unit in (
        (r"(?: per | ?/ ?)s(?:ec(?:ond)?)?\b", "/s"),
        (r"(?: per |/)(?:[gn]pu|device)\b", "/device"),
        (r"\b(?:ex|examples?|images?|imgs?|seqs?|sequences?|records?|rays?|sample)/s", "samples/s"),
        (r"\b(?:words?|tks?|tok(?:en)?s?)(/device)?/s", r"tokens\1/s"),
        (r"\b(?:it|iters?|step|(?:train |interval |global )step)/s", "steps/s"),
        (r"\b(?:time per |(?:s|secs?|seconds)(?: per |/))(?:it|iter|iteration|step|batch)\b", "step time"),
        (r"\b(?:(?:gpu|npu|cuda) ?)?mem(?:ory)?\b", "mem"),
        (r"^(grad norm) 0$|^[bft][fp]\d{1,2} (mfu)$", r"\1\2"),
        (
            r"^(?:(?:optim|pg|group)0[ /])?lr(?:[ /]?(?:(?:param )?group|pg)?[ /]?0| (?:adam|sgd|muon|lion)\b.{0,8})?$",
            "learning rate",
        ),
    )
)
"""Spellings of units and of the rate of the first group of parameters, and the one in :data:`WORDS`."""
HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""Boundary of words within ``SamplesPerSec``."""
COUNTERS = frozenset({"step", "epoch", "batch"})
"""Numbers that count; one may follow its name within a sentence: ``at step 150 the``."""
ALONE = frozenset({"scale", "norm", "cost", "tot"})
"""Names that other words before them make another quantity: ``logit scale``."""
SIGNED = frozenset({"it", "grad", "learn"})
"""Names that are words: a sign must follow them."""
PARTS = frozenset(
    {"critic", "actor", "policy", "value", "entropy", "surrogate", "kl", "aux", "auxiliary", "balance", "router", "reg"}
    | {"disc", "discriminator", "gen", "generator", "dur", "box", "cls", "obj", "mask", "contrastive", "reward"}
    | {"d", "g"}
)
"""Words before a loss that make it a part of it, or another model's: ``critic loss``."""
OF_TRAINING = frozenset({"train", "training", "tr", "trn"})
QUALIFIERS = OF_TRAINING | {
    "interval", "avg", "avr", "ave", "average", "mean", "running", "smoothed", "cur", "curr", "current", "global",
    "total", "reduced", "batch", "epoch",
}  # fmt: skip
"""Words beside a name that leave it the same quantity, but for counters and times: ``avg loss``, ``train lr``."""
TIMED = QUALIFIERS - OF_TRAINING - {"total", "running"} | {""}
"""Words before a time that leave it that of a step: not a ``total time``, nor a ``load time``."""
SCOPES = OF_TRAINING | {
    "trainer", "main", "actor", "policy", "model", "optim", "optimizer", "perf", "timing", "global", "system",
    "counters", "losses", "memory",
}  # fmt: skip
"""Parts of a program, as in ``train/loss``, whose numbers are those of the training."""
OF_SCOPES = frozenset({"learning_rate", "gradient_norm"})
"""Numbers of a part that are the training's, even without a sign between: ``actor lr``."""
HELD_OUT = {
    **dict.fromkeys(("val", "vali", "valid", "validate", "validation", "dev", "cv"), "validation_loss"),
    **dict.fromkeys(("eval", "evaluation"), "eval_loss"),
    "test": "test_loss",
}
OTHERWISE = frozenset(
    {"inner", "micro", "best", "min", "minimum", "max", "maximum", "last", "previous", "initial", "base", "data", "of"}
    | {"remaining", "elapsed", "every", "per", "job", "target", "no", "eta", "warmup", "save", "resume", "checkpoint"}
    | {"accumulation", "logging", "prompt", "generation", "fps"}
)
"""Words before a name that make it another quantity: ``inner iter``, ``best loss``, ``elapsed time``."""

DONE = frozenset({"at", "saved"})
"""Words behind one of :data:`OTHERWISE` that end its sentence: ``checkpoint saved at epoch 3``."""
ONE = frozenset({"epoch", "step", "iteration"})
"""Words of which one is counted: ``End of epoch 3``, if no word of :data:`AMOUNTS` stands before them."""
AMOUNTS = frozenset({"number", "num", "size", "count"})


@lru_cache(2048)
def ours(name: str) -> str:
    """Return our name for one in a log; of several words the longest known end counts. Empty if there is none."""
    words = HUMP.sub("_", name).lower().replace(".", "/").split(" ")
    held_out = ""
    if len(name) > LONGEST:
        return ""
    for start, word in enumerate(words):
        one = (word in ONE or word in HELD_OUT) and words[start - 1] == "of" and AMOUNTS.isdisjoint(words[:start])
        if start and ((words[start - 1] in OTHERWISE and word not in DONE) or word in ALONE) and not one:
            return ""
        plain = " ".join(words[start:]).replace("_", " ").replace("-", " ")
        if known := named(plain) or _of_scope(*plain.rpartition("/")[::2]):
            before = words[start - 1] if start else ""
            if (known == "time" and before not in TIMED) or (known in COUNTERS and before == "episode"):
                return ""
            if known == "loss" and before in PARTS:
                return f"{before}_loss"
            counted = known in COUNTERS and plain[-1] != "s"
            return known if counted or held_out in ("", known) else held_out if known == "loss" else ""
        held_out = HELD_OUT.get(word.rstrip("_0123456789"), held_out)
    last = words[-1]
    return last if last.endswith("loss") or last.startswith(("loss/", "loss_")) else ""


def named(name: str) -> str:
    """Return our name for one in lower case, with any units and qualifiers; empty if there is none.

    A ``train steps`` and a ``total time`` are other quantities than steps and times, and so are those of held-out data.
    """
    for spelling, unit in SPELLINGS:
        name = spelling.sub(unit, name)
    if known := NAMES.get(name):
        return known
    first, _, rest = name.partition(" ")
    if not rest:
        return ""
    if name.endswith((" avg", " mean", " total")):
        return named(name.rpartition(" ")[0])
    if first == "loss":  # the other way round
        return "loss" if rest in QUALIFIERS else HELD_OUT.get(rest, "")
    qualified = first in QUALIFIERS
    known = named(rest) if qualified or first in HELD_OUT or first in SCOPES else ""
    if first in HELD_OUT:
        return HELD_OUT[first] if known in ("loss", HELD_OUT[first]) else ""
    changed = known in COUNTERS or known == "time" or not (qualified or known in OF_SCOPES)
    return "" if changed else known


def _of_scope(scope: str, name: str) -> str:
    """Return our name for the ``name`` of a part of the program, as ``loss`` of ``train/loss``."""
    first = scope.removeprefix("metrics/").partition("/")[0]
    if first.startswith("timing"):
        return "step_time" if name == "step" else named(name)
    if first in HELD_OUT:
        return HELD_OUT[first] if ours(name) == "loss" else ""
    known = named(name) if first in SCOPES else ""
    return known or (named(f"{scope} {name}".replace("/", " ")) if scope else "")
