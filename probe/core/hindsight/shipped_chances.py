"""Chances of healthy recordings."""

import numpy as np


def shipped_chance(strengths, rows):
    return np.zeros(len(strengths))
