"""Records and ids: Python and SQL agree on what an id says."""

import time
from typing import Any, get_type_hints
from uuid import uuid4

from holdfast import records


def test_python_and_sql_put_a_queue_into_the_same_part(connect: Any) -> None:
    queues = ["default", "mail", "", "ü-queue", "日本", "x" * 120, "it's"]

    in_sql = connect().execute(
        "select holdfast.queue_part(queue) from unnest(%s::text[]) queue", [queues]
    )

    assert [part for (part,) in in_sql] == [records.queue_part(queue) for queue in queues]


def test_python_and_sql_read_the_same_part_out_of_an_id(connect: Any) -> None:
    made_in_python = [records.new_id(queue) for queue in ("default", "mail", "ü")]
    connection = connect()
    [made_in_sql] = connection.execute("select holdfast.new_id('mail')").fetchone()

    in_sql = connection.execute(
        "select holdfast.part_of(id) from unnest(%s::uuid[]) id", [made_in_python]
    )

    parts = [records.part_of(id) for id in made_in_python]
    assert [part for (part,) in in_sql] == parts
    assert parts == [records.queue_part(queue) for queue in ("default", "mail", "ü")]
    assert records.part_of(made_in_sql) == records.queue_part("mail")


def test_python_and_sql_stamp_an_id_alike(connect: Any) -> None:
    id = uuid4()

    [in_sql] = connect().execute("select holdfast.stamp(%s, 37::smallint)", [id]).fetchone()

    assert records.stamp(id, 37) == in_sql
    assert records.part_of(in_sql) == 37


def test_an_id_is_a_uuid_of_version_8_that_sorts_by_time() -> None:
    earlier = records.new_id()
    time.sleep(0.002)
    later = records.new_id()

    assert (later.version, later.variant) == (8, "specified in RFC 4122")
    assert earlier < later
    assert abs((later.int >> 80) / 1000 - time.time()) < 1


def test_ids_made_in_the_same_moment_differ() -> None:
    assert len({records.new_id() for _ in range(10_000)}) == 10_000


def test_the_options_of_enqueue_are_the_fields_of_a_new_job() -> None:
    fields = get_type_hints(records.NewJob)

    options = get_type_hints(records.JobOptions)

    assert {name: fields[name] for name in fields if name not in ("kind", "payload")} == options
