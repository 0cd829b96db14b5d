"""Every verb of the client in one story, which tests/citus tells on clusters."""

from holdfast import Client
from tests import story


def test_the_story_calls_every_verb(database: str) -> None:
    with Client(database) as client:
        assert story.tell(client, client, "mail") == set()
