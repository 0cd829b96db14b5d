"""A standby takes over by hand: what was confirmed is there, and calls that waited go on.

While it follows, a server reads from it, and says how old that is.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from holdfast import Client, NewJob, schema
from holdfast.errors import UnknownOutcome
from holdfast.records import new_id
from holdfast.server import Server as Api
from holdfast.server import Settings
from tests.cluster.servers import Server, Servers, frozen, until
from tests.server.serving import serving


@dataclass(frozen=True)
class Pair:
    """A primary that confirms nothing before its standby has it."""

    primary: Server
    standby: Server

    @property
    def url(self) -> str:
        """The address of whichever of them is the primary."""
        ports = f"port={self.primary.port},{self.standby.port}"
        return f"host=127.0.0.1,127.0.0.1 {ports} user=postgres dbname=postgres"

    def take_over(self) -> None:
        """Make the standby the primary."""
        self.standby.rows("select pg_promote()")


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two servers with the schema."""
    with Servers() as servers:
        primary = Server(servers, "primary")
        schema.migrate(primary.url)
        standby = Server(servers, "standby", source=primary)
        primary.rows("alter system set synchronous_standby_names = standby")
        primary.rows("select pg_reload_conf()")
        synchronous = "select 1 from pg_stat_replication where sync_state = 'sync'"
        until(lambda: primary.rows(synchronous), 60, "the standby does not follow")
        yield Pair(primary, standby)


def test_an_enqueue_that_the_standby_has_not_seen_is_never_confirmed(pair: Pair) -> None:
    job = NewJob(kind="greet", id=new_id())
    with (
        Client(pair.url, timeout=1.5, pool_size=1) as client,
        frozen(pair.primary.walsenders()),
    ):
        for repeat in (False, True):
            with pytest.raises(UnknownOutcome):
                client.enqueue_many([job], repeat=repeat)
        pair.primary.kill()
    pair.take_over()

    with Client(pair.url) as client:
        assert client.jobs.list() == []
        client.enqueue_many([job], repeat=True)
        client.enqueue_many([job], repeat=True)
        assert [one.id for one in client.jobs.list()] == [job.id]


def test_a_claim_is_held_by_the_standby_too_before_its_handler_begins(pair: Pair) -> None:
    with (
        Client(pair.url) as client,
        psycopg.connect(pair.primary.url) as connection,
    ):
        client.enqueue("greet")
        connection.execute(
            "select holdfast.claim('default', 'ada', gen_random_uuid(), durable => false)"
        )
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)
        connection.rollback()

        [lease] = client.claim(worker="ada")
        pair.primary.kill()
        pair.take_over()

        assert [answer.outcome for answer in client.ack([lease])] == ["done"]


def test_a_call_that_waits_for_a_server_that_stands_still_goes_on_with_its_successor(
    pair: Pair,
) -> None:
    stored: list[float] = []
    with Client(pair.url) as client:
        client.enqueue("greet")
        pair.primary.stop()

        def enqueue() -> None:
            client.enqueue("greet")
            stored.append(time.monotonic())

        calling = threading.Thread(target=enqueue)
        calling.start()
        pair.take_over()
        calling.join()
        assert len(stored) == 1
        assert len(client.jobs.list()) == 2


def test_a_server_that_reads_from_a_standby_shows_how_old_the_data_is(pair: Pair) -> None:
    settings = Settings(read_url=pair.standby.url, fresh=0.0, upkeep=False)
    with (
        Client(pair.primary.url) as client,
        serving(Api(pair.primary.url, settings=settings)) as server,
        server.client() as api,
    ):

        def kinds() -> set[str]:
            return {job["kind"] for job in api.get("/v1/jobs").json()["jobs"]}

        def behind() -> float:
            return float(api.get("/v1/system").json()["standby"]["behind"])

        client.enqueue("first")
        until(lambda: kinds() == {"first"}, 60, "the standby has not replayed")
        pair.standby.rows("select pg_wal_replay_pause()")
        paused = "select 1 where pg_get_wal_replay_pause_state() = 'paused'"
        until(lambda: pair.standby.rows(paused), 60, "the standby still replays")
        assert kinds() == {"first"}

        client.enqueue("second")
        early, late = behind(), behind()

        assert 0 < early < late
        assert kinds() == {"first"}
        pair.standby.rows("select pg_wal_replay_resume()")
        until(lambda: behind() == 0, 60, "the standby has not caught up")
        assert kinds() == {"first", "second"}
