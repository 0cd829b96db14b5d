"""A story that calls every verb of the client: what works somewhere works as a whole.

It is told on plain PostgreSQL by tests/client/test_story.py, and on clusters by tests/citus.
"""

from datetime import timedelta
from typing import Any
from uuid import uuid4

from holdfast import Client, NewJob
from holdfast.client.sync.noun import Noun
from holdfast.records import Claim, Done, Failed, Finding, Lease, NewSchedule, NewStep, Released

# What is no verb of the protocol: it opens, closes or binds.
NOT_VERBS = {"abandon", "cluster", "close", "listen_url", "on", "url", "widen"}
# What a worker's drain sends in one round trip are the verbs above, as statements of bytes.
DRAIN = {("drain", "exchange"), ("drain", "held")}
# Of an idle session that listens, which tests/citus/test_nodes.py has.
LISTENING = {("jobs", "await_end"), ("workers", "await_work")}


class Recorded:
    """A client, or a noun of one, of which is noted what was called and returned."""

    def __init__(self, inner: Any, called: set[tuple[str, str]], noun: str = "") -> None:
        self._inner, self._called, self._noun = inner, called, noun

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if isinstance(found, Noun):
            return Recorded(found, self._called, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            self._called.add((self._noun, name))
            return answer

        return call


def all_verbs() -> set[tuple[str, str]]:
    client = Client("postgresql://")
    verbs: set[tuple[str, str]] = set()
    for name in dir(client):
        if name.startswith("_") or name in NOT_VERBS:
            continue
        found = getattr(client, name)
        if isinstance(found, Noun):
            verbs |= {(name, verb) for verb in dir(found) if not verb.startswith("_")}
        else:
            verbs.add(("", name))
    return verbs


class Story:
    """Calls every verb: `client` is on the node of the queue, `operator` may be on another."""

    def __init__(self, client: Any, operator: Any, queue: str) -> None:
        self.client, self.operator, self.queue = client, operator, queue

    def lease(self, **options: Any) -> Lease:
        # Of a kind of its own, so that each claim gets what was meant.
        kind = f"k{uuid4().hex[:6]}"
        self.client.enqueue(kind, {"n": 1}, queue=self.queue, **options)
        [lease] = self.client.claim(self.queue, worker="ada", kinds=[kind])
        return lease  # type: ignore[no-any-return]

    def dead(self) -> Any:
        lease = self.lease()
        self.client.nack([lease], message="no paper", final=True)
        return lease.id

    def queued(self) -> Any:
        return self.client.enqueue("idle", {"n": 1}, queue=self.queue).id

    def lease_verbs(self) -> None:
        client = self.client
        client.enqueue_many([NewJob(kind="many", queue=self.queue) for _ in range(20)])
        client.copy([NewJob(kind="copied", queue=self.queue) for _ in range(5)])
        lease = self.lease()
        assert client.held([lease.token]) == [lease]
        assert client.touch([lease], 60)[0].held
        assert client.guard(lease)
        assert client.log([lease], [["hello"]]) == ["logged"]
        with client.attempt():
            assert client.ack([lease])[0].outcome == "done"
        with client.transaction(self.lease()) as connection:
            connection.execute("select 1")
        assert client.release([self.lease()])[0].outcome == "queued"
        ended = [Done(self.lease()), Failed(self.lease()), Released(self.lease())]
        assert len(client.settle(ended)) == 3
        ticket = client.hand_over(self.lease(), timeout=60)
        assert client.ack([ticket])[0].outcome == "done"
        claim = Claim(self.queue, "ada", 2, None, None, uuid4())
        client.together.claim([claim])
        client.together.ack([self.lease()])
        one = self.lease()
        client.together.ack_all([(one.id, one.token)])
        client.send_event("paid", {"n": 1}, key="k")
        assert not client.read_only()
        client.now()
        client.system()
        client.doctor()
        client.idempotent("key", lambda bound: bound.now().isoformat(), caller="a", digest="b")

    def steps_and_replies(self) -> None:
        client = self.client
        lease = self.lease()
        assert client.steps.store([(lease, NewStep("book", b"1", 1, 0.0))]) == [("stored", None)]
        client.steps.await_event(lease, "wait", "never", key="k")
        with client.steps.transaction() as connection:
            connection.execute("select 1")
        assert len(self.operator.steps.list(lease.id)) == 1
        link = client.replies.link(lease.id, "event approved")
        client.replies.asked(link.secret)
        client.replies.send(link.secret, True)
        client.replies.revoke(link.id)

    def job_verbs(self) -> None:
        jobs = self.operator.jobs
        dead, queued = self.dead(), self.queued()
        assert jobs.get(queued).queue == self.queue
        assert [one.message for one in jobs.attempts(dead)] == ["no paper"]
        assert jobs.explain(queued)
        assert jobs.lines(dead) == []
        assert jobs.last_lines([dead]) == {}
        self.client.jobs.not_ending([queued])
        done = self.lease()
        self.client.ack([done])
        assert jobs.receipt(done.id).worker == "ada"
        assert dead in jobs.find(f"queue:{self.queue} state:dead")
        assert any(one.id == dead for one in jobs.list("state:dead"))
        assert any(one.id == dead for one in jobs.search("state:dead", patience=5).jobs)
        assert jobs.count("state:dead").jobs
        for verb, id in (
            ("edit", queued), ("cancel", queued), ("retry", dead), ("cancel", dead),
            ("archive", dead), ("delete", dead),
        ):  # fmt: skip
            more: dict[str, Any] = {"priority": 3} if verb == "edit" else {}
            [change] = getattr(jobs, verb)([id], reason="ada", actor="ada", **more)
            assert change.changed, (verb, change)
        [moved] = jobs.move([self.queued()], self.queue)
        assert moved.state == "queued"
        found = self.operator.dead
        self.dead()
        assert found.groups()
        assert found.list()
        assert found.oldest()[self.queue] >= timedelta(0)

    def queue_verbs(self) -> None:
        queues, lanes, name = self.operator.queues, self.operator.lanes, self.queue
        for settings in ({"limit": 50}, {"limit": None}, {"fair": True}, {"fair": False}):
            queues.set(name, **settings)
        self.client.queues.declare({name: {"max_attempts": 4}})
        assert queues.get(name).max_attempts == 4
        assert queues.pause(name, reason="ada").paused_reason == "ada"
        assert queues.resume(name).paused_at is None
        assert name in [one.queue for one in queues.list()]
        assert queues.explain(name)
        assert queues.depth()
        queues.upcoming(name)
        queues.forecast(name)
        queues.success(name)
        queues.sort_some(name)
        lease = self.lease(lane="one")
        self.client.enqueue("idle", queue=name, lane="one")
        lanes.set(name, "one", limit=2)
        assert [one.lane for one in lanes.list()] == ["one"]
        assert lanes.explain(name, "one")
        lanes.release(name, "one")
        self.client.ack([lease])

    def schedule_verbs(self) -> None:
        client, schedules = self.client, self.operator.schedules
        every = timedelta(seconds=1)
        new = NewSchedule(name="tick", kind="idle", every=every, queue=self.queue)
        client.schedules.declare([new], owner="ada")
        schedules.set("tick", missed="skip")
        assert schedules.get("tick").queue == self.queue
        assert [one.name for one in schedules.list()] == ["tick"]
        assert schedules.run("tick").job
        assert schedules.slots("tick")
        schedules.pause("tick")
        schedules.resume("tick")
        [planned] = client.schedules.due()
        slot = planned.since - every
        client.schedules.fail(planned, "no zone")
        client.schedules.fire(planned, [], slot)
        [due] = client.schedules.due()
        client.schedules.fire(due, [slot], slot + 1000 * every)
        assert schedules.delete("tick")

    def bulk_verbs(self) -> None:
        operations = self.operator.operations
        self.dead()
        seen = operations.preview("retry", f"queue:{self.queue} state:dead")
        begun = operations.start(seen.token)
        while operations.get(begun.id).state == "running":
            operations.step()
        assert operations.list()[0].changed == seen.total > 0
        undone = operations.undo(begun.id)
        assert operations.cancel(undone.id).state in ("cancelled", "done")
        workflows = self.operator.workflows
        started = self.client.workflows.start("order", [NewJob(kind="idle", queue=self.queue)])
        assert workflows.get(started.id).name == "order"
        assert workflows.within(started.id, [self.queue])
        assert workflows.list()
        assert workflows.tally()
        assert workflows.jobs(started.id)
        assert workflows.groups(started.id)
        assert workflows.find(str(started.id)[-12:]) == [started.id]
        assert workflows.cancel(started.id)
        while self.client.operations.step() is not None:
            pass
        assert workflows.retry(started.id)

    def watching_verbs(self) -> None:
        client, operator = self.client, self.operator
        client.workers.beat("ada", queues=[self.queue], kinds=["idle"])
        client.workers.tell("http", {"queues": [self.queue]}, {"claimed": 1})
        client.workers.ping("ada")
        client.workers.pass_on(self.queue)
        assert {one.worker for one in operator.workers.list()} == {"ada", "http"}
        assert operator.workers.stop("ada")
        assert client.workers.leave("ada")
        client.kinds.declare([{"kind": "idle"}])
        assert [one.kind for one in operator.kinds.list()] == ["idle"]
        strike = operator.strikes.add(queue=self.queue, kind="never")
        assert operator.strikes.list() == [strike]
        assert operator.strikes.lift(strike.number)
        client.detectors.set("late", seconds=3)
        client.detectors.run()
        assert client.detectors.due("mine")
        client.detectors.report("mine", [Finding("odd", queue=self.queue)])
        assert client.detectors.list()
        [odd] = [one for one in operator.anomalies.list() if one.code == "mine"]
        assert operator.anomalies.get(odd.id) == odd
        assert operator.anomalies.ack(odd.id).acked_at
        operator.anomalies.mute("mine")
        assert operator.anomalies.mutes()
        assert operator.anomalies.unmute("mine")
        client.webhooks.set("ops", url="https://example.org/hook", secret="s" * 32)
        assert client.webhooks.list()
        client.webhooks.target("ops")
        assert client.webhooks.delete("ops")
        made = client.tokens.create("ada", ["read"])
        assert client.tokens.check(made.secret)
        client.tokens.spend_link(made.secret)
        [listed] = client.tokens.list()
        assert client.tokens.revoke(listed.id)
        activity = operator.activity
        activity.list(job=self.queued())
        activity.series("queued")
        client.activity.watch([self.queue])
        client.activity.log_state()
        client.activity.tail(0)

    def upkeep_verbs(self) -> None:
        upkeep = self.client.upkeep
        doubtful = self.lease(lease=0.1)
        upkeep.lead("ada")
        upkeep.tend("ada")
        upkeep.doubtful(["none"])
        upkeep.reconcile([(doubtful, True)])
        for verb in ("reap", "promote", "raise_floors", "fold", "steps"):
            getattr(upkeep, verb)()
        assert "failed" not in upkeep.run()


def tell(client: Any, operator: Any, queue: str) -> set[tuple[str, str]]:
    """Tell all of it; returns the verbs that have not been called, without DRAIN and LISTENING."""
    called: set[tuple[str, str]] = set()
    story = Story(Recorded(client, called), Recorded(operator, called), queue)
    for name in dir(Story):
        if name.endswith(("_verbs", "_replies")):
            getattr(story, name)()
    return all_verbs() - called - DRAIN - LISTENING
