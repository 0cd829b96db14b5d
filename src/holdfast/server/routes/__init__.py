"""Every address of the server, with what it needs: one table."""

from holdfast.server.api import dashboard
from holdfast.server.http.route import Entry, get
from holdfast.server.relay.routes import ALIASES, RELAY
from holdfast.server.routes import access, jobs, queues, watch, workflows

V1: list[Entry] = [*jobs.ROUTES, *workflows.ROUTES, *queues.ROUTES, *watch.ROUTES, *access.ROUTES]

# The dashboard's documents and files. They get their data from /v1, like any other client.
PAGES: list[Entry] = [
    get("/", None, dashboard.page, None),
    get("/assets/{file}", None, dashboard.asset, None),
    *(get(f"/{name}", None, dashboard.page, None) for name in dashboard.PAGES),
    *(get(f"/{name}/{{rest:path}}", None, dashboard.page, None) for name in dashboard.PAGES),
]

# Addresses with a state as parameter are matched after the literal ones.
ROUTES = [*V1, *sorted([*RELAY, *ALIASES], key=lambda entry: "{state}" in entry.path), *PAGES]
