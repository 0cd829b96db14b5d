"""Names for what the admin pages show. Jobs are in Holdfast's own tables, not in these."""

from typing import Any, ClassVar

from django.db import models


class NoRows(models.Manager):
    """Finds nothing, and asks no table: `dumpdata` and others go through all models."""

    def get_queryset(self) -> Any:
        """Return an empty query."""
        return super().get_queryset().none()


class Job(models.Model):
    """A job; its permissions are those of the admin pages and of the dashboard."""

    id = models.UUIDField(primary_key=True)
    objects = NoRows()

    class Meta:
        managed = False
        app_label = "holdfast"
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("retry_job", "Can retry jobs"),
            ("cancel_job", "Can cancel jobs"),
            ("view_dashboard", "Can see the dashboard"),
            ("operate_dashboard", "Can enqueue, retry, cancel and pause in the dashboard"),
            ("administer_dashboard", "Can do everything in the dashboard"),
        ]


class DeadGroup(models.Model):
    """Dead jobs that failed alike."""

    fingerprint = models.CharField(primary_key=True, max_length=64)
    objects = NoRows()

    class Meta:
        managed = False
        app_label = "holdfast"
        base_manager_name = "objects"
        default_permissions = ("view",)
