"""The kit for unittest."""

from typing import TYPE_CHECKING, Any

from holdfast.testing import databases
from holdfast.testing.kit import Kit

if TYPE_CHECKING:
    from unittest import TestCase as _Case
else:
    # A mixin that is a test case itself would be collected, and could not be made an async one.
    _Case = object


class WithHoldfast(_Case):
    """Gives each test a database of its own: `class SignUpTest(WithHoldfast, TestCase)`.

    `self.holdfast` is the `Kit`. Override `holdfast_schema` in a common base class to add tables
    to the template, once for each such class.
    """

    holdfast: Kit

    @classmethod
    def holdfast_schema(cls, template: str) -> None:
        """Add what all tests need to the database with this address."""

    def setUp(self) -> None:
        """Make the database."""
        super().setUp()
        made = databases.shared()
        template = _template(made, type(self).holdfast_schema)
        url = made.take_copy(template)
        self.addCleanup(made.give_back, url)
        self.holdfast = Kit(url, made)
        self.holdfast.__enter__()
        self.addCleanup(self.holdfast.__exit__, None, None, None)


def _template(made: databases.Databases, prepare: Any) -> str:
    key = (made, prepare.__func__)
    if key not in _TEMPLATES:
        template = made.template()
        prepare(template)
        made.seal(template)
        _TEMPLATES[key] = template
    return _TEMPLATES[key]


_TEMPLATES: dict[Any, str] = {}
