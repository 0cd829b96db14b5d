"""What each page shows, and that it stays true while one looks at it."""

import csv
import io
import re
import time

import pytest
from playwright.sync_api import Page, Route, expect

from holdfast.client import Client
from holdfast.records import NewJob
from tests.browser.conftest import Open


def rows(page: Page) -> list[str]:
    return page.locator("main [data-row]").evaluate_all("all => all.map(row => row.dataset.row)")


SHOWN = [
    ("", "Overview", "No worker for send_sms"),
    ("queues", "Queues", "reports"),
    ("queues/mail", "mail", "Workers on this queue"),
    ("jobs", "Jobs", "send_sms"),
    ("dead", "Dead", "TimeoutError: 30 s waiting for"),
    ("schedules", "Schedules", "30 5 * * MON-FRI"),
    ("schedules/fetch_rates", "fetch_rates", "run manually"),
    ("workers", "Workers", "axiom-02c7d9f1"),
    ("lanes", "Lanes", "The next job starts when it ends."),
    ("anomalies", "Anomalies", "reports has been paused for 26 h"),
    ("activity", "Activity", "nacked"),
    ("settings", "Settings", "API tokens"),
]
TAUGHT = [
    ("", "holdfast worker app.py"),
    ("queues", "holdfast job enqueue greet"),
    ("jobs", "holdfast job enqueue greet"),
    ("dead", "holdfast dead groups"),
    ("schedules", "@app.schedule"),
    ("workers", "holdfast worker app.py"),
    ("lanes", "--lane axiom"),
    ("activity", "Failures and user actions are recorded"),
]


@pytest.mark.proves("S4x.6")
def test_every_page_shows_its_data(viewing: str, open_page: Open) -> None:
    page = open_page(viewing)
    for path, heading, proof in SHOWN:
        page.goto(f"{viewing}/{path}")

        expect(page.get_by_role("heading", level=1)).to_contain_text(heading)
        expect(page.get_by_role("main")).to_contain_text(proof)


def test_an_empty_page_says_what_to_type(empty: str, open_page: Open) -> None:
    page = open_page(empty)
    for path, command in TAUGHT:
        page.goto(f"{empty}/{path}")

        expect(page.get_by_role("main")).to_contain_text(command)


def test_a_dead_job_tells_its_life_and_its_tracebacks(page: Page, client: Client) -> None:
    [job] = client.jobs.list("state:dead error:Timeout*", limit=1)
    page.goto(f"{page.url}jobs/{job.id}")

    life = page.get_by_role("list", name="Job timeline")
    expect(life.get_by_text("attempt", exact=False)).to_have_count(3)
    expect(page.get_by_text("after attempt 3 of 3")).to_be_visible()
    expect(page.get_by_label("Traceback", exact=True)).to_contain_text("shop/mail.py")
    expect(page.get_by_text("same as 3")).to_be_visible()
    # A number that no double holds is shown digit for digit.
    expect(page.get_by_label("payload", exact=True)).to_contain_text(str(job.payload["user_id"]))


def test_the_page_is_there_where_the_systems_language_is_none(
    viewing: str, open_page: Open
) -> None:
    """Chromium then says a language that its own Intl refuses."""
    page = open_page("about:blank")
    page.add_init_script(
        "Object.defineProperty(Navigator.prototype, 'language', "
        "{get: () => 'en-US@posix', configurable: true})"
    )

    page.goto(viewing)

    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_a_job_that_is_gone_says_so(viewing: str, open_page: Open) -> None:
    page = open_page(f"{viewing}/jobs/00000000-0000-8000-8000-000000000000")

    expect(page.get_by_role("heading", name="No such job")).to_be_visible()


@pytest.mark.proves("S4x.6")
def test_counts_change_without_a_reload(page: Page, client: Client) -> None:
    page.goto(page.url + "queues")
    cell = page.locator('[data-row="images"] td').nth(3)
    expect(cell).to_have_text("0")
    expect(page.get_by_role("button", name="live")).to_be_visible()

    client.enqueue("resize_image", queue="images")

    expect(cell).to_have_text("1")


def test_rows_keep_their_place_under_the_pointer(page: Page, client: Client) -> None:
    page.goto(page.url + "jobs?q=queue:images")
    expect(page.locator("[data-row]").first).to_be_visible()
    before = rows(page)
    page.locator("[data-row]").nth(3).hover()

    client.enqueue_many([NewJob(kind="resize_image", queue="images")] * 2)

    expect(page.get_by_role("button", name="2 new jobs")).to_be_visible()
    assert rows(page) == before
    page.get_by_role("button", name="2 new jobs").click()
    expect(page.locator("[data-row]")).to_have_count(len(before) + 2)


@pytest.mark.proves("S4x.6")
def test_the_address_is_the_state(viewing: str, open_page: Open) -> None:
    page = open_page(f"{viewing}/jobs")
    page.get_by_label("Filter jobs").fill("state:dead kind:resize_image")
    page.keyboard.press("Enter")

    expect(page).to_have_url(re.compile(r"q=state%3Adead\+kind%3Aresize_image"))
    expect(page.locator("[data-row]")).to_have_count(17)
    page.go_back()
    expect(page.locator("[data-row]")).to_have_count(50)
    page.go_forward()
    expect(page.locator("[data-row]")).to_have_count(17)
    page.reload()
    expect(page.get_by_label("Filter jobs")).to_have_value("state:dead kind:resize_image")


def test_a_filter_that_cannot_be_read_says_where(viewing: str, open_page: Open) -> None:
    page = open_page(f"{viewing}/jobs?q=colour:red")

    expect(page.get_by_role("alert")).to_contain_text("unknown field 'colour' at position 1")


def test_fields_and_values_are_completed(viewing: str, open_page: Open) -> None:
    page = open_page(f"{viewing}/jobs")
    box = page.get_by_label("Filter jobs")
    box.press_sequentially("qu")
    page.get_by_role("option", name="queue:").click()
    page.get_by_role("option", name="queue:images").click()

    expect(page).to_have_url(re.compile("q=queue%3Aimages"))


def test_older_jobs_come_page_by_page_and_none_twice(page: Page, client: Client) -> None:
    page.goto(page.url + "jobs?q=state:dead")
    seen: list[str] = []
    while True:
        expect(page.locator("main [data-row]").first).to_be_visible()
        expect(page.locator(".fading")).to_have_count(0)
        seen += rows(page)
        older = page.get_by_role("button", name="Older")
        if not older.count():
            break
        first = rows(page)[0]
        older.click()
        expect(page.locator(f'[data-row="{first}"]')).to_have_count(0)

    assert len(seen) == len(set(seen)) == sum(queue.dead for queue in client.queues.list())


def test_what_is_shown_can_be_saved(viewing: str, open_page: Open) -> None:
    page = open_page(f"{viewing}/queues")
    expect(page.locator("[data-row]")).to_have_count(5)
    page.get_by_role("button", name="Download this page").click()
    with page.expect_download() as saving:
        page.get_by_role("menuitem", name="As CSV").click()
    table = list(csv.DictReader(io.StringIO(saving.value.path().read_text())))

    assert {row["Queue"]: row["State"] for row in table}["reports"] == "paused"


def test_columns_can_be_chosen_and_are_remembered(viewing: str, open_page: Open) -> None:
    page = open_page(f"{viewing}/queues")
    page.get_by_role("button", name="Choose columns").click()
    page.get_by_role("menuitemcheckbox", name="Attempts").click()
    page.reload()

    expect(page.get_by_role("columnheader", name="Attempts")).to_be_visible()


def test_a_server_that_goes_away_leaves_the_last_numbers(shop: str, open_page: Open) -> None:
    from holdfast.server import Settings
    from tests.browser.conftest import serving

    with serving(shop, Settings()) as address:
        page = open_page(f"{address}/queues")
        expect(page.locator('[data-row="mail"]')).to_be_visible()

    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    expect(page.locator('[data-row="mail"]')).to_be_visible()


def test_it_works_below_a_path_of_another_application(shop: str, open_page: Open) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from holdfast.server import Server
    from tests.browser.conftest import running

    with running(Starlette(routes=[Mount("/ops/queue", Server(shop))])) as address:
        page = open_page(f"{address}/ops/queue/queues/mail")

        expect(page.get_by_role("heading", level=1)).to_contain_text("mail")
        page.get_by_role("link", name="Dead", exact=False).first.click()
        expect(page).to_have_url(f"{address}/ops/queue/dead")
        expect(page.get_by_text("TimeoutError").first).to_be_visible()


def test_the_dead_page_can_show_the_newest_failure_first(page: Page, client: Client) -> None:
    page.goto(page.url + "dead")
    page.get_by_role("button", name="Newest failure first").click()
    newest = sorted(client.dead.groups(), key=lambda one: one.last_at, reverse=True)

    expect(page.locator("main [data-row]").first).to_have_attribute(
        "data-row", newest[0].fingerprint
    )
    page.locator("main .group-open").first.click()
    [last, *_] = client.dead.list(f"group:{newest[0].fingerprint} kind:{newest[0].kind}", limit=1)
    expect(page.locator("main .members li").first).to_contain_text(str(last.id)[-6:])


def test_a_queues_page_shows_what_runs_next(page: Page, client: Client) -> None:
    client.queues.set("fresh")
    low = client.enqueue("greet", queue="fresh")
    high = client.enqueue("greet", queue="fresh", priority=9)
    page.goto(page.url + "queues/fresh")
    shown = page.get_by_role("list", name="Next to run").get_by_role("listitem")

    expect(shown).to_have_count(2)
    expect(shown.nth(0)).to_contain_text(str(high.id)[-6:])
    expect(shown.nth(1)).to_contain_text(str(low.id)[-6:])


def test_what_can_be_done_with_a_row_is_in_sight_on_every_screen(
    viewing: str, open_page: Open
) -> None:
    for width in (1280, 768, 390):
        page = open_page(viewing, width=width)
        for path in ("queues", "schedules", "workers"):
            page.goto(f"{viewing}/{path}")
            expect(page.locator("td.row-acts").first).to_be_visible()
            hidden = page.locator("td.row-acts button").evaluate_all(
                "all => all.filter(one => { const at = one.getBoundingClientRect();"
                " return at.width && document.elementFromPoint(at.x + at.width / 2, at.y + 9)"
                "?.closest('td') !== one.closest('td') }).map(one => one.outerHTML)"
            )
            assert (width, path, hidden) == (width, path, [])


def test_one_fault_is_told_once(shop: str, open_page: Open) -> None:
    from holdfast.server import Settings
    from tests.browser.conftest import serving

    with serving(shop, Settings()) as address:
        page = open_page(f"{address}/queues")
        expect(page.locator('[data-row="mail"]')).to_be_visible()

    expect(page.get_by_role("alert")).to_have_count(1)
    page.get_by_role("link", name="Lanes").click()
    expect(page.get_by_role("heading", name="Lanes")).to_be_visible()
    expect(page.get_by_text("Nothing has been loaded yet")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(1)
    expect(page.get_by_text("does not answer")).to_have_count(1)


def test_a_queue_with_running_jobs_is_not_idle(viewing: str, open_page: Open) -> None:
    page = open_page(viewing)
    row = page.locator('.panel [data-row="images"]')

    expect(row).to_contain_text("4 leased")
    expect(row).to_contain_text("running")


def test_jobs_are_counted_whole(viewing: str, open_page: Open) -> None:
    """The history has averages, and the page fills a gap with another."""
    page = open_page("about:blank")

    def halves(route: Route) -> None:
        now = int(time.time())
        points = [[now // 20 * 20 - 20 * back, 6.5] for back in range(20, -2, -1)]
        route.fulfill(json={"metric": "queued", "queue": None, "step": 20, "points": points})

    page.route(re.compile("metrics/series.*metric=queued.*step=20"), halves)
    page.goto(viewing)

    expect(page.get_by_role("img", name="Jobs waiting. Now queued 7.")).to_be_visible()


def test_a_list_of_done_jobs_says_what_is_kept(page: Page, client: Client) -> None:
    home = page.url
    client.queues.set("some")
    client.queues.set("none", keep_recent=False)
    client.enqueue("look", queue="some")
    client.ack(client.claim("some", worker="ada"), recent=1)
    said = page.locator("p.notice")

    page.goto(f"{home}jobs?q=state:done+queue:some")
    expect(page.get_by_role("main")).to_contain_text("look")
    expect(said).to_contain_text("Of done jobs, a worker keeps at most 5 a second, for a day.")
    expect(said).to_contain_text("holdfast queue set some keep_done=7d")
    page.goto(f"{home}jobs?q=state:done+queue:none")
    expect(page.get_by_role("main")).to_contain_text("No matching jobs")
    expect(said).to_contain_text("Done jobs are not kept.")
    page.goto(f"{home}jobs?q=state:done+queue:mail")
    expect(page.get_by_role("main")).to_contain_text("send_email")
    expect(said).to_have_count(0)
