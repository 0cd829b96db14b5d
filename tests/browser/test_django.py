"""The shop of Django's example in a browser: its admin, and the dashboard behind its login."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from holdfast.client import Client
from tests.browser.conftest import Open

SHOP = Path(__file__).parents[2] / "examples" / "django_shop"


@pytest.fixture
def site(database: str) -> Iterator[str]:
    """The address of the shop, as a program of its own, with a user who may do all."""
    environment = {
        **os.environ,
        "HOLDFAST_URL": database,
        "DJANGO_SUPERUSER_USERNAME": "ada",
        "DJANGO_SUPERUSER_PASSWORD": "not a secret",
        "DJANGO_SUPERUSER_EMAIL": "ada@example.org",
    }
    for command in (["migrate", "--verbosity=0"], ["createsuperuser", "--noinput"]):
        manage = [sys.executable, "manage.py", *command]
        subprocess.run(manage, cwd=SHOP, env=environment, check=True, timeout=200)
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "shop.asgi:application", "--port", "0"],
        cwd=SHOP,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert server.stderr
    with server, server.stderr as said:
        try:
            addresses = (re.search(r"http://[\d.]+:\d+", line) for line in said)
            address = next((found[0] for found in addresses if found), "")
            assert address, "the server ended"
            yield address
        finally:
            server.kill()


def die(client: Client, kind: str, message: str) -> str:
    """Have a job of the shop die; return its id."""
    job = client.enqueue(kind, queue="mail", max_attempts=1)
    client.nack(client.claim("mail", worker="w"), error_kind="Refused", message=message)
    return str(job.id)


def sign_in(page: Page) -> None:
    """Fill in the login of Django's admin."""
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill("not a secret")
    page.get_by_role("button", name="Log in").click()


def test_a_user_of_django_sees_and_retries_jobs_in_the_admin_and_in_the_dashboard(
    site: str, database: str, open_page: Open
) -> None:
    with Client(database) as client:
        receipt = die(client, "orders.tasks.send_receipt", "the mail server is away")
        count = die(client, "orders.tasks.count_orders", "no orders")

        page = open_page(f"{site}/holdfast/")
        expect(page).to_have_url(re.compile(r"/admin/login/\?next=/holdfast/$"))
        sign_in(page)
        expect(page).to_have_url(f"{site}/holdfast/")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()

        page.goto(f"{site}/admin/")
        page.get_by_role("link", name="Jobs", exact=True).click()
        page.get_by_label("State").select_option("dead")
        page.get_by_role("button", name="Search").click()
        expect(page.get_by_text("2 jobs")).to_be_visible()
        page.get_by_role("link", name="orders.tasks.send_receipt").click()
        expect(page.get_by_role("main")).to_contain_text("the mail server is away")
        page.goto(f"{site}/admin/")
        page.get_by_role("link", name="Dead groups").click()
        page.get_by_label("Select orders.tasks.send_receipt").check()
        page.get_by_label("Reason").fill("it is back")
        page.get_by_role("button", name="Retry selected groups").click()
        expect(page.locator(".messagelist")).to_contain_text("1 job")
        assert {str(id) for id in client.jobs.find("state:queued")} == {receipt}

        page.goto(f"{site}/holdfast/dead")
        group = page.locator("[data-row]").filter(has_text="count_orders")
        group.get_by_role("button", name="Retry", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Retry 1").click()
        expect(page.get_by_role("main")).to_contain_text("No dead jobs")
        assert {str(id) for id in client.jobs.find("state:queued")} == {receipt, count}
        [job] = client.jobs.list(f"id:{receipt}")
        assert job.reason == "it is back"
