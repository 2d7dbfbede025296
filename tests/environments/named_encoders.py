"""Encoders that are found by name."""

import numpy as np


def parity(observation):
    """A cell digit."""
    return np.array([int(observation) % 2])


def halves(observation):
    """An unbounded value."""
    return np.array([float(np.sum(observation)) / 2])


class Coarse:
    """An encoder with a setting, and one that is found by a dotted name."""

    def __init__(self, step=2):
        self.step = step

    def __call__(self, observation):
        return np.array([int(observation) // self.step])

    @staticmethod
    def by_three(observation):
        return np.array([int(observation) // 3])


NUMBER = 3
