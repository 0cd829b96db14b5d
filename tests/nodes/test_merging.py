"""How answers of several nodes become one. Pure functions, against sorting everything at once."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from holdfast.client import merging
from holdfast.records import Count, Job, JobPage, Operation

Ids = st.lists(st.integers(0, 60), unique=True, max_size=25)


def job(number: int) -> Job:
    """A job of which only the id counts."""
    return Job(
        **dict.fromkeys(Job.__struct_fields__) | {"id": UUID(int=number)}  # type: ignore[arg-type]
    )


def operation(**fields: object) -> Operation:
    about = dict.fromkeys(Operation.__struct_fields__) | {
        "state": "done",
        "total": 1,
        "capped": False,
        "seen": 1,
        "changed": 1,
        "undoable": 1,
        "ended_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return Operation(**(about | fields))  # type: ignore[arg-type]


def test_a_job_that_goes_from_one_node_to_the_other_meanwhile_is_shown_once() -> None:
    there, here = [job(3), job(2), job(1)], [job(4), job(3)]
    searched = merging.searched([JobPage(some, None, 3) for some in (there, here)], 3)

    assert [one.id.int for one in merging.newest([there, here], 3)] == [4, 3, 2]
    assert [one.id.int for one in merging.last_failed([there, here], 3)] == [4, 3, 2]
    assert [one.id.int for one in searched.jobs] == [4, 3, 2]
    ids = [[one.id for one in some] for some in (there, here)]
    assert [id.int for id in merging.newest_ids(ids, 3)] == [4, 3, 2]


@given(numbers=Ids, on_second=st.sets(st.integers(0, 60)), limit=st.integers(1, 7), looks=st.data())
def test_pages_of_searches_that_stop_anywhere_have_every_job_once_and_in_order(
    numbers: list[int], on_second: set[int], limit: int, looks: st.DataObject
) -> None:
    nodes = [[n for n in numbers if (n in on_second) is second] for second in (False, True)]

    def search(of: list[int], before: int | None) -> JobPage:
        """What a node answers that looks at some of its jobs, or at all that are left."""
        there = sorted((n for n in of if before is None or n < before), reverse=True)
        seen = looks.draw(st.integers(1, max(len(there), 1)))
        found = [job(n) for n in there[:seen]][:limit]
        stopped = seen < len(there) and len(found) < limit
        return JobPage(found, UUID(int=there[seen - 1]) if stopped else None, seen)

    found: list[int] = []
    before: int | None = None
    for _ in range(200):
        page = merging.searched([search(of, before) for of in nodes], limit)
        assert len(page.jobs) <= limit
        found += [one.id.int for one in page.jobs]
        if len(page.jobs) == limit:
            before = found[-1]
        elif page.searched_to is None:
            break
        else:
            before = page.searched_to.int

    assert found == sorted(numbers, reverse=True)


@given(numbers=Ids, on_second=st.sets(st.integers(0, 60)), most=st.integers(1, 30))
def test_the_newest_of_all_nodes_are_shared_out(
    numbers: list[int], on_second: set[int], most: int
) -> None:
    ids = {
        node: [UUID(int=n) for n in numbers if (n in on_second) is (node == 1)] for node in (0, 1)
    }

    shares = merging.split(most, ids)

    newest = sorted(numbers, reverse=True)[:most]
    assert shares.get(1, 0) == len([n for n in newest if n in on_second])
    assert sum(shares.values()) == len(newest)


def test_a_count_is_capped_if_one_node_stopped_or_all_together_have_more() -> None:
    assert merging.counted([Count(3, False), Count(4, False)], 10) == Count(7, False)
    assert merging.counted([Count(3, True), Count(4, False)], 10) == Count(7, True)
    assert merging.counted([Count(8, False), Count(4, False)], 10) == Count(10, True)


def test_an_operation_runs_while_a_part_of_it_does_and_ends_with_the_last() -> None:
    later = datetime(2026, 1, 2, tzinfo=UTC)
    running = operation(state="running", ended_at=None, changed=5, rate=2.0)
    done, failed = operation(rate=1.0, ended_at=later), operation(state="failed", problem="no")

    assert merging.operation([done, running]).state == "running"
    assert merging.operation([done, running]).ended_at is None
    assert merging.operation([running, done]).rate == 3.0
    assert merging.operation([running, done]).changed == 6
    whole = merging.operation([failed, done])
    assert (whole.state, whole.ended_at, whole.problem) == ("failed", later, "no")


def test_counts_add_up_over_time_and_of_percentiles_the_largest_is_shown() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    later = at + timedelta(minutes=1)
    lists = [[(at, 2.0), (later, None)], [(at, 3.0)]]

    assert merging.points("queued", lists) == [(at, 5.0), (later, None)]
    assert merging.points("run_p95", lists) == [(at, 3.0), (later, None)]
