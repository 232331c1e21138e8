"""Tails of healthy training, as ``benchmarks/tails.py`` has estimated them: 25,662 steps of 97 programs."""

TAILS: dict[tuple[str, str, str], tuple[float, float, float, float]] = {
    ("activations", "alone", "above"): (20, 0.01, 5, 1),
    ("activations", "alone", "below"): (3.25, 0.01268, 1, 0.585),
    ("activations", "together", "above"): (7.699, 0.0008669, 1.769, 0.2965),
    ("activations", "together", "below"): (7.165, 0.000805, 3.179, 0.25),
    ("gradients", "alone", "above"): (15.56, 0.0005857, 11.29, 0.523),
    ("gradients", "alone", "below"): (6.634, 0.001874, 1.748, 0.5661),
    ("gradients", "together", "above"): (4.08, 0.001388, 1.108, 0.6095),
    ("gradients", "together", "below"): (8.959, 0.000238, 3.488, 0.7246),
    ("gradients of activations", "alone", "above"): (4.18, 0.00469, 2.781, 0.9635),
    ("gradients of activations", "alone", "below"): (2.426, 0.003127, 1, 0.3785),
    ("gradients of activations", "together", "above"): (2.782, 0.002169, 1.747, 0.25),
    ("gradients of activations", "together", "below"): (3.502, 0.000678, 2.651, 0.4232),
    ("parameters", "alone", "above"): (19.35, 0.0006985, 8.022, 0.6071),
    ("parameters", "alone", "below"): (4.724, 0.002357, 1, 0.9386),
    ("parameters", "together", "above"): (25.37, 0.0001694, 8.163, 0.6714),
    ("parameters", "together", "below"): (12, 0.0007622, 4.401, 0.8135),
}
"""By kind of signal, whether a common movement is taken out, and side."""
