"""Installs Holdfast's schema. Later versions of it come with `manage.py migrate` by themselves."""

from typing import Any, ClassVar

from django.db import migrations


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
    # Unapplying it leaves the schema, because there are jobs in it.
    operations: ClassVar[list[Any]] = [migrations.RunPython(install, migrations.RunPython.noop)]
