"""Signing in and out, and the tokens of programs."""

from html import escape
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from holdfast.server import answers, bodies
from holdfast.server.access import COOKIE, ROLES, User, not_signed_in, of_caller
from holdfast.server.call import Answer, Call
from holdfast.server.problems import Problem


async def tokens(call: Call) -> Answer:
    """List the tokens of programs, without their secrets."""
    call.user.check_everywhere()
    return Answer({"tokens": [answers.record(one) for one in await call.reads.tokens()]})


async def create_token(call: Call) -> Answer:
    """Make a token; its secret is told this once."""
    said: bodies.NewToken = call.said
    call.user.check_everywhere()
    scopes = said.scopes or (sorted(ROLES[said.role]) if said.role else None)
    if scopes is None or (said.scopes and said.role):
        raise Problem(422, "HF406", "a token has either scopes or a role")
    made = await call.client.token_create(
        said.name, scopes, queues=said.queues, expires=said.expires, actor=call.actor
    )
    return Answer(answers.record(made.token) | {"secret": made.secret}, 201)


async def revoke_token(call: Call) -> Answer:
    """Let a token in no more."""
    call.user.check_everywhere()
    id = call.part("id")
    if not await call.client.token_revoke(id, actor=call.actor):
        raise Problem(404, "HF315", f"there is no token {id!r}")
    call.live.gate.forget()
    return Answer({"id": id, "revoked": True})


async def sign_in(call: Call) -> Response:
    """Let a browser in that shows a token."""
    said: bodies.SignIn = call.said
    user = await call.live.gate.check_secret(call.request, call.client, said.token)
    if user is None:
        raise not_signed_in("the token is wrong, has expired or was revoked")
    response = Response(
        answers.encode({"user": user.name, "scopes": sorted(user.scopes)}),
        media_type="application/json",
    )
    return await _with_session(call, user, response)


async def link_page(call: Call) -> Response:
    """Show the button that a link leads to: programs that look at links spend nothing."""
    asked: bodies.Link = call.asked
    action = escape(f"sign-in?link={quote(asked.link, safe='')}", quote=True)
    text = _PAGE.replace("ACTION", action)
    return Response(text, media_type="text/html; charset=utf-8")


async def sign_in_by_link(call: Call) -> Response:
    """Let a browser in that follows a link, once."""
    asked: bodies.Link = call.asked
    caller = await call.client.link_spend(asked.link)
    if caller is None:
        call.live.gate.check_address(call.request)
        call.live.gate.note_wrong(call.request)
        raise not_signed_in("this link was used before, or has expired")
    user = of_caller(caller)
    home = call.request.scope.get("root_path", "") + "/"
    return await _with_session(call, user, RedirectResponse(quote(home), 303))


async def sign_out(call: Call) -> Response:
    """End the session of a browser."""
    secret = call.request.cookies.get(COOKIE, "")
    caller = await call.client.token_check(secret)
    # The id alone is no secret: whoever has only that ends nobody's session.
    if caller is not None and caller.sort == "session":
        await call.client.token_revoke(caller.id, actor=caller.name)
        call.live.gate.forget()
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path=_path(call))
    return response


async def _with_session(call: Call, user: User, response: Response) -> Response:
    made = await call.client.token_create(
        user.name,
        sorted(user.scopes),
        queues=user.queues,
        expires=call.live.settings.session,
        sort="session",
        parent=user.token,
        actor=user.name,
    )
    response.set_cookie(
        COOKIE,
        made.secret,
        max_age=int(call.live.settings.session),
        path=_path(call),
        secure=call.live.gate.is_encrypted(call.request),
        httponly=True,
        samesite="lax",
    )
    return response


# Its own policy of referrers, for else the browser would not say that the button is this server's.
_PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="referrer" content="same-origin">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<title>Sign in to Holdfast</title><link rel="stylesheet" href="docs.css"></head><body>'
    '<main><h1>Holdfast</h1><form method="post" action="ACTION">'
    '<p>This link signs you in once.</p><button type="submit" autofocus>Sign in</button>'
    "</form></main></body></html>"
)


def _path(call: Call) -> str:
    return call.request.scope.get("root_path", "") or "/"
