import json
from importlib import import_module

import pytest

from holdfast import NewJob
from holdfast.client import Client
from tests.cli.conftest import Run

# Not made anew by each process that runs tests: it is part of their names.
NOBODY = "01a1ddb2-de2b-801b-9129-ff06521fdfc7"

FAN = [
    NewJob(kind="split"),
    *(NewJob(kind="part", after=[1]) for _ in range(3)),
    NewJob(kind="sum", after=[2, 3, 4]),
]


def test_a_workflow_is_listed_and_shown(holdfast: Run, client: Client) -> None:
    started = client.workflows.start("import", FAN, key="7", deadline=3600)

    [listed] = holdfast("workflow", "list", "--name", "import", "--json").json
    line = holdfast("workflow", "list").out.splitlines()[1].split()
    shown = holdfast("workflow", "show", str(started.id)[-8:]).out.splitlines()
    of_job = holdfast("workflow", "show", started.jobs[4].id, "--json").json

    assert (listed["id"], listed["state"]) == (str(started.id), "running")
    assert line[:7] == [str(started.id), "import", "7", "running", "0", "of", "5"]
    assert shown[0] == "workflow import"
    assert [row.split()[1:7] for row in shown[-3:]] == [
        ["split", "default", "-", "1", "1", "queued"],
        ["part", "default", "1", "3", "3", "waiting"],
        ["sum", "default", "2", "1", "1", "waiting"],
    ]
    assert of_job["workflow"]["id"] == str(started.id)
    assert holdfast("workflow", "show", "xyz").code == 2


def test_a_workflow_with_more_groups_than_are_shown_says_so(
    holdfast: Run, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("holdfast.cli.workflow"), "GROUPS", 2)
    few = client.workflows.start("export", FAN[:2]).id
    many = client.workflows.start("import", FAN).id

    told = [holdfast("workflow", "show", id, "--json") for id in (few, many)]
    shown = holdfast("workflow", "show", many)

    assert [len(one.json["groups"]) for one in told] == [2, 2]
    assert [one.json["more_groups"] for one in told] == [False, True]
    assert "more groups are not shown" in shown.err
    assert "sum" not in shown.out


def test_a_workflow_is_cancelled_and_retried_from_a_job_on(holdfast: Run, client: Client) -> None:
    started = client.workflows.start("import", FAN)
    id = str(started.id)

    refused = holdfast("workflow", "cancel", id)
    cancelled = holdfast("workflow", "cancel", id, "--yes", "--reason", "wrong file")
    again = holdfast("workflow", "cancel", id, "--yes")
    part = holdfast("workflow", "retry", id, "--from", str(started.jobs[1].id), "--yes")
    whole = holdfast("workflow", "retry", id, "--yes", "--json").json

    assert (refused.code, cancelled.code, again.code) == (5, 0, 2)
    assert cancelled.out == "5 jobs cancelled\n"
    assert "holdfast op undo" in cancelled.err
    assert "HF409" in again.err
    assert part.out == "2 jobs retried\n"
    assert (whole["changed"], whole["verb"]) == (3, "retry")


def test_a_workflow_is_started_from_a_list_of_jobs(holdfast: Run, client: Client) -> None:
    jobs = """[
      {"kind": "fetch", "queue": "net", "payload": {"n": 12345678901234567890.10}},
      {"kind": "print", "after": [1], "take": {"page": 1}, "priority": 3, "delay": 0.5}]"""
    begun = holdfast(
        "workflow", "start", "report", "-", "--key", "7", "--deadline", "2h", stdin=jobs
    )
    again = holdfast("workflow", "start", "report", '[{"kind": "other"}]', "--key", "7")

    [started] = client.workflows.list()
    fetch, printed = client.workflows.jobs(started.id)
    assert begun.out == again.out == f"{started.id}\n"
    assert f"not stored: workflow {str(started.id)[-8:]} is live" in again.err
    assert (started.name, started.key, started.jobs.total) == ("report", "7", 2)
    assert started.created_by is not None
    assert started.deadline is not None
    assert (started.deadline - started.created_at).total_seconds() == 7200
    assert (fetch.queue, printed.after) == ("net", [fetch.id])
    stored = client.jobs.get(fetch.id)
    assert stored is not None
    assert stored.payload_json == '{"n": 12345678901234567890.10}'


def test_a_workflow_is_started_empty_and_gets_jobs_by_its_id(holdfast: Run, client: Client) -> None:
    empty = holdfast("workflow", "start", "report").out.strip()
    job = holdfast("job", "enqueue", "fetch", "--workflow", empty, "--key", "k").out.strip()
    jobs = json.dumps([{"kind": "fetch", "key": "k"}, {"kind": "print", "after": [1, job]}])
    skipped = holdfast("workflow", "start", "report", jobs, "--json")

    assert [str(one.id) for one in client.workflows.jobs(empty)] == [job]
    assert f"job 1 not stored: job {job[-8:]} is live" in skipped.err
    assert [one["created"] for one in skipped.json["jobs"]] == [False, True]


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ('[{"kind": "a"', "the list of jobs is not JSON"),
        ('{"kind": "a"}', "not a JSON array of objects"),
        ('["a"]', "not a JSON array of objects"),
        ('[{"kind": "a"}, {"kind": "a", "priorty": 3}]', "did you mean `priority`?"),
        ('[{"kind": "a"}, {"kind": "a", "after": ["x"]}]', "after of job 2 has 'x'"),
        ('[{"kind": "a"}, {"kind": "a", "after": [1.5]}]', "after of job 2 has 1.5"),
        ('[{"kind": "a"}, {"kind": "a", "after": [true]}]', "after of job 2 has True"),
        ('[{"kind": "a"}, {"kind": "a", "after": 1}]', "after of job 2 is 1"),
        ('[{"kind": "a", "child_of": []}]', "child_of of job 1 has []"),
        ('[{"kind": "a"}, {"kind": "a", "after": [3]}]', "job 2 of the call waits for 3"),
        ('[{"kind": "a", "id": 7}]', "id of job 1 has 7"),
        ('[{"queue": "a"}]', "kind"),
        ('[{"kind": "a", "queue": 7}]', "queue 7"),
        ('[{"kind": "a"}, {"kind": "a", "priority": 10}]', "priority 10 of item 2"),
        (f'[{{"kind": "a", "child_of": "{NOBODY}"}}]', "is not in a workflow"),
        (f'[{{"kind": "a", "workflow": "{NOBODY}"}}]', "job 1 names a workflow"),
    ],
)
def test_what_is_no_list_of_jobs_starts_nothing(
    holdfast: Run, client: Client, jobs: str, said: str
) -> None:
    refused = holdfast("workflow", "start", "report", jobs)

    assert refused.code == 2
    assert said in refused.err
    assert client.workflows.list() == []
    assert client.jobs.list() == []
