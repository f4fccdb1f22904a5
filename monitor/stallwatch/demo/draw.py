"""Which rank draws the short straw: known to the demo and to its programs, told to nobody else.

A file of its own: its other caller, the catalogue, imports no torch."""

import random


def drawn_rank(seed: int, world_size: int) -> int:
    """Given the job's seed, return the rank that a fault strikes: any rank, rank 0 with its store included."""
    return random.Random(seed).randrange(world_size)
