import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from holdfast.client import Client
from holdfast.records import NewJob, new_id
from tests.cli.conftest import Run
from tests.conftest import Clock, Connect

Terminal = Callable[..., tuple[int, str]]


def test_enqueue_prints_the_id_of_a_job_with_every_option(holdfast: Run, client: Client) -> None:
    id = new_id("mail")

    answer = holdfast(
        *("job", "enqueue", "send", '{"to": "ada"}', "--queue", "mail", "--priority", 9),
        *("--delay", "10m", "--key", "k", "--on-conflict", "after", "--lane", "l"),
        *("--tenant", "t", "--subject", "s", "--header", "a=1", "--header", "b=x=y"),
        *("--max-attempts", 7, "--lease", "2m", "--id", id),
    )

    job = client.jobs.get(id)
    assert answer.code == 0
    assert answer.out == f"{id}\n"
    assert job is not None
    assert (job.kind, job.payload, job.queue, job.priority) == ("send", {"to": "ada"}, "mail", 9)
    assert (job.key, job.lane, job.tenant, job.subject) == ("k", "l", "t", "s")
    assert (job.headers, job.max_attempts) == ({"a": "1", "b": "x=y"}, 7)
    assert job.lease == timedelta(minutes=2)
    assert job.run_at - job.created_at == timedelta(minutes=10)


def test_a_duplicate_is_told_and_answered_with_the_job_that_stands(holdfast: Run) -> None:
    first = holdfast("job", "enqueue", "greet", "--key", "ada")
    second = holdfast("job", "enqueue", "greet", "--key", "ada", "--json")

    id = first.out.strip()
    assert second.code == 0
    assert second.json == {
        "id": id,
        "created": False,
        "duplicate_of": id,
        "behind": None,
        "holder": None,
        "held_since": None,
    }
    assert f"job {id[-8:]} is live and has the same key" in second.err


def test_who_holds_a_busy_lane_is_told(holdfast: Run, client: Client) -> None:
    first = client.enqueue("post", lane="bank")
    client.claim(worker="w1")

    answer = holdfast("job", "enqueue", "post", "--lane", "bank")
    told = holdfast("job", "enqueue", "post", "--lane", "bank", "--json").json

    assert f"lane bank is busy with job {str(first.id)[-8:]}, which w1 has held for" in answer.err
    assert (told["behind"], told["holder"]) == (str(first.id), "w1")
    assert told["held_since"] is not None


def test_a_payload_may_come_from_stdin(holdfast: Run, client: Client) -> None:
    answer = holdfast("job", "enqueue", "import", "-", stdin='[1, "zwölf"]\n')

    job = client.jobs.get(UUID(answer.out.strip()))
    assert job is not None
    assert job.payload == [1, "zwölf"]


def test_no_digit_of_a_payload_is_lost(holdfast: Run) -> None:
    payload = '{"n":12345678901234567890.12345678901234567890,"m":1' + "0" * 300 + "}"

    id = holdfast("job", "enqueue", "pay", "-", stdin=payload).out.strip()

    shown = holdfast("job", "show", id, "--json").out
    assert "12345678901234567890.12345678901234567890" in shown
    assert "1" + "0" * 300 in shown


def test_a_new_queue_that_resembles_another_is_remarked_on(holdfast: Run) -> None:
    holdfast("job", "enqueue", "greet", "--queue", "mail")

    mistyped = holdfast("job", "enqueue", "greet", "--queue", "mial")
    known = holdfast("job", "enqueue", "greet", "--queue", "mail")

    assert mistyped.code == 0
    assert "queue mial is new (did you mean `mail`?)" in mistyped.err
    assert known.err == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{name: 1}"], ["HF204", "payload is not JSON: '{name: 1}'", "line 1 column 2", "Quote"]),
        (["NaN"], ["NaN is not a value of JSON"]),
        (["[" * 3000 + "]" * 3000], ["nested too deeply"]),
        (['"\\u0000"'], ["HF204", "NUL"]),
        (['"\\ud800"'], ["HF"]),
        ([json.dumps("x" * 90_000), "--queue", "small"], ["HF210", "the limit for queue 'small'"]),
        (["{}", "--priority", "12"], ["HF203", "12"]),
        (["{}", "--priority", "high"], ["--priority", "high"]),
        (["{}", "--delay", "soon"], ["'soon' is not a duration such as 30s"]),
        (["{}", "--delay", "99999999999w"], ["too long"]),
        (["{}", "--at", "tomorrow"], ["'tomorrow' is not a time such as 20"]),
        (["{}", "--at", "2030-01-31"], ["'2030-01-31' has no time zone"]),
        (["{}", "--at", "2030-01-31T06:00:00Z", "--delay", "1"], ["exclude each other"]),
        (["{}", "--on-conflict", "panic"], ["panic", "skip", "replace", "after"]),
        (["{}", "--max-attempts", "0"], ["HF204", "max_attempts"]),
        (["{}", "--lease", "0"], ["HF204", "lease"]),
        (["{}", "--header", "a"], ["'a' is not NAME=VALUE"]),
        (["{}", "--id", "7"], ["--id", "7"]),
        (["{}", "--queue", ""], ["HF202", "queue"]),
        (["{}", "--lane", "a\nb"], ["HF202", "lane"]),
        (["{}", "{}"], ["unexpected extra argument"]),
        (["{}", "--prioriti", "3"], ["--priority"]),
    ],
)
def test_a_mistake_names_the_value_and_stores_nothing(
    holdfast: Run, client: Client, arguments: list[str], told: list[str]
) -> None:
    client.queues.set("small", payload_limit=1000)

    answer = holdfast("job", "enqueue", "greet", *arguments)

    assert answer.code == 2
    assert answer.out == ""
    for part in told:
        assert part in answer.err
    assert client.jobs.find() == []


def test_stdin_that_is_not_text_is_refused(holdfast: Run) -> None:
    answer = holdfast("job", "enqueue", "greet", "-", stdin=b'"\xff"')

    assert answer.code == 2
    assert "payload on stdin is not UTF-8" in answer.err


def test_list_shows_the_newest_first_and_where_to_go_on(holdfast: Run, client: Client) -> None:
    ids = [client.enqueue("greet").id for _ in range(3)]
    newest = sorted(ids, reverse=True)

    page = holdfast("job", "list", "--limit", 2)
    rest = holdfast("job", "list", "--before", str(newest[1])[-8:], "--json")

    assert [line.split()[0] for line in page.out.splitlines()[1:]] == [
        str(id)[-8:] for id in newest[:2]
    ]
    assert f"--before {str(newest[1])[-8:]}" in page.err
    assert [job["id"] for job in rest.json] == [str(newest[2])]


def test_list_takes_a_filter_quoted_or_not(holdfast: Run, client: Client) -> None:
    client.enqueue("greet", {"name": "Ada"})
    client.enqueue("greet", {"name": "Grace"})
    client.enqueue("send")

    quoted = holdfast("job", "list", "kind:greet payload.name:Ada", "--json")
    unquoted = holdfast("job", "list", "kind:greet", "payload.name:Ada", "--json")
    none = holdfast("job", "list", "state:dead")

    assert [job["payload"] for job in quoted.json] == [{"name": "Ada"}]
    assert unquoted.out == quoted.out
    assert (none.code, none.out, none.err) == (0, "", "no job matches\n")
    set_like = holdfast("job", "list", "state=dead")
    assert set_like.err == "no job matches; a term has a colon:  holdfast job list state:dead\n"
    told = "no job matches; for those in a state:  holdfast job list state:dead\n"
    assert holdfast("job", "list", "dead").err == told
    assert holdfast("job", "list", "state:dead", "--json").json == []


def test_a_bad_filter_names_the_term_and_its_place(holdfast: Run) -> None:
    for verb in ("list", "retry", "delete"):
        answer = holdfast("job", verb, 'kind:greet error:"Time')

        assert answer.code == 2
        assert "HF220" in answer.err
        assert "'error:\"Time' at position 12" in answer.err


def test_the_table_says_of_each_job_what_matters_next(holdfast: Run, client: Client) -> None:
    client.enqueue("later", delay=7200)
    client.enqueue("running")
    client.claim(worker="ada-1", kinds=["running"], lease=600)
    client.enqueue("failed", max_attempts=1)
    client.nack(client.claim(worker="w", kinds=["failed"]), error_kind="Oops", message="no")
    gone = client.enqueue("gone").id
    client.jobs.cancel([gone], reason="user left")

    table = holdfast("job", "list").out

    rows = {line.split()[1]: line for line in table.splitlines()}
    assert "due in 2 h" in rows["later"]
    assert "ada-1 for 10 m" in rows["running"]
    assert "Oops: no" in rows["failed"]
    assert "user left" in rows["gone"]


def test_what_others_wrote_cannot_command_the_terminal(holdfast: Run, client: Client) -> None:
    client.enqueue("greet", {"text": "\x1b[2J\u202e"}, max_attempts=1)
    [lease] = client.claim(worker="w")
    client.nack([lease], message="a\x1b]0;title\x07\nb", traceback="line 1\n\x1b[31mline 2")

    for shown in (
        holdfast("job", "list").out,
        holdfast("job", "show", lease.id).out,
        holdfast("job", "explain", lease.id).out,
        holdfast("dead", "groups").out,
    ):
        assert shown != ""
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "\u202e" not in shown


def test_show_tells_the_whole_story_of_a_job(holdfast: Run, client: Client) -> None:
    client.enqueue("send", {"to": "ada"}, max_attempts=1, key="k", headers={"trace": "1"})
    [lease] = client.claim(worker="w-1")
    client.nack([lease], error_kind="Timeout", message="30 s", traceback="Traceback: here")

    text = holdfast("job", "show", str(lease.id)[-8:])
    document = holdfast("job", "show", lease.id, "--json").json

    for part in (str(lease.id), "dead", '"to": "ada"', "Timeout: 30 s", "Traceback: here", "w-1"):
        assert part in text.out
    assert document["id"] == str(lease.id)
    assert document["payload"] == {"to": "ada"}
    assert document["headers"] == {"trace": "1"}
    assert document["explain"].startswith("Dead since")
    assert document["attempts"][0]["message"] == "30 s"
    at = datetime.fromisoformat(document["created_at"])
    assert document["created_at"].endswith("Z")
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)


def test_show_and_list_count_the_attempts_of_all_lives(holdfast: Run, client: Client) -> None:
    id = client.enqueue("sync", max_attempts=1).id
    for night in range(4):
        client.nack(client.claim(worker="w"), message="no answer")
        if night < 3:
            client.jobs.retry([id])

    shown = holdfast("job", "show", id)
    listed = holdfast("job", "list", "attempts:>3")

    assert "1 of 1 (4 in all, over its retries)" in shown.out
    assert "1/1 (4)" in listed.out
    assert holdfast("job", "show", id, "--json").json["total_attempts"] == 4


def test_explain_is_one_sentence(holdfast: Run, client: Client) -> None:
    id = client.enqueue("greet").id
    client.queues.pause("default", reason="lunch")

    answer = holdfast("job", "explain", str(id)[-12:])
    document = holdfast("job", "explain", id, "--json").json

    assert answer.out.count("\n") == 1
    assert "lunch" in answer.out
    assert document == {"id": str(id), "explain": answer.out.strip()}


@pytest.mark.parametrize("command", ["show", "explain", "retry", "cancel", "delete", "archive"])
def test_an_unknown_id_fails_and_is_named(holdfast: Run, command: str) -> None:
    yes = ["--yes"] if command not in ("show", "explain") else []
    full = uuid4()

    for id in (str(full), "0123abcd"):
        answer = holdfast("job", command, id, *yes)

        assert answer.code == 1
        assert answer.out == ""
        assert id in answer.err


@pytest.mark.parametrize(
    ("id", "told"),
    [
        ("12ab", "id '12ab' is too short"),
        ("0123456789abcdef" * 3, "is not the id of a job"),
        ("0190abcd-0000-8000-8000-00000000000g", "is not the id of a job"),
    ],
)
def test_what_cannot_be_an_id_is_usage(holdfast: Run, id: str, told: str) -> None:
    for command in ("show", "retry"):
        answer = holdfast("job", command, id)

        assert answer.code == 2
        assert told in answer.err


def test_an_ambiguous_id_is_refused_with_all_it_may_mean(holdfast: Run, client: Client) -> None:
    one = new_id()
    other = UUID(int=one.int ^ (1 << 90))
    for id in (one, other):
        client.enqueue("greet", id=id)

    answer = holdfast("job", "cancel", str(one)[-8:])

    assert answer.code == 2
    assert "is ambiguous" in answer.err
    assert str(one) in answer.err
    assert str(other) in answer.err
    assert len(client.jobs.find("state:queued")) == 2


def test_retry_queues_a_dead_job_again_with_its_reason(holdfast: Run, client: Client) -> None:
    id = _dead(client)

    answer = holdfast("job", "retry", str(id)[-8:], "--reason", "fixed", "--delay", "1h")

    job = client.jobs.get(id)
    assert (answer.code, answer.out) == (0, f"{str(id)[-8:]}  retried\n")
    assert job is not None
    assert (job.state, job.attempt, job.reason) == ("queued", 0, "fixed")
    assert job.run_at > datetime.now(UTC) + timedelta(minutes=50)


def test_who_gave_the_command_is_on_record(
    holdfast: Run, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    id = client.enqueue("greet").id

    holdfast("job", "cancel", id)

    job = client.jobs.get(id)
    assert job is not None
    assert job.reason == "cancelled by ada"


def test_a_job_in_the_wrong_state_fails_with_the_reason(holdfast: Run, client: Client) -> None:
    waiting, dead = client.enqueue("other").id, _dead(client)

    answer = holdfast("job", "retry", waiting, dead, "--json")

    assert answer.code == 1
    assert [(one["id"], one["changed"], one["state"]) for one in answer.json] == [
        (str(waiting), False, "queued"),
        (str(dead), True, "queued"),
    ]
    assert f"unchanged: job {waiting} is queued and cannot be retried" in answer.err


def test_a_filter_needs_consent_and_says_how_many(holdfast: Run, client: Client) -> None:
    for _ in range(3):
        _dead(client)

    refused = holdfast("job", "retry", "kind:greet")
    agreed = holdfast("job", "retry", "kind:greet", "--yes")

    assert refused.code == 5
    assert refused.out == ""
    assert "this would retry 3 jobs matching kind:greet state:dead,cancelled" in refused.err
    assert "--yes" in refused.err
    assert (agreed.code, agreed.out) == (0, "3 jobs retried\n")
    assert len(client.jobs.find("state:queued")) == 3


def test_preview_shows_and_changes_nothing(holdfast: Run, client: Client) -> None:
    for _ in range(12):
        client.enqueue("greet")

    text = holdfast("job", "delete", "kind:greet", "--preview")
    document = holdfast("job", "delete", "kind:greet", "--preview", "--json").json

    assert text.code == 0
    assert text.out.splitlines()[0].startswith("12 jobs matching kind:greet")
    assert text.out.splitlines()[-1] == "… and 2 more"
    assert document["count"] == 12
    assert len(document["sample"]) == 10
    assert len(client.jobs.find()) == 12


def test_somebody_at_a_terminal_is_asked(client: Client, database: str, terminal: Terminal) -> None:
    client.enqueue("greet")
    command = ("job", "delete", "kind:greet", "--url", database)

    code, screen = terminal(*command, typed="n\n")
    assert code == 5
    assert "delete 1 job matching kind:greet" in screen
    assert "[y/N]" in screen
    assert len(client.jobs.find()) == 1

    code, screen = terminal(*command, typed="y\n")
    assert code == 0
    assert "1 job deleted" in screen
    assert client.jobs.find() == []


def test_a_filter_that_matches_nothing_is_no_failure(holdfast: Run, client: Client) -> None:
    client.enqueue("greet")

    for filter in ("kind:nobody", "kind:greet"):
        answer = holdfast("job", "retry", filter, "--yes")

        assert (answer.code, answer.out) == (0, "")
        assert "nothing to retry: 0 jobs matching" in answer.err
    assert holdfast("job", "retry", "kind:nobody", "--json").json is None


def test_a_filter_leaves_done_jobs_alone_unless_it_names_them(
    holdfast: Run, client: Client
) -> None:
    client.queues.set("default", keep_done=timedelta(days=1))
    client.enqueue("greet")
    client.ack(client.claim(worker="w"))

    assert "nothing to retry" in holdfast("job", "retry", "kind:greet", "--yes").err
    assert holdfast("job", "retry", "kind:greet state:done", "--yes").out == "1 job retried\n"


def test_the_newest_few_can_be_tried_first(holdfast: Run, client: Client) -> None:
    ids = sorted((_dead(client) for _ in range(5)), reverse=True)

    holdfast("job", "retry", "state:dead", "--limit", 2, "--yes")

    assert sorted(client.jobs.find("state:queued"), reverse=True) == ids[:2]


def test_a_filter_reaches_beyond_one_page(holdfast: Run, client: Client) -> None:
    client.enqueue_many([NewJob(kind="greet") for _ in range(2300)])

    answer = holdfast("job", "cancel", "kind:greet", "--yes", "--json")

    ended = answer.json
    assert (ended["state"], ended["seen"], ended["changed"]) == ("done", 2300, 2300)
    assert client.jobs.find("state:queued") == []


def test_what_a_filter_changed_is_an_operation_that_can_be_undone(
    holdfast: Run, client: Client
) -> None:
    ids = [client.enqueue("greet").id for _ in range(3)]

    cancelled = holdfast("job", "cancel", "kind:greet", "--reason", "too many", "--yes")

    [operation] = client.operations.list()
    assert (operation.verb, operation.state, operation.changed) == ("cancel", "done", 3)
    assert operation.reason == "too many"
    assert cancelled.out == "3 jobs cancelled\n"
    assert f"undo it:  holdfast op undo {operation.id}" in cancelled.err

    assert holdfast("op", "undo", operation.id, "--wait", "--yes").code == 0
    assert sorted(client.jobs.find("state:queued")) == sorted(ids)


def test_why_jobs_of_a_filter_stay_unchanged_is_told(holdfast: Run, client: Client) -> None:
    first = client.enqueue("greet", max_attempts=1, key="k").id
    client.nack(client.claim(worker="w"), error_kind="Oops", message="no")
    client.enqueue("greet", key="k")

    answer = holdfast("job", "retry", "state:dead", "--yes")

    assert (answer.code, answer.out) == (1, "0 jobs retried\n")
    assert "unchanged: " in answer.err
    assert "key" in answer.err
    assert [job.id for job in client.jobs.list("state:dead")] == [first]


def test_a_filter_that_is_interrupted_stops_its_operation(
    holdfast: Run, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.enqueue_many([NewJob(kind="greet") for _ in range(3)])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.client.sync.operations.Operations.step", interrupt)

    answer = holdfast("job", "cancel", "kind:greet", "--yes")

    [operation] = client.operations.list()
    assert answer.code != 0
    assert "stopped after 0 of 3 jobs" in answer.err
    assert operation.state == "cancelled"
    assert len(client.jobs.find("state:queued")) == 3


@pytest.mark.parametrize("verb", ["retry", "cancel", "delete", "archive"])
def test_an_empty_filter_is_refused(holdfast: Run, client: Client, verb: str) -> None:
    client.enqueue("greet")

    answer = holdfast("job", verb, "", "--yes")

    assert answer.code == 2
    assert "an empty filter means every job" in answer.err
    assert len(client.jobs.find("state:queued")) == 1


def test_ids_and_filters_do_not_mix(holdfast: Run, client: Client) -> None:
    id = client.enqueue("greet").id

    answer = holdfast("job", "cancel", id, "kind:greet", "--yes")

    assert answer.code == 2
    assert "mixes ids and a filter" in answer.err


def test_cancel_asks_before_it_cancels_many(holdfast: Run, client: Client) -> None:
    ids = [client.enqueue("greet").id for _ in range(2)]

    assert holdfast("job", "cancel", *ids).code == 5
    assert holdfast("job", "cancel", *ids, "--yes").code == 0
    assert len(client.jobs.find("state:cancelled")) == 2


def test_delete_asks_even_for_one_and_refuses_a_leased_job(holdfast: Run, client: Client) -> None:
    id = client.enqueue("greet").id
    [lease] = client.claim(worker="ada-1")

    unasked = holdfast("job", "delete", id)
    leased = holdfast("job", "delete", id, "--yes")
    client.release([lease])
    deleted = holdfast("job", "delete", id, "--yes")

    assert unasked.code == 5
    assert "this would delete 1 job" in unasked.err
    assert leased.code == 1
    assert "leased by ada-1" in leased.err
    assert (deleted.code, deleted.out) == (0, f"{str(id)[-8:]}  deleted\n")
    assert client.jobs.get(id) is None


def test_edit_changes_what_it_is_given(holdfast: Run, client: Client) -> None:
    id = client.enqueue("greet", {"name": "Ada"}, headers={"a": "1"}).id

    answer = holdfast(
        *("job", "edit", id, "--payload", '{"name": "Grace"}', "--priority", 7),
        *("--delay", "1h", "--max-attempts", 9, "--lease", "5m", "--header", "b=2"),
    )

    job = client.jobs.get(id)
    assert answer.code == 0
    assert job is not None
    assert (job.payload, job.priority, job.max_attempts) == ({"name": "Grace"}, 7, 9)
    assert (job.lease, job.headers) == (timedelta(minutes=5), {"b": "2"})
    assert job.run_at > datetime.now(UTC) + timedelta(minutes=50)


def test_edit_refuses_nothing_and_nonsense(holdfast: Run, client: Client) -> None:
    id = client.enqueue("greet").id

    nothing = holdfast("job", "edit", id)
    both = holdfast("job", "edit", id, "--delay", "1h", "--at", "2030-01-31T06:00:00Z")
    payload = holdfast("job", "edit", id, "--payload", "{")
    priority = holdfast("job", "edit", id, "--priority", "12")

    assert [one.code for one in (nothing, both, payload, priority)] == [2, 2, 2, 2]
    assert "nothing to change" in nothing.err
    assert "exclude each other" in both.err
    assert "payload is not JSON: '{'" in payload.err
    assert "HF203" in priority.err


def test_move_keeps_the_short_id(holdfast: Run, client: Client) -> None:
    id = client.enqueue("greet").id

    answer = holdfast("job", "move", str(id)[-8:], "--to", "slow", "--json")

    [change] = answer.json
    assert answer.code == 0
    assert change["id"] == str(id)
    assert change["new_id"][-8:] == str(id)[-8:]
    assert [job.queue for job in client.jobs.list()] == ["slow"]
    assert holdfast("job", "move", id).code == 2


def test_archive_puts_a_dead_job_away(holdfast: Run, client: Client) -> None:
    id = _dead(client)

    answer = holdfast("job", "archive", "state:dead", "--yes", "--reason", "known")

    job = client.jobs.get(id)
    assert (answer.code, answer.out) == (0, "1 job archived\n")
    assert job is not None
    assert (job.state, job.reason) == ("archived", "known")


def test_a_reader_without_rights_is_refused(
    run: Run, client: Client, connect: Connect, database: str
) -> None:
    role = f"viewer_{os.getpid()}"
    client.enqueue("greet")
    admin = connect()
    admin.execute(f"create role {role} login")
    try:
        answer = run("job", "cancel", "kind:greet", "--yes", "--url", f"{database} user={role}")
    finally:
        admin.execute(f"drop role {role}")

    assert answer.code == 5
    assert "permission denied" in answer.err


def _dead(client: Client) -> UUID:
    id = client.enqueue("greet", max_attempts=1).id
    client.nack(client.claim(worker="w", kinds=["greet"]), error_kind="Oops", message="no")
    return id


def test_a_delay_goes_by_the_clock_of_the_database(
    holdfast: Run, client: Client, clock: Clock
) -> None:
    job = client.enqueue("send")
    clock.advance(days=3)

    holdfast("job", "edit", str(job.id), "--delay", "10m")

    assert client.claim(worker="w") == []
    clock.advance(minutes=11)
    assert len(client.claim(worker="w")) == 1


def test_a_list_of_done_jobs_says_what_is_kept(holdfast: Run, client: Client) -> None:
    client.queues.set("all", keep_done=3600)
    client.queues.set("some")
    client.queues.set("none", keep_recent=False)

    said = {
        filter: holdfast("job", "list", *filter.split()).err
        for filter in (
            "state:done",
            "state:done queue:some",
            "state:done,dead queue:none",
            "state:done queue:all",
            "state:dead queue:some",
        )
    }

    few = "of done jobs, a worker keeps at most 5 a second, for a day; to keep all:  holdfast queue"
    assert f"{few} set QUEUE keep_done=7d" in said["state:done"]
    assert f"{few} set some keep_done=7d" in said["state:done queue:some"]
    assert (
        "done jobs are not kept; to keep them:  holdfast queue set none keep_done=7d"
        in said["state:done,dead queue:none"]
    )
    assert "keep" not in said["state:done queue:all"] + said["state:dead queue:some"]
