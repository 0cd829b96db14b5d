"""Days are forgotten while others write to the log and read it: nobody waits."""

import threading

from tests.protocol import Later, Open, Protocol


def rows(db: Protocol) -> int:
    found = db.connection.execute("select count(*) from holdfast.event").fetchone()
    assert found is not None
    return int(found[0])


def fail(db: Protocol) -> None:
    db.put(max_attempts=1)
    db.nack(db.take(), message="no route")


def test_a_writer_does_not_wait_for_a_day_that_is_being_forgotten(
    db: Protocol, other: Open, later: Later
) -> None:
    fail(db)
    later(days=9)
    forgetting = other(autocommit=False)
    assert forgetting.value("forget_activity") == 1

    writer = other()
    writer.connection.execute("set lock_timeout = '100ms'")
    fail(writer)

    forgetting.connection.commit()
    assert rows(db) == 1


def test_a_day_is_not_forgotten_under_an_open_writer_or_reader_and_neither_waits(
    db: Protocol, other: Open, later: Later
) -> None:
    fail(db)
    reader, writer = other(autocommit=False), other(autocommit=False)
    later(days=9)
    assert rows(reader) == 1  # holds every day open
    fail(writer)

    forgetting = other()
    assert forgetting.value("forget_activity") == 0

    # The next turn finds it free.
    assert rows(reader) == 1
    reader.connection.rollback()
    assert forgetting.value("forget_activity") == 1
    writer.connection.commit()
    assert rows(db) == 1


def test_under_load_no_call_waits_noticeably_while_days_are_forgotten(
    db: Protocol, other: Open, later: Later
) -> None:
    over = threading.Event()
    failures: list[BaseException] = []
    calls = [0, 0]

    def repeat(nth: int, session: Protocol) -> None:
        # Far more than a call takes, far less than one that waits in line.
        session.connection.execute("set lock_timeout = '1s'")
        try:
            while not over.is_set():
                if nth == 0:
                    fail(session)
                else:
                    rows(session)
                calls[nth] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=repeat, args=[n, other()]) for n in (0, 1)]
    for thread in threads:
        thread.start()
    emptied = 0
    forgetting = other()
    try:
        for _ in range(60):
            later(days=1)
            before = calls[0]
            while calls[0] < before + 2 and not failures:
                over.wait(0.001)
            emptied += forgetting.value("forget_activity")
    finally:
        over.set()
        for thread in threads:
            thread.join()

    assert failures == []
    assert emptied > 10
    assert calls[1] > 20
