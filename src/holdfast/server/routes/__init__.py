"""Every address of the server, with what it needs: one table."""

from holdfast.server.api import dashboard
from holdfast.server.http.route import Entry, get
from holdfast.server.relay.routes import ALIASES, RELAY
from holdfast.server.routes import access, jobs, queues, watch

V1: list[Entry] = [*jobs.ROUTES, *queues.ROUTES, *watch.ROUTES, *access.ROUTES]

# The dashboard's documents and files. What they show they ask for under /v1, as everybody does.
PAGES: list[Entry] = [
    get("/", None, dashboard.page, None),
    get("/assets/{file}", None, dashboard.asset, None),
    *(get(f"/{name}", None, dashboard.page, None) for name in dashboard.PAGES),
    *(get(f"/{name}/{{rest:path}}", None, dashboard.page, None) for name in dashboard.PAGES),
]

# The addresses of a state, whatever it is called, are looked for behind those that are spelt out.
ROUTES = [*V1, *sorted([*RELAY, *ALIASES], key=lambda entry: "{state}" in entry.path), *PAGES]
