# pyright: strict
"""What a type checker must accept of the developer's door, and what it must refuse.

A line that ends with `# refused` must be reported by every checker, every other by none.
"""

from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from psycopg import AsyncConnection, Connection

from holdfast import App, Cancel, Release, Retry, chain, current, group
from holdfast.app import Call, Handle, Task
from holdfast.flow import Flow, Group
from holdfast.outcome import NEVER, Exponential, Fixed
from holdfast.records import new_id
from holdfast.workflow import Run

app = App("postgresql://localhost/shop", name="shop")


@app.task
def greet(name: str, shout: bool = False) -> str:
    return name.upper() if shout else name


@app.task(queue="mail", max_attempts=5, retry=Exponential(cap=timedelta(hours=1)))
async def send(to: str, *cc: str, retries: int = 3) -> list[int]:
    return [len(to), len(cc), retries]


@app.task
def nothing(first: int, /, *, second: bytes) -> None:
    if first:
        raise Retry(in_=30)
    raise Release() if second else Cancel("nothing to do")


# What tasks are.

assert_type(greet("Ada"), str)
assert_type(greet.enqueue("Ada"), Handle[str])
assert_type(greet.enqueue("Ada").result(timeout=100), str)
assert_type(greet.options(delay=5).enqueue("Ada", shout=True), Handle[str])
assert_type(greet.options(delay=5).options(priority=3).enqueue("Ada").result(), str)
assert_type(greet.call("Ada"), Call[str])
assert_type(send.call("ada@x.io", "grace@x.io", retries=1), Call[list[int]])
assert_type(send.enqueue("ada@x.io").result(), list[int])
assert_type(app.enqueue_many(greet.call(name) for name in ["Ada"]), list[Handle[str]])
nothing.enqueue(1, second=b"")
mixed: list[Call[Any]] = [greet.call("Ada"), send.call("ada@x.io")]
assert_type(app.enqueue_many(mixed), list[Handle[Any]])
kept: Task[..., str, Any] = greet


async def asynchronous() -> None:
    assert_type(await send("ada@x.io"), list[int])
    assert_type(await send.aenqueue("ada@x.io"), Handle[list[int]])
    assert_type(await (await send.aenqueue("ada@x.io")).aresult(), list[int])
    assert_type(await greet.options(queue="mail").aenqueue("Ada"), Handle[str])
    assert_type(await app.aenqueue_many([send.call("ada@x.io")]), list[Handle[list[int]]])
    plain: Coroutine[Any, Any, list[int]] = send("ada@x.io")
    await plain


# Arguments that are wrong, directly, through options, in bulk.

greet(42)  # refused
greet.enqueue(42)  # refused
greet.enqueue("Ada", shot=True)  # refused
greet.enqueue()  # refused
greet.enqueue("Ada", True, 3)  # refused
greet.options(delay=5).enqueue(42)  # refused
greet.options(delay=5).options(queue="mail").enqueue(nmae="Ada")  # refused
greet.call(name=42)  # refused
greet.options(priority=9).call(42)  # refused
app.enqueue_many(greet.call(number) for number in range(3))  # refused
app.enqueue_many([greet.enqueue("Ada")])  # refused
send.enqueue("ada@x.io", 42)  # refused
send.enqueue("ada@x.io", retries="3")  # refused
nothing.enqueue(first=1, second=b"")  # refused
nothing.enqueue(1, b"")  # refused


async def wrong() -> None:
    await greet.aenqueue(42)  # refused
    await send.options(conn=None).aenqueue(to=1)  # refused
    (await send.aenqueue("ada@x.io")).aresult().upper()  # refused


# Results that are not what they are taken for.

number: int = greet.enqueue("Ada").result()  # refused
handle: Handle[int] = greet.enqueue("Ada")  # refused
text: str = send.enqueue("ada@x.io").result()  # refused
numbers: list[Handle[int]] = app.enqueue_many([greet.call("Ada")])  # refused
sent: list[int] = send("ada@x.io")  # refused

# Options and settings.


def by_order(order: int, **_: Any) -> str | None:
    return f"order-{order}" if order else None


greet.options(queue="mail", run_at=datetime.now(UTC), key="a", on_conflict="replace", headers={})
greet.options(dealy=5)  # refused
greet.options(priority="high")  # refused
greet.options(on_conflict="ignore")  # refused
greet.options(run_at="tomorrow")  # refused
app.task(queue=3)  # refused
app.task(timout=3)  # refused
app.task(retry="soon")  # refused
app.task(
    retry={ValueError: NEVER, OSError: Fixed(30), Exception: lambda attempt, error: attempt * 2.0}
)
app.task(key=by_order, lane="orders")
app.task(key=42)  # refused


# Schedules, checks and the lifespan leave what they decorate as it was.


@app.schedule("30 5 * * MON-FRI", tz="Europe/Paris", missed="once", overlap="skip")
@app.schedule(every=timedelta(minutes=5), name="often", payload={"day": "today"})
@app.task
async def rates(day: str = "today") -> float:
    return 1.5


assert_type(rates.enqueue(day="monday"), Handle[float])
rates.enqueue(day=1)  # refused
app.schedule("30 5 * * *", missed="never")  # refused
app.schedule("30 5 * * *")(len)  # refused


@rates.done_when
def already_done(conn: Any, job: Any) -> bool:
    return bool(conn and job)


assert_type(already_done(1, 2), bool)
rates.done_when("select exists (select from rates where day = %(day)s)")


@app.lifespan
async def lifespan(app: App) -> AsyncIterator[dict[str, str]]:
    yield {"app": app.url}


# Chains and groups: what one returns is what the next takes.


@app.task
def count(text: str) -> int:
    return len(text)


@app.task
def add(numbers: list[int], start: int = 0) -> float:
    return start + sum(numbers)


@app.task
def nothing_of(number: float) -> None: ...


assert_type(chain(greet.call("Ada"), count), Flow[int])
assert_type(chain(greet.call("Ada"), greet, count), Flow[int])
assert_type(chain(send.call("ada@x.io"), add), Flow[float])
assert_type(greet.call("Ada").then(count), Flow[int])
assert_type(greet.call("Ada").then(count, if_failed="run").enqueue(), Handle[int])
assert_type(greet.call("Ada").then(count).enqueue().result(), int)
assert_type(group(count.call("a"), count.call("b")), Group[int])
assert_type(group(count.call("a"), greet.call("b").then(count)).then(add), Flow[float])
assert_type(count.map(["a", "b"]), Group[int])
assert_type(count.map(["a", "b"]).then(add).enqueue().result(), float)
assert_type(count.options(queue="mail").map(["a"]).enqueue(), list[Handle[int]])


def nightly(names: list[str]) -> Flow[float]:
    return group(*(greet.call(name).then(count) for name in names)).then(add)


assert_type(nightly(["Ada"]).enqueue(), Handle[float])


async def asynchronous_flows() -> None:
    assert_type(await nightly(["Ada"]).aenqueue(), Handle[float])
    assert_type(await count.map(["a"]).aenqueue(), list[Handle[int]])


chain(count.call("Ada"), greet)  # refused
chain(greet.call("Ada"), count, count)  # refused
chain(greet.call("Ada"), add)  # refused
chain(greet, count)  # refused
count.call("Ada").then(count)  # refused
greet.call("Ada").then(count.call("Ada"))  # refused
greet.call("Ada").then(count, if_failed="stop")  # refused
greet.call("Ada").then(nothing)  # refused
group(greet.call("Ada")).then(add)  # refused
group(count.call("Ada")).then(count)  # refused
group(greet, count)  # refused
count.map([1, 2])  # refused
greet.map(["Ada"]).then(add)  # refused
count.map(["Ada"]).then(add).then(greet)  # refused
wrong_end: Flow[str] = count.map(["Ada"]).then(add)  # refused


# Workflows: what the function takes is what starts it, and what it describes is the result.


@app.workflow
def counted(names: list[str], *, start: int = 0) -> Flow[float]:
    return count.map(names).then(add)


@app.workflow(name="greetings")
def greetings(names: list[str]) -> Group[str]:
    return greet.map(names)


assert_type(counted(["Ada"]), Flow[float])
assert_type(counted.start(["Ada"], start=1), Run[float])
assert_type(counted.start(["Ada"]).result(), float)
assert_type(greetings.start(["Ada"]).result(timeout=5), list[str])
assert_type(counted.options(key="7", deadline=3600).start(["Ada"]), Run[float])
assert_type(counted(["Ada"]).then(nothing_of).enqueue(child_of=new_id()), Handle[None])
assert_type(group(counted(["Ada"]), counted(["Bob"])), Group[float])


async def asynchronous_workflows() -> None:
    assert_type(await counted.astart(["Ada"]), Run[float])
    assert_type(await (await greetings.astart(["Ada"])).aresult(), list[str])


@app.workflow
def wrong_result(names: list[str]) -> Flow[str]:
    return count.map(names).then(add)  # refused


@app.workflow
def no_flow(names: list[str]) -> int:
    return len(names)


counted.start("Ada")  # refused
counted.start(["Ada"], 1)  # refused
counted.start([1])  # refused
counted.options(keys="7")  # refused
counted.options(deadline="soon")  # refused
no_flow.start(["Ada"])  # refused
wrong_run: Run[str] = counted.start(["Ada"])  # refused
wrong_list: list[int] = greetings.start(["Ada"]).result()  # refused
counted(["Ada"]).then(count)  # refused
count.map(["Ada"]).enqueue(child_of="job")  # refused
count.map(["Ada"]).then(add).enqueue(after=7)  # refused


# Steps: a function is called as it is declared, and what it returns is what the step returns.


def charge(order: int, *, cents: int = 0) -> str:
    return f"{order}-{cents}"


async def fetch(page: int) -> list[str]:
    return ["x"] * page


def book(conn: Connection[Any], seat: int) -> int:
    return seat * conn.info.backend_pid


async def abook(conn: AsyncConnection[Any], seat: int) -> int:
    return seat * conn.info.backend_pid


@app.task
def stepping(order: int) -> str:
    job = current()
    assert_type(job.step("charge", charge, order, cents=5), str)
    assert_type(job.step("len", len, [order]), int)
    assert_type(job.atomic_step("book", book, order), int)
    assert_type(job.wait_event("approved", key="1", timeout=5, type=int), int)
    assert_type(job.wait_event("approved", type=list[str]), list[str])
    either: int | None = job.wait_event("approved", type=int | None)
    assert_type(job.wait_event("approved"), Any)
    job.sleep(hours=2, seconds=1)
    job.sleep_until(datetime.now(UTC))
    with job.transaction() as connection:
        assert_type(job.step("in it", book, connection, 1), int)
    job.step("charge", charge, "42")  # refused
    job.step("charge", charge)  # refused
    job.step("charge", charge, order, cent=5)  # refused
    job.step(charge, order)  # refused
    job.step("charge", charge(order))  # refused
    job.step("fetch", fetch, order)  # refused
    job.atomic_step("charge", charge, order)  # refused
    job.atomic_step("book", book, "7")  # refused
    job.wait_event("approved", type="int")  # refused
    job.wait_event("approved", timeout="soon")  # refused
    job.wait_event(key="approved")  # refused
    job.sleep(2)  # refused
    job.sleep(fortnights=2)  # refused
    job.sleep_until("tomorrow")  # refused
    receipt: int = job.step("charge", charge, order)  # refused
    answer: str = job.wait_event("approved", type=int)  # refused
    return job.step("count", len, [receipt, answer, either])  # refused


@app.task
async def stepping_async(order: int) -> int:
    job = current()
    assert_type(await job.step("fetch", fetch, order), list[str])
    assert_type(job.step("charge", charge, order), str)
    assert_type(await job.atomic_step("book", abook, order), int)
    assert_type(await job.await_event("approved", type=int), int)
    either: int | None = await job.await_event("approved", type=int | None)
    await job.asleep(minutes=1)
    await job.asleep_until(datetime.now(UTC))
    await job.step("fetch", fetch, "1")  # refused
    await job.step("charge", charge, order)  # refused
    await job.atomic_step("book", abook, "7")  # refused
    await job.atomic_step("fetch", fetch, order)  # refused
    job.step("fetch", fetch, order).append("x")  # refused
    await job.await_event("approved", type="int")  # refused
    await job.asleep(2)  # refused
    pages: list[int] = await job.step("fetch", fetch, order)  # refused
    return len(pages) + (either or 0)


app.client.send_event("approved", {"by": "Ada"}, key="42", keep=5, everyone=True)
app.client.send_event("approved", key=42)  # refused
app.client.send_event()  # refused
app.client.send_event("approved", keep="long")  # refused
app.client.enqueue("work", after=[new_id()], take={"rows": "all", "first": 1}, if_failed="run")
app.client.enqueue("work", after="job")  # refused
app.client.enqueue("work", after=[new_id()], if_failed="never")  # refused
app.client.workflows.cancel("flow")  # refused
app.client.workflows.retry(new_id(), from_job="job")  # refused
