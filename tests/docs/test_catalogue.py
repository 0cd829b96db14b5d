"""docs/reference/errors.md is the whole catalogue, and every code in it can be provoked."""

import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
import pytest

from holdfast import App, Client, HoldfastError, NewJob, adopt, current, embedded, schema
from holdfast.cli import locate, main
from holdfast.client.sync.queues import Queues
from holdfast.records import Done, Failed
from holdfast.server import Server, Settings
from holdfast.server.settings import Oidc
from holdfast.stores import ClaimCheck, DirectoryStore
from holdfast.upkeep.listener import Listener
from holdfast.worker import Worker, fleet
from holdfast.worker.process.source import AppSource
from holdfast.worker.screen import Screen
from tests.docs import pages
from tests.ports import free_port
from tests.server.serving import serving

PAGE = pages.ROOT / "docs" / "reference" / "errors.md"
LISTED = set(re.findall(r"^## (HF\d{3})$", PAGE.read_text("utf-8"), re.MULTILINE))
IN_SNIPPETS = {
    code
    for page in pages.pages()
    for block in pages.blocks(page)
    for code in re.findall(r"-- error (HF\d{3})", block.text)
}

Connect = Callable[..., psycopg.Connection]


def test_every_code_that_is_raised_is_in_the_catalogue_and_no_other() -> None:
    source = pages.ROOT / "src" / "holdfast"
    raised = {
        code
        for file in [*source.rglob("*.py"), *source.rglob("*.sql")]
        for code in re.findall(r"\bHF\d{3}\b", file.read_text("utf-8"))
    }

    assert sorted(raised) == sorted(LISTED)


def test_every_code_is_provoked_by_a_snippet_or_by_a_test_here() -> None:
    here = set(re.findall(r"\"(HF\d{3})\"", Path(__file__).read_text("utf-8")))

    assert sorted(LISTED - IN_SNIPPETS - here) == []
    assert sorted(here & IN_SNIPPETS) == []


def test_codes_of_the_table_cover_the_catalogue() -> None:
    table = re.findall(
        r"^\| (HF\d{3})(?:(?: to |, )(HF\d{3}))? \|", PAGE.read_text("utf-8"), re.MULTILINE
    )
    ranges = [(first, last or first) for first, last in table]

    outside = [code for code in LISTED if not any(a <= code <= b for a, b in ranges)]

    assert outside == []


def test_a_key_of_a_workflow_that_another_one_has_by_now(database: str) -> None:
    with Client(database) as client:
        [job] = client.workflows.start("import", [NewJob(kind="a")], key="1").jobs
        client.nack(client.claim(worker="w"), final=True)
        client.workflows.start("import", [NewJob(kind="a")], key="1")

        assert _code(lambda: client.jobs.retry([job.id])) == "HF217"


def test_a_workflow_that_takes_no_more_jobs(database: str, connect: Connect) -> None:
    with Client(database) as client:
        id = client.workflows.start("import", [NewJob(kind="a")]).id
        connect(database).execute("update holdfast.workflow set stopped_at = now()")

        assert _code(lambda: client.enqueue("b", workflow=id)) == "HF216"


def test_nobody_listens() -> None:
    with Client("postgresql://nobody@127.0.0.1:1/nothing") as client:
        assert _code(client.queues.list) == "HF100"


def test_no_postgresql_to_start(tmp_path: Path) -> None:
    assert _code(lambda: embedded.start(tmp_path / "pg", binaries=tmp_path)) == "HF101"


def test_all_connections_are_in_use(database: str) -> None:
    with Client(database, pool_size=1, timeout=1.5) as client:
        jobs = (NewJob(kind="a") for _ in iter(client.queues.list, None))

        assert _code(lambda: client.copy(jobs)) == "HF102"


def test_no_schema(empty_database: str) -> None:
    with Client(empty_database) as client:
        assert _code(lambda: client.enqueue("a")) == "HF110"


def test_a_schema_of_the_future(database: str, connect: Connect) -> None:
    connect(database).execute(
        "insert into holdfast.migration (version, name, checksum, release) "
        "values (9999, '9999_future', '', '99.0')"
    )

    assert _code(lambda: schema.check(database)) == "HF111"


def test_functions_of_another_release(database: str, connect: Connect) -> None:
    connect(database).execute("update holdfast.migration set checksum = '' where version = 0")

    assert _code(lambda: schema.check(database)) == "HF112"


def test_a_migration_in_somebodys_way(database: str, connect: Connect) -> None:
    connect(database).execute("update holdfast.migration set checksum = '' where version = 0")
    reader = connect(database, autocommit=False)
    reader.execute("select from holdfast.jobs")

    assert _code(lambda: schema.migrate(database, patience=timedelta(0))) == "HF113"


def test_an_outcome_nobody_knows(database: str, connect: Connect) -> None:
    with Client(database, application_name="cut off") as client, ThreadPoolExecutor() as threads:
        job = client.enqueue("a")
        holder = connect(database, autocommit=False)
        holder.execute("select from holdfast.job for update")
        moving = threads.submit(_code, lambda: client.jobs.move([job.id], "elsewhere"))
        while connect(database).execute(_CUT_OFF).rowcount == 0:
            pass

        assert moving.result() == "HF120"


def test_a_table_that_is_not_there(database: str) -> None:
    assert _code(lambda: adopt.plan(database, "nothing")) == "HF250"


def test_a_table_that_is_in_use_for_long(database: str, connect: Connect) -> None:
    connect(database).execute("create table t (id integer primary key, status text)")
    plan = adopt.plan(database, "t")
    busy = connect(database, autocommit=False)
    busy.execute("select from t")

    assert _code(lambda: adopt.adopt(database, plan, patience=timedelta(0))) == "HF251"


def test_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)

    assert _code(Client) == "HF200"


def test_a_lease_that_is_lost(database: str) -> None:
    with Client(database) as client:
        job = client.enqueue("a")
        client.claim(worker="a")
        [settled] = client.ack([(job.id, uuid4())])

        assert _code(settled.raise_if_lost) == "HF300"


def test_a_step_that_is_called_twice_and_an_event_that_does_not_come(database: str) -> None:
    app, told = App(database), list[str]()

    @app.task(max_attempts=1)
    def twice() -> None:
        current().step("one", int)
        current().step("one", int)

    @app.task
    def late() -> None:
        told.append(_code(lambda: current().wait_event("never", timeout=0)))

    handles = [twice.enqueue(), late.enqueue()]
    Worker(app, until_idle=True).run()
    died = app.client.jobs.get(handles[0].id)
    app.close()

    assert died is not None
    assert (str(died.error).split()[1], told) == ("HF213", ["HF341"])


def test_a_job_nobody_knows(database: str) -> None:
    with Client(database) as client:
        [settled] = client.ack([(uuid4(), uuid4())])

        assert _code(settled.raise_if_lost) == "HF310"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["queue", "show", "nosuch"], "HF311"),
        (["worker", "stop", "nosuch"], "HF313"),
        (["worker", "nosuch.py"], "HF240"),
        (["op", "show", "4711"], "HF314"),
        (["strike", "lift", "4711"], "HF318"),
        (["token", "revoke", "nosuch"], "HF315"),
        (["anomaly", "show", "nosuch"], "HF319"),
        (["workflow", "show", "4711f00d"], "HF320"),
        (["serve", "--host", "0.0.0.0"], "HF400"),
        (["job", "cancel", "kind:a"], "HF401"),
    ],
)
def test_commands_show_the_code_first(
    command: list[str], code: str, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(database) as client:
        client.enqueue("a")

    with pytest.raises(SystemExit):
        main(["--url", database, *command], prog_name="holdfast")

    assert capsys.readouterr().err.split()[0] == code


def test_a_port_that_is_taken(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit):
        main(["serve", "--url", database, "--quiet", "--port", str(taken.getsockname()[1])])

    assert capsys.readouterr().err.split()[0] == "HF405"


@pytest.mark.parametrize(
    ("method", "path", "options", "code"),
    [
        ("POST", "/v1/lanes/nosuch/release", {"json": {}}, "HF316"),
        ("GET", "/queue/message", {}, "HF317"),
        ("GET", "/v1/queues", {"headers": {"Authorization": "Bearer hf_wrong"}}, "HF402"),
        ("GET", "/v1/queues", {"headers": {"Host": "evil.example"}}, "HF403"),
        ("GET", "/nosuch", {}, "HF404"),
        ("POST", "/v1/jobs", {"json": {}}, "HF406"),
        ("GET", "/v1/jobs/{acked}", {}, "HF410"),
        ("POST", "/v1/jobs", {"json": {"kind": "b"}, "headers": {"Idempotency-Key": "k"}}, "HF411"),
        ("POST", "/v1/operations", {"json": {"preview_token": "{old}"}}, "HF412"),
        ("POST", "/v1/jobs", {"content": b"x" * 5000}, "HF413"),
        ("GET", "/v1/events/stream", {}, "HF429"),
    ],
)
def test_the_server_tells_the_code(
    method: str, path: str, options: dict[str, Any], code: str, database: str, connect: Connect
) -> None:
    with Client(database) as client:
        acked = client.enqueue("a")
        client.ack(client.claim(worker="w"))
        preview = client.operations.preview("cancel", "kind:a")
    connect(database).execute(
        "update holdfast.operation set created_at = now() - interval '11 minutes'"
    )
    known = {"acked": str(acked.id), "old": f"pv_{preview.token}"}
    if "preview_token" in options.get("json", {}):
        options = {"json": {"preview_token": known["old"]}}

    with (
        serving(Server(database, settings=Settings(body_limit=4096, streams=0))) as server,
        server.client() as api,
    ):
        api.post("/v1/jobs", json={"kind": "a"}, headers={"Idempotency-Key": "k"})
        if code == "HF317":
            api.get("/queue/message")
        answer = api.request(method, path.format(**known), **options)

    told = answer.json()
    # Relay's routes have a word of their own there.
    assert told.get("holdfast_code", told["code"]) == code


def test_an_app_whose_module_fails(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text("raise ValueError")

    assert _code(lambda: locate.named(f"{tmp_path}/failing.py")) == "HF241"


def test_a_worker_that_dies_as_soon_as_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "FIRST_PAUSE", 0.0)
    nowhere = AppSource("nosuch", "app", (), (), "")
    started = fleet.Fleet(nowhere, [fleet.Role("worker", {})], screen=Screen("none"))

    assert _code(started.run) == "HF340"


def test_an_error_nobody_expected(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("nobody expected this")

    monkeypatch.setattr(Queues, "list", fail)

    with pytest.raises(SystemExit):
        main(["--url", database, "queue", "list"], prog_name="holdfast")

    assert capsys.readouterr().err.split()[0] == "HF000"


def test_a_payload_its_function_does_not_take() -> None:
    task = App("postgresql://").task(kind="greet")(lambda name: None)

    assert _code(lambda: task.arguments.decode("{}")) == "HF230"


def test_a_function_that_cannot_be_a_task() -> None:
    assert _code(lambda: App("postgresql://").task(lambda: None)) == "HF231"


def test_a_result_that_cannot_be_kept() -> None:
    task = App("postgresql://").task(kind="greet", keep_result=True)(lambda: None)

    assert _code(lambda: task.encode_result(object())) == "HF232"


def test_a_payload_that_is_not_in_its_store(tmp_path: Path, database: str) -> None:
    with App(database) as app:
        store = DirectoryStore(tmp_path)
        task = app.task(kind="greet", large_payloads=ClaimCheck(store, above=1))(_add)
        task.enqueue(1, 2)
        [lease] = app.client.claim(worker="a")
        for file in tmp_path.iterdir():
            file.unlink()
        payload = msgspec.json.encode(lease.payload)

        assert _code(lambda: task.arguments.decode(payload)) == "HF233"


def test_results_there_are_not(database: str) -> None:
    with App(database) as app:
        task = app.task(kind="add", keep_result=True, max_attempts=1)(_add)
        dead, cancelled, odd, deleted, waiting = (task.enqueue(n, 1) for n in range(5))
        cancelled.cancel()
        died, done, gone = app.client.claim(worker="a", limit=3)
        app.client.settle([Failed(died), Done(done, "x", keep=True), Done(gone)])

        codes = [_code(partial(job.result, 0)) for job in (dead, cancelled, odd, deleted, waiting)]

        assert codes == ["HF330", "HF331", "HF334", "HF332", "HF333"]


def test_an_event_loop_that_is_blocked(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.worker.leases.BLOCKED", 0.2)
    with App(database) as app:
        app.task(kind="rude")(_block).enqueue()
        Worker(app, until_idle=True, lease=3).run()

    assert "HF301" in caplog.text


def test_a_listener_that_hears_nothing(
    database: str,
    empty_database: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("holdfast.upkeep.listener.TEST_PATIENCE", 0.2)
    stop = threading.Event()
    # Notifications do not cross databases, as they do not cross a pooler.
    with Client(database, listen_url=empty_database) as client:
        listener = Listener(client, worker="a", heard=lambda queue: None)
        thread = threading.Thread(target=listener.run, args=[stop])
        thread.start()
        while not caplog.records and thread.is_alive():
            thread.join(0.05)
        stop.set()
        thread.join()

    assert "HF500" in caplog.text
    assert not listener.up


async def _block() -> None:
    time.sleep(2)


def _add(number: int, to: int) -> int:
    return number + to


_CUT_OFF = """
select pg_terminate_backend(pid)
from pg_stat_activity
where application_name = 'cut off' and wait_event_type = 'Lock'
"""


def _code(call: Callable[..., object]) -> str:
    with pytest.raises(HoldfastError) as caught:
        call()
    return caught.value.code


def test_an_identity_provider_that_does_not_answer(database: str) -> None:
    nobody = f"http://localhost:{free_port()}"
    oidc = Oidc(
        issuer=nobody, client_id="a", client_secret="b", public_url="http://localhost", groups=[]
    )

    with (
        serving(Server(database, settings=Settings(ways=("oidc",), oidc=oidc))) as served,
        served.client() as api,
    ):
        refused = api.get("/oidc/sign-in")

    assert (refused.status_code, refused.json()["code"]) == (503, "HF414")
