"""Kinds of anomalies, and the phrases of real messages by which each is known.

A line is compared with the phrases of a kind only if it has one of its needles, literals in lower case; a whole block of
lines is searched for the needles at once. Words count as words: ``BLOOM`` is no OOM, ``exchange`` does not hang,
``nanoseconds`` are no NaN.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

from probe.services.logs.expressions import Expression, any_of
from probe.services.logs.metrics import Metrics
from probe.services.logs.texts import ECC_XIDS, XIDS, explanation, meaning_of_xid

SEVERITIES = ("critical", "high", "medium")
"""The gravest first."""


class Sign(NamedTuple):
    """Phrases by which one kind of anomaly is known."""

    kind: str
    severity: str
    component: str
    needles: tuple[bytes, ...]
    phrases: Expression
    cased: bool = False
    """True if the phrases are compared with the line as it is, not in lower case."""
    group: str = ""
    """Signs of one group are about one event: the first that fits counts."""
    needs: Expression | None = None
    """Expression that the line in lower case must have as well."""


def _e(pattern: bytes) -> Expression:
    return Expression(pattern)


SIGNS: tuple[Sign, ...] = (
    Sign(
        "container_oom", "critical", "kernel",
        (b"cgroup out of memory", b"constraint_memcg", b"oomkilled", b"oom killed", b"oom_kill event", b"oom-kill event"),
        _e(rb"cgroup out of memory: kill|constraint_memcg|\boomkilled\b|\boom killed\b|\boom[_-]kill event"),
        group="oom",
    ),
    Sign(
        "host_oom", "critical", "kernel",
        (b"killed process", b"oom-killer", b"oom_reaper", b"constraint_none", b"defaultcpuallocator",
         b"cannot allocate memory", b"memoryerror", b"bad_alloc", b"unable to allocate", b"by signal: killed",
         b"insufficient shared memory", b"el0004"),
        _e(rb"out of memory: killed process|invoked oom-killer|oom_reaper: reaped|constraint=constraint_none|"
           rb"defaultcpuallocator: (?:can't allocate|not enough) memory|cannot allocate memory|\bmemoryerror\b|"
           rb"std::bad_alloc|unable to allocate [\d.]{1,16} ?[kmgt]?i?b|is killed by signal: killed|"
           rb"insufficient shared memory"),
        group="oom",
    ),
    Sign(
        "oom_error", "critical", "gpu", (b"oom", b"out of memory", b"outofmemory", b"out_of_memory", b"memory not enough",
                                         b"alloc_failed", b"el0004"),
        _e(rb"\bout of memory\b|(?i:outofmemoryerror)|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|"
           rb"(?i:\bmemory not enough\b)|\bOut of [Mm]emory\b|\bOUT OF MEMORY\b|\bEL0004:|(?:^|[^\w-])OOM(?:$|[^\w-])"),
        cased=True, group="oom",
    ),
    Sign(
        "loss_scale_exhausted", "critical", "training", (b"scale already at minimum", b"minimum loss scale reached"),
        _e(rb"loss scale already at minimum|minimum loss scale reached"),
    ),
    Sign(
        "nan_loss", "critical", "training", (b"nan", b"inf", b"finite"),
        _e(rb"(?:^|[^\w-])-?(?:nan|inf|infinity|naninf)(?:$|[^\w.=-])|non-?finite"),
        group="nan", needs=_e(rb"(?:^|[^a-z])(?:\w{0,32}_)?loss(?:es)?(?:$|[^\w])"),
    ),
    Sign(
        "nan_gradient", "medium", "training", (b"nan", b"inf", b"finite"),
        _e(rb"(?:^|[^\w-])-?(?:nan|inf|infinity)(?:$|[^\w.=-])|non-?finite"),
        group="nan", needs=_e(rb"\bgrad(?:s|ients?)?\b|\b(?:grad|gradient|global)[ _]norm\b"),
    ),
    Sign(
        "nan_value", "high", "training", (b"nan",),
        _e(rb"returned nan values|\bnans? (?:or infs? )?(?:detected|found|encountered)\b|"
           rb"\b(?:detected|found|encountered|contains?) (?:an? )?nans?\b"),
        group="nan",
    ),
    Sign(
        "gradient_explosion", "high", "training", (b"explod", b"explos"),
        _e(rb"\bgradients?\b[^|]{0,80}\bexplo(?:d|s)|\bexplo(?:d|s)\w{0,4}[^|]{0,80}\bgradients?\b"),
    ),
    Sign(
        "loss_explosion", "high", "training", (b"explod", b"diverg", b"loss spike"),
        _e(rb"\bloss\b[^|]{0,40}\b(?:explod|diverg)|\bdiverging loss\b|\bloss spike (?:detected|found|at)\b"),
    ),
    Sign(
        "communication_timeout", "critical", "communication",
        (b"collective operation timeout", b"heartbeat monitor timed out", b"timed out", b"times out", b"timeouterror",
         b"socket timeout", b"timeout occurred", b"monitoredbarrier", b"ei0002", b"ei0006", b"no heartbeat"),
        _e(rb"watchdog caught collective operation timeout|heartbeat monitor timed out|"
           rb"\b[nh]ccl[^|]{0,120}(?:timed out|times out|timeout occurred)|timed out waiting [\d.]{1,12} ?ms for|"
           rb"timed out after \d{1,9} seconds waiting for clients|rank \d{1,7} .{0,40}timed out in monitoredbarrier|"
           rb"timed out in monitoredbarrier|rendezvous(?:timeout|connection)error|\bsocket timeout\b|"
           rb"client socket has timed out|timed out connecting|\bei000[26]:|notify register times out|"
           rb"detected no heartbeat|store.{0,40} timed out"),
        group="communication",
    ),
    Sign(
        "communication_error", "high", "communication",
        (b"nccl warn", b"nccl error", b"ncclsystem", b"ncclunhandled", b"ncclinternal", b"ncclremote", b"ncclinvalid",
         b"nccl watchdog", b"nccl communicator", b"nccl operation", b"hccl", b"hccp", b"gloo", b"connection closed by", b"connection reset by", b"connection refused",
         b"broken pipe", b"distnetworkerror", b"diststoreerror", b"distbackenderror", b"ei0", b"ei9", b"ej0",
         b"no route to host", b"rendezvousclosed"),
        _e(rb"\bnccl warn\b[^|]{0,200}(?:\bfail(?:ed|ure)\b|\berror\b|closed|refused|reset by|unreachable|mismatch|dropped)|"
           rb"\bnccl(?:system|unhandledcuda|internal|remote|invalidusage)error\b|\bnccl error\b|"
           rb"nccl watchdog thread terminated|\bnccl (?:communicator|operations?)\b[^|]{0,120}(?:abort|failed|corrupt)|"
           rb"\bhccl\w{0,40}[^|]{0,80}(?:\bfailed\b|\berror\b)|\bgloo\b[^|]{0,80}\bfailed\b|"
           rb"connection (?:closed|reset|refused) by (?:remote |local )?(?:peer|host)|\bconnection refused\b|"
           rb"\bbroken pipe\b|\bdist(?:network|store|backend)error\b|\be[ij]\d{4}: |no route to host|rendezvousclosederror"),
        group="communication",
    ),
    Sign(
        "deadlock", "high", "unknown", (b"deadlock", b"hang", b"hung", b"stuck", b"blocked for more than"),
        _e(rb"(?:^|[^\w-])(?:deadlock(?:s|ed)?|hangs?|hanging|hung|stuck)(?:$|[^\w=-])|"
           rb"task .{1,64} blocked for more than \d{1,9} seconds"),
    ),
    Sign(
        "gpu_xid", "high", "kernel", (b"nvrm: xid",),
        _e(rb"\bnvrm: xid \(pci:([0-9a-f:.]{4,24})[^)]{0,40}\): (\d{1,4})\b"), group="device",
    ),
    Sign(
        "ecc_error", "critical", "gpu",
        (b"ecc error", b"edac", b"hardware error", b"bit ecc", b"uce error", b"uncorrectable"),
        _e(rb"uncorrectable (?:\w{1,16} )?(?:ecc )?error (?:encountered|detected|occurred)|(?:double|multi|single)[ -]bit ecc|"
           rb"\bedac\b[^|]{0,60}\b\d{1,9} [cu]e\b|\bmce: \[hardware error\]|\[hardware error\]:|\bhbm\b[^|]{0,40}\becc\b|"
           rb"\bhbm uce error|\becc error (?:encountered|detected|occurred)"),
        group="device",
    ),
    Sign(
        "device_error", "critical", "gpu",
        (b"cuda error", b"device-side assert", b"illegal memory access", b"fallen off the bus", b"launch failure",
         b"misaligned address", b"_status_e", b"_status_i", b"device handle for gpu", b"aicore", b"ai core", b"ez9999",
         b"ee9999", b"eh9999", b"inner error", b": [pid"),
        _e(rb"device-side assert|illegal memory access|unspecified launch failure|misaligned address|fallen off the bus|"
           rb"cuda error: (?:[^o]|o[^u])|cudnn_status_(?:execution_failed|internal_error)|"
           rb"cublas_status_(?:execution_failed|internal_error)|unable to determine the device handle for gpu|"
           rb"\bai ?core (?:error|exception|execute failed)|\be[a-hk-z1-9]\d{4}: (?:inner error|\[pid: ?\d{1,9}\])|"
           rb"\be[zeh]9999: "),
        group="device",
    ),
    Sign(
        "disk_full", "critical", "storage",
        (b"no space left", b"enospc", b"edquot", b"quota exceeded", b"disk full", b"disk is full"),
        _e(rb"no space left on device|\benospc\b|\bedquot\b|disk quota exceeded|\bdisk (?:is )?full\b"),
    ),
    Sign(
        "disk_error", "high", "storage",
        (b"i/o error", b"input/output error", b"read-only file system", b"stale file handle", b"stale nfs", b"-fs error",
         b"xfs_force_shutdown"),
        _e(rb"\bi/o error, dev \w|\bbuffer i/o error\b|input/output error|read-only file system|stale (?:nfs )?file handle|"
           rb"\b(?:ext4|btrfs|xfs)-fs error|xfs_force_shutdown"),
    ),
    Sign(
        "job_cancelled", "medium", "launcher",
        (b"cancelled at", b"due to time limit", b"due to preemption", b"got signal: 15", b"got signal: sigterm",
         b"sigterm death signal", b"received 15 death signal"),
        _e(rb"\bcancelled at\b|due to time limit|due to preemption|got signal: (?:15\b|(?:signals\.)?sigterm)|"
           rb"received (?:15|signals\.sigterm) death signal"),
        group="process",
    ),
    Sign(
        "process_failed", "high", "launcher",
        (b"childfailederror", b"exitcode", b"received by pid", b"segmentation fault", b"core dumped", b"received signal",
         b"died with", b"return code", b"exit code", b"terminated with"),
        _e(rb"\bchildfailederror\b|failed \(exitcode: -?\d{1,9}\)|\bexitcode {0,4}: -?[1-9]\d{0,8}\b|"
           rb"signal \d{1,3} \(sig\w{1,12}\) received by pid|\bsegmentation fault\b|\(core dumped\)|"
           rb"\breceived signal \d{1,3}\b|died with <signals|exits with return code = -?[1-9]|"
           rb"exited with (?:exit )?code -?[1-9]|process \d{1,9} terminated with (?:signal|exit code)"),
        group="process",
    ),
)
"""Kinds in the order in which they are tried."""
NEGATED = Expression(
    rb"(?i)\b(?:no|not|without|never|non|avoid(?:s|ing|ed)?|prevent(?:s|ing|ed)?|to (?:detect|catch|check)|check(?:s|ing)?|"
    rb"protect(?:s|ed|ing)? (?:from|against)|in case of|if)\b[^.;|!]{0,40}$"
)
"""Words before a phrase that deny it: ``to avoid deadlocks``, ``no NaN in the loss``."""
AFTER = Expression(
    rb"(?i)^.{0,2}[ _-]?(?:detection|detector|check(?:s|ing|er)?|protection|prevention|handling|threshold|iterations?|count|"
    rb"guard|filter|steps?:? {0,3}(?:0|false)|: ?(?:0|false|no|none|off)|= ?(?:0|false|no|none|off))\b"
)
"""Words after a phrase that make it a setting or a count."""
FACTS = frozenset({"container_oom", "gpu_xid", "process_failed", "disk_full", "communication_error", "device_error"})
"""Kinds whose phrases are whole messages, which nothing before them denies."""
WORDS = {
    b"nan": rb"\bnan(?:s|inf)?(?:$|[^\w ]|_| (?:$|[^i]|i[^t]))", b"inf": rb"\b(?:inf|infinity)\b", b"finite": rb"\bnon-?finite",
    b"oom": rb"\boom\b", b"hang": rb"\bhang(?:s|ing)?\b", b"hung": rb"\bhung\b", b"stuck": rb"\bstuck\b",
}  # fmt: skip
"""Needles that are parts of ordinary words, and the expressions that blocks are searched for instead. The phrase
``number of nan iterations`` of every line of Megatron-LM has no such NaN."""
NEEDLES: Expression = any_of((needle for sign in SIGNS for needle in sign.needles), WORDS)
"""Expression that finds every line that may have an anomaly."""
_FLAT = tuple((needle, index) for index, sign in enumerate(SIGNS) for needle in sign.needles)


def signs_in(line: bytes, low: bytes, known: frozenset[str] = frozenset()) -> list[tuple[Sign, Any]]:
    """Return the signs that a line has, one a group, each with its match.

    Args:
        line: The line.
        low: The same in lower case.
        known: Groups that are not looked for.
    """
    found: list[tuple[Sign, Any]] = []
    groups = set(known)
    for index in sorted({index for needle, index in _FLAT if needle in low}):
        sign = SIGNS[index]
        if sign.group in groups:
            continue
        text = line if sign.cased else low
        match = sign.phrases.search(text)
        if match is None or (sign.needs is not None and sign.needs.search(low) is None):
            continue
        if sign.kind not in FACTS and _denied(text, match.start(), match.end()):
            continue
        found.append((sign, match))
        if sign.group:
            groups.add(sign.group)
    return found


def _denied(text: bytes, start: int, end: int) -> bool:
    return NEGATED.search(text[max(0, start - 64) : start]) is not None or AFTER.match(text[end - 1 : end + 48]) is not None


def anomalies_of(line: bytes, low: bytes, metrics: Metrics, searched: bool, language: str) -> list[dict[str, Any]]:
    """Return the anomalies of a line: its phrases', and those of its numbers.

    Args:
        line: The line.
        low: The same in lower case.
        metrics: Its numbers.
        searched: False if the line is known to have no needle.
        language: Language of the texts.
    """
    anomalies = {kind: _anomaly(kind, severity, language) for kind, severity in _of_numbers(metrics)}
    counted = b"number of nan iterations" in low
    for sign, match in signs_in(line, low, NAN if counted or anomalies else NOTHING) if searched else ():
        if sign.kind == "gpu_xid":
            anomaly = _xid(match, language)
        else:
            severity = "medium" if sign.kind == "ecc_error" and _corrected(low) else sign.severity
            anomaly = _anomaly(sign.kind, severity, language)
        anomalies.setdefault(anomaly["type"], anomaly)
    return list(anomalies.values())


def component_of(anomalies: list[dict[str, Any]]) -> str:
    """Return the part of the system that the first anomaly is about; empty without one."""
    return next((COMPONENTS[each["type"]] for each in anomalies), "")


NAN, NOTHING = frozenset({"nan"}), frozenset[str]()
COMPONENTS = {sign.kind: sign.component for sign in SIGNS}


def _of_numbers(metrics: Metrics) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if all(map(isfinite, metrics.values())) and "nan_steps" not in metrics:
        return found
    if any(not isfinite(value) for name, value in metrics.items() if "loss" in name and "scale" not in name):
        found.append(("nan_loss", "critical"))
    elif metrics.get("nan_steps", 0) > 0:
        found.append(("nan_loss", "high"))
    if not isfinite(metrics.get("gradient_norm", 0.0)):
        found.append(("nan_gradient", "medium"))
    return found


def _anomaly(kind: str, severity: str, language: str) -> dict[str, Any]:
    texts = explanation(kind, language)
    return {
        "type": kind, "severity": severity, "description": texts.description, "cause": texts.cause, "advice": texts.advice
    }  # fmt: skip


def _xid(match: Any, language: str) -> dict[str, Any]:
    number = int(match.group(2))
    severity = XIDS[number][0] if number in XIDS else "high"
    anomaly = _anomaly("ecc_error" if number in ECC_XIDS else "gpu_xid", severity, language)
    anomaly |= {"xid": number, "pci": match.group(1).decode("ascii")}
    if meaning := meaning_of_xid(number, language):
        anomaly["description"] += f": {meaning}"
    return anomaly


CORRECTED = Expression(rb"\b(?:single[ -]bit|corrected error|\d{1,9} ce\b)")


def _corrected(low: bytes) -> bool:
    return CORRECTED.search(low) is not None
