"""Holdfast as an app of Django's."""

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class HoldfastConfig(AppConfig):
    """Installs the schema with `manage.py migrate`, and checks that it is there."""

    name = "holdfast.django"
    label = "holdfast"
    verbose_name = "Holdfast"

    def ready(self) -> None:
        """Have migrate bring the schema to this program's version, after an upgrade too."""
        from holdfast.django import checks  # noqa: F401

        post_migrate.connect(_migrate, sender=self)


def _migrate(sender: AppConfig, using: str, verbosity: int = 1, **more: Any) -> None:
    from holdfast.django.schema import bring_up_to_date, flushes, forget_jobs

    bring_up_to_date(using, say=print if verbosity else None)
    # Not whenever there is no plan: migrations send this signal, too, to have permissions made.
    if flushes.get():
        forget_jobs(using)
