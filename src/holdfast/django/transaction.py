"""`current().transaction()` in Django: the ORM's writes and the end of the job in one commit."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from django.db import connections, transaction

from holdfast.client import client_on
from holdfast.current import CurrentJob
from holdfast.django.outages import alias_of, began, note_outage
from holdfast.django.results import kept
from holdfast.django.running import CallTask
from holdfast.django.tasks_api import normalize_json
from holdfast.doubt import assert_not_lost, make_certain
from holdfast.errors import Misuse
from holdfast.job_transaction import JobTransaction, all_stored


class OrmTransaction(JobTransaction):
    """An `atomic()` block in which the job ends too; yields Django's connection."""

    def __init__(self, job: CurrentJob, result: Any) -> None:
        if isinstance(job.task, CallTask):
            result = kept(normalize_json(result), began()[1])
        super().__init__(job, result)

    @contextmanager
    def _sync(self, client: Any) -> Iterator[Any]:
        job, alias = self._job, alias_of(self._job)
        make_certain(job)
        try:
            # Inside another block it would be the other's to commit.
            with self._undone_noted(), transaction.atomic(using=alias, durable=True):
                connection = connections[alias]
                # First of all: what else runs on commit may fail, and the job has ended.
                transaction.on_commit(self._settled, using=alias)
                with self._open_noted():
                    yield connection
                assert_not_lost(job)
                client = client_on(connection)
                all_stored(job, client.steps.store(job.steps_to_store()))
                [acked] = client.ack(
                    [job.lease], [self._result], keep=self._keep, recent=self._recent()
                )
                acked.raise_if_lost()
        except Exception as error:
            note_outage(job, error)
            raise
        self._settled()

    def _settled(self) -> None:
        self._job.settled = True

    @asynccontextmanager
    async def _async(self, client: Any) -> AsyncIterator[Any]:
        raise Misuse(
            "current().transaction() is not asynchronous in Django, because the ORM is not",
            fix="Call a function that has  with current().transaction():  by sync_to_async.",
        )
        yield
