"""The state of the server: whether it is alive and ready, and who is calling."""

from holdfast import __version__
from holdfast.server.http import render
from holdfast.server.http.problems import TITLES, Problem
from holdfast.server.http.request import Answer, Request


async def healthz(request: Request) -> Answer:
    """Report that the process is alive; this does not use the database."""
    return Answer({"status": "ok", "version": __version__})


async def readyz(request: Request) -> Answer:
    """Report whether the database is reachable and has the schema; if not, 503 with the reason."""
    await request.live.ready()
    return Answer({"status": "ok"})


async def me(request: Request) -> Answer:
    """Return who is calling and what they may do."""
    live, user = request.live, request.user
    return Answer(
        {
            "user": user.name or None,
            "via": user.via,
            "scopes": sorted(user.scopes),
            "queues": user.queues,
            "read_only": await live.read_only(),
            "name": live.settings.name,
            "color": live.settings.color,
            "version": __version__,
            "mode": live.feed.mode,
            "oidc": live.settings.oidc.name if live.settings.oidc else None,
        }
    )


async def system(request: Request) -> Answer:
    """Show the versions and sizes of the database, and the settings of this server."""
    request.user.check_everywhere()
    live, settings = request.live, request.live.settings
    found = await live.system()
    relations = [render.record(one) for one in found.relations]
    return Answer(
        {
            "version": __version__,
            "database": render.record(found) | {"relations": relations},
            "standby": {"behind": await live.standby.behind()} if live.standby else None,
            "settings": {
                "ways": list(settings.ways),
                "read_only": settings.read_only,
                "standby": live.standby is not None,
                "upkeep": settings.upkeep,
                "redact": list(settings.redact),
                "hosts": list(settings.hosts),
                "pool_size": settings.pool_size,
                "read_pool_size": settings.read_pool_size,
                "body_limit": settings.body_limit,
                "waits": settings.waits,
                "streams": settings.streams,
                "session": settings.session,
            },
        }
    )


async def nodes(request: Request) -> Answer:
    """List the nodes of the Citus cluster, and which of them do not answer; none without Citus.

    What a node has that does not answer is missing in every list. A token for some queues does not
    see the addresses.
    """
    cluster = request.live.reads.cluster
    if not await cluster.is_alone():
        await cluster.ask(lambda one: one.now())
    all = request.user.queues is None
    return Answer(
        {
            "nodes": [
                {
                    "node": one.node,
                    "here": one.here,
                    "address": one.address if all else None,
                    "problem": one.problem if all or not one.problem else "it does not answer",
                }
                for one in await cluster.members()
            ]
        }
    )


async def error_page(request: Request) -> Answer:
    """Explain an error code."""
    code = request.part("code")
    if code not in TITLES:
        raise Problem(404, "HF404", f"no error has the code {code}")
    return Answer({"code": code, "title": TITLES[code]})
