"""PostgreSQL crashes just after a claim: who was let in stays in, and nobody comes beside him."""

import pytest

from holdfast import Client
from tests.chaos.stage import Stage


@pytest.mark.parametrize("bound_by", ["lane", "limit", "rate"])
def test_a_crash_just_after_a_claim_does_not_forget_who_was_let_in(
    stage: Stage, bound_by: str
) -> None:
    if bound_by == "limit":
        stage.client.queue_set("lanes", limit=1)
    elif bound_by == "rate":
        stage.client.queue_set("lanes", rate_limit=1, rate_period=3600)
    stage.enqueue("step", 2, queue="lanes", lane="one" if bound_by == "lane" else None)
    with Client(stage.url, application_name="chaos") as client:
        # On the client's own connections: such a claim need not wait for the disk.
        [first] = client.claim("lanes", worker="first", limit=2)

        stage.server.stop("immediate")
        stage.server.start()

        assert client.claim("lanes", worker="second", limit=2) == []
        [touched] = client.touch([first])
        assert touched.held
