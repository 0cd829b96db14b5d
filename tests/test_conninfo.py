"""How Holdfast connects, and how it names what it connects to."""

from datetime import timedelta

import pytest

from holdfast import conninfo
from holdfast.errors import Misuse


def test_connections_need_no_session_of_their_own() -> None:
    parameters = conninfo.parameters("postgresql://app@db/shop", application_name="holdfast")

    assert parameters["autocommit"] is True
    assert parameters["prepare_threshold"] is None
    assert "options" not in parameters


def test_a_dead_peer_is_noticed_within_seconds() -> None:
    parameters = conninfo.parameters("postgresql://app@db/shop", application_name="holdfast")

    assert parameters["connect_timeout"] <= 3
    assert parameters["tcp_user_timeout"] <= 10_000
    assert parameters["keepalives_idle"] <= 10


def test_of_several_hosts_the_one_that_takes_writes_is_chosen() -> None:
    several = conninfo.parameters("postgresql://app@a,b/shop", application_name="holdfast")
    single = conninfo.parameters("postgresql://app@a/shop", application_name="holdfast")

    assert several["target_session_attrs"] == "read-write"
    assert "target_session_attrs" not in single


def test_what_the_url_says_wins() -> None:
    parameters = conninfo.parameters(
        "postgresql://app@a,b/shop?connect_timeout=9&application_name=mine"
        "&target_session_attrs=any",
        application_name="holdfast",
    )

    assert parameters["connect_timeout"] == "9"
    assert parameters["application_name"] == "mine"
    assert parameters["target_session_attrs"] == "any"


def test_a_server_is_named_without_its_password() -> None:
    named = conninfo.server("postgresql://app:s3cret@a:1,b:2/shop")

    assert named == "a:1, b:2 (user app, database shop)"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:s3%zzcret@db",
        "postgresql://app:s3cret@[db",
        "postgres//app:s3cret@db",
        "mysql://app:s3cret@db/shop",
        'host=db user=app "password s3cret"',
        'mysql://app:a"s3cret"b@db',
        "host=db password='s3cret",
    ],
)
def test_an_unreadable_address_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(Misuse, match="cannot be read") as refused:
        conninfo.parameters(url, application_name="holdfast")

    assert "s3" not in str(refused.value)


@pytest.mark.parametrize("password", ["p@s3cret", "p/s3cret", "p/@s3cret", "p@s3/cret"])
def test_a_password_that_ends_too_early_is_refused_without_showing_its_rest(password: str) -> None:
    with pytest.raises(Misuse, match="@ %40") as refused:
        conninfo.parameters(f"postgresql://app:{password}@db/shop", application_name="holdfast")

    assert "s3" not in str(refused.value)


def test_an_at_sign_that_is_encoded_or_in_the_query_is_read() -> None:
    url = "postgresql://app:p%40s%2F@db/shop?user=ada@shop"
    read = conninfo.parameters(url, application_name="holdfast")

    assert (read["password"], read["host"], read["user"]) == ("p@s/", "db", "ada@shop")


def test_an_address_of_sqlalchemy_is_answered_with_what_is_wrong_in_it() -> None:
    with pytest.raises(Misuse, match=r"begins with postgresql\+asyncpg://") as refused:
        conninfo.parameters("postgresql+asyncpg://app:s3cret@db/shop", application_name="holdfast")

    assert "SQLAlchemy" in str(refused.value)
    assert "s3" not in str(refused.value)


def test_the_address_comes_from_the_caller_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://env")

    assert conninfo.locate("postgresql://mine", "--url") == ("postgresql://mine", "--url")
    assert conninfo.locate(None) == ("postgresql://env", "HOLDFAST_URL in the environment")


@pytest.mark.parametrize(
    ("given", "environment", "seconds"),
    [
        (None, None, 60.0),
        (None, "45", 45.0),
        (None, "45s", 45.0),
        (5, "45", 5.0),
        (timedelta(minutes=1), None, 60.0),
    ],
)
def test_how_long_a_call_may_take_is_said_by_the_caller_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    given: float | timedelta | None,
    environment: str | None,
    seconds: float,
) -> None:
    monkeypatch.delenv("HOLDFAST_TIMEOUT", raising=False)
    if environment:
        monkeypatch.setenv("HOLDFAST_TIMEOUT", environment)

    assert conninfo.timeout(given) == seconds


@pytest.mark.parametrize("told", ["soon", "0", "-1", "inf", "nan"])
def test_a_timeout_that_is_not_one_is_refused_with_its_value(
    monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setenv("HOLDFAST_TIMEOUT", told)

    with pytest.raises(Misuse, match=f"HOLDFAST_TIMEOUT is '{told}'"):
        conninfo.timeout()
