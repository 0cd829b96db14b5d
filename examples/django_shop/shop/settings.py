"""The settings of the shop; what is there for Holdfast is at the end."""

import os

import django
from psycopg.conninfo import conninfo_to_dict

from holdfast import embedded

DEBUG = True
SECRET_KEY = "only for an example"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
ASGI_APPLICATION = "shop.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOGIN_URL = "admin:login"
STATIC_URL = "/static/"
TIME_ZONE = "UTC"
USE_TZ = True

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "holdfast.django",
    "orders",
]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")  # Django 6 has Tasks of its own

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# A project names its own database. This one uses the embedded PostgreSQL, unless told otherwise.
_address = conninfo_to_dict(os.environ.get("HOLDFAST_URL") or embedded.url())
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _address.pop("dbname"),
        "OPTIONS": _address,
    }
}

TASKS = {
    "default": {
        "BACKEND": "holdfast.django.HoldfastBackend",
        "QUEUES": ["default", "mail"],
    }
}
