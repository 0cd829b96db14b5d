"""`manage.py flush`: Django's own, which deletes all jobs with all other data."""

from typing import Any

from django.core.management.commands.flush import Command as Flush

from holdfast.django.schema import flushes


class Command(Flush):
    """Tells the handler of its signal that it is a flush: from others it cannot tell it apart."""

    def handle(self, **options: Any) -> None:
        """Delete all data, if the user says so."""
        token = flushes.set(True)
        try:
            super().handle(**options)
        finally:
            flushes.reset(token)
