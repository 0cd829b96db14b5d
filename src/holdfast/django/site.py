"""What a worker's process imports: Django set up, its tasks found, and the app of each database.

`holdfast worker holdfast.django.site` is `manage.py holdfast_worker`, with DJANGO_SETTINGS_MODULE
in the environment.
"""

from importlib import import_module

import django
from django.utils.module_loading import autodiscover_modules

from holdfast.django.database import app_of, name_in_site
from holdfast.django.tasks_api import own_backends

if not django.apps.apps.ready:
    django.setup()
# As Django finds admin modules: each app's tasks are in its module `tasks`.
autodiscover_modules("tasks")
for _backend in own_backends():
    for _module in _backend.options.get("modules", ()):
        import_module(_module)
    globals()[name_in_site(_backend.database)] = app_of(_backend.database)


def queues(database: str, slots: int) -> dict[str, int]:
    """Return the queues of a database's backends and tasks, each with so many slots."""
    allowed = {name for one in own_backends() if one.database == database for name in one.queues}
    declared = {task.queue for task in app_of(database).tasks.values()}
    return dict.fromkeys(sorted(allowed | declared), slots)
