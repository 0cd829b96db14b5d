"""What has to happen whether or not anyone works, in one loop that any process may run."""

from holdfast.upkeep.loop import Upkeep

__all__ = ["Upkeep"]
