"""Workflows: the list, the drawn graph, and what one can do there."""

from datetime import timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from playwright.sync_api import Route, expect

from holdfast.client import Client
from holdfast.records import NewJob
from tests.browser import chromium
from tests.browser.conftest import Open, Serve
from tests.browser.test_everybody import RULES, faults

MANY = 40


def catalogue(client: Client, many: int = MANY) -> UUID:
    """A workflow under way: some is done, some runs, three jobs are dead, the rest waits."""
    images = [
        NewJob(kind="resize_image", queue="catalogue", after=[1], max_attempts=1)
        for _ in range(many)
    ]
    all_images = list(range(2, many + 2))
    jobs = [
        NewJob(kind="fetch_catalogue", queue="catalogue"),
        *images,
        NewJob(kind="build_index", queue="catalogue", after=all_images),
        NewJob(kind="translate", queue="catalogue", after=[1]),
        NewJob(kind="publish", queue="catalogue", after=[many + 2, many + 3]),
        NewJob(kind="clean_up", queue="catalogue", after=all_images, if_failed="run"),
    ]
    started = client.workflows.start(
        "catalogue", jobs, key="2026-11", deadline=timedelta(hours=2), actor="ada"
    )
    [first] = client.claim("catalogue", worker="img1-90aa12cd")
    client.enqueue_many(
        [NewJob(kind="check_price", queue="catalogue", child_of=first.id) for _ in range(3)]
    )
    client.ack([first], [{"images": many}])
    long = timedelta(minutes=30)
    held = client.claim("catalogue", worker="img1-90aa12cd", limit=many, lease=long)
    resizing = [one for one in held if one.kind == "resize_image"]
    client.nack(resizing[:3], error_kind="OSError", message="cannot identify image file")
    client.ack(resizing[5:])
    return started.id


def test_a_workflow_is_listed_drawn_and_unfolded(
    shop: str, client: Client, serve: Serve, open_page: Open
) -> None:
    id = catalogue(client)
    page = open_page(f"{serve(shop)}/workflows")
    page.locator(f'[data-row="{id}"]').get_by_role("link", name="catalogue").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("running")
    graph = page.get_by_role("list", name="Graph of the workflow")

    resize = graph.get_by_role("button", name="resize_image").first
    expect(resize).to_contain_text("40")
    expect(resize).to_contain_text("3 dead, 2 running")
    expect(graph.get_by_role("button")).to_have_count(7)
    expect(graph.get_by_role("button", name="child of fetch_catalogue")).to_contain_text(
        "check_price"
    )
    resize.click()
    jobs = page.get_by_role("table", name="Jobs of resize_image")
    expect(jobs.locator("tbody tr")).to_have_count(25)
    page.get_by_role("button", name="dead 3").click()
    expect(jobs.locator("tbody tr")).to_have_count(3)
    jobs.get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("resize_image dead")
    page.get_by_role("link", name=str(id)[-8:]).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("catalogue")


STATES = ("waiting", "queued", "leased", "done", "dead", "cancelled")
IN_LINES = {
    (0, 15, 3, 0, 0, 0): ["3 running, 15 queued"],
    (0, 15, 3, 22, 0, 0): ["3 running, 15 queued,", "22 done"],
    (0, 4, 2, 31, 3, 0): ["3 dead, 2 running,", "4 queued, 31 done"],
    (12, 4, 2, 31, 3, 9): ["3 dead, 9 cancelled,", "2 running, 47 more"],
    (10_000,) * 6: ["10\u202f000 dead,", "50\u202f000 more"],
    (0, 0, 0, 0, 88_888, 88_888): ["88\u202f888 dead,", "88\u202f888 cancelled"],
}


@pytest.mark.parametrize("width", [1280, 360])
def test_the_states_of_many_jobs_are_not_cut_off(
    shop: str, client: Client, serve: Serve, open_page: Open, width: int
) -> None:
    id = catalogue(client)
    address = serve(shop)
    page = open_page(f"{address}/workflows", width=width)
    name = page.locator(".node-name", has_text="resize_image")
    node = page.get_by_role("list", name="Graph of the workflow").locator("button", has=name)
    lines = node.locator(".node-states .clip")
    counts: tuple[int, ...] = ()

    def answer(route: Route) -> None:
        told = route.fetch()
        document = told.json()
        [group] = [one for one in document["groups"] if one["kind"] == "resize_image"]
        group["jobs"] = dict(zip(STATES, counts, strict=True)) | {"total": sum(counts)}
        route.fulfill(response=told, json=document)

    page.route(f"**/v1/workflows/{id}", answer)
    for counts, shown in IN_LINES.items():
        page.goto(f"{address}/workflows/{id}")

        expect(lines).to_have_text(shown)
        for line in lines.all():
            assert line.evaluate("line => line.scrollWidth - line.clientWidth") <= 0
        outer, inner = node.bounding_box(), node.locator(".node-note").bounding_box()
        assert outer is not None
        assert inner is not None
        assert inner["y"] + inner["height"] < outer["y"] + outer["height"]
        # Whoever points at it, or hears it, is told them all.
        whole = node.locator(".node-note").get_attribute("title")
        assert whole is not None
        assert whole.count(",") == sum(map(bool, counts)) - 1
        assert whole in (node.text_content() or "")


@pytest.mark.parametrize("beside", [2, 30])
def test_nothing_of_a_graph_is_beside_a_small_telephone(
    shop: str, client: Client, serve: Serve, open_page: Open, beside: int
) -> None:
    side = [NewJob(kind=f"side_{n}", queue="wf", after=[1]) for n in range(beside)]
    last = [NewJob(kind="end", queue="wf", after=list(range(1, beside + 2)))]
    started = client.workflows.start("wide", [NewJob(kind="root", queue="wf"), *side, *last])
    page = open_page(f"{serve(shop)}/workflows/{started.id}", width=360)
    graph = page.locator(".graph")
    nodes = graph.get_by_role("button")
    expect(nodes).to_have_count(beside + 2)

    assert graph.evaluate("graph => graph.scrollWidth - graph.clientWidth") <= 0
    whole = graph.evaluate("graph => graph.scrollHeight - graph.clientHeight") <= 0
    assert whole == (beside == 2)
    boxes = [node.bounding_box() for node in nodes.all()]
    assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= 360 for box in boxes)
    tops = [box["y"] for box in boxes if box]
    assert all(below - above >= 60 for above, below in pairwise(tops))
    # Each line ends at the nodes that it joins, and what does not lead to the next is led past it.
    lines = graph.locator("ul > svg path")
    expect(lines).to_have_count(2 * beside + 1)
    left = lines.evaluate_all("lines => Math.min(...lines.map(one => one.getBBox().x))")
    assert left >= 0
    nodes.first.focus()
    page.keyboard.press("ArrowDown")
    expect(nodes.nth(1)).to_be_focused()


def test_the_names_of_groups_are_readable_on_a_small_telephone(
    shop: str, client: Client, serve: Serve, open_page: Open
) -> None:
    id = catalogue(client)
    page = open_page(f"{serve(shop)}/workflows/{id}", width=360)
    name = page.locator(".rows").get_by_role("button", name="resize_image")

    box = name.bounding_box()

    assert box is not None
    assert box["width"] > 3 * box["height"]


def test_what_happens_is_seen_and_keys_walk_the_graph(
    shop: str, client: Client, serve: Serve, open_page: Open
) -> None:
    started = client.workflows.start(
        "import", [NewJob(kind="load", queue="wf"), NewJob(kind="check", queue="wf", after=[1])]
    )
    page = open_page(f"{serve(shop)}/workflows/{started.id}")
    graph = page.get_by_role("list", name="Graph of the workflow")
    load = graph.get_by_role("button", name="load", exact=False).first
    expect(load).to_have_accessible_name("load queued")
    load.focus()
    page.keyboard.press("ArrowRight")
    expect(graph.get_by_role("button", name="after load")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_contain_text("Waits for 1 of 1 job")

    client.ack(client.claim("wf", worker="w"))

    expect(load).to_have_accessible_name("load done")
    expect(graph.get_by_role("button", name="after load")).to_have_accessible_name(
        "check queued after load"
    )


def test_a_workflow_is_cancelled_undone_and_retried_from_its_page(
    shop: str, client: Client, serve: Serve, open_page: Open
) -> None:
    id = catalogue(client, 8)
    page = open_page(f"{serve(shop)}/workflows/{id}")
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog", name="Cancel workflow catalogue")
    dialog.get_by_label("Reason").fill("wrong season")
    dialog.get_by_role("button", name="Cancel workflow").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("failed")
    expect(page.get_by_role("main")).to_contain_text("wrong season")

    page.get_by_role("button", name="Retry failed").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry", exact=True).click()

    expect(page.get_by_role("heading", level=1)).to_contain_text("running")
    found = client.workflows.get(id)
    assert found is not None
    assert found.reason is None


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (360, "dark")])
def test_everybody_can_use_the_pages(
    shop: str, client: Client, serve: Serve, open_page: Open, width: int, theme: str
) -> None:
    id = catalogue(client)
    address = serve(shop)
    page = open_page(f"{address}/workflows", width=width, theme=theme)
    for path in ("workflows", f"workflows/{id}"):
        page.goto(f"{address}/{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".bones")).to_have_count(0)
        if path != "workflows":
            page.get_by_role("button", name="resize_image").first.click()
            expect(page.get_by_role("table")).to_be_visible()

        assert faults(page, chromium.axe(), RULES) == []
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0
