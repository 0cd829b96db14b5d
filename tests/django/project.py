"""The settings of a project of Django's, for the tests and for programs that they start."""

from typing import Any

import django

BACKEND = "holdfast.django.HoldfastBackend"

SETTINGS: dict[str, Any] = {
    "ALLOWED_HOSTS": ["*"],
    "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
    "INSTALLED_APPS": [
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "django.contrib.staticfiles",
        "holdfast.django",
        "tests.django.shop",
        *(["django_tasks"] if django.VERSION < (6, 0) else []),
    ],
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    "ROOT_URLCONF": "tests.django.shop.urls",
    "STATIC_URL": "/static/",
    "TASKS": {"default": {"BACKEND": BACKEND, "QUEUES": []}},
    "TEMPLATES": [
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
    ],
    "USE_TZ": True,
}
