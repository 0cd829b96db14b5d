"""Random numbers for pauses, apart from `random`: a program that seeds that one is undisturbed."""

from random import SystemRandom

__all__ = ["random_between"]

random_between = SystemRandom().uniform
