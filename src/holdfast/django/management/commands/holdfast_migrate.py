"""`manage.py holdfast_migrate`: install or upgrade the schema."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from holdfast.django.database import address
from holdfast.errors import HoldfastError
from holdfast.schema import migrate, plan, sql


class Command(BaseCommand):
    """Install or upgrade Holdfast's schema, which `manage.py migrate` does as well."""

    help = "Install or upgrade Holdfast's schema; `manage.py migrate` does that as well."

    def add_arguments(self, parser: Any) -> None:
        """Take the options."""
        parser.add_argument("--database", default="default", help="one of DATABASES (default)")
        parser.add_argument("--plan", action="store_true", help="only say what would be applied")
        parser.add_argument("--sql", action="store_true", help="print the whole installation")

    def handle(self, *, database: str, plan: bool, sql: bool, **_: Any) -> None:
        """Run the command."""
        if sql:
            self.stdout.write(_sql())
            return
        source = f"DATABASES[{database!r}]"
        try:
            steps = (_plan if plan else migrate)(address(database), source=source)
        except HoldfastError as error:
            raise CommandError(str(error)) from error
        for step in steps:
            self.stdout.write(f"{'would apply' if plan else 'applied'} {step}")
        if not steps:
            self.stdout.write("The schema is up to date.")


_plan, _sql = plan, sql
