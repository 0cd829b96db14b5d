"""The relay: Python sends, bash works, and a consumer that is killed loses nothing."""

from pathlib import Path
from shutil import which
from urllib.error import HTTPError

import httpx
import pytest

import examples.relay.producer as relay
from examples.relay.__main__ import MESSAGES, QUEUE, main
from examples.relay.producer import look, mend, send
from holdfast import Client
from holdfast.server import Server, Settings
from tests.examples.conftest import shows
from tests.server.serving import serving

pytestmark = pytest.mark.skipif(not (which("curl") and which("jq")), reason="needs curl and jq")


@pytest.mark.proves("S4.12", "S4.14", "S4.17", "S4.28", "S4x.5")
def test_messages_from_python_are_worked_on_in_bash_through_a_kill(
    api: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    main()

    told = capsys.readouterr().out
    assert shows("relay", told)
    assert told.count("resizing lamp-front.jpg") == 2
    jobs = api.get("/v1/jobs", params={"q": f"queue:{QUEUE}"}).json()["jobs"]
    assert [job["state"] for job in jobs] == ["done"] * len(MESSAGES)
    assert {job["attempt"] for job in jobs if job["kind"] == "invoice"} == {1}
    workers = api.get("/v1/workers").json()["workers"]
    assert sum(one["acked"] for one in workers if one["worker"].startswith("bash-")) > 0


def test_producer_and_consumer_speak_the_routes_of_relay_alone() -> None:
    told = [
        (Path(relay.__file__).parent / name).read_text("utf-8")
        for name in ("__main__.py", "producer.py", "consumer.sh")
    ]

    assert not [text for text in told if "/v1/" in text]
    assert all(word in told[2] for word in ("/queue/message", "/touch", "/ack", "/nack"))


def test_a_dead_message_is_mended_and_lives_again(api: httpx.Client) -> None:
    [id] = send([{"type": "email", "payload": {"to": "grace"}, "max_attempts": 1}], QUEUE)
    message = api.get("/queue/message", params={"queue": QUEUE}).json()
    failed = {"lock_token": message["lock_token"], "error": "cannot send to grace"}
    api.post(f"/queue/message/{id}/nack", json=failed)
    [dead] = look("dead", QUEUE)

    mend(id, {"to": "grace@example.org"})

    assert (dead["status"], dead["last_error"]) == ("dead", "cannot send to grace")
    [again] = look("main", QUEUE)
    assert (again["id"], again["attempt_count"]) == (id, 0)
    assert again["payload"] == {"to": "grace@example.org"}
    assert api.get(f"/v1/jobs/{id}").json()["reason"] == "the address was wrong"


def test_the_producer_shows_its_token(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(database) as client:
        secret = client.tokens.create("shop", ["produce"], queues=[QUEUE]).secret

    with serving(Server(database, settings=Settings(ways=["token"]))) as closed:
        monkeypatch.setenv("HOLDFAST_API", closed.url)
        with pytest.raises(HTTPError, match="401") as refused:
            send(MESSAGES, QUEUE)
        refused.value.close()
        monkeypatch.setenv("HOLDFAST_TOKEN", secret)
        sent = send(MESSAGES, QUEUE)

    assert len(sent) == len(MESSAGES)
