"""The shop as an ASGI application, with the dashboard at /holdfast/ for those who may see it."""

import os

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
# A site that is not an example leaves static files to its proxy.
django_application = ASGIStaticFilesHandler(get_asgi_application())

from holdfast.django.dashboard import with_dashboard  # noqa: E402 - Django is set up now

application = with_dashboard(django_application, path="/holdfast")
