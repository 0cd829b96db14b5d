"""Data that does not fit the contract, over all its addresses: `python -m tests.server.negative`.

Schemathesis makes requests of both dialects whose bodies, queries and paths break what the contract
says. None of them may be answered with a 500; a 503 has to say when to come again.
"""

import argparse
import os
import sys
from collections import Counter
from contextlib import suppress
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from holdfast.server.api.contract import document_of

# They do not end.
STREAMS = ("streamEvents", "streamMessages")


@schemathesis.serializer("application/x-ndjson")
def ndjson(context: Any, value: Any) -> Any:
    """Send whatever it is as text."""
    return str(value).encode("utf-8", "surrogatepass")


def refuse(url: str, examples: int, chance: int = 1) -> tuple[Counter[int], list[str]]:
    """Send so many requests to each address; returns the statuses, and what is wrong."""
    statuses: Counter[int] = Counter()
    wrong: list[str] = []
    schema = schemathesis.openapi.from_dict(document_of())
    for found in schema.exclude(operation_id=list(STREAMS)).get_all_operations():
        operation = found.ok()
        strategy = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

        @seed(chance)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def send(case: Any) -> None:
            if isinstance(case.body, dict) and "wait" in case.body:
                case.body["wait"] = 0
            if case.query and "timeout" in case.query:
                case.query["timeout"] = 0
            # Wrong secrets would close the address to all that follows.
            for name in ("Authorization", "X-API-Key", "Cookie"):
                (case.headers or {}).pop(name, None)
            (case.cookies or {}).clear()
            answer = case.call(base_url=url)
            statuses[answer.status_code] += 1
            late = answer.status_code == 503 and "retry-after" in answer.headers
            if answer.status_code >= 500 and not late:
                told = f"{case.method} {case.formatted_path} {case.query} {case.body!r:.200}"
                wrong.append(f"{told}: {answer.status_code} {answer.text[:200]}")

        # An address that takes nothing takes nothing wrong.
        with suppress(Unsatisfiable):
            send()
    return statuses, wrong


def main() -> None:
    """Send them to a server of its own, and say what came back."""
    from holdfast import embedded, schema
    from holdfast.server import Server, Settings
    from tests.server.serving import serving

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--examples", type=int, default=100, help="of each address")
    options.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    asked = options.parse_args()
    with embedded.start(temporary=True) as database:
        schema.migrate(database.url)
        with serving(Server(database.url, settings=Settings(hosts=("*",)))) as running:
            statuses, wrong = refuse(running.url, asked.examples, asked.seed)
    print(f"seed {asked.seed}: {dict(sorted(statuses.items()))}")
    for one in wrong:
        print(one)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
