from holdfast import NewJob
from holdfast.client import Client
from tests.cli.conftest import Run

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
