"""Log lines about an enqueue: which job is ahead, and how many were skipped."""

import logging
from collections.abc import Sequence

from holdfast.records import Enqueued, NewJob

log = logging.getLogger("holdfast")


def log_enqueued(jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> None:
    """Log how many jobs were duplicates, and which jobs the others wait for."""
    if not log.isEnabledFor(logging.INFO):
        return
    rivals = [n for n, answer in enumerate(answers) if not answer.created]
    if rivals:
        replaced = sum(jobs[n].on_conflict == "replace" for n in rivals)
        skipped = len(rivals) - replaced
        log.info(
            "%d of %d enqueued jobs are duplicates of live jobs: %d skipped, %d replaced",
            *(len(rivals), len(answers), skipped, replaced),
            extra={"skipped": skipped, "replaced": replaced, "enqueued": len(answers)},
        )
    waiting = [n for n, answer in enumerate(answers) if answer.holder is not None]
    if waiting:
        job, answer = jobs[waiting[0]], answers[waiting[0]]
        place = (
            f"queue {job.queue}" if job.lane is None else f"lane {job.lane} of queue {job.queue}"
        )
        since = answer.held_since and answer.held_since.isoformat(timespec="seconds")
        log.info(
            "%s is busy with job %s, which %s has held since %s: %d of %d enqueued jobs wait",
            *(place, answer.behind, answer.holder, since, len(waiting), len(answers)),
            extra={
                "queue": job.queue,
                "lane": job.lane,
                "behind": str(answer.behind),
                "holder": answer.holder,
                "held_since": since,
                "waiting": len(waiting),
            },
        )
