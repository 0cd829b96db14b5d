"""Holdfast in Django: a backend for Django's Tasks, a worker, migrations and admin pages.

Name `holdfast.django` in INSTALLED_APPS, and `holdfast.django.HoldfastBackend` in TASKS.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.django.backend import HoldfastBackend
    from holdfast.django.database import app_of
    from holdfast.django.schedules import schedule

__all__ = ["HoldfastBackend", "app_of", "schedule"]


def __getattr__(name: str) -> Any:
    # Django imports this package before its settings and models may be used.
    if module := _LATE.get(name):
        return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_LATE = {
    "HoldfastBackend": "holdfast.django.backend",
    "app_of": "holdfast.django.database",
    "schedule": "holdfast.django.schedules",
}
