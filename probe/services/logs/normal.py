"""Normal form of a line: without colours, with every spelling of a number as Python writes it.

What a terminal, a launcher or a formatter puts around fields is taken off here, once, so that the expressions of the
other modules need not know it.
"""

from __future__ import annotations

from typing import Any

from probe.services.logs.expressions import Expression

NUMBER = (
    rb"[-+]?(?:\d{1,3}(?:,\d{3}){1,5}(?:\.\d{1,32})?|\d{1,32}(?:\.\d{0,32})?|\.\d{1,32})(?:[eE][-+]?\d{1,4})?|"
    rb"[-+]?(?i:nan|inf(?:inity)?)"
)
"""Number, with thousands separators or without; not a number and infinities included."""

ESCAPE = Expression(
    rb"(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|#033|\^\[)(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\))"
    rb"|\x1b[()*+][0-9A-B]|\x1b[=>78cMDEHNOZ]"
)
"""Escape sequence of a terminal: ``ESC[31m``, also where the byte ESC is written as ``\\u001b`` or ``#033``."""
REMAINS = Expression(rb"\[(?:[0-9]|[1349][0-9]|10[0-7]|(?:\d{1,3};){1,8}\d{1,3})m")
"""Colour whose byte ESC was lost in a copy: ``[31m``; looked for only beside a ``[0m``."""
BOXED = Expression(
    rb"\b(?:np\.|numpy\.|jnp\.|torch\.|ms\.)?(?:b?float\d{1,3}|u?int\d{1,3}|[Tt]ensor|Array|DeviceArray|array|"
    rb"Parameter)\((?:shape=\[[\d, ]{0,16}\], dtype=[\w.]{1,24}, value=)?\s{0,4}\[{0,2}\s{0,4}("
    + NUMBER
    + rb")\s{0,4}\]{0,2}"
    rb"(?:,[^()]{0,200}(?:\([^()]{0,40}\))?[^()]{0,40})?\)"
)
"""Scalar in the notation of an array library: ``np.float64(0.3)``, ``tensor(2.3, device='cuda:0')``."""
NOT_A_NUMBER = Expression(rb"(?i)\b(?:1\.#(?:[qs]nan|ind|nan)0{0,8}|[qs]?nan(?:\(\w{0,40}\)|q\b|\.0\b))")
INFINITY = Expression(rb"(?i)(?:\b1\.#inf(?:inity)?0{0,8}|\xe2\x88\x9e)")
"""Spellings of the runtimes of C and C++: ``1.#QNAN``, ``-nan(ind)``, ``nan(0x8000)``, ``1.#INF``; tqdm's ``nan.0``;
and the sign."""
CHANGED = Expression(
    rb"\bfrom " + NUMBER.join((rb"(?:", rb")")) + rb" {0,2}(?:to|-{1,2}>|=>|\xe2\x86\x92) {0,2}(" + NUMBER + rb")"
)
"""Old and new value: ``lr from 1e-4 to 5e-5``."""
ABOUT = Expression(
    rb"\b([lL]oss|[aA]ccuracy|objective function)"
    rb"( (?:for |at |over |after |during |of (?:\d{1,6} )?(?:epoch|step|iter|batch))[^.:;=|,]{1,80}?)"
    rb"(?: is| -|:| =) {0,4}(" + NUMBER + rb")(?:$|[^\w.:/-]|[.](?:$|\s))"
)
"""Sentence about a number: ``objective function for minibatches 40-49 is -3.5``, ``loss at step 100: 1.5``."""
OF_EPOCH = Expression(
    rb"(?i)\b(?:time (?:\w{4,9} )?(?:for|of) (?:1 |one |the )?(epoch)( \d{1,6})?(?: is| =)?|(epoch|step|"
    rb"iteration)( \d{1,9}(?: ?(?:/|of) ?\d{1,9})?)? took):? "
)
"""Sentence about the time of an epoch: ``Time taken for 1 epoch: 630 s``, ``epoch 3 took 630 s``."""
SHARED = Expression(rb"\b(loss(?:es)?) {0,2}[:=] {0,4}(train(?:ing)?|tr)\b[ :=]{1,3}")
"""Name before those of its values: ``loss: train 1.5, val 1.7``."""
NUMBERED = Expression(rb"\b(?i:(loss)) (\d{1,9}):? {1,4}(-?\d{0,6}\.\d{1,12}|nan|inf)\b")
"""Name, step and value: ``Validation loss 61000: 0.325``."""
GLUED = Expression(
    rb"(?i)(^|[ (\[>,|])(ep(?:och)?|(?:global_?)?step|iter(?:ation)?)(?: - |[-_])?(\d{1,9})"
    rb"(?:[-_](batch|step|iter)[-_]?(\d{1,9}))?($|[ ,;:|()\]/])"
)
"""Counts at their names: ``start train epoch1``, ``epoch3-batch-50:``, ``ep70 |``."""
CALLED = Expression(rb"(?i)\b(epoch|batch|step|iter(?:ation)?)\((\d{1,9}(?:/\d{1,9})?)\)")
"""Counts in parentheses at their names: ``Batch(10/100)``."""
LOST = Expression(rb"\b([A-Za-z_]{0,24}(?:[lL]oss|[nN]orm)[A-Za-z_]{0,24}) (-?(?:nan|inf)) ")
"""Number that could be a word of the next name: ``loss inf loss_ctc 2.5``."""
FOLLOWED = Expression(rb"[A-Za-z][\w/]{0,32}[ :=]{1,3}(?:[-.\d]|nan|inf)")
"""Field behind it."""
DASHED = Expression(rb"(^|[ ,;|])([A-Za-z][A-Za-z_]{1,16})-(\d{1,9}(?:\.\d{1,12})?)\b")
"""Names and numbers with a dash between: ``step-50 loss-0.23``."""
LETTERS = Expression(rb"(^|[ \[|])E(\d{1,6}/\d{1,6})[ |,\]\[]{1,4}B(\d{1,9}/\d{1,9})")
"""Counts of wholes behind a letter: ``E003/100 B0050/1000``."""
ALTERNATE = Expression(rb"(^|^[A-Z]{4,8}:[\w.]{1,32}:|,) {0,2}([A-Za-z][\w/ ]{0,32}), {0,2}(" + NUMBER + rb")")
"""Name and number between commas: ``step,50,loss,0.23``."""
JOINED = Expression(rb"(?i)\b(epoch)/(iter(?:ation)?|step|batch)([:= ]{1,3})(\d{1,6})/(\d{1,9})\b")
"""Counts joined as their names are: ``epoch/iter: 3/1200``."""
OF_WHOLE = Expression(rb"\b(\d{1,6}(?:\.\d{1,6})?)([kKM])/(\d{1,6}(?:\.\d{1,6})?)([kKM])\b")
"""Count of a whole in thousands: ``1.2k/10k``."""
DURATION = Expression(
    rb"(?i)\b((?:(?:epoch|step|iter|iteration)[ _]time|took)[:=]? {1,2})"
    rb"(?:(\d{1,3})h:? ?)?(\d{1,4})m:? ?(\d{1,2}(?:\.\d{1,9})?)s\b"
)
"""Time in hours, minutes and seconds: ``Epoch Time: 1m 23s``."""
NAMED = Expression(
    rb"(\d)[ \t]([A-Za-z]{1,10}(?:/| per )[A-Za-z]{1,10}(?:/[A-Za-z]{1,6})?|wps|it|s|min)"
    rb"(=|: {0,4}[-\d.]| [\d.,]{1,16}(?:$|[,;|]| [a-z_]{2,16}[ :=]))"
)
"""Unit that is the name of the next field: ``lr=1e-4 tok/s=120``."""
SPACED = Expression(rb"(?i)\b(tokens?|samples|examples|images|words|steps|iters?|it) / (s(?:ec(?:ond)?)?)\b")
"""Unit of a rate that is written with blanks: ``Tokens / Sec``."""
PADDED = Expression(rb" {2,64}= {1,32}")
"""Equals sign that stands in a column: ``train_loss          =     0.72``."""
SHORT = (
    *((each, b"epoch ") for each in (b"Ep. ", b"Ep: ", b"[Ep]: ", b"Ep ", b"[Pass ")), (b"Up. ", b"updates "),
    (b"L.r. ", b"lr "), (b"al. ", b"al "), (b"'s ", b" "), (b" : Time ", b" : elapsed time "), (b"\xef\xbc\x9a", b": "),
    (b"\xef\xbc\x8c", b", "), (b"' reached ", b"': "),
)  # fmt: skip
"""Abbreviations of counters and rates, ``training's l2``, Marian's time since its last line, and wide signs."""
PRINTED = Expression(rb"^\s{0,8}\[\d{1,6}\] \"(.{1,512})\"\s{0,8}$")
"""Text as R prints it: ``[1] "[7]: train loss 0.01"``."""
FRACTION = Expression(rb"\b([eE])pochs([:=] ?\d{1,6}\.\d| \d{1,6}/\d)")
"""Epochs so far: ``epochs:4.23``, ``Epochs 1/3``; those to be trained are whole."""
RUN_ON = Expression(rb"(\d\.\d{1,8})([A-Z][a-z]{3})")
"""End of a bar's state that the next message follows at once: ``loss: 44.4110Batch 3``."""
TURNED = Expression(rb"^\s{0,16}(?:(\d{1,9}):?\s{1,8})?(" + NUMBER + rb")(?: ([A-Za-z][A-Za-z_ ]{0,24}))?$")
"""Part of a row of numbers before their names, the first after the step: ``10  41.2 ms run,  2.31 loss``."""
OF_ROWS = {b"avg": b"loss", b"rate": b"learning rate"}
"""Names that mean that in such a row alone."""
PIPED = b"elapsed time per iteration"
"""Words of a line of Megatron-LM, all of whose fields are ``name: number``."""
THOUSANDS = {b"k": 1e3, b"m": 1e6}
FEWEST = 3
"""Smallest number of such parts in a row."""


def without_escapes(text: bytes) -> bytes:
    """Return a line, or a block of lines, without the escape sequences of a terminal; ``#015`` is a carriage return."""
    reset = b"[0m" in text  # every colour that is written out or has lost its ESC is reset so
    if reset or b"\x1b" in text:
        text = ESCAPE.replace(text, b"")
    if reset:
        text = REMAINS.replace(text, b"")
    return text.replace(b"#015", b"\r") if b"#" in text and b"#015" in text else text


def with_plain_numbers(line: bytes) -> bytes:
    """Return a line in which each number is written as Python reads it; of one without oddities itself."""
    if b"r(" in line or b"y(" in line or b"64(" in line or b"32(" in line or b"16(" in line:
        line = BOXED.replace(line, rb"\1")
    if b"#" in line or b"an(" in line or b"AN(" in line or b"aN(" in line or b"nanq" in line or b"nan." in line:
        line = NOT_A_NUMBER.replace(line, b"nan")
    if b"#" in line or b"\xe2\x88\x9e" in line:
        line = INFINITY.replace(line, b"inf")
    return line if PIPED in line else _ordered(_separated(line))


def _separated(line: bytes) -> bytes:
    """Return a line without the quotes of a printed text, with a blank where a name, a number and a message run into
    each other."""
    if b'] "' in line:
        line = PRINTED.replace(line, rb"\1")
    rated = b"/s" in line or b"s/" in line or b"c/" in line or b" per " in line
    if rated or b"it=" in line or b"it:" in line or b" s=" in line:
        line = NAMED.replace(line, rb"\1, \2\3")
    if b" / " in line:
        line = SPACED.replace(line, rb"\1/\2")
    line = _counted_apart(line)
    if b"/" in line and b"%|" not in line:
        line = _of_wholes(line)
    if b"m" in line and (b"ime" in line or b"took" in line):
        line = DURATION.replace(line, _seconds)
    if b"pochs" in line:
        line = FRACTION.replace(line, rb"\1poch\2")
    if b" - " in line and b"loss: " in line:
        line = RUN_ON.replace(line, rb"\1 \2")
    return line


def _counted_apart(line: bytes) -> bytes:
    """Return a line with a blank between the names and the numbers of counts and losses that are written as one."""
    lost = b"loss" in line
    if b" nan " in line or b" inf " in line:
        line = LOST.replace(line, _apart)
    if b"poch" in line or b"POCH" in line or (b"ep" in line and (lost or b"|" in line)) or (lost and b"iter" in line):
        line = GLUED.replace(line, _counted)
    if b" G loss" in line:  # no gigabytes
        line = line.replace(b" G loss", b", G loss")
    if b"ch(" in line or b"step(" in line or b"Step(" in line or b"iter(" in line:
        line = CALLED.replace(line, rb"\1 \2")
    return DASHED.replace(line, rb"\1\2 \3") if b" loss-" in line else line


def _counted(found: Any) -> bytes:
    before, name, *rest = (part or b"" for part in found.groups())
    return before + b" ".join([b"epoch" if name.lower() == b"ep" else name, *rest[:-1]]) + rest[-1]


def _apart(found: Any) -> bytes:
    name, number = found.groups()
    return b"%b: %b, " % (name, number) if FOLLOWED.match(found.string[found.end() :]) else found.group()


def _of_wholes(line: bytes) -> bytes:
    """Return a line with counts of wholes as numbers, behind the words that letters stand for."""
    if b"E" in line and b"B" in line:
        line = LETTERS.replace(line, rb"\1epoch \2 batch \3")
    if b"poch/" in line:
        line = JOINED.replace(line, rb"\1\3\4, \2\3\5")
    return OF_WHOLE.replace(line, _thousands) if b"k/" in line or b"M/" in line or b"K/" in line else line


def _thousands(found: Any) -> bytes:
    done, sign, total, of = found.groups()
    return b"%d/%d" % (float(done) * THOUSANDS[sign.lower()], float(total) * THOUSANDS[of.lower()])


def _seconds(found: Any) -> bytes:
    name, hours, minutes, seconds = found.groups()
    return b"%b%g s" % (name, 3600 * int(hours or 0) + 60 * int(minutes) + float(seconds))


def _ordered(line: bytes) -> bytes:
    """Return a line in which each name stands before its number, with a sign between them, and is written out."""
    if b"  = " in line:
        line = PADDED.replace(line, b" = ")
    if b"of group 0 to" in line:
        line = line.replace(b" of group 0 to", b" to")
    if b"from " in line:
        line = CHANGED.replace(line, rb"to \1")
    line = _about(line)
    if b"," in line:
        line = _of_row(line)
    rare = (
        b"\xef" in line
        or (b"'" in line and (b"'s " in line or b"' reached " in line))
        or (b"[" in line and b"[Pa" in line)
    )
    if rare or b"Ep" in line or b"Up. " in line or b"l. " in line:  # a single byte is found faster than several
        for short, whole in SHORT:
            line = line.replace(short, whole)
    return line


def _about(line: bytes) -> bytes:
    """Return a line in which the number of a sentence stands behind its name."""
    if b"loss " in line or b"objective f" in line or b"accuracy " in line or b"Loss " in line:
        line = ABOUT.replace(line, rb"\1: \3\2")
    if (b"poch" in line and b"ime " in line) or b" took" in line:
        line = OF_EPOCH.replace(line, rb"\1\3\2\4 time: ")
    if b"loss" in line and b"train" in line:
        line = SHARED.replace(line, rb"\2 \1: ")
    if b"loss " in line and b" | " not in line:
        line = NUMBERED.replace(line, rb"\1: \3  step: \2 ")
    return line


def _of_row(line: bytes) -> bytes:
    """Return a line of names and numbers between commas with each name before its number."""
    if (b"step," in line or b"epoch," in line or b"iter," in line) and ALTERNATE.match(line):
        return ALTERNATE.replace(line, rb"\1\2: \3")
    rows = b" loss," in line or b" rate," in line or b" iter," in line
    return _turned(parts, line) if rows and len(parts := line.split(b",", 64)) >= FEWEST else line


def _turned(parts: list[bytes], line: bytes) -> bytes:
    """Return a ``line`` of the ``parts`` between commas with each name before its number, if all are the other way."""
    found = [TURNED.match(part.rstrip()) for part in parts]
    turned = [
        b"%b: %b" % (OF_ROWS.get(each.group(3), each.group(3)), each.group(2))
        for each in found
        if each and each.group(3)
    ]
    if len(turned) < FEWEST:
        return line
    first = found[0] and found[0].group(1)
    return b", ".join(([b"step: " + first] if first else []) + turned)
