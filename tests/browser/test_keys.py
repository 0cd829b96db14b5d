"""Everything by keyboard."""

import re

import pytest
from playwright.sync_api import Page, expect

from holdfast.client import Client
from tests.browser.conftest import Open


@pytest.fixture
def looker(viewing: str, open_page: Open) -> Page:
    """A page on the server for looking."""
    page = open_page(viewing)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    return page


def test_g_and_a_letter_go_to_a_page(looker: Page) -> None:
    places = {"q": "queues", "j": "jobs", "d": "dead", "s": "schedules", "w": "workers"}
    places |= {"l": "lanes", "a": "anomalies", "h": "activity", ",": "settings"}
    for key, name in places.items():
        looker.keyboard.press("g")
        looker.keyboard.press(key)

        expect(looker).to_have_url(re.compile(f"/{name}$"))


def test_rows_are_walked_chosen_and_opened(looker: Page) -> None:
    looker.goto(looker.url + "jobs?q=state:dead")
    rows = looker.locator("[data-row]")
    expect(rows.first).to_be_visible()
    for key in ("j", "j", "x", "j", "j", "X"):
        looker.keyboard.press(key)
    expect(looker.get_by_role("toolbar", name="Selected jobs")).to_contain_text("3 selected")
    looker.keyboard.press("k")
    third = rows.nth(2).get_attribute("data-row")
    looker.keyboard.press("Enter")

    expect(looker).to_have_url(re.compile(f"/jobs/{third}"))


def test_enter_on_the_dead_page_opens_the_group(looker: Page) -> None:
    looker.goto(looker.url + "dead")
    expect(looker.locator("[data-row]").first).to_be_visible()
    looker.keyboard.press("j")
    looker.keyboard.press("j")
    second = looker.locator("main .group").nth(1)
    looker.keyboard.press("Enter")

    expect(second.locator(".members")).to_be_visible()
    expect(looker).to_have_url(re.compile(f"/dead.group={second.get_attribute('data-row')}"))


def test_the_keys_do_not_cover_what_they_do(looker: Page) -> None:
    looker.keyboard.press("?")
    rows = looker.get_by_role("dialog", name="Keys").locator("dl > div")
    expect(rows.first).to_be_visible()
    covered = rows.evaluate_all(
        "all => all.filter(row => Math.max(...[...row.querySelectorAll('kbd')].map("
        "key => key.getBoundingClientRect().right)) >"
        " row.querySelector('dd').getBoundingClientRect().left).map(row => row.innerText)"
    )

    assert covered == []


def test_all_rows_are_chosen_by_one_key(looker: Page) -> None:
    looker.goto(looker.url + "jobs?q=kind:resize_image state:dead")
    expect(looker.locator("[data-row]")).to_have_count(17)
    looker.keyboard.press("*")

    expect(looker.get_by_role("toolbar", name="Selected jobs")).to_contain_text("17 selected")


def test_keys_act_on_the_job_under_the_cursor_and_ask_first(page: Page, client: Client) -> None:
    page.goto(page.url + "jobs?q=state:dead kind:resize_image")
    expect(page.locator("[data-row]").first).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("r")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Retry resize_image")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert len(client.jobs.find("state:dead kind:resize_image")) == 17

    page.keyboard.press("r")
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(page.locator("[data-row]")).to_have_count(16)


def test_slash_goes_to_the_search_and_an_id_opens_its_job(looker: Page) -> None:
    looker.goto(looker.url + "jobs?q=state:dead")
    id = looker.locator("[data-row]").first.get_attribute("data-row")
    assert id is not None
    looker.goto(re.sub("jobs.*", "", looker.url))
    expect(looker.get_by_role("heading", name="Overview")).to_be_visible()
    looker.keyboard.press("/")
    looker.keyboard.type(id[-8:])
    looker.keyboard.press("Enter")

    expect(looker).to_have_url(re.compile(id))


def test_t_changes_the_theme_and_it_is_remembered(looker: Page) -> None:
    html = looker.locator("html")
    expect(html).to_have_attribute("data-theme", "light")
    looker.keyboard.press("t")
    expect(html).to_have_attribute("data-theme", "dark")
    looker.reload()

    expect(html).to_have_attribute("data-theme", "dark")


def test_p_holds_everything_still(page: Page, client: Client) -> None:
    page.goto(page.url + "queues")
    cell = page.locator('[data-row="images"] td').nth(3)
    expect(cell).to_have_text("0")
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="paused")).to_be_visible()
    client.enqueue("resize_image", queue="images")
    page.wait_for_function(
        "async () => (await (await fetch('/v1/queues/images')).json()).queued === 1"
    )
    expect(cell).to_have_text("0")
    page.keyboard.press("p")

    expect(cell).to_have_text("1")


def test_a_dot_opens_the_commands_and_a_question_mark_the_keys(looker: Page) -> None:
    looker.keyboard.press(".")
    expect(looker.get_by_role("combobox", name="Command")).to_be_focused()
    looker.keyboard.type("sched")
    looker.keyboard.press("Enter")
    expect(looker).to_have_url(re.compile("/schedules$"))
    looker.keyboard.press("?")

    expect(looker.get_by_role("dialog", name="Keys")).to_be_visible()


def test_the_focus_is_kept_in_a_window_and_given_back(looker: Page, page: Page) -> None:
    page.goto(page.url + "queues")
    button = page.get_by_role("button", name="Pause mail")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")

    expect(button).to_be_focused()
