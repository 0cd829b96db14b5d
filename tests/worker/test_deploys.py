"""Old and new workers side by side: a job that one cannot read is given back for the other."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from holdfast import App, NewJob
from holdfast.errors import InvalidTask
from holdfast.worker import Worker
from tests.worker.conftest import Running

Make = Callable[[], App]


@pytest.fixture
def release(database: str) -> Iterator[Make]:
    """Makes apps on one database, as releases of one program would."""
    made: list[App] = []

    def app() -> App:
        made.append(App(database))
        return made[-1]

    yield app
    for one in made:
        one.close()


@pytest.fixture
def run() -> Iterator[Callable[..., Running]]:
    """Starts workers beside the test; stops those that still run at its end."""
    running: list[Running] = []

    def begin(app: App, **options: Any) -> Running:
        running.append(Running(Worker(app, poll=0.1, **options)))
        return running[-1]

    yield begin
    for one in running:
        if one.error is None:
            one.stop()


def drain(app: App) -> None:
    Worker(app, until_idle=True).run()


def explained(app: App, id: Any) -> str:
    return app.client.jobs.explain(id)


def test_a_job_that_no_worker_can_read_waits_uncounted_and_says_why(
    release: Make, caplog: pytest.LogCaptureFixture
) -> None:
    app = release()

    @app.task
    def pay(order: int) -> None: ...

    id = app.client.enqueue("pay", {"order": 7, "currency": "EUR"}).id
    short = app.client.enqueue("pay", {}).id
    drain(app)

    for one in (id, short):
        job = app.client.jobs.get(one)
        assert job
        assert (job.state, job.attempt, app.client.jobs.attempts(one)) == ("queued", 0, [])
    told = explained(app, id)
    assert "could not read it" in told or "No running worker can read it" in told
    assert "there is no argument `currency`" in told
    assert 'old_arguments={"currency"' in told
    assert "the argument `order` is missing" in explained(app, short)
    assert [r.message for r in caplog.records] == ["job cannot be read here, and is given back"] * 2


def test_it_runs_as_soon_as_a_worker_comes_that_can_read_it(
    release: Make, run: Callable[..., Running]
) -> None:
    old, new = release(), release()
    ran = []

    @old.task(kind="pay")
    def pay_before(order: int) -> None:
        ran.append(("old", order))

    @new.task(keep_result=True)
    def pay(order: int, currency: str = "EUR") -> str:
        return currency

    handle = pay.enqueue(7, currency="USD")
    drain(old)
    job = new.client.jobs.get(handle.id)
    assert job
    assert job.state == "queued"

    run(new)
    # Without being told of the worker it would wait for a minute.
    assert handle.result(timeout=30) == "USD"
    assert ran == []


def test_an_edited_job_is_no_longer_said_to_be_unreadable(release: Make) -> None:
    app = release()

    @app.task
    def pay(order: int) -> None: ...

    id = app.client.enqueue("pay", {"ordre": 7}).id
    drain(app)
    assert "`ordre`" in explained(app, id)
    app.client.jobs.edit([id], payload={"order": 7})

    assert "`ordre`" not in explained(app, id)


def test_a_renamed_task_runs_the_jobs_of_its_old_name(release: Make) -> None:
    app = release()
    ran = []

    @app.task(aliases=["mail", "post"])
    def send(to: str) -> None:
        ran.append(to)

    app.client.enqueue_many(NewJob(kind=kind, payload={"to": kind}) for kind in ("mail", "post"))
    send.enqueue("send")
    Worker(app, until_idle=True, kinds=["send"]).run()

    assert sorted(ran) == ["mail", "post", "send"]


def test_old_names_of_arguments_are_read_and_those_that_are_gone_are_left_out(
    release: Make,
) -> None:
    app = release()
    ran: list[Any] = []

    @app.task(old_arguments={"user": "user_id", "note": None})
    def greet(user_id: int, shout: bool = False) -> None:
        ran.append((user_id, shout))

    @app.task(old_arguments={"user": "user_id"})
    def collect(user_id: int, **rest: Any) -> None:
        ran.append((user_id, rest))

    for kind, payload in (
        ("greet", {"user": 1, "note": "x"}),
        ("greet", {"user_id": 2}),
        ("greet", {"user_id": 3, "user": 9, "shout": True}),
        ("collect", {"user": 4, "more": 5}),
    ):
        app.client.enqueue(kind, payload)
    Worker(app, until_idle=True, concurrency=1).run()

    assert ran == [(1, False), (2, False), (3, True), (4, {"more": 5})]


@pytest.mark.parametrize("old", [{"name": "nobody"}, {"to": None}])
def test_an_old_argument_that_leads_nowhere_is_refused(release: Make, old: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="old_arguments"):

        @release().task(old_arguments=old)
        def send(to: str) -> None: ...


def test_two_tasks_cannot_have_one_name(release: Make) -> None:
    app = release()

    @app.task(aliases=["mail"])
    def send(to: str) -> None: ...

    with pytest.raises(InvalidTask, match="two tasks are of the kind 'mail'"):

        @app.task
        def mail(to: str) -> None: ...


def test_no_job_dies_and_none_runs_twice_while_old_and_new_roll_over(
    release: Make, run: Callable[..., Running]
) -> None:
    """Arguments added, removed and renamed; old and new producers and workers, all at once."""
    before, after = release(), release()
    ran: Counter[str] = Counter()

    @before.task(kind="added")
    async def added_before(n: str) -> None:
        ran[n] += 1

    @before.task(kind="removed")
    def removed_before(n: str, note: str) -> None:
        ran[n] += 1

    @before.task(kind="renamed")
    async def renamed_before(n: str, user: int) -> None:
        ran[n] += 1

    @before.task(kind="moved")
    def moved_before(n: str) -> None:
        ran[n] += 1

    @after.task
    async def added(n: str, region: str = "eu") -> None:
        ran[n] += 1

    @after.task(old_arguments={"note": None})
    def removed(n: str) -> None:
        ran[n] += 1

    @after.task(old_arguments={"user": "user_id"})
    async def renamed(n: str, user_id: int) -> None:
        ran[n] += 1

    @after.task(kind="moved_on", aliases=["moved"])
    def moved(n: str) -> None:
        ran[n] += 1

    def old_producer(turn: int) -> None:
        before.enqueue_many(
            [
                added_before.call(f"added-old-{turn}"),
                removed_before.call(f"removed-old-{turn}", "x"),
                renamed_before.call(f"renamed-old-{turn}", 1),
                moved_before.call(f"moved-old-{turn}"),
            ]
        )

    def new_producer(turn: int) -> None:
        after.enqueue_many(
            [
                added.call(f"added-new-{turn}", "us"),
                removed.call(f"removed-new-{turn}"),
                renamed.call(f"renamed-new-{turn}", 1),
                moved.call(f"moved-new-{turn}"),
            ]
        )

    olds = [run(before, concurrency=2), run(before, concurrency=2)]
    for turn in range(40):
        old_producer(turn)
    news = [run(after, concurrency=2)]
    for turn in range(40, 80):
        old_producer(turn)
        new_producer(turn)
    olds.pop().stop()
    news.append(run(after, concurrency=2))
    for turn in range(80, 120):
        new_producer(turn)
    olds.pop().stop()
    with psycopg.connect(after.url, autocommit=True) as conn:
        # What an old worker gave back a moment ago is due within seconds: not to be waited for.
        until_empty(conn)

    assert after.client.jobs.find("state:dead") == []
    assert set(ran.values()) == {1}
    assert len(ran) == 4 * (80 + 80)
    for one in news:
        one.stop()


def until_empty(conn: "psycopg.Connection[Any]") -> None:
    """Wait until no job is left; what is given back becomes due at once."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        conn.execute(
            "update holdfast.job set run_at = holdfast.now() "
            "where token is null and pos is null and run_at > holdfast.now()"
        )
        [(left,)] = conn.execute("select count(*) from holdfast.job").fetchall()
        if not left:
            return
        time.sleep(0.05)
    rows = conn.execute("select kind, payload, worker, run_at from holdfast.job limit 5").fetchall()
    raise AssertionError(f"jobs are left: {json.dumps(rows, default=str)}")
