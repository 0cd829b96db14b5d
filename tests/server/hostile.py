"""Hostile input over every route of both dialects: `python -m tests.server.hostile`.

The corpus is data: `corpus/values.json` is put into parts of paths, queries and fields of bodies,
`corpus/bodies.txt` is sent as it is. Every answer has to be a refusal that says why, or a success;
never a 500, never a word of where the database is or how the server is made.
"""

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from holdfast.server.http.route import Entry
from holdfast.server.routes import ROUTES

CORPUS = Path(__file__).with_name("corpus")
VALUES: list[Any] = json.loads((CORPUS / "values.json").read_text("utf-8"))
BODIES = (CORPUS / "bodies.txt").read_text("utf-8").splitlines()
# What no answer tells anybody: traces, SQL, where files and the database are.
LEAKS = re.compile(r"Traceback|File \"/|psycopg|PL/pgSQL|CONTEXT:|site-packages|host=|/\.venv/")
# These go on for ever, by design.
ENDLESS = ("/events/stream", "/queue/events")


def requests(count: int, seed: int = 1) -> Iterator[tuple[str, str, bytes | None]]:
    """Yield so many requests: a method, an address and a body."""
    chance = random.Random(seed)
    entries = [entry for entry in ROUTES if not entry.path.endswith(ENDLESS)]
    for nth in range(count):
        entry = entries[nth % len(entries)]
        yield entry.method, _address(entry, chance), _body(entry, chance)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _address(entry: Entry, chance: random.Random) -> str:
    def part(_: re.Match[str]) -> str:
        text = chance.choice([_text(chance.choice(VALUES)), "default", "x" * 300])
        return quote(text.encode("utf-8", "surrogatepass"), safe="") or "-"

    path = re.sub(r"{[^}]+}", part, entry.path)
    names = [chance.choice(["limit", "q", "cursor", "from", "queue", "wait", "job", "x"])]
    if isinstance(entry.query, type) and issubclass(entry.query, msgspec.Struct):
        names = [one.encode_name for one in msgspec.structs.fields(entry.query)] or names
    asked = []
    for name in chance.sample(names, k=min(len(names), chance.randrange(3))):
        text = _text(chance.choice(VALUES))
        asked.append(f"{name}={quote(text.encode('utf-8', 'surrogatepass'), safe='')}")
    return path + ("?" + "&".join(asked) if asked else "")


def _body(entry: Entry, chance: random.Random) -> bytes | None:
    if entry.method in ("GET", "DELETE"):
        return None
    if chance.random() < 0.3:
        return chance.choice(BODIES).encode("utf-8", "surrogatepass")
    names = ["kind", "queue", "payload", "x"]
    if isinstance(entry.body, type) and issubclass(entry.body, msgspec.Struct):
        names = [one.encode_name for one in msgspec.structs.fields(entry.body)] or names
    said = {name: chance.choice(VALUES) for name in names if chance.random() < 0.6}
    for name in ("kind", "worker", "queue"):
        if name in names and chance.random() < 0.5:
            said[name] = "default"
    said.pop("wait", None)
    return json.dumps(said).encode("utf-8", "surrogatepass")


def without_waiting(address: str) -> str:
    """Return an address that asks for no wait."""
    return re.sub(r"(wait|timeout)=[^&]*", r"\1=0", address)


def knock(api: httpx.Client, count: int, seed: int = 1) -> tuple[Counter[int], list[str]]:
    """Send so many requests; returns the statuses, and what is wrong with the answers."""
    statuses: Counter[int] = Counter()
    wrong: list[str] = []
    for method, address, body in requests(count, seed):
        address = without_waiting(address)
        headers = {} if body is None else {"Content-Type": "application/json"}
        answer = api.request(method, address, content=body, headers=headers)
        statuses[answer.status_code] += 1
        told = f"{method} {address[:200]} {(body or b'')[:200]!r}: {answer.status_code}"
        if answer.status_code >= 500 and not (
            answer.status_code == 503 and "retry-after" in answer.headers
        ):
            wrong.append(f"{told} {answer.text[:200]}")
        elif answer.status_code >= 400 and (found := LEAKS.search(answer.text)):
            wrong.append(f"{told} tells {found[0]!r}")
    return statuses, wrong


def main() -> None:
    """Knock at a server of its own, and say what came back."""
    from holdfast import embedded, schema
    from holdfast.server import Server, Settings
    from tests.server.serving import serving

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    with embedded.start(temporary=True) as database:
        schema.migrate(database.url)
        server = Server(database.url, settings=Settings(redact=["payload.to"]))
        with serving(server) as running, running.client() as api:
            statuses, wrong = knock(api, asked.requests, asked.seed)
    print(dict(sorted(statuses.items())))
    for one in wrong:
        print(one)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
