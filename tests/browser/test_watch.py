"""Whoever watches sees what looks wrong, what happened, and how the database is."""

import re

import psycopg
import pytest
from playwright.sync_api import Page, expect

from holdfast.client import Client
from holdfast.records import Finding
from tests.browser.conftest import Open, Serve

ATTENTION = "What needs attention"


@pytest.fixture
def page(shop: str, client: Client, serve: Serve, open_page: Open) -> Page:
    """The shop's overview, all there is to find found; the server does not look meanwhile."""
    client.detectors.run()
    return open_page(serve(shop, name="prod", upkeep=False))


def finding(number: int, severity: str) -> Finding:
    return Finding(f"Refund {number}", severity=severity, subject=str(number), queue="mail")


def test_overview_tells_the_worst_first_and_how_many_more(page: Page, client: Client) -> None:
    client.detectors.report("mild", [finding(number, "warning") for number in range(3)])
    client.detectors.report("grave", [finding(number, "critical") for number in range(3, 6)])
    client.detectors.report("known", [finding(7, "info")])
    told = client.anomalies.list()
    pressing = [one for one in told if one.severity != "info"]

    lines = page.get_by_role("list", name=ATTENTION).get_by_role("listitem")
    expect(lines).to_have_count(5)
    expect(lines.last).to_have_text(f"{len(pressing) - 4} more")
    shown = lines.get_by_role("link").all_inner_texts()[:4]
    assert shown == [one.title for one in pressing[:4]]
    assert {one.severity for one in pressing[:4]} == {"critical"}
    assert "Refund 0" not in shown

    lines.last.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Anomalies")
    expect(page.get_by_role("article")).to_have_count(len(told))
    expect(page.get_by_role("article").filter(has_text="Refund 7")).to_be_visible()


def test_what_the_detectors_do_not_say_is_not_said(page: Page, client: Client) -> None:
    client.queues.pause("images", actor="ada")
    client.enqueue("resize_image", queue="images")
    client.enqueue("nobody_knows", queue="images")
    page.goto(f"{page.url}anomalies")

    titles = page.get_by_role("article").get_by_role("heading")
    expect(titles.filter(has_text="No worker for send_sms")).to_be_visible()
    expect(titles).to_have_count(len(client.anomalies.list()))
    expect(titles.filter(has_text="images has been paused")).to_have_count(0)

    # The same queue, once its detector judges it.
    client.detectors.set("paused_long", queue="images", seconds=0)
    client.detectors.run(["paused_long"])

    expect(titles.filter(has_text="images has been paused")).to_be_visible()


def test_what_is_acked_or_muted_no_longer_presses(page: Page, client: Client) -> None:
    badge = page.get_by_role("navigation", name="Pages").get_by_label("to review")
    pressing = [one for one in client.anomalies.list() if one.severity != "info"]
    assert len(pressing) > 1
    expect(badge).to_have_attribute("aria-label", f"{len(pressing)} anomalies to review")
    expect(badge).to_have_text(str(len(pressing)))

    client.anomalies.ack(pressing[0].id, actor="ada")
    expect(badge).to_have_text(str(len(pressing) - 1))
    for one in pressing[1:]:
        client.anomalies.mute(one.code, actor="ada")

    expect(badge).to_have_count(0)
    expect(page.get_by_role("list", name=ATTENTION)).to_have_count(0)
    expect(page.get_by_role("main")).to_contain_text("Nothing needs attention.")
    expect(page.get_by_role("main")).to_contain_text("acknowledged, muted or informational")


def test_that_nobody_looks_is_said(shop: str, serve: Serve, open_page: Open) -> None:
    with Client(shop) as client:
        for code in {one.code for one in client.anomalies.list()}:
            client.anomalies.mute(code)
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("update holdfast.detector_run set run_at = run_at - interval '1 h'")
    page = open_page(serve(shop, read_only=True))

    expect(page.get_by_role("main")).to_contain_text(re.compile("Detectors last ran .* ago"))
    expect(page.get_by_role("main")).not_to_contain_text("Nothing needs attention")


def events(page: Page) -> list[str]:
    return page.locator(".events li strong").all_inner_texts()


def test_activity_is_filtered_by_hand_and_the_address_is_the_state(
    viewing: str, open_page: Open
) -> None:
    page = open_page(f"{viewing}/activity")
    fields = page.get_by_role("search", name="Filter activity")
    expect(page.locator(".events li").first).to_be_visible()
    expect(fields.get_by_role("button", name="Show all")).to_have_count(0)

    fields.get_by_role("combobox", name="Event").select_option("nacked")
    expect(page).to_have_url(re.compile(r"activity\?event=nacked$"))
    fields.get_by_label("Queue", exact=True).fill("images")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"event=nacked&queue=images$"))
    expect(page.locator(".events li")).to_have_count(17)
    assert set(events(page)) == {"nacked"}

    fields.get_by_label("Kind", exact=True).fill("nothing_such")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="No matching events")).to_be_visible()
    page.go_back()
    expect(page.locator(".events li")).to_have_count(17)
    expect(fields.get_by_label("Kind", exact=True)).to_have_value("")
    page.reload()
    expect(fields.get_by_label("Queue", exact=True)).to_have_value("images")
    expect(fields.get_by_role("combobox", name="Event")).to_have_value("nacked")

    fields.get_by_role("button", name="Show all").click()
    expect(page).to_have_url(f"{viewing}/activity")
    expect(page.locator(".events li")).to_have_count(100)
    expect(fields.get_by_label("Queue", exact=True)).to_have_value("")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("Actor", "grace", ["schedule paused"]),
        ("Worker", "img1-90aa12cd", ["nacked"] * 17),
        ("Kind", "fetch_rates", ["schedule run", "cancelled"]),
    ],
)
def test_every_field_of_activity_counts(
    viewing: str, open_page: Open, field: str, value: str, expected: list[str]
) -> None:
    page = open_page(f"{viewing}/activity", width=360)
    page.get_by_role("search", name="Filter activity").get_by_label(field, exact=True).fill(value)
    page.keyboard.press("Enter")

    expect(page.locator(".events li")).to_have_count(len(expected))
    assert events(page) == expected


def test_the_history_of_a_job_is_found_by_its_id(page: Page, client: Client) -> None:
    [id] = client.jobs.find("state:cancelled kind:fetch_rates")
    page.goto(f"{page.url}activity")
    page.get_by_label("Job id", exact=True).fill(str(id))
    page.keyboard.press("Enter")

    expect(page.locator(".events li")).to_have_count(1)
    page.get_by_role("button", name="holdfast", exact=True).click()
    command = f"holdfast event tail --job {id}"
    assert page.evaluate("navigator.clipboard.readText()") == command
    page.get_by_role("button", name="curl", exact=True).click()
    assert f"/v1/activity?job={id}" in page.evaluate("navigator.clipboard.readText()")


def test_what_is_typed_stays_while_news_come(page: Page, client: Client) -> None:
    page.goto(f"{page.url}activity")
    expect(page.locator(".events li").first).to_be_visible()
    page.get_by_label("Kind", exact=True).press_sequentially("send_")

    client.queues.pause("images", actor="hopper")

    expect(page.locator(".events")).to_contain_text("hopper")
    expect(page.get_by_label("Kind", exact=True)).to_have_value("send_")


def test_the_system_is_shown_and_the_doctor_comes_when_called(page: Page, client: Client) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition("/v1/")[2]))
    page.goto(f"{page.url}settings")
    system = client.system()
    tables = page.get_by_role("table", name="Tables")

    expect(page.get_by_role("main")).to_contain_text(system.postgresql)
    expect(page.get_by_role("main")).to_contain_text(f"{system.schema}, migrated by")
    expect(tables.get_by_role("row", name="job", exact=False).first).to_be_visible()
    tables.get_by_role("button", name="smaller tables").click()
    expect(tables.locator("[data-row]")).to_have_count(len(system.relations))
    assert "system" in asked
    assert "doctor" not in asked

    client.upkeep.run()  # the server does none here, and the shop may be minutes old
    page.get_by_role("button", name="Run doctor").click()
    found = page.get_by_role("list", name="Doctor results")
    kinds = found.locator("[data-row=kinds]")
    expect(kinds).to_contain_text("fail")
    expect(kinds).to_contain_text("no running worker handles send_sms in default")
    expect(kinds).to_contain_text("Their jobs wait forever")
    expect(kinds.get_by_role("button", name="Copy: holdfast worker list")).to_be_visible()
    expect(found.locator("[data-row=horizon]")).to_contain_text("ok")
    expect(found.locator("[data-row=upkeep]").get_by_role("button")).to_have_count(0)
    assert found.locator("li").first.inner_text().startswith("fail")


def test_who_may_not_see_the_system_is_shown_none(
    shop: str, serve: Serve, open_page: Open, client: Client
) -> None:
    reader = client.tokens.create("reader", scopes=["read"])
    one_queue = client.tokens.create("one", scopes=["read"], queues=["mail"])
    address = serve(shop, ways=("token",))
    for token, seen in ((reader, True), (one_queue, False)):
        page = open_page(f"{address}/settings")
        page.get_by_role("textbox", name="Token").fill(token.secret)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="You")).to_be_visible()
        expect(page.get_by_role("heading", name="System")).to_have_count(int(seen))
        doctor = page.get_by_role("button", name="Run doctor")
        expect(doctor).to_have_count(int(seen))
        if seen:
            expect(doctor).to_be_disabled()
