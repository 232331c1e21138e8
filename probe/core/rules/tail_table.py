"""Tails of healthy training, as ``benchmarks/tails.py`` has estimated them: 28,548 steps of 94 programs."""

TAILS: dict[tuple[str, str, str], tuple[float, float, float, float]] = {
    ("activations", "alone", "above"): (20, 0.01, 5, 1),
    ("activations", "alone", "below"): (20, 0.01, 5, 1),
    ("activations", "together", "above"): (5.806, 0.002635, 2.254, 0.2558),
    ("activations", "together", "below"): (7.031, 0.001004, 1.86, 0.25),
    ("gradients", "alone", "above"): (16.07, 0.0005472, 10.52, 0.85),
    ("gradients", "alone", "below"): (9.859, 0.000684, 2.189, 0.5948),
    ("gradients", "together", "above"): (4.052, 0.001328, 1.095, 0.6967),
    ("gradients", "together", "below"): (7.197, 0.000229, 3.404, 0.7436),
    ("gradients of activations", "alone", "above"): (20, 0.01, 5, 1),
    ("gradients of activations", "alone", "below"): (20, 0.01, 5, 1),
    ("gradients of activations", "together", "above"): (2.751, 0.002192, 1.521, 0.25),
    ("gradients of activations", "together", "below"): (2.199, 0.002579, 1, 0.3312),
    ("parameters", "alone", "above"): (13.53, 0.002346, 5.003, 0.4806),
    ("parameters", "alone", "below"): (4.627, 0.002681, 1, 1),
    ("parameters", "together", "above"): (18.13, 0.0009261, 4.537, 1),
    ("parameters", "together", "below"): (11.35, 0.0008489, 3.214, 0.7277),
}
"""By kind of signal, whether a common movement is taken out, and side."""
