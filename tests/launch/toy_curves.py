"""Costs that are known, for the test of how costs grow; with them processes start soon."""

from launch.bench.growth.curve import Cost


def squared(n):
    return Cost(1e-3 * n**2, 2**20 * n)


def level(n):
    return Cost(2.0, 0)
