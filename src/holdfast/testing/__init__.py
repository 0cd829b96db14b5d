"""A test kit: a database for each test, jobs that run in the test, a clock that moves.

With pytest, the fixture `holdfast` is a `Kit`; nothing has to be configured.
"""

from holdfast.testing.bound import job
from holdfast.testing.cases import WithHoldfast
from holdfast.testing.faults import FAULTS, Fault
from holdfast.testing.kit import Kit
from holdfast.testing.report import Drained, Ran

__all__ = ["FAULTS", "Drained", "Fault", "Kit", "Ran", "WithHoldfast", "job"]
