"""The app of each of Django's databases, at the address that Django's settings give."""

from threading import Lock
from types import FunctionType
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from holdfast import embedded
from holdfast.app import App
from holdfast.django.fresh import FreshConnections

if TYPE_CHECKING:
    from holdfast.current import CurrentJob
    from holdfast.job_transaction import JobTransaction


class DjangoApp(App):
    """An app on one of Django's databases; transactions of its jobs are those of the ORM."""

    def __init__(self, alias: str) -> None:
        said = getattr(settings, "HOLDFAST", {})
        # Schedules belong to the app of a name: another project may use the same database.
        usual = str(settings.SETTINGS_MODULE or "django").partition(".")[0]
        super().__init__(
            name=said.get("NAME", usual),
            pool_size=said.get("POOL_SIZE"),
            middleware=[FreshConnections(), *map(_middleware, said.get("MIDDLEWARE", ()))],
        )
        self.alias = alias
        # A new process sets Django up before it imports tasks.
        self.home = ("holdfast.django.site", name_in_site(alias))

    @property
    def database(self) -> embedded.Database:
        """The database as Django's settings say now: tests use another one."""
        url = address(self.alias)
        with self._lock:
            if self._database is None or self._database.url != url:
                self.close()
                self._database = embedded.Database(url, "django")
            return self._database

    def _transaction_of(self, job: "CurrentJob", result: Any) -> "JobTransaction":
        """Return a transaction on Django's own connection."""
        from holdfast.django.transaction import OrmTransaction

        return OrmTransaction(job, result)


def app_of(database: str = "default") -> DjangoApp:
    """Return the app of a database: for tasks, schedules and detectors of Holdfast's own."""
    with _lock:
        if (app := _apps.get(database)) is None:
            app = _apps[database] = DjangoApp(database)
        return app


def address(alias: str) -> str:
    """Return the address of a database as libpq reads it, from Django's settings."""
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}] is {connection.vendor}, and Holdfast lives in PostgreSQL. "
            "Name a database of PostgreSQL in TASKS:  'OPTIONS': {'database': '…'}"
        )
    given = connection.get_connection_params()
    known = {one.keyword.decode() for one in Conninfo.get_defaults()}
    chosen = {name: value for name, value in given.items() if name in known and value is not None}
    if role := connection.settings_dict["OPTIONS"].get("assume_role"):
        escaped = str(role).replace("\\", "\\\\").replace(" ", "\\ ")
        chosen["options"] = f"{chosen.get('options', '')} -c role={escaped}".strip()
    return make_conninfo("", **chosen)


def name_in_site(alias: str) -> str:
    """Return the name under which `holdfast.django.site` has the app of a database."""
    return "app" if alias == "default" else f"app_{alias}"


def _middleware(path: Any) -> Any:
    """Return a middleware that HOLDFAST names: an object, or a class or function that makes it."""
    found = import_string(path) if isinstance(path, str) else path
    return found() if isinstance(found, type | FunctionType) else found


_lock = Lock()
_apps: dict[str, DjangoApp] = {}
