"""Signing in by OpenID Connect: the authorization code flow with PKCE, and what groups may do.

The browser stores the state of a sign-in (state, nonce, verifier), so any server on the database
can finish it. The cookie is not trusted: it has to match what the provider signed.
"""

import asyncio
import base64
import binascii
import hmac
import secrets
import ssl
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from holdfast.records import Scope
from holdfast.server.doors.access import User, is_loopback, not_signed_in
from holdfast.server.http.problems import SOON, Problem
from holdfast.server.settings import Grant, Oidc

__all__ = ["COOKIE", "PATIENCE", "Flow", "Provider", "granted", "inside"]

COOKIE = "holdfast_oidc"
# Seconds that a user may take at the provider.
PATIENCE = 600
# Accepted signatures of an ID token: never "none", and never a shared secret.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
# Seconds: how far clocks may differ, how long a reply may take, how long a discovery is cached.
LEEWAY = 60
ANSWER = 10.0
BELIEVED = 3600.0
# Codes exchanged at the same time: anyone can make the server call its provider.
EXCHANGES = 16


class Flow(msgspec.Struct, forbid_unknown_fields=True):
    """A sign-in in progress, as the browser stores it."""

    state: str
    nonce: str
    verifier: str
    next: str

    def cookie(self) -> str:
        """Return it as the value of a cookie."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    @classmethod
    def of(cls, cookie: str) -> "Flow | None":
        """Read it; None if it cannot be."""
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(cookie), type=cls)
        except (ValueError, binascii.Error, msgspec.DecodeError):
            return None


class Provider:
    """The identity provider: its address, its keys, and its claims about a user."""

    def __init__(self, settings: Oidc) -> None:
        self.settings = settings
        self._tls = ssl.create_default_context(cafile=settings.ca or None)
        self._metadata: tuple[float, Mapping[str, Any]] = (0.0, {})
        self._keys: KeySet | None = None
        self._exchanging = 0

    @property
    def callback(self) -> str:
        """The address to which the provider redirects browsers."""
        return f"{self.settings.public_url.rstrip('/')}/oidc/callback"

    async def begin(self, next: str) -> tuple[str, Flow]:
        """Return the provider's sign-in address, and the state to keep until the user returns."""
        metadata = await self._discovered()
        flow = Flow(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), next
        )
        async with self._client() as client:
            url, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                state=flow.state,
                nonce=flow.nonce,
                code_verifier=flow.verifier,
            )
        return str(url), flow

    async def finish(self, flow: Flow | None, *, state: str, code: str, issuer: str) -> User:
        """Return the user who comes back from the provider; refuse one who was not sent there."""
        if flow is None or not hmac.compare_digest(flow.state.encode(), state.encode()):
            raise not_signed_in("this sign-in was not started in this browser, or took too long")
        # RFC 9207: a reply of another provider is refused.
        if issuer and issuer != self.settings.issuer:
            raise not_signed_in(f"the reply is from another provider: {issuer[:200]!r}")
        if not code:
            raise not_signed_in("the provider sent no code")
        if self._exchanging >= EXCHANGES:
            raise Problem(503, "HF429", "too many sign-ins at once", headers=SOON)
        self._exchanging += 1
        try:
            token = await self._exchanged(flow, code)
            claims = await self._claims(flow, token)
            if _groups(claims, self.settings.claim) is None:
                claims = await self._with_userinfo(claims, token)
        finally:
            self._exchanging -= 1
        return self._user(claims)

    def refused(self, error: str, description: str) -> Problem:
        """Return the provider's error as a refusal."""
        told = " ".join(f"{error}: {description}".rstrip(": ").split())[:300]
        return not_signed_in(f"the provider refused the sign-in: {told}")

    async def _exchanged(self, flow: Flow, code: str) -> Mapping[str, Any]:
        metadata = await self._discovered()
        try:
            async with asyncio.timeout(ANSWER), self._client(metadata) as client:
                token = await client.fetch_token(
                    metadata["token_endpoint"],
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=flow.verifier,
                )
        except AuthlibBaseError as error:
            raise self.refused(str(error.error), str(error.description or "")) from None
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            raise _unreachable("token_endpoint", error) from None
        return dict(token)

    async def _claims(self, flow: Flow, token: Mapping[str, Any]) -> Mapping[str, Any]:
        given = token.get("id_token")
        if not isinstance(given, str):
            raise not_signed_in("the provider sent no ID token")
        try:
            try:
                decoded = _decoded(given, await self._key_set())
            except InvalidKeyIdError:
                # The provider has changed its keys.
                decoded = _decoded(given, await self._key_set(anew=True))
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                {
                    "iss": {"essential": True, "value": self.settings.issuer},
                    "aud": {"essential": True, "value": self.settings.client_id},
                },
                {
                    "nonce": flow.nonce,
                    "client_id": self.settings.client_id,
                    "access_token": token.get("access_token"),
                },
            )
            claims.validate(leeway=LEEWAY)
        except (JoseError, AuthlibBaseError, ValueError, TypeError) as error:
            told = getattr(error, "description", "") or str(error) or type(error).__name__
            raise not_signed_in(f"the ID token of the provider is not valid: {told}") from None
        return dict(claims)

    async def _with_userinfo(
        self, claims: Mapping[str, Any], token: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the claims with those of the userinfo endpoint, where some providers have groups.

        The ID token takes precedence. Userinfo has to be of the same user: nothing else ties the
        access token to the user who signed in.
        """
        metadata = await self._discovered()
        where, access = metadata.get("userinfo_endpoint"), token.get("access_token")
        if not is_safe(where) or not isinstance(access, str):
            return claims
        found = await self._document(str(where), {"Authorization": f"Bearer {access}"})
        if not isinstance(found.get("sub"), str) or found["sub"] != claims.get("sub"):
            raise not_signed_in("the provider's userinfo is for another user")
        return {**found, **{name: value for name, value in claims.items() if value is not None}}

    def _user(self, claims: Mapping[str, Any]) -> User:
        name = _name(claims)
        groups = _groups(claims, self.settings.claim)
        if groups is None:
            raise Problem(
                403,
                "HF401",
                f"the provider does not report the groups of {name}",
                fix=f"Add the claim {self.settings.claim!r} to ID tokens or userinfo, "
                "or name another:  --oidc-claim NAME",
            )
        grant = granted(self.settings.groups, groups)
        if grant is None:
            raise Problem(
                403,
                "HF401",
                f"no group of {name} may use this server",
                fix="Ask the operator of the server for  --oidc-group GROUP=ROLE",
            )
        return User(name, grant.scopes, grant.queues, via="oidc")

    async def _discovered(self) -> Mapping[str, Any]:
        until, known = self._metadata
        if until > monotonic():
            return known
        issuer = self.settings.issuer
        found = await self._document(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise _wrong(f"its issuer is {found.get('issuer')!r}, not {issuer!r}")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not is_safe(found.get(name)):
                raise _wrong(f"its {name} is {found.get(name)!r}, not an https address")
        self._metadata = monotonic() + BELIEVED, found
        return found

    async def _key_set(self, *, anew: bool = False) -> KeySet:
        if self._keys is None or anew:
            metadata = await self._discovered()
            found = await self._document(metadata["jwks_uri"])
            try:
                self._keys = KeySet.import_key_set(found)  # type: ignore[arg-type]
            except (JoseError, ValueError, TypeError, KeyError) as error:
                raise _wrong(f"its keys cannot be read: {type(error).__name__}") from None
        return self._keys

    async def _document(self, url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        try:
            async with asyncio.timeout(ANSWER), self._client() as client:
                answer = await client.request("GET", url, withhold_token=True, headers=headers)
                answer.raise_for_status()
                found = answer.json()
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            raise _unreachable(url, error) from None
        if not isinstance(found, dict):
            raise _wrong(f"{url} is not a JSON object")
        return found

    def _client(self, metadata: Mapping[str, Any] | None = None) -> Any:
        settings = self.settings
        # The default of the standard, unless the provider accepts the secret only in the body.
        ways = (metadata or {}).get("token_endpoint_auth_methods_supported")
        body = isinstance(ways, list) and "client_secret_basic" not in ways
        return AsyncOAuth2Client(
            settings.client_id,
            settings.client_secret,
            scope=" ".join(settings.scopes),
            redirect_uri=self.callback,
            code_challenge_method="S256",
            token_endpoint_auth_method="client_secret_post" if body else "client_secret_basic",
            verify=self._tls,
            timeout=ANSWER,
        )


def granted(mapping: Sequence[tuple[str, Grant]], groups: Sequence[str]) -> Grant | None:
    """Combine what the groups of a user may do, without adding any right that no group has.

    The first match counts. A later group adds its queues if it has the same scopes, or its scopes
    if it has the same queues; otherwise a scope would apply in a queue where no group has it.
    """
    found: Grant | None = None
    for group, grant in mapping:
        if group not in groups:
            continue
        if found is None:
            found = grant
        elif found.scopes == grant.scopes:
            wide = found.queues is None or grant.queues is None
            queues = None if wide else (*(found.queues or ()), *(grant.queues or ()))
            found = Grant(found.scopes, None if queues is None else tuple(dict.fromkeys(queues)))
        elif _set(found.queues) == _set(grant.queues):
            scopes: frozenset[Scope] = found.scopes | grant.scopes
            found = Grant(scopes, found.queues)
    return found


def inside(next: str, home: str) -> str:
    """Return where to go after signing in: always a page of this server."""
    odd = not next.isprintable() or "\\" in next or "//" in next.partition("?")[0]
    try:
        parts = urlsplit(next)
    except ValueError:
        return home
    away = bool(parts.scheme or parts.netloc) or ".." in parts.path.split("/")
    if odd or away or not next.startswith(home):
        return home
    return quote(next, safe="/?&=%:@!$'()*+,;~-._#[]")


def is_safe(url: Any) -> bool:
    """Whether an address uses TLS, or is on this machine."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        host = parts.hostname or ""
    except ValueError:
        return False
    local = host == "localhost" or is_loopback(host)
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and local))


def _decoded(token: str, keys: KeySet) -> Any:
    registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
    return jwt.decode(token, keys, registry=registry)


def _name(claims: Mapping[str, Any]) -> str:
    for claim in ("preferred_username", "email", "sub"):
        told = claims.get(claim)
        if isinstance(told, str) and told.strip() and told.isprintable():
            return told.strip()[:100]
    raise not_signed_in("the provider does not report who signed in")


def _groups(claims: Mapping[str, Any], claim: str) -> list[str] | None:
    """Return the groups in a claim, or in one within others: realm_access.roles."""
    found: Any = claims.get(claim)
    if found is None:
        found = claims
        for part in claim.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return [found]
    if not isinstance(found, list):
        return None
    return [one for one in found if isinstance(one, str)]


def _set(queues: Sequence[str] | None) -> frozenset[str] | None:
    return None if queues is None else frozenset(queues)


def _unreachable(where: str, error: Exception) -> Problem:
    return Problem(
        503,
        "HF414",
        f"the identity provider does not answer ({where}): {str(error) or type(error).__name__}",
        headers=SOON,
        fix="Sign in with a token, or try again.",
    )


def _wrong(what: str) -> Problem:
    return Problem(
        503,
        "HF414",
        f"the identity provider cannot be used: {what}",
        headers=SOON,
        fix="Check --oidc-issuer, which is the provider's own name for itself.",
    )
