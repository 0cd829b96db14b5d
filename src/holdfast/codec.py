"""What becomes of a payload between its producer and its handler: the one place that changes it.

A payload that was changed is an object with one field, MARK, that says how to read it: encrypted
with a key, or kept in a store under an address, or both. Results and steps can be encrypted too.
"""

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from holdfast.crypto import NONCE, SALT, TAG, CannotOpen, Encryption
from holdfast.errors import InvalidPayload, PayloadLost
from holdfast.jsonb import Encoded
from holdfast.records import NewJob
from holdfast.stores import ClaimCheck, TableStore, new_address

if TYPE_CHECKING:
    from holdfast.client import AsyncClient, Client

MARK = "$holdfast"
_QUOTED = f'"{MARK}"'


class Coded(msgspec.Struct, omit_defaults=True):
    """How to read what was changed; `of` is the kind of the job whose result it is."""

    v: int
    key: str | None = None
    of: str | None = None
    data: str | None = None
    store: str | None = None
    address: str | None = None
    bytes: int = 0
    sha256: str | None = None


class Elsewhere(Exception):  # noqa: N818 - caught by whoever can wait for it
    """A payload is in a store, and to fetch it here would block the event loop."""


# What goes to a store: the address, and the bytes.
Large = tuple[str, bytes]


class Codec:
    """Changes the payloads of one task, and changes them back.

    `kinds` are what the task is and was called: what was encrypted for one of them is its own.
    """

    def __init__(
        self,
        encryption: Encryption | None,
        kinds: Sequence[str],
        large: ClaimCheck | None = None,
        client: "Callable[[], Client] | None" = None,
    ) -> None:
        self.encryption = encryption
        self.large = large
        self._kinds = tuple(kinds)
        self._client = client

    @property
    def shape(self) -> list[str]:
        """What it can read, for a worker to say."""
        keys = self.encryption.shape if self.encryption else []
        return [*keys, f"store {self.large.store.name}"] if self.large else keys

    def stored(self, job: NewJob) -> tuple[NewJob, Large | None]:
        """Return a job with its payload as it is stored, and what is to be put into the store."""
        if job.payload is None:  # all that it takes are results
            return job, None
        key, body = None, bytes(job.payload)
        if self.encryption:
            key, body = self.encryption.seal(body, "payload", self._kinds[0])
        if self.large is not None and len(body) > self.large.above:
            address, digest = new_address(), sha256(body).hexdigest()
            coded = Coded(
                1, key, store=self.large.store.name, address=address, bytes=len(body), sha256=digest
            )
            return replace(job, payload=_marked(coded)), (address, body)
        if key is None:
            return job, None
        return replace(job, payload=_marked(Coded(1, key, data=_text(body)))), None

    def put(self, client: "Client", large: Large) -> None:
        """Put a payload into the store, in the client's transaction if the store is a table."""
        assert self.large is not None
        store = self.large.store
        if isinstance(store, TableStore):
            client._door.run(store.put(*large))
        else:
            store.put(*large)

    async def aput(self, client: "AsyncClient", large: Large) -> None:
        """Like `put`, on an event loop."""
        assert self.large is not None
        store = self.large.store
        if isinstance(store, TableStore):
            await client._door.run(store.put(*large))
        else:
            await asyncio.to_thread(store.put, *large)

    def payload(self, text: Encoded, *, fixed: bool = False) -> Encoded:
        """Return a payload as it is stored in the row; `fixed`: the same for the same text."""
        if self.encryption is None:
            return text
        key, sealed = self.encryption.seal(text, "payload", self._kinds[0], fixed=fixed)
        return _marked(Coded(1, key, data=_text(sealed)))

    def result(self, text: Encoded, step: str = "") -> Encoded:
        """Return a result, of a step if it is named, as it is stored."""
        if self.encryption is None:
            return text
        what, kind = _what(step), self._kinds[0]
        key, sealed = self.encryption.seal(text, what, kind)
        return _marked(Coded(1, key, None if step else kind, _text(sealed)))

    def opened(
        self, stored: str | bytes, old: Mapping[str, str | None] | None = None
    ) -> str | bytes:
        """Return a payload as it was enqueued; raises InvalidPayload if it cannot be read here.

        Results of other jobs are in it as those jobs stored them, beside what is encrypted and
        never in its place. `old` has the names that arguments had before, and those of today.
        """
        if not is_coded(stored):
            if self._required and not _has_only_nulls(stored):
                raise _unread(
                    "it is not encrypted, and only what is encrypted is run",
                    "Enqueue it by the task; or declare it with  Encryption(…, required=False)",
                )
            return stored
        try:
            given = _OBJECT.decode(stored)
            read: dict[str, Any] = {}
            if (own := given.pop(MARK, None)) is not None:
                read = _OBJECT.decode(self._open(_coded(own), "payload", self._kinds))
            names = old or {}
            today = {names.get(name) or name for name in read}
            for name, value in given.items():
                if name in read or (names.get(name) or name) in today:
                    raise CannotOpen(
                        f"the argument `{name}` is encrypted, and another one is beside it",
                        "Enqueue it by the task, with each argument once.",
                    )
                read[name] = self._taken(value)
            return msgspec.json.encode(read)
        except CannotOpen as problem:
            raise _unread(problem.what, problem.fix) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise _unread(f"it is marked as encrypted, and is not: {error}", "") from None

    def opened_result(self, stored: str, step: str = "") -> str | bytes:
        """Return a result as it was returned; raises CannotOpen."""
        coded = _one(stored) if is_coded(stored) else None
        if coded is not None:
            return self._open(coded, _what(step), self._kinds)
        if self._required:
            raise CannotOpen(
                "it is not encrypted, and only what is encrypted is read",
                "If it was stored before, declare the task with  Encryption(…, required=False)",
            )
        return stored

    @property
    def _required(self) -> bool:
        return self.encryption is not None and self.encryption.required

    def _taken(self, value: msgspec.Raw) -> Any:
        """Return the result of another job, or the list of several, that a payload took."""
        try:
            several = _LIST.decode(value)
        except msgspec.ValidationError:
            return self._taken_one(value)
        return [self._taken_one(one) for one in several]

    def _taken_one(self, value: msgspec.Raw) -> msgspec.Raw:
        text = bytes(value)
        if is_coded(text) and (coded := _one(text)) is not None:
            return msgspec.Raw(self._open(coded, "result", [coded.of or ""]))
        # One that failed has no result, and says nothing.
        if self._required and text != b"null":
            raise CannotOpen("a part of it is not encrypted", "Enqueue it by the task.")
        return value

    def _open(self, coded: Coded, what: str, kinds: Sequence[str]) -> bytes:
        if coded.v != 1 or (coded.data is None) == (coded.store is None):
            raise CannotOpen(
                f"it is stored in a way that this version does not know (v{coded.v})",
                "Start a worker of a newer Holdfast.",
            )
        if coded.store is not None and what != "payload":
            raise CannotOpen("a result is in a store, and only payloads are", "")
        if coded.key is None and (coded.store is None or self._required):
            raise CannotOpen("it is not encrypted", "Enqueue it by the task.")
        if coded.key is not None and self.encryption is None:
            raise CannotOpen(
                f"it is encrypted with the key {coded.key!r}, and this program has none",
                "Start a worker that declares it:  @app.task(encryption=…)",
            )
        sealed = self._fetched(coded) if coded.data is None else _bytes(coded.data)
        if coded.key is None or self.encryption is None:
            return sealed
        for kind in kinds[:-1]:
            try:
                return self.encryption.open(coded.key, sealed, what, kind)
            except CannotOpen:
                continue
        return self.encryption.open(coded.key, sealed, what, kinds[-1])

    def is_elsewhere(self, stored: str | bytes) -> bool:
        """Whether a payload has to be fetched from a store."""
        if self.large is None or not is_coded(stored):
            return False
        try:
            own = _OBJECT.decode(stored).get(MARK)
            return own is not None and _coded(own).store is not None
        except (msgspec.DecodeError, RecursionError, CannotOpen):
            return False  # who opens it is told what is wrong

    def _fetched(self, coded: Coded) -> bytes:
        store = self.large.store if self.large else None
        if store is None or store.name != coded.store:
            raise CannotOpen(
                f"it is in the store {coded.store!r}, and this program has "
                + (f"the store {store.name!r}" if store else "none"),
                f"Start a worker that has the store {coded.store!r}:  @app.task(large_payloads=…)",
            )
        address = coded.address or ""
        try:
            if isinstance(store, TableStore):
                assert self._client is not None
                body = store.get(self._client(), address)
            else:
                body = store.get(address)
        except KeyError:
            raise PayloadLost(
                f"the payload is not in the store {coded.store!r} any more: {address}",
                why="Somebody deleted it, or this program looks in another place of that name.",
                fix="Put it back, or delete the job.",
            ) from None
        if sha256(body).hexdigest() != coded.sha256:
            raise PayloadLost(
                f"the payload in the store {coded.store!r} is not the one that was enqueued: "
                f"{address}",
                why=f"It has {len(body):,} bytes, and {coded.bytes:,} were stored.",
            )
        return body


def is_coded(stored: str | bytes) -> bool:
    """Whether something may have been changed; what merely has the word in it is looked at."""
    if isinstance(stored, str):
        return _QUOTED in stored
    return _QUOTED.encode() in stored


def told(stored: str | None) -> str | None:
    """Say how something is stored, to a person; None if it is as it was enqueued."""
    if stored is None or not is_coded(stored):
        return None
    try:
        coded = _one(stored)
    except (msgspec.DecodeError, CannotOpen):
        return None
    if coded is None:
        return None
    if coded.store is not None:
        sealed = f", encrypted with the key {coded.key!r}" if coded.key else ""
        return f"in the store {coded.store!r} at {coded.address}, {coded.bytes:,} bytes{sealed}"
    if coded.key is None:
        return None
    data = coded.data or ""
    size = max(0, len(data) * 3 // 4 - data.count("=") - SALT - NONCE - TAG)
    return f"encrypted with the key {coded.key!r}, {size:,} bytes"


def _what(step: str) -> str:
    return f"step {step}" if step else "result"


def _marked(coded: Coded) -> Encoded:
    return Encoded(msgspec.json.encode({MARK: coded}))


def _one(stored: str | bytes) -> Coded | None:
    """Return how to read a value; None if it is not one that was changed."""
    try:
        given = _OBJECT.decode(stored)
    except msgspec.ValidationError:
        return None
    return _coded(given[MARK]) if given.keys() == {MARK} else None


def _coded(mark: msgspec.Raw) -> Coded:
    try:
        return _CODED.decode(mark)
    except msgspec.DecodeError as error:
        raise _not_marked(error) from None


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise _not_marked(error) from None


def _not_marked(error: Exception) -> CannotOpen:
    return CannotOpen(
        f"it is marked as encrypted, and is not: {error}",
        "Another program wrote it, or changed it.",
    )


def _has_only_nulls(stored: str | bytes) -> bool:
    """Whether a payload has nothing but results, and all are of jobs that have none."""
    try:
        given = _OBJECT.decode(stored)
    except (msgspec.DecodeError, RecursionError):
        return False
    return bool(given) and all(_is_null(value) for value in given.values())


def _is_null(value: msgspec.Raw) -> bool:
    try:
        return all(bytes(one) == b"null" for one in _LIST.decode(value))
    except msgspec.ValidationError:
        return bytes(value) == b"null"


def _text(sealed: bytes) -> str:
    return base64.b64encode(sealed).decode()


def _unread(what: str, fix: str) -> InvalidPayload:
    return InvalidPayload(f"the payload cannot be read: {what}", fix=fix)


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_CODED = msgspec.json.Decoder(Coded)
