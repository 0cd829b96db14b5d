"""Signing in and out, and the tokens of programs."""

import logging
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from holdfast.records import ROLES
from holdfast.server.doors.access import COOKIE, User, not_signed_in, of_caller
from holdfast.server.http import inputs, problems, render
from holdfast.server.http.problems import Problem
from holdfast.server.http.request import Answer, Request

if TYPE_CHECKING:
    from holdfast.server.doors.oidc import Provider

log = logging.getLogger("holdfast.server")


async def tokens(request: Request) -> Answer:
    """List the tokens of programs, without their secrets."""
    request.user.check_everywhere()
    return Answer({"tokens": [render.record(one) for one in await request.reads.tokens.list()]})


async def create_token(request: Request) -> Answer:
    """Create a token; its secret is shown only in this response."""
    said: inputs.NewToken = request.body
    request.user.check_everywhere()
    scopes = said.scopes or (sorted(ROLES[said.role]) if said.role else None)
    if scopes is None or (said.scopes and said.role):
        raise Problem(422, "HF406", "a token has either scopes or a role")
    made = await request.client.tokens.create(
        said.name, scopes, queues=said.queues, expires=said.expires, actor=request.actor
    )
    return Answer(render.record(made.token) | {"secret": made.secret}, 201)


async def revoke_token(request: Request) -> Answer:
    """Revoke a token."""
    request.user.check_everywhere()
    id = request.part("id")
    if not await request.client.tokens.revoke(id, actor=request.actor):
        raise Problem(404, "HF315", f"no token has the id {id!r}")
    request.live.gate.forget()
    return Answer({"id": id, "revoked": True})


async def sign_in(request: Request) -> Response:
    """Sign a browser in with a token."""
    said: inputs.SignIn = request.body
    user = await request.live.gate.check_secret(request.http, request.client, said.token)
    if user is None:
        raise not_signed_in("the token is wrong, has expired or was revoked")
    response = Response(
        render.encode({"user": user.name, "scopes": sorted(user.scopes)}),
        media_type="application/json",
    )
    return await _with_session(request, user, response)


async def link_page(request: Request) -> Response:
    """Show the button of a sign-in link; opening the page does not use up the link."""
    asked: inputs.Link = request.query
    action = escape(f"sign-in?link={quote(asked.link, safe='')}", quote=True)
    text = _PAGE.replace("ACTION", action)
    return Response(text, media_type="text/html; charset=utf-8")


async def sign_in_by_link(request: Request) -> Response:
    """Sign a browser in with a one-time link."""
    asked: inputs.Link = request.query
    caller = await request.client.tokens.spend_link(asked.link)
    if caller is None:
        request.live.gate.check_address(request.http)
        request.live.gate.note_wrong(request.http)
        raise not_signed_in("this link was used before, or has expired")
    user = of_caller(caller)
    home = request.http.scope.get("root_path", "") + "/"
    return await _with_session(request, user, RedirectResponse(quote(home), 303))


async def oidc_begin(request: Request) -> Response:
    """Send a browser to the identity provider."""
    provider = _oidc(request)
    from holdfast.server.doors import oidc

    asked: inputs.Begin = request.query
    home = request.http.scope.get("root_path", "") + "/"
    try:
        url, flow = await provider.begin(oidc.inside(asked.next, home))
    except Problem as problem:
        return _told(request, problem)
    response = RedirectResponse(url, 303)
    response.set_cookie(
        oidc.COOKIE,
        flow.cookie(),
        max_age=oidc.PATIENCE,
        path=f"{home}oidc",
        secure=_is_secure(request),
        httponly=True,
        samesite="lax",
    )
    return response


async def oidc_finish(request: Request) -> Response:
    """Sign in a browser that comes back from the identity provider."""
    provider = _oidc(request)
    from holdfast.server.doors import oidc

    asked: inputs.Returned = request.query
    home = request.http.scope.get("root_path", "") + "/"
    flow = oidc.Flow.of(request.http.cookies.get(oidc.COOKIE, ""))
    try:
        if asked.error:
            raise provider.refused(asked.error, asked.error_description)
        user = await provider.finish(flow, state=asked.state, code=asked.code, issuer=asked.iss)
    except Problem as problem:
        response = _told(request, problem)
    else:
        # The cookie could be forged: its page is checked again.
        goal = oidc.inside(flow.next if flow else "", home)
        response = await _with_session(request, user, RedirectResponse(goal, 303))
    response.delete_cookie(oidc.COOKIE, path=f"{home}oidc")
    return response


def _oidc(request: Request) -> "Provider":
    if request.live.oidc is None:
        raise Problem(
            404,
            "HF404",
            "this server has no identity provider",
            fix="holdfast serve --auth oidc --oidc-issuer URL …",
        )
    return request.live.oidc


def _told(request: Request, problem: Problem) -> Response:
    """Show the error as a page in a browser; a program gets the problem document."""
    log.warning("sign-in refused", extra={"code": problem.code, "reason": problem.what})
    if not str(request.http.headers.get("accept", "")).startswith("text/html"):
        root = request.http.scope.get("root_path", "")
        return problems.answer(problem, root=root)
    text = _REFUSED
    text = text.replace("CODE", escape(problem.code)).replace("HOME", "../")
    text = text.replace("FIX", escape(problem.fix if problem.status != 401 else ""))
    text = text.replace("WHAT", escape(problem.what))
    headers = {**problem.headers, "Cache-Control": "no-store"}
    headers.pop("WWW-Authenticate", None)
    return Response(text, problem.status, headers=headers, media_type="text/html; charset=utf-8")


async def sign_out(request: Request) -> Response:
    """Sign a browser out."""
    secret = request.http.cookies.get(COOKIE, "")
    caller = await request.client.tokens.check(secret)
    # The id alone is not a secret, so it does not end a session.
    if caller is not None and caller.sort == "session":
        await request.client.tokens.revoke(caller.id, actor=caller.name)
        request.live.gate.forget()
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path=_path(request))
    return response


async def _with_session(request: Request, user: User, response: Response) -> Response:
    made = await request.client.tokens.create(
        user.name,
        sorted(user.scopes),
        queues=user.queues,
        expires=request.live.settings.session,
        sort="session",
        parent=user.token,
        actor=user.name,
    )
    response.set_cookie(
        COOKIE,
        made.secret,
        max_age=int(request.live.settings.session),
        path=_path(request),
        secure=_is_secure(request),
        httponly=True,
        samesite="lax",
    )
    return response


# Its own referrer policy: without it, the browser would not send the origin of the form.
_PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="referrer" content="same-origin">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<title>Sign in to Holdfast</title><link rel="stylesheet" href="docs.css"></head><body>'
    '<main><h1>Holdfast</h1><form method="post" action="ACTION">'
    '<p>This link signs you in once.</p><button type="submit" autofocus>Sign in</button>'
    "</form></main></body></html>"
)


_REFUSED = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<title>Not signed in</title><link rel="stylesheet" href="HOMEdocs.css"></head><body>'
    "<main><h1>Not signed in</h1><p>WHAT (CODE)</p><p>FIX</p>"
    '<p><a href="HOMEoidc/sign-in">Try again</a> or <a href="HOME">use a token</a></p>'
    "</main></body></html>"
)


def _is_secure(request: Request) -> bool:
    oidc = request.live.settings.oidc
    told = oidc is not None and oidc.public_url.startswith("https:")
    return told or request.live.gate.is_encrypted(request.http)


def _path(request: Request) -> str:
    return request.http.scope.get("root_path", "") or "/"
