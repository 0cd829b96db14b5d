"""The HTTP server: every verb for every language, over `/v1`.

`Server` is an ASGI application. It runs under `holdfast serve`, under any ASGI server, and mounted
inside another application at any path.
"""

from holdfast.server.asgi import Server
from holdfast.server.doors.access import Auth, User
from holdfast.server.settings import Settings

__all__ = ["Auth", "Server", "Settings", "User"]
