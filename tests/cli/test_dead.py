from holdfast.client import Client
from tests.cli.conftest import Run


def test_groups_lists_what_died_alike_the_largest_first(holdfast: Run, client: Client) -> None:
    for message in ("waited 30 s", "waited 31 s", "no such user"):
        client.enqueue("send", max_attempts=1)
        client.nack(client.claim(worker="w"), error_kind="SMTP", message=message)

    answer = holdfast("dead", "groups")
    document = holdfast("dead", "groups", "--json").json

    assert [group["jobs"] for group in document] == [2, 1]
    fingerprint = document[0]["fingerprint"]
    assert answer.out.splitlines()[1].split()[:4] == [fingerprint, "2", "send", "default"]
    assert f"holdfast job retry 'state:dead group:{fingerprint}'" in answer.err


def test_the_commands_it_suggests_work(holdfast: Run, client: Client) -> None:
    client.enqueue("send", max_attempts=1)
    client.nack(client.claim(worker="w"), message="no")

    [group] = holdfast("dead", "groups", "--json").json
    answer = holdfast("job", "retry", f"state:dead group:{group['fingerprint']}", "--yes")

    assert answer.out == "1 job retried\n"
    assert holdfast("dead", "groups").err == "no dead jobs\n"


def test_dead_jobs_are_listed_by_the_time_of_their_failure(holdfast: Run, client: Client) -> None:
    ids = [client.enqueue("send", max_attempts=1, priority=priority).id for priority in (0, 9)]
    for _ in ids:
        client.nack(client.claim(worker="w"), message="boom")

    listed = holdfast("dead", "list", "--json").json
    shown = holdfast("dead", "list", "kind:send")

    assert [one["id"] for one in listed] == [str(ids[0]), str(ids[1])]
    assert shown.out.splitlines()[0].split() == ["id", "kind", "queue", "died", "error"]


def test_what_waits_in_a_queue_is_listed_in_the_order_in_which_it_runs(
    holdfast: Run, client: Client
) -> None:
    ids = [client.enqueue("send", queue="mail", priority=priority).id for priority in (0, 9, 5)]

    listed = holdfast("queue", "next", "mail", "--json").json

    assert [one["id"] for one in listed] == [str(ids[1]), str(ids[2]), str(ids[0])]
