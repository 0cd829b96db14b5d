"""The steps of a job: what it did, and what it waits for."""

import re
from dataclasses import dataclass
from datetime import timedelta

from playwright.sync_api import Page, expect

from holdfast import jsonb
from holdfast.client import Client
from holdfast.records import Lease, NewStep, Suspended
from tests.browser.conftest import Open, Serve


@dataclass
class Approval:
    """What the boss says."""

    by: str
    sum: int


def begun(client: Client, kind: str = "order") -> Lease:
    """A job that a worker holds."""
    client.enqueue(kind, {"order": 17}, queue="orders")
    [lease] = client.claim("orders", worker="web1", lease=timedelta(minutes=30))
    return lease


def test_a_job_shows_its_steps_and_what_it_waits_for(page: Page, client: Client) -> None:
    home = page.url
    lease = begun(client)
    done = [NewStep("reserve", b'{"shelf": "B4"}', 1, 0.12), NewStep("tell", b"null", 2, 0.04)]
    client.steps.store([(lease, step) for step in done])
    client.settle([Suspended(lease, "approval", 3, event="approved", key="order-17")])
    page.goto(f"{home}jobs/{lease.id}")
    steps = page.get_by_role("list", name="Steps").get_by_role("listitem")

    expect(steps).to_have_count(3)
    expect(steps.nth(0)).to_contain_text(re.compile("reserve.*120.ms"))
    expect(page.get_by_label("result of reserve", exact=True)).to_contain_text('"shelf": "B4"')
    expect(steps.nth(1)).to_contain_text(re.compile("tell.*40.ms"))
    expect(page.get_by_label("result of tell", exact=True)).to_have_count(0)
    expect(steps.nth(2)).to_contain_text("waits for event approved, key order-17, without a time")
    life = page.get_by_role("list", name="Job timeline")
    expect(life).to_contain_text("waiting for approved")
    expect(life).not_to_contain_text("not due yet")
    expect(page.get_by_role("main")).to_contain_text("No attempt has failed.")
    expect(page.get_by_role("main")).not_to_contain_text("No attempts yet")
    expect(page.locator(".facts")).to_contain_text("when its event comes")

    page.goto(f"{home}jobs?q=queue:orders")
    expect(page.locator("[data-row]")).to_contain_text("waits for an event")


def test_a_sleeping_job_says_until_when(page: Page, client: Client) -> None:
    lease = begun(client)
    client.settle([Suspended(lease, "cool down", 1, delay=7200)])
    page.goto(f"{page.url}jobs/{lease.id}")

    expect(page.locator('[data-step="cool down"]')).to_contain_text(
        re.compile(r"sleeps until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, for another (2.h|1\d\d.m)")
    )
    expect(page.get_by_role("list", name="Job timeline")).to_contain_text("sleeping")
    expect(page.get_by_role("list", name="Job timeline")).not_to_contain_text("not due yet")


def test_a_person_answers_a_job_that_waits_by_a_form(
    shop: str, client: Client, serve: Serve, open_page: Open
) -> None:
    lease = begun(client)
    asked = jsonb.schema(Approval)
    wait = Suspended(lease, "approval", 1, event="approved", key="order-17", schema=asked)
    client.settle([wait])
    page = open_page(f"{serve(shop)}/jobs/{lease.id}")
    form = page.get_by_role("form", name="Send approved")
    form.get_by_label("by string").fill("Ada")
    form.get_by_label("sum integer").fill("much")
    form.get_by_role("button", name="Send approved").click()
    expect(form.get_by_role("alert")).to_contain_text("sum: much is not valid integer")
    form.get_by_label("sum integer").fill("250")
    form.get_by_role("button", name="holdfast").click()
    assert page.evaluate("navigator.clipboard.readText()") == (
        'holdfast event send approved \'{"by":"Ada","sum":250}\' --key order-17'
    )
    form.get_by_role("button", name="Send approved").click()

    expect(page.locator('[data-step="approval"]')).to_contain_text("received event approved")
    expect(form).to_have_count(0)
    [step] = client.steps.list(lease.id)
    assert (step.result, step.schema) == ({"by": "Ada", "sum": 250}, asked)


def test_yes_or_no_is_a_form_too_and_only_producers_may_answer(
    shop: str, client: Client, serve: Serve, open_page: Open
) -> None:
    lease = begun(client)
    client.settle([Suspended(lease, "sure", event="sure", schema=jsonb.schema(bool))])
    reader = client.tokens.create("reader", scopes=["read"])
    page = open_page(f"{serve(shop, ways=('token',))}/jobs/{lease.id}")
    page.get_by_role("textbox", name="Token").fill(reader.secret)
    page.keyboard.press("Enter")
    form = page.get_by_role("form", name="Send sure")

    expect(form.get_by_label("value boolean")).to_have_value("false")
    expect(form.get_by_role("button", name="Send sure")).to_be_disabled()
