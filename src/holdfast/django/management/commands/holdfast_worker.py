"""`manage.py holdfast_worker`: run the jobs of Django's tasks."""

import re
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from holdfast.errors import HoldfastError, NotMigrated

_OPTIONS = (
    "processes",
    "kinds",
    "until_idle",
    "max_jobs",
    "recycle_jobs",
    "recycle_rss",
    "grace",
    "lease",
    "metrics",
    "health",
)


class Command(BaseCommand):
    """Run the jobs of Django's tasks until stopped."""

    help = "Run the jobs of Django's tasks until stopped by SIGTERM or Ctrl-C."

    def add_arguments(self, parser: Any) -> None:
        """Take the options, those of `holdfast worker`."""
        parser.add_argument("--database", default="default", help="one of DATABASES (default)")
        parser.add_argument("-q", "--queues", help="slots per queue, such as mail:8,reports:1")
        parser.add_argument("--kinds", type=_words, help="only these tasks: shop.tasks.receipt,…")
        parser.add_argument("--concurrency", type=int, default=8, help="slots of each queue (8)")
        parser.add_argument("--processes", type=int, default=1, help="worker processes (1)")
        parser.add_argument("--until-idle", action="store_true", help="exit when no jobs are left")
        parser.add_argument("--max-jobs", type=int, help="exit after that many jobs")
        parser.add_argument("--recycle-jobs", type=int, help="a fresh process after that many jobs")
        parser.add_argument(
            "--recycle-rss", type=_size, help="a fresh process above that memory, such as 1GB"
        )
        parser.add_argument("--grace", type=float, help="seconds to finish when stopped (25)")
        parser.add_argument("--lease", type=float, help="seconds of a lease (the queue's)")
        parser.add_argument("--metrics", help="port, or address and port, for Prometheus")
        parser.add_argument("--health", help="port, or address and port, for /livez and /readyz")

    def handle(self, *, database: str, queues: str | None, **options: Any) -> None:
        """Run the command."""
        # Not before: it imports all tasks.
        from holdfast.django import site
        from holdfast.django.database import name_in_site
        from holdfast.worker import fleet

        app = getattr(site, name_in_site(database), None)
        if app is None:
            raise CommandError(
                f"No backend in TASKS uses DATABASES[{database!r}]. "
                "Name holdfast.django.HoldfastBackend as the BACKEND of one."
            )
        if any(one.in_atomic_block for one in connections.all(initialized_only=True)):
            raise CommandError(
                "holdfast_worker was called inside atomic(), whose jobs no worker can see. Call it "
                "after the block; in a test, use a TransactionTestCase instead of a TestCase."
            )
        chosen = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
        slots = options["concurrency"]
        chosen["queues"] = _read(queues, slots) if queues else site.queues(database, slots)
        connections.close_all()
        try:
            fleet.run(app, **chosen)
        except HoldfastError as error:
            if isinstance(error, NotMigrated):
                error.fix = "Run:  python manage.py migrate"
            raise CommandError(str(error)) from error


def _words(value: str) -> list[str]:
    return [word for part in value.split(",") if (word := part.strip())]


def _size(value: str) -> int:
    found = re.fullmatch(r"(\d+)\s*(|k|m|g)b?", value.lower())
    if not found:
        raise ArgumentTypeError(f"{value!r} is not a size such as 800MB or 1GB")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]


def _read(queues: str, slots: int) -> dict[str, int]:
    chosen = {}
    for part in queues.split(","):
        name, colon, number = part.strip().rpartition(":")
        if not colon:
            name, number = number, str(slots)
        if not name or not number.isdecimal() or int(number) < 1:
            raise CommandError(f"{part!r} is not a queue and a number, such as mail:8")
        chosen[name] = int(number)
    return chosen
