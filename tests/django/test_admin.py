"""The pages of Django's admin: who sees what, what is found, what is retried and cancelled."""

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client as Browser

from holdfast.django import app_of
from tests.django.conftest import Drain

JOBS, DEAD = "/admin/holdfast/job/", "/admin/holdfast/deadgroup/"

SignIn = Callable[..., Browser]


@pytest.fixture
def sign_in(django_database: None) -> SignIn:
    """Signs a member of the staff in, with permissions of Holdfast."""
    from django.contrib.auth.models import Permission, User

    def browser(*permissions: str) -> Browser:
        User.objects.all().delete()
        user = User.objects.create_user("ada", password="secret", is_staff=True)
        found = Permission.objects.filter(codename__in=permissions)
        assert len(found) == len(permissions)
        user.user_permissions.set(found)
        signed_in = Browser()
        signed_in.force_login(user)
        return signed_in

    return browser


def page(answer: Any) -> str:
    """The text of a page that is there."""
    assert answer.status_code == 200
    text: str = answer.content.decode()
    return text


def test_jobs_are_found_by_state_queue_kind_and_filter(sign_in: SignIn, drain: Drain) -> None:
    from tests.django.shop.tasks import add, fail

    browser = sign_in("view_job", "view_deadgroup")
    failed = fail.enqueue()
    drain()
    waiting = add.using(queue_name="mail", key="order-42").enqueue(1)

    every = page(browser.get(JOBS))
    assert failed.id in every
    assert waiting.id in every
    for query, found, missing in [
        ("state=dead", failed, waiting),
        ("queue=mail", waiting, failed),
        ("kind=tests.django.shop.tasks.fail", failed, waiting),
        ("q=key:order-42", waiting, failed),
        ("q=refused", failed, waiting),
    ]:
        text = page(browser.get(f"{JOBS}?{query}"))
        assert f"{JOBS}{found.id}/change/" in text, query
        assert missing.id not in text, query
    assert "unknown field" in page(browser.get(f"{JOBS}?q=colour:red")).lower()
    assert "No job matches." in page(browser.get(f"{JOBS}?state=cancelled"))

    job = page(browser.get(f"{JOBS}{failed.id}/change/"))
    assert "the card was refused" in job
    assert "Traceback" in job
    assert "button" not in job.partition("content-main")[2]  # nothing that it may not do
    assert "fail" in page(browser.get(DEAD))
    assert browser.get(f"{JOBS}00000000-0000-0000-0000-000000000000/change/").status_code == 404


def test_nobody_sees_or_does_what_is_not_permitted(sign_in: SignIn) -> None:
    from tests.django.shop.tasks import add

    result = add.enqueue(1)
    cancel = {"action": "cancel", "_selected_action": result.id}
    assert Browser().get(JOBS).status_code == 302
    nothing = sign_in()
    for address in (JOBS, DEAD, f"{JOBS}{result.id}/change/"):
        assert nothing.get(address).status_code == 403
    viewer = sign_in("view_job", "view_deadgroup", "retry_job")
    assert viewer.post(JOBS, cancel).status_code == 403
    assert viewer.post(f"{JOBS}{result.id}/change/", cancel).status_code == 403
    assert viewer.post(JOBS, {**cancel, "action": "delete"}).status_code == 403
    strict = Browser(enforce_csrf_checks=True)
    strict.cookies = viewer.cookies
    assert strict.post(JOBS, {**cancel, "action": "retry"}).status_code == 403
    result.refresh()
    assert result.status == "READY"


def test_jobs_and_groups_are_retried_and_cancelled_in_the_name_of_the_user(
    sign_in: SignIn, drain: Drain
) -> None:
    from tests.django.shop.tasks import add, fail

    browser = sign_in("view_job", "view_deadgroup", "retry_job", "cancel_job")
    failed, waiting = [fail.enqueue() for _ in range(3)], None
    drain()
    waiting = add.enqueue(1)
    chosen = {"action": "cancel", "_selected_action": [waiting.id], "reason": "ordered twice"}
    assert "1 job was cancelled" in page(browser.post(JOBS, chosen, follow=True))
    again = page(browser.post(JOBS, {**chosen, "action": "cancel"}, follow=True))
    assert "was not cancelled" in again

    one = f"{JOBS}{failed[0].id}/change/"
    assert "1 job was retried" in page(browser.post(one, {"action": "retry"}, follow=True))
    [group] = app_of().client.dead.groups()
    retry = {"action": "retry", "_selected_action": group.fingerprint}
    assert "2 jobs were retried" in page(browser.post(DEAD, retry, follow=True))
    assert "No dead jobs." in page(browser.get(DEAD))
    for result in failed:
        result.refresh()
        assert result.status == "READY"
    events = app_of().client.activity.list().events
    assert {event.actor for event in events if event.event in ("retried", "cancelled")} == {"ada"}


def test_markup_in_jobs_is_shown_and_not_run(sign_in: SignIn) -> None:
    from tests.django.shop.tasks import add

    browser = sign_in("view_job")
    result = add.using(key="<script>alert(1)</script>").enqueue("<script>alert(2)</script>")

    for address in (JOBS, f"{JOBS}{result.id}/change/", f'{JOBS}?q="<script>'):
        assert "<script>alert" not in page(browser.get(address))


def test_models_and_migrations_agree() -> None:
    call_command("makemigrations", "holdfast", check=True, dry_run=True, verbosity=0)


def test_what_dumps_all_models_finds_no_rows_of_pages_without_a_table() -> None:
    for options in ({}, {"use_base_manager": True}):
        told = StringIO()
        call_command("dumpdata", stdout=told, verbosity=0, **options)
        assert "auth.permission" in told.getvalue()
        assert '"holdfast.' not in told.getvalue()


def test_a_flush_deletes_all_jobs(sign_in: SignIn, drain: Drain) -> None:
    from tests.django.shop.tasks import add, fail

    fail.enqueue()
    add.enqueue(1)
    drain()
    add.enqueue(2)
    call_command("flush", interactive=False, verbosity=0)

    assert app_of().client.jobs.list() == []


def test_a_signal_that_is_not_of_a_flush_deletes_no_job(django_database: None) -> None:
    from django.core.management.sql import emit_post_migrate_signal

    from tests.django.shop.tasks import add

    add.enqueue(1)
    # As data migrations do that need permissions: without a plan, as flush.
    emit_post_migrate_signal(0, False, "default")

    assert len(app_of().client.jobs.list()) == 1
