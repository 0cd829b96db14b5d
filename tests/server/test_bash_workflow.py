"""A workflow in bash, with curl: order, results and an event, with the worker killed in between."""

import os
import subprocess
from pathlib import Path
from shutil import which

import pytest

from holdfast import Client
from tests.server.serving import Serving

SCRIPT = Path(__file__).parents[2] / "examples" / "bash-workflow" / "workflow.sh"

pytestmark = pytest.mark.skipif(not (which("curl") and which("jq")), reason="needs curl and jq")


def run(server: Serving, *arguments: str) -> str:
    told = {**os.environ, "HOLDFAST_API": server.url}
    return subprocess.check_output([str(SCRIPT), *arguments], env=told, text=True, timeout=120)


def test_a_workflow_in_bash_runs_in_order_and_tells_of_its_end(
    server: Serving, client: Client
) -> None:
    started, again = run(server, "start"), run(server, "start")
    # A worker that dies with a job in its hands, and comes back no more.
    [dead] = client.claim("images", worker="dead", lease=0.1)

    worked = run(server, "work")
    while client.jobs.list("queue:images state:queued,leased"):
        client.upkeep.run()
        worked += run(server, "work")

    assert (started, again) == ("started with 3 jobs\n", "already started\n")
    assert worked.splitlines() == ["resize done", "resize done", "publish done"]
    assert dead.kind == "resize"
    assert [(one.name, one.state) for one in client.workflows.list()] == [("album", "done")]
    client.enqueue("listener")
    [lease] = client.claim("default", worker="w")
    heard = client.steps.await_event(lease, "wait", "published", key="album")
    assert heard.outcome == "received"
    assert heard.result_json == '["a-small.png", "b-small.png"]'
