"""Settings of a project, for programs that the tests start: HOLDFAST_URL names the database."""

import os

from psycopg.conninfo import conninfo_to_dict

from tests.django.project import SETTINGS

globals().update(SETTINGS)
SECRET_KEY = "not a secret"
_address = conninfo_to_dict(os.environ["HOLDFAST_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _address.pop("dbname"),
        "OPTIONS": _address,
    }
}
