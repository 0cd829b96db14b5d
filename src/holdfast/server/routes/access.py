"""The addresses of the server itself: tokens, signing in, health, this contract."""

from holdfast.server.api import contract, health
from holdfast.server.doors import replies, sign_in
from holdfast.server.http import answers, inputs, node_answers
from holdfast.server.http.refusals import NOT_THERE
from holdfast.server.http.route import Entry, get, ok, text, to
from holdfast.server.routes.tags import (
    ACCESS,
    SERVER,
)

# What a page of a link answers if there is no form to show.
NOTHING_TO_ANSWER = (
    text("The link is not valid: it has expired, or was revoked.", "text/html", status=404)
    | text("The job does not wait for this answer yet.", "text/html", status=409)
    | text("It was answered, or is no longer asked.", "text/html", status=410)
)

ROUTES: list[Entry] = [
    get(
        "/v1/system", "read", health.system, id="getSystem", tag=SERVER, answers=ok(answers.System)
    ),
    get(
        "/v1/nodes",
        "read",
        health.nodes,
        id="listNodes",
        tag=SERVER,
        answers=ok(node_answers.Nodes),
    ),
    get(
        "/v1/tokens",
        "admin",
        sign_in.tokens,
        id="listTokens",
        tag=ACCESS,
        answers=ok(answers.Tokens),
    ),
    Entry(
        "POST",
        "/v1/tokens",
        "admin",
        sign_in.create_token,
        body=inputs.NewToken,
        id="createToken",
        tag=ACCESS,
        answers=ok(
            answers.Token,
            "The token with its secret, which is shown only here.",
            status=201,
            links={"revoke": to("revokeToken", id="/id")},
        ),
        example={
            "name": "php",
            "scopes": ["produce", "consume"],
            "queues": ["mail"],
            "expires": 7776000,
        },
    ),
    Entry(
        "DELETE",
        "/v1/tokens/{id}",
        "admin",
        sign_in.revoke_token,
        id="revokeToken",
        tag=ACCESS,
        answers=ok(answers.TokenRevoked),
    ),
    Entry(
        "POST",
        "/v1/session",
        None,
        sign_in.sign_in,
        inputs.SignIn,
        id="signIn",
        tag=ACCESS,
        answers=ok(answers.SignedIn),
    ),
    Entry(
        "DELETE",
        "/v1/session",
        None,
        sign_in.sign_out,
        id="signOut",
        tag=ACCESS,
        answers=ok(says="The cookie is deleted.", status=204),
    ),
    get(
        "/sign-in",
        None,
        sign_in.link_page,
        inputs.Link,
        id="linkPage",
        tag=ACCESS,
        answers=text("A page with a button.", "text/html"),
    ),
    Entry(
        "POST",
        "/sign-in",
        None,
        sign_in.sign_in_by_link,
        query=inputs.Link,
        id="signInByLink",
        tag=ACCESS,
        answers=ok(says="A session cookie is set; the dashboard is next.", status=303),
    ),
    get(
        "/reply",
        None,
        replies.page,
        inputs.Link,
        id="replyPage",
        tag=ACCESS,
        answers=text("A page with a form.", "text/html") | NOTHING_TO_ANSWER,
    ),
    Entry(
        "POST",
        "/reply",
        None,
        replies.reply,
        query=inputs.Link,
        form=True,
        id="replyByLink",
        tag=ACCESS,
        answers=text("The answer is sent.", "text/html")
        | NOTHING_TO_ANSWER
        | text("The form again, with what is wrong.", "text/html", status=422),
    ),
    get(
        "/oidc/sign-in",
        None,
        sign_in.oidc_begin,
        inputs.Begin,
        id="signInByProvider",
        tag=ACCESS,
        answers=ok(says="The provider is next.", status=303),
        refuses=(NOT_THERE,),
    ),
    get(
        "/oidc/callback",
        None,
        sign_in.oidc_finish,
        inputs.Returned,
        id="comeBackFromProvider",
        tag=ACCESS,
        answers=ok(says="A session cookie is set; the page asked for is next.", status=303),
        refuses=(NOT_THERE,),
    ),
    get("/v1/me", None, health.me, id="whoAmI", tag=SERVER, answers=ok(answers.Me)),
    get("/healthz", None, health.healthz, id="health", tag=SERVER, answers=ok(answers.Well)),
    get("/readyz", None, health.readyz, id="ready", tag=SERVER, answers=ok(answers.Well)),
    get(
        "/errors/{code}",
        None,
        health.error_page,
        id="explainError",
        tag=SERVER,
        answers=ok(answers.ErrorTitle),
    ),
    get(
        "/openapi.json",
        None,
        contract.openapi,
        id="getContract",
        tag=SERVER,
        answers=ok(answers.Contract),
    ),
    get(
        "/docs",
        None,
        contract.page,
        id="showContract",
        tag=SERVER,
        answers=text("A page.", "text/html"),
    ),
    get(
        "/docs.css",
        None,
        contract.style,
        id="getStyle",
        tag=SERVER,
        answers=text("A style sheet.", "text/css"),
    ),
]
