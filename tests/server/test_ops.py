"""The dashboard and the alert rules name only what servers and workers really tell."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import promql_parser as promql
import pytest
import yaml

from holdfast import App, Cancel, Client, NewJob
from holdfast.worker import Worker
from tests import promtext
from tests.docs import pages
from tests.ports import free_port
from tests.server.serving import serving

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "ops" / "grafana" / "holdfast.json").read_text("utf-8"))
RULES = yaml.safe_load((ROOT / "ops" / "prometheus" / "holdfast.rules.yml").read_text("utf-8"))
ALL = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in ALL if "alert" in rule]
RECORDS = [(rule["record"], rule["expr"]) for rule in ALL if "record" in rule]
TARGETS = [
    (panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
]
EXPRESSIONS = [(alert["alert"], alert["expr"]) for alert in ALERTS] + RECORDS + TARGETS
# What Prometheus adds to every series.
ADDED = {"instance", "job"}

Exposed = dict[str, dict[str, set[str]]]


@pytest.fixture(scope="module")
def exposed(postgres: Any, template: str) -> Exposed:
    """Every series that a server and a worker tell, and the values of their labels."""
    from psycopg.conninfo import make_conninfo

    from holdfast.server import Server, Settings
    from tests.conftest import _create, _drop

    _create(postgres, "holdfast_ops", template)
    database = make_conninfo(postgres.url, dbname="holdfast_ops")
    port = free_port()
    # The server leaves upkeep to the test: it would skip a step that the server is at.
    server = Server(database, settings=Settings(fresh=0.0, upkeep=False))
    try:
        with serving(server) as served, served.client() as api, Client(database) as client:
            promtext.check(api.get("/metrics").text)
            told = promtext.check(_worked(App(database), port))
            client.workflows.start("import", [NewJob(kind="read")])
            client.upkeep.run()
            told |= promtext.check(api.get("/metrics").text)
    finally:
        _drop(postgres, "holdfast_ops")
    return {
        sample.name: {
            label: {other.labels[label] for other in family.samples if label in other.labels}
            for label in sample.labels
        }
        for family in told.values()
        for sample in family.samples
    }


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_an_expression_names_only_series_and_labels_that_exist(
    exposed: Exposed, where: str, expression: str
) -> None:
    for selector in _selectors(expression):
        assert selector.name in exposed, f"{where}: nobody tells {selector.name}"
        labels = exposed[selector.name]
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels.keys() | ADDED, f"{where}: {selector} has no {matcher}"
            if "$" not in matcher.value and matcher.name in labels:
                words = set(matcher.value.split("|"))
                assert words <= labels[matcher.name], f"{where}: {matcher} matches nothing"
    for labels_by, inside in _groupings(expression):
        known = ADDED.union(*(exposed[one.name] for one in _selectors(inside)))
        assert labels_by <= known, f"{where}: grouped by {labels_by - known}"


@pytest.mark.parametrize(
    "expression",
    [
        "holdfast_nonsense",
        'holdfast_queue_depth{tenant="a"}',
        'holdfast_queue_depth{state="wating"}',
        "sum by (lane) (holdfast_queue_depth)",
    ],
)
def test_an_expression_that_names_something_else_is_found(
    exposed: Exposed, expression: str
) -> None:
    with pytest.raises(AssertionError, match="planted: "):
        test_an_expression_names_only_series_and_labels_that_exist(exposed, "planted", expression)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_what_is_wrong_and_where_to_read_on(alert: dict[str, Any]) -> None:
    page, _, anchor = alert["annotations"]["runbook"].partition("#")

    headings = [re.sub(r"\W", "", heading.lower()) for heading in pages.headings(ROOT / page)]
    assert anchor == alert["alert"].lower()
    assert anchor in headings
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["description"]
    # What the text names is still there when the expression has grouped.
    said = set(re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values())))
    kept = set().union(*(labels for labels, _ in _groupings(alert["expr"])))
    assert said <= kept


def test_the_page_has_no_runbook_for_an_alert_that_is_gone() -> None:
    headings = pages.headings(ROOT / "docs" / "how-to" / "observe.md")

    assert [heading for heading in headings if heading.startswith("Holdfast")] == [
        alert["alert"] for alert in ALERTS
    ]


def test_the_dashboard_can_be_imported_and_its_panels_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    # No data source of ours: the one that whoever imports it chooses.
    sources = re.findall(r'"uid": "([^"]+)"', json.dumps(panels))
    assert set(sources) == {"${datasource}"}
    variables = [one["name"] for one in DASHBOARD["templating"]["list"]]
    used = set(re.findall(r"\$(\w+)", " ".join(expression for _, expression in TARGETS)))
    assert used - {"__rate_interval"} == set(variables) - {"datasource"}


def test_every_metric_is_in_the_reference_with_its_labels_and_no_other(exposed: Exposed) -> None:
    text = (ROOT / "docs" / "reference" / "telemetry.md").read_text("utf-8")
    rows = re.findall(r"^\| `(holdfast_\w+)` \| (\w+) \| (?:`([\w ]+)`)? ?\|", text, re.MULTILINE)
    documented = {name: set(labels.split()) for name, _, labels in rows}

    told = {
        re.sub(r"_seconds_(bucket|count|sum)$", "_seconds", name): labels.keys() - {"le"}
        for name, labels in exposed.items()
        if name.startswith("holdfast_")
    }
    assert documented == told


def _worked(app: App, port: int) -> str:
    """Run jobs that end in every way there is; return what their worker tells."""
    blocked, go_on = threading.Event(), threading.Event()

    @app.task(max_attempts=2, retry=lambda attempt, error: 0)
    def send(how: str) -> None:
        if how == "fail":
            raise ValueError("no")
        if how == "cancel":
            raise Cancel
        if how == "wait":
            blocked.set()
            go_on.wait(100)

    for how in ("fine", "fail", "cancel", "wait"):
        send.enqueue(how)
    worker = Worker(app, metrics=port, until_idle=True)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        assert blocked.wait(100)
        while worker.counts.failed < 2 or worker.counts.acked < 1:
            assert running.is_alive()
            threading.Event().wait(0.01)
        return httpx.get(f"http://127.0.0.1:{port}/metrics").text
    finally:
        go_on.set()
        running.join(100)
        app.close()


def _parsed(expression: str) -> Any:
    return promql.parse(expression.replace("$__rate_interval", "5m"))


def _selectors(expression: str | Any) -> list[Any]:
    found: list[Any] = []

    def note(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        elif isinstance(node, promql.MatrixSelector):
            found.append(node.vector_selector)

    promql.walk(_parsed(expression) if isinstance(expression, str) else expression, note)
    return found


def _groupings(expression: str) -> list[tuple[set[str], Any]]:
    found: list[tuple[set[str], Any]] = []

    def note(node: Any) -> None:
        if isinstance(node, promql.AggregateExpr) and node.modifier:
            found.append((set(node.modifier.labels), node.expr))
        elif isinstance(node, promql.BinaryExpr) and node.modifier and node.modifier.matching:
            found.append((set(node.modifier.matching.labels), node))

    promql.walk(_parsed(expression), note)
    return found
