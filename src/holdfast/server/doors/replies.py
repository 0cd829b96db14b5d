"""A page for somebody without an account, who answers one wait of one job by a link.

The link is the only right there is: no cookie is read and none is set, so a page of another site
can send nothing without it. To open the page changes nothing, because programs that check mail open
it too; only sending the form uses the link up.
"""

import asyncio
from html import escape
from urllib.parse import parse_qsl, quote

from starlette.responses import Response

from holdfast.errors import HoldfastError, UnknownJob
from holdfast.records import ReplyAsked
from holdfast.server.http import form, inputs
from holdfast.server.http.form import FormError
from holdfast.server.http.problems import Problem
from holdfast.server.http.request import Answer, Request


async def create_link(request: Request) -> Answer:
    """Create a link by which somebody without an account answers one wait of a job, once.

    `step` is the name of the wait: `event approved` for an event `approved`, unless the handler
    says otherwise. The path is one of this server, and its secret is shown only here.
    """
    said: inputs.NewReplyLink = request.body
    id = await request.job_id()
    job = await request.client.jobs.get(id)
    if job is None or not request.user.sees(job.queue):
        raise UnknownJob(id)
    made = await request.client.replies.link(
        id, said.step, question=said.question, expires=said.expires, actor=request.actor
    )
    root = request.http.scope.get("root_path", "")
    return Answer({"id": made.id, "path": made.url(root), "expires_at": made.expires_at}, 201)


async def revoke_link(request: Request) -> Answer:
    """Revoke a link for a reply."""
    request.user.check_everywhere()
    id = request.part("id")
    if not await request.client.replies.revoke(id, actor=request.actor):
        raise Problem(404, "HF315", f"no link for a reply has the id {id!r}")
    return Answer({"id": id, "revoked": True})


async def page(request: Request) -> Response:
    """Show what a link asks, as a form; opening the page does not use up the link."""
    asked: inputs.Link = request.query
    found = await request.client.replies.asked(asked.link)
    if found is None:
        return _closed("This link is not valid. It may have expired, or was revoked.", 404)
    if found.state != "open":
        return _not_open(found.state)
    return _form(asked.link, found, {}, None)


async def reply(request: Request) -> Response:
    """Answer by a link, with the fields of its form."""
    asked: inputs.Link = request.query
    found = await request.client.replies.asked(asked.link)
    if found is None:
        return _closed("This link is not valid. It may have expired, or was revoked.", 404)
    if found.state != "open":
        return _not_open(found.state)
    sent = _sent(request.body)
    schema = form.schema_of(found.schema_json)
    try:
        # In a thread: to check a long answer takes a moment, in which others are served.
        value = await asyncio.to_thread(form.value_of, schema, sent)
        outcome = await request.client.replies.send(asked.link, value)
    except FormError as error:
        return _form(asked.link, found, sent, error.fields, 422)
    except HoldfastError as error:
        if error.code not in ("HF204", "HF210"):
            raise
        return _form(asked.link, found, sent, {"": error.what}, 422)
    if outcome != "received":
        return _not_open(outcome or "closed")
    request.live.note_change()
    return _closed("Thank you. Your answer was sent.", 200, title="Sent")


def _sent(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=1000
        )
    except ValueError:
        raise Problem(400, "HF406", "the body is not that of a form") from None
    return dict(pairs)


def _form(
    link: str, asked: ReplyAsked, sent: dict[str, str], wrong: object, status: int = 200
) -> Response:
    faults = wrong if isinstance(wrong, dict) else {}
    fields = form.fields_of(form.schema_of(asked.schema_json))
    known = {field.name for field in fields}
    others = [f"{name} {what}".strip() for name, what in faults.items() if name not in known]
    said = asked.question or f"A job waits for your answer: {asked.event}."
    question = "".join(f"<p>{escape(line)}</p>" for line in said.split("\n") if line.strip())
    told = "".join(f'<p class="wrong" role="alert">{escape(one)}</p>' for one in others)
    shown = form.html_of(fields, sent, faults)
    until = escape(f"{asked.expires_at:%Y-%m-%d %H:%M} UTC")
    action = escape(f"reply?link={quote(link, safe='')}", quote=True)
    body = (
        f'{question}<form method="post" action="{action}">{told}{shown}'
        f'<button type="submit">Send</button></form>'
        f"<p><small>{escape(str(asked.kind))}. This link works once, until {until}.</small></p>"
    )
    return _page("Your answer is needed", body, status)


def _not_open(state: str) -> Response:
    if state == "not_yet":
        said = "Nothing is asked at this moment. Open this link again in a moment."
        return _closed(said, 409, title="Not yet")
    return _closed("This was answered already, or is no longer asked.", 410, title="Closed")


def _closed(said: str, status: int, *, title: str = "Nothing to answer") -> Response:
    return _page(title, f"<p>{escape(said)}</p>", status)


def _page(title: str, body: str, status: int) -> Response:
    # Its own referrer policy: without it, the browser would not send the origin of the form.
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="referrer" content="same-origin"><meta name="robots" content="noindex">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="stylesheet" href="docs.css"></head>'
        f'<body class="reply"><main><h1>{escape(title)}</h1>{body}</main></body></html>'
    )
    return Response(text, status, media_type="text/html; charset=utf-8")
