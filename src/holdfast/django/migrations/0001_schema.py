"""Installs Holdfast's schema. Later versions of it come with `manage.py migrate` by themselves."""

from typing import Any, ClassVar

from django.db import migrations, models


def install(apps: Any, schema_editor: Any) -> None:
    """Install the schema on a connection of its own."""
    from holdfast.django.schema import bring_up_to_date

    bring_up_to_date(schema_editor.connection.alias)


class Migration(migrations.Migration):
    """Depend on it where a migration of yours enqueues or reads jobs."""

    # Holdfast's migrate has its own transaction, and its own lock.
    atomic = False
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        # Unapplying it leaves the schema, because there are jobs in it.
        migrations.RunPython(install, migrations.RunPython.noop),
        # The models are only names for pages and permissions.
        migrations.CreateModel(
            name="Job",
            fields=[("id", models.UUIDField(primary_key=True, serialize=False))],
            options={
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "permissions": [
                    ("retry_job", "Can retry jobs"),
                    ("cancel_job", "Can cancel jobs"),
                    ("view_dashboard", "Can see the dashboard"),
                    ("operate_dashboard", "Can enqueue, retry, cancel and pause in the dashboard"),
                    ("administer_dashboard", "Can do everything in the dashboard"),
                ],
            },
        ),
        migrations.CreateModel(
            name="DeadGroup",
            fields=[
                (
                    "fingerprint",
                    models.CharField(max_length=64, primary_key=True, serialize=False),
                )
            ],
            options={
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view",),
            },
        ),
    ]
