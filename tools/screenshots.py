"""Takes the pictures that the pages show: `python tools/screenshots.py [SECONDS]`.

A shop works on a database of its own for a while (90 seconds), so that there is something to see.
"""

import os
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import psycopg  # noqa: E402
from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402

from holdfast import embedded, schema  # noqa: E402
from holdfast.client import Client  # noqa: E402
from holdfast.server import Settings  # noqa: E402
from tests.browser import chromium  # noqa: E402
from tests.browser.conftest import serving  # noqa: E402
from tests.browser.stage import live_on, set_stage  # noqa: E402

IMAGES = ROOT / "docs" / "images"
PAGES = {
    "overview": "",
    "queue": "queues/mail",
    "anomalies": "anomalies",
}


def main(seconds: float) -> None:
    """Take all pictures."""
    IMAGES.mkdir(exist_ok=True)
    program, environment = chromium.find()
    with embedded.start(temporary=True) as database:
        schema.migrate(database.url)
        set_stage(database.url, scale=8)
        done = threading.Event()
        shop = threading.Thread(target=live_on, args=(database.url, done.is_set))
        with (
            serving(database.url, Settings(name="prod")) as address,
            Client(database.url) as client,
        ):
            shop.start()
            time.sleep(seconds)
            remember(database.url)
            job = client.jobs.find("state:dead error:Timeout*", limit=1)[0]
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=program,
                    env={**os.environ, **environment},
                    args=["--no-sandbox"],
                )
                act(browser, address)
                operate(client)
                client.detectors.run()
                take_all(browser, address, PAGES | {"job": f"jobs/{job}"})
                browser.close()
            done.set()
            shop.join()


def remember(url: str) -> None:
    """Give the charts a past: waves around what the shop does now, without the day it opened."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            """
            with now as materialized (
              select s.*, row_number() over (partition by s.queue, s.kind order by s.at) as nth,
                     row_number() over (partition by s.queue, s.kind order by s.at desc) as ago
              from holdfast.sample s where s.step = 10
            ), opened as (
              delete from holdfast.sample s using now n
              where n.nth = 1 and s.step = 10 and (s.at, s.queue, s.kind) = (n.at, n.queue, n.kind)
            )
            insert into holdfast.sample
              (step, at, queue, kind, enqueued, done, failed, queued, leased, dead, oldest)
            select 10, first.at - n * interval '10 seconds', t.queue, t.kind,
                   t.enqueued * w.wave, t.done * (0.3 + 0.7 * w.wave), w.spark * t.done / 40,
                   t.queued * w.wave * w.wave, t.leased, t.dead - n / 4,
                   t.oldest * (0.4 + 0.6 * w.wave)
            from now t
            cross join (select min(at) as at from now) first
            cross join generate_series(0, 90) n
            cross join lateral (
              select 0.85 + 0.3 * sin(n / 11.0) + 0.08 * sin(n * 2.3) as wave,
                     (n % 17 = 3)::int as spark
            ) w
            where t.ago = 2
            on conflict do nothing
            """
        )


def act(browser: Browser, address: str) -> None:
    """Do what an operator does first, so that there is a record of it."""
    page = browser.new_page()
    page.goto(f"{address}/dead")
    page.get_by_role("button", name="Retry 10 first").first.click()
    page.get_by_role("dialog").get_by_label("Reason").fill("relay is back")
    page.get_by_role("dialog").get_by_role("button", name="Retry 10", exact=True).click()
    expect(page.get_by_label("Operations", exact=True)).to_contain_text("10/10")
    page.close()


def operate(client: Client) -> None:
    """Leave a few more lines in the activity log, of several people and a worker."""
    client.queues.pause("images", reason="the disk is full", actor="grace")
    client.queues.resume("images", actor="grace")
    client.queues.set("mail", limit=60, actor="ada")
    failing = client.enqueue("price_run", {"scenario": "libor"}, queue="axiom", max_attempts=2)
    leases = [
        lease
        for lease in client.claim("axiom", worker="axiom-02c7d9f1", limit=10)
        if lease.id == failing.id
    ]
    client.nack(leases, error_kind="KeyError", message="'libor'", delay=0)
    client.jobs.cancel([failing.id], reason="superseded by sofr", actor="grace")
    client.schedules.run("fetch_rates", actor="ada")
    known = next(one for one in client.anomalies.list() if one.code == "job_died")
    client.anomalies.ack(known.id, note="the relay was down, retried", actor="ada")


def take_all(browser: Browser, address: str, pages: dict[str, str]) -> None:
    """Take a picture of every page."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 800},
        color_scheme="light",
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="Europe/Paris",
    )
    page = context.new_page()
    for name, path in pages.items():
        page.goto(f"{address}/{path}")
        settle(page)
        page.screenshot(path=IMAGES / f"{name}-light.png")
    windows(page, address)
    context.close()


def windows(page: Page, address: str) -> None:
    """Take pictures of what opens above pages."""
    page.goto(f"{address}/dead")
    settle(page)
    page.get_by_role("button", name="Retry all").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("as of")
    page.screenshot(path=IMAGES / "retry-light.png")
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    page.get_by_role("dialog").get_by_label("Kind", exact=True).fill("send_email")
    page.get_by_role("dialog").get_by_label("to string (email)").fill("ada@example.org")
    page.screenshot(path=IMAGES / "enqueue-light.png")


def settle(page: Page) -> None:
    """Wait until the page has its data."""
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator(".bones, .bone")).to_have_count(0)
    # Rates are known after two samples.
    page.wait_for_timeout(2500)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 90)
