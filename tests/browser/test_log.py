"""The log and the progress of a running job appear on its page while it runs."""

from datetime import timedelta

from playwright.sync_api import Page, Request, expect

from holdfast.client import Client
from holdfast.records import Lease


def begun(client: Client) -> Lease:
    client.enqueue("report", {"month": 5}, queue="orders")
    [lease] = client.claim("orders", worker="web1", lease=timedelta(minutes=30))
    return lease


def test_lines_and_progress_appear_while_the_job_runs(page: Page, client: Client) -> None:
    lease = begun(client)
    page.goto(f"{page.url}jobs/{lease.id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("report")
    lines = page.get_by_role("log", name="Log of the job")
    expect(lines).to_have_count(0)
    loads: list[str] = []
    page.on("framenavigated", lambda frame: loads.append(frame.url))

    client.log([lease], [["reading May"]])
    expect(lines).to_have_text("reading May\n")
    client.touch([lease], progress=[{"done": 3, "total": 20, "note": "page 3"}])
    expect(page.locator(".progress-row")).to_contain_text("page 3")
    client.log([lease], [["<img src=x onerror=alert(1)> \x1b[31mred\x1b[0m \x07"]])

    expect(lines).to_have_text("reading May\n<img src=x onerror=alert(1)> red \\u0007\n")
    assert page.locator("pre img").count() == 0
    assert loads == []


def test_the_page_asks_for_lines_only_when_there_are_some(page: Page, client: Client) -> None:
    quiet, lease = begun(client), begun(client)
    home = page.url
    asked: list[str] = []

    def note(request: Request) -> None:
        if request.url.partition("?")[0].endswith("/log"):
            asked.append(request.url)

    page.on("request", note)
    page.goto(f"{home}jobs/{quiet.id}")
    expect(page.locator(".facts")).to_contain_text("orders")
    for n in range(3):
        client.touch([quiet], timedelta(hours=1 + n), progress=[{"done": n, "total": 3}])
        expect(page.locator(".progress-row")).to_contain_text(f"{n}/3")
    assert len(asked) <= 1

    page.goto(f"{home}jobs/{lease.id}")
    client.log([lease], [[f"line {n}" for n in range(1000)]])
    client.log([lease], [["the last"]])

    expect(page.get_by_role("log")).to_contain_text("the last")
    assert page.get_by_role("log").locator("> span").count() <= 1000


def test_two_tabs_share_one_stream_and_each_sees_its_job(page: Page, client: Client) -> None:
    one, two = begun(client), begun(client)
    home = page.url
    other = page.context.new_page()
    page.goto(f"{home}jobs/{one.id}")
    other.goto(f"{home}jobs/{two.id}")
    for shown in (page, other):
        expect(shown.get_by_role("heading", level=1)).to_contain_text("report")

    client.log([one, two], [["of one"], ["of two"]])

    expect(page.get_by_role("log")).to_have_text("of one\n")
    expect(other.get_by_role("log")).to_have_text("of two\n")
