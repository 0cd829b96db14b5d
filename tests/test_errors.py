"""Errors say what happened, why, and what to type next, and travel between processes."""

import pickle
from uuid import UUID, uuid4

import pytest

from holdfast import errors

SAMPLES = [
    errors.CannotConnect("db:5432 (user app, database shop)", "timeout", source="HOLDFAST_URL"),
    errors.EmbeddedUnavailable("no PostgreSQL here", tried=["pg_ctl: not found"]),
    errors.NotMigrated("shop", found=None, needed=4),
    errors.SchemaTooNew(found=6, known=4),
    errors.UnknownOutcome("enqueue", "connection lost", ids=[uuid4()]),
    errors.InvalidJob("item 1 has no kind", fix="Name one.", code="HF201"),
    errors.LeaseLost(uuid4(), "job 42 is held by worker db2"),
    errors.UnknownJob(uuid4()),
    errors.InvalidArguments("greet.enqueue: no", where="app.py:18   greet.enqueue(42)"),
    errors.JobFailed(uuid4(), "greet", "ValueError: no", attempts=3),
    errors.JobCancelled(uuid4(), "greet", "she left"),
    errors.ResultTimeout(uuid4(), "job 42 has not ended"),
]


def test_a_message_is_what_why_and_fix_under_its_code() -> None:
    error = errors.HoldfastError("it broke", why="the wind\nblew", fix="Close the window.")

    assert str(error) == (
        "HF000 it broke\n"
        "      the wind\n"
        "      blew\n"
        "      Close the window."
    )  # fmt: skip


def test_an_unreachable_database_is_told_as_in_the_catalogue() -> None:
    error = errors.CannotConnect(
        "db.internal:5432 (user app, database shop)",
        "connection refused",
        source="HOLDFAST_URL in the environment",
        tries=3,
        seconds=3.0,
    )

    assert str(error) == (
        "HF100 cannot reach PostgreSQL at db.internal:5432 (user app, database shop): "
        "connection refused\n"
        "      from HOLDFAST_URL in the environment. Tried 3 times in 3 s.\n"
        "      Check that the server runs, or unset HOLDFAST_URL to use the embedded one."
    )


def test_a_missing_schema_is_told_as_in_the_catalogue() -> None:
    assert str(errors.NotMigrated("shop", found=None, needed=4)) == (
        'HF110 database "shop" has no holdfast schema (found: none, this version needs 4)\n'
        "      Run:  holdfast migrate            See the SQL first:  holdfast migrate --sql"
    )


def test_an_error_carries_its_data() -> None:
    id = UUID(int=42)

    assert errors.LeaseLost(id).id == id
    assert errors.NotMigrated("shop", found=3, needed=4).found == 3
    assert errors.InvalidJob("no", code="HF203").code == "HF203"


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_to_another_process(error: errors.HoldfastError) -> None:
    arrived = pickle.loads(pickle.dumps(error))

    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
