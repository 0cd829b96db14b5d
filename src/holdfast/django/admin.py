"""Pages of Django's admin: jobs and dead groups, to look at, to retry and to cancel.

They call the protocol's functions, as the command line does, and never write a table.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.http import urlencode

from holdfast.client import Client, client_on
from holdfast.codec import told
from holdfast.django.models import DeadGroup, Job
from holdfast.django.tasks_api import own_backends
from holdfast.errors import HoldfastError, NotMigrated
from holdfast.records import Change

STATES = ("queued", "leased", "done", "dead", "cancelled", "archived")
ON_A_PAGE = 50
# How many jobs of a group one request retries; the command line has no limit.
MOST = 1000


class _Page(admin.ModelAdmin):
    """A page without a table behind it."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: jobs are enqueued by programs."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: a job is not edited here."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: what is done is deleted by its queue's settings."""
        return False

    def _answer(self, request: HttpRequest, name: str, **context: Any) -> HttpResponse:
        shown = {
            **self.admin_site.each_context(request),
            "opts": self.model._meta,
            "may_retry": request.user.has_perm("holdfast.retry_job"),
            "may_cancel": request.user.has_perm("holdfast.cancel_job"),
            **context,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"holdfast/admin/{name}.html", shown)

    def _check_view(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _act(self, request: HttpRequest, client: Client, ids: Sequence[UUID]) -> None:
        """Retry or cancel jobs, as the user asks; says what became of them."""
        verb = request.POST.get("action")
        if verb not in ("retry", "cancel") or not request.user.has_perm(f"holdfast.{verb}_job"):
            raise PermissionDenied
        if not ids:
            self.message_user(request, "Select at least one job.", messages.WARNING)
            return
        change = client.jobs.retry if verb == "retry" else client.jobs.cancel
        reason = request.POST.get("reason") or "from Django's admin"
        changes = change(ids, reason=reason, actor=request.user.get_username())
        self._tell(request, verb, changes)

    def _tell(self, request: HttpRequest, verb: str, changes: Sequence[Change]) -> None:
        changed = [one for one in changes if one.changed]
        left = [one for one in changes if not one.changed]
        done = "retried" if verb == "retry" else "cancelled"
        jobs = "1 job was" if len(changed) == 1 else f"{len(changed)} jobs were"
        if changed:
            self.message_user(request, f"{jobs} {done}.", messages.SUCCESS)
        for one in left[:5]:
            said = f"{one.id} was not {done}: {one.detail or one.state or 'it does not exist'}"
            self.message_user(request, said, messages.WARNING)


@admin.register(Job)
class JobAdmin(_Page):
    """Jobs: a list that is searched with Holdfast's filter language, and a page for each."""

    def get_urls(self) -> list[Any]:
        """Return the addresses of the list and of a job."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="holdfast_job_changelist"),
            path("<uuid:id>/change/", view(self.job_view), name="holdfast_job_change"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show a page of jobs; retry or cancel those that are chosen."""
        self._check_view(request)
        chosen = {name: request.GET.get(name, "") for name in ("state", "queue", "kind", "q")}
        context: dict[str, Any] = {"title": "Jobs", "chosen": chosen, "states": STATES}
        with self._spoken(request) as client:
            if request.method == "POST":
                self._act(request, client, _uuids(request.POST.getlist("_selected_action")))
                return HttpResponseRedirect(request.get_full_path())
            context |= self._found(client, request, chosen)
        return self._answer(request, "jobs", **context)

    def job_view(self, request: HttpRequest, id: UUID) -> HttpResponse:
        """Show a job with its payload and its attempts; retry or cancel it."""
        self._check_view(request)
        context: dict[str, Any] = {"title": f"Job {id}"}
        with self._spoken(request) as client:
            if request.method == "POST":
                self._act(request, client, [id])
                return HttpResponseRedirect(request.path)
            job = client.jobs.get(id)
            if job is None:
                raise Http404(f"There is no job {id}, or it was done and is not kept.")
            waits = job.state == "queued"
            context |= {
                "job": job,
                "payload": told(job.payload_json) or _pretty(job.payload),
                "headers": _pretty(job.headers) if job.headers else "",
                "result": told(job.result_json)
                or (_pretty(job.result) if job.result_json is not None else ""),
                "attempts": client.jobs.attempts(id),
                "explained": client.jobs.explain(id) if waits else "",
                "ended": job.state not in ("queued", "leased"),
            }
        return self._answer(request, "job", **context)

    def _found(
        self, client: Client, request: HttpRequest, chosen: dict[str, str]
    ) -> dict[str, Any]:
        terms = [
            f"{name}:{_quoted(chosen[name])}" for name in ("state", "queue", "kind") if chosen[name]
        ]
        filter = " ".join([*terms, chosen["q"]]).strip()
        before = next(iter(_uuids([request.GET.get("before", "")])), None)
        page = client.jobs.search(filter, limit=ON_A_PAGE, before=before, patience=1.0)
        count = client.jobs.count(filter, patience=0.2)
        last = page.searched_to or (page.jobs[-1].id if len(page.jobs) == ON_A_PAGE else None)
        kept = {name: value for name, value in chosen.items() if value}
        return {
            "jobs": page.jobs,
            "count": count,
            "queues": sorted(queue.queue for queue in client.queues.list()),
            "kinds": [kind.kind for kind in client.kinds.list()],
            "older": last and f"?{urlencode({**kept, 'before': str(last)})}",
            "newest": before and f"?{urlencode(kept)}",
        }

    @contextmanager
    def _spoken(self, request: HttpRequest) -> Iterator[Client]:
        with _spoken(self, request) as client:
            yield client


@admin.register(DeadGroup)
class DeadGroupAdmin(_Page):
    """Dead jobs by how they failed, to be retried together."""

    def get_urls(self) -> list[Any]:
        """Return the address of the list."""
        view = self.admin_site.admin_view
        return [path("", view(self.changelist_view), name="holdfast_deadgroup_changelist")]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the groups; retry those that are chosen."""
        self._check_view(request)
        groups: Sequence[Any] = ()
        with _spoken(self, request) as client:
            if request.method == "POST":
                ids: list[UUID] = []
                for fingerprint in request.POST.getlist("_selected_action"):
                    ids += client.jobs.find(f"state:dead group:{_quoted(fingerprint)}", limit=MOST)
                self._act(request, client, ids[:MOST])
                return HttpResponseRedirect(request.path)
            groups = client.dead.groups()
        jobs = reverse("admin:holdfast_job_changelist")
        linked = [
            (one, f"{jobs}?{urlencode({'state': 'dead', 'q': f'group:{one.fingerprint}'})}")
            for one in groups
        ]
        return self._answer(request, "dead", title="Dead groups", groups=linked)


@contextmanager
def _spoken(page: _Page, request: HttpRequest) -> Iterator[Client]:
    """Speak to the database of the backend; what it refuses is shown as a message."""
    database = next((backend.database for backend in own_backends()), "default")
    try:
        # A refusal must not end the transaction of the request, which has the session in it.
        with transaction.atomic(using=database):
            yield client_on(connections[database])
    except NotMigrated as error:
        page.message_user(request, f"{error.what}. Run: python manage.py migrate", messages.ERROR)
    except HoldfastError as error:
        page.message_user(request, f"{error.what} {error.fix}".strip(), messages.ERROR)


def _uuids(texts: Sequence[str]) -> list[UUID]:
    found = []
    for text in texts:
        try:
            found.append(UUID(text))
        except ValueError:
            continue
    return found


def _quoted(value: str) -> str:
    """Return a value as a term of a filter takes it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
