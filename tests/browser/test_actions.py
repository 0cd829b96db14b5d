"""Every action, from the button to the database."""

import re
import subprocess

import pytest
from playwright.sync_api import Locator, Page, expect

from holdfast.client import Client
from holdfast.records import Finding
from tests.browser.conftest import Open, Serve


def open_job(page: Page, client: Client, filter: str) -> str:
    id = str(client.jobs.find(filter, limit=1)[0])
    page.goto(f"{page.url}jobs/{id}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    return id


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


def told(page: Page, text: str) -> None:
    expect(page.get_by_role("status").filter(has_text=text).first).to_be_visible()


def test_a_dead_job_is_retried_with_a_reason(page: Page, client: Client) -> None:
    id = open_job(page, client, "state:dead kind:resize_image")
    page.get_by_role("button", name="Retry r").click()
    dialog(page).get_by_label("Reason").fill("library updated")
    dialog(page).get_by_role("button", name="Retry").click()
    told(page, "Queued for retry")

    [job] = client.jobs.list(f"id:{id}")
    assert (job.state, job.reason) == ("queued", "library updated")
    expect(page.get_by_role("heading", level=1)).to_contain_text("queued")


@pytest.mark.proves("S2.25")
def test_a_running_job_is_cancelled(page: Page, client: Client) -> None:
    id = open_job(page, client, "state:leased kind:resize_image")
    page.get_by_role("button", name="Cancel c").click()
    dialog(page).get_by_role("button", name="Cancel job").click()
    told(page, "Cancelled")

    assert client.jobs.list(f"id:{id}")[0].state == "cancelled"


def test_a_payload_is_edited_and_the_job_retried(page: Page, client: Client) -> None:
    id = open_job(page, client, "state:dead kind:resize_image")
    page.get_by_role("button", name="Edit & retry").click()
    dialog(page).get_by_label("Payload").fill('{"image": "fixed.png"}')
    dialog(page).get_by_role("button", name="Save and retry").click()
    told(page, "Saved and queued for retry")

    [job] = client.jobs.list(f"id:{id}")
    assert (job.state, job.payload) == ("queued", {"image": "fixed.png"})


def test_a_payload_that_is_no_json_is_refused_before_it_is_sent(page: Page, client: Client) -> None:
    open_job(page, client, "state:dead kind:resize_image")
    page.get_by_role("button", name="Edit & retry").click()
    dialog(page).get_by_label("Payload").fill("{")
    dialog(page).get_by_role("button", name="Save and retry").click()

    expect(dialog(page).get_by_role("alert")).to_contain_text("Not valid JSON")


def test_a_dead_job_is_archived(page: Page, client: Client) -> None:
    id = open_job(page, client, "state:dead kind:resize_image")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Archive").click()
    dialog(page).get_by_role("button", name="Archive 1").click()

    expect(page.get_by_role("heading", level=1)).to_contain_text("archived")
    assert client.jobs.list(f"id:{id}")[0].state == "archived"


def test_deleting_needs_the_id_to_be_typed(page: Page, client: Client) -> None:
    id = open_job(page, client, "state:dead kind:resize_image")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete").click()
    go = dialog(page).get_by_role("button", name="Delete permanently")
    expect(go).to_be_disabled()
    dialog(page).get_by_label("Type").fill(id[-8:])
    go.click()
    told(page, "Deleted")

    assert client.jobs.list(f"id:{id}") == []


def test_a_waiting_job_is_moved_and_its_page_follows(page: Page, client: Client) -> None:
    id = open_job(page, client, "state:queued kind:send_sms")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Move to another queue").click()
    dialog(page).get_by_label("To queue").fill("sms")
    dialog(page).get_by_role("button", name="Move", exact=True).click()
    told(page, "Moved to sms")

    assert [job.queue for job in client.jobs.list("queue:sms")] == ["sms"]
    expect(page.locator("dl").get_by_role("link", name="sms", exact=True)).to_be_visible()
    assert id not in page.url


def test_a_job_is_enqueued_by_a_form_made_from_the_schema(page: Page, client: Client) -> None:
    page.get_by_role("button", name="Enqueue", exact=True).click()
    drawer = dialog(page)
    drawer.get_by_label("Kind", exact=True).fill("send_email")
    drawer.get_by_label("to string (email)").fill("grace@example.org")
    drawer.get_by_label("template").select_option('"receipt"')
    drawer.get_by_label("user_id integer, optional").fill("7")
    drawer.get_by_label("sender Who a message comes from, object, optional").fill('{"name": "Ada"}')
    drawer.get_by_text("Options").click()
    drawer.get_by_label("Priority").select_option("9")
    drawer.get_by_role("button", name="Enqueue").click()
    told(page, "Enqueued")

    [job] = client.jobs.list("priority:9", limit=1)
    assert (job.queue, job.payload) == (
        "mail",
        {
            "to": "grace@example.org",
            "template": "receipt",
            "user_id": 7,
            "sender": {"name": "Ada"},
        },
    )


def test_a_clone_begins_with_the_payload_of_the_first(page: Page, client: Client) -> None:
    open_job(page, client, "state:dead kind:resize_image")
    page.get_by_role("button", name="Clone").click()
    dialog(page).get_by_role("button", name="Enqueue").click()
    told(page, "Enqueued")

    assert len(client.jobs.find("state:queued kind:resize_image payload.image:*heic")) == 1


def test_a_queue_is_paused_for_a_while_and_resumed(page: Page, client: Client) -> None:
    page.goto(page.url + "queues")
    page.get_by_role("button", name="Pause mail").click()
    dialog(page).get_by_label("For how long").select_option("600")
    dialog(page).get_by_label("Reason").fill("relay is down")
    dialog(page).get_by_role("button", name="Pause").click()
    told(page, "mail is paused")
    queue = client.queues.get("mail")
    assert queue is not None
    assert queue.paused_until is not None
    assert (queue.paused_by, queue.paused_reason) == ("local", "relay is down")

    page.get_by_role("button", name="Resume mail").click()
    dialog(page).get_by_role("button", name="Resume").click()
    told(page, "mail is resumed")
    queue = client.queues.get("mail")
    assert queue is not None
    assert queue.paused_at is None


def test_settings_of_a_queue_are_reviewed_before_they_are_saved(page: Page, client: Client) -> None:
    page.goto(page.url + "queues/mail")
    page.get_by_label("Limit how many of its jobs").fill("12")
    page.get_by_role("button", name="Review and save").click()
    expect(dialog(page).get_by_label("Changes")).to_contain_text("limit = 12")
    dialog(page).get_by_role("button", name="Save").click()
    told(page, "Saved")

    queue = client.queues.get("mail")
    assert queue is not None
    assert queue.limit == 12


def test_draining_needs_the_name_and_cancels_what_waits(page: Page, client: Client) -> None:
    page.goto(page.url + "queues/reports")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Drain").click()
    dialog(page).get_by_label("Type").fill("reports")
    dialog(page).get_by_role("button", name="Cancel queued jobs").click()

    expect(page.get_by_label("Operations", exact=True)).to_contain_text("88/88")
    assert client.jobs.find("queue:reports state:queued") == []


@pytest.mark.proves("S2.24")
def test_ten_are_retried_first_and_then_all(page: Page, client: Client) -> None:
    page.goto(page.url + "dead")
    group = page.locator("[data-row]").filter(has_text="TimeoutError")
    group.get_by_role("button", name="Retry 10 first").click()
    expect(dialog(page)).to_contain_text("Jobs added later are not affected")
    dialog(page).get_by_role("button", name="Retry 10").click()
    tray = page.get_by_label("Operations", exact=True)
    expect(tray).to_contain_text("10/10 retried")
    expect(tray).to_contain_text("0 passed · 10 have not ended yet")
    assert len(client.jobs.find("state:queued tenant:acme")) == 10
    expect(group).to_contain_text("110")
    tried = client.claim("mail", worker="web1-3f2c91d0", limit=10)
    assert {lease.tenant for lease in tried} == {"acme"}  # of the highest priority
    client.ack(tried[:9])
    message = "30 s waiting for smtp0.example.org"
    client.nack(tried[9:], error_kind="TimeoutError", message=message, final=True)
    told(page, "1 of 10 failed again")
    expect(tray).to_contain_text("1 of 10 failed again")
    expect(group).to_contain_text("111")

    group.get_by_role("button", name="Retry all").click()
    dialog(page).get_by_label("Rate limit").select_option("")
    dialog(page).get_by_role("button", name="Retry 111").click()
    expect(tray).to_contain_text("111/111 retried")

    assert len(client.jobs.find("state:queued tenant:acme")) == 111
    page.goto(page.url.replace("dead", "activity"))
    expect(page.get_by_role("main")).to_contain_text("changed 111")


def test_a_running_operation_can_be_stopped(page: Page, client: Client) -> None:
    page.goto(page.url + "dead")
    group = page.locator("[data-row]").filter(has_text="TimeoutError")
    group.get_by_role("button", name="Retry all").click()
    dialog(page).get_by_label("Rate limit").select_option("20")
    dialog(page).get_by_role("button", name="Retry 120").click()
    page.get_by_label("Operations", exact=True).get_by_role("button", name="Stop").click()
    dialog(page).get_by_role("button", name="Stop operation").click()
    told(page, "Stopped")

    expect(page.get_by_label("Operations", exact=True)).to_contain_text("cancelled")
    assert client.jobs.find("state:dead tenant:acme")


def test_what_an_operation_did_is_undone_from_the_tray_and_from_the_record(
    page: Page, client: Client
) -> None:
    page.goto(page.url + "dead")
    group = page.locator("[data-row]").filter(has_text="TimeoutError")
    tray = page.get_by_label("Operations", exact=True)
    for many, place in ((10, "tray"), (120, "record")):
        if many == 10:
            group.get_by_role("button", name="Retry 10 first").click()
        else:
            group.get_by_role("button", name="Retry all").click()
            dialog(page).get_by_label("Rate limit").select_option("")
        dialog(page).get_by_role("button", name=f"Retry {many}").click()
        expect(tray).to_contain_text(f"{many}/{many} retried")
        if place == "tray":
            tray.get_by_role("button", name="Undo").click()
        else:
            page.goto(page.url.replace("dead", "activity"))
            page.locator("[data-row]").get_by_role("button", name="Undo").click()
        expect(dialog(page)).to_contain_text("that have not started return to their previous state")
        dialog(page).get_by_role("button", name=f"Undo {many}").click()
        told(page, "Undo started")
        expect(tray).to_contain_text(f"{many}/{many} restored")
        expect(tray.get_by_role("button", name="Undo")).to_have_count(0)
        assert len(client.jobs.find("state:dead tenant:acme")) == 120

    expect(page.locator("[data-row]").get_by_role("button", name="Undo")).to_have_count(0)
    expect(page.locator(".events")).to_contain_text("undone")


def test_a_group_is_deleted_only_after_its_number_is_typed(page: Page, client: Client) -> None:
    page.goto(page.url + "dead")
    group = page.locator("[data-row]").filter(has_text="orientation")
    group.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete all").click()
    go = dialog(page).get_by_role("button", name="Delete 17")
    expect(go).to_be_disabled()
    dialog(page).get_by_label("Type").fill("17")
    go.click()

    expect(page.get_by_label("Operations", exact=True)).to_contain_text("17/17 deleted")
    assert client.jobs.find("kind:resize_image state:dead") == []


def test_chosen_jobs_are_cancelled_together(page: Page, client: Client) -> None:
    page.goto(page.url + "jobs?q=kind:send_sms")
    for index in range(3):
        page.locator("[data-row] input").nth(index).check()
    toolbar = page.get_by_role("toolbar", name="Selected jobs")
    expect(toolbar).to_contain_text("3 selected")
    toolbar.get_by_role("button", name="Cancel").click()
    expect(dialog(page).get_by_role("heading")).to_have_text("Cancel 3 selected jobs")
    expect(dialog(page)).not_to_contain_text("matching")
    dialog(page).get_by_role("button", name="Cancel 3").click()

    expect(page.get_by_label("Operations", exact=True)).to_contain_text("3/3 cancelled")
    assert len(client.jobs.find("kind:send_sms state:cancelled")) == 3


def test_an_act_on_all_that_match_says_so_however_many_are_chosen(
    page: Page, client: Client
) -> None:
    filter = "state:dead kind:resize_image"
    page.goto(page.url + f"jobs?q={filter}")
    for index in range(2):
        page.locator("[data-row] input").nth(index).check()
    toolbar = page.get_by_role("toolbar", name="Selected jobs")
    expect(toolbar).to_contain_text("2 selected")
    toolbar.get_by_role("button", name="Act on all matching").click()
    expect(dialog(page).get_by_role("heading")).to_have_text("Retry all matching jobs")
    expect(dialog(page)).to_contain_text(f"Jobs matching {filter} will be retried")
    expect(dialog(page).get_by_role("button", name="Retry 17")).to_be_enabled()
    expect(dialog(page)).not_to_contain_text("selected")
    dialog(page).get_by_role("button", name="Cancel").click()

    toolbar.get_by_role("button", name="Retry").click()
    expect(dialog(page).get_by_role("heading")).to_have_text("Retry 2 selected jobs")
    dialog(page).get_by_role("button", name="Retry 2").click()

    expect(page.get_by_label("Operations", exact=True)).to_contain_text("2/2 retried")
    assert len(client.jobs.find(filter)) == 15


def test_a_schedule_is_run_paused_resumed_edited_and_deleted(page: Page, client: Client) -> None:
    page.goto(page.url + "schedules/price_runs")
    page.get_by_role("button", name="Pause").click()
    dialog(page).get_by_role("button", name="Pause").click()
    told(page, "price_runs is paused")
    page.get_by_role("button", name="Resume").click()
    dialog(page).get_by_role("button", name="Resume").click()
    told(page, "price_runs is resumed")
    page.get_by_role("button", name="Edit").click()
    dialog(page).get_by_label("Rule").fill("0 6 * * *")
    dialog(page).get_by_role("button", name="Save").click()
    told(page, "Saved")
    schedule = client.schedules.get("price_runs")
    assert schedule is not None
    assert (schedule.cron, schedule.state, schedule.updated_by) == ("0 6 * * *", "active", "local")

    page.get_by_role("button", name="Run now").click()
    dialog(page).get_by_role("button", name="Run now").click()
    expect(page).to_have_url(re.compile("/jobs/"))

    page.go_back()
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete").click()
    dialog(page).get_by_label("Type").fill("price_runs")
    dialog(page).get_by_role("button", name="Delete permanently").click()
    told(page, "Deleted")
    assert client.schedules.get("price_runs") is None


def test_a_schedule_is_made(page: Page, client: Client) -> None:
    page.goto(page.url + "schedules")
    page.get_by_role("button", name="New schedule").click()
    dialog(page).get_by_label("Name", exact=True).fill("cleanup")
    dialog(page).get_by_label("Kind", exact=True).fill("fetch_rates")
    dialog(page).get_by_label("Rule").fill("30m")
    dialog(page).get_by_role("button", name="Create").click()

    expect(page.locator('[data-row="cleanup"]')).to_be_visible()
    schedule = client.schedules.get("cleanup")
    assert schedule is not None
    assert schedule.every is not None
    assert schedule.every.total_seconds() == 1800


def test_a_worker_is_told_to_stop(page: Page, client: Client) -> None:
    page.goto(page.url + "workers")
    page.get_by_role("button", name="Stop img1-90aa12cd").click()
    dialog(page).get_by_role("button", name="Stop after current jobs").click()
    told(page, "Stop requested")

    assert client.workers.beat("img1-90aa12cd") is True


def test_a_lane_whose_holder_lives_is_not_released(page: Page) -> None:
    page.goto(page.url + "lanes")
    page.locator('[data-row="axiom"]').get_by_role("button", name="Release").click()
    dialog(page).get_by_label("Type").fill("axiom")
    dialog(page).get_by_role("button", name="Release lane").click()

    expect(dialog(page).get_by_role("alert")).to_contain_text("axiom-02c7d9f1")


def test_a_token_is_made_shown_once_and_revoked(page: Page, client: Client) -> None:
    page.goto(page.url + "settings")
    page.get_by_role("button", name="New token").click()
    dialog(page).get_by_label("Name", exact=True).fill("php-importer")
    dialog(page).get_by_role("button", name="Create").click()
    expect(page.get_by_text("It is not shown again")).to_be_visible()
    page.reload()
    expect(page.get_by_role("row").filter(has_text="php-importer")).to_contain_text("produce")
    expect(page.get_by_text("It is not shown again")).to_have_count(0)

    page.get_by_role("row").filter(has_text="php-importer").get_by_role("button").click()
    dialog(page).get_by_role("button", name="Revoke").click()
    told(page, "Revoked")


def test_what_is_copied_as_curl_does_the_same(page: Page, client: Client) -> None:
    id = open_job(page, client, "state:dead kind:resize_image")
    page.get_by_role("button", name="Retry r").click()
    dialog(page).get_by_label("Reason").fill("it's fixed")
    dialog(page).get_by_role("button", name="holdfast").click()
    assert page.evaluate("navigator.clipboard.readText()") == (
        f"holdfast job retry {id} --reason 'it'\\''s fixed'"
    )
    dialog(page).get_by_role("button", name="curl").click()
    command = page.evaluate("navigator.clipboard.readText()")

    subprocess.run(["sh", "-c", f"{command} --silent --fail"], check=True, capture_output=True)

    assert client.jobs.list(f"id:{id}")[0].reason == "it's fixed"


def test_a_server_that_is_read_only_says_why_nothing_can_be_done(
    shop: str, serve: Serve, open_page: Open
) -> None:
    page = open_page(f"{serve(shop, read_only=True)}/queues")

    button = page.get_by_role("button", name="Pause mail")
    expect(button).to_be_disabled()
    expect(button).to_have_attribute("title", "This server is read-only")
    expect(page.get_by_text("read-only", exact=True)).to_be_visible()


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_signing_in_opens_what_the_role_allows(
    shop: str, client: Client, serve: Serve, open_page: Open, role: str
) -> None:
    scopes = {"viewer": ["read"], "operator": ["read", "produce", "operate"]}[role]
    secret = client.tokens.create("grace", scopes).secret
    page = open_page(f"{serve(shop, ways=('token',))}/queues")
    page.get_by_role("textbox", name="Token").fill(secret)
    page.get_by_role("button", name="Sign in").click()

    pause = page.get_by_role("button", name="Pause mail")
    expect(pause).to_be_visible()
    expect(pause).to_be_enabled(enabled=role == "operator")
    expect(page.get_by_role("link", name="grace")).to_be_visible()


def test_jobs_are_saved_as_a_file_and_read_again(page: Page, client: Client) -> None:
    page.goto(page.url + "jobs?q=state:dead kind:resize_image")
    page.get_by_role("button", name="Export and import").click()
    with page.expect_download() as saving:
        page.get_by_role("menuitem", name="Export all matching jobs").click()
    saved = saving.value.path().read_text()
    assert len(saved.splitlines()) == 17

    page.get_by_role("button", name="Export and import").click()
    page.get_by_role("menuitem", name="Import jobs").click()
    dialog(page).get_by_label("paste them here").fill(saved)
    dialog(page).get_by_label("Queue").fill("again")
    dialog(page).get_by_role("button", name="Enqueue 17").click()
    told(page, "17 jobs enqueued, 0 left out")

    assert len(client.jobs.find("queue:again state:queued")) == 17


def test_an_anomaly_is_acked_and_muted(page: Page, client: Client) -> None:
    finding = Finding("Refunds pile up", queue="mail", severity="critical", evidence={"open": 412})
    [raised] = client.detectors.report("refunds", [finding])
    page.goto(f"{page.url}anomalies")
    card = page.get_by_role("article").filter(has_text="Refunds pile up")
    card.get_by_text("Evidence").click()
    expect(card).to_contain_text("412")
    card.get_by_role("button", name="Acknowledge").click()
    dialog(page).get_by_label("Note").fill("on it")
    dialog(page).get_by_role("button", name="Acknowledge").click()
    expect(card).to_contain_text("on it")
    card.get_by_role("button", name="Mute").click()
    dialog(page).get_by_role("button", name="Mute").click()
    expect(card.get_by_role("button", name="Unmute")).to_be_visible()

    found = client.anomalies.get(str(raised.id))
    assert found is not None
    assert (found.note, found.muted) == ("on it", True)
