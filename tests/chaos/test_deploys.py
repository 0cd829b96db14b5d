"""Deploys under load: two releases of a program, whose processes are replaced one by one.

Arguments are added, removed, renamed, of another type and newly required; a kind is renamed, one
only the old release knows, one only the new. No job dies, runs twice, is charged an attempt, or is
left. The releases are in `releases`, each a directory with a module of the same name.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.conftest import Scale, at_full_length
from tests.chaos.fleet import ROOT, Worker
from tests.chaos.releases.ledger import READY, TABLES
from tests.chaos.server import WORKER
from tests.chaos.stage import Stage

RELEASES = Path(__file__).parent / "releases"
# What a producer of one release enqueues and workers of the other cannot run: these calls are
# switched off and their jobs finished before the last worker of the first one goes.
NOT_FOR_OTHERS = {
    "old": ("needs", "withdrawn"),
    "new": ("added", "removed", "renamed", "retyped", "moved", "needs", "begun"),
}
# The effects of each call, whatever the release.
INSIDE = ["added", "moved", "retyped"]
OUTSIDE = ["same", "added", "removed", "renamed", "moved", "needs", "withdrawn", "begun"]
GIVEN_BACK = "cannot be read here, and is given back"
REPLACED = "worker replaced"
PATIENCE = 60.0
MAIN = 'if __name__ == "__main__":'
WITHDRAWN = "@app.task\ndef withdrawn(n: int) -> None:\n    outside(RELEASE)\n"


def test_a_deploy_loses_no_job_and_runs_none_twice(stage: Stage, scale: Scale) -> None:
    shop = Shop(stage, "old", workers=scale(2, 3), jobs=scale(20, 300))

    # At full length each deploy is undone by another one, and made again.
    for release in ["new", *["old", "new"] * scale(0, 6)]:
        shop.deploy(release)

    shop.close()


@at_full_length
def test_a_deploy_that_is_given_up_halfway_loses_no_job(stage: Stage, scale: Scale) -> None:
    shop = Shop(stage, "old", workers=1, jobs=scale(20, 300))

    for _ in range(scale(1, 8)):
        canary, producer = shop.work("new"), shop.produce("new")
        shop.until_run(by="new", placed_by="new")
        shop.until_run(by="new", placed_by="old")
        shop.until_run(by="old", placed_by="old")
        shop.end(producer)
        shop.until_none_left("new")
        shop.end(canary)

    shop.close()


@at_full_length
def test_code_that_is_replaced_under_a_worker_that_recycles_loses_no_job(
    stage: Stage, scale: Scale, tmp_path: Path
) -> None:
    """As by `git pull`: a successor imports what it finds when it starts.

    A kind may be renamed; one that is gone keeps the successor from starting.
    """
    code = tmp_path / "shop.py"
    shutil.copy(RELEASES / "old/shop.py", code)
    shop = Shop(stage, "old", workers=0, jobs=scale(20, 200))
    worker = shop.work("old", "--recycle-jobs", "30", code=code)
    shop.until_run(by="old", placed_by="old")

    young = (RELEASES / "new/shop.py").read_text()
    (tmp_path / "next").write_text(young.replace(MAIN, f"{WITHDRAWN}\n\n{MAIN}"))
    (tmp_path / "next").replace(code)
    producer = shop.produce("new")
    shop.until_run(by="new", placed_by="old")
    shop.until_run(by="new", placed_by="new")
    # Which kinds it runs was read when it was started: new ones wait until it is started again.
    assert not stage.rows("select job from chaos.ledger where kind = 'begun'")
    last = shop.work("old")
    shop.end(worker)
    shop.work("new", code=code)
    while shop.producers:
        shop.end(shop.producers.pop())
    shop.until_none_left("old")
    shop.end(last)
    shop.end(producer)

    assert REPLACED in worker.said()
    shop.close()


class Shop:
    """The processes of a shop, which is always open, and what became of its jobs."""

    def __init__(self, stage: Stage, release: str, *, workers: int, jobs: int) -> None:
        self.stage = stage
        self.release = release
        self._jobs = jobs
        self._deploys = 0
        stage.execute(TABLES.format(worker=WORKER))
        self.workers = [self.work(release) for _ in range(workers)]
        self.producers = [self.produce(release) for _ in range(2)]
        if workers:
            self.until_run(by=release, placed_by=release)

    def deploy(self, release: str) -> None:
        """Replace all processes by those of another release, producers and workers in turn."""
        before, self.release = self.release, release
        # Nothing has to come first: workers that cannot read its jobs, or do not know them, are
        # all there are.
        self._replace_producer(self.produce(release))
        self._until_said(self.workers, GIVEN_BACK)
        *others, last = self.workers
        self.workers = []
        for worker in others:
            self.workers.append(self.work(release, "--recycle-jobs", "100"))
            self.end(worker)
        self.until_run(by=release, placed_by=release)
        self.until_run(by=before, placed_by=before)
        self._replace_producer(self.produce(before, *NOT_FOR_OTHERS[before]))
        self.until_none_left(before, NOT_FOR_OTHERS[before])
        self.workers.append(self.work(release))
        self.end(last)
        # A producer of the release before goes on for a while, with workers of the next one only.
        self.until_run(by=release, placed_by=before)
        self._until_said(self.workers, REPLACED)
        self.producers.reverse()
        self._replace_producer(self.produce(release))
        self.until_run(by=release, placed_by=release)
        self._deploys += 1

    def work(self, release: str, *options: str, code: Path | None = None) -> Worker:
        """Start a worker, and wait until it works."""
        place = code or RELEASES / release / "shop.py"
        worker = self.stage.start(4, *options, app=f"{place}:app")
        self.stage.until(lambda: worker.ready, PATIENCE)
        return worker

    def produce(self, release: str, *without: str) -> Worker:
        """Start a producer that enqueues all the time, and wait until it does."""
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, str(RELEASES / release / "shop.py"), *without]
        producer = self.stage.fleet.run(command, HOLDFAST_URL=self.stage.url, PYTHONPATH=path)
        self.stage.until(lambda: READY in producer.said(), PATIENCE)
        return producer

    def end(self, process: Worker) -> None:
        """Ask a process to end, as a deploy does, and wait for its end."""
        process.terminate()
        assert process.wait(PATIENCE) == 0, process.said()

    def until_run(self, *, by: str, placed_by: str) -> None:
        """Wait until so many more jobs of producers of a release were run by workers of one."""
        run = (
            "select count(distinct l.job) from chaos.ledger l join chaos.placed p on p.job = l.job "
            "where l.release = %s and p.release = %s"
        )
        wanted = self.stage.value(run, by, placed_by) + self._jobs
        why = f"workers of {by} do not run jobs of producers of {placed_by}"
        self.stage.until(lambda: self.stage.value(run, by, placed_by) >= wanted, PATIENCE, why)

    def until_none_left(self, release: str, calls: Sequence[str] = ()) -> None:
        """Wait until no job waits or runs of producers of a release, or only of these calls."""
        left = (
            "select count(*) from holdfast.job j join chaos.placed p on p.job = j.id "
            "where p.release = %s and (p.call = any(%s) or %s)"
        )
        chosen = [release, list(calls), not calls]
        self.stage.until(lambda: not self.stage.value(left, *chosen), PATIENCE, "jobs are left")

    def close(self) -> None:
        """End the producers, wait for all jobs, and demand that each ran once."""
        stage = self.stage
        for producer in self.producers:
            self.end(producer)
        stage.drained(PATIENCE)

        stage.judge([job for (job,) in stage.rows("select job from chaos.placed")])
        for how, calls in (("inside", INSIDE), ("outside", OUTSIDE)):
            assert self._not_once(how, calls) == [], how
        assert stage.value("select count(*) from chaos.ledger where attempt <> 1") == 0
        assert stage.rows("select * from holdfast.attempt where outcome <> 'done'") == []
        given_back = stage.value("select count(*) from holdfast.unreadable")
        stage.facts |= {"deploys": self._deploys, "given back lately": given_back}

    def _not_once(self, how: str, calls: Sequence[str]) -> list[tuple[str, str, int]]:
        """Return the calls whose effect is there not once, and how often."""
        return self.stage.rows(
            "select p.call, p.release, count(l.job) from chaos.placed p "
            "left join chaos.ledger l on l.job = p.job and l.how = %s "
            "group by p.job having count(l.job) <> case when p.call = any(%s) then 1 else 0 end",
            how,
            list(calls),
        )

    def _replace_producer(self, by: Worker) -> None:
        self.producers.append(by)
        self.end(self.producers.pop(0))

    def _until_said(self, workers: Sequence[Worker], words: str) -> None:
        def said() -> bool:
            return any(words in worker.said() for worker in workers)

        self.stage.until(said, PATIENCE, f"no worker has said: {words}")
