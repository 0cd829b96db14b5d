"""The addresses of what is watched: anomalies, events, numbers over time."""

from typing import Any

from holdfast.server.api import (
    anomalies,
    look,
    prometheus,
)
from holdfast.server.http import answers, inputs
from holdfast.server.http.refusals import NOT_THERE, WRONG_STATE
from holdfast.server.http.route import STREAM, Entry, get, ok, post, text
from holdfast.server.live import stream
from holdfast.server.routes.tags import (
    WATCH,
)

_ANOMALY: Any = {"tag": WATCH, "answers": ok(answers.Anomaly, "The anomaly.")}

ROUTES: list[Entry] = [
    get(
        "/v1/anomalies",
        "read",
        anomalies.anomalies,
        inputs.Anomalies,
        id="listAnomalies",
        tag=WATCH,
        answers=ok(answers.AnomalyPage),
    ),
    post(
        "/v1/anomalies/{id}/ack",
        "operate",
        anomalies.ack,
        inputs.Noted,
        id="ackAnomaly",
        refuses=(WRONG_STATE,),
        **_ANOMALY,
    ),
    post(
        "/v1/anomalies/{id}/mute",
        "operate",
        anomalies.mute,
        inputs.Muted,
        id="muteAnomaly",
        refuses=(WRONG_STATE,),
        **_ANOMALY,
    ),
    post(
        "/v1/anomalies/{id}/unmute",
        "operate",
        anomalies.unmute,
        inputs.Unmuted,
        id="unmuteAnomaly",
        refuses=(WRONG_STATE,),
        **_ANOMALY,
    ),
    get("/v1/anomalies/{id}", "read", anomalies.anomaly, id="getAnomaly", **_ANOMALY),
    get(
        "/v1/detectors",
        "read",
        anomalies.detectors,
        id="listDetectors",
        tag=WATCH,
        answers=ok(answers.Detectors),
    ),
    Entry(
        "PATCH",
        "/v1/detectors/{code}",
        "operate",
        anomalies.detector_set,
        body=inputs.Tuned,
        id="setDetector",
        tag=WATCH,
        answers=ok(answers.Detector, "The detector as it is now."),
    ),
    get(
        "/v1/forecasts",
        "read",
        anomalies.forecasts,
        inputs.Forecast,
        id="listForecasts",
        tag=WATCH,
        answers=ok(answers.Forecasts),
    ),
    get(
        "/v1/doctor",
        "operate",
        anomalies.doctor,
        id="getDoctor",
        tag=WATCH,
        answers=ok(answers.Checkups),
    ),
    get(
        "/v1/events/stream",
        "read",
        stream.events,
        inputs.Watch,
        id="streamEvents",
        tag=WATCH,
        answers=text("A stream that does not end.", STREAM),
    ),
    get(
        "/v1/activity",
        "read",
        look.activity,
        inputs.Asked,
        id="listActivity",
        tag=WATCH,
        answers=ok(answers.EventPage),
        refuses=(NOT_THERE,),
    ),
    get(
        "/v1/metrics/series",
        "read",
        look.series,
        inputs.Series,
        id="getSeries",
        tag=WATCH,
        answers=ok(answers.Series),
    ),
    get(
        "/metrics",
        "read",
        prometheus.metrics,
        id="getPrometheusMetrics",
        tag=WATCH,
        answers=text(
            "Prometheus or OpenMetrics text.", "text/plain", "application/openmetrics-text"
        ),
    ),
]
