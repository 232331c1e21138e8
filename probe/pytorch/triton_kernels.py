"""Kernels of Triton for moments: a program reduces one chunk of one tensor, a second kernel merges each tensor's chunks
in a fixed order, so that equal input has equal moments.

Each lane of a program adds at most 64 elements in float32; lanes and chunks are added in float64. A chunk whose squares
float32 cannot hold is read again in float64. Deviations are taken in float64 from the first element of each chunk, and
merged (Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).
Elements in float64 are added in float64, too. Only the columns that are wanted are computed: they are flags at compile
time.
"""

import triton
import triton.language as tl

PARTIAL = tl.constexpr(9)
"""Numbers that a program leaves: all moments, and the number of its elements."""
_MIN, _MAX, _SUM, _SUMSQ = tl.constexpr(1), tl.constexpr(2), tl.constexpr(4), tl.constexpr(8)
_M2, _NANS, _INFS, _BELOW = tl.constexpr(16), tl.constexpr(32), tl.constexpr(64), tl.constexpr(128)
"""Flags of wanted columns, in the order of :data:`probe.core.moments.MOMENTS`."""
_ADDED, _RANGE = tl.constexpr(4 + 8 + 16), tl.constexpr(256)  # the range: extremes for our own use, NaN left out
_HUGE, _TINY = tl.constexpr(1e18), tl.constexpr(1e-13)
"""Magnitudes between which float32 holds 64 squares, the least of which still counts."""


@triton.jit
def reduce(
    table,
    eps_at,
    partial,
    dtype: tl.constexpr,
    wanted: tl.constexpr,
    wide: tl.constexpr,
    aligned: tl.constexpr,
    block: tl.constexpr,
):
    program = tl.program_id(0)
    start = tl.load(table + 2 * program).to(tl.pointer_type(dtype))
    length = tl.load(table + 2 * program + 1).to(tl.int32)
    if aligned:
        start = tl.multiple_of(start, 16)
    low, high, total, squares, spread, nans, infs, below = _chunk(start, length, eps_at, wanted, wide, block)
    _leave(partial + PARTIAL * program, low, high, total, squares, spread, nans, infs, below, length)


@triton.jit(do_not_specialize=["count"])
def reduce_one(
    start,
    count,
    chunk,
    eps_at,
    out,
    wanted: tl.constexpr,
    wide: tl.constexpr,
    alone: tl.constexpr,
    block: tl.constexpr,
):
    program = tl.program_id(0)
    begin = program.to(tl.int64) * chunk
    length = tl.minimum(count - begin, chunk).to(tl.int32)
    low, high, total, squares, spread, nans, infs, below = _chunk(start + begin, length, eps_at, wanted, wide, block)
    if alone:
        _finish(out, low, high, total, squares, spread, nans, infs, below, wanted)
    else:
        _leave(out + PARTIAL * program, low, high, total, squares, spread, nans, infs, below, length)


@triton.jit
def _chunk(start, length, eps_at, wanted: tl.constexpr, wide: tl.constexpr, block: tl.constexpr):
    """Reduce one chunk; return its numbers in float64."""
    if wide:
        low, high, total, squares, spread, nans, infs, below = _lanes(start, length, eps_at, tl.float64, wanted, block)
    elif _ADDED & wanted:
        low, high, total, squares, spread, nans, infs, below = _lanes(
            start, length, eps_at, tl.float32, _RANGE | wanted, block
        )
        largest = tl.maximum(-low, high)
        if (largest > _HUGE) | ((largest > 0) & (largest < _TINY)):
            _, _, total, squares, _, _, _, _ = _lanes(start, length, eps_at, tl.float64, _ADDED & wanted, block)
    else:
        low, high, total, squares, spread, nans, infs, below = _lanes(start, length, eps_at, tl.float32, wanted, block)
    return low, high, total, squares, spread, nans, infs, below


@triton.jit
def _lanes(start, length, eps_at, number: tl.constexpr, wanted: tl.constexpr, block: tl.constexpr):
    """Reduce elements in lanes of ``number``, then the lanes in float64."""
    low = tl.full((block,), float("inf"), number)
    high = tl.full((block,), float("-inf"), number)
    total = tl.zeros((block,), number)
    squares = tl.zeros((block,), number)
    deviations = tl.zeros((block,), number)
    center = _about(start, number, wanted)
    nans = tl.zeros((block,), tl.int32)
    infs = tl.zeros((block,), tl.int32)
    below = tl.zeros((block,), tl.int32)
    limit = _limit(eps_at, number, wanted)
    whole = length // block * block  # without a mask, so that loads are of 16 bytes
    for rest in tl.static_range(2):
        for begin in range(whole if rest else 0, length if rest else whole, block):
            at = begin + tl.arange(0, block)
            inside = at < length
            x = _read(start + at, inside, rest).to(number)
            if (_MIN | _MAX | _RANGE) & wanted:
                is_number = inside & (x == x) if rest else x == x  # noqa: PLR0124 - the language has no isnan
                low = tl.minimum(low, tl.where(is_number, x, float("inf")))
                high = tl.maximum(high, tl.where(is_number, x, float("-inf")))
            if _M2 & wanted:
                off = tl.where(inside, x - center, 0.0) if rest else x - center
                total += off
                deviations += off * off
            elif _SUM & wanted:
                total += x
            if _SUMSQ & wanted:
                squares += x * x
            if (_MIN | _MAX | _NANS) & wanted:
                nans += (x != x).to(tl.int32)  # noqa: PLR0124
            if _INFS & wanted:
                infs += (tl.abs(x) == float("inf")).to(tl.int32)
            if _BELOW & wanted:
                is_below = tl.abs(x) < limit
                below += (inside & is_below if rest else is_below).to(tl.int32)
    added = tl.sum(total.to(tl.float64), 0)
    spread = tl.sum(deviations.to(tl.float64), 0) - added * added / length
    return (
        tl.min(low, 0).to(tl.float64),
        tl.max(high, 0).to(tl.float64),
        added + center * length,
        tl.sum(squares.to(tl.float64), 0),
        tl.where(spread < 0, 0.0, spread),
        tl.sum(nans, 0).to(tl.float64),
        tl.sum(infs, 0).to(tl.float64),
        tl.sum(below, 0).to(tl.float64),
    )


@triton.jit
def _read(places, inside, masked: tl.constexpr):
    return tl.load(places, mask=inside, other=0.0) if masked else tl.load(places)


@triton.jit
def _about(start, number: tl.constexpr, wanted: tl.constexpr):
    """The number that deviations are taken from: the first element, if it is finite."""
    center = tl.zeros((), number)
    if _M2 & wanted:
        first = tl.load(start).to(number)
        center = tl.where(tl.abs(first) < float("inf"), first, 0.0)
    return center


@triton.jit
def _limit(eps_at, number: tl.constexpr, wanted: tl.constexpr):
    """The least number that is not below eps."""
    limit = 0.0
    if _BELOW & wanted:
        eps = tl.load(eps_at)
        limit = eps.to(number)
        if number == tl.float32:
            following = (limit.to(tl.int32, bitcast=True) + 1).to(tl.float32, bitcast=True)
            limit = tl.where(limit.to(tl.float64) < eps, following, limit)
    return limit


@triton.jit
def _leave(out, low, high, total, squares, spread, nans, infs, below, count):
    """Store the numbers of one chunk."""
    tl.store(out, low)
    tl.store(out + 1, high)
    tl.store(out + 2, total)
    tl.store(out + 3, squares)
    tl.store(out + 4, spread)
    tl.store(out + 5, nans)
    tl.store(out + 6, infs)
    tl.store(out + 7, below)
    tl.store(out + 8, count.to(tl.float64))


@triton.jit
def merge(table, partial, result, wanted: tl.constexpr, width: tl.constexpr, block: tl.constexpr):
    program = tl.program_id(0)
    first = tl.load(table + 3 * program)
    chunks = tl.load(table + 3 * program + 1)
    _total(partial + PARTIAL * first, chunks, result + width * program, wanted, block)


@triton.jit
def merge_one(chunks, partial, result, wanted: tl.constexpr, block: tl.constexpr):
    _total(partial, chunks, result, wanted, block)


@triton.jit
def _total(partial, chunks, out, wanted: tl.constexpr, block: tl.constexpr):
    """Merge the chunks of one tensor."""
    low = tl.full((block,), float("inf"), tl.float64)
    high = tl.full((block,), float("-inf"), tl.float64)
    total = tl.zeros((block,), tl.float64)
    squares = tl.zeros((block,), tl.float64)
    within = tl.zeros((block,), tl.float64)
    shifted = tl.zeros((block,), tl.float64)
    between = tl.zeros((block,), tl.float64)
    counts = tl.zeros((block,), tl.float64)
    center = 0.0
    if _M2 & wanted:  # an empty tensor has no chunk
        center = tl.load(partial + 2, mask=chunks > 0, other=0.0) / tl.load(partial + 8, mask=chunks > 0, other=1.0)
    nans = tl.zeros((block,), tl.float64)
    infs = tl.zeros((block,), tl.float64)
    below = tl.zeros((block,), tl.float64)
    for begin in range(0, chunks, block):
        at = begin + tl.arange(0, block)
        inside = at < chunks
        row = partial + PARTIAL * at
        low = tl.minimum(low, tl.load(row, mask=inside, other=float("inf")))
        high = tl.maximum(high, tl.load(row + 1, mask=inside, other=float("-inf")))
        added = tl.load(row + 2, mask=inside, other=0.0)
        total += added
        squares += tl.load(row + 3, mask=inside, other=0.0)
        nans += tl.load(row + 5, mask=inside, other=0.0)
        infs += tl.load(row + 6, mask=inside, other=0.0)
        below += tl.load(row + 7, mask=inside, other=0.0)
        if _M2 & wanted:
            count = tl.load(row + 8, mask=inside, other=0.0)
            off = tl.where(inside, added / tl.where(inside, count, 1.0) - center, 0.0)
            within += tl.load(row + 4, mask=inside, other=0.0)
            shifted += count * off
            between += count * off * off
            counts += count
    low_all, high_all, sum_all, squares_all = tl.min(low, 0), tl.max(high, 0), tl.sum(total, 0), tl.sum(squares, 0)
    moved = tl.sum(shifted, 0)
    apart = tl.sum(between, 0) - moved * moved / tl.sum(counts, 0)
    spread = tl.sum(within, 0) + tl.where(apart < 0, 0.0, apart)
    _finish(
        out, low_all, high_all, sum_all, squares_all, spread, tl.sum(nans, 0), tl.sum(infs, 0), tl.sum(below, 0), wanted
    )


@triton.jit
def _finish(out, low, high, total, squares, spread, nans, infs, below, wanted: tl.constexpr):
    """Store the wanted moments of one tensor, in their order."""
    if _MIN & wanted:
        tl.store(out, tl.where(nans > 0, float("nan"), low))
        out += 1
    if _MAX & wanted:
        tl.store(out, tl.where(nans > 0, float("nan"), high))
        out += 1
    if _SUM & wanted:
        tl.store(out, total)
        out += 1
    if _SUMSQ & wanted:
        tl.store(out, squares)
        out += 1
    if _M2 & wanted:
        tl.store(out, spread)
        out += 1
    if _NANS & wanted:
        tl.store(out, nans)
        out += 1
    if _INFS & wanted:
        tl.store(out, infs)
        out += 1
    if _BELOW & wanted:
        tl.store(out, below)
