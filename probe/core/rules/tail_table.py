"""Tails of healthy training, as ``benchmarks/tails.py`` has estimated them: 21,442 steps of 96 programs."""

TAILS: dict[tuple[str, str, str], tuple[float, float, float, float]] = {
    ("activations", "alone", "above"): (6.49, 0.005015, 1.476, 0.6215),
    ("activations", "alone", "below"): (3.315, 0.01204, 1, 0.6215),
    ("activations", "together", "above"): (7.399, 0.0008415, 1.876, 0.2744),
    ("activations", "together", "below"): (6.925, 0.0008941, 2.688, 0.25),
    ("gradients", "alone", "above"): (14.13, 0.0005288, 7.268, 0.5358),
    ("gradients", "alone", "below"): (9.826, 0.0007931, 2.28, 0.5707),
    ("gradients", "together", "above"): (4.071, 0.001495, 1.063, 0.62),
    ("gradients", "together", "below"): (8.868, 0.00023, 3.505, 0.7105),
    ("gradients of activations", "alone", "above"): (14.47, 0.001356, 5.404, 0.5251),
    ("gradients of activations", "alone", "below"): (4.238, 0.002713, 1.605, 0.5607),
    ("gradients of activations", "together", "above"): (4.519, 0.0008848, 2.008, 0.25),
    ("gradients of activations", "together", "below"): (5.616, 0.0004129, 3.501, 0.3705),
    ("parameters", "alone", "above"): (20.17, 0.0007087, 6.801, 0.5734),
    ("parameters", "alone", "below"): (6.777, 0.0003866, 1.482, 0.7033),
    ("parameters", "together", "above"): (25.2, 0.0001464, 9.573, 0.6691),
    ("parameters", "together", "below"): (14.12, 0.0003295, 4.328, 0.769),
}
"""By kind of signal, whether a common movement is taken out, and side."""
