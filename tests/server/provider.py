"""A small OpenID provider over HTTPS, of an authority of its own; tests make it misbehave."""

import base64
import hashlib
import hmac
import json
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import trustme
from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "holdfast", "s3cret of the client"


def key_of(name: str) -> RSAKey:
    """A fresh key that signs."""
    return RSAKey.generate_key(2048, parameters={"kid": name, "use": "sig", "alg": "RS256"})


@dataclass
class Provider:
    """What it says, and to whom; tests change it to see what is refused."""

    ca: Path
    issuer: str = ""
    key: RSAKey = field(default_factory=lambda: key_of("first"))
    claims: dict[str, Any] = field(default_factory=dict)
    # Gets the claims as they would be, may change them.
    bend: Callable[[dict[str, Any]], None] = lambda claims: None
    # Makes the ID token, if it is not to be made as it should.
    forge: Callable[[dict[str, Any]], str] | None = None
    discovery: dict[str, Any] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[dict[str, str]] = field(default_factory=list)
    # What is told of whoever has the access token.
    userinfo: dict[str, Any] = field(default_factory=dict)
    exchanged: int = 0
    fetched_keys: int = 0

    def keys(self) -> dict[str, Any]:
        """The public keys."""
        return {"keys": [self.key.as_dict(private=False)]}

    def authorize(self, query: dict[str, str]) -> str:
        """Sign the user in, and return where the browser goes."""
        self.asked.append(query)
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        answer = {"code": code, "state": query["state"], "iss": self.issuer}
        return f"{query['redirect_uri']}?{urlencode(answer)}"

    def exchange(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """Give a token for a code, once, to whoever has the secret and the verifier."""
        self.exchanged += 1
        # As the standard has it: both are form-encoded first by strict clients, plain by most.
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        if given != f"{CLIENT}:{SECRET}":
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form.get("code", ""), None)
        if asked is None:
            return 400, {"error": "invalid_grant", "error_description": "the code was used"}
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked["code_challenge"] != challenge or asked["code_challenge_method"] != "S256":
            return 400, {"error": "invalid_grant", "error_description": "the verifier is wrong"}
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": "u-1",
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            "preferred_username": "ada",
            **self.claims,
        }
        self.bend(claims)
        token = self.forge(claims) if self.forge else self.signed(claims)
        return 200, {"access_token": "a", "token_type": "Bearer", "id_token": token}

    def signed(self, claims: dict[str, Any]) -> str:
        """An ID token as it should be."""
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)

    def unsigned(self, claims: dict[str, Any]) -> str:
        """An ID token of the algorithm none."""
        return f"{_part({'alg': 'none'})}.{_part(claims)}."

    def signed_by_secret(self, claims: dict[str, Any]) -> str:
        """An ID token signed with what is public, taken for a shared secret."""
        text = f"{_part({'alg': 'HS256', 'kid': self.key.kid})}.{_part(claims)}"
        digest = hmac.digest(self.key.as_pem(private=False), text.encode(), "sha256")
        return f"{text}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def _part(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


class _Handler(BaseHTTPRequestHandler):
    provider: Provider
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None: ...

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        issuer = self.provider.issuer
        if parts.path == "/.well-known/openid-configuration":
            document = {
                "issuer": issuer,
                "authorization_endpoint": f"{issuer}/authorize",
                "token_endpoint": f"{issuer}/token",
                "jwks_uri": f"{issuer}/keys",
                # It would take "none"; whoever believes that is lost.
                "id_token_signing_alg_values_supported": ["RS256", "none", "HS256"],
            }
            self._answer(200, document | self.provider.discovery)
        elif parts.path == "/keys":
            self.provider.fetched_keys += 1
            self._answer(200, self.provider.keys())
        elif parts.path == "/authorize":
            self._answer(302, {}, {"Location": self.provider.authorize(query)})
        elif parts.path == "/userinfo" and self.headers.get("Authorization") == "Bearer a":
            self._answer(200, self.provider.userinfo)
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        self._answer(*self.provider.exchange(form, self.headers.get("Authorization", "")))

    def _answer(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def provider(directory: Path) -> Iterator[Provider]:
    """Run one until the end of the context."""
    authority = trustme.CA()
    ca = directory / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    made = Provider(ca)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"provider": made}))
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made.issuer = f"https://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=lambda: server.serve_forever(0.05), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join(100)
