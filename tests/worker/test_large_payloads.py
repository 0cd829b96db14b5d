"""Large payloads: they go to a store, and the job carries their address."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from stat import S_ISREG
from typing import Any

import psycopg
import pytest

from holdfast import App
from holdfast.codec import told
from holdfast.crypto import Encryption, new_key
from holdfast.errors import Misuse
from holdfast.stores import ClaimCheck, DirectoryStore, TableStore
from holdfast.worker import Worker

Drain = Callable[..., Worker]

LARGE = "large " * 50


def declared(app: App, large: ClaimCheck | None, seen: list[Any], **settings: Any) -> Any:
    """Declare a task for threads; again with another store, as another program would."""

    @app.task(kind="resize", large_payloads=large, **settings)
    def resize(image: str) -> None:
        seen.append(image)

    return resize


def stored(app: App, handle: Any) -> Any:
    job = app.client.jobs.get(handle.id)
    assert job is not None
    return job


@pytest.fixture(params=["directory", "table"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Each store that is shipped."""
    return DirectoryStore(tmp_path / "payloads") if request.param == "directory" else TableStore()


def kept(app: App, store: Any) -> set[str]:
    """The addresses at which something is."""
    from datetime import UTC, datetime, timedelta

    after = datetime.now(UTC) + timedelta(hours=1)
    listed = store.list(app.client, after) if isinstance(store, TableStore) else store.list(after)
    return set(listed)


@pytest.mark.parametrize("encryption", [None, Encryption({"k": new_key()}, required=True)])
def test_a_large_payload_is_in_the_store_and_reaches_every_sort_of_handler(
    app: App, drain: Drain, store: Any, encryption: Encryption | None
) -> None:
    seen: list[Any] = []
    large = ClaimCheck(store, above=150)
    resize = declared(app, large, seen, encryption=encryption)

    @app.task(large_payloads=large, encryption=encryption)
    async def blur(image: str) -> None:
        seen.append(image)

    first, second = resize.enqueue(LARGE), blur.enqueue(LARGE + "2")
    small = resize.enqueue("small")

    for handle in (first, second):
        job = stored(app, handle)
        assert "large" not in job.payload_json.replace(store.name, "")
        assert f"in the store {store.name!r}" in (told(job.payload_json) or "")
    assert len(kept(app, store)) == 2
    assert "store" not in stored(app, small).payload_json
    drain()
    assert sorted(seen) == sorted([LARGE, LARGE + "2", "small"])


def test_an_async_caller_stores_it_too(app: App, drain: Drain, store: Any) -> None:
    seen: list[Any] = []
    resize = declared(app, ClaimCheck(store, above=10), seen)

    async def run() -> None:
        async with app:
            await resize.aenqueue(LARGE)
            await app.aenqueue_many([resize.call(LARGE)])

    asyncio.run(run())
    assert len(kept(app, store)) == 2
    drain()
    assert seen == [LARGE, LARGE]


def test_a_transaction_that_is_rolled_back_leaves_nothing_in_the_table(
    app: App, database: str
) -> None:
    table = TableStore()
    resize = declared(app, ClaimCheck(table, above=10), [])
    with psycopg.connect(database) as conn:
        resize.options(conn=conn).enqueue(LARGE)
        assert kept(app, table) == set()
        conn.rollback()
        assert kept(app, table) == set()
        resize.options(conn=conn).enqueue(LARGE)
    assert len(kept(app, table)) == 1


def test_what_no_job_has_is_swept_and_what_one_has_stays(
    app: App, drain: Drain, store: Any, database: str
) -> None:
    seen: list[Any] = []
    resize = declared(app, ClaimCheck(store, above=10), seen)
    resize.enqueue(LARGE)
    drain()
    waits = resize.options(delay=3600).enqueue(LARGE)
    if isinstance(store, DirectoryStore):
        with psycopg.connect(database) as conn:
            resize.options(conn=conn).enqueue(LARGE)
            conn.rollback()
    orphans = 2 if isinstance(store, DirectoryStore) else 1

    assert app.sweep_payloads() == 0  # they are young
    assert app.sweep_payloads(older_than=-60) == orphans
    assert kept(app, store) == {stored(app, waits).payload["$holdfast"]["address"]}
    app.client.jobs.cancel([waits.id])
    assert app.sweep_payloads(older_than=-60) == 0  # a cancelled job can be retried
    app.client.jobs.delete([waits.id])
    assert app.sweep_payloads(older_than=-60) == 1


@pytest.mark.parametrize("how", ["missing", "altered"])
def test_a_payload_that_is_gone_is_a_failed_attempt(
    app: App, drain: Drain, tmp_path: Path, how: str
) -> None:
    seen: list[Any] = []
    store = DirectoryStore(tmp_path)
    handle = declared(app, ClaimCheck(store, above=10), seen, max_attempts=1).enqueue(LARGE)
    [address] = kept(app, store)
    if how == "missing":
        store.delete(address)
    else:
        (tmp_path / address).write_bytes(b"{}")
    drain()

    job = stored(app, handle)
    assert (job.state, seen) == ("dead", [])
    says = "is not in the store 'files' any more" if how == "missing" else "is not the one that was"
    assert says in job.error


@pytest.mark.parametrize("other", [None, DirectoryStore("/nowhere", name="other")])
def test_a_worker_without_the_store_gives_the_job_back_uncounted(
    app: App, drain: Drain, tmp_path: Path, other: DirectoryStore | None
) -> None:
    seen: list[Any] = []
    large = ClaimCheck(DirectoryStore(tmp_path), above=10)
    handle = declared(app, large, seen, max_attempts=1).enqueue(LARGE)
    declared(app, ClaimCheck(other) if other else None, seen)
    drain()

    job = stored(app, handle)
    assert (job.state, job.attempt, seen) == ("queued", 0, [])
    assert "store" in app.client.jobs.explain(handle.id)
    declared(app, large, seen)
    drain()
    assert seen == [LARGE]


@pytest.mark.parametrize(
    "address",
    [
        "../secret",
        "/etc/passwd",
        ".hidden",
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "C:x",
        "a\0",
        "a\n",
        "sub",
        "a" * 300,
    ],
)
def test_an_address_does_not_lead_out_of_the_directory(tmp_path: Path, address: str) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "in" / "sub").mkdir(parents=True)
    store = DirectoryStore(tmp_path / "in")

    with pytest.raises(KeyError):
        store.get(address)
    if address != "sub":
        with pytest.raises(KeyError):
            store.put(address, b"x")
        with pytest.raises(KeyError):
            store.delete(address)
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["in", "secret", "sub"]


@pytest.mark.parametrize("address", ["", "../secret", "a" * 300, "sub", None])
def test_a_job_with_an_address_that_nobody_made_is_a_failed_attempt(
    app: App, drain: Drain, tmp_path: Path, address: str | None
) -> None:
    (tmp_path / "sub").mkdir()
    seen: list[Any] = []
    declared(app, ClaimCheck(DirectoryStore(tmp_path)), seen)
    mark = {"v": 1, "store": "files", "address": address}
    handle = app.client.enqueue("resize", {"$holdfast": mark}, max_attempts=1)
    drain()

    job = stored(app, handle)
    assert (job.state, seen) == ("dead", [])
    assert "is not in the store 'files' any more" in job.error


def test_a_payload_is_found_after_a_crash_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is written before it gets its name, and its name before the job is stored."""
    said: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted(place: int) -> None:
        is_file = S_ISREG(os.fstat(place).st_mode)
        names = {one.stat().st_ino: one.name for one in (tmp_path, *tmp_path.rglob("*"))}
        said.append("file" if is_file else names[os.fstat(place).st_ino])
        fsync(place)

    def renamed(self: Path, target: Path) -> Path:
        said.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "replace", renamed)
    store = DirectoryStore(tmp_path / "a" / "b")
    store.put("x", b"1")
    store.put("y", b"2")

    assert said == [tmp_path.name, "a", *["file", "rename", "b"] * 2]
    assert (store.get("x"), store.get("y")) == (b"1", b"2")


def test_a_write_that_fails_leaves_nothing_and_one_that_is_cut_is_swept(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path)
    declared(app, ClaimCheck(store), [])

    def full(_: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            store.put("x", b"1")
    assert list(tmp_path.iterdir()) == []

    with monkeypatch.context() as patched:  # a crash: nobody cleans up
        patched.setattr(os, "fsync", full)
        patched.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(OSError, match="no space"):
            store.put("x", b"1")
    with pytest.raises(KeyError):
        store.get("x")
    (tmp_path / "sub").mkdir()
    assert app.sweep_payloads(older_than=-60) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["sub"]


@pytest.mark.parametrize("given", [object(), DirectoryStore, "files", None])
def test_what_is_not_a_store_is_refused(given: Any) -> None:
    with pytest.raises(Misuse, match="is not a store of payloads"):
        ClaimCheck(given)


def test_a_store_without_a_name_and_a_size_below_zero_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="has no name"):
        ClaimCheck(DirectoryStore(tmp_path, name=""))
    with pytest.raises(Misuse, match="above=-1"):
        ClaimCheck(DirectoryStore(tmp_path), above=-1)
