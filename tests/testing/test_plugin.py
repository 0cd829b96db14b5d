"""The pytest plugin: what it costs a run that does not use it, and what its databases are."""

import os
import subprocess
import sys
from urllib.parse import urlsplit

from sqlalchemy import create_engine, text

from holdfast import App, Client
from holdfast.testing import Kit


def test_without_its_fixtures_nothing_of_holdfast_is_imported() -> None:
    program = (
        "import sys, holdfast_pytest\n"
        "print([name for name in sys.modules if name.partition('.')[0] in"
        " ('holdfast', 'psycopg', 'msgspec')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_every_app_uses_the_database_of_the_test_and_then_its_own_again(holdfast: Kit) -> None:
    theirs = "postgresql://nowhere.invalid/production"
    app = App(theirs)

    assert app.url == holdfast.url
    with Kit(holdfast.url):
        assert app.url == holdfast.url
    assert (app.url, os.environ["HOLDFAST_URL"]) == (holdfast.url, holdfast.url)
    with Client() as client:
        assert client.url == holdfast.url
    holdfast.__exit__(None, None, None)
    assert app.url == theirs
    assert os.environ.get("HOLDFAST_URL") != holdfast.url


def test_its_address_is_one_that_other_drivers_read(holdfast: Kit) -> None:
    assert urlsplit(holdfast.url).scheme == "postgresql"
    engine = create_engine(holdfast.url.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.connect() as connection:
        assert connection.execute(text("select count(*) from payment")).scalar() == 0
    engine.dispose()
