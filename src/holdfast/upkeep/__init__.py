"""Regular maintenance, in one loop that any process may run."""

from holdfast.upkeep.loop import Upkeep

__all__ = ["Upkeep"]
