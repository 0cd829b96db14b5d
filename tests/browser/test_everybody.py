"""For every eye, on every screen, whatever is in the data."""

import gzip
import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from holdfast.client import Client
from holdfast.records import Finding, NewSchedule
from holdfast.server.api import dashboard
from tests.browser import chromium
from tests.browser.conftest import Open, Serve

PAGES = [
    "",
    "queues",
    "queues/mail",
    "jobs?q=state:leased",
    "dead",
    "schedules",
    "schedules/fetch_rates",
]
PAGES += ["workers", "lanes", "anomalies", "activity", "activity?event=nacked", "settings"]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

# What people have typed to make a page run it, or fall over.
CORPUS = [
    "<script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    '"><svg/onload=window.owned=1>',
    "javascript:window.owned=1",
    "'-window.owned=1-'",
    "{{constructor.constructor('window.owned=1')()}}",
    "</textarea><script>window.owned=1</script>",
    "\u05d0gnp.exe \U0001f4a3",  # right to left; names that turn the direction are refused
]


def show(page: Page, address: str) -> None:
    """Open a page with all that can be on it."""
    page.goto(address)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    if page.url.endswith("/settings"):
        page.get_by_role("button", name="Run doctor").click()
        expect(page.get_by_role("list", name="Doctor results")).to_be_visible()
    for evidence in page.get_by_text("Evidence", exact=True).all():
        evidence.click()
    expect(page.locator(".bones, .bone")).to_have_count(0)


@pytest.fixture(scope="session")
def axe() -> str:
    """The accessibility checker."""
    return chromium.axe()


def faults(page: Page, axe: str, rules: list[str]) -> list[str]:
    page.evaluate(axe)
    # Of what is in order, it would describe every element.
    options = {"runOnly": rules, "resultTypes": ["violations"]}
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def test_a_fault_is_found(viewing: str, open_page: Open, axe: str) -> None:
    page = open_page(viewing)
    page.evaluate("document.querySelector('main').append(new Image())")
    assert [fault.partition(":")[0] for fault in faults(page, axe, RULES)] == ["image-alt"]


# The theme changes colours alone.
@pytest.mark.parametrize(
    ("theme", "width", "rules"),
    [
        ("light", 1280, RULES),
        ("light", 360, RULES),
        ("dark", 1280, ["color-contrast", "link-in-text-block"]),
    ],
)
def test_no_page_has_a_fault_that_axe_finds(
    viewing: str, open_page: Open, axe: str, theme: str, width: int, rules: list[str]
) -> None:
    page = open_page(viewing, theme=theme, width=width)
    told: dict[str, list[str]] = {}
    for path in PAGES:
        show(page, f"{viewing}/{path}")
        if found := faults(page, axe, rules):
            told[path] = found

    assert told == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_window_has_a_fault_that_axe_finds(
    page: Page, client: Client, axe: str, theme: str
) -> None:
    if theme == "dark":
        page.keyboard.press("t")
    home = page.url
    job = client.jobs.find("state:dead error:Timeout*", limit=1)[0]
    page.goto(f"{home}jobs/{job}")
    expect(page.get_by_label("Traceback", exact=True)).to_be_visible()
    assert faults(page, axe, RULES) == []
    page.get_by_role("button", name="Edit & retry").click()
    assert faults(page, axe, RULES) == []
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    page.get_by_role("dialog").get_by_label("Kind", exact=True).fill("send_email")
    assert faults(page, axe, RULES) == []
    page.goto(f"{home}dead")
    page.get_by_role("button", name="Retry all").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("as of")
    assert faults(page, axe, RULES) == []


def test_no_page_is_wider_than_a_small_telephone(viewing: str, open_page: Open) -> None:
    page = open_page(viewing, width=360)
    wide = {}
    for path in PAGES:
        show(page, f"{viewing}/{path}")
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 360:
            wide[path] = width

    assert wide == {}


def test_whatever_is_in_the_data_is_shown_as_text(
    database: str, serve: Serve, open_page: Open
) -> None:
    with Client(database) as client:
        for number, evil in enumerate(CORPUS):
            queue = evil.replace("/", "")[:100]
            job = client.enqueue(
                evil,
                {evil: evil},
                queue=queue,
                tenant=evil,
                subject=evil,
                lane=f"{evil}{number}",
                headers={evil: evil},
                max_attempts=1,
            )
            [lease] = client.claim(queue, worker=evil)
            client.nack([lease], error_kind=evil, message=evil, traceback=evil)
            client.enqueue(evil, {evil: evil}, queue=queue, lane=f"{evil}{number}", key=evil)
            client.claim(queue, worker=evil)
            client.queues.pause(queue, reason=evil, actor=evil)
            client.workers.beat(evil, host=evil, version=evil, queues=[queue], kinds=[evil])
            client.schedules.declare([NewSchedule(name=queue, kind=evil, cron="0 0 * * *")])
            finding = Finding(
                evil, subject=str(number), detail=evil, suggestion=evil, evidence={evil: evil}
            )
            client.detectors.report(f"evil{number}", [finding])
    page = open_page(serve(database, name=CORPUS[0]))
    with Client(database) as client:
        jobs = [str(id) for id in client.jobs.find("state:dead")]
    assert str(job.id) in jobs

    for path in [*PAGES, *(f"jobs/{id}" for id in jobs)]:
        show(page, f"{page.url.split('/', 3)[0]}//{page.url.split('/')[2]}/{path}")
        assert page.evaluate("window.owned") is None
    expect(page.get_by_label("payload", exact=True)).to_contain_text(
        json.dumps(CORPUS[0])[1:-1][:20]
    )


def test_the_dashboard_is_small() -> None:
    files = [path for path in dashboard.STATIC.rglob("*") if path.is_file()]

    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in files) <= 120_000


def test_the_document_holds_no_script_or_style_of_its_own() -> None:
    text = Path(dashboard.STATIC, "index.html").read_text()

    assert "style=" not in text
    assert "<style" not in text
    assert text.count("<script") == text.count('<script type="module" crossorigin src="./assets/')
