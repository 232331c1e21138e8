"""Tails of healthy training, as ``benchmarks/tails.py`` has estimated them."""

TAILS: dict[tuple[str, str, str], tuple[float, float, float, float]] = {
    (kind, mode, side): (4.0, 0.01, 6.0, 0.5)
    for kind in ("gradients", "activations", "gradients of activations", "parameters")
    for mode in ("together", "alone")
    for side in ("above", "below")
}
