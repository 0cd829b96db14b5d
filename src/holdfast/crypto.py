"""Encrypts payloads, results and steps, so that the database and its backups hold no clear text.

AES-256-GCM under a key that is derived for each message from one of several named keys: the first
of them encrypts, all of them decrypt. What is encrypted is bound to the kind of its job and to what
it is, so that it cannot be passed off as a payload of another kind. The format, for other
languages: docs/reference/encryption.md.
"""

import base64
import binascii
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Self

from holdfast.callsite import caller
from holdfast.errors import Misuse

VARIABLE = "HOLDFAST_KEYS"
# Bytes of salt, from which the message's own key is derived, of nonce, and of the tag at the end.
SALT, NONCE, TAG = 16, 12, 16


class CannotOpen(Exception):  # noqa: N818 - what becomes of it depends on who wanted to read
    """Something encrypted cannot be read here: what is wrong, and what to do."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


class Encryption:
    """The keys of tasks whose payloads, results and steps are encrypted.

    `keys` has them by name, each of 32 bytes, or those in base64: the first one encrypts, all of
    them decrypt. With `required`, a payload that is not encrypted is not run either: without it,
    jobs from before and from other programs are.
    """

    def __init__(self, keys: Mapping[str, str | bytes], *, required: bool = False) -> None:
        if not keys:
            raise Misuse(
                "encryption without a key", why=caller(), fix="Make one:  holdfast.crypto.new_key()"
            )
        self._cipher = _cipher()
        self._keys = {_name(name): _key(name, key) for name, key in keys.items()}
        self._first = next(iter(self._keys))
        self.required = required

    @classmethod
    def from_env(cls, variable: str = VARIABLE, *, required: bool = False) -> Self:
        """Read the keys from a variable of the environment: `name:key`, separated by commas."""
        text = os.environ.get(variable, "")
        pairs = [part.strip().partition(":") for part in text.split(",") if part.strip()]
        if not pairs or not all(name and key for name, _, key in pairs):
            raise Misuse(
                f"{variable} has no keys" if not pairs else f"{variable} is not name:key, name:key",
                why=caller(),
                fix=f"Set it, the newest first:  {variable}=2026-11:…,2026-05:…",
            )
        if len({name for name, _, _ in pairs}) < len(pairs):
            raise Misuse(f"{variable} has two keys of the same name", why=caller())
        return cls({name: key for name, _, key in pairs}, required=required)

    def __repr__(self) -> str:
        return f"Encryption({', '.join(self._keys)})"

    def __reduce__(self) -> Any:
        raise TypeError("keys are not pickled: read them where they are used")

    @property
    def shape(self) -> list[str]:
        """What it can decrypt, without saying the keys: two workers with the same are alike."""
        shown = [f"{name} {_check(key)}" for name, key in sorted(self._keys.items())]
        return [*shown, "required" if self.required else "optional"]

    def seal(self, text: bytes, what: str, kind: str, *, fixed: bool = False) -> tuple[str, bytes]:
        """Encrypt; returns the name of the key, and salt, nonce, ciphertext and tag in one.

        With `fixed` the same text comes out the same every time, which tells that it has not
        changed: for what is declared again and again.
        """
        name = self._first
        key, place = self._keys[name], _place(what, kind, name)
        salt = (
            hmac.digest(key, b"holdfast 1 fixed\n" + place + b"\n" + text, sha256)[: SALT + NONCE]
            if fixed
            else secrets.token_bytes(SALT + NONCE)
        )
        cipher = self._cipher(_derived(key, salt[:SALT]))
        return name, salt + cipher.encrypt(salt[SALT:], text, place)

    def open(self, name: str, sealed: bytes, what: str, kind: str) -> bytes:
        """Decrypt what was encrypted as this for this kind; raises CannotOpen."""
        from cryptography.exceptions import InvalidTag

        if (key := self._keys.get(name)) is None:
            known = ", ".join(map(repr, self._keys))
            raise CannotOpen(
                f"it is encrypted with the key {name!r}, and this program has {known}",
                f"Start a worker that has the key {name!r}.",
            )
        salt, nonce, text = sealed[:SALT], sealed[SALT : SALT + NONCE], sealed[SALT + NONCE :]
        try:
            place = _place(what, kind, name)
            return bytes(self._cipher(_derived(key, salt)).decrypt(nonce, text, place))
        except (InvalidTag, ValueError):
            raise CannotOpen(
                f"it is not a {what.partition(' ')[0]} of {kind} that the key {name!r} encrypted",
                f"Check that {name!r} is the same key here and where it was encrypted. If it is, "
                "the text was altered, or is that of another kind.",
            ) from None


def new_key() -> str:
    """Make a key, as base64."""
    return base64.b64encode(secrets.token_bytes(32)).decode()


def _place(what: str, kind: str, key: str) -> bytes:
    return f"holdfast 1\n{what}\n{kind}\n{key}".encode()


def _derived(key: bytes, salt: bytes) -> bytes:
    # One key for each message: of random nonces alone, GCM should not see more than 2^32.
    return hmac.digest(key, b"holdfast 1 message\n" + salt, sha256)


def _check(key: bytes) -> str:
    return hmac.digest(key, b"holdfast 1 check", sha256).hex()[:8]


def _name(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,50}", name):
        raise Misuse(
            f"{name!r} cannot be the name of a key",
            why=caller(),
            fix="A name has 1 to 50 letters, digits, dots, dashes and underscores: 2026-11",
        )
    return name


def _key(name: str, key: Any) -> bytes:
    """Return the 32 bytes of a key; the error does not show it."""
    found: Any = key
    if isinstance(key, str):
        try:
            text = key.strip().translate(str.maketrans("-_", "+/"))
            found = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError):
            found = None
    if not isinstance(found, bytes) or len(found) != 32:
        told = f"{len(found)} bytes" if isinstance(found, bytes) else "not base64"
        raise Misuse(
            f"the key {name!r} is not 32 bytes, or those in base64 (it is {told})",
            why=caller(),
            fix='Make one:  python -c "from holdfast.crypto import new_key; print(new_key())"',
        )
    return found


def _cipher() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise Misuse(
            "encryption needs the package cryptography",
            why=caller(),
            fix='Run:  pip install "holdfast[crypto]"',
        ) from None
    return AESGCM
