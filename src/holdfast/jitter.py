"""Chance for pauses, of its own: a program that seeds `random` is not disturbed by it."""

from random import SystemRandom

__all__ = ["uniform"]

uniform = SystemRandom().uniform
